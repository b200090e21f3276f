//! Microstates of a vCPU whose thread is another process'.
//!
//! A thread that is observed from outside has no entries and exits to stamp. The scheduler's statistics are
//! exact for the times that it ran, waited and was blocked. Ticks divide the time that it ran by its
//! activity, and the time that it was blocked by the reason:
//!
//! ```text
//!  wall ─┬─ waiting                          exact
//!        ├─ ran      ─┬─ guest, halted, vmm  by ticks        [`TickCounts`]
//!        └─ blocked  ─┬─ sampler             the stops
//!                      ├─ paused              from the tick that finds it so to the one that does not
//!                     └─ halted, vmm         by ticks
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use attach::VmmTimes;
use vmm::ThreadTimes;

use super::clock::StateTimes;
use profile::rows::Microstates;

/// Findings of a tick about an attached vCPU's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickFinding {
    /// On a CPU, in the guest.
    Guest,
    /// On a CPU, polling for a wake-up of the halted guest.
    Polling,
    /// On a CPU, in the VMM.
    Vmm,
    /// Blocked, the guest being halted.
    Halted,
    /// Blocked in the VMM.
    VmmBlocked,
}

/// Counts of ticks by finding. Written by the thread that ticks, read by the collector.
#[derive(Debug, Default)]
pub(crate) struct TickCounts([AtomicU64; 5]);

impl TickCounts {
    pub(crate) fn note(&self, what: TickFinding) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of ticks with one of these findings.
    fn sum(&self, of: &[TickFinding]) -> u64 {
        of.iter().map(|sight| self.0[*sight as usize].load(Ordering::Relaxed)).sum()
    }

    /// Returns `ns` times the part of `what` among the ticks with a finding of `all`; 0 without any.
    fn part(&self, ns: u64, what: TickFinding, all: &[TickFinding]) -> u64 {
        let count = |sight: TickFinding| u128::from(self.0[sight as usize].load(Ordering::Relaxed));
        let of: u128 = all.iter().map(|sight| count(*sight)).sum();
        if of == 0 {
            return 0;
        }
        u64::try_from(u128::from(ns) * count(what) / of).unwrap_or(ns)
    }
}

/// All findings. Without scheduler statistics, ticks divide all time and not only that on a CPU.
const ALL: [TickFinding; 5] = [
    TickFinding::Guest,
    TickFinding::Polling,
    TickFinding::Vmm,
    TickFinding::Halted,
    TickFinding::VmmBlocked,
];
/// Findings of a thread on a CPU.
const ON_CPU: [TickFinding; 3] = [TickFinding::Guest, TickFinding::Polling, TickFinding::Vmm];

/// Returns the findings among which ticks divide the guest's time: all if there are no scheduler statistics.
fn divided(times: Option<ThreadTimes>) -> &'static [TickFinding] {
    if times.is_some() { &ON_CPU } else { &ALL }
}

/// Returns the relative standard error of the guest time that [`split`] computes from the same values. The
/// guest time is a part of an exact time, and only ticks show how large a part. KVM's `polled` time is exact.
pub(crate) fn guest_error(
    states: &Microstates,
    times: Option<ThreadTimes>,
    seen: &TickCounts,
    polled: Option<u64>,
) -> f64 {
    let all = divided(times);
    let away: Vec<TickFinding> = all
        .iter()
        .copied()
        .filter(|sight| *sight != TickFinding::Guest && (polled.is_none() || *sight != TickFinding::Polling))
        .collect();
    let (all, away) = (seen.sum(all), seen.sum(&away));
    if all == 0 || away == 0 || states.guest == 0 {
        return 0.0;
    }
    let part = away as f64 / all as f64;
    let divided_ns = match times {
        Some(times) => times.run_ns as f64,
        None => states.guest.saturating_add(states.halted).saturating_add(states.vmm) as f64,
    };
    divided_ns * (part * (1.0 - part) / all as f64).sqrt() / states.guest as f64
}

/// Returns the times of an attached vCPU's thread: exact by the scheduler's statistics, split by the ticks'
/// findings. `polled` is KVM's count of the time that it polled, if KVM counts it.
pub(crate) fn split(
    places: &StateTimes,
    times: Option<ThreadTimes>,
    seen: &TickCounts,
    polled: Option<u64>,
) -> Microstates {
    let wall = places.wall();
    let on = divided(times);
    // Without scheduler statistics, ticks divide all time except for the stops.
    let run_ns = wall.saturating_sub(places.sampler).saturating_sub(places.paused);
    let with_times = times.is_some();
    let times = times.unwrap_or(ThreadTimes { run_ns, waited_ns: 0 });
    // The times are read one after the other, so each is bounded by what the earlier ones leave.
    let ran = times.run_ns.min(wall);
    let waiting = times.waited_ns.min(wall - ran);
    let blocked = wall - ran - waiting;
    let sampler = places.sampler.min(blocked);
    let paused = places.paused.min(blocked - sampler);
    let asleep = blocked - sampler - paused;
    // Ticks divide the time on a CPU; the part of the guest is the remainder, so the sum is exact.
    let part = |sight| seen.part(ran, sight, on);
    let vmm_on = part(TickFinding::Vmm);
    let polling = polled.unwrap_or_else(|| part(TickFinding::Polling)).min(ran - vmm_on);
    let vmm_off = match with_times {
        true => seen.part(asleep, TickFinding::VmmBlocked, &[TickFinding::Halted, TickFinding::VmmBlocked]),
        false => part(TickFinding::VmmBlocked).min(ran - vmm_on - polling),
    };
    let (ran, asleep) = match with_times {
        true => (ran, asleep - vmm_off),
        false => {
            let halted = part(TickFinding::Halted).min(ran - vmm_on - polling - vmm_off);
            (ran - vmm_off - halted, asleep + halted)
        }
    };
    Microstates {
        guest: ran - vmm_on - polling,
        halted: asleep + polling,
        waiting,
        kvm: 0,
        vmm: vmm_on + vmm_off,
        sampler,
        paused,
    }
}

/// Returns the times of an attached vCPU's thread whose turns in the VMM the host's kernel counts: all exact.
/// `polled` is KVM's count of the time that it polled.
pub(crate) fn exact(places: &StateTimes, times: ThreadTimes, vmm: VmmTimes, polled: u64) -> Microstates {
    let wall = places.wall();
    let ran = times.run_ns.min(wall);
    let waiting = times.waited_ns.min(wall - ran);
    let blocked = wall - ran - waiting;
    let paused = places.paused.min(blocked);
    let asleep = blocked - paused;
    let vmm_on = vmm.on_cpu_ns.min(ran);
    let polling = polled.min(ran - vmm_on);
    // A VMM that keeps its vCPUs out of the guest has blocked them.
    let vmm_off = vmm.blocked_ns.saturating_sub(paused).min(asleep);
    Microstates {
        guest: ran - vmm_on - polling,
        halted: asleep - vmm_off + polling,
        waiting,
        kvm: 0,
        vmm: vmm_on + vmm_off,
        sampler: 0,
        paused,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tick_counts(counts: [u64; 5]) -> TickCounts {
        TickCounts(counts.map(AtomicU64::new))
    }

    #[test]
    fn scheduler_times_are_exact_and_ticks_split_them() {
        let places = StateTimes { run: 980, sampler: 20, ..StateTimes::default() };
        let times = Some(ThreadTimes { run_ns: 400, waited_ns: 80 });
        // 1,000 of wall, 520 blocked, of which 20 in stops.
        let split = split(&places, times, &tick_counts([60, 20, 20, 40, 10]), None);
        assert_eq!((split.guest, split.vmm, split.halted), (240, 80 + 100, 400 + 80));
        assert_eq!((split.waiting, split.sampler, split.wall()), (80, 20, 1_000));
        let bare = super::split(&places, None, &tick_counts([60, 20, 20, 40, 10]), None);
        // 980 by 150 findings: 60 of the guest, 20 + 40 of halts, 20 + 10 of the VMM.
        assert_eq!(
            (bare.guest, bare.halted, bare.vmm, bare.sampler),
            (394, 391, 195, 20),
            "without scheduler statistics"
        );
        let polled = super::split(&places, times, &tick_counts([60, 20, 20, 40, 10]), Some(100));
        assert_eq!((polled.guest, polled.halted, polled.wall()), (220, 500, 1_000));
        let held = StateTimes { run: 680, paused: 300, ..places };
        let held = super::split(&held, times, &tick_counts([60, 20, 20, 40, 10]), None);
        assert_eq!((held.paused, held.vmm, held.halted, held.wall()), (300, 80 + 40, 160 + 80, 1_000));
    }

    #[test]
    fn times_in_the_vmm_that_are_counted_leave_nothing_to_ticks() {
        let places = StateTimes { run: 900, paused: 100, ..StateTimes::default() };
        let times = ThreadTimes { run_ns: 400, waited_ns: 80 };
        // 520 blocked, of which 100 while paused.
        let vmm = VmmTimes { on_cpu_ns: 50, blocked_ns: 130 };
        let states = exact(&places, times, vmm, 20);
        assert_eq!((states.guest, states.vmm, states.halted), (330, 80, 390 + 20));
        assert_eq!((states.waiting, states.paused, states.wall()), (80, 100, 1_000));
    }

    /// By the spread of many divisions, each of the same number of ticks, each of which finds the VMM by this
    /// chance.
    #[test]
    fn the_error_of_the_guests_time_is_that_of_its_division() {
        use rand::rngs::ChaCha8Rng;
        use rand::{RngExt, SeedableRng};
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let places = StateTimes { run: 1_000_000_000, ..StateTimes::default() };
        let times = Some(ThreadTimes { run_ns: 800_000_000, waited_ns: 0 });
        for (vmm, with_times) in [(0.3, true), (0.05, true), (0.3, false)] {
            let times = times.filter(|_| with_times);
            let (mut squares, mut variance) = (0.0, 0.0);
            for _ in 0..1_000 {
                let found = (0..500).filter(|_| random.random::<f64>() < vmm).count() as u64;
                let seen = tick_counts([500 - found, 0, found, 0, 0]);
                let states = split(&places, times, &seen, None);
                let exact = times.map_or(1e9, |times| times.run_ns as f64) * (1.0 - vmm);
                squares += (states.guest as f64 / exact - 1.0).powi(2) / 1_000.0;
                variance += guest_error(&states, times, &seen, None).powi(2) / 1_000.0;
            }
            let ratio = (squares / variance).sqrt();
            assert!((0.93..1.07).contains(&ratio), "{vmm} {with_times}: {ratio}");
        }
        assert!(guest_error(&Microstates::default(), times, &tick_counts([0; 5]), None) <= 0.0);
    }

    proptest! {
        /// For any statistics and ticks, the states add up to the wall time.
        #[test]
        fn states_add_up(
            run in 0_u64..1 << 50, sampler in 0_u64..1 << 50, paused in 0_u64..1 << 50, ran in any::<u64>(),
            waited in any::<u64>(),
            counts in prop::array::uniform5(0_u64..1 << 50), polled in prop::option::of(any::<u64>()),
        ) {
            let places = StateTimes { run, sampler, paused, ..StateTimes::default() };
            let times = Some(ThreadTimes { run_ns: ran, waited_ns: waited });
            let states = split(&places, times, &tick_counts(counts), polled);
            prop_assert_eq!(states.wall(), run + sampler + paused);
            let vmm = VmmTimes { on_cpu_ns: counts[0], blocked_ns: counts[1] };
            let times = ThreadTimes { run_ns: ran, waited_ns: waited };
            prop_assert_eq!(exact(&places, times, vmm, polled.unwrap_or(0)).wall(), run + sampler + paused);
        }
    }
}
