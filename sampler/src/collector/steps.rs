//! How long the collector's steps take, so that one that holds it up can be told.

use std::time::{Duration, Instant};

/// What the collector does, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Takes over what was found of the guest's kernel, and opens its disks.
    News,
    /// Takes a sample from its ring and walks its stack, which may have to read the tables of a program first.
    Samples,
    /// Takes events of exact mode and of task-state sampling.
    Events,
    /// Reads the books and command lines of processes.
    Books,
    /// Reads the maps of code made at run time.
    Maps,
    /// Writes a batch to the profile.
    Write,
}

impl Step {
    const ALL: [Self; 6] = [Self::News, Self::Samples, Self::Events, Self::Books, Self::Maps, Self::Write];

    /// As part of a sentence.
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

/// The longest time that each step took at once.
#[derive(Debug, Default)]
pub(super) struct Steps {
    longest: [Duration; Step::ALL.len()],
}

impl Steps {
    /// Takes note of a step that has just ended. Returns now, when the next one begins.
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

    /// What the step that took longest at once does, and its time.
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
