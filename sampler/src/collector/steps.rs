//! How long the collector's steps take, so that one that holds it up can be told.

use std::time::{Duration, Instant};

/// What the collector does, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Takes samples from the rings, and walks their stacks.
    Samples,
    /// Takes events of exact mode and of the census.
    Events,
    /// Reads the books and command lines of processes.
    Books,
    /// Reads the maps of code made at run time.
    Maps,
    /// Writes a batch to the profile.
    Write,
}

impl Step {
    const ALL: [Self; 5] = [Self::Samples, Self::Events, Self::Books, Self::Maps, Self::Write];

    /// As part of a sentence.
    fn doing(self) -> &'static str {
        match self {
            Self::Samples => "walking stacks",
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

    /// The step that took longest at once, as a sentence without its end.
    pub(super) fn longest(&self) -> String {
        let slowest = Step::ALL.into_iter().zip(self.longest).max_by_key(|&(_, took)| took);
        slowest.map_or_else(String::new, |(step, took)| {
            format!("it took up to {:.1} s at once for {}", took.as_secs_f64(), step.doing())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_step_is_told() {
        let mut steps = Steps::default();
        steps.add(Step::Write, Duration::from_millis(300));
        steps.add(Step::Samples, Duration::from_millis(1_250));
        steps.add(Step::Samples, Duration::from_millis(20));
        assert_eq!(steps.longest(), "it took up to 1.2 s at once for walking stacks");
    }
}
