//! The run that a view shows: its events, and the commands to it.

use profile::live::{Snapshot, View};
use profile::session::RATES_HZ;

use crate::ViewError;

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEvent {
    /// The current tables.
    Snapshot(Box<Snapshot>),
    /// A sentence for the user.
    Message(String),
    /// The end of all events, with the reason as a sentence.
    Ended(String),
    /// The view has to leave the screen.
    Closed,
}

/// A command to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunCommand {
    /// Change the span and the rows of snapshots.
    View(View),
    /// Start sampling (again).
    Start,
    /// Stop sampling.
    Stop,
    /// Set the sampling rate, in mean ticks per second and vCPU.
    Rate(f64),
    /// Add a mark with this text to the profile.
    Mark(String),
    /// End the run.
    End,
}

/// A run in progress.
pub trait WatchedRun {
    /// Failure of the connection to the run, or of the terminal.
    type Error: From<ViewError>;

    /// Waits for the next event. The future may be dropped, and the method called again.
    fn next(&mut self) -> impl Future<Output = RunEvent>;

    /// Sends a command.
    ///
    /// # Errors
    /// The connection to the run failed.
    fn send(&mut self, command: RunCommand) -> impl Future<Output = Result<(), Self::Error>>;
}

/// Returns the next rate in steps of 1, 2 and 5.
pub fn step(hz: f64, up: bool) -> f64 {
    let steps = (-1..5).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10.0_f64.powi(power)));
    let steps = steps.filter(|step| RATES_HZ.contains(step));
    // The factor allows for rounding of the current rate.
    let next = match up {
        true => steps.fold(None, |next, step| next.or((step > hz * 1.001).then_some(step))),
        false => steps.fold(None, |last, step| if step < hz * 0.999 { Some(step) } else { last }),
    };
    next.unwrap_or(if up { *RATES_HZ.end() } else { *RATES_HZ.start() })
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
