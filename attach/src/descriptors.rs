//! Open descriptors of another process, by a directory in /proc that is opened once: a process inside a
//! sandbox can list them without opening a file.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{OFlag, open, readlinkat};
use nix::sys::stat::Mode;
use rustix::fs::{RawDir, SeekFrom, seek};

/// Bytes of a part of a list: the C library's way would keep 32 KiB.
const PART: usize = 4 << 10;

/// Directory `/proc/PID/fd`, kept open. The lock is for its position.
#[derive(Debug)]
pub(crate) struct OpenDescriptors(Mutex<OwnedFd>);

impl OpenDescriptors {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(Self(Mutex::new(open(Path::new(&format!("/proc/{pid}/fd")), flags, Mode::empty())?)))
    }

    /// Returns the descriptors and their links.
    pub(crate) fn links(&self) -> io::Result<Vec<(i32, OsString)>> {
        let directory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seek(&*directory, SeekFrom::Start(0))?;
        let mut part = [MaybeUninit::uninit(); PART];
        let mut list = RawDir::new(&*directory, &mut part);
        let mut numbers: Vec<i32> = Vec::new();
        while let Some(entry) = list.next() {
            numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
        }
        // A descriptor may be closed meanwhile.
        let link = |fd: i32| Some((fd, readlinkat(&*directory, fd.to_string().as_str()).ok()?));
        Ok(numbers.into_iter().filter_map(link).collect())
    }

    /// Returns the descriptors whose links start with `prefix`, with the number after it, in order of these
    /// numbers.
    pub(crate) fn numbered(&self, prefix: &str) -> io::Result<Vec<(u32, i32)>> {
        let number = |link: &OsString| link.to_str()?.strip_prefix(prefix)?.parse().ok();
        let links = self.links()?;
        let mut found: Vec<_> = links.iter().filter_map(|(fd, link)| Some((number(link)?, *fd))).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Returns true if the link of one of these descriptors starts with `prefix`.
    pub(crate) fn has_any(&self, descriptors: &[i32], prefix: &str) -> bool {
        let directory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.iter().any(|fd| {
            let link = readlinkat(&*directory, fd.to_string().as_str());
            link.is_ok_and(|link| link.to_str().is_some_and(|link| link.starts_with(prefix)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_list_is_of_the_time_when_it_is_read() {
        let own = OpenDescriptors::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let file = File::open("/dev/zero").unwrap();
        let listed = || own.links().unwrap().into_iter().find(|(fd, _)| *fd == file.as_raw_fd());
        for _ in 0..3 {
            assert_eq!(listed().unwrap().1, "/dev/zero");
        }
        assert!(own.has_any(&[-1, file.as_raw_fd()], "/dev/ze") && !own.has_any(&[-1], "/"));
        assert!(OpenDescriptors::open(i32::MAX).is_err());
    }
}
