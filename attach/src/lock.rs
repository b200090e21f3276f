//! Lock of a process for one vprof at a time: a name in the abstract name space of sockets, which disappears
//! with its owner however that ends.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::error::AttachError;
use crate::process::Process;

/// Lock of a process, held as long as the process is profiled.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    _name: UnixListener,
}

impl ProcessLock {
    /// Locks the process for this vprof.
    pub(crate) fn take(process: &Process) -> Result<Self, AttachError> {
        let pid = process.pid();
        let failed = |source| AttachError::Host { action: "reserve a virtual machine", source };
        let name = format!("vprof-attach-{pid}-{}", process.start());
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(name) => Ok(Self { _name: name }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let by = UnixStream::connect_addr(&address).ok().and_then(|stream| peer(&stream));
                Err(AttachError::InUse { pid, by })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// Returns the process id of the peer.
fn peer(stream: &UnixStream) -> Option<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(mem::size_of_val(&peer)).ok()?;
    let to = (&raw mut peer).cast();
    // SAFETY: `to` is valid for `length` bytes, and both live through the call.
    let asked = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut length)
    };
    (asked == 0 && peer.pid > 0).then_some(peer.pid)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Serializes tests that lock this process.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_process_is_locked_once_until_it_is_released() {
        let _alone = alone();
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let first = ProcessLock::take(&process).unwrap();
        let refused = ProcessLock::take(&process).unwrap_err();
        assert!(matches!(refused, AttachError::InUse { by: Some(by), .. } if by == own), "{refused}");
        drop(first);
        ProcessLock::take(&process).unwrap();
    }
}
