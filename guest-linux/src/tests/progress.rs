//! Counters of a kernel's progress.

use super::{STYLES, find};
use crate::fixture::Config;
use crate::{GracePeriod, Missing};

#[test]
fn a_grace_period_is_in_progress_or_over() {
    for style in STYLES {
        let mut guest = Config::new(style).build();
        let kernel = find(&guest).expect("a kernel");
        for (sequence, in_progress) in [(0x100, false), (0x101, true), (0x102, true), (0x104, false)] {
            guest.set_grace_period(sequence);
            assert_eq!(kernel.grace_period(&guest.memory), Ok(GracePeriod { sequence, in_progress }));
        }
    }
}

#[test]
fn killed_processes_are_those_of_all_cpus() {
    for style in STYLES {
        let mut guest = Config::new(style).build();
        let kernel = find(&guest).expect("a kernel");
        assert_eq!(kernel.oom_kills(&guest.memory), Ok(0));
        guest.set_oom_kills(0, 3);
        guest.set_oom_kills(1, 4);
        assert_eq!(kernel.oom_kills(&guest.memory), Ok(7));
    }
}

#[test]
fn a_kernel_without_types_has_neither() {
    let guest = Config { btf: false, ..Config::new(STYLES[0]) }.build();
    let kernel = find(&guest).expect("a kernel");
    assert_eq!(kernel.oom_kills(&guest.memory), Err(Missing::NoBtf));
    assert_eq!(kernel.grace_period(&guest.memory), Err(Missing::NoBtf));
}
