//! Why a process cannot be attached to.

use std::fmt;
use std::io;

use crate::process::Process;

/// Why a process cannot be attached to; the message is a whole sentence.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nobody has this process id.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The id that was given.
        pid: i32,
    },
    /// The caller may not trace it.
    #[error("vprof may not trace process {pid}: {Permit}")]
    Permission {
        /// The process.
        pid: i32,
    },
    /// Another process traces a thread that is needed.
    #[error(
        "process {pid} is being traced by {tracer} (process {tracer_pid}) already, and a thread can have one tracer only: end it first"
    )]
    Traced {
        /// The process.
        pid: i32,
        /// Who traces it.
        tracer_pid: i32,
        /// The tracer's name.
        tracer: String,
    },
    /// Another vprof profiles it.
    #[error("process {pid} is being profiled by another vprof{} already: one at a time", By(*.by))]
    InUse {
        /// The process.
        pid: i32,
        /// The other vprof's process, where it can be told.
        by: Option<i32>,
    },
    /// It holds no vCPU.
    #[error("process {pid} ({name}) runs no virtual machine: it has no vCPU of KVM")]
    NoVm {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// Its machine ended while it was being attached to.
    #[error(
        "the virtual machine of process {pid} ({name}) ended while vprof attached to it: the process runs on without one"
    )]
    Ended {
        /// The process.
        pid: i32,
        /// Its name now.
        name: String,
    },
    /// QEMU without KVM.
    #[error(
        "process {pid} ({name}) runs its guest without KVM: that has no vCPUs of KVM; attach by QEMU's GDB stub (`--gdb HOST:PORT`)"
    )]
    NoKvm {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The process was stopped by a signal.
    #[error("process {pid} ({name}) is stopped: let it run on (`kill -CONT {pid}`), and attach then")]
    Stopped {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// No thread runs the guest.
    #[error(
        "the virtual machine of process {pid} ({name}) is paused: none of its vCPUs was in the guest for {waited} s; let it \
         run on (QEMU: `cont`), and attach then"
    )]
    Paused {
        /// The process.
        pid: i32,
        /// Its name.
        name: String,
        /// How long it was looked at, s.
        waited: u64,
    },
    /// More vCPUs than can be profiled.
    #[error("the virtual machine of process {pid} has {vcpus} vCPUs; vprof profiles at most {most}")]
    TooMany {
        /// The process.
        pid: i32,
        /// How many it has.
        vcpus: usize,
        /// How many are possible.
        most: usize,
    },
    /// No virtual machine has this name.
    #[error("no virtual machine is named {name}{}", Running(.running))]
    NoName {
        /// The name that was given.
        name: String,
        /// Process ids and names of those that run.
        running: Vec<(i32, String)>,
    },
    /// Several virtual machines have this name.
    #[error("several virtual machines are named {name}{}: give the process id", Running(.running))]
    Ambiguous {
        /// The name that was given.
        name: String,
        /// Process ids and names of those.
        running: Vec<(i32, String)>,
    },
    /// A GDB stub cannot be used.
    #[error(transparent)]
    Gdb(#[from] crate::gdb::GdbError),
    /// A step that always works did not.
    #[error("can't {action}: {source}")]
    Host {
        /// Like "map the run page of a vCPU".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl AttachError {
    /// A failure of a step on `pid`, told apart by its error number.
    pub(crate) fn of(pid: i32, action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission { pid },
            // A thread or a descriptor is gone, or all of them.
            Some(libc::ESRCH | libc::ENOENT | libc::EBADF) => match Process::open(pid) {
                Ok(process) if !process.is_ending() => Self::Ended { pid, name: process.name().to_owned() },
                _ => Self::NoProcess { pid },
            },
            _ => Self::Host { action, source },
        }
    }
}

/// What gives the permission, by what stands in the way here.
struct Permit;

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.to_str()).unwrap_or("vprof");
        write!(
            f,
            "run it with sudo, or give it the right once: `sudo setcap cap_sys_ptrace,cap_dac_read_search+ep {program}`"
        )?;
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        if scope.trim() == "3" {
            f.write_str(" (on this machine kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot)")?;
        }
        Ok(())
    }
}

struct By(Option<i32>);

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " (process {pid})"))
    }
}

struct Running<'a>(&'a [(i32, String)]);

impl fmt::Display for Running<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(" (no process with a vCPU of KVM can be seen)");
        }
        let list: Vec<String> = self.0.iter().map(|(pid, name)| format!("{pid} {name}")).collect();
        write!(f, " ({})", list.join(", "))
    }
}
