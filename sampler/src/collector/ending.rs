//! The end of the collector.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use profile::rows::COMPLETE;
use vmm::monotonic_ns;

use super::finder_events::take_name;
use super::host_stacks::HostStackTable;
use super::namer::NameRequest;
use super::precision::PrecisionTarget;
use super::watching::StallWatch;
use super::{Collector, FLUSH_PERIOD, NamerHandle};
use crate::shared::{SessionEnding, SessionTotals};

/// Time that the finder may take to end: its longest step, reading a kernel's symbols, takes about a second.
const FINDER_LIMIT: Duration = Duration::from_secs(10);
/// Time that naming may take after the end of a run.
const NAMER_LIMIT: Duration = Duration::from_secs(60);

impl Collector {
    /// Drains everything, ends the finder, writes the last rows and closes the sink.
    pub(crate) fn close(mut self) -> SessionTotals {
        let ended_ns = monotonic_ns();
        self.collect();
        // The finder reads once more after the stop, and samples may name what it finds, so rings and events
        // are drained again.
        self.end_finder();
        self.collect();
        // These still use the resolver, so they end before the namer does.
        if let Some(exact) = &mut self.exact {
            exact.close(&mut self.resolver, &mut self.batch);
            self.totals.trip_refused = exact.refused().map(str::to_owned);
        }
        if let Some(task_states) = &mut self.task_states {
            task_states.close(&mut self.resolver, &mut self.batch);
        }
        if let Some(memory_use) = &mut self.memory_use {
            memory_use.close(&mut self.batch);
        }
        self.resolver.name_made(true, &mut self.batch);
        self.end_namer();
        let SessionEnding { meta, complete } = self.shared.ending();
        self.flush();
        if self.totals.lost > 0 {
            self.event("lost", format!("{} samples were lost in total", self.totals.lost));
        }
        let (doing, longest) = self.steps.longest();
        if self.stacks_missed > 0 {
            let missed = self.stacks_missed;
            let samples = if missed == 1 { "sample has" } else { "samples have" };
            let longest = longest.as_secs_f64();
            self.event(
                "missing",
                format!(
                    "{missed} {samples} no stack: the collector did not keep up; its longest step took \
                     {longest:.1} s: {doing}"
                ),
            );
        }
        let duration = ended_ns.saturating_sub(self.shared.zero_ns);
        // Read last, so that the rows cover the time up to the end.
        self.read_meters(true);
        let unnoted = self.exit_sites.unnoted();
        if unnoted > 0 {
            self.event(
                "missing",
                format!("{unnoted} exits have neither a function nor a process: there was no room"),
            );
        }
        let lost = self.host_stacks.as_ref().map_or(0, HostStackTable::lost);
        if lost > 0 {
            self.event("missing", format!("{lost} ticks have no stack of the host: there was no room"));
        }
        self.totals.seen = self.gate.seen;
        self.totals.alerts = self.watch.as_ref().map_or(0, StallWatch::alerts);
        self.totals.precision = self.precision.as_ref().and_then(PrecisionTarget::largest_share);
        let mut last = std::mem::take(&mut self.batch);
        last.console.splice(..0, self.console_budget.rest());
        last.meta.extend(meta);
        last.meta.push(("duration_ns".to_owned(), duration.to_string()));
        last.meta.push(("samples_without_stack".to_owned(), self.stacks_missed.to_string()));
        last.meta.push(("collector_longest_ns".to_owned(), longest.as_nanos().to_string()));
        last.meta.push(("collector_longest_step".to_owned(), doing.to_owned()));
        if complete {
            last.meta.push((COMPLETE.to_owned(), "1".to_owned()));
        }
        // The end is written in one batch: a profile is complete, or it lacks the whole end.
        if self.totals.sink_error.is_none()
            && let Err(error) = self.sink.write(&last).and_then(|()| self.sink.finish())
        {
            self.fail(error.0);
        }
        self.totals
    }

    pub(super) fn end_finder(&mut self) {
        self.ask_finder();
        let Some(finder) = self.finder.take() else { return };
        finder.wanted.stop();
        let until = Instant::now() + FINDER_LIMIT;
        loop {
            match finder.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Disconnected) => return self.join_finder(finder),
                Err(RecvTimeoutError::Timeout) => {
                    return self.event(
                        "missing",
                        format!("the reader of the guest's kernel did not end within {FINDER_LIMIT:?}"),
                    );
                }
            }
        }
    }

    /// Waits until all frames have their names.
    pub(super) fn end_namer(&mut self) {
        self.ask_namer();
        self.resolver.code(&mut self.batch);
        let Some(NamerHandle { wanted, named, thread }) = self.namer.take() else { return };
        for (file, address) in self.resolver.hot_programs() {
            drop(wanted.send(NameRequest::Code(file, address)));
        }
        drop(wanted);
        let until = Instant::now() + NAMER_LIMIT;
        while Instant::now() < until {
            match named.recv_timeout(FLUSH_PERIOD) {
                Ok(named) => take_name(named, &mut self.batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if thread.join().is_err() => {
                    return self.event("missing", "naming user code failed unexpectedly".to_owned());
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // A reader of the rows takes a long silence for a collector that hangs.
            if self.flushed.elapsed() >= FLUSH_PERIOD {
                self.flush();
            }
        }
        self.event(
            "missing",
            format!("naming user code took more than {NAMER_LIMIT:?}: the rest has no names"),
        );
    }
}
