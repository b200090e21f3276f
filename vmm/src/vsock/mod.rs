//! Backends of a guest's virtio-vsock device: Unix sockets of the host, with the protocol of Firecracker and
//! Cloud Hypervisor.
//!
//! | client | means |
//! |---|---|
//! | the guest, to port P of context id 2 | the program that listens at the socket `PATH_P` has the other end |
//! | a program of the host | connects to `PATH`, writes `CONNECT P\n`, and reads `OK PORT\n` once accepted |
//!
//! [`Sockets`] does all of that. If the guest runs on another machine than those programs, a [`Relay`]
//! replaces it, and passes packets over a stream to [`serve`], which has the sockets:
//!
//! ```text
//! device ── Backend ── Sockets ── programs
//! device ── Backend ── Relay ──── stream ──── serve ── Sockets ── programs
//! ```

mod connection;
mod packet;
mod relay;
mod sockets;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

pub use packet::{HEADER, Header, MOST_DATA};
pub use relay::{Relay, serve};
pub use sockets::Sockets;

/// Carries packets between a guest's virtio-vsock device and the outside. Used by the device's own thread;
/// waits for nothing.
pub trait Backend: Send + fmt::Debug {
    /// Takes a packet of the guest, which names the guest as its sender. `false` where there is no room: it
    /// is to come again once [`Self::can_send`].
    ///
    /// # Errors
    /// The other end is gone for good.
    fn send(&mut self, header: &Header, data: &[u8]) -> io::Result<bool>;

    /// Gives the next packet for the guest, with at most as much data as `into` has room for.
    ///
    /// # Errors
    /// The other end is gone for good.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<Header>>;

    /// Processes what made the descriptor readable, which makes it unreadable again.
    ///
    /// # Errors
    /// The other end is permanently gone.
    fn notice(&mut self) -> io::Result<()>;

    /// Returns true if there is room for a packet of the guest.
    fn can_send(&self) -> bool;

    /// Returns true if there may be a packet for the guest, regardless of the descriptor.
    fn can_receive(&self) -> bool;

    /// Drops all connections: the guest no longer knows them.
    fn reset(&mut self);

    /// Becomes readable when [`Self::notice`] has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
