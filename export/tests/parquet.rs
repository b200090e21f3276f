//! Parquet in pyarrow.

mod python;

use std::fs;
use std::process::Command;

use export::{Format, Request};
use profile::{Profile, made_up};

const PACKAGE: &str = "pyarrow==26.0.1";

/// Number of samples, more than a row group has.
const SAMPLES: u64 = 150_000;

#[test]
fn pyarrow_reads_the_columns_of_csv() {
    let Some(python) = python::with_package(PACKAGE) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, SAMPLES, 500);
    let profile = Profile::open(&path).expect("a profile");
    let mut files = Vec::new();
    for format in [Format::Parquet, Format::Csv] {
        let mut bytes = Vec::new();
        export::write(&profile, &Request::new(format), &mut bytes, &mut |_, _| {}).expect("an export");
        let file = directory.path().join(format.name());
        fs::write(&file, bytes).expect("room");
        files.push(file);
    }
    let program = "\
import csv, sys
import pyarrow.parquet as parquet
table = parquet.read_table(sys.argv[1])
rows = list(csv.DictReader(open(sys.argv[2], newline='')))
assert table.num_rows == len(rows) and table.column_names == list(rows[0]), table.schema
assert parquet.ParquetFile(sys.argv[1]).num_row_groups == 2
for name in table.column_names:
    for own, other in zip(table[name].to_pylist(), (row[name] for row in rows)):
        if name == 'address':
            own = hex(own % 2**64)
        elif name == 'weight_ns':
            own = format(own, '.0f')
        assert ('' if own is None else str(own)) == other, (name, own, other)
print('equal')
";
    let output = Command::new(python).args(["-c", program]).args(files).output().expect("Python");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "equal", "{}", String::from_utf8_lossy(&output.stderr));
}
