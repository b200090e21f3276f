//! Turns of guests: most run alone.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

/// Who runs now.
#[derive(Debug, Default)]
struct TurnCounts {
    alone: bool,
    /// Guests that may run next to each other.
    beside_others: usize,
    /// Turns that are waited for and may be given next to others: they come first.
    waiting: usize,
}

static TURNS: Mutex<TurnCounts> = Mutex::new(TurnCounts { alone: false, beside_others: 0, waiting: 0 });
static ENDED: Condvar = Condvar::new();

/// A failed test leaves nothing half done behind: its guest is killed.
fn turns() -> MutexGuard<'static, TurnCounts> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run a guest. Its holder must not wait for another.
#[derive(Debug)]
pub(crate) struct GuestTurn {
    begin: Instant,
    is_alone: bool,
}

impl GuestTurn {
    pub(crate) fn alone() -> Self {
        report_failures_at_once();
        let must_wait = |turns: &mut TurnCounts| turns.alone || turns.beside_others > 0 || turns.waiting > 0;
        let mut turns = ENDED.wait_while(turns(), must_wait).unwrap_or_else(PoisonError::into_inner);
        turns.alone = true;
        Self { begin: Instant::now(), is_alone: true }
    }

    /// As many as there are CPUs run at a time, however many tests wait for one and the same guest.
    pub(crate) fn beside_others() -> Self {
        report_failures_at_once();
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut turns = turns();
        turns.waiting += 1;
        let must_wait = |turns: &mut TurnCounts| turns.alone || turns.beside_others >= most;
        let mut turns = ENDED.wait_while(turns, must_wait).unwrap_or_else(PoisonError::into_inner);
        turns.waiting -= 1;
        turns.beside_others += 1;
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
            turns.beside_others -= 1;
        }
        drop(turns);
        ENDED.notify_all();
    }
}

/// Says why a test fails when it does: libtest does when all others have ended, many minutes later.
fn report_failures_at_once() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            // A line that cannot be written is in what libtest says at the end.
            let _ = writeln!(std::io::stderr(), "{}: {panic}", thread.name().unwrap_or("a thread"));
            usual(panic);
        }));
    });
}
