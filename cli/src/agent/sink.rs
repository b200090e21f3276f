//! Sinks of an agent. Each has its own place in the spool: one that cannot be reached does not stop the
//! others.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use display::units;
use export::lake::identity;
use serde::{Deserialize, Serialize};
use upload::SinkAddress;

use super::spool::{SpooledWindow, WindowProgress};
use super::{convert, send};
use crate::args::AgentWindowArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_json_line;

/// Time after which a sink that has failed is tried again; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Longest result of a process, bytes.
const LONGEST: u64 = 4 << 10;

/// Result of an attempt to send a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTotals {
    /// Recordings of the window.
    pub profiles: u64,
    /// Of these, recordings that cannot be read.
    pub unreadable: u64,
    /// Samples of the others.
    pub samples: u64,
    /// Samples that were lost while recording.
    pub lost: u64,
    /// Objects or requests that the sink has taken in this attempt.
    pub sent: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Requests that the sink has refused, or of which it has rejected profiles.
    pub refused: u64,
    /// Time after which the sink wants to be asked again, s.
    pub retry_after_s: Option<u64>,
}

impl SentTotals {
    /// Adds the recordings of a window that the sink has.
    pub fn add(&mut self, progress: &WindowProgress) {
        for recording in progress.recordings.values() {
            self.profiles += u64::from(recording.readable);
            self.unreadable += u64::from(!recording.readable);
            self.samples += recording.samples;
            self.lost += recording.lost;
        }
    }

    /// Counts an object or a request.
    pub fn sent(&mut self, bytes: u64) {
        self.sent += 1;
        self.bytes += bytes;
    }

    /// Counts refused requests, and prints the first message about them.
    pub fn refused(&mut self, count: u64, message: &str) {
        if self.refused == 0 {
            display::stderr_line!("vprof: {message}");
        }
        self.refused += count;
    }
}

/// Runs the command `agent-window`: sends the window, and prints the totals.
pub fn command(args: &AgentWindowArgs) -> Result<ExitCode, Error> {
    let Some(window) = super::spool::spooled(&args.window) else {
        let reason = io::Error::new(io::ErrorKind::InvalidData, "it is not a window of a spool");
        return Err(Error::file("read", &args.window, reason));
    };
    if args.stage {
        send::make_files(&window, &args.to)?;
        return Ok(ExitCode::Done);
    }
    let mut totals = SentTotals::default();
    let sent = send::send(&window, &args.to, &mut totals);
    write_json_line(&totals)?;
    Ok(if sent? { ExitCode::Done } else { ExitCode::Failed })
}

/// Returns the name of a sink's progress in the spool.
pub fn progress_name(address: &SinkAddress) -> String {
    identity(&[&address.to_string()])
}

/// Counters of a sink.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SinkCounters {
    /// Its address.
    pub address: String,
    /// Windows that it has as a whole.
    pub windows: u64,
    /// Files, objects or requests that it has taken.
    pub sent: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Attempts that have failed.
    pub failed: u64,
    /// Requests that it has refused.
    pub refused: u64,
    /// Windows that were dropped before it had them.
    pub dropped: u64,
    /// Start of the oldest window that waits, s since 1970.
    pub oldest_unix_s: Option<u64>,
}

/// A sink, and its progress.
#[derive(Debug)]
pub struct Sink {
    /// Its address.
    pub address: SinkAddress,
    /// Counters.
    pub counters: SinkCounters,
    /// Windows that wait, the oldest first: start, ns since 1970, and directory.
    due: BTreeSet<(u64, PathBuf)>,
    /// Windows that it has.
    done: HashSet<PathBuf>,
    running: Option<WindowProcess>,
    /// No attempt begins before.
    not_before: Instant,
    pause: Duration,
    /// The last attempt has failed.
    failed: bool,
}

impl Sink {
    /// Makes a sink, and its directory.
    ///
    /// # Errors
    /// The directory cannot be made, or the settings of a client are wrong.
    pub fn new(address: SinkAddress) -> Result<Self, Error> {
        match &address {
            SinkAddress::Directory(path) => convert::make_lake(path)?,
            // Wrong settings show now, and not at the end of the first window.
            SinkAddress::Bucket(bucket) => drop(upload::ObjectSink::new(bucket, 0)?),
            SinkAddress::Otlp(receiver) => drop(upload::OtlpSink::new(receiver)?),
        }
        Ok(Self {
            counters: SinkCounters { address: address.to_string(), ..SinkCounters::default() },
            address,
            due: BTreeSet::new(),
            done: HashSet::new(),
            running: None,
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
            failed: false,
        })
    }

    /// Has a window sent: it has ended, perhaps once more.
    pub fn add(&mut self, window: &SpooledWindow) {
        self.done.remove(&window.directory);
        self.due.insert(place(window));
    }

    /// Has a window sent that an earlier agent has left, unless the sink has it, or it waits already. Returns
    /// true if it is new.
    ///
    /// # Errors
    /// The window cannot be read.
    pub fn adopt(&mut self, window: &SpooledWindow) -> Result<bool, Error> {
        if self.has(&window.directory)
            || self.is_running(&window.directory)
            || self.due.contains(&place(window))
        {
            return Ok(false);
        }
        if window.is_done(&progress_name(&self.address))? {
            self.done.insert(window.directory.clone());
            return Ok(false);
        }
        Ok(self.due.insert(place(window)))
    }

    /// Forgets a window that is removed, or that continues.
    pub fn forget(&mut self, window: &SpooledWindow) {
        self.due.remove(&place(window));
        self.done.remove(&window.directory);
    }

    /// Forgets a window that is dropped, and counts it if the sink does not have it.
    pub fn drop_window(&mut self, window: &SpooledWindow) {
        self.counters.dropped += u64::from(!self.has(&window.directory));
        self.forget(window);
    }

    /// True if the sink has the window.
    pub fn has(&self, directory: &Path) -> bool {
        self.done.contains(directory)
    }

    /// True if the window is being sent.
    pub fn is_running(&self, directory: &Path) -> bool {
        self.running().is_some_and(|running| running == directory)
    }

    /// Returns the window that is being sent.
    pub fn running(&self) -> Option<&Path> {
        self.running.as_ref().map(|running| running.window.directory.as_path())
    }

    /// True if a window can be sent now.
    pub fn is_ready(&self, now: Instant) -> bool {
        !self.due.is_empty() && self.not_before <= now
    }

    /// True if a window waits, or the last attempt has failed.
    pub fn is_behind(&self) -> bool {
        !self.due.is_empty() || self.failed
    }

    /// Returns the time before which no attempt begins.
    pub fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Starts to send the oldest window that is due and not open.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(&mut self, now: Instant, is_open: impl Fn(&Path) -> bool) -> Result<(), Error> {
        if self.running.is_some() || self.not_before > now {
            return Ok(());
        }
        let Some(next) = self.due.iter().find(|(_, path)| !is_open(path)).cloned() else { return Ok(()) };
        self.due.remove(&next);
        // One that was dropped is not there.
        if let Some(window) = super::spool::spooled(&next.1) {
            self.running = Some(WindowProcess::start(window, &self.address)?);
        }
        Ok(())
    }

    /// Returns the window whose sending has ended, with its totals; without totals if it has failed: then it
    /// is tried again.
    ///
    /// # Errors
    /// The process cannot be waited for.
    pub fn ended(&mut self, now: Instant) -> io::Result<Option<(SpooledWindow, Option<SentTotals>)>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let Some((totals, is_done)) = running.ended()? else { return Ok(None) };
        let Some(WindowProcess { window, .. }) = self.running.take() else { return Ok(None) };
        self.counters.sent += totals.sent;
        self.counters.bytes += totals.bytes;
        self.counters.refused += totals.refused;
        self.failed = !is_done;
        if is_done {
            self.counters.windows += 1;
            self.pause = FIRST_PAUSE;
            self.done.insert(window.directory.clone());
            return Ok(Some((window, Some(totals))));
        }
        self.counters.failed += 1;
        let asked = Duration::from_secs(totals.retry_after_s.unwrap_or(0)).min(LONGEST_PAUSE);
        self.not_before = now + self.pause.max(asked);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.due.insert(place(&window));
        Ok(Some((window, None)))
    }

    /// Returns the counters.
    pub fn counters(&self) -> SinkCounters {
        let running = self.running.as_ref().map(|running| running.window.window.start_unix_ns);
        let oldest_ns = self.due.first().map(|(start_ns, _)| *start_ns).into_iter().chain(running).min();
        SinkCounters { oldest_unix_s: oldest_ns.map(|ns| ns / 1_000_000_000), ..self.counters.clone() }
    }

    /// Returns a sentence on a window that the sink has.
    pub fn sentence(&self, window: &SpooledWindow, totals: SentTotals) -> String {
        let samples = units::counted(totals.samples, "sample");
        let recordings = units::counted(totals.profiles, "recording");
        let unreadable = match totals.unreadable {
            0 => String::new(),
            count => format!(", {} could not be read", units::count(count)),
        };
        let refused = match totals.refused {
            0 => String::new(),
            count => format!(", {} refused or rejected in part", units::counted(count, "request")),
        };
        let (name, address) = (window.window.name(), &self.address);
        format!("{name} has {samples} of {recordings} in {address}{unreadable}{refused}")
    }
}

fn place(window: &SpooledWindow) -> (u64, PathBuf) {
    (window.window.start_unix_ns, window.directory.clone())
}

/// A process that sends a window.
#[derive(Debug)]
struct WindowProcess {
    child: Child,
    window: SpooledWindow,
}

impl WindowProcess {
    /// Starts the process. It ends with this one, whose main thread has to call this: the next agent would
    /// send the same otherwise.
    fn start(window: SpooledWindow, to: &SinkAddress) -> Result<Self, Error> {
        let mut command = send::worker(&window, to);
        if let SinkAddress::Directory(_) = to {
            super::without_secrets(&mut command);
        }
        let child = command.stdout(Stdio::piped()).spawn();
        let child = child.map_err(|source| Error::System { action: "start vprof agent-window", source })?;
        Ok(Self { child, window })
    }

    /// Returns the totals once it has ended, and true if the sink has the window; otherwise the process has
    /// printed a message.
    fn ended(&mut self) -> io::Result<Option<(SentTotals, bool)>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let mut text = Vec::new();
        if let Some(stdout) = self.child.stdout.take() {
            stdout.take(LONGEST).read_to_end(&mut text)?;
        }
        let totals = serde_json::from_slice(&text).ok();
        Ok(Some((totals.unwrap_or_default(), totals.is_some() && status.success())))
    }
}
