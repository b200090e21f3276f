//! Requests about network interfaces (netdevice(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of a name, the NUL at its end left out.
const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// Returns true if an interface can have this name, as the kernel's `dev_valid_name` says.
pub(super) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| !matches!(byte, b'/' | b':' | b'%') && byte.is_ascii_graphic();
    (1..=LONGEST_NAME).contains(&name.len()) && !matches!(name, "." | "..") && name.bytes().all(allowed)
}

/// Makes a request about an interface with this name, which [`is_name`] accepts.
pub(super) fn about(name: &str, flags: libc::c_int) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid ifreq, which is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(LONGEST_NAME).zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let [low, high, ..] = flags.to_le_bytes();
    request.ifr_ifru.ifru_flags = libc::c_short::from_le_bytes([low, high]);
    request
}

/// Makes the kernel serve a request that takes an ifreq and returns one.
pub(super) fn make(fd: BorrowedFd<'_>, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request codes of this module read and write one ifreq, for which the pointer is valid.
    match unsafe { libc::ioctl(fd.as_raw_fd(), code as _, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets flags of an interface besides those that it has.
pub(super) fn add_flags(socket: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<()> {
    let mut request = about(name, 0);
    make(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the request has just filled this member.
    let [low, high] = unsafe { request.ifr_ifru.ifru_flags }.to_le_bytes();
    let mut request = about(name, flags | libc::c_int::from_le_bytes([low, high, 0, 0]));
    make(socket, libc::SIOCSIFFLAGS, &mut request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernels() {
        for name in ["tap0", "a", "vprof-guest.100", "fifteen-letters"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "tap%d", "a:1", "sixteen-letters-", "t\u{e4}p", "a\0"] {
            assert!(!is_name(name), "{name}");
        }
    }
}
