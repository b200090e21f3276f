//! Programs that this process starts for a run, and the descriptors that they inherit.

use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use text::clean::escaped;
use tokio::sync::watch;
use vmm::host_kernel;
use wall::{REPORT_BYTES, RefusedCall};

/// Sentences of a process with foreign bytes, with each line escaped.
#[derive(Debug)]
pub(crate) struct Foreign<'a>(pub &'a str);

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.0.lines().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{}", escaped(line))?;
        }
        Ok(())
    }
}

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

/// Returns the bytes of a file, from its place on.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns this program as a process inside a wall: the hidden `command`, whose argument is the number of a
/// descriptor with `job`. It inherits these descriptors, and its environment is empty. The returned
/// descriptor is that of the job, and is closed after the start.
///
/// # Errors
/// The job cannot be written to memory.
pub(crate) fn walled_command(
    command: &str,
    job: &impl Serialize,
    mut inherited: Vec<RawFd>,
) -> io::Result<(Command, OwnedFd)> {
    let text = serde_json::to_vec(job)?;
    let job_file = memory_file(c"vprof-job", &text)?;
    let job_number = job_file.as_raw_fd();
    let mut program = Command::new("/proc/self/exe");
    program.args([command, &job_number.to_string()]).env_clear();
    inherited.push(job_number);
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls that are async-signal-safe are made, on values that the
    // closure owns; nothing is allocated.
    unsafe {
        program.pre_exec(move || prepare_child(parent, &inherited));
    }
    Ok((program, job_file))
}

/// Returns the reason of the end of a process in one sentence, if a filter of system calls has ended it.
pub(crate) fn refused_call(mut report: io::PipeReader, status: ExitStatus) -> Option<String> {
    let mut bytes = [0; REPORT_BYTES];
    if report.read_exact(&mut bytes).is_ok() {
        return Some(RefusedCall::from_report(bytes).to_string());
    }
    (status.signal() == Some(libc::SIGSYS))
        .then(|| "it made a system call that its filter refuses".to_owned())
}

/// Waits for `run`, which needs a process to end. Once the run is to end, continues that process, which a
/// signal may have stopped.
pub(crate) async fn continued<T>(
    process: Option<u32>,
    mut stop: watch::Receiver<bool>,
    run: impl Future<Output = T>,
) -> T {
    tokio::pin!(run);
    loop {
        tokio::select! {
            outcome = &mut run => return outcome,
            Ok(()) = stop.changed() => {
                let process = process.and_then(|process| i32::try_from(process).ok());
                if let Some(process) = process.filter(|process| *process > 0) {
                    // Fails if it has ended.
                    let _ended = kill(Pid::from_raw(process), Signal::SIGCONT);
                }
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_sentence_reaches_no_terminal_as_it_is() {
        let shown = Foreign("may not trace:\n  sudo\x1b[2J\r\n\u{9b}31m").to_string();
        assert_eq!(shown, "may not trace:\n  sudo\\x1b[2J\n\\x9b31m");
        assert_eq!(Foreign("").to_string(), "");
    }
}
