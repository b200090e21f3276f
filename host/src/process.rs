//! Programs that this process starts for a run, and the descriptors that they inherit.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use vmm::host_kernel;

/// Writes bytes to a file in memory, for a descriptor that a program inherits.
///
/// # Errors
/// No memory or no descriptors are left.
pub(crate) fn memory_file(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| host_kernel::of_call(host_kernel::MEMFD_CREATE, errno.into()))?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Prepares the calling process between fork and exec: it ends with the thread that has started it, and keeps
/// these descriptors. Makes system calls that are async-signal-safe, and allocates nothing.
///
/// # Errors
/// The parent has ended already, or a descriptor is not open.
pub(crate) fn prepare_child(parent: u32, inherited: &[RawFd]) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // The parent may have died before the line above.
    // SAFETY: getppid has no arguments and cannot fail.
    if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    for fd in inherited {
        // SAFETY: F_SETFD changes a flag of a descriptor that the parent holds open across the fork.
        checked(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    Ok(())
}

/// Returns the error of a system call that has returned -1.
///
/// # Errors
/// The call has failed.
pub(crate) fn checked(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
