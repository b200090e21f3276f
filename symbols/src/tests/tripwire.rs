//! Sites of events and states of tasks.

use super::{STYLES, empty, find, styled};
use crate::fixture::{Config, Guest, Style, phys_to_virt};
use crate::{Event, Kernel, Missing, PhysicalMemory, Rest};

const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const FUNCTIONS: [(u64, &str); 8] = [
    (0x5000, "finish_task_switch.isra.0"),
    (0x5040, "try_to_wake_up"),
    (0x5080, "wake_up_new_task"),
    (0x5100, "irq_exit_rcu"),
    (0x5140, "release_task"),
    (0x5180, "copy_from_kernel_nofault"),
    (0x51c0, "__text_poke"),
    (0x5200, "__common_interrupt"),
];

/// A guest with all functions, whose text `change` may change.
fn traceable(style: Style, change: impl FnOnce(&mut Guest)) -> (Guest, Kernel) {
    let mut config = Config::new(style);
    config.functions.extend(FUNCTIONS.map(|(at, name)| (at, 'T', name.into())));
    config.functions.push((0x5240, 't', "try_to_wake_up.cold".into()));
    let mut guest = config.build();
    for (at, _) in FUNCTIONS {
        guest.put_text(at, &NOP);
    }
    change(&mut guest);
    let kernel = find(&guest).expect("a kernel");
    (guest, kernel)
}

#[test]
fn each_event_has_its_site() {
    for style in STYLES {
        let (guest, kernel) = traceable(style, |_| ());
        let found = kernel.trip_sites(&guest.memory).unwrap();
        assert!(found.missing.is_empty());
        let mut sites: Vec<_> = found.sites.iter().map(|site| (site.virt, site.event.function())).collect();
        sites.sort();
        // One that each guest has.
        let all = FUNCTIONS.into_iter().chain([(0x50c0, "irq_enter_rcu")]);
        let mut wanted: Vec<_> =
            all.map(|(at, name)| (guest.text(at), name.split('.').next().unwrap())).collect();
        wanted.sort();
        assert_eq!(sites, wanted);
        for site in &found.sites {
            let mut bytes = [0; 5];
            guest.memory.read(site.phys, &mut bytes).unwrap();
            assert_eq!(bytes, NOP);
        }
    }
}

#[test]
fn a_site_may_stand_behind_a_landing_pad() {
    let (guest, kernel) = traceable(Style::V6_12, |guest| {
        guest.put_text(0x5040, &[&ENDBR[..], &NOP].concat());
        guest.put_text(0x5080, &[&[0x66, 0x0f, 0x1f, 0][..], &NOP].concat());
    });
    let found = kernel.trip_sites(&guest.memory).unwrap();
    let at = |event| found.sites.iter().find(|site| site.event == event).unwrap().virt;
    assert_eq!((at(Event::Wake), at(Event::New)), (guest.text(0x5044), guest.text(0x5084)));
}

#[test]
fn what_stands_elsewhere_is_a_reason() {
    for (offset, bytes) in [
        (0x5040, vec![0xe8, 1, 2, 3, 4]),
        (0x5040, [&[0x90; 4][..], &NOP].concat()),
        (0x5000, vec![0x0f, 0x1f, 0x44, 0, 1]),
    ] {
        let (guest, kernel) = traceable(Style::V6_1, |guest| guest.put_text(offset, &bytes));
        let missing = kernel.trip_sites(&guest.memory).unwrap_err();
        assert!(matches!(&missing, Missing::NoNoOp(_)) && !missing.may_come(), "{missing}");
    }
    let (guest, kernel) = styled(Style::V6_1, |_| ());
    let missing = kernel.trip_sites(&guest.memory).unwrap_err();
    assert_eq!(missing, Missing::NoSymbol("finish_task_switch".into()));
}

#[test]
fn interrupts_are_seen_at_both_ends_or_not_at_all() {
    // Without the vectors of devices nothing else is lost.
    for (at, function, left) in [(0x5100, "irq_exit_rcu", 6), (0x5200, "__common_interrupt", 8)] {
        let (guest, kernel) = traceable(Style::V6_1, |guest| guest.put_text(at, &[0xcc]));
        let found = kernel.trip_sites(&guest.memory).unwrap();
        assert_eq!(found.missing, [Missing::NoNoOp(function.into())]);
        assert_eq!(found.sites.len(), left);
    }
}

#[test]
fn the_caller_of_a_function_stands_on_the_stack() {
    for style in STYLES {
        let (mut guest, kernel) = traceable(style, |_| ());
        let states = kernel.task_states(&guest.memory).unwrap();
        let (at, caller) = (guest.text(0x5280), guest.text(0x5044));
        guest.put_text(0x5280, &caller.0.to_le_bytes());
        assert_eq!(states.return_address(&guest.memory, at.0), Some(caller.0));
        guest.put_text(0x5280, &7u64.to_le_bytes());
        for bad in [at.0, at.0 + 4, 0, !7, u64::MAX] {
            assert_eq!(states.return_address(&guest.memory, bad), None, "{bad:#x}");
        }
        assert_eq!(states.return_address(&empty(), at.0), None);
    }
}

#[test]
fn states_and_switches_are_read() {
    for style in STYLES {
        let (mut guest, kernel) = traceable(style, |_| ());
        let states = kernel.task_states(&guest.memory).unwrap();
        for (state, rest) in [
            ([0, 0, 1], Rest::Queue),
            ([1, 0, 0], Rest::Interruptible),
            ([2, 0, 0], Rest::Uninterruptible),
            ([0x80, 0x20, 0], Rest::Zombie),
        ] {
            guest.set_state(102, state);
            let read = states.read(&guest.memory, guest.task(102).unwrap()).unwrap();
            assert_eq!((read.task.tid, read.task.pid, read.rest()), (102, 100, rest));
        }
        if style == Style::V6_15 {
            // What lies behind a flag of one byte is something else.
            guest.set_state(102, [1, 0, 0x100]);
            let read = states.read(&guest.memory, guest.task(102).unwrap()).unwrap();
            assert_eq!(read.rest(), Rest::Interruptible);
        }
        let switches = [0, 1, 2].map(|cpu| states.switches(&guest.memory, cpu));
        assert_eq!(switches, [Some(1000), Some(1001), None]);
    }
}

#[test]
fn hostile_pointers_and_memory_are_no_tasks() {
    let (guest, kernel) = traceable(Style::V6_12, |_| ());
    let states = kernel.task_states(&guest.memory).unwrap();
    let good = guest.task(1).unwrap();
    let base = phys_to_virt(0, guest.five_level);
    for bad in [0, 1, good + 1, !0, !7, base - 8, base + (1 << 40), i64::MAX.cast_unsigned()] {
        assert_eq!(states.read(&guest.memory, bad), None, "{bad:#x}");
    }
    assert_eq!(states.read(&empty(), good), None);
    assert_eq!(states.switches(&empty(), 0), None);
    assert!(kernel.trip_sites(&empty()).is_err());
    assert!(kernel.task_states(&empty()).is_err());
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
