//! A run as plain data: the same whether the guest runs on this machine or in the portable host.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use attach::AttachmentEnd;
use disk_images::ImageError;
use disk_images::contents::{self, DiskContents, ImageFormat};
use disk_images::lock::{self, DiskInUse};
use profile::conditions::RunTrigger;
use sampler::{RecordingConfig, SessionTotals};
use sandbox::SyscallPolicy;
use serde::{Deserialize, Serialize};
use vmm::{CpuFeatures, DiskMode, MachineEnd};

use crate::network::NetworkSpec;
use crate::systemd::GuestCommand;

/// Everything about a run besides the bytes to boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The guest's machine.
    pub machine: MachineSpec,
    /// A command for a guest with systemd.
    pub command: Option<GuestCommand>,
    /// Configuration of its recording.
    pub recording: RecordingConfig,
    /// The run ends after this time.
    pub duration: Option<Duration>,
    /// Fate of system calls that the guest's process is not known to make.
    pub policy: SyscallPolicy,
    /// Conditions that are waited for from the start on.
    pub waits: Vec<RunTrigger>,
    /// Restarts after faults of the emulated host that came when something was measured already.
    pub retries: u32,
    /// Rows of the profile's table `meta`.
    pub meta: Vec<(String, String)>,
}

/// Configuration of the guest's machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Guest memory, bytes.
    pub memory_bytes: u64,
    /// Guest memory is backed by huge pages of the host that are reserved.
    pub huge_pages: bool,
    /// Features of the vCPUs that a guest has on request only.
    pub cpu: CpuFeatures,
    /// Kernel command line.
    pub cmdline: String,
    /// Disks in the order in which the guest sees them.
    pub disks: Vec<DiskSpec>,
    /// The guest's network card.
    pub network: Option<NetworkSpec>,
    /// The guest's console is a virtio-console.
    pub virtio_console: bool,
    /// The guest has ports for the output of a command.
    pub output_ports: bool,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Image or block device.
    pub path: PathBuf,
    /// Format of its file.
    pub format: ImageFormat,
    /// Fate of the guest's writes.
    pub mode: DiskMode,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// End of the guest.
    pub end: GuestEnd,
    /// Totals of the recording.
    pub totals: SessionTotals,
    /// Number of restarts of the portable host after faults of its emulation.
    pub host_restarts: u32,
    /// Failures after the guest's end, one sentence each; the recording is complete.
    pub trouble: Vec<String>,
}

/// End of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestEnd {
    /// Its machine, which was vprof's, came to this end.
    Ran(MachineEnd),
    /// It was attached to, and is not any more.
    Left(AttachmentEnd),
}

impl GuestEnd {
    /// One sentence for the profile.
    pub fn sentence(&self) -> String {
        match self {
            Self::Ran(MachineEnd::PowerOff) => "the guest powered off".to_owned(),
            Self::Ran(MachineEnd::Reset) => "the guest reset itself".to_owned(),
            Self::Ran(MachineEnd::Exited(code)) => format!("the guest's command ended with status {code}"),
            Self::Ran(MachineEnd::Stopped) => "vprof stopped the guest".to_owned(),
            Self::Ran(MachineEnd::Failed(reason)) => format!("the guest failed: {reason}"),
            Self::Left(end) => left(*end).to_owned(),
        }
    }
}

fn left(end: AttachmentEnd) -> &'static str {
    match end {
        AttachmentEnd::Detached => "detached; the virtual machine runs on",
        AttachmentEnd::ProcessEnded => "the virtual machine's process has ended",
        AttachmentEnd::VcpusEnded => {
            "the process has no vCPU threads any more: it executes another program, or has closed its machine"
        }
        AttachmentEnd::Reset => {
            "the guest was reset, so its kernel is no longer the one that was read: attach again"
        }
        AttachmentEnd::Outgrown => "a vCPU was plugged in for which this recording has no room; attach again",
        AttachmentEnd::StubClosed => {
            "the GDB stub has closed the connection: its VMM has ended, or has no stub any more"
        }
        AttachmentEnd::StubSilent => "the GDB stub does not answer any more",
    }
}

impl DiskSpec {
    /// Returns the disk at `path`, whose format is `format`, or else that of its first bytes.
    ///
    /// # Errors
    /// There is no disk image that can be read.
    pub fn new(path: PathBuf, format: Option<ImageFormat>, mode: DiskMode) -> Result<Self, ImageError> {
        let file = disk_images::open("the disk", &path, disk_images::WANTED_DISK)?;
        let format = ImageFormat::choose(format, &file, &path)?;
        Ok(Self { path, format, mode })
    }

    /// The disk's bytes in its open file.
    ///
    /// # Errors
    /// The file is not what the format says.
    pub fn contents(&self, file: File, writable: bool) -> Result<DiskContents, ImageError> {
        DiskContents::open(file, self.format, writable, &self.path)
    }

    /// The guest's writes reach the image.
    pub fn is_written(&self) -> bool {
        self.mode == DiskMode::ReadWrite
    }

    /// Opens the disk as its mode needs it. A block device that is to be written is opened for this program
    /// alone: neither mounted nor part of a RAID or LVM.
    ///
    /// # Errors
    /// It cannot be read, or not written where it has to be.
    pub fn open(&self) -> Result<File, ImageError> {
        let readable = disk_images::open("the disk", &self.path, disk_images::WANTED_DISK)?;
        let mut options = OpenOptions::new();
        options.read(true).write(self.is_written());
        if self.is_written() && is_block_device(readable.metadata()) {
            // Of a block device and without O_CREAT: open(2).
            options.custom_flags(libc::O_EXCL);
        }
        options.open(&self.path).map_err(|source| {
            if !self.is_written() {
                ImageError::Read { what: "the disk", path: self.path.clone(), source }
            } else if source.kind() == io::ErrorKind::ResourceBusy {
                ImageError::DeviceInUse { path: self.path.clone() }
            } else {
                ImageError::ReadOnly { path: self.path.clone(), source }
            }
        })
    }

    /// Opens the disk and locks it against other runs of vprof and against other VMMs, as long as the file is
    /// open ([`disk_images::lock`]). The reader of images checks what is in it.
    ///
    /// # Errors
    /// As of [`Self::open`], or another program uses it.
    pub fn open_locked(&self) -> Result<File, ImageError> {
        let file = self.open()?;
        let writes = self.is_written();
        lock::lock(&file, writes).map_err(|DiskInUse { holder }| ImageError::InUse {
            path: self.path.clone(),
            writes,
            holder,
        })?;
        Ok(file)
    }

    /// Returns a second opening of the disk's file, for reading alone.
    ///
    /// # Errors
    /// The file cannot be opened again.
    pub fn read_only(&self, file: &File) -> Result<File, ImageError> {
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        again.map_err(|source| ImageError::Read { what: "the disk", path: self.path.clone(), source })
    }

    /// Refuses a qcow2 file whose header names another file. QEMU would open that file, and the reader of
    /// images, which has accepted the disk, may have been taken over by an image.
    ///
    /// # Errors
    /// The header names another file.
    pub fn refuse_named_file(&self, file: &File) -> Result<(), ImageError> {
        if self.format != ImageFormat::Qcow2 {
            return Ok(());
        }
        let path = || self.path.clone();
        let named = contents::named_by_header(file).map_err(|source| ImageError::Read {
            what: "the disk",
            path: path(),
            source,
        })?;
        match named {
            Some(what) => Err(ImageError::NeedsFile { path: path(), what, name: "by its header".to_owned() }),
            None => Ok(()),
        }
    }
}

/// True if these are the metadata of a block device.
pub(crate) fn is_block_device(metadata: io::Result<Metadata>) -> bool {
    metadata.is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// In an emulated host a system takes many times as long to start as systemd waits for its devices and
/// services: 90 s (systemd-system.conf(5); these words: kernel-command-line(7), systemd 257; older versions
/// know the first one).
const PATIENT: &str = "systemd.default_timeout_start_sec=900 systemd.default_device_timeout_sec=900";

/// The kernel command line on an emulated host: whatever it says of the same things itself comes later, and
/// so wins.
pub fn patient(cmdline: &str) -> String {
    format!("{PATIENT} {cmdline}")
}

/// Option without which the kernel of a guest in QEMU panics where its first timer interrupts come late, as
/// on a loaded machine (`check_timer`, arch/x86/kernel/apic/io_apic.c; kernel-parameters.txt).
const NO_TIMER_CHECK: &str = "no_timer_check";

/// Returns the kernel command line for a guest that QEMU emulates without KVM.
pub fn emulated(cmdline: &str) -> String {
    format!("{NO_TIMER_CHECK} {}", patient(cmdline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_disk_is_locked_and_a_read_one_is_shared() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"disk").unwrap();
        let disk = |mode| DiskSpec::new(file.path().to_owned(), None, mode).unwrap();
        let reader = disk(DiskMode::Snapshot).open_locked().unwrap();
        disk(DiskMode::ReadOnly).open_locked().unwrap();
        let refused = disk(DiskMode::ReadWrite).open_locked().unwrap_err().to_string();
        assert!(refused.contains("in use by another program: end it first"), "{refused}");
        drop(reader);
        let _writer = disk(DiskMode::ReadWrite).open_locked().unwrap();
        assert!(disk(DiskMode::ReadOnly).open_locked().is_err());
    }
}
