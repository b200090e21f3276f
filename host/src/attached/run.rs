//! Starting an attach half, and the conversation with it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use attach::RunningMachine;
use display::message::Reason;
use profile::{Batch, Sink};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};

use super::child;
use super::tables::HalfTables;
use super::{AttachJob, AttachSpec, AttachedMemoryUse, AttachedVm, COMMAND, FoundVm, MemoryAnswer};
use crate::link::Link;
use crate::portable::log::Log;
use crate::process::{Foreign, OwnChild, continued, fork_child, prepare_child, refused_call, walled_command};
use crate::protocol::{FrameError, read_message};
use crate::relay::{Relay, RelayEnd};
use crate::resident;
use crate::spec::{DiskSpec, Outcome};

/// Time in which a half ends whose connection is closed: it lets the machine go.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The same for a half whose run is given up.
const DROP_LIMIT: Duration = Duration::from_millis(500);
/// Interval of checks for the half's end.
const END_CHECK: Duration = Duration::from_millis(2);
/// Bytes of its last words.
const WORDS: u64 = 4 << 10;

/// Reason why a machine of another VMM is not profiled to its end.
#[derive(Debug, thiserror::Error)]
pub enum AttachedError {
    /// The process cannot be started.
    #[error("cannot {action}: {}", Reason(.source))]
    Start {
        /// Like "start the process that attaches".
        action: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The machine cannot be profiled, or no longer. The sentence is that of the half.
    #[error("{}", Foreign(.0))]
    Refused(String),
    /// The run was ended before there was anything to profile.
    #[error("stopped before the first sample: there is no profile")]
    Stopped,
    /// The process has ended without an outcome.
    #[error("the process that samples the VM ended: {}", Foreign(.0))]
    Ended(String),
    /// The process sent an invalid message.
    #[error("the process that samples the VM sent {0}; the guest may have taken it over")]
    Protocol(FrameError),
}

fn start(action: &'static str) -> impl Fn(io::Error) -> AttachedError {
    move |source| AttachedError::Start { action, source }
}

/// Starts this program again as a half.
fn run_program(connection: OwnedFd, job: &AttachJob, inherited: Vec<RawFd>) -> io::Result<OwnChild> {
    let (mut command, _job_file) = walled_command(COMMAND, job, inherited)?;
    command.stdin(Stdio::from(connection)).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(command.spawn()?.into())
}

/// Starts a copy of this process as a half.
fn run_copy(connection: OwnedFd, job: AttachJob, inherited: &[RawFd]) -> io::Result<OwnChild> {
    let parent = std::process::id();
    let run = move || match prepare_child(parent, &[]).and_then(|()| child::run(job)) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    Ok(fork_child(Some(connection), inherited, run)?.into())
}

/// Attach half that has found its machine. Dropping it ends it; the machine continues to run.
#[derive(Debug)]
pub struct AttachHalf {
    child: OwnChild,
    connection: UnixStream,
    report: Option<io::PipeReader>,
    tables: Option<HalfTables>,
}

/// Way to start a half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HalfStart {
    /// This program again, with separate memory and an empty environment.
    #[default]
    Program,
    /// A copy of this process, which must have a single thread, and in its memory nothing that the guest must
    /// not see.
    Copy,
}

/// Outcome of the start of a half.
#[derive(Debug)]
pub enum StartedHalf {
    /// The half, and its machine.
    Found(AttachHalf, AttachedVm),
    /// No machine was chosen, and these are there: none, or several.
    Unchosen(Vec<RunningMachine>),
}

impl Drop for AttachHalf {
    fn drop(&mut self) {
        // All of these fail if it has ended.
        let _closed = self.connection.shutdown(std::net::Shutdown::Both);
        // It lets the machine go, at best by itself.
        let deadline = std::time::Instant::now() + DROP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
            std::thread::sleep(END_CHECK);
        }
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl AttachHalf {
    /// Starts a half. `disks` are only read. `tables` is the directory of tables that it has in common with
    /// other halves, if it has.
    ///
    /// # Errors
    /// There is no such machine, or it cannot be profiled; `tables` cannot be read.
    pub fn start(
        spec: AttachSpec,
        disks: Vec<(DiskSpec, File)>,
        tables: Option<&Path>,
        way: HalfStart,
    ) -> Result<StartedHalf, AttachedError> {
        let failed = start("start the process that attaches");
        let tables = tables.map(HalfTables::open).transpose().map_err(start("open the tables of kernels"))?;
        let table_files = tables.as_ref().map(HalfTables::files);
        let (connection, theirs) = UnixStream::pair().map_err(&failed)?;
        let (report, report_writer) = io::pipe().map_err(&failed)?;
        let numbers: Vec<_> = disks.iter().map(|(disk, file)| (disk.clone(), file.as_raw_fd())).collect();
        let shared = table_files.iter().flat_map(|files| files.known.iter().copied().chain([files.new]));
        let inherited = numbers.iter().map(|(_, number)| *number).chain([report_writer.as_raw_fd()]);
        let inherited = inherited.chain(shared).collect::<Vec<RawFd>>();
        let job = AttachJob { spec, disks: numbers, report: report_writer.as_raw_fd(), tables: table_files };
        let child = match way {
            HalfStart::Program => run_program(theirs.into(), &job, inherited),
            HalfStart::Copy => run_copy(theirs.into(), job, &inherited),
        };
        let child = child.map_err(&failed)?;
        // The process has its own copies. Its end is noticed by the closed connection.
        drop((report_writer, disks));
        let mut half = Self { child, connection, report: Some(report), tables };
        match read_message(&mut half.connection).map_err(start("hear from the process that attaches"))? {
            Some(FoundVm::Found(vm)) => Ok(StartedHalf::Found(half, vm)),
            Some(FoundVm::Unchosen(machines)) => Ok(StartedHalf::Unchosen(machines)),
            Some(FoundVm::Refused(sentence)) => Err(AttachedError::Refused(sentence)),
            None => Err(half.ended_early()),
        }
    }

    /// Reads the memory of the machine; the half was started for this.
    ///
    /// # Errors
    /// The half cannot read it, or ends without an answer.
    pub fn memory(mut self) -> Result<AttachedMemoryUse, AttachedError> {
        let failed = start("hear from the process that attaches");
        match read_message(&mut self.connection).map_err(failed)? {
            Some(MemoryAnswer::Memory(memory)) => Ok(*memory),
            Some(MemoryAnswer::Refused(sentence)) => Err(AttachedError::Refused(sentence)),
            None => Err(self.ended_early()),
        }
    }

    /// Returns the error of a half that has ended before its first message.
    fn ended_early(&mut self) -> AttachedError {
        let status = match self.child.wait() {
            Ok(status) => status,
            Err(source) => return start("wait for the process that attaches")(source),
        };
        let mut words = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            // Without its words the status is all that is left.
            let _unread = File::from(stderr).take(WORDS).read_to_end(&mut words);
        }
        self.reason(status, String::from_utf8_lossy(&words).trim())
    }

    fn reason(&mut self, status: ExitStatus, words: &str) -> AttachedError {
        let refused = self.report.take().and_then(|report| refused_call(report, status));
        // The guard's sentence begins as vprof's own do.
        let words = words.trim_start_matches("vprof: ");
        AttachedError::Ended(match refused {
            Some(refused) => refused,
            None if words.is_empty() => status.to_string(),
            None => format!("{status}: {words}"),
        })
    }

    /// Writes the half's rows to `sink` until the run ends.
    ///
    /// # Errors
    /// The half ends without an outcome.
    pub async fn run(mut self, mut link: Link, sink: Box<dyn Sink>) -> Result<Outcome, AttachedError> {
        let failed = start("hear from the process that samples the VM");
        let connection = self.connection.try_clone().map_err(&failed)?;
        connection.set_nonblocking(true).map_err(&failed)?;
        let connection = tokio::net::UnixStream::from_std(connection).map_err(&failed)?;
        let stderr = self.child.stderr.take().map(pipe::Receiver::from_owned_fd);
        let log = stderr.transpose().map_err(&failed)?.map(|stderr| Log::follow([stderr]));
        let mut relay = Relay::new(sink, Batch::default(), None);
        let (process, stop) = (Some(self.child.id()), link.stop.clone());
        let (tables, notes) = (self.tables.take(), link.notes.clone());
        let run = resident::trimmed_while(continued(process, stop, relay.talk(connection, &mut link)), || {});
        let result = match tables {
            Some(tables) => {
                let (result, copied) = tables.copied_while(run).await;
                if let Err(error) = copied {
                    // Fails once nobody listens.
                    let _ended =
                        notes.send(format!("cannot keep tables for other recorders: {}", Reason(&error)));
                }
                result
            }
            None => run.await,
        };
        // A half that is still there lets the machine go.
        self.connection.shutdown(std::net::Shutdown::Both).map_err(&failed)?;
        let status = self.end().await.map_err(start("wait for the process that samples the VM"))?;
        let words = match log {
            Some(mut log) if !status.success() => log.last_words().await,
            _ => String::new(),
        };
        let sink_error = relay.finish();
        match result {
            Ok(mut outcome) => {
                outcome.totals.sink_error = sink_error.or(outcome.totals.sink_error);
                Ok(outcome)
            }
            Err(RelayEnd::Failed(_, sentence)) => Err(AttachedError::Refused(sentence)),
            Err(RelayEnd::Stopped) => Err(AttachedError::Stopped),
            Err(RelayEnd::Protocol(error)) => Err(AttachedError::Protocol(error)),
            Err(RelayEnd::Closed | RelayEnd::Silent(_) | RelayEnd::Stalled(_) | RelayEnd::Version(_)) => {
                Err(self.reason(status, &words))
            }
        }
    }

    /// Waits for the end of the process; ends it if that takes too long.
    async fn end(&mut self) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
            }
            sleep(END_CHECK).await;
        }
    }
}
