//! A wait loop.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `check` until it returns a value, and returns that value.
///
/// # Panics
/// `check` has returned nothing for `limit`.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begin.elapsed() < limit, "no {what} within {limit:?}");
        sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_counts() {
        let mut calls = 0;
        let found = eventually("third call", Duration::from_secs(60), || {
            calls += 1;
            (calls == 3).then_some("found")
        });
        assert_eq!((found, calls), ("found", 3));
    }

    #[test]
    #[should_panic(expected = "no end within 0ns")]
    fn the_wait_is_bounded() {
        eventually::<()>("end", Duration::ZERO, || None);
    }
}
