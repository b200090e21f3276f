//! Guard of a machine whose profiler is killed, or is stopped while it holds a vCPU.
//!
//! The kernel resumes a thread whose tracer has ended, and not one whose tracer is stopped (SIGSTOP, a frozen
//! control group). A GDB stub keeps its machine stopped in both cases. A second process therefore watches the
//! first one: by a pipe for its end, and by shared memory for stops that do not end ([`Heartbeat`]).
//!
//! ```text
//! vprof ── pipe: bytes for the stub, then the state ──▶ guard ── at the end, if RESCUE is set ──▶ stub
//!       ── memory: stops in progress ────────────────▶       ── no progress in a stop ──▶ SIGKILL to vprof
//! ```

mod heartbeat;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::process::state_of;
use crate::rsp::client::{MachineState, StubClient};

pub(crate) use heartbeat::{Heartbeat, StopSlot, held};

/// Maximum number of bytes for the stub; their number comes first.
const MOST: usize = 255;
/// State in which the guard has to resume the machine at the end.
const RESCUE: u8 = b'r';
/// State in which the guard does nothing at the end.
const LEAVE: u8 = b'l';

/// Interval between two checks of the stops, ms.
const CHECK_MS: i32 = 50;
/// Number of checks in a row that find the same stop without progress, before the guard ends the profiler.
/// Checks are counted instead of time: a guard that was frozen together with the profiler lets it continue.
const CHECKS: u32 = 6;
/// Time for which the guard lets a stop last, ms.
pub const HELD_LIMIT_MS: u32 = (CHECKS - 1) * CHECK_MS.unsigned_abs();

/// Process of the guard, which runs as long as this lives.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    child: Child,
    pipe: Option<ChildStdin>,
    /// State that was sent last.
    last: u8,
}

impl GuardProcess {
    /// Starts `program`, which has to call [`keep_guard`] with the number that is added to its arguments.
    /// With a client, the guard resumes its machine after the end of this process.
    pub(crate) fn start(
        mut program: Command,
        heartbeat: &Heartbeat,
        client: Option<&StubClient>,
    ) -> io::Result<Self> {
        let shared = heartbeat.as_fd().as_raw_fd();
        let output = match client {
            Some(client) => Stdio::from(client.handle()?),
            None => Stdio::null(),
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
        let words = client.map(StubClient::detach_bytes).unwrap_or_default();
        let mut bytes = vec![u8::try_from(words.len()).unwrap_or(0)];
        bytes.extend(words);
        bytes.push(RESCUE);
        if let Some(pipe) = &mut pipe {
            pipe.write_all(&bytes)?;
        }
        Ok(Self { child, pipe, last: RESCUE })
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

    /// Ends the guard, which has nothing to do any longer.
    pub(crate) fn dismiss(mut self) {
        self.send(LEAVE);
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // The guard ends at the end of the pipe.
        let _gone = self.child.wait();
    }
}

/// Runs the guard of the parent process: reads standard input to its end, and writes the received bytes to
/// standard output, unless the last state requires nothing. `shared` is the descriptor of the stops.
///
/// If the parent makes no progress in a stop, the guard kills the parent and prints that.
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
    let mut detector = HangDetector::default();
    let traced = heartbeat.traced();
    guard(input, output, || {
        let is_held = |thread| traced.is_none_or(|pid| is_held(pid, thread));
        if let Some(checks) = detector.update(heartbeat.words(), is_held) {
            parent.kill();
            let ms = checks.saturating_sub(1).saturating_mul(CHECK_MS.unsigned_abs());
            // Nobody reads it if standard error is closed.
            let _closed = writeln!(
                io::stderr(),
                "vprof: stopped while it held a vCPU; the guard ended it after {ms} ms so that the VM continues. The \
                 profile has the samples until then"
            );
        }
    })
}

/// Runs the guard; calls `check` at least every [`CHECK_MS`].
fn guard(input: &mut (impl Read + AsFd), output: &mut impl Write, mut check: impl FnMut()) -> io::Result<()> {
    let mut length = [0];
    input.read_exact(&mut length)?;
    let mut words = [0; MOST];
    let words = words.get_mut(..usize::from(length[0])).unwrap_or_default();
    input.read_exact(words)?;
    let (mut last, mut some) = (LEAVE, [0; 64]);
    loop {
        let mut poll = libc::pollfd { fd: input.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, CHECK_MS) };
        check();
        if ready <= 0 {
            continue;
        }
        match input.read(&mut some) {
            Ok(0) => break,
            Ok(count) => last = some.get(..count).and_then(<[u8]>::last).copied().unwrap_or(last),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if last == RESCUE { output.write_all(words).and_then(|()| output.flush()) } else { Ok(()) }
}

/// Detector of stops that make no progress.
#[derive(Debug, Default)]
struct HangDetector(Vec<(u64, u32)>);

impl HangDetector {
    /// Adds a check of all words. Returns the number of checks in a row that found a stop, if they are
    /// enough.
    /// `is_held` returns true if the thread is stopped by its tracer.
    fn update(&mut self, words: impl Iterator<Item = u64>, is_held: impl Fn(i32) -> bool) -> Option<u32> {
        let found: Vec<_> = words.filter_map(|word| Some((word, held(word)?))).collect();
        let before = std::mem::take(&mut self.0);
        for (word, thread) in found {
            let seen = before.iter().find(|(seen, _)| *seen == word).map_or(0, |(_, checks)| *checks);
            // The second check on: most stops have ended by then.
            let checks = if seen == 0 || is_held(thread) { seen.saturating_add(1) } else { 0 };
            self.0.push((word, checks));
        }
        let most = self.0.iter().map(|(_, checks)| *checks).max().filter(|checks| *checks >= CHECKS);
        if most.is_some() {
            // Once for each stop.
            self.0.clear();
        }
        most
    }
}

/// Returns true if the thread is stopped by a tracer, or if that is not visible.
fn is_held(pid: i32, thread: i32) -> bool {
    state_of(pid, thread).is_none_or(|state| state == b't')
}

/// The process that has started this one.
struct Parent(Option<OwnedFd>);

impl Parent {
    fn open() -> io::Result<Self> {
        // SAFETY: has no preconditions.
        let parent = unsafe { libc::getppid() };
        // SAFETY: takes no pointers; gives a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, parent, 0) };
        let fd = match RawFd::try_from(fd) {
            // SAFETY: the descriptor is new and owned by nothing else.
            Ok(fd) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            // Before Linux 5.3. The guard of a stub can do its other task.
            _ => None,
        };
        // SAFETY: has no preconditions.
        if unsafe { libc::getppid() } != parent {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self(fd))
    }

    fn kill(&self) {
        if let Some(fd) = &self.0 {
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

    fn guarded(input: &[u8]) -> Option<Vec<u8>> {
        let (mut from, mut to) = io::pipe().unwrap();
        to.write_all(input).unwrap();
        drop(to);
        let mut output = Vec::new();
        guard(&mut from, &mut output, || ()).ok().map(|()| output)
    }

    #[test]
    fn the_last_word_counts() {
        assert_eq!(guarded(b"\x02$Dr").as_deref(), Some(&b"$D"[..]));
        assert_eq!(guarded(b"\x02$Drlr").as_deref(), Some(&b"$D"[..]));
        assert_eq!(guarded(b"\x02$Drl").as_deref(), Some(&b""[..]));
        assert_eq!(guarded(b"\x02$D").as_deref(), Some(&b""[..]), "killed before it began");
        assert_eq!(guarded(b"\x02$"), None);
    }

    #[test]
    fn a_stop_without_progress_is_found_once() {
        let mut detector = HangDetector::default();
        let stop = |sequence: u64| [sequence << 32 | 12].into_iter();
        for _ in 1..CHECKS {
            assert_eq!(detector.update(stop(1), |_| true), None);
        }
        assert_eq!(detector.update(stop(1), |_| true), Some(CHECKS));
        for sequence in 2..100 {
            assert_eq!(detector.update(stop(sequence), |_| true), None, "each stop ends");
        }
        for _ in 0..100 {
            assert_eq!(detector.update(stop(100), |_| false), None, "the thread is not stopped yet");
            assert_eq!(detector.update([7_u64 << 32].into_iter(), |_| true), None, "nothing is held");
        }
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
