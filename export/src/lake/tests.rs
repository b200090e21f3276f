use std::collections::BTreeMap;

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use profile::rows::{
    Batch, CgroupRow, FrameKind, FrameRow, InstanceRow, Microstates, Mode, SampleRow, StackRow, VcpuRow,
    VcpuState,
};
use profile::{ProfileWriter, Sink, made_up};

use super::*;
use crate::tests::fixture::{self, Made};

/// Rows of a file by column.
type Rows = Vec<BTreeMap<String, Field>>;

fn reader(bytes: &[u8]) -> SerializedFileReader<Bytes> {
    SerializedFileReader::new(Bytes::copy_from_slice(bytes)).expect("a Parquet file")
}

fn rows(bytes: &[u8]) -> Rows {
    let reader = reader(bytes);
    let rows = reader.get_row_iter(None).expect("rows");
    let row = |row: parquet::record::Row| {
        row.get_column_iter().map(|(name, field)| (name.clone(), field.clone())).collect()
    };
    rows.map(|found| row(found.expect("a row"))).collect()
}

fn integer(row: &BTreeMap<String, Field>, column: &str) -> i64 {
    match row.get(column) {
        Some(Field::Long(value)) => *value,
        other => panic!("{column}: {other:?}"),
    }
}

fn double(row: &BTreeMap<String, Field>, column: &str) -> f64 {
    match row.get(column) {
        Some(Field::Double(value)) => *value,
        other => panic!("{column}: {other:?}"),
    }
}

/// Null is empty.
fn text<'a>(row: &'a BTreeMap<String, Field>, column: &str) -> &'a str {
    match row.get(column) {
        Some(Field::Str(value)) => value,
        Some(Field::Null) => "",
        other => panic!("{column}: {other:?}"),
    }
}

fn window() -> LakeWindow {
    let (start_unix_ns, length_ns) = (490_000 * HOUR_NS, HOUR_NS);
    LakeWindow { host: "alpha".to_owned(), start_unix_ns, length_ns, inclusion: 0.25, dropped_windows: 2 }
}

fn vm(id: &str) -> LakeVm {
    LakeVm { id: id.to_owned(), name: "web".to_owned(), group: "team=db".to_owned(), ..LakeVm::default() }
}

/// Writes a window with these machines; returns the files and the sums of each machine.
fn written(machines: &[(&str, &Made)]) -> (BTreeMap<LakeTable, Vec<u8>>, Vec<LakeTotals>) {
    let mut writer = LakeWriter::new(window(), KnownStacks::default(), |_| Ok(Vec::new())).expect("a writer");
    let mut totals = Vec::new();
    for (id, made) in machines {
        let profile = Profile::open(&made.path).expect("a profile");
        let contents = LakeProfile::read(&profile).expect("a whole profile");
        totals.push(writer.add(&vm(id), &contents).expect("room"));
    }
    (writer.finish().expect("files").0.into(), totals)
}

/// Sums of the samples by process.
fn by_process(rows: &Rows) -> BTreeMap<String, (i64, f64)> {
    let mut sums: BTreeMap<String, (i64, f64)> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(text(row, "process").to_owned()).or_default();
        *sum = (sum.0 + integer(row, "samples"), sum.1 + double(row, "weight_ns"));
    }
    sums
}

#[test]
fn sums_are_those_of_a_query_and_of_the_report() {
    let made = fixture::several();
    let (files, totals) = written(&[("a", &made)]);
    let profile = Profile::open(&made.path).unwrap();
    let found = by_process(&rows(&files[&LakeTable::Samples]));
    let table = profile.query("SELECT comm, sum(samples) FROM v_processes GROUP BY comm").unwrap();
    assert_eq!(table.rows.len(), found.len());
    for row in &table.rows {
        let [Value::Text(comm), Value::Integer(samples)] = row.as_slice() else { panic!("{row:?}") };
        assert_eq!(found[comm].0, *samples, "{comm}");
    }
    let report = profile::Report::read(&profile, &Filter::default()).unwrap();
    // Times are rounded, to at most a 32nd of a sample's.
    let all_s: f64 = report.programs.iter().map(|program| program.estimate.time_s).sum();
    let rounded_s = all_s / report.busy_samples as f64 / 32.0;
    for program in &report.programs {
        let (samples, ns) = found[&program.comm];
        assert_eq!(samples.cast_unsigned(), program.estimate.samples);
        assert!((ns / 1e9 - program.estimate.time_s).abs() <= rounded_s, "{}: {ns}", program.comm);
    }
    let [totals] = totals.as_slice() else { panic!("{totals:?}") };
    assert_eq!((totals.samples, totals.other_samples), (report.busy_samples, 0));
    let vms = rows(&files[&LakeTable::Vms]);
    assert_eq!((vms.len(), integer(&vms[0], "samples")), (1, totals.samples.cast_signed()));
    assert_eq!(integer(&vms[0], "dropped_windows"), 2);
    assert_eq!((text(&vms[0], "vm"), text(&vms[0], "group_")), ("a", "team=db"));
    let vcpus = rows(&files[&LakeTable::Vcpus]);
    let exact = profile.query("SELECT sum(guest_ns) FROM vcpu").unwrap();
    let sum: i64 = vcpus.iter().map(|row| integer(row, "guest_ns")).sum();
    assert_eq!(exact.rows, [[Value::Integer(sum)]]);
}

#[test]
fn every_stack_of_a_sample_is_in_its_table_once() {
    let made = fixture::plain();
    let (files, _) = written(&[("a", &made), ("b", &made)]);
    let stacks = rows(&files[&LakeTable::Stacks]);
    let mut known = BTreeMap::new();
    for row in &stacks {
        let before = known.insert(integer(row, "stack"), text(row, "frames").to_owned());
        assert_eq!(before, None, "a stack of two machines is stored once");
        let depth = text(row, "frames").split(';').count();
        assert_eq!(usize::try_from(integer(row, "depth")), Ok(depth));
        assert_eq!(integer(row, "doubtful") == 1, !text(row, "reason").is_empty());
    }
    let samples = rows(&files[&LakeTable::Samples]);
    for row in &samples {
        let frames = &known[&integer(row, "stack")];
        assert_eq!(frames.split(';').next(), Some(text(row, "function")), "innermost first");
    }
    assert!(known.values().any(|frames| frames.contains("mix;hash;work;main")), "{known:?}");
    let machines: Vec<&str> = samples.iter().map(|row| text(row, "vm")).collect();
    assert!(machines.is_sorted() && machines.first() != machines.last());
}

#[test]
fn files_have_types_statistics_order_and_the_window() {
    let made = fixture::plain();
    let (files, _) = written(&[("a", &made)]);
    for (table, bytes) in &files {
        let reader = reader(bytes);
        let metadata = reader.metadata();
        let file = metadata.file_metadata();
        assert_eq!(file.schema().name(), table.name());
        let facts = file.key_value_metadata().expect("facts");
        let fact = |key: &str| facts.iter().find(|fact| fact.key == key).and_then(|fact| fact.value.clone());
        assert_eq!(fact("vprof.lake").as_deref(), Some("1"));
        assert_eq!(fact("vprof.window_start_ns"), Some(window().start_unix_ns.to_string()));
        let schema = file.schema_descr();
        let columns: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
        let t = schema.column(columns.iter().position(|name| *name == "t").expect("t"));
        let logical = parquet::basic::LogicalType::timestamp(true, parquet::basic::TimeUnit::MICROS);
        assert_eq!(t.logical_type_ref(), Some(&logical));
        for group in metadata.row_groups() {
            for column in group.columns() {
                let name = column.column_path().string();
                // Questions choose by texts and times.
                let chosen_by = column.column_type() == parquet::basic::Type::BYTE_ARRAY
                    || ["t", "begin"].contains(&name.as_str());
                assert_eq!(column.statistics().is_some(), chosen_by, "{table:?}.{name}");
                assert!(matches!(column.compression(), parquet::basic::Compression::ZSTD(_)));
                let unique = ["stack", "frames"].contains(&name.as_str());
                assert_eq!(column.dictionary_page_offset().is_some(), !unique, "{table:?}.{name}");
            }
        }
    }
    let samples = reader(&files[&LakeTable::Samples]);
    let sorted = samples.metadata().row_group(0).sorting_columns().expect("an order");
    assert_eq!(sorted.len(), 3);
    let row = &rows(&files[&LakeTable::Samples])[0];
    let micros = (window().start_unix_ns / 1_000).cast_signed();
    assert_eq!(row["t"], Field::TimestampMicros(micros));
    assert!((double(row, "inclusion") - 0.25).abs() < f64::EPSILON);
}

#[test]
fn the_same_profiles_give_the_same_bytes() {
    let made = fixture::several();
    assert_eq!(written(&[("a", &made)]).0, written(&[("a", &made)]).0);
}

/// A guest whose every sample has another process, stack and function, all with long names.
fn hostile(samples: u32) -> Made {
    let (mut batch, name) = (Batch::default(), |n: u32| format!("{n}\u{202e};\x1b[2J{}", "x".repeat(2_000)));
    batch.vcpus.push(VcpuRow {
        samples: samples.into(),
        states: Microstates { guest: u64::from(samples) * 1_000_000, ..Microstates::default() },
        ..VcpuRow::default()
    });
    batch.cgroups.push(CgroupRow { id: 1, path: name(1), unit: Some(name(2)), container: Some(name(3)) });
    for n in 1..=samples {
        let (pid, comm) = (n.cast_signed(), name(n));
        let cgroup = Some(1);
        batch.instances.push(InstanceRow { id: n, pid, comm, cgroup, ..InstanceRow::default() });
        let symbol = Some(name(n));
        batch.frames.push(FrameRow { id: n, kind: FrameKind::Kernel, symbol, ..FrameRow::default() });
        batch.stacks.push(StackRow { id: n, parent: None, frame: n });
        batch.samples.push(SampleRow {
            time_ns: u64::from(n) * 1_000_000,
            mode: Mode::Kernel,
            vcpu_state: VcpuState::Guest,
            frame: n,
            stack: Some(n),
            instance: Some(n),
            ..SampleRow::default()
        });
    }
    fixture::finished(&batch)
}

#[test]
fn what_a_guest_makes_up_is_bounded_and_no_sample_is_lost() {
    let made = hostile(300);
    let profile = Profile::open(&made.path).unwrap();
    let recording = Recording::read(&profile, &RecordingRequest::default(), &mut |_, _| {}).unwrap();
    let mut texts = StackTexts::new(&recording);
    let sums = SampleSums::new(&recording, &mut texts, 10);
    assert_eq!(sums.rows.len(), 11, "ten rows, and one of the rest");
    assert_eq!(sums.rows.iter().map(|sum| sum.samples).sum::<u64>(), 300);
    let weight: f64 = sums.rows.iter().map(|sum| sum.weight_ns).sum();
    // The last of the rounded times.
    assert!((weight - recording.weight_ns()).abs() < recording.weight_ns() / 300.0 / 32.0, "{weight}");
    let others: Vec<_> = sums.rows.iter().filter(|sum| sum.is_other()).collect();
    assert_eq!((others.len(), others[0].samples), (1, 290));
    let (files, _) = written(&[("a", &made)]);
    for (table, bytes) in &files {
        for row in rows(bytes) {
            for (column, field) in row {
                let Field::Str(text) = field else { continue };
                assert!(text.chars().count() <= LONGEST_TEXT, "{table:?}.{column}");
                assert!(!text.contains(['\u{202e}', '\x1b']), "{table:?}.{column}");
            }
        }
    }
}

#[test]
fn a_large_profile_keeps_its_sums() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.vprof");
    made_up::write_profile(&path, 20_000, 300);
    let profile = Profile::open(&path).unwrap();
    let mut writer = LakeWriter::new(window(), KnownStacks::default(), |_| Ok(Vec::new())).unwrap();
    let totals = writer.add(&vm("a"), &LakeProfile::read(&profile).unwrap()).unwrap();
    let files: BTreeMap<LakeTable, Vec<u8>> = writer.finish().unwrap().0.into();
    let sum: i64 = rows(&files[&LakeTable::Samples]).iter().map(|row| integer(row, "samples")).sum();
    let all = profile.query("SELECT count(*) FROM v_charged").unwrap();
    assert_eq!(all.rows, [[Value::Integer(sum)]]);
    assert_eq!(sum.cast_unsigned(), totals.samples);
}

#[test]
fn an_empty_profile_has_a_machine_and_no_samples() {
    let (files, totals) = written(&[("a", &fixture::empty())]);
    assert_eq!(totals, [LakeTotals::default()]);
    assert!(rows(&files[&LakeTable::Samples]).is_empty());
    assert_eq!(rows(&files[&LakeTable::Vms]).len(), 1);
}

#[test]
fn a_damaged_profile_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.vprof");
    let mut writer = ProfileWriter::create(&path, false).unwrap();
    writer.write(&Batch { meta: vec![("seed".to_owned(), "1".to_owned())], ..Batch::default() }).unwrap();
    writer.finish().unwrap();
    let damaged = Profile::open(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.iter_mut().skip(4_096).for_each(|byte| *byte = 0x5a);
    std::fs::write(&path, bytes).unwrap();
    assert!(LakeProfile::read(&damaged).is_err());
}
