//! `guest-init`: PID 1 of the guests that this project builds.
//!
//! ```text
//! initramfs: /init                      this program
//!            /lib/modules/load-order    the kernel modules to load, in order
//!            /vprof/command             optional: the command, its arguments each ended by a NUL
//!
//! mount /proc /sys /dev -> load modules -> first virtio disk? -> mount it, make it the root
//!   -> run the command (or /usr/bin/demo-load) on the console, reap orphans -> end everything, unmount;
//!      where the machine has ports for the command's output, it goes there instead
//!   -> with a command: its duration to I/O port 0xf8, its exit status to 0xf4; without: power off
//! ```
//!
//! Kernel command line: `ro` keeps the root read-only, `root=/dev/NAME` chooses another disk.
//!
//! Exit statuses follow the shell: 0 to 255 from the command itself, 128 + signal if a signal ended the
//! command, 127 if the command does not exist, 126 if it cannot be run, 125 if init cannot set up the guest.

mod command;
mod end;
mod modules;
mod output;
mod root;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::time::Duration;

use guest_programs::{COMMAND_FILE, DEMO_LOAD, decode_command};
use nix::errno::Errno;

/// Failure to set up the guest.
#[derive(Debug)]
enum SetupError {
    /// A file system of the kernel cannot be mounted.
    Mount { what: String, at: String, errno: Errno },
    /// A mount cannot be moved to the root disk.
    Move { what: &'static str, errno: Errno },
    /// The root disk cannot be mounted.
    Disk { disk: PathBuf, errno: Errno },
    /// The root disk cannot become the root of the file system.
    Root { disk: PathBuf, errno: Errno },
    /// The root disk did not become a block device in time.
    NoDisk { wanted: String, limit: Duration },
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount { what, at, errno } => write!(f, "cannot mount {what} at {at}: {}", errno.desc()),
            Self::Move { what, errno } => write!(f, "cannot move {what} to the root disk: {}", errno.desc()),
            Self::Disk { disk, errno } => {
                write!(f, "cannot mount {} as ext4: {}", disk.display(), errno.desc())
            }
            Self::Root { disk, errno } => {
                write!(f, "cannot make {} the root: {}", disk.display(), errno.desc())
            }
            Self::NoDisk { wanted, limit } => {
                write!(f, "{wanted} did not appear within {} s", limit.as_secs())
            }
        }
    }
}

/// Exit status if init cannot set up the guest.
const STATUS_SETUP: u8 = 125;

fn main() -> ExitCode {
    if process::id() != 1 {
        eprintln!("guest-init: works only as the first process of a guest");
        return ExitCode::from(2);
    }
    // The command is read first, because the change of the root makes its file unreachable.
    let given = fs::read(COMMAND_FILE).map(|bytes| decode_command(&bytes)).unwrap_or_default();
    let has_command = !given.is_empty();
    let (status, took) = match set_up() {
        Ok(()) => command::run(if has_command { given } else { vec![DEMO_LOAD.into()] }),
        Err(error) => {
            eprintln!("guest-init: {error}");
            (STATUS_SETUP, Duration::ZERO)
        }
    };
    end::end(has_command.then_some((status, took)))
}

/// Sets up everything that a program may expect of a Linux system.
fn set_up() -> Result<(), SetupError> {
    root::mount_kernel_file_systems()?;
    for problem in modules::load_all() {
        eprintln!("guest-init: {problem}");
    }
    root::enter_disk()?;
    root::mount_memory_file_systems()?;
    // No command needs these two. A host name makes prompts and logs readable.
    let _ = fs::write("/proc/sys/kernel/hostname", "vprof-guest");
    Ok(())
}
