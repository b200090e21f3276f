//! Bounds of the guest's CLOCK_MONOTONIC, measured on the host's clock.
//!
//! A guest's kernel keeps its clock in memory, as of its last tick. Two readings, each between two times of
//! the host's clock, bound the difference of the clocks from both sides:
//!
//! ```text
//! host    before1 ─ reading 1 ─ after1 ...... before2 ─ reading 2 ─ after2
//! guest                            └─ a tick ─┘  at m + less than a tick's length
//!         host - guest <= after2 - m                    the tick was before the reading's end
//!         host - guest >= before1 - m - tick            and after the start of the first reading, which had
//! not seen it
//! ```

use guest_linux::GuestClock;

/// Divisor of the time for the most that the guest's clock drifts from the host's: NTP corrects a clock by at
/// most 500 ppm (`MAXFREQ`, include/linux/timex.h).
const DRIFT: u64 = 2_000;

/// Bounds of the host's clock minus the guest's, ns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClockBounds {
    low: Option<i64>,
    high: Option<i64>,
    /// The last reading: its start on the host's clock, and its value, ns.
    last: Option<(u64, u64)>,
    noted_ns: u64,
}

impl ClockBounds {
    /// Adds a reading between two times of the host's monotonic clock, ns.
    pub(crate) fn note(&mut self, (before_ns, after_ns): (u64, u64), clock: GuestClock) {
        let high = difference(after_ns, clock.monotonic_ns);
        let low =
            self.last.filter(|(_, monotonic_ns)| *monotonic_ns != clock.monotonic_ns).map(|(begun_ns, _)| {
                difference(begun_ns, clock.monotonic_ns).saturating_sub(signed(clock.tick_ns))
            });
        let drift = signed(after_ns.saturating_sub(self.noted_ns) / DRIFT);
        let wider_low = self.low.map(|old| old.saturating_sub(drift));
        let wider_high = self.high.map(|old| old.saturating_add(drift));
        self.low = wider_low.into_iter().chain(low).max();
        self.high = wider_high.into_iter().chain([high]).min();
        if self.low.zip(self.high).is_some_and(|(low, high)| low > high) {
            // The clock has jumped: the guest slept, or another kernel runs.
            (self.low, self.high) = (low.filter(|&low| low <= high), Some(high));
        }
        self.last = Some((before_ns, clock.monotonic_ns));
        self.noted_ns = after_ns;
    }

    /// Returns true if both bounds are known.
    pub(crate) fn is_known(&self) -> bool {
        self.low.is_some() && self.high.is_some()
    }

    /// Returns true if the bounds are as narrow as they get with ticks of this length.
    pub(crate) fn is_narrow(&self, tick_ns: u64) -> bool {
        let width = self.low.zip(self.high).map(|(low, high)| high.saturating_sub(low));
        width.is_some_and(|width| width <= signed(tick_ns.saturating_add(tick_ns / 4)))
    }

    /// Converts a time of the guest's clock to the host's, ns; also returns the largest error, ns.
    pub(crate) fn to_host(self, monotonic_ns: u64) -> Option<(u64, u64)> {
        let (low, high) = self.low.zip(self.high)?;
        let half = high.saturating_sub(low).max(0) / 2;
        let host_ns = signed(monotonic_ns).saturating_add(low.saturating_add(half)).max(0).cast_unsigned();
        let age_ns = self.noted_ns.saturating_sub(host_ns);
        Some((host_ns, half.cast_unsigned().saturating_add(age_ns / DRIFT)))
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn difference(host_ns: u64, guest_ns: u64) -> i64 {
    signed(host_ns).saturating_sub(signed(guest_ns))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: u64 = 4_000_000;

    /// A guest whose clock began at `zero` of the host's and is fast by this many ppm.
    #[derive(Debug, Clone, Copy)]
    struct SimulatedClock {
        zero: u64,
        ppm: i64,
    }

    impl SimulatedClock {
        fn monotonic(self, host_ns: u64) -> u64 {
            let ns = signed(host_ns - self.zero);
            (ns + ns / 1_000_000 * self.ppm).cast_unsigned()
        }

        /// Reads the clock of a guest whose first tick is `late` ns after a whole one, and of whose ticks one
        /// in `ticks` happens.
        fn at_tick(self, host_ns: u64, late: u64, ticks: u64) -> GuestClock {
            let now = self.monotonic(host_ns);
            let done = now.saturating_sub(late) / (TICK * ticks) * (TICK * ticks);
            GuestClock { monotonic_ns: done, tick_ns: TICK }
        }
    }

    proptest! {
        #[test]
        fn the_clock_is_within_the_bounds(
            zero in 0_u64..1 << 40, ppm in -490_i64..490, late in 0..TICK, ticks in 1_u64..4,
            pauses in proptest::collection::vec(100_000_u64..900_000_000, 1..40), reading in 0_u64..300_000,
        ) {
            let guest = SimulatedClock { zero, ppm };
            let (mut bounds, mut now) = (ClockBounds::default(), zero + 1_000_000_000);
            for pause in pauses {
                for _ in 0..8 {
                    let clock = guest.at_tick(now + reading / 2, late, ticks);
                    bounds.note((now, now + reading), clock);
                    now += 700_000;
                }
                now += pause;
            }
            if let Some((host_ns, within_ns)) = bounds.to_host(guest.monotonic(now)) {
                // The clock has run since the last reading.
                let slack = (now - bounds.noted_ns) / DRIFT + 1_000;
                prop_assert!(host_ns.abs_diff(now) <= within_ns + slack, "{host_ns} {now} {within_ns}");
            }
        }
    }

    #[test]
    fn some_ticks_make_it_known_to_a_tick_and_a_half() {
        let guest = SimulatedClock { zero: 5_000, ppm: 20 };
        let mut bounds = ClockBounds::default();
        assert_eq!(bounds.to_host(7), None);
        for n in 0..16 {
            let now = 3_000_000_000 + n * 700_000;
            bounds.note((now, now + 2_000), guest.at_tick(now, 1_300_000, 1));
        }
        assert!(bounds.is_narrow(TICK));
        let (_, within_ns) = bounds.to_host(guest.monotonic(3_000_000_000)).expect("a clock");
        assert!(within_ns <= TICK * 5 / 8 + 10_000, "{within_ns}");
    }

    #[test]
    fn a_clock_that_does_not_tick_is_not_known() {
        let mut bounds = ClockBounds::default();
        for now in 1..50 {
            bounds.note((now * TICK, now * TICK), GuestClock { monotonic_ns: 7, tick_ns: TICK });
        }
        assert!(!bounds.is_known() && bounds.to_host(7).is_none());
    }
}
