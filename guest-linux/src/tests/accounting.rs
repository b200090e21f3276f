//! The guest's own accounting of CPU time.

use proptest::prelude::*;

use super::{STYLES, find};
use crate::Kernel;
use crate::fixture::{Config, Guest, Style};
use statistics::cpu_accounting::{ChildCpuTimes, CpuTime};

/// Process 100 has threads 100 to 103; two have run, and others have ended.
fn guest(config: &Config) -> (Guest, Kernel) {
    let mut guest = config.build();
    guest.set_times(100, [30, 10, 50, 3, 1, 7]);
    guest.set_times(102, [20, 20, 30, 2, 2, 5]);
    guest.set_ended_times(100, [10, 10, 20, 4, 5], [0, 0]);
    let kernel = find(&guest).expect("a kernel");
    (guest, kernel)
}

#[test]
fn a_process_is_the_sum_of_its_threads_and_of_those_that_have_ended() {
    for style in STYLES {
        let (guest, kernel) = guest(&Config::new(style));
        let books = kernel.process_cpu_times(&guest.memory).expect("books");
        assert_eq!(books.len(), 3);
        let many = books.iter().find(|process| process.leader.pid == 100).expect("process 100");
        assert_eq!(many.threads.len(), 4);
        assert_eq!(
            many.time,
            CpuTime {
                user_ns: 60,
                system_ns: 40,
                runtime_ns: 100,
                run_delay_ns: 12,
                voluntary: 9,
                involuntary: 8
            }
        );
        assert_eq!(many.reported, (60, 40));
        let of =
            kernel.process_cpu_times_of(&guest.memory, guest.task(103).expect("a thread")).expect("books");
        assert_eq!(of.as_ref(), Some(many), "from any of its threads");
        assert_eq!(kernel.process_cpu_times_of(&guest.memory, 0x1234).expect("books"), None);
    }
}

#[test]
fn children_that_were_waited_for_have_books_of_their_own() {
    let children = ChildCpuTimes {
        user_ns: 1,
        system_ns: 2,
        voluntary: 3,
        involuntary: 4,
        minor_faults: 5,
        major_faults: 6,
    };
    for style in STYLES {
        let (mut guest, _) = guest(&Config::new(style));
        guest.set_child_cpu_times(100, [1, 2, 3, 4, 5, 6]);
        let kernel = find(&guest).expect("a kernel");
        let leader = guest.task(100).expect("a leader");
        let books = kernel.process_cpu_times_of(&guest.memory, leader).expect("books").expect("some");
        assert_eq!((books.children, books.reported), (children, (60, 40)), "they are not its own");
        let last =
            kernel.exit_accounting_reader(&guest.memory).expect("a reader").read(&guest.memory, leader);
        assert_eq!(last.expect("books").children, children);
    }
}

#[test]
fn what_was_freed_has_no_books() {
    for style in STYLES {
        let (mut guest, kernel) = guest(&Config::new(style));
        guest.free_task(100);
        assert_eq!(
            kernel.process_cpu_times_of(&guest.memory, guest.task(100).expect("a leader")).expect("books"),
            None
        );
        let books = kernel.process_cpu_times(&guest.memory).expect("books");
        assert_eq!(books.iter().map(|process| process.leader.pid).collect::<Vec<_>>(), [1, 2]);
    }
    // A thread of a process that continues.
    let (mut guest, kernel) = guest(&Config::new(Style::V6_12));
    let before = kernel
        .process_cpu_times_of(&guest.memory, guest.task(100).expect("a leader"))
        .expect("books")
        .expect("some");
    guest.free_task(103);
    let after = kernel
        .process_cpu_times_of(&guest.memory, guest.task(100).expect("a leader"))
        .expect("books")
        .expect("some");
    assert_eq!((before.threads.len(), after.threads.len()), (4, 3));
}

#[test]
fn the_last_books_are_the_leaders_and_of_those_that_have_ended() {
    for style in STYLES {
        let (guest, kernel) = guest(&Config::new(style));
        let reader = kernel.exit_accounting_reader(&guest.memory).expect("a reader");
        let last = reader.read(&guest.memory, guest.task(100).expect("a leader")).expect("books");
        // Of its threads only the leader is left by then, so the others are not read.
        let time = CpuTime {
            user_ns: 40,
            system_ns: 20,
            runtime_ns: 70,
            run_delay_ns: 7,
            voluntary: 7,
            involuntary: 6,
        };
        assert_eq!((last.time, last.reported), (time, time.reported((0, 0))));
        for bad in [0, 1, !7, u64::MAX, guest.task(100).expect("a leader") + 4] {
            assert_eq!(reader.read(&guest.memory, bad), None, "{bad:#x}");
        }
        assert_eq!(reader.read(&super::empty(), guest.task(100).expect("a leader")), None);
    }
}

#[test]
fn cpus_have_their_own_books() {
    for style in STYLES {
        let (mut guest, kernel) = guest(&Config::new(style));
        guest.set_cpu_times(style, 1, [1, 2, 3, 4, 5, 6, 7, 8], [0, 0]);
        let books = kernel.cpu_stats(&guest.memory).expect("books");
        assert_eq!(books.len(), 2);
        assert_eq!((books[1].cpu, books[1].user_ns, books[1].irq_ns, books[1].steal_ns), (1, 1, 5, 8));
        assert_eq!((books[1].idle_ns, books[1].iowait_ns), (6, 7), "by the tick");
        guest.set_cpu_times(style, 1, [1; 8], [60, 70]);
        let books = kernel.cpu_stats(&guest.memory).expect("books");
        // In 7.3 the one place has both.
        let by_the_clock = if style == Style::V6_15 { (1, 1) } else { (60, 70) };
        assert_eq!((books[1].idle_ns, books[1].iowait_ns), by_the_clock);
    }
}

#[test]
fn the_books_of_cpus_are_those_of_their_vcpus() {
    for style in STYLES {
        let (mut guest, kernel) = guest(&Config { apic_ids: vec![4, 1], ..Config::new(style) });
        guest.set_cpu_times(style, 1, [10, 0, 0, 0, 0, 0, 0, 0], [0, 0]);
        let books = kernel.cpu_stats(&guest.memory).expect("books");
        let users: Vec<_> = books.iter().map(|books| (books.cpu, books.user_ns)).collect();
        assert_eq!(users, [(1, 10), (4, 0)]);
    }
}

/// Values as `cputime_adjust` makes them, computed by hand.
#[test]
fn what_is_told_is_the_ticks_proportion_of_the_run_time() {
    let time =
        |user_ns, system_ns, runtime_ns| CpuTime { user_ns, system_ns, runtime_ns, ..Default::default() };
    assert_eq!(time(8, 4, 9).reported((0, 0)), (6, 3));
    assert_eq!(time(8, 0, 9).reported((0, 0)), (9, 0));
    assert_eq!(time(0, 8, 9).reported((0, 0)), (0, 9));
    assert_eq!(time(0, 0, 9).reported((0, 0)), (9, 0), "no tick has hit it");
    assert_eq!(time(8, 4, 9).reported((6, 4)), (6, 4), "not more than before");
    assert_eq!(time(8, 4, 12).reported((5, 6)), (6, 6), "system time never goes back");
    assert_eq!(time(8, 4, 12).reported((9, 0)), (9, 3), "nor does user time");
}

proptest! {
    #[test]
    fn what_is_told_adds_up_whatever_a_guest_claims(user_ns: u64, system_ns: u64, runtime_ns: u64, before: (u64, u64)) {
        let (user, system) = CpuTime { user_ns, system_ns, runtime_ns, ..Default::default() }.reported(before);
        if before.0.saturating_add(before.1) >= runtime_ns {
            prop_assert_eq!((user, system), before);
        } else {
            prop_assert_eq!(user + system, runtime_ns);
            prop_assert!(user >= before.0 && system >= before.1);
        }
    }

    /// A guest may put anything where its lists and times are.
    #[test]
    fn a_hostile_guest_is_read_to_an_end(at in 0x280_0000_usize..0x290_0000, bytes in prop::collection::vec(any::<u8>(), 1..64)) {
        let (mut guest, kernel) = guest(&Config::new(STYLES[0]));
        guest.memory.0[at..at + bytes.len()].copy_from_slice(&bytes);
        let _ = kernel.process_cpu_times(&guest.memory);
        let _ = kernel.process_cpu_times_of(&guest.memory, guest.task(100).unwrap_or(0));
        let _ = kernel.cpu_stats(&guest.memory);
        if let Ok(reader) = kernel.exit_accounting_reader(&guest.memory) {
            let _ = reader.read(&guest.memory, guest.task(100).unwrap_or(0));
        }
    }
}
