//! Turns of guests: those that measure either run alone or have a CPU of this machine for themselves.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Way in which a guest shares this machine with the guests of other tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// No other guest runs.
    Alone,
    /// The guest has a CPU for itself, and the guests on the other CPUs have theirs. A portable host then
    /// emulates one CPU.
    OwnCpu,
    /// Others run on the same CPUs, as many as there are CPUs: for tests that measure nothing.
    NextToOthers,
}

/// Guests that run or wait for their turn.
#[derive(Debug, Default)]
struct TurnCounts {
    alone: bool,
    /// CPUs that guests have for themselves.
    taken: Vec<usize>,
    next_to_others: usize,
    /// Limits of the guests that wait to run next to others: their turns come first.
    waiting: Vec<Duration>,
    /// Guests that wait for a CPU: their turns come second.
    waiting_for_cpu: usize,
}

static TURNS: Mutex<TurnCounts> = Mutex::new(TurnCounts {
    alone: false,
    taken: Vec::new(),
    next_to_others: 0,
    waiting: Vec::new(),
    waiting_for_cpu: 0,
});
static CHANGED: Condvar = Condvar::new();

/// Locks the counts. A failed test leaves them valid: its guest is killed.
fn turns() -> MutexGuard<'static, TurnCounts> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(
    turns: MutexGuard<'static, TurnCounts>,
    condition: impl FnMut(&mut TurnCounts) -> bool,
) -> MutexGuard<'static, TurnCounts> {
    CHANGED.wait_while(turns, condition).unwrap_or_else(PoisonError::into_inner)
}

/// Returns the CPUs on which this process may run.
fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).expect("this process has CPUs");
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// The right to run a guest. Its holder must not wait for another turn.
#[derive(Debug)]
pub(crate) struct GuestTurn {
    begin: Instant,
    sharing: Sharing,
    /// CPU that the guest has for itself.
    cpu: Option<usize>,
}

impl GuestTurn {
    /// Waits for a turn. Next to others the guest with the longest limit comes first, because a long one that
    /// begins last would run next to nothing.
    pub(crate) fn take(sharing: Sharing, limit: Duration) -> Self {
        report_failures_at_once();
        let cpu = match sharing {
            Sharing::Alone => {
                alone();
                None
            }
            Sharing::OwnCpu => Some(on_own_cpu()),
            Sharing::NextToOthers => {
                next_to_others(limit);
                None
            }
        };
        Self { begin: Instant::now(), sharing, cpu }
    }

    /// Returns the CPUs on which the guest is to run; `None` for all.
    pub(crate) fn cpus(&self) -> Option<CpuSet> {
        self.cpu.map(|cpu| {
            let mut set = CpuSet::new();
            set.set(cpu).expect("a CPU of this process");
            set
        })
    }
}

fn alone() {
    let mut turns = wait_while(turns(), |turns| {
        let runs = turns.alone || !turns.taken.is_empty() || turns.next_to_others > 0;
        runs || !turns.waiting.is_empty() || turns.waiting_for_cpu > 0
    });
    turns.alone = true;
}

fn on_own_cpu() -> usize {
    let cpus = cpus();
    let mut turns = turns();
    turns.waiting_for_cpu += 1;
    let mut turns = wait_while(turns, |turns| {
        turns.alone
            || turns.next_to_others > 0
            || !turns.waiting.is_empty()
            || turns.taken.len() == cpus.len()
    });
    turns.waiting_for_cpu -= 1;
    let cpu = cpus.into_iter().find(|cpu| !turns.taken.contains(cpu)).expect("not all are taken");
    turns.taken.push(cpu);
    cpu
}

fn next_to_others(limit: Duration) {
    let most = cpus().len();
    let mut turns = turns();
    turns.waiting.push(limit);
    let mut turns = wait_while(turns, |turns| {
        let is_full = turns.alone || !turns.taken.is_empty() || turns.next_to_others >= most;
        is_full || turns.waiting.iter().any(|other| *other > limit)
    });
    let own = turns.waiting.iter().position(|other| *other == limit).expect("it was added above");
    turns.waiting.swap_remove(own);
    turns.next_to_others += 1;
    drop(turns);
    // A guest with a shorter limit may have waited for this one to begin.
    CHANGED.notify_all();
}

impl Drop for GuestTurn {
    fn drop(&mut self) {
        testkit::events::guest_took(self.begin.elapsed());
        let mut turns = turns();
        match self.sharing {
            Sharing::Alone => turns.alone = false,
            Sharing::OwnCpu => turns.taken.retain(|cpu| Some(*cpu) != self.cpu),
            Sharing::NextToOthers => turns.next_to_others -= 1,
        }
        drop(turns);
        CHANGED.notify_all();
    }
}

/// Restricts the calling process to these CPUs. Async-signal-safe.
pub(crate) fn restrict(cpus: &CpuSet) -> std::io::Result<()> {
    Ok(sched_setaffinity(Pid::from_raw(0), cpus)?)
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    // One test, because turns are those of the whole process.
    #[test]
    fn each_guest_has_its_cpu_and_long_ones_come_first() {
        let take = |sharing, limit| GuestTurn::take(sharing, Duration::from_secs(limit));
        let pinned: Vec<GuestTurn> = cpus().iter().map(|_| take(Sharing::OwnCpu, 0)).collect();
        let found: Vec<Vec<usize>> = pinned
            .iter()
            .map(|turn| {
                let own = turn.cpus().unwrap();
                let restricted = move || restrict(&own).map(|()| cpus());
                thread::spawn(restricted).join().unwrap().unwrap()
            })
            .collect();
        assert_eq!(found, cpus().into_iter().map(|cpu| vec![cpu]).collect::<Vec<_>>());
        drop(pinned);

        let mut running: Vec<GuestTurn> = cpus().iter().map(|_| take(Sharing::NextToOthers, 9)).collect();
        let (begun, order) = channel();
        let waiting = [1, 2].map(|limit| {
            let begun = begun.clone();
            thread::spawn(move || {
                let turn = take(Sharing::NextToOthers, limit);
                begun.send(limit).unwrap();
                drop(turn);
            })
        });
        testkit::eventually("guests that wait", Duration::from_secs(60), || {
            (turns().waiting.len() == waiting.len()).then_some(())
        });
        assert!(running.pop().is_some());
        waiting.into_iter().for_each(|guest| guest.join().unwrap());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [2, 1]);
    }
}
