//! A tap: an interface of the host's kernel whose frames a program sends and receives
//! (Documentation/networking/tuntap.rst).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Backend, passing, received, request};

const DEVICE: &str = "/dev/net/tun";

/// Tap interface. A tap that was made by opening it disappears with it; one that existed before stays.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

/// Why a tap can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No interface can have this name.
    #[error("{0:?} is not a name of a network interface: give 1 to 15 letters, digits, '-', '_' and '.'")]
    Name(String),
    /// The kernel has no taps.
    #[error("{DEVICE} does not exist: load its module (`sudo modprobe tun`)")]
    Missing,
    /// This user may not make or use it.
    #[error(
        "no permission for the tap {0}: have root make it, `sudo ip tuntap add dev {0} mode tap user $USER`, or use \
         --net passt, which needs no root"
    )]
    Denied(String),
    /// Another program has it.
    #[error("the tap {0} is in use by another program: name another one, as in --net tap=vprof1")]
    InUse(String),
    /// An interface of another kind has this name.
    #[error("the network interface {0} is not a tap; name another one, as in --net tap=vprof1")]
    NotATap(String),
    /// Another error.
    #[error("can't use the tap {name}: {source}")]
    Other {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Tap {
    /// Makes a tap of this name and switches it on, or takes the one that is there.
    ///
    /// # Errors
    /// Every reason why it can't be used.
    pub fn open(name: &str) -> Result<Self, TapError> {
        if !request::is_name(name) {
            return Err(TapError::Name(name.to_owned()));
        }
        let fail = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::Missing,
            Some(libc::EPERM | libc::EACCES) => TapError::Denied(name.to_owned()),
            Some(libc::EBUSY) => TapError::InUse(name.to_owned()),
            Some(libc::EINVAL) => TapError::NotATap(name.to_owned()),
            _ => TapError::Other { name: name.to_owned(), source },
        };
        let is_new = !Path::new("/sys/class/net").join(name).exists();
        let open = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE);
        let file = open.map_err(fail)?;
        let mut wanted = request::about(name, libc::IFF_TAP | libc::IFF_NO_PI);
        request::make(file.as_fd(), libc::TUNSETIFF, &mut wanted).map_err(fail)?;
        if is_new {
            let socket = socket().map_err(fail)?;
            request::add_flags(socket.as_fd(), name, libc::IFF_UP).map_err(fail)?;
        }
        Ok(Self { file })
    }

    /// Duplicates the tap's descriptor, for a program that moves its frames instead of this one.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

/// Opens a socket for requests about interfaces.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes three numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl From<OwnedFd> for Tap {
    /// Takes the descriptor of a tap that another process has opened ([`Tap::try_clone_fd`]).
    fn from(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }
}

impl Backend for Tap {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the pointer is valid for writes of that many bytes.
        received(unsafe { libc::read(self.file.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) })
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer is valid for reads of that many bytes.
        match unsafe { libc::write(self.file.as_raw_fd(), frame.as_ptr().cast(), frame.len()) } {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                // Shorter than an Ethernet header.
                error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                error => passing(error),
            },
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for name in ["", "a/b", "sixteen-letters-"] {
            assert!(matches!(Tap::open(name), Err(TapError::Name(_))), "{name}");
        }
    }

    #[test]
    fn what_is_no_tap_is_left_alone() {
        // The loopback interface is everywhere. Without the device or the right to open it that is said
        // instead.
        let error = Tap::open("lo").unwrap_err();
        assert!(matches!(error, TapError::NotATap(_) | TapError::Missing | TapError::Denied(_)), "{error}");
    }
}
