//! The guest's virtio-vsock device: its sockets on this host.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use text::message::{Reason, Shown};
use vmm::vsock::{Sockets, serve};

use crate::socket;

/// Most bytes of a socket's path: `sun_path` of unix(7) has 108, of which the last is 0.
const LONGEST_PATH: usize = 107;
/// Bytes that sockets of the guest's connections have besides, at most: `_4294967295`.
const PORT: usize = 11;

/// Why the guest has no sockets.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// With a port after it the path is longer than a socket's can be.
    #[error(
        "{} is too long for --vsock: of its {length} bytes {most} are allowed, since guests connect to PATH_PORT",
        Shown(.path), most = LONGEST_PATH - PORT
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        length: usize,
    },
    /// There is something already.
    #[error("{} exists already: --vsock makes its own socket there: remove it or give another path", Shown(.0))]
    Exists(PathBuf),
    /// The socket can't be made.
    #[error("can't make the socket {}: {}", Shown(.path), Reason(.source))]
    Make {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The socket at which programs ask for connections to the guest. Dropping it removes it.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
    listener: UnixListener,
    cid: u32,
}

impl Listening {
    /// Makes the socket of the guest with this context id.
    ///
    /// # Errors
    /// Its path is too long or taken, or it cannot be made.
    pub fn open(path: PathBuf, cid: u32) -> Result<Self, VsockError> {
        let length = path.as_os_str().as_bytes().len();
        if length > LONGEST_PATH - PORT {
            return Err(VsockError::TooLong { path, length });
        }
        match socket::listen(&path) {
            Ok(listener) => Ok(Self { path, listener, cid }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(VsockError::Exists(path)),
            Err(source) => Err(VsockError::Make { path, source }),
        }
    }

    /// The guest's context id.
    pub fn cid(&self) -> u32 {
        self.cid
    }

    /// The connections of one guest.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn sockets(&self) -> Result<Sockets, VsockError> {
        self.listener
            .try_clone()
            .and_then(|listener| Sockets::new(listener, &self.path, self.cid))
            .map_err(|source| VsockError::Make { path: self.path.clone(), source })
    }

    /// Serves a guest at the other end of a stream, which is returned.
    ///
    /// # Errors
    /// There are no more descriptors or threads.
    pub fn serve(&self) -> Result<(Serving, OwnedFd), VsockError> {
        let fail = |source| VsockError::Make { path: self.path.clone(), source };
        let sockets = self.sockets()?;
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        let stream = ours.try_clone().map_err(fail)?;
        let thread = std::thread::Builder::new()
            .name("vprof-vsock".to_owned())
            .spawn(move || serve(ours, sockets))
            .map_err(fail)?;
        Ok((Serving { stream, thread }, theirs.into()))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Removed already, at worst.
        drop(std::fs::remove_file(&self.path));
    }
}

/// A thread that serves a guest's sockets.
#[derive(Debug)]
pub struct Serving {
    stream: UnixStream,
    thread: JoinHandle<io::Result<()>>,
}

impl Serving {
    /// Ends it; a sentence if it had failed before.
    pub fn end(self) -> Option<String> {
        // Fails if the other end is closed, which ends the thread as well.
        let _ = self.stream.shutdown(Shutdown::Both);
        // A panic in it was reported when it happened.
        let error = self.thread.join().ok()?.err()?;
        Some(format!("the guest's sockets failed before the guest ended: {}", Reason(&error)))
    }
}
