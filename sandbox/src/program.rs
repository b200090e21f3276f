//! Rights of another program that this process starts, like QEMU: what it gives up between fork and exec.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use landlock::{AccessFs, PathBeneath, PathFd, RulesetCreatedAttr};

use crate::{SandboxError, files, rights};

/// Sandbox around another program. It has no filter of system calls: those that it makes are not known.
#[derive(Debug)]
pub struct ProgramSandbox {
    /// Rules of Landlock, where the kernel has it.
    rules: Option<OwnedFd>,
}

impl ProgramSandbox {
    /// Prepares a sandbox. The program can read and execute what is below the paths of `readable` that exist,
    /// has its temporary files in `directory`, and writes to `/dev/null`.
    ///
    /// # Errors
    /// Landlock refuses.
    pub fn new(readable: &[&Path], directory: &Path) -> Result<Self, SandboxError> {
        let null = PathBeneath::new(PathFd::new("/dev/null")?, AccessFs::ReadFile | AccessFs::WriteFile);
        Ok(Self { rules: files::rules(readable, Some(directory))?.add_rule(null)?.into() })
    }

    /// Confines the calling process, between fork and exec. Makes system calls that are
    /// async-signal-safe, and allocates nothing.
    ///
    /// # Errors
    /// A part that this kernel has cannot be set up.
    pub fn enter(&self) -> io::Result<()> {
        rights::give_up(0).map_err(|(_, errno)| errno)?;
        let Some(rules) = &self.rules else { return Ok(()) };
        // SAFETY: the call takes two numbers.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
