//! Backends of a guest's network card: they pass whole Ethernet frames, without their checksums (FCS).
//!
//! | backend | the other end |
//! |---|---|
//! | [`Tap`] | an interface of the host's kernel |
//! | [`Stream`] | a program with a socket, by the protocol of QEMU's `stream` netdev: passt |
//! | [`Interface`] | the network of an interface of this host |

mod interface;
mod request;
mod stream;
mod tap;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

pub use interface::Interface;
pub use stream::Stream;
pub use tap::{Tap, TapError};

/// Carries frames between a guest's card and the outside. Used by the card's own thread.
pub trait Backend: Send + fmt::Debug {
    /// Takes the next frame that has come, and returns its length; `None` where none has. A frame longer than
    /// `into` is lost but for its beginning, and its length then is at least that of `into`.
    ///
    /// # Errors
    /// The other end is gone for good.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame. It is lost, as on a wire, where the other end has no room.
    ///
    /// # Errors
    /// The other end is gone for good.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Becomes readable when a frame has come.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Classifies an error of a descriptor: `Ok` if it concerns only this frame.
fn passing(error: io::Error) -> io::Result<()> {
    let code = error.raw_os_error().unwrap_or(0);
    // EIO and ENETDOWN: the interface is not up. ENOBUFS and ENOMEM: it has no room.
    let passing = [libc::EAGAIN, libc::EINTR, libc::EIO, libc::ENETDOWN, libc::ENOBUFS, libc::ENOMEM];
    if passing.contains(&code) { Ok(()) } else { Err(error) }
}

/// Converts the result of a read(2) of one frame.
fn received(result: isize) -> io::Result<Option<usize>> {
    match usize::try_from(result) {
        Ok(length) => Ok(Some(length)),
        Err(_) => passing(io::Error::last_os_error()).map(|()| None),
    }
}
