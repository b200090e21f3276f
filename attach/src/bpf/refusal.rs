//! Reasons why samples are not taken in the kernel.

use std::fmt;
use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

/// `ENOTSUPP` of the kernel (include/linux/errno.h), which no C library names.
const NOT_SUPPORTED: i32 = 524;

/// Reason why the host's kernel takes no samples of a machine.
#[derive(Debug, thiserror::Error)]
pub enum BpfRefusal {
    /// The kernel has no type information.
    #[error("the host's kernel has no readable type information (/sys/kernel/btf/vmlinux: {0})")]
    NoTypes(io::Error),
    /// The kernel lacks a member of a structure.
    #[error("the host's kernel has no member {0}")]
    NoMember(&'static str),
    /// KVM's vendor module is not supported.
    #[error("registers are readable in the kernel with kvm_amd, kvm_intel and kvm_pvm only")]
    Vendor,
    /// vprof may not load programs.
    #[error(
        "loading a program into the host's kernel needs root or CAP_BPF and CAP_PERFMON, and no lockdown"
    )]
    Permission,
    /// The kernel is too old.
    #[error("running a program on a given CPU needs Linux 5.10 on the host")]
    OldKernel,
    /// The verifier has refused the program.
    #[error("the host's kernel refuses vprof's program: {0}")]
    Verifier(String),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Host {
        /// The step.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The program object is not usable.
    #[error("cannot load vprof's program: {0}")]
    Program(String),
    /// This process is not in the host's namespace of processes.
    #[error("vprof is not in the host's pid namespace")]
    Namespace,
    /// The kernel's own data of a vCPU is not as expected.
    #[error("the kernel's data of vCPU {0} is not as expected ({1})")]
    Unknown(u32, &'static str),
    /// The state of the machine is hidden from the host, as the clause says.
    #[error("the virtual machine is confidential (SEV, TDX): {0}")]
    Protected(&'static str),
    /// The process has several machines.
    #[error("the process runs several virtual machines ({0}); choose one with `--vm`")]
    SeveralVms(VmList),
    /// The process has no machine with this number.
    #[error("the process has no virtual machine {0}, only {1}")]
    NoSuchVm(usize, VmList),
    /// The machine has more vCPUs than can be profiled.
    #[error("the virtual machine has {0} vCPUs")]
    TooMany(usize),
    /// No vCPU has a thread.
    #[error("no vCPU has been in the guest yet")]
    NoThreads,
    /// The registers are not those that KVM itself reports.
    #[error("the registers in the kernel differ from those that KVM reports: {0}")]
    Differs(String),
    /// The registers could not be compared.
    #[error(
        "no vCPU stopped in the guest, so the registers could not be compared with those that KVM reports"
    )]
    NotCompared,
    /// KVM does not read the instruction pointer at each exit.
    #[error(
        "KVM had read the instruction pointer at only {placed} of {samples} samples in the guest, \
         which shows the kernel no code"
    )]
    NotPlaced {
        /// Samples at which it had.
        placed: u32,
        /// Samples in the guest.
        samples: u32,
    },
    /// The kernel's trace points cannot be found.
    #[error("the host has no tracefs: mount it with `mount -t tracefs none /sys/kernel/tracing`")]
    NoTracefs,
    /// Only some of the registers are in KVM's memory.
    #[error("with kvm_intel the host's kernel takes the samples without stacks")]
    Partial,
}

/// Machine of a process, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmSummary {
    /// Number of its vCPUs.
    pub vcpus: usize,
    /// Size of its memory, bytes, if it is known.
    pub memory_bytes: Option<u64>,
}

/// Machines of a process, displayed with their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmList(pub Vec<VmSummary>);

impl fmt::Display for VmList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, VmSummary { vcpus, memory_bytes }) in self.0.iter().enumerate() {
            let (separator, plural) = (if index > 0 { "; " } else { "" }, if *vcpus == 1 { "" } else { "s" });
            write!(f, "{separator}{}: {vcpus} vCPU{plural}", index + 1)?;
            if let Some(bytes) = memory_bytes {
                write!(f, ", {} MiB", bytes >> 20)?;
            }
        }
        Ok(())
    }
}

/// Makes the refusal of a failed step.
pub(crate) fn host_refusal(action: &'static str) -> impl Fn(io::Error) -> BpfRefusal {
    move |source| BpfRefusal::from_step(action, source)
}

impl BpfRefusal {
    pub(crate) fn from_step(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission,
            Some(libc::ENOSYS | NOT_SUPPORTED) => Self::OldKernel,
            _ => Self::Host { action, source },
        }
    }
}

impl From<ProgramError> for BpfRefusal {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                let log = verifier_log.to_string();
                match verdict(&log) {
                    Some(line) => Self::Verifier(line.to_owned()),
                    None => Self::from_step("load a program into the kernel", io_error),
                }
            }
            ProgramError::SyscallError(error) => {
                Self::from_step("use a program in the kernel", error.io_error)
            }
            other => Self::Program(other.to_string()),
        }
    }
}

impl From<MapError> for BpfRefusal {
    fn from(error: MapError) -> Self {
        match error {
            MapError::CreateError { io_error, .. } => Self::from_step("make memory for a program", io_error),
            MapError::SyscallError(error) => Self::from_step("write a program's memory", error.io_error),
            other => Self::Program(other.to_string()),
        }
    }
}

impl From<EbpfError> for BpfRefusal {
    fn from(error: EbpfError) -> Self {
        match error {
            EbpfError::MapError(error) => error.into(),
            EbpfError::ProgramError(error) => error.into(),
            other => Self::Program(other.to_string()),
        }
    }
}

/// Returns the last line of the verifier's log that is not a part of its statistics.
fn verdict(log: &str) -> Option<&str> {
    let statistics = ["processed ", "stack depth ", "verification time "];
    let says = |line: &&str| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start));
    log.lines().map(str::trim).rfind(says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_the_last_line_that_is_not_a_number() {
        let log = "0: (b7) r0 = 0\nR1 invalid mem access 'scalar'\nverification time 5 usec\nstack depth 8\nprocessed 7 insns";
        assert_eq!(verdict(log), Some("R1 invalid mem access 'scalar'"));
        assert_eq!(verdict("processed 7 insns\n\n"), None);
    }

    #[test]
    fn what_a_user_can_change_has_its_own_sentence() {
        let refusal = |number| BpfRefusal::from_step("load a program", io::Error::from_raw_os_error(number));
        assert!(refusal(libc::EPERM).to_string().contains("CAP_BPF and CAP_PERFMON"));
        assert!(refusal(NOT_SUPPORTED).to_string().contains("5.10"));
        assert!(refusal(libc::ENOMEM).to_string().starts_with("cannot load a program: "));
    }
}
