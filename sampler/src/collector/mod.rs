//! The collector: drains the rings, resolves, and hands batches to the sink.

pub(crate) mod console;
pub(crate) mod finder;
pub(crate) mod frames;
pub(crate) mod identity;
pub(crate) mod mode;
pub(crate) mod resolver;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtrb::Consumer;

use crate::batch::{Batch, EventRow, Sink};
use crate::record::Record;
use crate::session::{Ending, Shared, Totals};
use finder::{News, Wanted};
use resolver::Resolver;
use vmm::monotonic_ns;

/// How often the rings are drained.
const PERIOD: Duration = Duration::from_millis(20);
/// A batch is written at least this often: a killed run loses at most this and one period.
const FLUSH_PERIOD: Duration = Duration::from_millis(200);
/// A batch of this many samples is written at once.
const FLUSH_SAMPLES: usize = 8_192;
/// The window of the live line.
const WINDOW: Duration = Duration::from_secs(1);
/// How long the finder may take to end: its longest step, reading a kernel's symbols, takes about a second.
const FINDER_LIMIT: Duration = Duration::from_secs(10);

/// The finder's thread as the collector sees it.
#[derive(Debug)]
pub(crate) struct FinderHandle {
    pub wanted: Arc<Wanted>,
    pub news: Receiver<News>,
    pub thread: Option<JoinHandle<()>>,
}

impl Drop for FinderHandle {
    /// Whatever becomes of the collector, the finder does not outlive it for long.
    fn drop(&mut self) {
        self.wanted.stop();
    }
}

/// Everything the collector's thread owns.
pub(crate) struct Collector {
    shared: Arc<Shared>,
    rings: Vec<Consumer<Record>>,
    sink: Box<dyn Sink>,
    finder: Option<FinderHandle>,
    resolver: Resolver,
    batch: Batch,
    flushed: Instant,
    window_began: Instant,
    lost_told: bool,
    totals: Totals,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("rings", &self.rings.len()).field("totals", &self.totals).finish()
    }
}

impl Collector {
    pub(crate) fn new(
        shared: Arc<Shared>,
        rings: Vec<Consumer<Record>>,
        sink: Box<dyn Sink>,
        meta: Vec<(String, String)>,
    ) -> Self {
        let resolver = Resolver::new(shared.zero_ns);
        let now = Instant::now();
        Self {
            shared,
            rings,
            sink,
            finder: None,
            resolver,
            batch: Batch { meta, ..Batch::default() },
            flushed: now,
            window_began: now,
            lost_told: false,
            totals: Totals::default(),
        }
    }

    /// Writes what is there, so that a sink that cannot be written to is known before the guest runs.
    pub(crate) fn begin(&mut self) -> Result<(), crate::SinkError> {
        self.flush();
        match &self.totals.sink_error {
            Some(error) => Err(crate::SinkError(error.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn attach(&mut self, finder: FinderHandle) {
        self.finder = Some(finder);
    }

    /// The collector's thread: runs until the session ends.
    pub(crate) fn run(mut self) -> Totals {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.collect();
            if self.flushed.elapsed() >= FLUSH_PERIOD {
                self.flush();
            }
            thread::park_timeout(PERIOD);
        }
        self.close()
    }

    /// Drains the rings and takes what has arrived from elsewhere.
    pub(crate) fn collect(&mut self) {
        // News first: what it says was so before the samples that are drained now.
        self.hear_finder();
        for vcpu in 0..self.rings.len() {
            // No more than stands there now: a ring that fills as fast as it is drained must not starve the others.
            for _ in 0..self.rings[vcpu].slots() {
                let Ok(record) = self.rings[vcpu].pop() else { break };
                let id = u8::try_from(vcpu).unwrap_or(u8::MAX);
                self.resolver.sample(id, &record, &mut self.batch);
                if self.batch.samples.len() >= FLUSH_SAMPLES {
                    self.flush();
                }
            }
        }
        self.ask_finder();
        let dropped = self.shared.console.take(&mut self.batch.console);
        if dropped > 0 {
            self.batch.meta.push(("console_dropped_bytes".to_owned(), dropped.to_string()));
        }
        self.batch.events.append(&mut self.shared.events());
        self.roll_window();
    }

    fn hear_finder(&mut self) {
        let Some(finder) = self.finder.take() else { return };
        loop {
            match finder.news.try_recv() {
                Ok(news) => self.hear(news),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return self.bury(finder),
            }
        }
        self.finder = Some(finder);
    }

    fn ask_finder(&mut self) {
        let Some(finder) = &self.finder else { return };
        if let Some((cr3, five_level)) = self.resolver.candidate.take() {
            finder.wanted.candidate(cr3, five_level);
        }
        if std::mem::take(&mut self.resolver.unknown_module) {
            finder.wanted.modules();
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Kernel(found) => {
                let release = found.release.unwrap_or_else(|| "of unknown release".to_owned());
                let after = Duration::from_nanos(monotonic_ns().saturating_sub(self.shared.zero_ns));
                let symbols = found.symbols;
                self.event(
                    "kernel",
                    format!("Linux {release} found {after:.2?} after the start, {symbols} symbols"),
                );
                self.batch.meta.push(("kernel".to_owned(), release.clone()));
                self.shared.status().kernel = Some(release);
                self.resolver.kernel_found(found.names, &mut self.batch);
            }
            News::Names(names) => self.resolver.modules_changed(names, &mut self.batch),
            News::Tasks(tasks) => self.resolver.census(&tasks, &mut self.batch),
            News::Missing(text) => self.event("missing", text),
        }
    }

    /// The finder's thread has ended by itself, which it does only by a panic.
    fn bury(&mut self, mut finder: FinderHandle) {
        if finder.thread.take().is_some_and(|thread| thread.join().is_err()) {
            self.event(
                "missing",
                "reading the guest's kernel failed unexpectedly: names stop here".to_owned(),
            );
        }
    }

    fn event(&mut self, kind: &str, text: String) {
        let time_ns = monotonic_ns().saturating_sub(self.shared.zero_ns);
        self.batch.events.push(EventRow { time_ns, kind: kind.to_owned(), text });
    }

    fn roll_window(&mut self) {
        let elapsed = self.window_began.elapsed();
        if elapsed < WINDOW {
            return;
        }
        self.window_began = Instant::now();
        let window = self.resolver.take_window();
        let mut status = self.shared.status();
        #[expect(clippy::cast_precision_loss, reason = "samples of a second")]
        let samples = window.samples() as f64;
        status.rate_hz = samples / elapsed.as_secs_f64();
        status.top = window.top();
    }

    /// Writes the batch. After the sink's first failure rows are only dropped, so that the rings stay drained.
    pub(crate) fn flush(&mut self) {
        self.flushed = Instant::now();
        let rows = self.shared.vcpu_rows();
        let lost: u64 = rows.iter().map(|row| row.lost).sum();
        if lost > 0 && !std::mem::replace(&mut self.lost_told, true) {
            self.event("lost", "samples are lost: the collector does not keep up with the rate".to_owned());
        }
        self.totals.lost = lost;
        self.batch.vcpus = rows;
        let duration = monotonic_ns().saturating_sub(self.shared.zero_ns);
        self.batch.meta.push(("duration_ns".to_owned(), duration.to_string()));
        if self.totals.sink_error.is_none() {
            match self.sink.write(&self.batch) {
                Ok(()) => self.totals.samples += self.batch.samples.len() as u64,
                Err(error) => self.fail(error.0),
            }
        }
        let batch = &mut self.batch;
        batch.meta.clear();
        batch.vcpus.clear();
        batch.instances.clear();
        batch.frames.clear();
        batch.samples.clear();
        batch.console.clear();
        batch.events.clear();
    }

    fn fail(&mut self, error: String) {
        self.totals.sink_error.get_or_insert(error);
        self.shared.failed.store(true, Ordering::Release);
    }

    /// Drains everything, lets the finder end, writes the last rows and closes the sink.
    pub(crate) fn close(mut self) -> Totals {
        let ended_ns = monotonic_ns();
        self.collect();
        self.end_finder();
        self.collect();
        let Ending { meta, complete } = self.shared.ending();
        self.flush();
        if self.totals.lost > 0 {
            self.event("lost", format!("{} samples were lost in all", self.totals.lost));
        }
        let duration = ended_ns.saturating_sub(self.shared.zero_ns);
        let mut last = Batch { vcpus: self.shared.vcpu_rows(), meta, ..Batch::default() };
        last.events.append(&mut self.batch.events);
        last.meta.push(("duration_ns".to_owned(), duration.to_string()));
        if complete {
            last.meta.push(("complete".to_owned(), "1".to_owned()));
        }
        if self.totals.sink_error.is_none()
            && let Err(error) = self.sink.write(&last).and_then(|()| self.sink.finish())
        {
            self.fail(error.0);
        }
        self.totals
    }

    fn end_finder(&mut self) {
        self.ask_finder();
        let Some(finder) = self.finder.take() else { return };
        finder.wanted.stop();
        let until = Instant::now() + FINDER_LIMIT;
        loop {
            match finder.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(news) => self.hear(news),
                Err(RecvTimeoutError::Disconnected) => return self.bury(finder),
                Err(RecvTimeoutError::Timeout) => {
                    return self
                        .event("missing", format!("the thread finder did not end within {FINDER_LIMIT:?}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
