//! Effects of a host on a vCPU's ticks: they come late, they wait for the thread to get a CPU, and serving
//! them takes time.
//!
//! A course is in the guest's and the host's common time. The guest is stopped while a tick is served, so
//! that this time is in no course.

use std::iter::Peekable;

use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

use super::program::ns;
use super::timeline::{OUTSIDE, Timeline, WAITING};
use crate::clock::fell_into_wait;
use crate::clock::{Intervals, TickHold};

/// Parameters of how a host serves ticks; lengths in mean intervals of the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Host {
    /// Mean time by which a tick comes late to a thread that has a CPU.
    pub late: f64,
    /// True if the guest continues to run during that time: for ticks requested by another process. The
    /// interrupt of a vCPU's own timer stops the guest when it is due, and the late part is the thread's way
    /// out of KVM.
    pub runs_on: bool,
    /// Time that serving a tick takes.
    pub service: f64,
}

/// The ticks of one vCPU as seen by its sampler: the time at which each stopped the guest, and the state at
/// that time, [`WAITING`] if the sampler takes the tick for one that was due in a wait.
pub(super) struct ServedTicks<'a, I: Iterator<Item = (u64, u64)>> {
    line: &'a Timeline,
    cursor: super::timeline::Cursor<'a>,
    waits: Peekable<I>,
    host: Host,
    intervals: Intervals,
    random: ChaCha8Rng,
    /// Time at which the next tick is due, by the timer's own clock.
    due_ns: u64,
    /// Time for which ticks have stopped the guest.
    stood_ns: u64,
}

impl Host {
    /// Ticks from `start_ns` on.
    pub fn serve<'a>(
        self,
        line: &'a Timeline,
        mut intervals: Intervals,
        start_ns: u64,
        random: ChaCha8Rng,
    ) -> ServedTicks<'a, impl Iterator<Item = (u64, u64)>> {
        let due_ns = start_ns + intervals.first_ns();
        let (cursor, waits) = (line.cursor(), line.waits().peekable());
        ServedTicks { line, cursor, waits, host: self, intervals, random, due_ns, stood_ns: 0 }
    }
}

impl<I: Iterator<Item = (u64, u64)>> Iterator for ServedTicks<'_, I> {
    type Item = (u64, u8);

    fn next(&mut self) -> Option<(u64, u8)> {
        let due_ns = self.due_ns - self.stood_ns;
        if due_ns >= self.line.length() {
            return None;
        }
        let late_ns = self.late();
        // Time at which the guest is stopped, or would be if it had a CPU.
        let moment_ns = if self.host.runs_on { due_ns + late_ns } else { due_ns };
        // Figures of the host's scheduler for the thread: the time for which it has waited since the previous
        // tick, and the time at which it got its CPU.
        let (mut waited_ns, mut arrived_ns) = (0, 0);
        while let Some((from, to)) = self.waits.next_if(|(from, _)| *from <= moment_ns) {
            waited_ns += to - from;
            arrived_ns = to;
        }
        let mut now_ns = moment_ns.max(arrived_ns);
        let waited = fell_into_wait(arrived_ns, moment_ns, waited_ns);
        let state = if waited { WAITING } else { self.cursor.state_at(now_ns) };
        // Times of a vCPU's sampler, by the timer's clock.
        let mut held = TickHold::since(now_ns + self.stood_ns);
        if self.host.runs_on {
            held.passed_ns -= if waited { late_ns.min(now_ns) } else { 0 };
        } else {
            // A halt continues while the tick is on its way.
            let goes_on = if state == OUTSIDE { late_ns.min(self.cursor.end() - now_ns) } else { 0 };
            now_ns += goes_on;
            self.stood_ns += late_ns - goes_on;
            if state == OUTSIDE {
                held = TickHold::since(now_ns + self.stood_ns);
            }
        }
        let next_ns = self.intervals.next_after(self.due_ns, held);
        let service_ns = ns(self.host.service);
        self.stood_ns += service_ns;
        // From the next entry.
        self.due_ns = now_ns + self.stood_ns + next_ns;
        Some((now_ns, state))
    }
}

impl<I: Iterator<Item = (u64, u64)>> ServedTicks<'_, I> {
    fn late(&mut self) -> u64 {
        if self.host.late == 0.0 {
            return 0;
        }
        let drawn: f64 = Exp1.sample(&mut self.random);
        ns(drawn * self.host.late)
    }
}
