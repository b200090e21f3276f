//! Sites of events and states of tasks.

use super::{STYLES, empty, find, styled};
use crate::fixture::trace::{FUNCTIONS, LOCK, NOP, PREPARE};
use crate::fixture::{Guest, Style, phys_to_virt};
use crate::{Kernel, Missing, PhysicalMemory, ProbeEvent, RunState, VirtAddr};

const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Returns a guest with all functions, whose text `change` may change.
fn traceable(style: Style, change: impl FnOnce(&mut Guest)) -> (Guest, Kernel) {
    let mut guest = Guest::traceable(style);
    change(&mut guest);
    let kernel = find(&guest).expect("a kernel");
    (guest, kernel)
}

#[test]
fn each_event_has_its_site() {
    for style in STYLES {
        let (guest, kernel) = traceable(style, |_| ());
        let found = kernel.probe_sites(&guest.memory, true, &[]).unwrap();
        assert!(found.missing.is_empty());
        let mut sites: Vec<_> =
            found.sites.iter().map(|site| (site.virt, site.event.unwrap().function())).collect();
        sites.sort();
        // One that each guest has, and one after its landing pad.
        let others = [(0x50c0, "irq_enter_rcu"), (PREPARE + 4, "ftrace_arch_code_modify_prepare")];
        let all = FUNCTIONS.into_iter().chain(others);
        let mut wanted: Vec<_> =
            all.map(|(at, name)| (guest.text(at), name.split('.').next().unwrap())).collect();
        wanted.sort();
        assert_eq!(sites, wanted);
        for site in &found.sites {
            let mut bytes = [0; 5];
            guest.memory.read(site.phys, &mut bytes).unwrap();
            let is_load = site.event == Some(ProbeEvent::Trace);
            assert_eq!(
                (bytes == NOP, site.loads.is_some(), site.bytes()),
                (!is_load, is_load, if is_load { 7 } else { 5 })
            );
            assert!(!is_load || site.loads == Some(guest.text(LOCK).0));
        }
    }
}

#[test]
fn a_site_may_stand_behind_a_landing_pad() {
    let (guest, kernel) = traceable(Style::V6_12, |guest| {
        guest.put_text(0x5040, &[&ENDBR[..], &NOP].concat());
        guest.put_text(0x5080, &[&[0x66, 0x0f, 0x1f, 0][..], &NOP].concat());
        guest.set_traced_at(0x5040, 0x5044);
        guest.set_traced_at(0x5080, 0x5084);
    });
    let found = kernel.probe_sites(&guest.memory, true, &[]).unwrap();
    let at = |event| found.sites.iter().find(|site| site.event == Some(event)).unwrap().virt;
    assert_eq!((at(ProbeEvent::Wake), at(ProbeEvent::New)), (guest.text(0x5044), guest.text(0x5084)));
}

#[test]
fn what_stands_elsewhere_is_a_reason() {
    for (offset, bytes) in [
        (0x5040, vec![0xe8, 1, 2, 3, 4]),
        (0x5040, [&[0x90; 4][..], &NOP].concat()),
        (0x5000, vec![0x0f, 0x1f, 0x44, 0, 1]),
    ] {
        let (guest, kernel) = traceable(Style::V6_1, |guest| guest.put_text(offset, &bytes));
        let missing = kernel.probe_sites(&guest.memory, true, &[]).unwrap_err();
        assert!(matches!(&missing, Missing::NoNoOp(_)) && !missing.may_come(), "{missing}");
    }
    let (guest, kernel) = styled(Style::V6_1, |_| ());
    let missing = kernel.probe_sites(&guest.memory, true, &[]).unwrap_err();
    assert_eq!(missing, Missing::NoSymbol("finish_task_switch".into()));
    // Another argument of the same call, and the same argument of no call.
    for at in [PREPARE + 8, PREPARE + 11] {
        let (guest, kernel) = traceable(Style::V6_12, |guest| guest.put_text(at, &[0xcc]));
        let missing = kernel.probe_sites(&guest.memory, true, &[]).unwrap_err();
        assert_eq!(missing, Missing::UnknownCode("ftrace_arch_code_modify_prepare".into()));
    }
}

#[test]
fn an_argument_is_loaded_by_its_distance_too() {
    let (guest, kernel) = traceable(Style::V6_12, |guest| {
        let distance = u32::try_from(LOCK - (PREPARE + 5 + 7)).unwrap().to_le_bytes();
        guest.put_text(
            PREPARE,
            &[&[0x55, 0x48, 0x89, 0xe5, 0x90, 0x48, 0x8d, 0x3d][..], &distance, &[0xe8]].concat(),
        );
    });
    let found = kernel.probe_sites(&guest.memory, true, &[]).unwrap();
    let site = found.sites.iter().find(|site| site.event == Some(ProbeEvent::Trace)).unwrap();
    assert_eq!((site.virt, site.loads), (guest.text(PREPARE + 5), Some(guest.text(LOCK).0)));
}

#[test]
fn the_tracers_books_tell_who_is_traced() {
    for style in STYLES {
        let (mut guest, kernel) = traceable(style, |_| ());
        let found = kernel.probe_sites(&guest.memory, true, &[]).unwrap();
        let concerns = |guest: &Guest| found.concerns(ProbeEvent::Trace, [0; 4], &guest.memory);
        assert!(!concerns(&guest));
        for (at, _) in FUNCTIONS {
            guest.set_tracers(at, 1);
            assert!(concerns(&guest), "{at:#x}");
            guest.set_tracers(at, 0);
            assert!(!concerns(&guest), "flags do not count as tracers");
        }
    }
    // A list that ends too early, one that goes in a circle, and one of nowhere.
    for next in [0, 0x5680, 0x1234] {
        let (guest, kernel) = traceable(Style::V6_1, |guest| {
            let next = if next == 0x5680 { guest.text(next).0 } else { next };
            guest.put_text(0x5680, &next.to_le_bytes());
        });
        let missing = kernel.probe_sites(&guest.memory, true, &[]).unwrap_err();
        assert!(matches!(missing, Missing::Unreadable(_)), "{missing}");
    }
}

#[test]
fn interrupts_are_seen_at_both_ends_or_not_at_all() {
    // Without the vectors of devices nothing else is lost.
    for (at, function, left) in [(0x5100, "irq_exit_rcu", 7), (0x5200, "__common_interrupt", 9)] {
        let (guest, kernel) = traceable(Style::V6_1, |guest| guest.put_text(at, &[0xcc]));
        let found = kernel.probe_sites(&guest.memory, true, &[]).unwrap();
        assert_eq!(found.missing, [Missing::NoNoOp(function.into())]);
        assert_eq!(found.sites.len(), left);
    }
}

#[test]
fn the_caller_of_a_function_stands_on_the_stack() {
    for style in STYLES {
        let (mut guest, kernel) = traceable(style, |_| ());
        let states = kernel.sched_state_reader(&guest.memory).unwrap();
        let (at, caller) = (guest.text(0x5280), guest.text(0x5044));
        guest.put_text(0x5280, &caller.0.to_le_bytes());
        assert_eq!(states.return_address(&guest.memory, at), Some(caller));
        guest.put_text(0x5280, &7u64.to_le_bytes());
        for bad in [at.0, at.0 + 4, 0, !7, u64::MAX] {
            assert_eq!(states.return_address(&guest.memory, VirtAddr(bad)), None, "{bad:#x}");
        }
        assert_eq!(states.return_address(&empty(), at), None);
    }
}

#[test]
fn states_and_switches_are_read() {
    for style in STYLES {
        let (mut guest, kernel) = traceable(style, |_| ());
        let states = kernel.sched_state_reader(&guest.memory).unwrap();
        for (state, rest) in [
            ([0, 0, 1], RunState::Runnable),
            ([1, 0, 0], RunState::Interruptible),
            ([2, 0, 0], RunState::Uninterruptible),
            ([0x80, 0x20, 0], RunState::Zombie),
        ] {
            guest.set_state(102, state);
            let read = states.read(&guest.memory, guest.task(102).unwrap()).unwrap();
            assert_eq!((read.task.tid, read.task.pid, read.run_state()), (102, 100, rest));
        }
        if style == Style::V6_15 {
            // What is behind a flag of one byte is something else.
            guest.set_state(102, [1, 0, 0x100]);
            let read = states.read(&guest.memory, guest.task(102).unwrap()).unwrap();
            assert_eq!(read.run_state(), RunState::Interruptible);
        }
        let switches = [0, 1, 2].map(|cpu| states.switches(&guest.memory, cpu));
        assert_eq!(switches, [Some(1000), Some(1001), None]);
    }
}

#[test]
fn hostile_pointers_and_memory_are_no_tasks() {
    let (guest, kernel) = traceable(Style::V6_12, |_| ());
    let states = kernel.sched_state_reader(&guest.memory).unwrap();
    let good = guest.task(1).unwrap();
    let base = phys_to_virt(0, guest.five_level);
    for bad in [0, 1, good + 1, !0, !7, base - 8, base + (1 << 40), i64::MAX.cast_unsigned()] {
        assert_eq!(states.read(&guest.memory, bad), None, "{bad:#x}");
    }
    assert_eq!(states.read(&empty(), good), None);
    assert_eq!(states.switches(&empty(), 0), None);
    assert!(kernel.probe_sites(&empty(), true, &[]).is_err());
    assert!(kernel.sched_state_reader(&empty()).is_err());
}

#[test]
fn a_kernel_has_booted_when_it_says_so() {
    let (mut guest, kernel) = traceable(Style::V6_12, |_| ());
    for (state, booted) in [(0, false), (1, false), (2, false), (3, true), (4, true)] {
        guest.set_system_state(state);
        assert_eq!(kernel.has_booted(&guest.memory), Ok(booted));
    }
    assert!(kernel.has_booted(&empty()).is_err());
}
