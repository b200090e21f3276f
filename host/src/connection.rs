//! Connection of a process inside a sandbox with its parent, from that process's side.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use attach::AttachError;
use disk_images::ImageError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use profile::watch::WatchReport;
use profile::{Batch, Sink, SinkError};
use sandbox::SandboxError;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use crate::guest::GuestError;
use crate::link::BytesRead;
use control::{Phase, SessionChange};

use crate::protocol::{BatchMessage, Decoder, FromHost, ToHost, encode};
use crate::stage::Stage;
use crate::tcg::TcgError;

/// Signals of the terminal, and those that end a run: they are for the parent, which decides.
const FOR_THE_PARENT: [libc::c_int; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// Reason why a process inside a sandbox did not do its job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    /// The job is not understood.
    #[error("the process inside the sandbox got no job: {0}")]
    Job(#[from] serde_json::Error),
    /// A part of the sandbox cannot be set up.
    #[error("cannot enter the sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// A descriptor is of no use, or no thread is left.
    #[error("the process inside the sandbox cannot start: {0}")]
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
            Self::Job(_) | Self::Sandbox(_) | Self::Start(_) | Self::Attach(_) | Self::Image(_) => {
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

/// Ends of a link through which the parent steers a run.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) input: mpsc::Sender<Vec<u8>>,
    pub(crate) control: mpsc::Sender<SessionChange>,
    pub(crate) read: watch::Sender<BytesRead>,
}

/// Carries out what the parent asks for until `run` ends. A parent that is gone ends the run.
pub(crate) async fn obeyed_while<T>(
    run: impl Future<Output = T>,
    steering: Steering,
    connection: &Connection,
) -> io::Result<T> {
    // SAFETY: the reader owns its descriptor, which is open and the same as long as the reader is.
    let reader = unsafe { AsyncFd::register_with_interest(connection.reader()?, Interest::READABLE) };
    let reader = reader.map_err(io::Error::from)?;
    tokio::pin!(run);
    tokio::select! {
        outcome = &mut run => return Ok(outcome),
        () = obey(reader, &steering) => {}
    }
    steering.stop.send_replace(true);
    Ok(run.await)
}

/// Carries out what the parent asks for, until it is gone or is not understood.
async fn obey(reader: AsyncFd<File>, steering: &Steering) {
    let Steering { stop, input, control, read } = steering;
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    loop {
        let Ok(mut ready) = reader.readable().await else { return };
        // A read would wait, as the writing end is the same open file. One read may leave bytes behind
        // without another event: a virtio-serial port has them in parts.
        if !has_bytes(ready.get_inner()) {
            ready.clear_ready();
            continue;
        }
        let count = match ready.get_inner().read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The parent has ended.
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        decoder.push(&buffer[..count]);
        loop {
            match decoder.next_message::<ToHost>() {
                // Both fail once the guest has ended.
                Ok(Some(ToHost::ConsoleInput(bytes))) => drop(input.send(bytes).await),
                Ok(Some(ToHost::Control(change))) => drop(control.send(change).await),
                Ok(Some(ToHost::OutputRead(bytes))) => drop(read.send_replace(bytes)),
                Ok(Some(ToHost::Stop)) => drop(stop.send_replace(true)),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Returns true if a read gives bytes, the end, or an error at once.
fn has_bytes(file: &File) -> bool {
    let mut waited = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    !matches!(poll(&mut waited, PollTimeout::ZERO), Ok(0) | Err(Errno::EINTR))
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

    fn reader(&self) -> io::Result<File> {
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::link::{Link, Watcher, link};

    /// Gives a run its side and its parent, and returns its outcome.
    fn steered<T, F: Future<Output = T>>(run: impl FnOnce(Link, UnixStream) -> F) -> T {
        let (parent, own) = UnixStream::pair().unwrap();
        let connection = Connection(Arc::new(Mutex::new(File::from(OwnedFd::from(own)))));
        let (own_side, Watcher { stop, input, control, read, .. }) = link();
        let steering = Steering { stop, input, control, read };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(obeyed_while(run(own_side, parent), steering, &connection)).unwrap()
    }

    #[test]
    fn the_parent_steers_a_run_and_its_end_is_that_of_the_run() {
        steered(|link, mut parent| async move {
            let Link { mut stop, mut input, mut control, mut read, .. } = link;
            // More than is read at once, and the end of a message comes later.
            let typed = [ToHost::ConsoleInput(vec![7; 10_000]), ToHost::Control(SessionChange::Rate(2.0))];
            let frames = typed.map(|message| encode(&message).unwrap()).concat();
            let (most, rest) = frames.split_at(frames.len() - 3);
            parent.write_all(most).unwrap();
            assert_eq!(input.recv().await, Some(vec![7; 10_000]));
            parent.write_all(rest).unwrap();
            assert_eq!(control.recv().await, Some(SessionChange::Rate(2.0)));
            parent.write_all(&encode(&ToHost::OutputRead([3, 4])).unwrap()).unwrap();
            read.changed().await.unwrap();
            assert_eq!(*read.borrow(), [3, 4]);
            assert!(!*stop.borrow());
            drop(parent);
            stop.changed().await.unwrap();
            assert!(*stop.borrow());
        });
    }

    #[test]
    fn what_is_no_message_ends_a_run() {
        steered(|mut link, mut parent| async move {
            parent.write_all(&[255; 8]).unwrap();
            link.stop.changed().await.unwrap();
            assert!(*link.stop.borrow());
        });
    }
}
