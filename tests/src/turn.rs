//! Turns of guests: most run alone.

use std::io::Write;
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

/// A failed test leaves nothing half done behind: its guest is killed.
static TURNS: RwLock<()> = RwLock::new(());

/// The right to run a guest. Its holder must not wait for another.
#[derive(Debug)]
pub(crate) struct Turn {
    begin: Instant,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
    _beside: Option<RwLockReadGuard<'static, ()>>,
}

impl Turn {
    pub(crate) fn alone() -> Self {
        report_failures_at_once();
        let alone = TURNS.write().unwrap_or_else(PoisonError::into_inner);
        Self { begin: Instant::now(), _alone: Some(alone), _beside: None }
    }

    pub(crate) fn beside_others() -> Self {
        report_failures_at_once();
        let beside = TURNS.read().unwrap_or_else(PoisonError::into_inner);
        Self { begin: Instant::now(), _alone: None, _beside: Some(beside) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        testkit::events::guest_took(self.begin.elapsed());
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
