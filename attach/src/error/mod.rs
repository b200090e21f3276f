//! Errors of attaching to a process.

mod gdb;

use std::fmt;
use std::io;
use std::path::Path;

pub use gdb::GdbError;

use crate::bpf::{BpfRefusal, VmList};
use crate::host_names::NamesRefusal;

/// Number of the capability (include/uapi/linux/capability.h).
const CAP_SYS_PTRACE: u32 = 19;

/// Reason why stacks of the host are not available.
#[derive(Debug, thiserror::Error)]
pub enum HostStacksRefusal {
    /// The vCPUs are to be stopped.
    #[error("only the host's kernel takes stacks of the host; leave out `--engine ptrace`")]
    Stops,
    /// The host's kernel takes no samples.
    #[error("the host's kernel has to take the samples, and cannot: {0}")]
    Engine(BpfRefusal),
    /// Functions of the kernel would have no names.
    #[error("{0}")]
    Names(NamesRefusal),
}

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
    /// The host's kernel has no such call.
    #[error(
        "cannot {action}: {source}. Attaching to a process needs Linux {needed}: attach through QEMU's GDB stub (`--gdb`), \
         or outside of the container",
        needed = vmm::host_kernel::PIDFD_GETFD.since
    )]
    OldKernel {
        /// The step.
        action: &'static str,
        /// The call, as a sentence.
        source: io::Error,
    },
    /// The machine is protected from the host.
    #[error(
        "the virtual machine of process {pid} ({name}) is confidential (SEV, TDX): {found}. Its registers and memory \
         are hidden from the host; vprof has not changed anything"
    )]
    Confidential {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
        /// Evidence, as a clause.
        found: String,
    },
    /// The host's kernel takes no samples of the machine.
    #[error(
        "the host's kernel cannot sample process {pid} (`--engine bpf`): {refusal}; use `--engine ptrace`"
    )]
    Bpf {
        /// The process.
        pid: i32,
        /// The reason.
        refusal: BpfRefusal,
    },
    /// Stacks of the host are not available.
    #[error("`--host-stacks` is not available for process {pid}: {refusal}")]
    HostStacks {
        /// The process.
        pid: i32,
        /// The reason.
        refusal: HostStacksRefusal,
    },
    /// The process has several machines, of which one has to be chosen.
    #[error(
        "process {pid} ({name}) runs several virtual machines ({machines}); choose one by its number (`--vm`)"
    )]
    SeveralVms {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
        /// The machines.
        machines: VmList,
    },
    /// The process has no machine with that number.
    #[error("process {pid} ({name}) has no virtual machine {number} (`--vm`); it runs {machines}")]
    NoSuchVm {
        /// The process.
        pid: i32,
        /// Name of the process.
        name: String,
        /// The given number.
        number: usize,
        /// The machines.
        machines: VmList,
    },
    /// The process has several machines, and stops do not distinguish their vCPUs.
    #[error(
        "process {pid} ({name}) runs several virtual machines, whose vCPUs only the host's kernel distinguishes \
         (`--engine bpf --vm 1`); use that, or run each in its own process"
    )]
    SeveralByStops {
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
    /// Several processes that a process has started hold virtual machines.
    #[error("process {pid} ({name}) has started several virtual machines{}; give the process id", MachineList(.running))]
    SeveralBelow {
        /// The given process.
        pid: i32,
        /// Name of the process.
        name: String,
        /// Process ids and names of those that hold the machines.
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
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        f.write_str(&permission_hint(Path::new("/"), &status, program))
    }
}

/// Returns the reason why tracing is forbidden on the machine with this root directory, and what to do, for a
/// process with this status (proc_pid_status(5)).
fn permission_hint(root: &Path, status: &str, program: &str) -> String {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    if read("proc/sys/kernel/yama/ptrace_scope").trim() == "3" {
        return "kernel.yama.ptrace_scope is 3 here, which forbids tracing until the next boot".to_owned();
    }
    // The value, and the value after the next commit (security/selinux/selinuxfs.c).
    if read("sys/fs/selinux/booleans/deny_ptrace").trim_start().starts_with('1') {
        return "SELinux forbids tracing here; allow it (`sudo setsebool deny_ptrace off`), then attach"
            .to_owned();
    }
    let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    let permitted = permitted.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    if permitted & 1 << CAP_SYS_PTRACE != 0 {
        return "vprof has the capability (CAP_SYS_PTRACE); a security module (SELinux, AppArmor) or a container's filter \
                forbids it, or the process is in another user namespace. Run vprof outside of containers, as root"
            .to_owned();
    }
    format!(
        "run it with sudo, or let a group run it with the right to trace: `sudo groupadd -f vprof`, `sudo chgrp vprof \
         {program}`, `sudo chmod 0750 {program}`, `sudo setcap cap_sys_ptrace,cap_dac_read_search+ep {program}`"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_what_forbids_tracing() {
        let root = std::env::temp_dir().join(format!("vprof-hint-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let (none, tracing) = ("CapPrm:\t0000000000000000\n", "Name:\tx\nCapPrm:\t0000000000080000\n");
        let hint = |status| permission_hint(&root, status, "/usr/bin/vprof");
        write("proc/sys/kernel/yama/ptrace_scope", "1\n");
        write("sys/fs/selinux/booleans/deny_ptrace", "0 0");
        let advice = hint(none);
        let order = ["chgrp vprof", "chmod 0750", "setcap"].map(|word| advice.find(word).unwrap());
        // A change of the owner or the group drops a file's capabilities.
        assert!(order.is_sorted() && advice.contains("/usr/bin/vprof"), "{advice}");
        assert!(!hint(tracing).contains("setcap") && hint(tracing).contains("AppArmor"));
        write("sys/fs/selinux/booleans/deny_ptrace", "1 1");
        assert!(hint(tracing).contains("deny_ptrace off") && !hint(none).contains("setcap"));
        write("proc/sys/kernel/yama/ptrace_scope", "3\n");
        assert!(hint(none).contains("until the next boot"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
