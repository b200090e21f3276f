//! The loopback device.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use crate::ProgramError;

/// Switches the loopback device on.
///
/// # Errors
/// The kernel refuses it, as it does without `CAP_NET_ADMIN`.
pub fn raise_loopback() -> Result<(), ProgramError> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(ProgramError::system("make a socket"))?;
    // SAFETY: all bytes zero are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    // IFF_UP is 1.
    request.ifr_ifru.ifru_flags = 1;
    // SAFETY: the descriptor is open and the request outlives the call, which only reads it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(result).map(drop).map_err(ProgramError::system("switch the loopback device on"))
}
