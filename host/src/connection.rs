//! Connection of a process inside a wall with its parent, from that process's side.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use attach::AttachError;
use images::ImageError;
use profile::watch::WatchReport;
use profile::{Batch, Sink, SinkError};
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use wall::WallError;

use crate::guest::GuestError;
use crate::link::{BytesRead, Phase};
use crate::protocol::{BatchMessage, Control, Decoder, FromHost, ToHost, encode};
use crate::stage::Stage;
use crate::tcg::TcgError;

/// Signals of the terminal, and those that end a run: they are for the parent, which decides.
const FOR_THE_PARENT: [libc::c_int; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// Reason why a process inside a wall did not do its job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    /// The job is not understood.
    #[error("the process inside the wall got no job: {0}")]
    Job(#[from] serde_json::Error),
    /// A part of the wall cannot be raised.
    #[error("cannot raise the wall: {0}")]
    Wall(#[from] WallError),
    /// A descriptor is of no use, or no thread is left.
    #[error("the process inside the wall cannot start: {0}")]
    Start(#[from] io::Error),
    /// A machine of another VMM is not found, or refused.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A disk cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The guest could not be run or profiled to its end.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The guest could not be run in QEMU.
    #[error(transparent)]
    Tcg(#[from] TcgError),
    /// A disk is not written to its end.
    #[error("cannot finish writing a disk: {0}")]
    WriteBack(io::Error),
}

impl ChildError {
    /// Returns the message to the parent.
    pub(crate) fn message(&self) -> FromHost {
        let stage = match self {
            Self::Job(_) | Self::Wall(_) | Self::Start(_) | Self::Attach(_) | Self::Image(_) => {
                Stage::BeforeGuest
            }
            Self::Guest(error) => error.stage(),
            Self::Tcg(error) => error.stage(),
            Self::WriteBack(_) => Stage::Guest,
        };
        FromHost::Error { stage, sentence: self.to_string() }
    }
}

/// Takes a descriptor that this process has inherited.
///
/// # Safety
/// The parent has passed the descriptor on for this process alone, and nothing else here uses it.
pub(crate) unsafe fn inherited(number: RawFd) -> File {
    // SAFETY: as the caller promises.
    unsafe { File::from_raw_fd(number) }
}

/// Leaves the signals that end a run to the parent. Called before there is another thread.
pub(crate) fn leave_signals_to_parent() {
    ignore_signals(&FOR_THE_PARENT);
}

/// Ignores signals. Called before there is another thread.
pub(crate) fn ignore_signals(signals: &[libc::c_int]) {
    for signal in signals {
        // SAFETY: no other thread runs yet, and ignoring a signal installs no handler.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Sends the changes of the phase until `run` ends.
pub(crate) async fn forward<T>(
    run: impl Future<Output = T>,
    mut phase: watch::Receiver<Phase>,
    connection: &Connection,
) -> T {
    tokio::pin!(run);
    loop {
        tokio::select! {
            outcome = &mut run => return outcome,
            Ok(()) = phase.changed() => {
                let status = match &*phase.borrow_and_update() {
                    Phase::Running(status) => FromHost::Status(status.clone()),
                    Phase::Preparing(what) => FromHost::Preparing(what.clone()),
                };
                // A connection that fails ends the run through the sink.
                let _failed = connection.send(&status);
            }
        }
    }
}

/// Carries out what the parent asks for.
pub(crate) fn obey(
    mut reader: File,
    stop: &watch::Sender<bool>,
    input: &mpsc::Sender<Vec<u8>>,
    control: &mpsc::Sender<Control>,
    read: &watch::Sender<BytesRead>,
) {
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    loop {
        let count = match reader.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The parent has ended.
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        decoder.push(&buffer[..count]);
        loop {
            match decoder.next_message::<ToHost>() {
                Ok(Some(ToHost::ConsoleInput(bytes))) => {
                    // Fails once the guest has ended.
                    let _ended = input.blocking_send(bytes);
                }
                Ok(Some(ToHost::Control(change))) => {
                    // Fails once the guest has ended.
                    let _ended = control.blocking_send(change);
                }
                Ok(Some(ToHost::OutputRead(bytes))) => {
                    read.send_replace(bytes);
                }
                Ok(Some(ToHost::Stop)) => {
                    stop.send_replace(true);
                }
                Ok(None) => break,
                Err(_) => {
                    stop.send_replace(true);
                    return;
                }
            }
        }
    }
    stop.send_replace(true);
}

/// The writing end of the connection; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<Mutex<File>>);

impl Connection {
    /// Takes standard input, which is the connection.
    pub(crate) fn of_stdin() -> Self {
        // SAFETY: the parent has given descriptor 0 to this process, and nothing else here uses it.
        Self(Arc::new(Mutex::new(unsafe { inherited(0) })))
    }

    pub(crate) fn reader(&self) -> io::Result<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).try_clone()
    }

    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let frame = encode(message).map_err(io::Error::other)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)
    }
}

fn unsent(error: io::Error) -> SinkError {
    SinkError(format!("cannot send to the vprof that writes the profile: {error}"))
}

/// Sink that sends rows to the parent.
pub(crate) struct ConnectionSink(pub(crate) Connection);

impl Sink for ConnectionSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.0.send(&BatchMessage(batch)).map_err(unsent)
    }

    fn report(&mut self, report: &WatchReport) -> Result<(), SinkError> {
        self.0.send(&FromHost::Report(report.clone())).map_err(unsent)
    }
}
