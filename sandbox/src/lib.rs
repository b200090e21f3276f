//! The sandbox around a process with foreign bytes: the one that runs a guest, the one that reads disk
//! images, and the one that is attached to a guest of another VMM. A guest, or the author of an image, that
//! has taken over that process meets it.
//!
//! | part | what the process can no longer do | needs |
//! |---|---|---|
//! | `rights` | use capabilities, gain any by a program, leave a core dump, be read by other processes of its user | Linux 3.5 |
//! | `rights` | see the host's network, mounts, host name and System V objects | root |
//! | `files` | open a file but its own in /proc and those in one directory; TCP, abstract sockets, signals to others | Landlock: Linux 5.13, 6.7, 6.12 |
//! | `filter` | make other system calls than those that its threads are known to make | seccomp: Linux 4.14 |
//!
//! [`enter`] confines the calling thread and all that it starts. A thread of one kind gives up more with
//! [`enter_thread`]. [`enter_reader`] enters the sandbox of a process that only reads, [`enter_attached`]
//! that of a process which is attached to another VMM, or has started one. A VMM that is started has a
//! [`ProgramSandbox`], without a filter, and so has the worker of an agent ([`enter_worker`]). The kernel
//! evaluates the filters at each system call.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod files;
mod filter;
mod names;
mod program;
mod report;
mod rights;

pub use filter::{SyscallPolicy, ThreadKind};
pub use program::ProgramSandbox;
pub use report::{REFUSAL_ADVICE, REPORT_BYTES, RefusedCall};

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Possessions that the process keeps.
#[derive(Debug)]
pub struct SandboxConfig {
    /// Fate of a system call that no thread is known to make.
    pub policy: SyscallPolicy,
    /// Directory in which the process may create and change files: the one of its temporary files.
    pub directory: PathBuf,
    /// Receives [`REPORT_BYTES`] about a refused system call, before the process ends.
    pub report: OwnedFd,
}

/// Part of another VMM that an attached process reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It stops threads, and reads the memory of their process.
    Stops {
        /// The VMM.
        process: i32,
        /// The threads of its vCPUs.
        threads: Vec<i32>,
    },
    /// The host's kernel samples the vCPUs; the process's memory is read.
    Kernel {
        /// The VMM.
        process: i32,
        /// The threads of its vCPUs, if they are stopped as well.
        threads: Vec<i32>,
    },
    /// A GDB stub on an open socket.
    Stub {
        /// The VMM, if its memory is read.
        process: Option<i32>,
    },
    /// A VMM that this process has started: its stub and its devices on open sockets, its memory, its end.
    Child {
        /// The VMM.
        process: i32,
    },
}

impl Reach {
    /// Returns the VMM, if its memory is read.
    pub fn process(&self) -> Option<i32> {
        match self {
            Self::Stops { process, .. } | Self::Kernel { process, .. } | Self::Child { process } => {
                Some(*process)
            }
            Self::Stub { process } => *process,
        }
    }
}

/// Possessions that an attached process keeps.
#[derive(Debug)]
pub struct AttachedSandbox {
    /// Fate of a system call that no thread is known to make.
    pub policy: SyscallPolicy,
    /// The VMM.
    pub reach: Reach,
    /// Capabilities that it keeps if it has them, as a set of bits.
    pub capabilities: u64,
    /// Receives [`REPORT_BYTES`] about a refused system call, before the process ends.
    pub report: OwnedFd,
}

/// Resources that a process which reads foreign bytes may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Address space, bytes.
    pub memory_bytes: u64,
    /// Size of a file that it writes, bytes.
    pub file_bytes: u64,
    /// CPU time. SIGXCPU ends the process then.
    pub cpu_seconds: u64,
}

/// Address space of a process that is attached to another VMM, bytes. Its largest part is what the C library
/// reserves for threads, 128 MiB each (glibc's HEAP_MAX_SIZE, malloc/arena.c), and 64 vCPUs have 70 threads.
const ATTACHED_MEMORY: u64 = 32 << 30;
/// Size of the file of an initrd's programs, bytes: unpacked, an initrd has at most 2 GiB.
const INITRD_PROGRAMS: u64 = 2 << 30;

/// Parts of the sandbox that apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveSandbox {
    /// Files are kept away, by Landlock or by the filters.
    pub files: bool,
    /// The process has separate namespaces.
    pub namespaces: bool,
    /// System calls are filtered.
    pub syscalls: bool,
}

impl ActiveSandbox {
    /// Returns the parts as words, like `files, namespaces, system calls`.
    pub fn words(self) -> String {
        let parts = [(self.files, "files"), (self.namespaces, "namespaces"), (self.syscalls, "system calls")];
        let words: Vec<&str> = parts.iter().filter(|(stands, _)| *stands).map(|(_, word)| *word).collect();
        if words.is_empty() { "rights".to_owned() } else { format!("rights, {}", words.join(", ")) }
    }
}

/// Part of the sandbox that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The process cannot give up a right.
    #[error("cannot {action}: {}", .source.desc())]
    Rights {
        /// The action, like "drop its capabilities".
        action: &'static str,
        /// Error of the kernel.
        source: nix::errno::Errno,
    },
    /// Landlock refuses.
    #[error("cannot restrict files with Landlock: {0}")]
    Files(#[from] landlock::RulesetError),
    /// A path that stays open cannot be opened.
    #[error("cannot restrict files with Landlock: {0}")]
    Path(#[from] landlock::PathFdError),
    /// A filter cannot be compiled.
    #[error("cannot compile a filter of system calls: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel takes no filter.
    #[error(
        "cannot filter system calls (CONFIG_SECCOMP_FILTER of Linux 4.14 or later): {0}; `--seccomp off` runs without"
    )]
    Filter(seccompiler::Error),
}

static FILTERS: OnceLock<filter::Filters> = OnceLock::new();

/// Confines the calling thread and all that it starts: the process, which has one thread when
/// it calls this.
///
/// # Errors
/// A part that this kernel has cannot be set up. Landlock and namespaces are left out where the kernel or the
/// process's rights do not allow them.
pub fn enter(config: SandboxConfig) -> Result<ActiveSandbox, SandboxError> {
    let SandboxConfig { policy, directory, report } = config;
    let namespaces = rights::enter_namespaces();
    give_up(0)?;
    let files = files::restrict(Some(&directory))?;
    let syscalls = policy != SyscallPolicy::Off;
    if syscalls {
        install(filter::Filters::of_guest(policy)?, report)?;
    }
    Ok(ActiveSandbox { files, namespaces, syscalls })
}

fn give_up(kept: u64) -> Result<(), SandboxError> {
    rights::give_up(kept).map_err(|(action, source)| SandboxError::Rights { action, source })
}

fn limit_resources(limits: ResourceLimits) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::Rights { action: "limit its resources", source };
    rights::limit_resources(limits).map_err(failed)
}

fn install(filters: filter::Filters, report: OwnedFd) -> Result<(), SandboxError> {
    report::install(report)?;
    filters.apply_to_process().map_err(SandboxError::Filter)?;
    // Entered once: a second call would add a second filter, and nothing else.
    let _first = FILTERS.set(filters);
    Ok(())
}

/// Confines the calling thread and all that it starts: a process with one thread that has
/// opened all that it reads of another VMM. It can open no file from here on.
///
/// There is no Landlock: inside of it a thread traces no process that is outside (kernel's
/// Documentation/userspace-api/landlock.rst, "Ptrace restrictions"), and reads nothing of it in /proc.
/// Separate namespaces are as in [`enter_reader`].
///
/// # Errors
/// A part that this kernel has cannot be set up.
pub fn enter_attached(config: AttachedSandbox) -> Result<ActiveSandbox, SandboxError> {
    let AttachedSandbox { policy, reach, capabilities, report } = config;
    let namespaces = policy != SyscallPolicy::Refuse && rights::enter_namespaces();
    give_up(capabilities)?;
    // Of a guest that it boots, it keeps the programs of the initrd; else it writes no file.
    let file_bytes = if matches!(reach, Reach::Child { .. }) { INITRD_PROGRAMS } else { 0 };
    let memory_bytes = ATTACHED_MEMORY;
    limit_resources(ResourceLimits { memory_bytes, file_bytes, cpu_seconds: u64::MAX })?;
    let syscalls = policy != SyscallPolicy::Off;
    if syscalls {
        install(filter::Filters::of_attached(&reach, policy)?, report)?;
    }
    Ok(ActiveSandbox { files: policy == SyscallPolicy::Refuse, namespaces, syscalls })
}

/// Confines the calling thread, the only one of its process, and leaves it with open
/// descriptors alone: no file, no other thread, and no more than these resources. `report` is as in
/// [`SandboxConfig`].
///
/// Namespaces are entered only where calls outside of the filter are made: with the filter on, no call is
/// left that sees them, and they take 10 to 30 ms, as the end of a mount namespace waits for all CPUs.
///
/// # Errors
/// As of [`enter`].
pub fn enter_reader(
    policy: SyscallPolicy,
    limits: ResourceLimits,
    report: OwnedFd,
) -> Result<ActiveSandbox, SandboxError> {
    let namespaces = policy != SyscallPolicy::Refuse && rights::enter_namespaces();
    give_up(0)?;
    limit_resources(limits)?;
    let files = files::restrict(None)?;
    let syscalls = policy != SyscallPolicy::Off;
    if syscalls {
        report::install(report)?;
        report::set_kind(ThreadKind::Reader);
        filter::apply_alone(ThreadKind::Reader, policy)?;
    }
    Ok(ActiveSandbox { files, namespaces, syscalls })
}

/// Confines the calling thread and all that it starts: a process that makes files of
/// recordings, or sends them. It has no capability, and opens no file but those below the paths of `readable`
/// that exist, for reading, and those in `directories`. With `connects` it begins connections of TCP.
///
/// There is no filter of system calls: libraries of the network, of TLS and of databases make those that they
/// need.
///
/// # Errors
/// As of [`enter`].
pub fn enter_worker(
    readable: &[&Path],
    directories: &[&Path],
    connects: bool,
) -> Result<ActiveSandbox, SandboxError> {
    give_up(0)?;
    let files = files::restrict_to(readable, directories, connects)?;
    Ok(ActiveSandbox { files, namespaces: false, syscalls: false })
}

/// Gives up the system calls that a thread of this kind does not make. Does nothing in a process without a
/// sandbox.
///
/// # Panics
/// If the kernel refuses a filter although it has taken that of the process.
pub fn enter_thread(kind: ThreadKind) {
    if let Some(filters) = FILTERS.get() {
        report::set_kind(kind);
        filters.apply_to_thread(kind).expect("a filter after the process's");
    }
}
