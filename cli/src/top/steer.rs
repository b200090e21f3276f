//! The run that is looked at: what it tells, and what it is told.

use profile::live::{Snapshot, View};

use crate::errors::Error;

/// What a run tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// How it is now.
    Look(Box<Snapshot>),
    /// One sentence.
    Told(String),
    /// There is nothing more to come: one sentence.
    Ended(String),
}

/// What a run can be told.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// How to look from now on.
    View(View),
    /// Sample (again).
    Start,
    /// Do not sample.
    Stop,
    /// Mean ticks per second and vCPU.
    Rate(f64),
    /// A row of table `event`.
    Mark(String),
    /// End the run.
    End,
}

/// A run that goes on.
pub trait Run {
    /// The next thing that it tells. May be dropped, and called again.
    fn next(&mut self) -> impl Future<Output = Event>;

    /// Tells it something.
    ///
    /// # Errors
    /// It cannot be talked to any more.
    fn send(&mut self, command: Command) -> impl Future<Output = Result<(), Error>>;
}

/// The lowest and the highest rate, Hz: those of the command line.
const RATES: (f64, f64) = (0.1, 50_000.0);

/// The next rate in steps of 1, 2 and 5.
pub fn step(hz: f64, up: bool) -> f64 {
    let steps = (-1..5).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10.0_f64.powi(power)));
    let steps = steps.filter(|step| (RATES.0..=RATES.1).contains(step));
    // Rates that were made by arithmetic are a little off.
    let next = match up {
        true => steps.fold(None, |next, step| next.or((step > hz * 1.001).then_some(step))),
        false => steps.fold(None, |last, step| if step < hz * 0.999 { Some(step) } else { last }),
    };
    next.unwrap_or(if up { RATES.1 } else { RATES.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_in_steps() {
        let up: Vec<_> = [0.1, 1.0, 999.0, 1_000.0, 5_000.0, 50_000.0].map(|hz| step(hz, true)).to_vec();
        assert_eq!(up, [0.2, 2.0, 1_000.0, 2_000.0, 10_000.0, 50_000.0]);
        let down: Vec<_> = [50_000.0, 1_000.0, 997.0, 0.2, 0.1].map(|hz| step(hz, false)).to_vec();
        assert_eq!(down, [20_000.0, 500.0, 500.0, 0.1, 0.1]);
        assert_eq!((step(f64::NAN, true), step(f64::NAN, false)), (50_000.0, 0.1));
    }
}
