//! Parts that `vprof run` and `vprof attach` have in common: everything around a guest that is profiled, from
//! the check of the output to the summary.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use control::Phase;
use control::server::{self, Server};
use display::message::{Reason, Shown};
use host::link::{BytesRead, ConsolePump, ConsoleReader, Link, Watcher, link};
use host::protocol::OutputStream;
use host::spec::Outcome;
use profile::live;
use sampler::PrecisionStatus;
use statistics::estimate;
use symbols::names::DebugFiles;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::screen::{ConsoleTarget, ProgressMode, RunScreen};
use super::{output, serial};
use crate::args::{RecordingArgs, file_identity};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::ignore_closed_pipe;
use crate::top::{self, own_run::ViewThread};
use crate::{report, symbolize};
use tui::terminal::{ESCAPE, KeyReader, RawMode};

/// Time limit for writing the console's last output.
const CONSOLE_LIMIT: Duration = Duration::from_secs(2);
/// Interval of the checks for the end of a command's output.
const OUTPUT_CHECK: Duration = Duration::from_millis(5);
/// Number of console lines that an error shows.
const LAST_LINES: usize = 10;

/// Source of the guest's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    None,
    /// A person types: raw mode, and a key that ends the run.
    Terminal,
    /// A file or a pipe.
    Stream,
}

/// A seed that a person can type: 32 bits.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // std seeds its hash maps from the kernel's random numbers.
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// A recording whose options are sound.
pub struct Recording<'a> {
    args: &'a RecordingArgs,
    places: Option<DebugFiles>,
}

/// Destinations of a guest's two streams.
pub struct Streams {
    /// Its console.
    pub console: ConsoleTarget,
    /// Source of the console's input.
    pub keys: KeySource,
    /// Output of a command that does not go to the console. Its errors go to standard error where this is
    /// standard output.
    pub output: ConsoleTarget,
}

/// Screens of the two streams.
struct Screens {
    console: Arc<RunScreen>,
    output: Arc<RunScreen>,
    /// A command's errors are shown.
    errors: bool,
    /// The guest has them.
    has_streams: bool,
}

/// Result of a recording.
#[derive(Debug)]
pub struct Recorded {
    /// End of the guest, and totals of the recording.
    pub outcome: Outcome,
    /// The console's last lines.
    pub last_lines: Vec<String>,
    /// Somebody ended it.
    pub interrupted: bool,
    /// Standard output carries the console.
    pub console_on_stdout: bool,
    /// It carries that, or the output of a command.
    stdout_taken: bool,
    places: Option<DebugFiles>,
}

impl<'a> Recording<'a> {
    /// Looks at everything that can be wrong before there is a guest.
    pub fn prepare(args: &'a RecordingArgs) -> Result<Self, Error> {
        if args.until_precision.is_some() && !estimate::trustworthy(args.clock) {
            return Err(UsageError::FixedClock.into());
        }
        if args.top {
            top::check()?;
        }
        output::check(args)?;
        Ok(Self { args, places: symbolize::named_places(&args.debug)? })
    }

    /// Runs what `start` begins to its end, with its console, its progress and its control socket. `image` is
    /// what it is called. The console of a guest without `streams` is another's.
    pub fn record<F: Future<Output = Result<Outcome, Error>>>(
        self,
        image: String,
        streams: Option<Streams>,
        start: impl FnOnce(Link, live::SharedTables) -> F,
    ) -> Result<Recorded, Error> {
        let args = self.args;
        let has_streams = streams.is_some();
        let Streams { console, keys, output } = streams.unwrap_or(Streams {
            console: ConsoleTarget::None,
            keys: KeySource::None,
            output: ConsoleTarget::None,
        });
        let console_on_stdout = matches!(console, ConsoleTarget::Stdout);
        let output_on_stdout = matches!(output, ConsoleTarget::Stdout);
        let progress = if args.quiet || args.top {
            ProgressMode::Off
        } else if keys == KeySource::Terminal || (output_on_stdout && io::stdout().is_terminal()) {
            // The terminal is the guest's as soon as it runs, or a command's with its first word.
            ProgressMode::UntilGuest
        } else if io::stderr().is_terminal() {
            ProgressMode::Live
        } else if args.verbose {
            ProgressMode::Lines
        } else {
            ProgressMode::Off
        };
        let screens = Screens {
            // Two streams on one terminal can't both be kept apart from a live line.
            output: Arc::new(RunScreen::new(output, ProgressMode::Off)),
            console: Arc::new(RunScreen::new(console, progress)),
            errors: output_on_stdout,
            has_streams,
        };
        let before = file_identity(&args.output);
        let outcome = run_to_end(args, image, (&screens, keys), start);
        let (outcome, last_lines, interrupted) = match outcome {
            Ok(ended) => ended,
            Err(error) => {
                screens.console.close();
                // Whether it stays is the writer's decision.
                if !args.quiet && file_identity(&args.output).is_some_and(|found| Some(found) != before) {
                    display::stderr_line!("vprof: {} has what was recorded until then", Shown(&args.output));
                }
                return Err(error);
            }
        };
        for (screen, whose) in [(&screens.console, "console"), (&screens.output, "command")] {
            if let Some(error) = screen.close() {
                display::stderr_line!("vprof: the {whose}'s output is incomplete: {}", Reason(&error));
            }
        }
        for sentence in &outcome.trouble {
            display::stderr_line!("vprof: {}", display::clean::escaped(sentence));
        }
        Ok(Recorded {
            outcome,
            last_lines,
            interrupted,
            console_on_stdout,
            stdout_taken: console_on_stdout || output_on_stdout,
            places: self.places,
        })
    }
}

impl Recorded {
    /// Adds names from elsewhere and shows the summary; then gives the exit code, where the guest's end is
    /// `code`.
    pub fn conclude(
        mut self,
        args: &RecordingArgs,
        code: impl FnOnce(&Self) -> Result<ExitCode, Error>,
    ) -> Result<ExitCode, Error> {
        let places = self.places.take();
        let named = match places {
            Some(places) => symbolize::add_names(&args.output, &places, args.quiet),
            None => {
                symbolize::add_names_of_servers(&args.output, args.quiet);
                Ok(())
            }
        };
        let summary = named.and_then(|()| summarize(args, self.stdout_taken));
        let code = expect(args, &self.outcome, code(&self)?);
        ignore_closed_pipe(summary).map(|()| code)
    }
}

/// Runs the guest and everything around it; returns with the console's last lines.
fn run_to_end<F: Future<Output = Result<Outcome, Error>>>(
    args: &RecordingArgs,
    image: String,
    (screens, keys): (&Screens, KeySource),
    start: impl FnOnce(Link, live::SharedTables) -> F,
) -> Result<(Outcome, Vec<String>, bool), Error> {
    let screen = &screens.console;
    let runtime =
        control::runtime().map_err(|source| Error::System { action: "start the runtime", source })?;
    let (guest_side, Watcher { stop, input, control, console, output, read, phase, notes }) = link();
    let tables = live::SharedTables::default();
    let run = server::Run {
        image,
        profile: std::path::absolute(&args.output).unwrap_or_else(|_| args.output.clone()),
        tables: tables.clone(),
        phase: phase.clone(),
        control,
        stop: stop.clone(),
    };
    let view = top::own_run::RunHandles {
        tables: tables.clone(),
        phase: phase.clone(),
        control: run.control.clone(),
        stop: stop.clone(),
    };
    let server = {
        let _runtime = runtime.enter();
        serve(args, run)?
    };
    let no_thread = |source| Error::System { action: "start a thread", source };
    // Threads that recordings of the machines of other VMMs, of which a host may have many, do without.
    let pumps = screens.has_streams.then(|| StreamPumps::start(console, output, screens, read));
    let pumps = pumps.transpose().map_err(no_thread)?;
    // Before raw mode: a signal without a handler would end this process and leave the terminal raw.
    let mut signals = {
        let _runtime = runtime.enter();
        Signals::new()?
    };
    let terminal_error = |source| Error::System { action: "use the terminal as console", source };
    let raw = match keys {
        KeySource::Terminal => {
            if !args.quiet {
                display::stderr_line!("vprof: the console takes all keys; Ctrl-] ends the run");
            }
            Some(RawMode::enter().map_err(terminal_error)?)
        }
        _ => None,
    };
    let escape = raw.is_some().then_some(ESCAPE);
    let reader = match keys {
        KeySource::None => None,
        _ => Some(KeyReader::start(input, stop.clone(), escape).map_err(terminal_error)?),
    };
    let view = show(args, view, screen)?;
    let outcome = runtime.block_on(async {
        let run = start(guest_side, tables.clone());
        watch(run, &mut signals, &stop, (phase, notes), (screen, &tables), args.quiet).await
    });
    let interrupted = *stop.borrow();
    drop(server);
    drop(reader);
    drop(raw);
    // A run that the user has ended needs no second key.
    let stays = outcome.is_ok() && !interrupted;
    if let Some(failed) = view.and_then(|view| view.finish(stays)) {
        display::stderr_line!("vprof: there was no live view: {failed}");
    }
    screen.release();
    let mut last_lines = Vec::new();
    if let Some(StreamPumps { console, command }) = pumps {
        last_lines = console.last_lines(LAST_LINES);
        finish_console(console, screen, "console");
        if stays {
            runtime.block_on(wait_for_readers(&command, &mut signals));
        }
        command.into_iter().for_each(|pump| finish_console(pump, screen, "command"));
    }
    outcome.map(|outcome| (outcome, last_lines, interrupted))
}

/// Threads that write the console, and the two streams of a command.
struct StreamPumps {
    console: ConsolePump,
    command: [ConsolePump; 2],
}

impl StreamPumps {
    fn start(
        console: ConsoleReader,
        command: [ConsoleReader; 2],
        screens: &Screens,
        read: tokio::sync::watch::Sender<BytesRead>,
    ) -> io::Result<Self> {
        let [output, errors] = command;
        let screen = Arc::clone(&screens.console);
        let console = console.pump(move |bytes| screen.console(bytes))?;
        let reported = read.clone();
        let screen = Arc::clone(&screens.output);
        let output = output.pump(move |bytes| {
            screen.console(bytes);
            reported.send_modify(|read| read[OutputStream::Output.index()] += bytes.len() as u64);
        })?;
        let (screen, shown) = (Arc::clone(&screens.console), screens.errors);
        let errors = errors.pump(move |bytes| {
            if shown {
                screen.errors(bytes);
            }
            read.send_modify(|read| read[OutputStream::Errors.index()] += bytes.len() as u64);
        })?;
        Ok(Self { console, command: [output, errors] })
    }
}

/// Waits until all output of a command is written, or for a signal: a reader such as a pager may take its
/// time.
async fn wait_for_readers(command: &[ConsolePump], signals: &mut Signals) {
    while !command.iter().all(ConsolePump::is_finished) {
        tokio::select! {
            () = tokio::time::sleep(OUTPUT_CHECK) => {}
            () = signals.next() => return,
        }
    }
}

fn finish_console(pump: ConsolePump, screen: &RunScreen, whose: &str) {
    let dropped = pump.finish(CONSOLE_LIMIT);
    if dropped > 0 {
        screen.note(&format!(
            "{} of the {whose}'s output were not shown: their reader was too slow",
            display::units::bytes(dropped)
        ));
    }
}

/// Opens the live view, if it is wanted; what there is to say meanwhile is said after it.
fn show(
    args: &RecordingArgs,
    view: top::own_run::RunHandles,
    screen: &RunScreen,
) -> Result<Option<ViewThread>, Error> {
    if !args.top {
        return Ok(None);
    }
    screen.hold();
    Ok(Some(ViewThread::start(view)?))
}

/// Opens the control socket. A run continues without one, unless the user asked for it.
fn serve(args: &RecordingArgs, run: server::Run) -> Result<Option<Server>, Error> {
    let wanted = args.control.as_deref();
    if wanted == Some(Path::new("none")) {
        return Ok(None);
    }
    match (Server::start(wanted, run), wanted) {
        (Ok(server), _) => Ok(Some(server)),
        (Err(error), Some(path)) => Err(Error::file("make the socket", path, error)),
        (Err(error), None) => {
            if args.verbose {
                display::stderr_line!("vprof: no control socket: {}", Reason(&error));
            }
            Ok(None)
        }
    }
}

/// Waits for the run's end, shows its progress, and ends it on a signal.
async fn watch(
    run: impl Future<Output = Result<Outcome, Error>>,
    signals: &mut Signals,
    stop: &tokio::sync::watch::Sender<bool>,
    (mut phase, mut notes): (
        tokio::sync::watch::Receiver<Phase>,
        tokio::sync::mpsc::UnboundedReceiver<String>,
    ),
    (screen, tables): (&RunScreen, &live::SharedTables),
    quiet: bool,
) -> Result<Outcome, Error> {
    tokio::pin!(run);
    let mut stops = 0;
    let mut checks = tokio::time::interval(serial::INTERVAL);
    let mut warns = !quiet;
    let mut phase_open = true;
    loop {
        tokio::select! {
            outcome = &mut run => {
                while let Ok(text) = notes.try_recv() {
                    screen.note(&text);
                }
                return outcome;
            }
            Some(text) = notes.recv() => screen.note(&text),
            _ = checks.tick(), if warns => {
                let warning = serial::warning(&tables.lock());
                if let Some(text) = &warning {
                    screen.note(text);
                }
                // Once is enough.
                warns = warning.is_none();
            }
            () = signals.next() => {
                stops += 1;
                if stops > 1 {
                    // Dropping the run ends the machine at once.
                    return Err(Error::Interrupted);
                }
                if !quiet {
                    screen.note("stopping the run; press Ctrl-C again to abort it");
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
fn summarize(args: &RecordingArgs, console_on_stdout: bool) -> Result<(), Error> {
    if args.json {
        return report::print_json(&args.output);
    }
    if args.quiet {
        return Ok(());
    }
    report::print_summary(&args.output, console_on_stdout)?;
    let path = Shown(&args.output);
    display::stderr_line!("vprof: the profile is in {path}; `vprof report {path}` shows this again");
    if args.older.is_some() {
        display::stderr_line!("vprof: the one before is in {}", Shown(&output::older_name(&args.output)));
    }
    Ok(())
}

/// Reports a precision that was not reached. The code of a command that failed has precedence.
fn expect(args: &RecordingArgs, outcome: &Outcome, code: ExitCode) -> ExitCode {
    // Reported when the guest had ended.
    let code = if code == ExitCode::Done && !outcome.trouble.is_empty() { ExitCode::Failed } else { code };
    let seen = outcome.totals.seen;
    if let Some(start) = args.start_when.as_ref().filter(|_| seen.start_ns.is_none()) {
        let start = display::clean::escaped(&start.to_string()).into_owned();
        display::stderr_line!(
            "vprof: the run ended before {start} was seen (--start-when): nothing was sampled"
        );
        return if code == ExitCode::Done { ExitCode::Expectation } else { code };
    }
    if let Some(stop) = args.stop_when.as_ref().filter(|_| seen.stop_ns.is_none() && !args.quiet) {
        let stop = display::clean::escaped(&stop.to_string()).into_owned();
        display::stderr_line!(
            "vprof: the run ended before {stop} was seen (--stop-when): it was sampled to its end"
        );
    }
    let Some(missed) =
        args.until_precision.and_then(|wanted| missed(wanted, outcome.totals.precision.as_ref()))
    else {
        return code;
    };
    display::stderr_line!("vprof: {missed}");
    if code == ExitCode::Done { ExitCode::Expectation } else { code }
}

/// Returns the sentence on a precision that was not reached.
fn missed(wanted: f64, found: Option<&PrecisionStatus>) -> Option<String> {
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
            display::clean::escaped(&found.name),
            found.share.share * 100.0,
            found.share.distance() * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reached_is_told() {
        let share = estimate::share(300, 1_000);
        let found = |reached| PrecisionStatus {
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
    fn seeds_differ() {
        // By chance they are equal in one of 2^64 runs.
        assert_ne!((random_seed(), random_seed()), (random_seed(), random_seed()));
    }
}
