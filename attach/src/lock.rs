//! Lock of a process for one vprof at a time: a lock of the file through which its memory is read.
//!
//! Only those who may trace the process can open the file, so no other user can hold the lock. The kernel
//! releases it at the end of its owner, however that ends.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;

use crate::error::AttachError;
use crate::process::{Process, step_error};
use crate::process_stat::StatFields;

/// Lock of a process, held as long as the process is profiled.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    file: File,
    pid: i32,
    held: bool,
}

impl ProcessLock {
    /// Locks the process for this vprof.
    pub(crate) fn take(process: &Process) -> Result<Self, AttachError> {
        let lock = Self::try_take(process)?;
        if lock.held { Ok(lock) } else { Err(lock.in_use()) }
    }

    /// Locks the process, unless another vprof has: [`Self::try_hold`] then takes it over.
    pub(crate) fn try_take(process: &Process) -> Result<Self, AttachError> {
        let pid = process.pid();
        let file = File::open(format!("/proc/{pid}/mem")).map_err(|error| failed(pid, error))?;
        let mut lock = Self { file, pid, held: false };
        lock.try_hold()?;
        Ok(lock)
    }

    /// Returns true if this vprof holds the lock, or can take it now.
    pub(crate) fn try_hold(&mut self) -> Result<bool, AttachError> {
        if !self.held {
            self.held = match self.file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => return Err(failed(self.pid, error)),
            };
        }
        Ok(self.held)
    }

    /// Returns true if this vprof holds the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Returns the error for a process that another vprof has locked.
    pub(crate) fn in_use(&self) -> AttachError {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let holder = self.file.metadata().ok().and_then(|file| owner(&locks, file.ino()));
        AttachError::InUse { pid: self.pid, by: holder.map(starter) }
    }
}

fn failed(pid: i32, error: std::io::Error) -> AttachError {
    step_error(pid, "reserve a virtual machine", error)
}

/// Returns the owner of the lock (flock(2)) of the file with this inode, by /proc/locks (proc_locks(5)):
/// `1: FLOCK  ADVISORY  WRITE 4711 00:15:1469708 0 EOF`.
fn owner(locks: &str, inode: u64) -> Option<i32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (kind, pid, file) = (fields.nth(1)?, fields.nth(2)?, fields.next()?);
        let found: u64 = file.rsplit(':').next()?.parse().ok()?;
        // 0: a process of another name space.
        (kind == "FLOCK" && found == inode).then(|| pid.parse().ok().filter(|pid| *pid > 0))?
    })
}

/// Returns the process that started this one, if it runs the same program: the vprof that its user ends, of
/// which this one is a part. Else the process itself.
fn starter(pid: i32) -> i32 {
    let program =
        |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()));
    let parent = fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| StatFields::new(&stat)?.get(4)?.parse().ok());
    parent.filter(|parent| program(pid).is_some_and(|own| program(*parent) == Some(own))).unwrap_or(pid)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;
    use std::process::Stdio;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use super::*;

    /// Serializes tests that lock this process.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_process_is_locked_once_until_it_is_released() {
        let _alone = alone();
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let first = ProcessLock::take(&process).unwrap();
        let refused = ProcessLock::take(&process).unwrap_err();
        assert!(matches!(refused, AttachError::InUse { by: Some(by), .. } if by == own), "{refused}");
        let mut next = ProcessLock::try_take(&process).unwrap();
        assert!(!next.is_held() && !next.try_hold().unwrap());
        drop(first);
        testkit::eventually("the lock", Duration::from_secs(10), || next.try_hold().unwrap().then_some(()));
        assert!(next.is_held() && ProcessLock::take(&process).is_err(), "taken over");
        drop(next);
        // A child of another test has a copy of the descriptor from its fork to its exec.
        testkit::eventually("a lock", Duration::from_secs(10), || ProcessLock::take(&process).ok());
    }

    #[test]
    fn a_part_of_vprof_is_the_vprof_that_started_it() {
        if std::env::var_os("VPROF_PART").is_some() {
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(starter(own), own, "its parent runs another program");
        let mut part = std::process::Command::new("/proc/self/exe")
            .args(["--exact", "lock::tests::a_part_of_vprof_is_the_vprof_that_started_it"])
            .env("VPROF_PART", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(part.id()).unwrap();
        assert_eq!(starter(pid), own);
        drop(part.stdin.take());
        assert!(part.wait().unwrap().success());
        assert_eq!(starter(pid), pid);
    }

    #[test]
    fn the_owner_is_found_among_the_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12 fe:00:7 0 EOF\n2: POSIX  ADVISORY  WRITE 13 00:15:8 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 00:15:9 0 EOF\n3: FLOCK  ADVISORY  WRITE 15 00:15:9 0 EOF\n";
        assert_eq!((owner(locks, 7), owner(locks, 8), owner(locks, 9)), (Some(12), None, Some(15)));
        assert_eq!(owner("4: FLOCK  ADVISORY  WRITE 0 00:15:9 0 EOF", 9), None);
    }

    #[test]
    fn those_who_may_not_trace_a_process_cannot_lock_it() {
        // SAFETY: has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return testkit::missing("root");
        }
        let own = std::process::id();
        let lock = format!("exec flock --nonblock /proc/{own}/mem true");
        let mut other = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::uid(&mut other, 65534);
        std::os::unix::process::CommandExt::gid(&mut other, 65534);
        let ended = other.args(["-c", &lock]).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && text.contains("ermission denied"), "{text}");
        // What another user can make: the name that was the lock.
        let _alone = alone();
        let process = Process::open(i32::try_from(own).unwrap()).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let start = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap();
        let name = format!("vprof-attach-{own}-{start}");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let _squatter = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        ProcessLock::take(&process).unwrap();
    }
}
