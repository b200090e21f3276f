//! A sampler whose ticks an experiment changes or watches.

use std::time::Duration;

use vmm::{Exit, Observer, Tick};

use crate::VcpuSampler;

/// The product's own sampler, with another function for its ticks. All other events are its own.
pub struct ChangedSampler<S> {
    sampler: VcpuSampler,
    /// State of the function.
    pub state: S,
    ticked: TickFn<S>,
}

/// Serves a tick with the sampler and the function's own state.
type TickFn<S> = fn(&mut VcpuSampler, &mut S, &Tick<'_>) -> Option<Duration>;

impl<S> ChangedSampler<S> {
    /// Makes a sampler whose ticks `ticked` serves.
    pub fn new(sampler: VcpuSampler, state: S, ticked: TickFn<S>) -> Self {
        Self { sampler, state, ticked }
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for ChangedSampler<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangedSampler").field("state", &self.state).finish_non_exhaustive()
    }
}

impl<S: Send + 'static> Observer for ChangedSampler<S> {
    fn started(&mut self) -> Option<Duration> {
        self.sampler.started()
    }
    fn entering(&mut self, now_ns: u64) {
        self.sampler.entering(now_ns);
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.sampler.exited(exit, now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        (self.ticked)(&mut self.sampler, &mut self.state, tick)
    }
    fn stopped(&mut self) {
        self.sampler.stopped();
    }
}
