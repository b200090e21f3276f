//! Errors of starting a machine, and of joining a thread.
//!
//! The doc comment of a variant says when it happens; its message says what was wrong, where,
//! and what to do next.

use std::io;
use std::time::Duration;

use vmm_sys_util::errno;

use crate::config::{MAX_MEMORY, MAX_VCPUS};
use crate::host_kernel::KernelFeature;

/// Reason why a machine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `/dev/kvm` is missing, not permitted or unusable.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The number of vCPUs is not in 1..=[`MAX_VCPUS`].
    #[error("cannot make a machine with {asked} vCPUs; give 1 to {MAX_VCPUS}")]
    Vcpus {
        /// Requested number.
        asked: u8,
    },
    /// This host's KVM allows fewer vCPUs (`KVM_CAP_MAX_VCPUS`).
    #[error("cannot make a machine with {asked} vCPUs; this host's KVM allows at most {most}")]
    VcpusBeyondKvm {
        /// Requested number.
        asked: u8,
        /// Maximum of this KVM.
        most: usize,
    },
    /// The memory size is zero, not a multiple of 4 KiB, or beyond [`MAX_MEMORY`].
    #[error(
        "invalid size of guest memory: {asked} bytes; give a multiple of 4 KiB, at most {} GiB",
        MAX_MEMORY >> 30
    )]
    MemorySize {
        /// Requested size, bytes.
        asked: u64,
    },
    /// More memory than the host's RAM and swap together.
    #[error(
        "{} MiB of guest memory exceed this host's {} MiB of RAM and swap; give less",
        asked >> 20,
        host >> 20
    )]
    MemoryBeyondHost {
        /// Requested size, bytes.
        asked: u64,
        /// RAM plus swap of the host, bytes.
        host: u64,
    },
    /// The host would not map the guest's memory.
    #[error("cannot map {} MiB of guest memory: {reason}; give less", asked >> 20)]
    MemoryMap {
        /// Requested size, bytes.
        asked: u64,
        /// The host's error.
        reason: String,
    },
    /// The host has not enough huge pages for the guest's memory.
    #[error(
        "guest memory needs {pages} free huge pages of 2 MiB; reserve them with `echo {pages} | sudo tee \
         /proc/sys/vm/nr_hugepages`"
    )]
    HugePages {
        /// Number of pages that are needed.
        pages: u64,
    },
    /// Guest memory is not a multiple of the huge page size.
    #[error("guest memory ({asked} bytes) is not a multiple of the 2 MiB huge page size")]
    HugePageSize {
        /// Requested size, bytes.
        asked: u64,
    },
    /// Kernel, initrd and boot data do not fit into the guest's memory.
    #[error(
        "{} MiB of guest memory are too few: {what} needs {} MiB; give more",
        have >> 20,
        need.div_ceil(1 << 20)
    )]
    MemoryTooSmall {
        /// Data that does not fit.
        what: &'static str,
        /// Size of the memory below 3 GiB, bytes.
        have: u64,
        /// Size of the memory that is needed, bytes.
        need: u64,
    },
    /// The kernel file is not one that can be booted.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The command line is longer than the kernel takes.
    #[error("the kernel command line has {length} bytes; this kernel takes at most {most}")]
    CommandLineTooLong {
        /// Length, bytes.
        length: usize,
        /// The kernel's limit, bytes (`cmdline_size` of the boot protocol).
        most: usize,
    },
    /// The command line holds a NUL, which would end it early.
    #[error("the kernel command line holds a NUL byte at position {at}; remove it")]
    CommandLineNul {
        /// Position, bytes from the start.
        at: usize,
    },
    /// The initrd is empty.
    #[error("the initrd is empty; name a cpio archive or leave it out")]
    InitrdEmpty,
    /// Flat code is empty or has a level other than 0 and 3.
    #[error("invalid flat code of {length} bytes at privilege level {cpl}; give code, and level 0 or 3")]
    Flat {
        /// Length of the code, bytes.
        length: usize,
        /// Requested level.
        cpl: u8,
    },
    /// More disks than PCI slots.
    #[error("cannot attach {asked} disks; a machine takes at most {most}")]
    Disks {
        /// Requested number.
        asked: usize,
        /// Number of slots.
        most: usize,
    },
    /// A disk's file cannot be used.
    #[error("disk {index} (counted from 0): {reason}")]
    Disk {
        /// Index of the disk.
        index: usize,
        /// Reason of the failure.
        reason: DiskError,
    },
    /// KVM refused a step of building the machine.
    #[error("KVM failed to {what}: {source}; `vprof doctor` checks this host")]
    KvmStep {
        /// The step.
        what: &'static str,
        /// KVM's error.
        source: errno::Error,
    },
    /// The host refused a resource such as a thread, a timer or an event descriptor.
    #[error("the host refused {what}: {source}")]
    Host {
        /// The resource.
        what: &'static str,
        /// The host's error.
        source: io::Error,
    },
}

impl StartError {
    /// Names the step of an ioctl that failed.
    pub(crate) fn kvm(what: &'static str) -> impl FnOnce(errno::Error) -> Self {
        move |source| Self::KvmStep { what, source }
    }

    /// Names the resource that the host refused.
    pub(crate) fn host(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}

/// Reason why `/dev/kvm` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// There is no such device.
    #[error(
        "/dev/kvm does not exist: load the module (`sudo modprobe kvm_intel` or `sudo modprobe kvm_amd`) \
         and check that virtualization is enabled in the firmware or, inside a VM, that nesting is"
    )]
    Missing,
    /// This user may not open it.
    #[error(
        "no permission to open /dev/kvm: `sudo usermod -aG kvm $USER` and log in again, \
         or for this session `sudo setfacl -m u:$USER:rw /dev/kvm`"
    )]
    Denied,
    /// Another error of open(2).
    #[error("cannot open /dev/kvm: {0}")]
    Open(io::Error),
    /// Not the API that has been stable since Linux 2.6.22.
    #[error("/dev/kvm has API version {0}, not 12: it is not Linux's KVM")]
    Api(i32),
    /// A capability without which no machine can run.
    #[error("this host's KVM lacks {name}: Linux {since} or later has it", since = .needed.since)]
    Capability {
        /// Name of the capability.
        name: &'static str,
        /// Release that has all that a machine needs.
        needed: &'static KernelFeature,
    },
}

/// Reason why a kernel file cannot be booted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The file has no bytes.
    #[error("the kernel file is empty; name a bzImage or an ELF vmlinux")]
    Empty,
    /// Neither bzImage nor ELF.
    #[error("this is {0}, not a Linux kernel; name a bzImage (vmlinuz) or an ELF vmlinux")]
    NotAKernel(&'static str),
    /// A kernel for another kind of machine.
    #[error("this kernel is for {0}; vprof boots 64-bit x86 (x86_64) kernels")]
    Architecture(String),
    /// A boot protocol older than 2.12 (Linux 3.8), which has no 64-bit entry.
    #[error("this kernel has boot protocol {major}.{minor:02}; vprof needs 2.12, so Linux 3.8 or later")]
    TooOld {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// The file ends before the kernel does.
    #[error("the kernel file is cut off: it has {have} bytes and needs {need}; fetch it again")]
    Truncated {
        /// Size of the file, bytes.
        have: u64,
        /// Size that the headers require, bytes.
        need: u64,
    },
    /// Its headers contradict each other.
    #[error("the kernel file is damaged: {0}; fetch it again")]
    Damaged(String),
}

/// Reason why a file cannot serve as a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Its type or size cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A directory, a pipe, a socket, ...
    #[error("is neither a regular file nor a block device")]
    Kind,
    /// Smaller than one sector.
    #[error("has {0} bytes, less than one sector of 512; name a raw disk image")]
    TooSmall(u64),
    /// No temporary file for the writes of a snapshot's guest.
    #[error(
        "no temporary file for the snapshot in {directory}: {source}; set TMPDIR to a directory with room"
    )]
    Snapshot {
        /// Directory of the attempt.
        directory: String,
        /// The host's error.
        source: io::Error,
    },
}

/// Error of a thread that did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("{thread} did not end within {waited:?}")]
pub struct WaitError {
    /// The thread's name.
    pub thread: String,
    /// Time limit.
    pub waited: Duration,
}
