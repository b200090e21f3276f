//! Times of the collector's steps, so that a step that delays it can be reported.

use std::time::{Duration, Instant};

/// Steps of the collector's round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Handles finder events, and opens the guest's disks.
    News,
    /// Takes a sample from its ring and walks its stack, which may require the tables of a program.
    Samples,
    /// Takes events of exact mode and of task-state sampling.
    Events,
    /// Reads CPU accounting and command lines of processes.
    Books,
    /// Reads the maps of code made at run time.
    Maps,
    /// Writes a batch to the profile.
    Write,
}

impl Step {
    const ALL: [Self; 6] = [Self::News, Self::Samples, Self::Events, Self::Books, Self::Maps, Self::Write];

    /// Returns the step as part of a sentence.
    fn doing(self) -> &'static str {
        match self {
            Self::News => "taking over what was found of the guest",
            Self::Samples => "walking a stack",
            Self::Events => "taking events",
            Self::Books => "reading the processes' books",
            Self::Maps => "reading maps of code made at run time",
            Self::Write => "writing the profile",
        }
    }
}

/// The longest time of each step.
#[derive(Debug, Default)]
pub(super) struct Steps {
    longest: [Duration; Step::ALL.len()],
}

impl Steps {
    /// Notes a step that has just ended. Returns the present time, when the next step begins.
    pub(super) fn note(&mut self, step: Step, began: Instant) -> Instant {
        let now = Instant::now();
        self.add(step, now.saturating_duration_since(began));
        now
    }

    fn add(&mut self, step: Step, took: Duration) {
        if let Some(longest) = self.longest.get_mut(step as usize) {
            *longest = took.max(*longest);
        }
    }

    /// Returns the description and the time of the slowest step.
    pub(super) fn longest(&self) -> (&'static str, Duration) {
        let slowest = Step::ALL.into_iter().zip(self.longest).max_by_key(|&(_, took)| took);
        slowest.map_or_else(Default::default, |(step, took)| (step.doing(), took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_step_is_known() {
        let mut steps = Steps::default();
        steps.add(Step::Write, Duration::from_millis(300));
        steps.add(Step::Samples, Duration::from_millis(1_250));
        steps.add(Step::Samples, Duration::from_millis(20));
        assert_eq!(steps.longest(), ("walking a stack", Duration::from_millis(1_250)));
    }
}
