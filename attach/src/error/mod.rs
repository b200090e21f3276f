//! Errors of attaching to a process.

mod gdb;

use std::fmt;
use std::io;

pub use gdb::GdbError;

/// Reason why vprof cannot attach to a process.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No process has this id.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The given id.
        pid: i32,
    },
    /// The caller may not trace the process.
    #[error("vprof may not trace process {pid}: {PermissionHint}")]
    Permission {
        /// The process.
        pid: i32,
    },
    /// Another process traces a thread that vprof needs.
    #[error("process {pid} is being traced by {tracer} (process {tracer_pid}); end that first")]
    Traced {
        /// The process.
        pid: i32,
        /// Process id of the tracer.
        tracer_pid: i32,
        /// Name of the tracer.
        tracer: String,
    },
    /// Another vprof profiles the process.
    #[error("process {pid} is being profiled by another vprof{}; end that first", InProcess(*.by))]
    InUse {
        /// The process.
        pid: i32,
        /// Process id of the other vprof, if it is known.
        by: Option<i32>,
    },
    /// The process has no vCPU.
    #[error("process {pid} ({name}) runs no virtual machine: it has no KVM vCPU")]
    NoVm {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
    },
    /// The process has several machines.
    #[error(
        "process {pid} ({name}) runs several virtual machines, whose vCPUs cannot be told apart from outside; run each \
         in its own process"
    )]
    SeveralVms {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
    },
    /// The machine ended during the attempt to attach.
    #[error(
        "the virtual machine of process {pid} ({name}) ended while vprof attached to it; the process continues \
         without one"
    )]
    Ended {
        /// The process.
        pid: i32,
        /// Present name of the process.
        name: String,
    },
    /// The process is QEMU without KVM.
    #[error(
        "process {pid} ({name}) runs its guest without KVM; attach through QEMU's GDB stub (`--gdb HOST:PORT`)"
    )]
    NoKvm {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
    },
    /// A signal stopped the process.
    #[error("process {pid} ({name}) is stopped; resume it (`kill -CONT {pid}`), then attach")]
    Stopped {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
    },
    /// No thread runs the guest.
    #[error(
        "the virtual machine of process {pid} ({name}) is paused: none of its vCPUs was in the guest for {waited} s; \
         resume it (QEMU: `cont`), then attach"
    )]
    Paused {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
        /// Time for which vprof searched, s.
        waited: u64,
    },
    /// The machine has more vCPUs than can be profiled.
    #[error("the virtual machine of process {pid} has {vcpus} vCPUs; vprof supports at most {most}")]
    TooMany {
        /// The process.
        pid: i32,
        /// Number of vCPUs.
        vcpus: usize,
        /// Maximum number of vCPUs.
        most: usize,
    },
    /// No virtual machine has this name.
    #[error("no virtual machine is named {name}{}", MachineList(.running))]
    NoName {
        /// The given name.
        name: String,
        /// Process ids and names of the machines that run.
        running: Vec<(i32, String)>,
    },
    /// Several virtual machines have this name.
    #[error("several virtual machines are named {name}{}; give the process id", MachineList(.running))]
    Ambiguous {
        /// The given name.
        name: String,
        /// Process ids and names of these machines.
        running: Vec<(i32, String)>,
    },
    /// A GDB stub cannot be used.
    #[error(transparent)]
    Gdb(#[from] GdbError),
    /// A step failed that normally succeeds.
    #[error("cannot {action}: {source}")]
    Host {
        /// The step, like "map the run page of a vCPU".
        action: &'static str,
        /// Reason of the failure.
        source: io::Error,
    },
}

/// Displays how to get the permission to trace on this machine.
struct PermissionHint;

impl fmt::Display for PermissionHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.to_str()).unwrap_or("vprof");
        write!(
            f,
            "run it with sudo, or grant the right once: \
             `sudo setcap cap_sys_ptrace,cap_dac_read_search+ep {program}`"
        )?;
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        if scope.trim() == "3" {
            f.write_str(" (kernel.yama.ptrace_scope is 3 here, which forbids tracing until the next boot)")?;
        }
        Ok(())
    }
}

/// Displays the process id in parentheses, if it is known.
struct InProcess(Option<i32>);

impl fmt::Display for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " (process {pid})"))
    }
}

/// Displays process ids and names of virtual machines in parentheses.
struct MachineList<'a>(&'a [(i32, String)]);

impl fmt::Display for MachineList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(" (no process with a KVM vCPU is visible)");
        }
        let list: Vec<String> = self.0.iter().map(|(pid, name)| format!("{pid} {name}")).collect();
        write!(f, " ({})", list.join(", "))
    }
}
