//! All tasks at one moment.

use std::cell::Cell;

use proptest::prelude::*;

use super::{STYLES, booted, empty, styled};
use crate::fixture::{Config, Guest};
use crate::{FlatMemory, Kernel, PhysAddr, PhysicalMemory, RunState, ScanResult, TaskObservation};

fn walk(kernel: &Kernel, memory: &impl PhysicalMemory) -> (Vec<TaskObservation>, ScanResult) {
    let lists = kernel.task_list_reader(memory).expect("task lists");
    let mut seen = Vec::new();
    let way = lists.walk(memory, |sight| seen.push(*sight));
    (seen, way)
}

fn sight(seen: &[TaskObservation], tid: i32) -> TaskObservation {
    *seen.iter().find(|sight| sight.state.task.tid == tid).expect("a thread")
}

#[test]
fn every_thread_is_seen_with_its_state() {
    for style in STYLES {
        let (mut guest, kernel) = styled(style, |_| ());
        guest.set_state(101, [1, 0, 0]);
        guest.set_state(102, [0, 0, 1]);
        guest.set_place(102, true, 0);
        guest.set_place(101, false, 0xffff_8880_0000_1000);
        guest.set_times(101, [0, 0, 0, 3, 4, 0]);
        let (seen, way) = walk(&kernel, &guest.memory);
        assert_eq!(way, ScanResult::Complete);
        let mut tids: Vec<i32> = seen.iter().map(|sight| sight.state.task.tid).collect();
        let mut listed: Vec<i32> =
            kernel.tasks(&guest.memory).expect("tasks").iter().map(|task| task.tid).collect();
        tids.sort_unstable();
        listed.sort_unstable();
        assert_eq!(tids, listed);
        let (asleep, runs) = (sight(&seen, 101), sight(&seen, 102));
        assert_eq!(
            (asleep.state.run_state(), asleep.on_cpu, asleep.inconsistent),
            (RunState::Interruptible, false, false)
        );
        assert_eq!((asleep.switches, asleep.saved_sp), (7, 0xffff_8880_0000_1000));
        assert!(runs.on_cpu && !runs.inconsistent);
        let lists = kernel.task_list_reader(&guest.memory).expect("task lists");
        assert_eq!(lists.read(&guest.memory, guest.task(101).expect("a thread")), Some(asleep));
    }
}

/// Memory in which a word grows with every read of it.
struct Moving<'a> {
    guest: &'a Guest,
    at: PhysAddr,
    looks: Cell<u64>,
    until: u64,
}

impl PhysicalMemory for Moving<'_> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        self.guest.memory.read(at, into)?;
        if at == self.at {
            self.looks.set(self.looks.get() + 1);
            into.copy_from_slice(&self.looks.get().min(self.until).to_le_bytes()[..into.len()]);
        }
        Some(())
    }
}

/// Returns the physical address of `nvcsw` of a thread: where a number is that nothing else has.
fn place_of_switches(guest: &mut Guest, tid: i32) -> PhysAddr {
    const MARK: u64 = 0x5eed_5eed_0123;
    guest.set_times(tid, [0, 0, 0, MARK, 0, 0]);
    let bytes = MARK.to_le_bytes();
    let at = guest.memory.0.windows(8).position(|window| window == bytes).expect("the number");
    PhysAddr(at as u64)
}

#[test]
fn a_task_that_is_switched_meanwhile_is_read_again_or_torn() {
    let (mut guest, kernel) = booted(|_| ());
    let at = place_of_switches(&mut guest, 1);
    let task = guest.task(1).expect("a thread");
    let lists = kernel.task_list_reader(&guest.memory).expect("task lists");
    let read = |until| {
        let memory = Moving { guest: &guest, at, looks: Cell::new(0), until };
        lists.read(&memory, task).expect("a task")
    };
    // It changes once, between the first two reads.
    let settled = read(2);
    assert!(!settled.inconsistent && settled.switches == 2, "{settled:?}");
    assert!(read(u64::MAX).inconsistent);
}

#[test]
fn a_list_that_cannot_be_followed_is_torn() {
    let (mut guest, kernel) = booted(|_| ());
    let lists = kernel.task_list_reader(&guest.memory).expect("task lists");
    assert_eq!(lists.walk(&empty(), |_| ()), ScanResult::Inconsistent);
    assert_eq!(lists.read(&empty(), guest.task(1).expect("a thread")), None);
    guest.tie_task_loop();
    let mut count = 0;
    assert_eq!(lists.walk(&guest.memory, |_| count += 1), ScanResult::Truncated);
    assert_eq!(count, 1 << 17);
    assert!(kernel.task_list_reader(&FlatMemory(Vec::new())).is_err());
}

proptest! {
    /// A guest may put anything where its lists and tasks are.
    #[test]
    fn a_hostile_guest_is_looked_at_to_an_end(at in 0x280_0000_usize..0x281_0000, bytes in prop::collection::vec(any::<u8>(), 1..64)) {
        let mut guest = Config::new(STYLES[1]).build();
        let kernel = super::find(&guest).expect("a kernel");
        guest.memory.0[at..at + bytes.len()].copy_from_slice(&bytes);
        let lists = kernel.task_list_reader(&guest.memory).expect("task lists");
        let mut count = 0;
        lists.walk(&guest.memory, |_| count += 1);
        prop_assert!(count <= 1 << 17);
    }
}
