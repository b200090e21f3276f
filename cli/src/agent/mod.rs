//! `vprof agent`: profiles all virtual machines of a host all the time.
//!
//! ```text
//!            every 2 s: machines
//!  vprof agent ──▶ vprof attach PID   one for each machine, until the end of the window
//!      │               └─▶ SPOOL/WINDOW/VM-0.vprof
//!      │  for each sink, the oldest window that it does not have
//!      └─────────▶ vprof agent-window SPOOL/WINDOW ──▶ DIR/v1/TABLE/day=.../hour=.../WINDOW.parquet
//!                      ├─▶ vprof agent-window --stage ──▶ SPOOL/WINDOW/TABLE.parquet, VM-0.00000.otlp.gz
//!                      └─▶ an object store or a receiver of OpenTelemetry profiles
//! ```
//!
//! The agent itself reads no byte of a guest and no recording: it lists machines, and starts and ends
//! processes. Each recorder is an ordinary `vprof attach` with its walls; the process that reads the
//! recordings of a window ends with it, and so does the one that has credentials for sinks.

mod budget;
mod convert;
mod identity;
mod metrics;
mod recorder;
mod send;
mod sink;
mod spool;
mod window;

use std::collections::{HashMap, HashSet};
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use export::lake::LakeWindow;
use host::control::place;
use profile::report::is_called;
use text::clean::escaped;
use text::units;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{AgentArgs, AgentWindowArgs, hostname};
use crate::errors::{Error, ExitCode};
use budget::{RateFactor, default_budget};
use identity::KnownMachine;
use metrics::{AgentCounters, SharedCounters};
use recorder::{EndedRecorder, Recorder, RecorderPlan};
use sink::Sink;
use spool::{Spool, SpooledWindow};
use window::{NextWindow, WindowClock, now_unix_ns};

/// Time between two checks of everything.
const CHECK: Duration = Duration::from_millis(100);
/// Time between two listings of machines.
const LIST: Duration = Duration::from_secs(2);
/// Time after which a machine whose recorder has failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Time between two measurements of costs.
const MEASURE: Duration = Duration::from_secs(30);
/// Recorders that start at the same time: finding a kernel takes some tenths of a second of CPU.
const STARTS: usize = 4;
/// Time after the begin of a window within which its recorders take over from those of the window before,
/// less than they record beyond it.
const TAKE_OVER: Duration = Duration::from_secs(25);
/// A window that begins within this time follows the last one.
const SOON: Duration = Duration::from_secs(1);
/// Smallest limit of a recording's size, bytes.
const LEAST_SIZE: u64 = 8 << 20;
/// Sentences that are known to be printed, at most.
const MOST_PRINTED: usize = 1_000;
/// The least rate of `vprof attach`, ticks per second and vCPU.
const LEAST_HZ: f64 = 0.1;
/// Time limit for the ends of recorders when the agent ends; they end by themselves then.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn command(args: &AgentArgs) -> Result<ExitCode, Error> {
    attach::capabilities::raise_tracing()
        .map_err(|source| Error::System { action: "use the right to trace", source })?;
    let mut agent = Agent::new(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    let mut again = false;
    let ended = runtime.block_on(async {
        let failed = |source| Error::System { action: "wait for signals", source };
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        let mut checks = tokio::time::interval(CHECK);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = checks.tick() => {
                    if let Some(code) = agent.check()? {
                        return Ok(code);
                    }
                }
                _ = terminate.recv() => agent.end(),
                _ = interrupt.recv() => agent.end(),
                _ = hangup.recv() => {
                    // One that says that the terminal has gone ends the agent.
                    again = !io::stdin().is_terminal();
                    agent.end();
                }
            }
        }
    });
    match ended {
        Ok(_) if again => Err(start_again()),
        ended => ended,
    }
}

/// Replaces this process by the program as it is now, with the same arguments and the settings as they are
/// now. Returns the reason if that fails. Descriptors close, and the next agent finds the spool.
fn start_again() -> Error {
    let mut words = std::env::args_os();
    let source = match words.next() {
        Some(program) => Command::new(program).args(words).exec(),
        None => io::ErrorKind::NotFound.into(),
    };
    Error::System { action: "start the agent again", source }
}

/// Runs the command `agent-window`.
pub fn send_window(args: &AgentWindowArgs) -> Result<ExitCode, Error> {
    sink::command(args)
}

/// Keeps credentials for sinks from a process that reads what guests have made.
fn without_secrets(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_secret = |name: &str| sinks::SECRET_VARIABLES.iter().any(|begin| name.starts_with(begin));
        if name.to_str().is_some_and(is_secret) {
            command.env_remove(name);
        }
    }
}

/// A window that is being recorded.
#[derive(Debug)]
struct OpenWindow {
    spooled: SpooledWindow,
    begin: Instant,
    /// Its end.
    deadline: Instant,
}

#[derive(Debug)]
struct Agent<'a> {
    args: &'a AgentArgs,
    host: String,
    boot_id: String,
    group: String,
    spool: Spool,
    clock: WindowClock,
    window: Option<OpenWindow>,
    /// No window begins before.
    not_before: Instant,
    machines: Vec<KnownMachine>,
    listed: Option<Instant>,
    recorders: Vec<Recorder>,
    /// Machines whose recorder has failed, by identity: when they are tried again.
    failed: HashMap<String, Instant>,
    /// Sentences on machines that were printed, once each.
    printed: HashSet<String>,
    sinks: Vec<Sink>,
    costs: Costs,
    counters: AgentCounters,
    shared: SharedCounters,
    ending: Option<Instant>,
}

/// Costs of sampling, and what they allow.
#[derive(Debug)]
struct Costs {
    /// When and with how much CPU time the present measurement began.
    begin: (Instant, u64),
    /// CPU time that the agent may take, a part of all CPUs.
    budget: f64,
    host: RateFactor,
    /// By identity of the machine.
    guests: HashMap<String, RateFactor>,
}

impl<'a> Agent<'a> {
    fn new(args: &'a AgentArgs) -> Result<Self, Error> {
        let locks = place::directory();
        place::make_directory(&locks).map_err(|error| Error::file("make the directory", &locks, error))?;
        let spool = Spool::open(&args.spool, &locks.join("agent.lock"))?;
        let mut sinks: Vec<Sink> = Vec::with_capacity(args.to.len());
        for address in &args.to {
            if !sinks.iter().any(|sink| sink.address == *address) {
                sinks.push(Sink::new(address.clone())?);
            }
        }
        let shared = SharedCounters::default();
        if let Some(address) = args.metrics {
            let own = metrics::serve(address, SharedCounters::clone(&shared))?;
            eprintln!("vprof: counters are at http://{own}/metrics");
        }
        let mut group = args.label.clone();
        group.sort_unstable();
        let now = Instant::now();
        let budget = args.budget.unwrap_or_else(|| default_budget(host_cpus()));
        let costs = Costs {
            begin: (now, recorder::cpu_ns(std::process::id())),
            budget,
            host: RateFactor::new(budget),
            guests: HashMap::new(),
        };
        let mut agent = Self {
            args,
            host: hostname().unwrap_or_else(|| "localhost".to_owned()),
            boot_id: identity::host_boot_id(),
            group: group.join(","),
            clock: WindowClock::new(args.window, spool.state.last_end_ns),
            spool,
            window: None,
            not_before: now,
            machines: Vec::new(),
            listed: None,
            recorders: Vec::new(),
            failed: HashMap::new(),
            printed: HashSet::new(),
            sinks,
            costs,
            counters: AgentCounters::default(),
            shared,
            ending: None,
        };
        agent.adopt()?;
        Ok(agent)
    }

    /// Has windows sent that are over, and that an earlier agent has left.
    fn adopt(&mut self) -> Result<(), Error> {
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
                eprintln!("vprof: the window {} of an earlier agent is written now", window.name());
            }
            self.remove_done(&spooled)?;
        }
        Ok(())
    }

    /// True if a window is being recorded.
    fn is_recorded(&self, directory: &Path) -> bool {
        let is_open = self.window.as_ref().is_some_and(|window| window.spooled.directory == directory);
        is_open || self.recorders.iter().any(|recorder| recorder.plan.window == directory)
    }

    /// True if a window is being recorded or sent.
    fn is_busy(&self, directory: &Path) -> bool {
        self.is_recorded(directory) || self.sinks.iter().any(|sink| sink.is_running(directory))
    }

    /// Ends the window, and then the agent. The second request does not wait.
    fn end(&mut self) {
        let limit = if self.ending.is_some() { Duration::ZERO } else { END_LIMIT };
        self.ending = Some(Instant::now() + limit);
        self.close_window();
        self.recorders.iter_mut().for_each(Recorder::stop);
    }

    /// Does what is due. Returns the exit code once the agent has ended.
    fn check(&mut self) -> Result<Option<ExitCode>, Error> {
        let now = Instant::now();
        self.reap();
        self.follow_window(now)?;
        self.hand_over(now);
        if self.listed.is_none_or(|listed| now >= listed + LIST) && self.ending.is_none() {
            self.machines = identity::machines(&self.boot_id, &self.group);
            let names = &self.args.name;
            let is_wanted =
                |name: &str| names.is_empty() || names.iter().any(|wanted| is_called(name, wanted));
            self.machines.retain(|machine| is_wanted(&machine.vm.name));
            self.listed = Some(now);
            self.failed.retain(|id, _| self.machines.iter().any(|machine| machine.vm.id == *id));
            self.adopt()?;
            self.limit_spool()?;
        }
        self.start_recorders(now)?;
        self.send_windows(now)?;
        if now >= self.costs.begin.0 + MEASURE {
            self.measure(now);
        }
        self.publish();
        Ok(self.exit_code(now))
    }

    /// Returns the exit code if all is done.
    fn exit_code(&self, now: Instant) -> Option<ExitCode> {
        let limit = self.ending?;
        let busy = !self.recorders.is_empty() || self.sinks.iter().any(|sink| sink.running().is_some());
        if (busy || self.sinks.iter().any(|sink| sink.is_ready(now))) && now < limit {
            return None;
        }
        // What is left is sent by the next agent.
        let left = busy || self.sinks.iter().any(Sink::is_behind);
        Some(if left { ExitCode::Failed } else { ExitCode::Done })
    }

    /// Begins and ends windows.
    fn follow_window(&mut self, now: Instant) -> Result<(), Error> {
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
                    eprintln!(
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
    fn close_window(&mut self) {
        let Some(OpenWindow { spooled, deadline, .. }) = self.window.take() else { return };
        // A window that an agent leaves in its middle may be continued by the next one.
        if Instant::now() >= deadline {
            self.clock.ended(spooled.window.start_unix_ns);
            self.spool.state.last_end_ns = self.clock.last_end_ns();
            if let Err(error) = self.spool.save() {
                eprintln!("vprof: {error}");
            }
        }
        self.sinks.iter_mut().for_each(|sink| sink.add(&spooled));
    }

    /// Ends recorders of earlier windows: those that another one is ready to take over from, so that nothing
    /// is missed between the two, and those that no other one follows.
    fn hand_over(&mut self, now: Instant) {
        let is_followed = match &self.window {
            Some(window) => now < window.begin + TAKE_OVER,
            // Two clocks may differ by some ms at the end of a window.
            None => self.ending.is_none() && self.not_before < now + SOON,
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

    /// Takes note of recorders that have ended.
    fn reap(&mut self) {
        let mut ends = Vec::new();
        self.recorders.retain_mut(|recorder| match recorder.ended() {
            Ok(None) => true,
            Ok(Some(ended)) => {
                ends.push((recorder.plan.clone(), ended));
                false
            }
            Err(error) => {
                eprintln!("vprof: cannot wait for a recorder: {}", text::message::Reason(&error));
                false
            }
        });
        for (plan, ended) in ends {
            self.ended(&plan, &ended);
        }
    }

    fn ended(&mut self, plan: &RecorderPlan, ended: &EndedRecorder) {
        let mut vm = plan.vm.clone();
        (vm.agent_cpu_ns, vm.agent_memory_bytes) = (ended.cpu_ns, ended.memory_bytes);
        let window = spool::spooled(&plan.window);
        if let Some(Err(error)) = window.map(|window| window.write_vm(&plan.profile, &vm)) {
            eprintln!("vprof: {error}");
        }
        // Where it was ended before its first sample, there is nothing to report.
        if ended.status.success() || ended.stopped {
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
        let reason = if ended.words.is_empty() { ended.status.to_string() } else { ended.words.clone() };
        let sentence = format!("{} (process {}): {}", escaped(&plan.vm.name), plan.pid, escaped(&reason));
        if self.printed.len() >= MOST_PRINTED {
            self.printed.clear();
        }
        if self.printed.insert(sentence.clone()) {
            eprintln!("vprof: {sentence}; it is tried again every {}", units::duration(AGAIN));
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
    fn start_recorders(&mut self, now: Instant) -> Result<(), Error> {
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
                rate_hz: self.costs.rate_of(&machine.vm.id, self.args.rate),
                rest,
                max_size: share.max(LEAST_SIZE),
                engine: self.args.engine,
                takes_over: self.recorders_of(&machine.vm.id).next().is_some(),
            };
            let recorder = Recorder::start(plan);
            started.push(recorder.map_err(|source| Error::System { action: "start vprof attach", source })?);
        }
        self.recorders.extend(started);
        Ok(())
    }

    /// Sends windows whose recorders have ended: to each sink one after the other.
    fn send_windows(&mut self, now: Instant) -> Result<(), Error> {
        let failed = |source| Error::System { action: "wait for vprof agent-window", source };
        let recorded: Vec<PathBuf> =
            self.recorders.iter().map(|recorder| recorder.plan.window.clone()).collect();
        let mut ended = Vec::new();
        for sink in &mut self.sinks {
            if let Some((window, totals)) = sink.ended(now).map_err(failed)? {
                match totals {
                    Some(totals) => eprintln!("vprof: {}", sink.sentence(&window, totals)),
                    None => {
                        let (name, address) = (window.window.name(), &sink.address);
                        let again = sink.not_before().saturating_duration_since(now).as_secs();
                        eprintln!("vprof: {name} stays in the spool: {address} is tried again in {again} s");
                    }
                }
                ended.push((window, totals));
            }
            sink.start(now, |path| recorded.iter().any(|recorded| recorded == path))?;
        }
        for (window, totals) in ended {
            match totals {
                Some(totals) => self.sent(&window, totals)?,
                None => self.counters.failed += 1,
            }
        }
        Ok(())
    }

    /// Takes note of a window that a sink has.
    fn sent(&mut self, window: &SpooledWindow, totals: sink::SentTotals) -> Result<(), Error> {
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
        window.remove()
    }

    /// Drops the oldest windows if the spool is too large.
    fn limit_spool(&mut self) -> Result<(), Error> {
        let windows = self.spool.windows();
        let busy: HashSet<PathBuf> = windows
            .iter()
            .map(|window| window.directory.clone())
            .filter(|directory| self.is_busy(directory))
            .collect();
        for window in self.spool.drop_beyond(self.args.spool_limit, |path| busy.contains(path))? {
            self.counters.dropped += 1;
            let (name, limit) = (window.window.name(), units::bytes(self.args.spool_limit));
            eprintln!(
                "vprof: the window {name} is dropped: the spool is larger than {limit} (--spool-limit)"
            );
            self.sinks.iter_mut().for_each(|sink| sink.drop_window(&window));
        }
        self.counters.spool_bytes = self.spool.bytes();
        Ok(())
    }

    /// Measures costs, and adapts rates to the budgets.
    fn measure(&mut self, now: Instant) {
        let cpu_ns = recorder::cpu_ns(std::process::id());
        let (began, before_ns) = std::mem::replace(&mut self.costs.begin, (now, cpu_ns));
        let elapsed_ns = now.duration_since(began).as_nanos() as f64 * host_cpus() as f64;
        let share = cpu_ns.saturating_sub(before_ns) as f64 / elapsed_ns.max(1.0);
        self.counters.cpu_share = share;
        // Attaching to all machines costs more than recording them, and does not depend on the rate.
        let attached = self.window.as_ref().is_none_or(|window| window.begin >= began);
        if !attached && self.costs.host.adapt(share) {
            let rate = units::rate(self.args.rate * self.costs.host.get());
            let least = if self.costs.host.is_least() { ", the least" } else { "" };
            eprintln!(
                "vprof: own CPU time is {} of the host's (--budget {}): the rate is {rate}{least}",
                percent(share),
                percent(self.costs.budget)
            );
        }
        self.costs.guests.retain(|id, _| self.machines.iter().any(|machine| machine.vm.id == *id));
        for recorder in &mut self.recorders {
            let vm = &recorder.plan.vm;
            if let Some(stopped) = recorder.stopped_share() {
                let budget = RateFactor::new(self.args.guest_budget);
                let factor = self.costs.guests.entry(vm.id.clone()).or_insert(budget);
                if factor.adapt(stopped) {
                    let rate = self.args.rate * factor.get();
                    eprintln!(
                        "vprof: {} is stopped for {} of its time (--guest-budget {}): its rate is at most {}",
                        escaped(&vm.name),
                        percent(stopped),
                        percent(self.args.guest_budget),
                        units::rate(rate)
                    );
                }
            }
            let rate = self.costs.rate_of(&vm.id, self.args.rate);
            // One that has ended, or has just begun, takes its rate at the next time.
            let _taken = recorder.set_rate(rate);
        }
    }

    fn publish(&mut self) {
        self.counters.sinks = self.sinks.iter().map(Sink::counters).collect();
        self.counters.vms = self.machines.len() as u64;
        let recorded: HashSet<&str> =
            self.recorders.iter().map(|recorder| recorder.plan.vm.id.as_str()).collect();
        self.counters.recorded = recorded.len() as u64;
        self.counters.cpu_ns = self.costs.begin.1;
        self.counters.rate_hz = self.args.rate * self.costs.host.get();
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = self.counters.clone();
    }
}

impl Costs {
    /// Returns the rate of a machine, ticks per second and vCPU.
    fn rate_of(&self, vm: &str, requested: f64) -> f64 {
        let guest = self.guests.get(vm).map_or(1.0, RateFactor::get);
        (requested * self.host.get().min(guest)).max(LEAST_HZ)
    }
}

/// Returns the number of CPUs of this host.
fn host_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Formats a small part.
fn percent(part: f64) -> String {
    format!("{:.3} %", part * 100.0)
}
