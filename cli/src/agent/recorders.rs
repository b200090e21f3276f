//! Recorders of the machines: in each window one for each machine, from that of the window before on.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use display::clean::escaped;
use display::units;

use super::forker::RecorderForker;
use super::identity::KnownMachine;
use super::recorder::{EndedRecorder, Recorder, RecorderPlan};
use super::{Agent, FORKER, OpenWindow, spool};
use crate::errors::Error;

/// Time after which a machine whose recorder has failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Recorders that start at the same time: finding a kernel takes some tenths of a second of CPU.
const STARTS: usize = 4;
/// Time after the begin of a window within which its recorders take over from those of the window before,
/// less than they record beyond it.
const TAKE_OVER: Duration = Duration::from_secs(25);
/// A window that begins within this time follows the last one.
const FOLLOWS: Duration = Duration::from_secs(1);
/// A process of recorders that ends within this time cannot be started.
const LEAST_LIFE: Duration = Duration::from_secs(1);
/// Smallest limit of a recording's size, bytes.
const LEAST_SIZE: u64 = 8 << 20;
/// Sentences that are known to be printed, at most.
const MOST_PRINTED: usize = 1_000;

impl Agent<'_> {
    /// Ends recorders of earlier windows: those that another one is ready to take over from, so that nothing
    /// is missed between the two, and those that no other one follows.
    pub(super) fn hand_over(&mut self, now: Instant) {
        let is_followed = match &self.window {
            Some(window) => now < window.begin + TAKE_OVER,
            // Two clocks may differ by some ms at the end of a window.
            None => self.ending.is_none() && self.not_before < now + FOLLOWS,
        };
        let current = self.window.as_ref().map(|window| window.spooled.directory.clone());
        let of_current = |recorder: &Recorder| Some(&recorder.plan.window) == current.as_ref();
        let ready: HashSet<String> = self
            .recorders
            .iter()
            .filter(|recorder| of_current(recorder) && recorder.plan.takes_over && recorder.awaits())
            .map(|recorder| recorder.plan.vm.id.clone())
            .collect();
        for recorder in self.recorders.iter_mut().filter(|recorder| !of_current(recorder)) {
            if !is_followed || ready.contains(&recorder.plan.vm.id) {
                recorder.stop();
            }
        }
    }

    /// Starts the process of which recorders are copies again if it has ended, as all of them have then.
    ///
    /// # Errors
    /// It cannot be started, or has ended too soon to try it once more.
    pub(super) fn keep_forker(&mut self, now: Instant) -> Result<(), Error> {
        let failed = |source| Error::System { action: FORKER, source };
        let Some(status) = self.forker.ended().map_err(failed)? else { return Ok(()) };
        if now < self.forked + LEAST_LIFE {
            return Err(failed(io::Error::other(format!("it has ended ({status})"))));
        }
        let recorders = self.recorders.len() as u64;
        display::stderr_line!(
            "vprof: the process of the recorders has ended ({status}), and with it {}; they begin again in {}",
            units::counted(recorders, "recording"),
            units::duration(AGAIN)
        );
        self.counters.recorders_failed += recorders;
        self.failed.extend(self.recorders.drain(..).map(|recorder| (recorder.plan.vm.id, now + AGAIN)));
        (self.forker, self.forked) = (RecorderForker::start().map_err(failed)?, now);
        Ok(())
    }

    /// Takes note of recorders that have ended.
    pub(super) fn reap(&mut self) {
        let mut ends = Vec::new();
        self.recorders.retain_mut(|recorder| match recorder.ended() {
            Ok(None) => true,
            Ok(Some(ended)) => {
                ends.push((recorder.plan.clone(), ended));
                false
            }
            Err(error) => {
                display::stderr_line!(
                    "vprof: cannot wait for a recorder: {}",
                    display::message::Reason(&error)
                );
                false
            }
        });
        for (plan, ended) in ends {
            self.ended(&plan, &ended);
        }
    }

    fn ended(&mut self, plan: &RecorderPlan, ended: &EndedRecorder) {
        let mut vm = plan.vm.clone();
        let EndedRecorder { stopped, end } = ended;
        (vm.agent_cpu_ns, vm.agent_memory_bytes) = (end.cpu_ns, end.memory_bytes);
        let window = spool::spooled(&plan.window);
        if let Some(Err(error)) = window.map(|window| window.write_vm(&plan.profile, &vm)) {
            display::stderr_line!("vprof: {error}");
        }
        // Where it was ended before its first sample, there is nothing to report.
        if end.status().success() || *stopped {
            return;
        }
        // It cannot take over, as where vCPUs are stopped for samples: it starts again after the one before.
        let mut before = self.recorders_before(plan).peekable();
        if plan.takes_over && before.peek().is_some() {
            before.for_each(Recorder::stop);
            return;
        }
        drop(before);
        self.counters.recorders_failed += 1;
        self.failed.insert(plan.vm.id.clone(), Instant::now() + AGAIN);
        let reason = if end.words.is_empty() { end.status().to_string() } else { end.words.clone() };
        let sentence = format!("{} (process {}): {}", escaped(&plan.vm.name), plan.pid, escaped(&reason));
        if self.printed.len() >= MOST_PRINTED {
            self.printed.clear();
        }
        if self.printed.insert(sentence.clone()) {
            display::stderr_line!("vprof: {sentence}; it is tried again every {}", units::duration(AGAIN));
        }
    }

    /// Returns the recorders of the same machine in earlier windows.
    fn recorders_before(&mut self, plan: &RecorderPlan) -> impl Iterator<Item = &mut Recorder> {
        let earlier = move |recorder: &&mut Recorder| {
            recorder.plan.vm.id == plan.vm.id && recorder.plan.window != plan.window
        };
        self.recorders.iter_mut().filter(earlier)
    }

    /// Returns the recorders of a machine.
    fn recorders_of<'r>(&'r self, vm: &'r str) -> impl Iterator<Item = &'r Recorder> {
        self.recorders.iter().filter(move |recorder| recorder.plan.vm.id == vm)
    }

    /// Starts recorders of machines that have none.
    pub(super) fn start_recorders(&mut self, now: Instant) -> Result<(), Error> {
        let Some(OpenWindow { spooled, deadline, .. }) = &self.window else { return Ok(()) };
        let rest = deadline.saturating_duration_since(now);
        // One that was asked to end has to end first.
        let is_taken =
            |recorder: &Recorder| recorder.plan.window == spooled.directory || recorder.is_stopped();
        let waits = |vm: &str| self.failed.get(vm).is_some_and(|again| now < *again);
        let free = |machine: &&KnownMachine| {
            !self.recorders_of(&machine.vm.id).any(is_taken) && !waits(&machine.vm.id)
        };
        // Both recorders of a machine take memory.
        let taking_over = self.recorders.iter().filter(|recorder| {
            recorder.plan.window == spooled.directory
                && self.recorders_of(&recorder.plan.vm.id).any(|other| other.plan.window != spooled.directory)
        });
        let starts = STARTS.saturating_sub(taking_over.count());
        let share = self.args.spool_limit / (2 * (self.machines.len() as u64 + 1));
        let mut started = Vec::new();
        for machine in self.machines.iter().filter(free).take(starts) {
            let profile = spooled.new_profile(&machine.vm);
            spooled.write_vm(&profile, &machine.vm)?;
            let plan = RecorderPlan {
                pid: machine.pid,
                vm: machine.vm.clone(),
                window: spooled.directory.clone(),
                profile,
                tables: self.spool.tables(),
                rate_hz: self.costs.rate_of(&machine.vm.id, self.args.rate),
                rest,
                max_size: share.max(LEAST_SIZE),
                engine: self.args.engine,
                seccomp: self.args.seccomp,
                takes_over: self.recorders_of(&machine.vm.id).next().is_some(),
            };
            let recorder = Recorder::start(plan, &self.forker);
            started.push(recorder.map_err(|source| Error::System { action: "start a recorder", source })?);
        }
        self.recorders.extend(started);
        Ok(())
    }
}
