//! `vprof agent`: profiles all virtual machines of a host all the time.
//!
//! ```text
//!            every 2 s: machines
//!  vprof agent ──▶ vprof agent-recorders ──▶ recorders, one for each machine, until the end of the window
//!      │               └─▶ SPOOL/WINDOW/VM-0.vprof
//!      │  for each sink, the oldest window that it does not have
//!      └─────────▶ vprof agent-window SPOOL/WINDOW ──▶ DIR/v1/TABLE/day=.../hour=.../WINDOW.parquet
//!                      ├─▶ vprof agent-window --stage ──▶ SPOOL/WINDOW/TABLE.parquet, VM-0.00000.otlp.gz
//!                      └─▶ an object store or a receiver of OpenTelemetry profiles
//! ```
//!
//! The agent itself reads no byte of a guest and no recording: it lists machines, and starts and ends
//! processes. Each recorder does what `vprof attach` does, with its sandboxes; the process that reads the
//! recordings of a window ends with it, and so does the one that has credentials for sinks.

mod budget;
mod convert;
pub mod forker;
mod identity;
mod metrics;
mod recorder;
mod recorders;
mod send;
mod sink;
mod spool;
mod window;
mod windows;

use std::collections::{HashMap, HashSet};
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use control::place;
use display::clean::escaped;
use display::units;
use profile::report::is_called;
use tokio::signal::unix::{SignalKind, signal};
use upload::SinkAddress;

use crate::args::{AgentArgs, AgentWindowArgs, hostname};
use crate::errors::{Error, ExitCode};
use budget::{RateFactor, default_budget};
use forker::RecorderForker;
use identity::KnownMachine;
use metrics::{AgentCounters, SharedCounters};
use recorder::Recorder;
use sink::Sink;
use spool::{Spool, SpooledWindow};
use window::WindowClock;

/// Time between two checks of everything.
const CHECK: Duration = Duration::from_millis(100);
/// Time between two listings of machines.
const LIST: Duration = Duration::from_secs(2);
/// A step that may fail.
const FORKER: &str = "start the process of recorders";
/// Time between two measurements of costs.
const MEASURE: Duration = Duration::from_secs(30);
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
    let run = async {
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
    };
    let ended = runtime.block_on(host::resident::trimmed_while(run, || {}));
    // Waits for the process of recorders, which is not a child of the next program.
    drop(agent);
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
        let is_secret = |name: &str| upload::SECRET_VARIABLES.iter().any(|begin| name.starts_with(begin));
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
    forker: RecorderForker,
    /// When that process was started.
    forked: Instant,
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
        let failed = |source| Error::System { action: FORKER, source };
        let forker = RecorderForker::start().map_err(failed)?;
        let locks = place::directory();
        place::make_directory(&locks).map_err(|error| Error::file("make the directory", &locks, error))?;
        let mut spool = Spool::open(&args.spool, &locks.join("agent.lock"))?;
        let mut sinks: Vec<Sink> = Vec::with_capacity(args.to.len());
        for address in &args.to {
            if !sinks.iter().any(|sink| sink.address == *address) {
                sinks.push(Sink::new(address.clone())?);
            }
        }
        let lakes = sinks.iter().filter(|sink| !matches!(sink.address, SinkAddress::Otlp(_)));
        spool.set_lakes(lakes.map(|lake| sink::progress_name(&lake.address)).collect())?;
        let shared = SharedCounters::default();
        if let Some(address) = args.metrics {
            let own = metrics::serve(address, SharedCounters::clone(&shared))?;
            display::stderr_line!("vprof: counters are at http://{own}/metrics");
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
            forker,
            forked: now,
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
        if self.ending.is_none() {
            self.keep_forker(now)?;
        }
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
            display::stderr_line!(
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
                    display::stderr_line!(
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
