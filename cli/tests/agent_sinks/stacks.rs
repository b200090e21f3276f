//! Stacks are written once a day, where all lakes have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use export::lake::LakeTable;
use parquet::record::Field;

use crate::support::parquet_rows;
use crate::{SOON, TestSpool, eventually};

/// Returns the numbers of stacks in a table of a window of the day's first hours in the test.
fn stacks(lake: &Path, table: LakeTable, hour: u64) -> BTreeSet<i64> {
    let rows = parquet_rows(&lake.join(TestSpool::window(hour).path(table)));
    let number = |row: &BTreeMap<String, Field>| match row["stack"] {
        Field::Long(number) => number,
        ref other => panic!("{other:?}"),
    };
    rows.iter().map(number).collect()
}

#[test]
fn each_stack_is_written_once_a_day_and_again_for_a_lake_that_is_new() {
    let spool = TestSpool::new();
    // The first hour of the next day is the ninth.
    let hours = [0, 1, 8];
    let lake = spool.lake();
    let send = |sinks: &[&str]| {
        let windows = hours.map(|hour| spool.add(hour, &["web", "db"]));
        let mut agent = spool.agent(sinks, &[]);
        let are_gone = || windows.iter().all(|window| !window.exists()).then_some(());
        eventually("all windows in all lakes", SOON, are_gone);
        assert_eq!(agent.end(), Some(0), "{}", agent.seen);
    };
    send(&["--to", lake.to_str().unwrap()]);
    let of = |table, hour| stacks(&lake, table, hour);
    let all = hours.map(|hour| of(LakeTable::Samples, hour));
    assert_eq!(of(LakeTable::Stacks, 0), all[0]);
    let second = of(LakeTable::Stacks, 1);
    assert_eq!(second, all[1].difference(&all[0]).copied().collect());
    assert!(second.len() * 2 < all[1].len(), "most stacks are those of the hour before");
    assert_eq!(of(LakeTable::Stacks, 8), all[2], "another day");
    // The same again, to two lakes, of which one has nothing yet.
    let other = lake.with_extension("other");
    send(&["--to", lake.to_str().unwrap(), "--to", other.to_str().unwrap()]);
    for place in [&lake, &other] {
        let of = |hour| stacks(place, LakeTable::Stacks, hour);
        assert!(
            of(0) == all[0] && of(0).union(&of(1)).copied().collect::<BTreeSet<_>>().is_superset(&all[1])
        );
    }
    let lists = fs::read_dir(spool.path().join("stacks")).unwrap();
    assert_eq!(lists.count(), 1, "of the last day");
}
