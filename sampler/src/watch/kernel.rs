//! Counters of the guest's kernel, and for how long each has stayed the same.

use guest_linux::GracePeriod;

use super::{Verdict, time};

/// Counters in the guest's memory, read at one time; `None`: not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KernelCounters {
    /// Task switches of each vCPU.
    pub switches: Vec<Option<u64>>,
    pub grace_period: Option<GracePeriod>,
    /// Processes that were killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// CLOCK_MONOTONIC of the guest as of its last tick, ns.
    pub clock_ns: Option<u64>,
}

/// A value that may stay the same for long.
#[derive(Debug, Clone, Copy)]
struct Unchanged<T> {
    value: T,
    /// First and last time with this value, on the clock of the running machine, ns.
    since_ns: u64,
    seen_ns: u64,
}

impl<T> Unchanged<T> {
    /// Returns the time for which the value is known to have stayed the same, ns.
    fn length_ns(&self) -> u64 {
        self.seen_ns.saturating_sub(self.since_ns)
    }
}

/// Notes a value; returns true if it is another one than before.
fn note<T: PartialEq>(place: &mut Option<Unchanged<T>>, value: Option<T>, run_ns: u64) -> bool {
    // A value that cannot be read now leaves what is known.
    let Some(value) = value else { return false };
    let before = place.take().filter(|before| before.value == value);
    let changed = before.is_none();
    let since_ns = before.map_or(run_ns, |before| before.since_ns);
    *place = Some(Unchanged { value, since_ns, seen_ns: run_ns });
    changed
}

/// Course of the kernel's counters. Times are those of the running machine: without its pauses.
#[derive(Debug, Default)]
pub(super) struct KernelCourse {
    switches: Vec<Option<Unchanged<u64>>>,
    grace_period: Option<Unchanged<GracePeriod>>,
    clock: Option<Unchanged<u64>>,
    /// Killed processes at the last reading.
    oom_kills: Option<u64>,
    new_kills: u64,
}

impl KernelCourse {
    /// Notes the counters at a time of the running machine. Returns true if the guest's clock has advanced,
    /// or is not known.
    pub(super) fn note(&mut self, counters: Option<&KernelCounters>, run_ns: u64) -> bool {
        let Some(counters) = counters else { return self.clock.is_none() };
        if self.switches.len() < counters.switches.len() {
            self.switches.resize_with(counters.switches.len(), || None);
        }
        for (place, value) in self.switches.iter_mut().zip(&counters.switches) {
            note(place, *value, run_ns);
        }
        note(&mut self.grace_period, counters.grace_period, run_ns);
        if let Some(kills) = counters.oom_kills {
            let before = self.oom_kills.replace(kills).unwrap_or(kills);
            self.new_kills = self.new_kills.saturating_add(kills.saturating_sub(before));
        }
        note(&mut self.clock, counters.clock_ns, run_ns) || self.clock.is_none()
    }

    /// Returns the number of processes that were killed since the last call.
    pub(super) fn take_kills(&mut self) -> u64 {
        std::mem::take(&mut self.new_kills)
    }

    /// Returns the time for which a vCPU has switched to no other task, ns.
    pub(super) fn without_switch_ns(&self, vcpu: usize) -> Option<u64> {
        self.switches.get(vcpu)?.as_ref().map(Unchanged::length_ns)
    }

    /// Returns the time for which the guest's clock has not advanced, ns.
    pub(super) fn without_tick_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(Unchanged::length_ns)
    }

    /// Judges a grace period of RCU.
    pub(super) fn rcu_stall(&self, threshold_ns: u64) -> Verdict {
        let Some(unchanged) = &self.grace_period else { return Verdict::Unknown };
        let length_ns = unchanged.length_ns();
        if !unchanged.value.in_progress || length_ns == 0 {
            return Verdict::Over;
        }
        if length_ns < threshold_ns {
            return Verdict::Unknown;
        }
        let sentence = format!(
            "a grace period of RCU has not ended for {}: some CPU or task holds it up",
            time(length_ns)
        );
        Verdict::Holds { length_ns, sentence }
    }
}
