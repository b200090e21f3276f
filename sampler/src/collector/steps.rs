//! Times of the collector's steps, so that a step that delays it can be reported.

use std::time::{Duration, Instant};

/// Steps of the collector's round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundStep {
    /// Handles finder events, and opens the guest's disks.
    Finder,
    /// Takes a sample from its ring and walks its stack, which may require the tables of a program.
    Samples,
    /// Takes events of exact mode and of task-state sampling.
    Events,
    /// Reads CPU accounting and command lines of processes.
    Accounting,
    /// Reads the maps of code made at run time.
    Maps,
    /// Writes a batch to the profile.
    Write,
}

impl RoundStep {
    const ALL: [Self; 6] =
        [Self::Finder, Self::Samples, Self::Events, Self::Accounting, Self::Maps, Self::Write];

    /// Returns the step as part of a sentence.
    fn doing(self) -> &'static str {
        match self {
            Self::Finder => "reading finder events",
            Self::Samples => "walking a stack",
            Self::Events => "taking events",
            Self::Accounting => "reading CPU accounting",
            Self::Maps => "reading names of code made at run time",
            Self::Write => "writing the profile",
        }
    }
}

/// The longest time of each step.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    longest: [Duration; RoundStep::ALL.len()],
}

impl StepTimes {
    /// Notes a step that has just ended. Returns the present time, when the next step begins.
    pub(super) fn note(&mut self, step: RoundStep, began: Instant) -> Instant {
        let now = Instant::now();
        self.add(step, now.saturating_duration_since(began));
        now
    }

    fn add(&mut self, step: RoundStep, took: Duration) {
        if let Some(longest) = self.longest.get_mut(step as usize) {
            *longest = took.max(*longest);
        }
    }

    /// Returns the description and the time of the slowest step.
    pub(super) fn longest(&self) -> (&'static str, Duration) {
        let slowest = RoundStep::ALL.into_iter().zip(self.longest).max_by_key(|&(_, took)| took);
        slowest.map_or_else(Default::default, |(step, took)| (step.doing(), took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_step_is_known() {
        let mut steps = StepTimes::default();
        steps.add(RoundStep::Write, Duration::from_millis(300));
        steps.add(RoundStep::Samples, Duration::from_millis(1_250));
        steps.add(RoundStep::Samples, Duration::from_millis(20));
        assert_eq!(steps.longest(), ("walking a stack", Duration::from_millis(1_250)));
    }
}
