use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};

use guest_linux::FlatMemory;
use guest_linux::fixture::{Config, Guest, Style};

use super::*;
use crate::record::GuestReaders;

/// Creates a scanner of a made-up guest's tasks, and the receiver of its events.
fn scanner(guest: &Guest) -> (TaskScanner<FlatMemory<Vec<u8>>>, TaskListReader, Receiver<ScanEvent>) {
    let memory = guest.memory.clone();
    let kernel = Arc::new(Kernel::find(&memory, guest.cr3, guest.five_level).expect("a kernel"));
    let readers = Arc::new(OnceLock::new());
    let current = kernel.current_reader(&memory).expect("a reader");
    drop(readers.set(GuestReaders { current, stacks: None }));
    let plan = ScanConfig { hz: 500.0, seed: 1, readers, zero_ns: 0 };
    let reader = kernel.task_list_reader(&memory).expect("a reader");
    let (sender, receiver) = sync_channel(64);
    (TaskScanner::new(plan, kernel, memory, StopFlag::default(), sender), reader, receiver)
}

fn states(changes: &[TaskChange]) -> Vec<(i32, Option<TaskState>)> {
    let mut list: Vec<_> =
        changes.iter().map(|change| (change.task.tid, change.seen.as_ref().map(|seen| seen.state))).collect();
    list.sort_unstable();
    list
}

#[test]
fn only_changes_are_reported() {
    let mut guest = Config::new(Style::V6_12).build();
    guest.set_state(101, [1, 0, 0]);
    let (mut scanner, reader, _receiver) = scanner(&guest);
    let first = states(&scanner.scan(&reader).expect("a whole way"));
    assert!(first.len() > 4 && first.contains(&(101, Some(TaskState::Sleep))), "{first:?}");
    let again = scanner.scan(&reader).expect("a whole way");
    assert!(again.is_empty(), "{:?}", states(&again));
    guest.set_state(101, [2, 0, 0]);
    // Thread 102 is what vCPU 1 runs; thread 103 has left its CPU, but not yet its stack.
    guest.set_place(102, true, 0);
    guest.set_place(103, true, 0);
    guest.set_state(103, [1, 0, 0]);
    guest.set_state(1, [0x80, 0x20, 0]);
    scanner.memory = guest.memory.clone();
    let changed = states(&scanner.scan(&reader).expect("a whole way"));
    for (tid, state) in
        [(101, TaskState::Disk), (1, TaskState::Zombie), (102, TaskState::Running), (103, TaskState::Sleep)]
    {
        assert!(changed.contains(&(tid, Some(state))), "{tid}: {changed:?}");
    }
    // Another sleep in the same state is a change: its wait reason has to be read.
    guest.set_times(101, [0, 0, 0, 1, 0, 0]);
    scanner.memory = guest.memory.clone();
    let slept = scanner.scan(&reader).expect("a whole way");
    assert_eq!(states(&slept), [(101, Some(TaskState::Disk))]);
    assert!(slept.iter().all(|change| change.seen.as_ref().is_some_and(|seen| !seen.same_sleep)));
}

#[test]
fn who_is_not_seen_any_more_is_gone() {
    let mut guest = Config::new(Style::V6_1).build();
    let (mut scanner, reader, _receiver) = scanner(&guest);
    assert!(scanner.scan(&reader).expect("a whole way").len() > 4);
    guest.set_state(102, [0x80, 0x10, 0]);
    scanner.memory = guest.memory.clone();
    assert_eq!(states(&scanner.scan(&reader).expect("a whole way")), [(102, None)]);
    scanner.memory = FlatMemory(vec![0; 4096]);
    assert!(scanner.scan(&reader).is_none(), "a list that cannot be followed says nothing of anybody");
    assert!(!scanner.known.is_empty());
}

#[test]
fn the_thread_reports_scans_until_it_is_stopped() {
    let guest = Config::new(Style::V6_15).build();
    let (scanner, _, receiver) = scanner(&guest);
    let stop = scanner.stop.clone();
    let thread = thread::spawn(move || scanner.run());
    let Ok(ScanEvent::Begins(from_ns)) = receiver.recv() else { panic!("it does not begin") };
    let mut due_before_ns = from_ns;
    for n in 0..5 {
        let Ok(ScanEvent::TaskScan(scan)) = receiver.recv() else { panic!("no scan {n}") };
        let due_ns = scan.time_ns - u64::try_from(scan.late.as_nanos()).expect("not that late");
        // The first scan may come at once: sampling starts at any time of an interval.
        let least = if n == 0 { 0 } else { 1_000_000 };
        assert!(due_ns >= due_before_ns + least, "half a mean interval at least");
        assert_eq!(scan.changes.is_empty(), n > 0);
        due_before_ns = due_ns;
    }
    stop.set();
    thread.thread().unpark();
    drop(receiver);
    thread.join().expect("it ends by itself");
}

#[test]
fn a_kernel_without_types_is_a_reason() {
    let mut config = Config::new(Style::V6_1);
    config.btf = false;
    let (guest, typed) = (config.build(), Config::new(Style::V6_1).build());
    let (mut scanner, _, receiver) = scanner(&typed);
    scanner.memory = guest.memory.clone();
    scanner.kernel = Arc::new(Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel"));
    scanner.run();
    assert!(matches!(receiver.recv(), Ok(ScanEvent::Missing(reason)) if reason.contains("BTF")));
}

#[test]
fn scans_that_cost_much_are_made_less_often() {
    let mut pace = ScanBackoff::new(10.0);
    for _ in 0..100 {
        pace.note(1_000_000);
    }
    assert_eq!(pace.backoff, 0, "a hundredth");
    for _ in 0..100 {
        pace.note(30_000_000);
    }
    // 30 ms are 2 % of 1.5 s.
    assert_eq!(pace.backoff, 4);
    for _ in 0..100 {
        pace.note(u64::MAX);
    }
    assert_eq!(pace.backoff, MAX_BACKOFF);
    for _ in 0..400 {
        pace.note(0);
    }
    assert_eq!(pace.backoff, 0);
}
