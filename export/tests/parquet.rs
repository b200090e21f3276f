//! Parquet in pyarrow.

use std::fs;
use std::process::Command;

use export::lake::{HOUR_NS, KnownStacks, LakeProfile, LakeVm, LakeWindow, LakeWriter};
use export::{Format, Request};
use profile::{Profile, made_up};
use testkit::python_packages;

const PACKAGE: &str = "pyarrow==26.0.1";

/// Number of samples, more than a row group has.
const SAMPLES: u64 = 150_000;

#[test]
fn pyarrow_reads_the_columns_of_csv() {
    let Some(programs) = python_packages(&[PACKAGE]) else { return };
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
    let output =
        Command::new(programs.join("python3")).args(["-c", program]).args(files).output().expect("Python");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "equal", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn pyarrow_reads_a_lake_by_its_directories() {
    let Some(programs) = python_packages(&[PACKAGE]) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, 20_000, 300);
    let profile = Profile::open(&path).expect("a profile");
    let mut samples = 0;
    let mut weight_ns = 0.0;
    // Two hosts in two windows, of different days: 2026-11-23 23:00 UTC and the hour after.
    for (host, hours) in [("alpha", 0), ("alpha", 1), ("beta", 1)] {
        let start_unix_ns = 1_795_474_800_000_000_000 + hours * HOUR_NS;
        let (host, inclusion) = (host.to_owned(), 0.5);
        let window = LakeWindow { host, start_unix_ns, length_ns: HOUR_NS, inclusion, dropped_windows: 0 };
        let mut writer =
            LakeWriter::new(window.clone(), KnownStacks::default(), |_| Ok(Vec::new())).expect("a writer");
        let vm = LakeVm { id: "a".to_owned(), group: "team=db".to_owned(), ..LakeVm::default() };
        let totals = writer.add(&vm, &LakeProfile::read(&profile).expect("a profile")).expect("sums");
        (samples, weight_ns) = (samples + totals.samples, weight_ns + totals.weight_ns);
        for (table, bytes) in writer.finish().expect("files").0 {
            let file = directory.path().join("lake").join(window.path(table));
            fs::create_dir_all(file.parent().expect("a directory")).expect("room");
            fs::write(file, bytes).expect("room");
        }
    }
    let program = "\
import datetime, os, sys
import pyarrow
import pyarrow.compute as compute
import pyarrow.dataset as dataset
lake = os.path.join(sys.argv[1], 'v1')
tables = {name: dataset.dataset(os.path.join(lake, name), partitioning='hive').to_table() for name in sorted(os.listdir(lake))}
assert sorted(tables) == ['samples', 'stacks', 'tasks', 'vcpus', 'vms'], tables
samples = tables['samples']
utc = pyarrow.timestamp('us', tz='UTC')
assert samples.schema.field('t').type == utc and samples.schema.field('stack').type == pyarrow.int64(), samples.schema
assert samples.schema.field('process').type == pyarrow.string(), samples.schema
assert compute.sum(samples['samples']).as_py() == int(sys.argv[2])
assert abs(compute.sum(samples['weight_ns']).as_py() - float(sys.argv[3])) < 1e3
places = sorted({(str(row['day']), row['hour'], row['host'], row['t']) for row in tables['vms'].to_pylist()})
first = datetime.datetime(2026, 11, 23, 23, tzinfo=datetime.timezone.utc)
second = datetime.datetime(2026, 11, 24, 0, tzinfo=datetime.timezone.utc)
assert places == [('2026-11-23', 23, 'alpha', first), ('2026-11-24', 0, 'alpha', second), ('2026-11-24', 0, 'beta', second)], places
assert set(samples['group_'].to_pylist()) == {'team=db'} and set(samples['inclusion'].to_pylist()) == {0.5}
assert set(samples['stack'].to_pylist()) <= set(tables['stacks']['stack'].to_pylist())
print('equal')
";
    let lake = directory.path().join("lake");
    let mut command = Command::new(programs.join("python3"));
    command.args(["-c", program]).arg(lake).args([samples.to_string(), weight_ns.to_string()]);
    let output = command.output().expect("Python");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.trim(), "equal", "{}", String::from_utf8_lossy(&output.stderr));
}
