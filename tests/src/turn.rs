//! Turns of guests: most run alone.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

/// Guests that run or wait for their turn.
#[derive(Debug, Default)]
struct TurnCounts {
    alone: bool,
    /// Guests that may run next to each other.
    next_to_others: usize,
    /// Waiting guests that may run next to each other: their turns come first.
    waiting: usize,
}

static TURNS: Mutex<TurnCounts> = Mutex::new(TurnCounts { alone: false, next_to_others: 0, waiting: 0 });
static ENDED: Condvar = Condvar::new();

/// Locks the counts. A failed test leaves them valid: its guest is killed.
fn turns() -> MutexGuard<'static, TurnCounts> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run a guest. Its holder must not wait for another turn.
#[derive(Debug)]
pub(crate) struct GuestTurn {
    begin: Instant,
    is_alone: bool,
}

impl GuestTurn {
    pub(crate) fn alone() -> Self {
        report_failures_at_once();
        let must_wait = |turns: &mut TurnCounts| turns.alone || turns.next_to_others > 0 || turns.waiting > 0;
        let mut turns = ENDED.wait_while(turns(), must_wait).unwrap_or_else(PoisonError::into_inner);
        turns.alone = true;
        Self { begin: Instant::now(), is_alone: true }
    }

    /// Waits for a turn next to others: as many guests as there are CPUs run at a time.
    pub(crate) fn next_to_others() -> Self {
        report_failures_at_once();
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut turns = turns();
        turns.waiting += 1;
        let must_wait = |turns: &mut TurnCounts| turns.alone || turns.next_to_others >= most;
        let mut turns = ENDED.wait_while(turns, must_wait).unwrap_or_else(PoisonError::into_inner);
        turns.waiting -= 1;
        turns.next_to_others += 1;
        Self { begin: Instant::now(), is_alone: false }
    }
}

impl Drop for GuestTurn {
    fn drop(&mut self) {
        testkit::events::guest_took(self.begin.elapsed());
        let mut turns = turns();
        if self.is_alone {
            turns.alone = false;
        } else {
            turns.next_to_others -= 1;
        }
        drop(turns);
        ENDED.notify_all();
    }
}

/// Prints why a test fails at once: libtest prints it when all others have ended, many minutes later.
fn report_failures_at_once() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            // A line that cannot be written is in libtest's output at the end.
            let _ = writeln!(std::io::stderr(), "{}: {panic}", thread.name().unwrap_or("a thread"));
            usual(panic);
        }));
    });
}
