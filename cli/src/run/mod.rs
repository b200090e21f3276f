//! `vprof run`: boots a guest, profiles it, and says what it saw.

pub mod guest;
pub mod host;
pub mod link;
mod load;
pub mod output;
pub mod repeat;
mod screen;
pub mod spec;
pub mod systemd;
pub mod terminal;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sampler::conditions::Wait;
use sampler::{Precision, ProfileWriter, Sink, estimate, live};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::RunArgs;
use crate::control::{self, server::Server};
use crate::errors::{Error, ExitCode, Reason};
use crate::image::{self, ImageError, Loaded, Payload};
use crate::portable::{PortableError, outer};
use crate::top::{self, own::Beside};
use crate::{report, symbolize};
use host::{Chosen, Host};
use link::{ConsolePump, Link, Watcher, link};
use screen::{ConsoleTarget, Progress, Screen};
use spec::{DiskSpec, GuestEnd, Outcome, RunSpec, Writes};
use systemd::GuestCommand;
use terminal::{ESCAPE, Keys, RawMode};

/// How long the console's last output may take to be written.
const CONSOLE_LIMIT: Duration = Duration::from_secs(2);
/// How many lines of the console an error shows.
const LAST_LINES: usize = 10;

/// Runs the command.
pub fn command(args: &RunArgs) -> Result<ExitCode, Error> {
    match args.repeat {
        Some(times) => repeat::command(args, times),
        None => one(args).map(|run| run.code),
    }
}

/// A run with all that is said of it.
struct One {
    code: ExitCode,
    interrupted: bool,
}

fn one(args: &RunArgs) -> Result<One, Error> {
    let places = symbolize::named_places(&args.debug)?;
    let Ended { outcome, last_lines, interrupted, console_on_stdout, stdout_taken } =
        once(args, args.waits())?;
    let named = places.map_or(Ok(()), |places| symbolize::add_names(&args.output, &places, args.quiet));
    let summary = named.and_then(|()| summarize(args, stdout_taken));
    let code = judge(args, &outcome, &last_lines, console_on_stdout)?;
    let code = expect(args, &outcome, code);
    match summary {
        Err(error) if !error.is_broken_pipe() => Err(error),
        _ => Ok(One { code, interrupted }),
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Ended {
    /// What it came to.
    pub outcome: Outcome,
    /// The console's last lines.
    pub last_lines: Vec<String>,
    /// Somebody ended it.
    pub interrupted: bool,
    /// Standard output carries the console.
    console_on_stdout: bool,
    /// It carries that, or the output of the command.
    stdout_taken: bool,
}

/// Runs a guest once, waiting for `waits`, and records it.
pub fn once(args: &RunArgs, waits: Vec<Wait>) -> Result<Ended, Error> {
    if args.until_precision.is_some() && !estimate::trustworthy(args.clock.into()) {
        return Err(Error::Usage(
            "--until-precision needs a clock with chance: under --clock fixed no interval is valid"
                .to_owned(),
        ));
    }
    if args.top {
        top::terminal::check()?;
    }
    output::check(&args.output, args.force)?;
    let plan = Plan::make(args, waits)?;
    let (console, keys) = console_target(args, plan.spec.command.is_some())?;
    // A command in a guest with systemd has an output of its own, which standard output is for.
    let muted = args.console.as_deref().is_some_and(|place| place == "none");
    let output = match plan.spec.command {
        Some(_) if !args.json && !args.top && !muted => ConsoleTarget::Stdout,
        _ => ConsoleTarget::None,
    };
    let chosen = host::choose(args.host, args.portable_host.as_deref(), args.host_timeout)?;
    if !args.quiet {
        for sentence in plan.choice.iter().chain([&chosen.sentence()]) {
            eprintln!("vprof: {sentence}");
        }
    }
    if matches!(chosen.host, Host::Portable(_)) {
        enough_memory(args.memory)?;
    }
    let console_on_stdout = matches!(console, ConsoleTarget::Stdout);
    let stdout_taken = console_on_stdout || matches!(output, ConsoleTarget::Stdout);
    let progress = match () {
        () if args.quiet || args.top => Progress::Off,
        // The terminal is the guest's as soon as it runs.
        () if keys == KeySource::Terminal => Progress::UntilGuest,
        // So is it a command's with its first word.
        () if matches!(output, ConsoleTarget::Stdout) && io::stdout().is_terminal() => Progress::UntilGuest,
        () if io::stderr().is_terminal() => Progress::Live,
        () if args.verbose => Progress::Lines,
        () => Progress::Off,
    };
    let screens = Screens {
        // Two streams on one terminal can't both be kept apart from a live line.
        output: Arc::new(Screen::new(output, Progress::Off)),
        console: Arc::new(Screen::new(console, progress)),
    };
    let outcome = run_to_end(args, plan, &chosen, &screens, keys);
    let screen = &screens.console;
    let (outcome, last_lines, interrupted) = match outcome {
        Ok(ended) => ended,
        Err(error) => {
            screen.close();
            if is_before_guest(&error) {
                output::remove(&args.output);
            }
            return Err(error);
        }
    };
    for (screen, whose) in [(screen, "console"), (&screens.output, "command")] {
        if let Some(error) = screen.close() {
            eprintln!("vprof: the {whose}'s output is incomplete: {}", Reason(&error));
        }
    }
    if outcome.host_restarts > 0 {
        eprintln!(
            "vprof: the portable host froze early and was started anew, {}",
            crate::render::units::counted(outcome.host_restarts.into(), "time")
        );
    }
    Ok(Ended { outcome, last_lines, interrupted, console_on_stdout, stdout_taken })
}

/// Everything that is known before a host is chosen.
struct Plan {
    spec: RunSpec,
    payload: Payload,
    /// Held open, and with it locked, for the whole run.
    disks: Vec<File>,
    /// What is booted of a disk and why, for people.
    choice: Option<String>,
}

impl Plan {
    fn make(args: &RunArgs, waits: Vec<Wait>) -> Result<Self, Error> {
        let request = image::Request {
            image: &args.image,
            kernel: args.kernel.as_deref(),
            initrd: args.initrd.as_deref(),
        };
        let mut loaded = image::load(request)?;
        let seed = args.seed.unwrap_or_else(random_seed);
        let command = take_command(args, &mut loaded, seed)?;
        let image_disk = loaded.disk_words.as_ref().map(|_| &args.image);
        let disks: Vec<DiskSpec> = image_disk
            .into_iter()
            .chain(&args.disk)
            // The portable host's QEMU runs with the same working directory, but names like `nbd:x` mean something to it
            // that absolute ones do not.
            .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
            .map(|path| DiskSpec::at(path, writes(args)))
            .collect::<Result<_, _>>()?;
        let files = disks.iter().map(DiskSpec::open_locked).collect::<Result<Vec<_>, ImageError>>()?;
        let unit = command.as_ref().map(GuestCommand::cmdline);
        let appended: Vec<&str> = unit.as_deref().into_iter().chain(args.append.as_deref()).collect();
        let cmdline = spec::cmdline(loaded.disk_words.as_deref(), Some(&appended.join(" ")));
        let spec = RunSpec {
            vcpus: args.cpus,
            memory_bytes: args.memory,
            meta: meta(args, &loaded.origin, &cmdline),
            cmdline,
            disks,
            command,
            rate_hz: args.rate,
            clock: args.clock.into(),
            seed,
            stack_depth: usize::from(args.depth),
            exact: args.exact,
            census_hz: args.census,
            until_precision: args.until_precision,
            host_load: args.host_load,
            duration: args.duration,
            waits,
        };
        Ok(Self { spec, payload: loaded.payload, disks: files, choice: loaded.sentence })
    }
}

/// Hands the command after `--`, if there is one, to the guest: by its initrd where that was made for it, else by what
/// is returned.
fn take_command(args: &RunArgs, loaded: &mut Loaded, seed: u64) -> Result<Option<GuestCommand>, ImageError> {
    let words = &args.command;
    if words.is_empty() {
        return Ok(None);
    }
    if image::command::is_taken(&loaded.payload) {
        return image::command::add(&mut loaded.payload, words).map(|()| None);
    }
    if loaded.disk_words.is_none() || loaded.has_systemd == Some(false) {
        return Err(image::command::refuse(&loaded.payload));
    }
    image::command::check_length(words)?;
    Ok(Some(GuestCommand::new(words, seed, writes(args) == Writes::Kept)))
}

/// What becomes of the guest's writes to its disks.
fn writes(args: &RunArgs) -> Writes {
    match () {
        () if args.snapshot => Writes::Discarded,
        () if args.read_only => Writes::Refused,
        () => Writes::Kept,
    }
}

fn meta(args: &RunArgs, kernel_file: &str, cmdline: &str) -> Vec<(String, String)> {
    let words = |words: &[OsString]| words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut rows = vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("image", spec::shown(&args.image)),
        ("kernel_file", kernel_file.to_owned()),
        ("cmdline", cmdline.to_owned()),
        ("memory_bytes", args.memory.to_string()),
        ("snapshot", args.snapshot.to_string()),
    ];
    if !args.command.is_empty() {
        rows.push(("command", words(&args.command)));
    }
    rows.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A seed that a person can type: 32 bits.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // std seeds its hash maps from the kernel's random numbers.
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// Where the guest's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeySource {
    None,
    /// A person types: raw mode, and a key that ends the run.
    Terminal,
    /// A file or a pipe.
    Stream,
}

/// Where the console goes, and where its input comes from. By default it is shown where somebody looks: on a terminal,
/// and for a command whose output is wanted.
///
/// A command with an output of its own leaves the console to whoever asks for it.
fn console_target(args: &RunArgs, own_output: bool) -> Result<(ConsoleTarget, KeySource), Error> {
    let interactive = terminal::is_interactive();
    let wanted = match args.console.as_deref() {
        None if args.json || args.top || own_output => None,
        None if interactive || !args.command.is_empty() => Some(Path::new("-")),
        None => None,
        Some(place) => Some(place),
    };
    match wanted {
        Some(place) if place == "-" || place == "stdout" => {
            if args.top {
                return Err(Error::Usage(
                    "--top and --console - both want the terminal: the view has a pane for the console"
                        .to_owned(),
                ));
            }
            if args.json {
                return Err(Error::Usage(
                    "--json and --console - both want standard output: give --console a file".to_owned(),
                ));
            }
            let keys = match () {
                () if interactive => KeySource::Terminal,
                // A pipe's bytes are read only when the console was asked for by name: a script's own input, say a
                // list that a loop reads, is not the guest's.
                () if args.console.is_some() && !io::stdin().is_terminal() => KeySource::Stream,
                () => KeySource::None,
            };
            Ok((ConsoleTarget::Stdout, keys))
        }
        Some(place) if place != "none" => {
            let file = File::create(place).map_err(|e| Error::file("create", place, e))?;
            Ok((ConsoleTarget::File(file), KeySource::None))
        }
        _ => Ok((ConsoleTarget::None, KeySource::None)),
    }
}

/// The portable host finds out about too little memory only by being killed, so it is asked before.
fn enough_memory(asked: u64) -> Result<(), PortableError> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match host_memory(&text) {
        Some(have) if asked > have => Err(PortableError::Memory { asked, have }),
        _ => Ok(()),
    }
}

/// RAM and swap by `/proc/meminfo`, bytes.
fn host_memory(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find(|l| l.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    kib("MemTotal:")?.checked_add(kib("SwapTotal:").unwrap_or(0))?.checked_mul(1024)
}

/// True where nothing was recorded: the profile would only stand in the way of the next run.
fn is_before_guest(error: &Error) -> bool {
    match error {
        Error::Start(_) | Error::Stopped | Error::Image(_) | Error::Host(_) | Error::File { .. } => true,
        Error::Portable(
            PortableError::Frozen { before_guest, .. } | PortableError::Died { before_guest, .. },
        ) => *before_guest,
        Error::Portable(
            PortableError::Start { .. } | PortableError::Program(_) | PortableError::Inside(_),
        ) => true,
        _ => false,
    }
}

/// What shows the guest's two streams.
struct Screens {
    console: Arc<Screen>,
    /// Output of a command that does not go to the console.
    output: Arc<Screen>,
}

/// Runs the guest and everything around it; returns with the console's last lines.
fn run_to_end(
    args: &RunArgs,
    plan: Plan,
    chosen: &Chosen,
    screens: &Screens,
    keys: KeySource,
) -> Result<(Outcome, Vec<String>, bool), Error> {
    let screen = &screens.console;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    let (guest_side, Watcher { stop, input, control, console, output, phase }) = link();
    let tables = live::Shared::default();
    let run = control::server::Run {
        image: spec::shown(&args.image),
        profile: std::path::absolute(&args.output).unwrap_or_else(|_| args.output.clone()),
        tables: tables.clone(),
        phase: phase.clone(),
        control,
        stop: stop.clone(),
    };
    let view = top::own::Parts {
        tables: tables.clone(),
        phase: phase.clone(),
        control: run.control.clone(),
        stop: stop.clone(),
    };
    let server = serve(args, run)?;
    let no_thread = |source| Error::System { action: "start a thread", source };
    let shown = Arc::clone(screen);
    let pump = console.pump(move |bytes| shown.console(bytes)).map_err(no_thread)?;
    let shown = Arc::clone(&screens.output);
    let output = output.pump(move |bytes| shown.console(bytes)).map_err(no_thread)?;
    // Before raw mode: a signal without a handler would end this process and leave the terminal raw.
    let signals = {
        let _runtime = runtime.enter();
        Signals::new()?
    };
    let terminal_error = |source| Error::System { action: "use the terminal as console", source };
    let raw = match keys {
        KeySource::Terminal => {
            if !args.quiet {
                eprintln!("vprof: the console takes all keys; Ctrl-] ends the run");
            }
            Some(RawMode::enter().map_err(terminal_error)?)
        }
        _ => None,
    };
    let escape = raw.is_some().then_some(ESCAPE);
    let reader = match keys {
        KeySource::None => None,
        _ => Some(Keys::start(input, stop.clone(), escape).map_err(terminal_error)?),
    };
    let view = show(args, view, screen)?;
    let outcome = runtime.block_on(async {
        let run = start(args, plan, chosen, guest_side, &tables);
        watch(run, signals, &stop, phase, screen, args.quiet).await
    });
    let interrupted = *stop.borrow();
    drop(server);
    drop(reader);
    drop(raw);
    if let Some(failed) = view.and_then(Beside::finish) {
        eprintln!("vprof: there was no live view: {failed}");
    }
    screen.release();
    let last_lines = pump.last_lines(LAST_LINES);
    finish_console(pump, screen, "console");
    finish_console(output, screen, "command");
    outcome.map(|outcome| (outcome, last_lines, interrupted))
}

fn finish_console(pump: ConsolePump, screen: &Screen, whose: &str) {
    let dropped = pump.finish(CONSOLE_LIMIT);
    if dropped > 0 {
        screen.note(&format!(
            "{} of the {whose}'s output were not shown: their reader was too slow",
            crate::render::units::bytes(dropped)
        ));
    }
}

/// Opens the live view, if it is wanted; what there is to say meanwhile is said after it.
fn show(args: &RunArgs, view: top::own::Parts, screen: &Screen) -> Result<Option<Beside>, Error> {
    if !args.top {
        return Ok(None);
    }
    screen.hold();
    Ok(Some(Beside::start(view)?))
}

/// Opens the control socket. A run that nobody asked to have one goes on without.
fn serve(args: &RunArgs, run: control::server::Run) -> Result<Option<Server>, Error> {
    let wanted = args.control.as_deref();
    if wanted == Some(Path::new("none")) {
        return Ok(None);
    }
    match (Server::start(wanted, run), wanted) {
        (Ok(server), _) => Ok(Some(server)),
        (Err(error), Some(path)) => Err(Error::file("make the socket", path, error)),
        (Err(error), None) => {
            if args.verbose {
                eprintln!("vprof: no control socket: {}", Reason(&error));
            }
            Ok(None)
        }
    }
}

/// Runs the guest on the chosen host.
async fn start(
    args: &RunArgs,
    plan: Plan,
    chosen: &Chosen,
    link: Link,
    tables: &live::Shared,
) -> Result<Outcome, Error> {
    let Plan { mut spec, payload, disks, choice: _ } = plan;
    spec.meta.push(("host".to_owned(), chosen.name().to_owned()));
    spec.meta.push(("host_reason".to_owned(), chosen.why.clone()));
    let create = |force| -> Result<Box<dyn Sink>, Error> {
        // What a host has told that was started anew counts no more.
        *tables.lock() = live::Tables::default();
        let writer = ProfileWriter::create(&args.output, force)?;
        Ok(Box::new(live::LiveSink::new(Box::new(writer), tables.clone())))
    };
    match &chosen.host {
        Host::Kvm => guest::run(&spec, disks, payload, create(args.force)?, link).await,
        Host::Portable(setup) => {
            let outcome =
                outer::run(setup, &spec, payload, link, |restarts| create(args.force || restarts > 0)).await;
            // Only now may another vprof have the disks.
            drop(disks);
            outcome
        }
    }
}

/// Waits for the run's end, shows its progress, and ends it on a signal.
async fn watch(
    run: impl Future<Output = Result<Outcome, Error>>,
    mut signals: Signals,
    stop: &tokio::sync::watch::Sender<bool>,
    mut phase: tokio::sync::watch::Receiver<link::Phase>,
    screen: &Screen,
    quiet: bool,
) -> Result<Outcome, Error> {
    tokio::pin!(run);
    let mut stops = 0;
    let mut phase_open = true;
    loop {
        tokio::select! {
            outcome = &mut run => return outcome,
            () = signals.next() => {
                stops += 1;
                if stops > 1 {
                    // Dropping the run ends the machine at once.
                    return Err(Error::Interrupted);
                }
                if !quiet {
                    screen.note("ending the run; once more to give it up");
                }
                stop.send_replace(true);
            }
            changed = phase.changed(), if phase_open => match changed {
                Ok(()) => screen.progress(&phase.borrow_and_update().clone()),
                Err(_) => phase_open = false,
            },
        }
    }
}

/// The signals that end a run.
struct Signals([Signal; 4]);

impl Signals {
    fn new() -> Result<Self, Error> {
        let listen =
            |kind| signal(kind).map_err(|source| Error::System { action: "wait for signals", source });
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::quit())?,
        ]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup, quit] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

/// Prints the summary. Where standard output carries the console, it goes to standard error.
fn summarize(args: &RunArgs, console_on_stdout: bool) -> Result<(), Error> {
    if args.json {
        return report::print_json(&args.output);
    }
    if args.quiet {
        return Ok(());
    }
    report::print_summary(&args.output, console_on_stdout)?;
    eprintln!(
        "vprof: the profile is in {0}; `vprof report {0}` shows this again",
        crate::errors::Shown(&args.output)
    );
    Ok(())
}

/// Turns the end into an exit code.
fn judge(
    args: &RunArgs,
    outcome: &Outcome,
    last_lines: &[String],
    console_shown: bool,
) -> Result<ExitCode, Error> {
    let last = || {
        if console_shown || last_lines.is_empty() {
            String::new()
        } else {
            format!("\nits console's last lines:\n  {}", last_lines.join("\n  "))
        }
    };
    if let Some(error) = &outcome.totals.sink_error {
        return Err(Error::Sink(error.clone()));
    }
    let panicked = last_lines.iter().find(|line| line.contains("Kernel panic - not syncing"));
    match &outcome.end {
        GuestEnd::Failed(reason) => Err(Error::Guest(format!("{reason}{}", last()))),
        GuestEnd::Reset if panicked.is_some() => {
            let line = panicked.map_or("", String::as_str);
            Err(Error::Guest(format!("{line}{}", last())))
        }
        GuestEnd::Exited(code) => match u8::try_from(*code) {
            Ok(0) => Ok(ExitCode::Done),
            Ok(code) => Ok(ExitCode::Guest(code)),
            Err(_) => Err(Error::Guest(format!("it reported the exit status {code}, which is none"))),
        },
        GuestEnd::PowerOff | GuestEnd::Reset if !args.command.is_empty() => {
            Err(Error::Guest(format!("it ended before its command did{}", last())))
        }
        GuestEnd::PowerOff | GuestEnd::Reset | GuestEnd::Stopped => Ok(ExitCode::Done),
    }
}

/// Says so where the precision that was asked for was not reached. A command that failed tells more by its own code.
fn expect(args: &RunArgs, outcome: &Outcome, code: ExitCode) -> ExitCode {
    let seen = outcome.totals.seen;
    if let Some(start) = args.start_when.as_ref().filter(|_| seen.start_ns.is_none()) {
        let start = crate::render::escape(&start.to_string()).into_owned();
        eprintln!("vprof: the run ended before {start} was seen (--start-when): nothing was sampled");
        return if code == ExitCode::Done { ExitCode::Expectation } else { code };
    }
    if let Some(stop) = args.stop_when.as_ref().filter(|_| seen.stop_ns.is_none() && !args.quiet) {
        let stop = crate::render::escape(&stop.to_string()).into_owned();
        eprintln!("vprof: the run ended before {stop} was seen (--stop-when): it was sampled to its end");
    }
    let Some(missed) =
        args.until_precision.and_then(|wanted| missed(wanted, outcome.totals.precision.as_ref()))
    else {
        return code;
    };
    eprintln!("vprof: {missed}");
    if code == ExitCode::Done { ExitCode::Expectation } else { code }
}

/// What was reached instead of the precision that was asked for.
fn missed(wanted: f64, found: Option<&Precision>) -> Option<String> {
    let wanted = format!("{} %", wanted * 100.0);
    let Some(found) = found else {
        return Some(format!(
            "the run ended before its largest share was known to within {wanted}: nothing was sampled"
        ));
    };
    let longer = match found.needed {
        Some(times) => format!("; a run {times:.1} times as long would do"),
        None => String::new(),
    };
    (!found.reached).then(|| {
        format!(
            "the run ended before its largest share was known to within {wanted}: that of {} is {:.2} %, known to \
             within {:.2} %{longer}",
            crate::render::escape(&found.name),
            found.share.share * 100.0,
            found.share.distance() * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_is_ram_and_swap() {
        let text = "MemTotal:       1000 kB\nMemFree: 10 kB\nSwapTotal:  24 kB\n";
        assert_eq!(host_memory(text), Some(1_048_576));
        assert_eq!(host_memory("nonsense"), None);
        assert!(host_memory(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap() > 1 << 20);
    }

    #[test]
    fn what_was_not_reached_is_told() {
        let share = estimate::share(300, 1_000);
        let found = |reached| Precision {
            wanted: 0.01,
            name: "g\x1bzip".to_owned(),
            process: true,
            share,
            reached,
            needed: estimate::needed_for(&share, 0.01),
        };
        assert_eq!(missed(0.01, Some(&found(true))), None);
        assert_eq!(
            missed(0.01, Some(&found(false))).unwrap(),
            "the run ended before its largest share was known to within 1 %: that of g\\x1bzip is 30.00 %, known to \
             within 2.91 %; a run 8.2 times as long would do"
        );
        assert!(missed(0.005, None).unwrap().ends_with("within 0.5 %: nothing was sampled"));
    }

    #[test]
    fn seeds_differ_and_can_be_typed() {
        assert!(random_seed() <= u64::from(u32::MAX));
        assert_ne!((random_seed(), random_seed()), (random_seed(), random_seed()));
    }
}
