//! The clock of windows.
//!
//! A window is a span of the host's clock (`CLOCK_REALTIME`), so that those of all hosts agree. Once one has
//! begun, its length is measured by `CLOCK_MONOTONIC`: a clock that is set during a window changes neither
//! its length nor its name. A window never begins again after its end, since its files would be replaced.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Part of a window that has to be left for it to begin: attaching takes a second or so.
const LEAST_PART: u32 = 20;
/// A clock that is late by less than this was not set: its rate is corrected all the time.
const SLEWED: Duration = Duration::from_secs(1);

/// The clock of windows of one length.
#[derive(Debug, Clone, Copy)]
pub struct WindowClock {
    length: Duration,
    /// End of the last window, ns since 1970.
    last_end_ns: u64,
}

/// Step of the agent at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextWindow {
    /// A window is in progress.
    Begin {
        /// Its start, ns since 1970.
        start_ns: u64,
        /// The time until its end.
        rest: Duration,
    },
    /// The next one begins later.
    Wait {
        /// The time until then.
        time: Duration,
        /// The clock was set back by so much since the last window.
        set_back: Option<Duration>,
    },
}

impl WindowClock {
    /// Makes the clock. `last_end_ns` is the end of the last window, or 0.
    pub fn new(length: Duration, last_end_ns: u64) -> Self {
        Self { length, last_end_ns }
    }

    /// Returns the length of a window, ns.
    pub fn length_ns(&self) -> u64 {
        u64::try_from(self.length.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns what to do at this time. With `whole`, a window that has begun is left out.
    pub fn next(&self, now_ns: u64, whole: bool) -> NextWindow {
        let start_ns = now_ns - now_ns % self.length_ns();
        if start_ns < self.last_end_ns {
            let next_ns = self.last_end_ns.div_ceil(self.length_ns()).saturating_mul(self.length_ns());
            let time = Duration::from_nanos(next_ns.saturating_sub(now_ns));
            let set_back = time.checked_sub(self.length).filter(|back| *back > SLEWED);
            return NextWindow::Wait { time, set_back };
        }
        let rest = Duration::from_nanos(start_ns + self.length_ns() - now_ns);
        let begun = now_ns - start_ns > self.length_ns() / u64::from(LEAST_PART);
        if whole && begun || rest < self.length / LEAST_PART {
            return NextWindow::Wait { time: rest, set_back: None };
        }
        NextWindow::Begin { start_ns, rest }
    }

    /// Notes that a window with this start has ended.
    pub fn ended(&mut self, start_ns: u64) {
        self.begins_after(start_ns.saturating_add(self.length_ns()));
    }

    /// Has no window begin before this time, ns since 1970.
    pub fn begins_after(&mut self, time_ns: u64) {
        self.last_end_ns = self.last_end_ns.max(time_ns);
    }

    /// Returns the end of the last window, ns since 1970; 0 without one.
    pub fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }
}

/// Returns the time by the host's clock, ns since 1970.
pub fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const MINUTE_NS: u64 = 60_000_000_000;
    /// The start of an hour.
    const START: u64 = 490_000 * 60 * MINUTE_NS;

    fn wait(minutes: u64) -> NextWindow {
        NextWindow::Wait { time: Duration::from_nanos(minutes * MINUTE_NS), set_back: None }
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length() {
        let clock = WindowClock::new(HOUR, 0);
        let begin =
            |minutes: u64| NextWindow::Begin { start_ns: START, rest: Duration::from_secs(60 * minutes) };
        assert_eq!(clock.next(START, false), begin(60));
        assert_eq!(clock.next(START + 20 * MINUTE_NS, false), begin(40));
        assert_eq!(clock.next(START + 58 * MINUTE_NS, false), wait(2), "too little is left");
        assert_eq!(clock.next(START + MINUTE_NS, true), begin(59));
        assert_eq!(clock.next(START + 20 * MINUTE_NS, true), wait(40), "a whole one is wanted");
    }

    #[test]
    fn a_window_does_not_begin_again() {
        let mut clock = WindowClock::new(HOUR, 0);
        clock.ended(START);
        // Its time by the other clock is over a little earlier.
        let early = START + 60 * MINUTE_NS - 1_000;
        assert_eq!(
            clock.next(early, false),
            NextWindow::Wait { time: Duration::from_nanos(1_000), set_back: None }
        );
        assert!(matches!(clock.next(START + 60 * MINUTE_NS, false), NextWindow::Begin { start_ns, .. } if
            start_ns == START + 60 * MINUTE_NS));
    }

    #[test]
    fn a_clock_that_is_set_back_is_waited_for_and_one_that_is_set_forward_is_followed() {
        let mut clock = WindowClock::new(HOUR, 0);
        clock.ended(START);
        let back = clock.next(START - 90 * MINUTE_NS, false);
        let (time, by) = (Duration::from_secs(150 * 60), Duration::from_secs(90 * 60));
        assert_eq!(back, NextWindow::Wait { time, set_back: Some(by) });
        let days = START + 48 * 60 * MINUTE_NS;
        assert_eq!(clock.next(days, false), NextWindow::Begin { start_ns: days, rest: HOUR });
        // Windows of another length have ended within one of this length.
        let mut clock = WindowClock::new(HOUR, START + 20 * MINUTE_NS);
        assert_eq!(clock.next(START + 25 * MINUTE_NS, false), wait(35));
        clock.ended(START);
        // A window that ended while the clock was late does not move the end back.
        clock.ended(START - 600 * MINUTE_NS);
        assert_eq!(clock.last_end_ns(), START + 60 * MINUTE_NS);
    }
}
