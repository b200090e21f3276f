//! Configuration of a virtual machine.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::net::Backend;

/// Everything that [`crate::Machine::start`] needs to know.
#[derive(Debug)]
pub struct VmConfig {
    /// `/dev/kvm`, opened by another process; `None` has [`crate::Machine::start`] open it.
    pub kvm: Option<OwnedFd>,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// Guest memory in bytes, a multiple of 4 KiB, at most [`MAX_MEMORY`].
    pub memory_bytes: u64,
    /// Guest memory is backed by reserved huge pages of the host, 2 MiB each, and by nothing else. Its size
    /// is then a multiple of that.
    pub huge_pages: bool,
    /// Features of the vCPUs.
    pub cpu: CpuFeatures,
    /// First code that runs.
    pub payload: Payload,
    /// virtio-blk disks in the order in which the guest sees them (vda, vdb, ...).
    pub disks: Vec<Disk>,
    /// Gets every byte the guest writes to its first serial port (COM1).
    pub console: Console,
    /// Gets every byte the guest writes to its second serial port (COM2), which is there only with this.
    pub second_console: Option<Console>,
    /// Devices that few machines have.
    pub extra: Extra,
}

impl VmConfig {
    /// Makes the configuration of a machine with one vCPU and 8 MiB of memory that runs a few bytes of code
    /// ([`Payload::Flat`]) at CPL 3. It has no disks, and its console's output is dropped.
    pub fn flat(code: impl Into<Vec<u8>>) -> Self {
        Self {
            kvm: None,
            vcpus: 1,
            memory_bytes: 8 << 20,
            huge_pages: false,
            cpu: CpuFeatures::default(),
            payload: Payload::Flat { code: code.into(), cpl: 3 },
            disks: Vec::new(),
            console: Console(Box::new(io::sink())),
            second_console: None,
            extra: Extra::default(),
        }
    }
}

/// Features of the vCPUs that a machine has on request only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuFeatures {
    /// The guest may run virtual machines itself (VMX, SVM), as far as the host's KVM lets it. Without this,
    /// KVM's nested virtualization, which is its largest part, is out of the guest's reach.
    pub nested: bool,
    /// The guest has performance counters, as far as the host's KVM emulates them. They compete with the
    /// host's own for the processor's, and make entries into the guest slower.
    pub pmu: bool,
}

/// Devices besides disks, serial ports and the random number generator; none by default.
#[derive(Debug, Default)]
pub struct Extra {
    /// A virtio-net card.
    pub network: Option<Network>,
    /// A virtio-console (`hvc0`), with what gets every byte that the guest writes to it.
    pub console: Option<Console>,
    /// Ports for the output of a command.
    pub ports: Option<OutputPorts>,
}

/// Number of ports of [`OutputPorts`].
pub const OUTPUT_PORTS: usize = 2;

/// A virtio-console with named ports, to which the guest's programs write (`/sys/class/virtio-ports/*/name`).
#[derive(Debug)]
pub struct OutputPorts {
    /// Names of the ports.
    pub names: [&'static str; OUTPUT_PORTS],
    /// Reader of all of them.
    pub reader: Box<dyn PortReader>,
}

/// Reader of what the guest writes to its ports. The device's thread calls it, so nothing here waits.
pub trait PortReader: Send + fmt::Debug {
    /// Returns the number of bytes that can be taken from a port now; `at_end` also counts room for what the
    /// guest has written before its machine ends or its driver resets the device, for which it can't wait.
    fn room(&self, port: usize, at_end: bool) -> usize;

    /// Takes bytes of a port, no more than it has room for.
    fn take(&mut self, port: usize, bytes: &[u8]);

    /// Takes note of so many bytes that had no room at the end.
    fn lose(&mut self, port: usize, bytes: u64);

    /// Returns a descriptor that becomes readable when there may be more room.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes the descriptor unreadable again. Room is checked afterwards.
    fn acknowledge(&mut self);
}

/// A network card.
#[derive(Debug)]
pub struct Network {
    /// Its address, as the guest reads it.
    pub mac: [u8; 6],
    /// Network to which the card is connected.
    pub backend: Box<dyn Backend>,
}

/// The most vCPUs a machine may have.
pub const MAX_VCPUS: u8 = 64;
/// The most memory a machine may have, bytes (256 GiB).
pub const MAX_MEMORY: u64 = 256 << 30;

/// Code that the machine runs.
#[derive(Debug, Clone)]
pub enum Payload {
    /// A Linux kernel: bzImage or ELF vmlinux, as bytes.
    Linux {
        /// The file's bytes.
        kernel: Vec<u8>,
        /// The initramfs' bytes, unpacked by the kernel.
        initrd: Option<Vec<u8>>,
        /// Kernel command line without a trailing NUL.
        cmdline: String,
    },
    /// A few bytes of 64-bit machine code, for self-tests and measurements. Runs on vCPU 0 with the first
    /// 4 GiB identity-mapped (2 MiB pages, user and kernel access), interrupts off, no IDT, and a stack that
    /// grows down from [`FLAT_ENTRY`]. The other vCPUs wait for an INIT that nobody sends.
    Flat {
        /// The code, loaded at and entered at [`FLAT_ENTRY`].
        code: Vec<u8>,
        /// Privilege level to run at: 0 or 3.
        cpl: u8,
    },
}

/// Guest physical and virtual address at which [`Payload::Flat`] starts.
pub const FLAT_ENTRY: u64 = 0x20_0000;

/// One virtio-blk disk.
#[derive(Debug)]
pub struct Disk {
    /// Source of the disk's bytes. Opened read-write unless `mode` forbids writing.
    pub file: DiskFile,
    /// Treatment of writes.
    pub mode: DiskMode,
}

/// Source of a disk's bytes.
#[derive(Debug)]
pub enum DiskFile {
    /// A raw image or a block device: byte by byte as the guest sees them.
    Raw(File),
    /// A file in a disk format.
    Formatted(Box<dyn DiskFormat>),
}

impl From<File> for DiskFile {
    fn from(file: File) -> Self {
        Self::Raw(file)
    }
}

/// Disk in a file with a disk format. All offsets and lengths are in bytes of the disk as the guest sees it,
/// and are within the disk.
pub trait DiskFormat: Send + fmt::Debug {
    /// Returns the size of the disk, bytes.
    fn size(&self) -> u64;

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// The file cannot be read or is damaged there.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The file cannot be written, is damaged there, or is open for reading only.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes what was written last.
    ///
    /// # Errors
    /// Not all of it is on the host's disk.
    fn flush(&self) -> io::Result<()>;
}

/// Treatment of a guest's writes to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskMode {
    /// They reach the file.
    ReadWrite,
    /// The guest sees a read-only disk.
    ReadOnly,
    /// They last until the machine ends and never reach the file.
    Snapshot,
}

/// Output of a console. A serial port writes to it from vCPU threads, so it must be quick.
pub struct Console(pub Box<dyn Write + Send>);

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Console")
    }
}
