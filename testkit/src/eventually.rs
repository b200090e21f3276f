//! A wait loop.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `look` until it returns something, and returns that.
///
/// # Panics
/// It has returned nothing for `limit`.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
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
        let mut looks = 0;
        let found = eventually("third look", Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!((found, looks), ("found", 3));
    }

    #[test]
    #[should_panic(expected = "no end within 0ns")]
    fn the_wait_is_bounded() {
        eventually::<()>("end", Duration::ZERO, || None);
    }
}
