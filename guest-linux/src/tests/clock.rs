//! The guest's clock, and its boot's identifier.

use super::{STYLES, find};
use crate::fixture::Config;
use crate::{GuestClock, Missing};

#[test]
fn the_clock_is_read_from_the_copy_that_is_not_being_written() {
    for style in STYLES {
        let mut guest = Config::new(style).build();
        let kernel = find(&guest).expect("a kernel");
        for (seq, time, ns) in [(6, (7_000, 513), 7_002), (7, (9_000, 0), 9_000)] {
            guest.set_clock(seq, time);
            let clock = kernel.clock(&guest.memory);
            assert_eq!(clock, Ok(GuestClock { monotonic_ns: ns, tick_ns: 4_000_000 }));
        }
    }
}

#[test]
fn a_clock_that_cannot_be_is_none() {
    let mut guest = Config::new(STYLES[0]).build();
    let kernel = find(&guest).expect("a kernel");
    guest.set_clock(2, (u64::MAX, u64::MAX));
    assert!(matches!(kernel.clock(&guest.memory), Err(Missing::Unreadable(_))));
}

#[test]
fn the_next_timer_is_the_earliest_of_all_cpus() {
    for style in STYLES {
        let mut guest = Config::new(style).build();
        let kernel = find(&guest).expect("a kernel");
        assert_eq!(kernel.next_timer(&guest.memory), Ok(None));
        guest.set_timer(0, 9_000);
        guest.set_timer(1, i64::MAX as u64);
        assert_eq!(kernel.next_timer(&guest.memory), Ok(Some(9_000)));
        guest.set_timer(1, 8_000);
        assert_eq!(kernel.next_timer(&guest.memory), Ok(Some(8_000)));
    }
}

#[test]
fn a_boot_has_an_identifier_once_somebody_has_asked_for_it() {
    let mut guest = Config::new(STYLES[0]).build();
    let kernel = find(&guest).expect("a kernel");
    assert!(kernel.boot_id(&guest.memory).is_err_and(|missing| missing.may_come()));
    guest.set_boot_id([7; 16]);
    assert_eq!(kernel.boot_id(&guest.memory), Ok([7; 16]));
}
