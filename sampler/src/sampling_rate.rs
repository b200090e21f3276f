//! Sampling rate of a vCPU: requested from outside while the vCPU runs, and adopted by its thread at the next
//! tick.
//!
//! ```text
//!  Samples(1000.0) ──stop, or --start-when──▶ Looks(20.0) ──kernel found──▶ Looks(2.0) or Off
//!        ▲                                        │                            │
//!        └───────────────start, or condition met──┴────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// Highest rate of looks, Hz, while the kernel is not found yet: a boot passes through its first kernel code
/// in some hundred ms, and a program that `--start-when` awaits may be among the first ones.
const SEARCH_HZ: f64 = 20.0;
/// Highest rate of looks, Hz, while a condition is awaited and the kernel is known, so that its tasks are
/// read without ticks. Ticks still show a guest that has started another kernel, and a fault of an emulated
/// host (`collector/standstill.rs`), which takes ten ticks within ten seconds to recognize.
const AWAIT_HZ: f64 = 2.0;

/// Purpose and mean rate of a vCPU's ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TickPlan {
    /// Sampling is off: the guest is left alone.
    Off,
    /// Sampling is off, and looks are made at this rate, Hz: a look reads registers and the current task,
    /// copies no stack, and is not a sample.
    Looks(f64),
    /// Sampling is on at this rate, Hz.
    Samples(f64),
}

impl TickPlan {
    /// Returns the plan while sampling is off and would be on at `wanted_hz`, which bounds looks as well: a
    /// stop by a GDB stub costs as much for a look as for a sample.
    pub(crate) fn while_off(wanted_hz: f64, kernel_found: bool, awaits_start: bool) -> Self {
        match (kernel_found, awaits_start) {
            (false, _) => Self::Looks(SEARCH_HZ.min(wanted_hz)),
            (true, true) => Self::Looks(AWAIT_HZ.min(wanted_hz)),
            (true, false) => Self::Off,
        }
    }

    /// Returns the rate of samples, Hz.
    pub(crate) fn sampled_hz(self) -> f64 {
        match self {
            Self::Off | Self::Looks(_) => 0.0,
            Self::Samples(hz) => hz,
        }
    }

    /// Returns the rate at which the guest is interrupted, Hz.
    pub(crate) fn ticks_hz(self) -> f64 {
        match self {
            Self::Off => 0.0,
            Self::Looks(hz) | Self::Samples(hz) => hz,
        }
    }

    /// Packs the plan into a word that can be stored at once: looks are a negative rate.
    fn to_bits(self) -> u64 {
        match self {
            Self::Off => 0.0,
            Self::Looks(hz) => -hz,
            Self::Samples(hz) => hz,
        }
        .to_bits()
    }

    fn from_bits(bits: u64) -> Self {
        match f64::from_bits(bits) {
            hz if hz > 0.0 => Self::Samples(hz),
            hz if hz < 0.0 => Self::Looks(-hz),
            _ => Self::Off,
        }
    }
}

/// Tick plan of one vCPU. Any thread stores a requested plan. The vCPU's thread adopts the plan and stores
/// the time, so no thread waits for another.
#[derive(Debug, Default)]
pub(crate) struct SamplingRate {
    wanted: AtomicU64,
    in_force: AtomicU64,
    since_ns: AtomicU64,
}

impl SamplingRate {
    /// Sets the first plan.
    pub(crate) fn start(&self, plan: TickPlan) {
        self.wanted.store(plan.to_bits(), Ordering::Relaxed);
        self.in_force.store(plan.to_bits(), Ordering::Relaxed);
    }

    /// Returns the requested plan.
    pub(crate) fn wanted(&self) -> TickPlan {
        TickPlan::from_bits(self.wanted.load(Ordering::Relaxed))
    }

    /// Requests another plan.
    pub(crate) fn want(&self, plan: TickPlan) {
        self.wanted.store(plan.to_bits(), Ordering::Relaxed);
    }

    /// Adopts the requested plan if it differs from the plan in force. Called on the vCPU's thread; the plan
    /// is in force since `now_ns`, CLOCK_MONOTONIC.
    pub(crate) fn take(&self, now_ns: u64) -> Option<TickPlan> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == self.in_force.load(Ordering::Relaxed) {
            return None;
        }
        self.since_ns.store(now_ns, Ordering::Relaxed);
        // A reader that sees the plan also sees its time.
        self.in_force.store(wanted, Ordering::Release);
        Some(TickPlan::from_bits(wanted))
    }

    /// Returns the plan in force, and since when, CLOCK_MONOTONIC ns; 0 for the first plan.
    pub(crate) fn in_force(&self) -> (TickPlan, u64) {
        let plan = self.in_force.load(Ordering::Acquire);
        (TickPlan::from_bits(plan), self.since_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_in_force_once_it_was_taken() {
        let pace = SamplingRate::default();
        pace.start(TickPlan::Samples(1_000.0));
        assert_eq!((pace.take(5), pace.in_force()), (None, (TickPlan::Samples(1_000.0), 0)));
        for (plan, now_ns) in [(TickPlan::Off, 7), (TickPlan::Looks(2.5), 8), (TickPlan::Samples(2.5), 9)] {
            pace.want(plan);
            assert_ne!(pace.in_force().0, plan);
            assert_eq!((pace.take(now_ns), pace.take(now_ns + 1)), (Some(plan), None));
            assert_eq!((pace.wanted(), pace.in_force()), (plan, (plan, now_ns)));
        }
    }

    #[test]
    fn looks_are_fewer_than_samples_would_be() {
        let plan = TickPlan::while_off;
        for awaits in [false, true] {
            assert_eq!(plan(1_000.0, false, awaits), TickPlan::Looks(20.0));
            assert_eq!(plan(4.5, false, awaits), TickPlan::Looks(4.5));
        }
        assert_eq!(plan(1_000.0, true, true), TickPlan::Looks(2.0));
        assert_eq!(plan(0.5, true, true), TickPlan::Looks(0.5));
        assert_eq!(plan(1_000.0, true, false), TickPlan::Off);
    }
}
