//! Windows of the agent: they begin and end by the clock, and are sent to the sinks.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use display::units;
use export::lake::LakeWindow;

use super::sink::SentTotals;
use super::spool::SpooledWindow;
use super::window::{NextWindow, now_unix_ns};
use super::{Agent, END_LIMIT, OpenWindow};
use crate::errors::Error;

impl Agent<'_> {
    /// Has windows sent that are over, and that an earlier agent has left.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let now_ns = now_unix_ns();
        for spooled in self.spool.windows() {
            let window = &spooled.window;
            let other_length = window.length_ns != self.clock.length_ns();
            if other_length {
                // Names of windows of two lengths may be the same.
                self.clock.begins_after(now_ns.min(window.end_unix_ns()));
            }
            let is_over = other_length || window.end_unix_ns() <= now_ns;
            if !is_over || self.is_recorded(&spooled.directory) {
                continue;
            }
            let mut is_new = false;
            for sink in &mut self.sinks {
                is_new |= sink.adopt(&spooled)?;
            }
            if is_new {
                display::stderr_line!(
                    "vprof: the window {} of an earlier agent is written now",
                    window.name()
                );
            }
            self.remove_done(&spooled)?;
        }
        Ok(())
    }

    /// Begins and ends windows.
    pub(super) fn follow_window(&mut self, now: Instant) -> Result<(), Error> {
        if self.window.as_ref().is_some_and(|window| now >= window.deadline) {
            self.close_window();
            if self.args.once {
                self.ending = Some(now + END_LIMIT);
            }
        }
        if self.window.is_some() || self.ending.is_some() || now < self.not_before {
            return Ok(());
        }
        match self.clock.next(now_unix_ns(), self.args.once) {
            NextWindow::Wait { time, set_back } => {
                if let Some(back) = set_back {
                    display::stderr_line!(
                        "vprof: the clock was set back by {}: the next window begins after the last one, in {}",
                        units::duration(back),
                        units::duration(time)
                    );
                }
                self.not_before = now + time;
            }
            NextWindow::Begin { start_ns, rest } => self.begin_window(start_ns, (now, now + rest))?,
        }
        Ok(())
    }

    fn begin_window(&mut self, start_ns: u64, (begin, deadline): (Instant, Instant)) -> Result<(), Error> {
        if !LakeWindow::takes_part(&self.host, start_ns, self.args.one_of) {
            self.clock.ended(start_ns);
            self.not_before = deadline;
            return Ok(());
        }
        let window = LakeWindow {
            host: self.host.clone(),
            start_unix_ns: start_ns,
            length_ns: self.clock.length_ns(),
            inclusion: 1.0 / f64::from(self.args.one_of),
            dropped_windows: 0,
        };
        let spooled = self.spool.begin(window)?;
        // Sent by an agent before, which has ended within the window.
        self.sinks.iter_mut().for_each(|sink| sink.forget(&spooled));
        self.window = Some(OpenWindow { spooled, begin, deadline });
        // A machine may have come since.
        self.listed = None;
        Ok(())
    }

    /// Ends the window. It is sent once its recorders have ended.
    pub(super) fn close_window(&mut self) {
        let Some(OpenWindow { spooled, deadline, .. }) = self.window.take() else { return };
        // A window that an agent leaves in its middle may be continued by the next one.
        if Instant::now() >= deadline {
            self.clock.ended(spooled.window.start_unix_ns);
            self.spool.state.last_end_ns = self.clock.last_end_ns();
            if let Err(error) = self.spool.save() {
                display::stderr_line!("vprof: {error}");
            }
        }
        self.sinks.iter_mut().for_each(|sink| sink.add(&spooled));
    }

    /// Sends windows whose recorders have ended: to each sink one after the other.
    pub(super) fn send_windows(&mut self, now: Instant) -> Result<(), Error> {
        let failed = |source| Error::System { action: "wait for vprof agent-window", source };
        let recorded: Vec<PathBuf> =
            self.recorders.iter().map(|recorder| recorder.plan.window.clone()).collect();
        let mut ended = Vec::new();
        for sink in &mut self.sinks {
            if let Some((window, totals)) = sink.ended(now).map_err(failed)? {
                match totals {
                    Some(totals) => display::stderr_line!("vprof: {}", sink.sentence(&window, totals)),
                    None => {
                        let (name, address) = (window.window.name(), &sink.address);
                        let again = sink.not_before().saturating_duration_since(now).as_secs();
                        display::stderr_line!(
                            "vprof: {name} stays in the spool: {address} is tried again in {again} s"
                        );
                    }
                }
                ended.push((window, totals));
            }
        }
        for (window, totals) in ended {
            match totals {
                Some(totals) => self.sent(&window, totals)?,
                None => self.counters.failed += 1,
            }
        }
        // Stacks of a window that has ended are known to the next one.
        for sink in &mut self.sinks {
            sink.start(now, |path| recorded.iter().any(|recorded| recorded == path))?;
        }
        Ok(())
    }

    /// Takes note of a window that a sink has.
    fn sent(&mut self, window: &SpooledWindow, totals: SentTotals) -> Result<(), Error> {
        if !self.sinks.iter().all(|sink| sink.has(&window.directory)) {
            return Ok(());
        }
        self.counters.written += 1;
        self.counters.samples += totals.samples;
        self.counters.lost += totals.lost;
        let same_length = window.window.length_ns == self.clock.length_ns();
        // An agent that starts within the window adds to it.
        if same_length && now_unix_ns() < window.window.end_unix_ns() {
            return Ok(());
        }
        self.remove_done(window)
    }

    /// Removes a window that is over, if each sink has it.
    fn remove_done(&mut self, window: &SpooledWindow) -> Result<(), Error> {
        let is_open = self.is_recorded(&window.directory);
        if is_open || !self.sinks.iter().all(|sink| sink.has(&window.directory)) {
            return Ok(());
        }
        self.sinks.iter_mut().for_each(|sink| sink.forget(window));
        self.spool.complete(window)
    }

    /// Drops the oldest windows if the spool is too large.
    pub(super) fn limit_spool(&mut self) -> Result<(), Error> {
        let windows = self.spool.windows();
        let busy: HashSet<PathBuf> = windows
            .iter()
            .map(|window| window.directory.clone())
            .filter(|directory| self.is_busy(directory))
            .collect();
        for window in self.spool.drop_beyond(self.args.spool_limit, |path| busy.contains(path))? {
            self.counters.dropped += 1;
            let (name, limit) = (window.window.name(), units::bytes(self.args.spool_limit));
            display::stderr_line!(
                "vprof: the window {name} is dropped: the spool is larger than {limit} (--spool-limit)"
            );
            self.sinks.iter_mut().for_each(|sink| sink.drop_window(&window));
        }
        self.counters.spool_bytes = self.spool.bytes();
        Ok(())
    }
}
