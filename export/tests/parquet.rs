//! Parquet as pyarrow reads it.
//!
//! pyarrow comes from PyPI, by the machine's own settings, and is kept in cargo's directory for tests. Without Python or network
//! the test fails (`testkit::missing`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use export::{Format, Request};
use profile::{Profile, made_up};
use testkit::{missing, tool};

const PACKAGE: &str = "pyarrow==26.0.1";

/// More than a row group has.
const SAMPLES: u64 = 150_000;

/// A Python that has pyarrow; `None` where it cannot be installed, and need not be.
fn python() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGE);
    let python = directory.join("bin/python3");
    let ready = directory.join("ready");
    if ready.exists() {
        return Some(python);
    }
    let made = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !made(tool("python3")?.args(["-m", "venv"]).arg(&directory)) {
        missing("an environment of python3 (Debian package python3-venv; `cargo xtask deps` installs it)");
        return None;
    }
    if !made(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE])) {
        missing("pyarrow from PyPI, which pip cannot fetch: check the network");
        return None;
    }
    fs::write(ready, "").expect("room");
    Some(python)
}

#[test]
fn pyarrow_reads_the_columns_of_csv() {
    let Some(python) = python() else { return };
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
