//! Threads that read the guest besides the vCPUs' threads, and report to the collector by events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vmm::monotonic_ns;

/// Events that wait for the collector, at most: if it stops, the thread waits for it.
const WAITING: usize = 4;
/// Time that a thread may take to end: its longest step is one walk over a list of the guest.
const LIMIT: Duration = Duration::from_secs(10);

/// Failure of a thread.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventThreadError {
    /// It was not started.
    #[error("cannot start its thread: {0}")]
    Start(String),
    /// It did not end in time.
    #[error("its thread did not end within {LIMIT:?}")]
    Endless,
    /// It ended by a panic.
    #[error("its thread failed unexpectedly")]
    Panic,
}

/// Request to a thread to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Returns true if the thread has to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the thread end at its next check of the flag.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Waits until `due_ns`, CLOCK_MONOTONIC; returns false if the thread has to end before.
    pub(crate) fn wait_until(&self, due_ns: u64) -> bool {
        loop {
            if self.is_set() {
                return false;
            }
            let left = due_ns.saturating_sub(monotonic_ns());
            if left == 0 {
                return true;
            }
            thread::park_timeout(Duration::from_nanos(left));
        }
    }
}

/// A thread that sends events until it is stopped. Dropping it stops the thread, and does not wait for it.
#[derive(Debug)]
pub(crate) struct EventThread<E> {
    /// `None` once the thread has ended.
    thread: Option<JoinHandle<()>>,
    stop: StopFlag,
    events: Receiver<E>,
}

impl<E: Send + 'static> EventThread<E> {
    /// Starts a thread of this name. It ends when it is stopped, or when an event cannot be sent.
    pub(crate) fn start(
        name: &str,
        run: impl FnOnce(StopFlag, SyncSender<E>) + Send + 'static,
    ) -> Result<Self, EventThreadError> {
        let stop = StopFlag::default();
        let (sender, events) = sync_channel(WAITING);
        let flag = stop.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(flag, sender));
        let thread = thread.map_err(|error| EventThreadError::Start(error.to_string()))?;
        Ok(Self { thread: Some(thread), stop, events })
    }
}

impl<E> EventThread<E> {
    /// Takes the events that have arrived. A thread that has ended is an error only if it panicked.
    pub(crate) fn take(&mut self, mut event: impl FnMut(E)) -> Result<(), EventThreadError> {
        loop {
            match self.events.try_recv() {
                Ok(found) => event(found),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return self.join(),
            }
        }
    }

    /// Ends the thread and takes its last events.
    pub(crate) fn end(mut self, mut event: impl FnMut(E)) -> Result<(), EventThreadError> {
        self.stop();
        let until = Instant::now() + LIMIT;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(found) => event(found),
                Err(RecvTimeoutError::Disconnected) => return self.join(),
                Err(RecvTimeoutError::Timeout) => return Err(EventThreadError::Endless),
            }
        }
    }

    fn join(&mut self) -> Result<(), EventThreadError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(EventThreadError::Panic),
            Some(Ok(())) | None => Ok(()),
        }
    }

    fn stop(&self) {
        self.stop.set();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl<E> Drop for EventThread<E> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_arrive_also_those_of_the_end() {
        let counting = |stop: StopFlag, sender: SyncSender<u32>| {
            assert!(sender.send(1).is_ok() && !stop.wait_until(u64::MAX));
            assert!(sender.send(2).is_ok());
        };
        let mut thread = EventThread::start("counts", counting).expect("a thread");
        let mut found = Vec::new();
        while found.is_empty() {
            thread.take(|event| found.push(event)).expect("it runs");
        }
        assert_eq!(thread.end(|event| found.push(event)), Ok(()));
        assert_eq!(found, [1, 2]);
    }

    #[test]
    fn a_panic_is_an_error_once() {
        let failing = |_: StopFlag, _: SyncSender<u32>| panic!("as the test wants it");
        let mut thread = EventThread::start("fails", failing).expect("a thread");
        let failed = loop {
            if let Err(error) = thread.take(|_| {}) {
                break error;
            }
        };
        assert_eq!(failed, EventThreadError::Panic);
        assert_eq!(thread.take(|_| {}), Ok(()));
    }
}
