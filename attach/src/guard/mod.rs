//! Guard of a machine whose profiler is killed, or is stopped while it holds a vCPU.
//!
//! The kernel resumes a thread whose tracer has ended, and not one whose tracer is stopped (SIGSTOP, a frozen
//! control group). A GDB stub keeps its machine stopped in both cases. A second process therefore watches the
//! first one. What it watches depends on how vCPUs are stopped:
//!
//! ```text
//! ptrace     the guard reads the state of the VMM's threads, until vprof ends. A stop that lasts:
//!            SIGKILL to vprof. A guest that has taken vprof over cannot change what it reads
//! GDB stub   vprof ── pipe: bytes for the stub, its state ──▶ guard ── at the end, if RESCUE is set ──▶ stub
//!                  ── memory: stops in progress ───────────▶       ── no progress ──▶ SIGKILL to vprof
//! ```

mod heartbeat;
mod watch;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::rsp::client::{MachineState, StubClient};

pub(crate) use heartbeat::{Heartbeat, StopSlot};
pub use watch::HELD_LIMIT_MS;
use watch::{CHECK_MS, StopWatch};

/// Message with bytes for the stub: their number, then the bytes.
const WORDS: u8 = b'w';
/// State in which the guard has to resume the machine at the end.
const RESCUE: u8 = b'r';
/// State in which the guard does nothing at the end.
const LEAVE: u8 = b'l';

/// Means by which a guarded profiler stops vCPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GuardedMeans<'a> {
    /// By ptrace, which stops threads of this process.
    Threads(i32),
    /// Through this client's stub.
    Stub(&'a StubClient),
}

/// Process of the guard.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    child: Child,
    pipe: Option<ChildStdin>,
    /// State that was sent last.
    last: u8,
    /// The guard ends with this process, and not with the pipe.
    lasting: bool,
}

impl GuardProcess {
    /// Starts `program`, which has to call [`keep_guard`] with the number that is added to its arguments.
    pub(crate) fn start(
        mut program: Command,
        heartbeat: &Heartbeat,
        means: GuardedMeans<'_>,
    ) -> io::Result<Self> {
        let shared = heartbeat.as_fd().as_raw_fd();
        let (process, output) = match means {
            GuardedMeans::Threads(process) => (process, Stdio::null()),
            GuardedMeans::Stub(client) => (0, Stdio::from(client.handle()?)),
        };
        // Its own process group: Ctrl-C and Ctrl-Z are for vprof alone.
        program.arg(shared.to_string()).stdin(Stdio::piped()).stdout(output).process_group(0);
        // SAFETY: fcntl is async-signal-safe, and the descriptor is open in the child.
        unsafe {
            program.pre_exec(move || match libc::fcntl(shared, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let mut child = program.spawn()?;
        let mut pipe = child.stdin.take();
        if let Some(pipe) = &mut pipe {
            pipe.write_all(&process.to_le_bytes())?;
        }
        Ok(Self { child, pipe, last: LEAVE, lasting: process != 0 })
    }

    /// Has the guard of a stub resume the client's machine after the end of this process.
    pub(crate) fn arm(&mut self, client: &StubClient) {
        let words = client.detach_bytes();
        let Ok(length) = u8::try_from(words.len()) else { return };
        if let Some(pipe) = &mut self.pipe {
            // A guard that has ended cannot receive it.
            let _gone = pipe.write_all(&[&[WORDS, length], &words[..]].concat());
        }
        self.send(RESCUE);
    }

    /// Sends the state of the machine, if the guard's task has changed.
    pub(crate) fn set_state(&mut self, state: MachineState) {
        self.send(if state == MachineState::Paused { LEAVE } else { RESCUE });
    }

    fn send(&mut self, what: u8) {
        if std::mem::replace(&mut self.last, what) != what
            && let Some(pipe) = &mut self.pipe
        {
            // A guard that has ended cannot receive it.
            let _gone = pipe.write_all(&[what]);
        }
    }

    /// Ends the guard, which has nothing to do any longer. That of threads only outside of the sandbox, where
    /// this process may send a signal.
    pub(crate) fn dismiss(mut self) {
        if self.lasting {
            // The process may have ended.
            let _gone = self.child.kill().and_then(|()| self.child.wait());
        } else {
            self.send(LEAVE);
        }
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        drop(self.pipe.take());
        if !self.lasting {
            // The guard ends at the end of the pipe.
            let _gone = self.child.wait();
        }
    }
}

/// Task of the guard of a stub, by the profiler's messages.
#[derive(Debug, Default)]
struct StubTask {
    /// Bytes for the stub.
    words: Vec<u8>,
    rescue: bool,
    /// Message that is not complete yet.
    unread: Vec<u8>,
}

impl StubTask {
    fn take(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        loop {
            let taken = match self.unread.as_slice() {
                [] | [WORDS] => break,
                [WORDS, length, rest @ ..] => {
                    let Some(words) = rest.get(..usize::from(*length)) else { break };
                    self.words = words.to_vec();
                    self.words.len() + 2
                }
                [state, ..] => {
                    self.rescue = *state == RESCUE;
                    1
                }
            };
            self.unread.drain(..taken);
        }
    }
}

/// Runs the guard of the parent process, and ends with it. Standard input has the process whose threads are
/// stopped (4 bytes, little endian), or 0 and messages about a stub: then the received bytes are written to
/// standard output at the end, unless the last state requires nothing. `shared` is the descriptor of the
/// stops.
///
/// If the parent holds a vCPU for too long, the guard kills the parent and prints that.
///
/// # Errors
/// The descriptor is invalid, the input cannot be read, or the output cannot be written.
pub fn keep_guard(shared: RawFd, input: &mut (impl Read + AsFd), output: &mut impl Write) -> io::Result<()> {
    let parent = Parent::open()?;
    leave_control_groups();
    // A background process that writes to its terminal may be stopped otherwise.
    // SAFETY: ignoring a signal installs no handler.
    unsafe {
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
    }
    // SAFETY: takes no pointers.
    if unsafe { libc::fcntl(shared, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the parent has passed it for this.
    let heartbeat = Heartbeat::map(unsafe { OwnedFd::from_raw_fd(shared) })?;
    let mut process = [0; 4];
    // Sent before the parent reads a byte of the guest.
    input.read_exact(&mut process)?;
    let process = Some(i32::from_le_bytes(process)).filter(|process| *process > 0);
    let mut stops = StopWatch::new(process, parent.pid, heartbeat);
    let check = || {
        if let Some(ms) = stops.check() {
            parent.kill();
            // Nobody reads it if standard error is closed.
            let _closed = writeln!(
                io::stderr(),
                "vprof: stopped while it held a vCPU; the guard ended it after {ms} ms so that the VM continues. The \
                 profile has the samples until then"
            );
        }
    };
    match (process, &parent.fd) {
        (Some(_), Some(parent)) => guard_threads(parent, check),
        // Before Linux 5.3, which is too old for stops by ptrace.
        (Some(_), None) => Err(io::ErrorKind::Unsupported.into()),
        (None, _) => guard_stub(input, output, check),
    }
}

/// Waits for input, or for [`CHECK_MS`].
fn is_ready(input: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: input.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, CHECK_MS) > 0 }
}

/// Calls `check` at least every [`CHECK_MS`] until the parent ends. Its pipe and its memory are of no
/// interest: a guest may have taken it over.
fn guard_threads(parent: &OwnedFd, mut check: impl FnMut()) -> io::Result<()> {
    while !is_ready(parent) {
        check();
    }
    Ok(())
}

/// Reads the parent's messages to their end; calls `check` at least every [`CHECK_MS`].
fn guard_stub(
    input: &mut (impl Read + AsFd),
    output: &mut impl Write,
    mut check: impl FnMut(),
) -> io::Result<()> {
    let (mut task, mut some) = (StubTask::default(), [0; 64]);
    loop {
        let ready = is_ready(&*input);
        check();
        if !ready {
            continue;
        }
        match input.read(&mut some) {
            Ok(0) => break,
            Ok(count) => task.take(some.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if task.rescue { output.write_all(&task.words).and_then(|()| output.flush()) } else { Ok(()) }
}

/// The process that has started this one.
struct Parent {
    pid: i32,
    /// `None` before Linux 5.3. The guard of a stub can do its other task.
    fd: Option<OwnedFd>,
}

impl Parent {
    fn open() -> io::Result<Self> {
        // SAFETY: has no preconditions.
        let parent = unsafe { libc::getppid() };
        // SAFETY: takes no pointers; gives a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, parent, 0) };
        let fd = match RawFd::try_from(fd) {
            // SAFETY: the descriptor is new and owned by nothing else.
            Ok(fd) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => None,
        };
        // SAFETY: has no preconditions.
        if unsafe { libc::getppid() } != parent {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { pid: parent, fd })
    }

    fn kill(&self) {
        if let Some(fd) = &self.fd {
            // SAFETY: takes no pointers other than a null one for the information.
            unsafe {
                let nothing = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, nothing, 0);
            }
        }
    }
}

/// Moves this process to the root of the control groups, where it is allowed: a control group that is frozen,
/// or out of its CPU quota, then has the profiler and not its guard. The guard sleeps, and ends with the
/// profiler.
///
/// Groups of version 1 that are frozen are of no interest: their processes cannot be killed.
fn leave_control_groups() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for root in control_group_roots(&groups, &mounts) {
        // Not allowed for other users than root: docs/attach.md describes what follows.
        let _not_allowed = fs::write(format!("{root}/cgroup.procs"), "0");
    }
}

/// Returns where the roots of those hierarchies are mounted that can stop this process and in which it is not
/// in the root, by /proc/self/cgroup and /proc/self/mounts (cgroups(7)).
fn control_group_roots<'a>(groups: &str, mounts: &'a str) -> Vec<&'a str> {
    let mut roots = Vec::new();
    for group in groups.lines() {
        let mut fields = group.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let wanted: Vec<&str> =
            controllers.split(',').filter(|controller| ["", "cpu"].contains(controller)).collect();
        if path == "/" || wanted.is_empty() {
            continue;
        }
        let found = mounts.lines().find_map(|mount| {
            let mut fields = mount.split_ascii_whitespace();
            let (at, kind, options) = (fields.nth(1)?, fields.next()?, fields.next()?);
            let right = match (kind, controllers) {
                ("cgroup2", "") => true,
                ("cgroup", _) => {
                    options.split(',').any(|option| !option.is_empty() && wanted.contains(&option))
                }
                _ => false,
            };
            right.then_some(at)
        });
        roots.extend(found);
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(input: &[u8]) -> Vec<u8> {
        let (mut from, mut to) = io::pipe().unwrap();
        to.write_all(input).unwrap();
        drop(to);
        let mut output = Vec::new();
        guard_stub(&mut from, &mut output, || ()).unwrap();
        output
    }

    #[test]
    fn the_last_state_counts() {
        assert_eq!(guarded(b"w\x02$Dr"), b"$D");
        assert_eq!(guarded(b"w\x02$Drlr"), b"$D");
        assert_eq!(guarded(b"w\x02$Drl"), b"");
        assert_eq!(guarded(b"w\x02$D"), b"", "killed before it began");
        assert_eq!(guarded(b""), b"", "killed before the stub was asked");
    }

    #[test]
    fn messages_may_come_in_parts() {
        let mut task = StubTask::default();
        for byte in b"w\x03rlwr" {
            task.take(&[*byte]);
        }
        assert_eq!((task.words.as_slice(), task.rescue, task.unread.len()), (&b"rlw"[..], true, 0));
    }

    #[test]
    fn only_hierarchies_that_can_stop_the_guard_are_left() {
        let mounts = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n\
                      cgroup /c/freezer cgroup rw,freezer 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let roots = |groups| control_group_roots(groups, mounts);
        assert_eq!(roots("9:memory:/a\n6:freezer:/a\n1:cpu,cpuacct:/\n0::/a:b\n"), ["/c/unified"]);
        assert_eq!(roots("1:cpu,cpuacct:/x\n0::/\nnonsense\n"), ["/c/cpu"]);
    }
}
