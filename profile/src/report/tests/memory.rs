//! The guest's memory over time.

use super::*;
use crate::rows::{MemoryKind, MemoryReadingRow, MemoryUseRow};

fn used(reading: u64, kind: MemoryKind, name: &str, pid: i32, bytes: u64) -> MemoryUseRow {
    MemoryUseRow { pid, ..MemoryUseRow::new(reading, kind, name, bytes) }
}

/// Returns readings each 10 ms: `free` falls by one, process 7 is there from reading 100 on.
fn with_memory(readings: u64) -> Run {
    let mut run = known();
    for id in 1..=readings {
        run.batch.memory_readings.push(MemoryReadingRow {
            id,
            time_ns: id * 10 * MS,
            total: 10_000,
            available: Some(5_000),
            cost_ns: MS,
            ..MemoryReadingRow::default()
        });
        run.batch.memory_uses.push(used(id, MemoryKind::Part, "free", 0, 10_000 - id));
        // Two mounts of one name.
        let mounts = [1, 2].map(|bytes| used(id, MemoryKind::Filesystem, "/data", 0, bytes * 100));
        run.batch.memory_uses.extend(mounts);
        if id >= 100 {
            run.batch.memory_uses.push(used(id, MemoryKind::Process, "late", 7, id));
        }
    }
    run
}

#[test]
fn holders_have_first_last_peak_and_points() {
    let (_directory, path) = with_memory(240).write();
    let profile = Profile::open(&path).expect("a profile");
    let report = MemoryReport::read(&profile, &Filter::default()).expect("a report");
    assert_eq!((report.readings, report.times_s.len(), report.memory.total), (240, 120, 10_000));
    assert!((report.cost_s - 0.24).abs() < 1e-9 && (report.times_s[119] - 2.4).abs() < 1e-9, "{report:?}");
    let [free, late, data] = &report.holders[..] else { panic!("{:?}", report.holders) };
    assert_eq!(
        (free.kind, free.first, free.last, free.peak),
        (MemoryKind::Part, Some(9_999), Some(9_760), 9_999)
    );
    assert_eq!((free.pid, free.bytes[0], free.bytes[119]), (None, Some(9_999), Some(9_760)));
    assert_eq!((late.name.as_str(), late.pid, late.first, late.last), ("late", Some(7), None, Some(240)));
    assert!((late.peak_s - 2.4).abs() < 1e-9 && late.bytes[0].is_none() && late.bytes[119] == Some(240));
    assert_eq!((data.first, data.last), (Some(300), Some(300)), "both mounts");
    // A part of the time.
    let filter = Filter { from_ns: Some(1_000 * MS), to_ns: Some(1_050 * MS), ..Filter::default() };
    let part = MemoryReport::read(&profile, &filter).expect("a report");
    assert_eq!((part.readings, part.holders[0].first, part.holders[0].last), (5, Some(9_900), Some(9_896)));
}

#[test]
fn a_profile_without_readings_says_so() {
    let (_directory, path) = known().write();
    let profile = Profile::open(&path).expect("a profile");
    let error = MemoryReport::read(&profile, &Filter::default()).unwrap_err();
    assert!(matches!(error, ReportError::NoMemory), "{error}");
    assert!(error.to_string().ends_with("record with --memory-use"), "{error}");
}
