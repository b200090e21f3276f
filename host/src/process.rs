//! Programs that this process starts for a run, copies of it, and the descriptors that they inherit.

use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus};

use display::clean::escaped;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox::{REFUSAL_ADVICE, REPORT_BYTES, RefusedCall};
use serde::Serialize;
use tokio::sync::watch;
use vmm::host_kernel;

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

/// Returns this program as a process inside a sandbox: the hidden `command`, whose argument is the number of
/// a descriptor with `job`. It inherits these descriptors, and its environment is empty. The returned
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

/// Exit code of a copy that has panicked, as of a program.
const PANICKED: i32 = 101;

/// Copy of this process that runs.
#[derive(Debug)]
pub struct ForkedChild {
    /// Its process id.
    pub id: u32,
    /// Its standard error.
    pub stderr: io::PipeReader,
}

/// Runs `run` in a copy of this process, which ends with the exit code that it returns. The memory of the
/// copy is this process's until one of them writes to it. Its standard input is `input`, or /dev/null; of
/// other descriptors it has those in `kept`.
///
/// # Errors
/// This process has other threads, which a copy would lack; there is no memory, or no descriptors are left.
pub fn fork_child(
    input: Option<OwnedFd>,
    kept: &[RawFd],
    run: impl FnOnce() -> u8,
) -> io::Result<ForkedChild> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be copied"));
    }
    let (stderr, theirs) = io::pipe()?;
    let null = OwnedFd::from(File::options().read(true).write(true).open("/dev/null")?);
    let standard = [input.as_ref().unwrap_or(&null).as_raw_fd(), null.as_raw_fd(), theirs.as_raw_fd()];
    // SAFETY: no other thread holds a lock, so the copy may do all that this process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                keep_descriptors(standard, kept)?;
                Ok::<u8, io::Error>(run())
            }));
            std::process::exit(match ran {
                Ok(Ok(code)) => code.into(),
                Ok(Err(_)) => 1,
                Err(_) => PANICKED,
            })
        }
        id => Ok(ForkedChild { id: id.cast_unsigned(), stderr }),
    }
}

/// Makes `standard` the first three descriptors of a copy, and closes all others but `kept`. What owned them
/// in this process is never dropped in the copy.
fn keep_descriptors(standard: [RawFd; 3], kept: &[RawFd]) -> io::Result<()> {
    // Above the first three, so that none is replaced before it is copied.
    let mut high = [0; 3];
    for (high, number) in high.iter_mut().zip(standard) {
        // SAFETY: F_DUPFD makes a new descriptor.
        *high = unsafe { libc::fcntl(number, libc::F_DUPFD, 3) };
        checked(*high)?;
    }
    for (place, number) in (0..).zip(high) {
        // SAFETY: replaces a standard descriptor of this process, which nothing here owns.
        checked(unsafe { libc::dup2(number, place) })?;
    }
    let mut kept: Vec<libc::c_uint> = kept.iter().map(|number| number.cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first: libc::c_uint = 3;
    for number in kept.into_iter().filter(|number| *number >= 3) {
        if first < number {
            close_range(first, number - 1)?;
        }
        first = number + 1;
    }
    close_range(first, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: the descriptors are those of objects that are never used or dropped from here on.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A child of this process: another program, or a copy.
#[derive(Debug)]
pub(crate) struct OwnChild {
    id: Pid,
    pub(crate) stderr: Option<OwnedFd>,
    status: Option<ExitStatus>,
}

impl From<Child> for OwnChild {
    fn from(mut child: Child) -> Self {
        let stderr = child.stderr.take().map(OwnedFd::from);
        Self { id: Pid::from_raw(child.id().cast_signed()), stderr, status: None }
    }
}

impl From<ForkedChild> for OwnChild {
    fn from(child: ForkedChild) -> Self {
        let stderr = Some(OwnedFd::from(child.stderr));
        Self { id: Pid::from_raw(child.id.cast_signed()), stderr, status: None }
    }
}

impl OwnChild {
    pub(crate) fn id(&self) -> u32 {
        self.id.as_raw().cast_unsigned()
    }

    fn wait_with(&mut self, flags: libc::c_int) -> io::Result<Option<ExitStatus>> {
        let mut status = 0;
        while self.status.is_none() {
            // SAFETY: the place outlives the call. The id is that of a child that was not waited for.
            match unsafe { libc::waitpid(self.id.as_raw(), &raw mut status, flags) } {
                0 => return Ok(None),
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => self.status = Some(ExitStatus::from_raw(status)),
            }
        }
        Ok(self.status)
    }

    /// Returns the status, once the child has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(libc::WNOHANG)
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.wait_with(0)?;
        status.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Ends the child by `SIGKILL`, if it has not ended.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self.status {
            None => kill(self.id, Signal::SIGKILL).map_err(io::Error::from),
            Some(_) => Ok(()),
        }
    }
}

/// Returns the reason of the end of a process in one sentence, if a filter of system calls has ended it.
pub(crate) fn refused_call(mut report: io::PipeReader, status: ExitStatus) -> Option<String> {
    let mut bytes = [0; REPORT_BYTES];
    if report.read_exact(&mut bytes).is_ok() {
        return Some(RefusedCall::from_report(bytes).to_string());
    }
    (status.signal() == Some(libc::SIGSYS))
        .then(|| format!("it made a system call that its filter refuses: {REFUSAL_ADVICE}"))
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
    fn a_process_with_other_threads_is_not_copied() {
        // The test itself runs in one.
        let refused = fork_child(None, &[], || 0).unwrap_err();
        assert!(refused.to_string().contains("several threads"), "{refused}");
    }

    #[test]
    fn a_child_is_waited_for_once_and_then_known() {
        let mut child = OwnChild::from(Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap());
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert_eq!(child.try_wait().unwrap().and_then(|status| status.code()), Some(3));
        child.kill().unwrap();
        let mut child = OwnChild::from(Command::new("sleep").arg("600").spawn().unwrap());
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_foreign_sentence_reaches_no_terminal_as_it_is() {
        let shown = Foreign("may not trace:\n  sudo\x1b[2J\r\n\u{9b}31m").to_string();
        assert_eq!(shown, "may not trace:\n  sudo\\x1b[2J\n\\x9b31m");
        assert_eq!(Foreign("").to_string(), "");
    }
}
