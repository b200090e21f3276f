//! Why a machine could not start, and why a thread could not be joined.
//!
//! The doc comment of a variant says when it happens; its message says what was wrong, where,
//! and what to do next.

use std::io;
use std::time::Duration;

use vmm_sys_util::errno;

use crate::config::{MAX_MEMORY, MAX_VCPUS};

/// Why a machine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `/dev/kvm` is missing, closed to this user or of no use.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The number of vCPUs is not in 1..=[`MAX_VCPUS`].
    #[error("{asked} vCPUs: ask for 1 to {MAX_VCPUS}")]
    Vcpus {
        /// What was asked for.
        asked: u8,
    },
    /// This host's KVM allows fewer vCPUs (`KVM_CAP_MAX_VCPUS`).
    #[error("{asked} vCPUs: this host's KVM allows at most {most}")]
    VcpusBeyondKvm {
        /// What was asked for.
        asked: u8,
        /// What KVM allows.
        most: usize,
    },
    /// The memory size is zero, no multiple of 4 KiB, or beyond [`MAX_MEMORY`].
    #[error(
        "{asked} bytes of guest memory: ask for a multiple of 4 KiB, at most {} GiB",
        MAX_MEMORY >> 30
    )]
    MemorySize {
        /// What was asked for, bytes.
        asked: u64,
    },
    /// More memory than the host's RAM and swap together.
    #[error(
        "{} MiB of guest memory: this host has {} MiB of RAM and swap; ask for less",
        asked >> 20,
        host >> 20
    )]
    MemoryBeyondHost {
        /// What was asked for, bytes.
        asked: u64,
        /// RAM plus swap of the host, bytes.
        host: u64,
    },
    /// The host would not map the guest's memory.
    #[error("cannot map {} MiB of guest memory: {reason}; ask for less", asked >> 20)]
    MemoryMap {
        /// What was asked for, bytes.
        asked: u64,
        /// The host's words.
        reason: String,
    },
    /// The host has not enough huge pages for the guest's memory.
    #[error(
        "{pages} huge pages of 2 MiB for guest memory are not free: reserve them with `echo {pages} | sudo tee \
         /proc/sys/vm/nr_hugepages`"
    )]
    HugePages {
        /// How many are needed.
        pages: u64,
    },
    /// Guest memory is no whole number of huge pages.
    #[error("guest memory of {asked} bytes is no whole number of huge pages of 2 MiB: ask for a multiple")]
    HugePageSize {
        /// What was asked for, bytes.
        asked: u64,
    },
    /// Kernel, initrd and boot data do not fit into the guest's memory.
    #[error(
        "{} MiB of guest memory are too few: {what} needs {} MiB; ask for more",
        have >> 20,
        need.div_ceil(1 << 20)
    )]
    MemoryTooSmall {
        /// What does not fit.
        what: &'static str,
        /// Memory below 3 GiB that there is, bytes.
        have: u64,
        /// Memory that it takes, bytes.
        need: u64,
    },
    /// The kernel file is not one that can be booted.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The command line is longer than the kernel takes.
    #[error("the kernel command line has {length} bytes; this kernel takes at most {most}")]
    CommandLineTooLong {
        /// Its length, bytes.
        length: usize,
        /// The kernel's limit, bytes (`cmdline_size` of the boot protocol).
        most: usize,
    },
    /// The command line holds a NUL, which would end it early.
    #[error("the kernel command line holds a NUL byte at position {at}; remove it")]
    CommandLineNul {
        /// Where, bytes from its start.
        at: usize,
    },
    /// The initrd is empty.
    #[error("the initrd is empty; name a cpio archive or leave it out")]
    InitrdEmpty,
    /// Flat code is empty or asks for a level other than 0 and 3.
    #[error("flat code of {length} bytes at privilege level {cpl}: give code, and level 0 or 3")]
    Flat {
        /// Bytes of code.
        length: usize,
        /// The level asked for.
        cpl: u8,
    },
    /// More disks than PCI slots.
    #[error("{asked} disks: a machine takes at most {most}")]
    Disks {
        /// What was asked for.
        asked: usize,
        /// How many slots there are.
        most: usize,
    },
    /// A disk's file can not be used.
    #[error("disk {index} (counted from 0): {reason}")]
    Disk {
        /// Which one.
        index: usize,
        /// Why.
        reason: DiskError,
    },
    /// KVM refused a step of building the machine.
    #[error("KVM failed to {what}: {source}; `vprof doctor` tells what this host can do")]
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

/// What is wrong with `/dev/kvm`.
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
    #[error("/dev/kvm speaks API version {0}, not 12: it is not Linux's KVM")]
    Api(i32),
    /// A capability without which no machine can run.
    #[error("this host's KVM lacks {0}: a newer host kernel (4.12 or later) has it")]
    Capability(&'static str),
}

/// Why a kernel file can not be booted.
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
    #[error("this kernel speaks boot protocol {major}.{minor:02}; vprof needs 2.12, so Linux 3.8 or later")]
    TooOld {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// The file ends before the kernel does.
    #[error("the kernel file is cut off: it has {have} bytes and needs {need}; fetch it again")]
    Truncated {
        /// Bytes there are.
        have: u64,
        /// Bytes there should be.
        need: u64,
    },
    /// Its headers contradict each other.
    #[error("the kernel file is damaged: {0}; fetch it again")]
    Damaged(String),
}

/// Why a file can not serve as a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Its type or size can not be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A directory, a pipe, a socket, ...
    #[error("is neither a regular file nor a block device")]
    Kind,
    /// Smaller than one sector.
    #[error("has {0} bytes, less than one sector of 512; name a raw disk image")]
    TooSmall(u64),
    /// No place for what a snapshot's guest writes.
    #[error(
        "no temporary file for the snapshot in {directory}: {source}; set TMPDIR to a directory with room"
    )]
    Snapshot {
        /// Where it was tried.
        directory: String,
        /// The host's error.
        source: io::Error,
    },
}

/// A thread that did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("{thread} did not end within {waited:?}")]
pub struct WaitError {
    /// The thread's name.
    pub thread: String,
    /// How long it was given.
    pub waited: Duration,
}
