//! A run as plain data: the same whether the guest runs on this machine or in the portable host.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use profile::ClockKind;
use sampler::SessionTotals;
use sampler::conditions::RunTrigger;
use serde::{Deserialize, Serialize};
use vmm::{DiskMode, End};

use super::network::NetworkSpec;
use super::systemd::GuestCommand;
use crate::args::ConsoleDevice;
use images::contents::{Contents, Format};
use images::{self, ImageError};

/// Everything about a run besides the bytes to boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Guest memory, bytes.
    pub memory_bytes: u64,
    /// Guest memory is backed by huge pages of the host that are reserved.
    pub huge_pages: bool,
    /// Kernel command line.
    pub cmdline: String,
    /// Disks in the order in which the guest sees them.
    pub disks: Vec<DiskSpec>,
    /// The guest's network card.
    pub network: Option<NetworkSpec>,
    /// Context id of the guest's virtio-vsock device.
    pub vsock_cid: Option<u32>,
    /// The guest's console is a virtio-console.
    pub virtio_console: bool,
    /// A command for a guest with systemd.
    pub command: Option<GuestCommand>,
    /// Mean ticks per second and vCPU.
    pub rate_hz: f64,
    /// How intervals are drawn.
    pub clock: ClockKind,
    /// Seed of the intervals.
    pub seed: u64,
    /// Call stacks of at most this many frames; 0 for none.
    pub stack_depth: usize,
    /// Events of tasks and interrupts besides the samples.
    pub exact: bool,
    /// Mean moments per second at which all tasks are looked at; 0 for none.
    pub task_scan_hz: f64,
    /// The run ends once half the interval of the largest share is at most this part of the whole.
    pub until_precision: Option<f64>,
    /// Threads that use the host's CPUs beside the guest, for tests.
    pub host_load: u8,
    /// The run ends after this time.
    pub duration: Option<Duration>,
    /// What is waited for from the start on.
    pub waits: Vec<RunTrigger>,
    /// Rows of the profile's table `meta`.
    pub meta: Vec<(String, String)>,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Image or block device.
    pub path: PathBuf,
    /// What its file is.
    pub format: Format,
    /// What becomes of the guest's writes.
    pub writes: Writes,
}

/// What becomes of a guest's writes to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Writes {
    /// They are written to the image.
    Kept,
    /// They last until the end of the run.
    Discarded,
    /// There are none: the guest sees a disk that is read-only.
    Refused,
}

/// What a run came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// How the guest ended.
    pub end: GuestEnd,
    /// What was recorded.
    pub totals: SessionTotals,
    /// How often the portable host had to be started anew.
    pub host_restarts: u32,
}

/// How a guest ended; [`vmm::End`] in a form that can travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestEnd {
    /// ACPI power-off.
    PowerOff,
    /// Reset.
    Reset,
    /// The guest's init reported this exit status.
    Exited(u32),
    /// vprof ended it.
    Stopped,
    /// It was attached to, and is not any more: why, as a sentence.
    Left(String),
    /// The guest or KVM failed.
    Failed(String),
}

impl From<End> for GuestEnd {
    fn from(end: End) -> Self {
        match end {
            End::PowerOff => Self::PowerOff,
            End::Reset => Self::Reset,
            End::Exited(code) => Self::Exited(code),
            End::Stopped => Self::Stopped,
            End::Failed(reason) => Self::Failed(reason),
        }
    }
}

impl GuestEnd {
    /// One sentence for the profile.
    pub fn sentence(&self) -> String {
        match self {
            Self::PowerOff => "the guest powered off".to_owned(),
            Self::Reset => "the guest reset itself".to_owned(),
            Self::Exited(code) => format!("the guest's command ended with status {code}"),
            Self::Stopped => "vprof stopped the guest".to_owned(),
            Self::Failed(reason) => format!("the guest failed: {reason}"),
            Self::Left(sentence) => sentence.clone(),
        }
    }
}

impl DiskSpec {
    /// The disk at `path`, whose format is told by its first bytes.
    pub fn at(path: PathBuf, writes: Writes) -> Result<Self, ImageError> {
        let file = images::open("the disk", &path, images::WANTED_DISK)?;
        let format = Format::of(&file).map_err(|source| ImageError::Read {
            what: "the disk",
            path: path.clone(),
            source,
        })?;
        Ok(Self { path, format, writes })
    }

    /// The disk's bytes in its open file.
    pub fn contents(&self, file: File, writable: bool) -> Result<Contents, ImageError> {
        Contents::open(file, self.format, writable, &self.path)
    }

    /// What the machine does with writes.
    pub fn mode(&self) -> DiskMode {
        match self.writes {
            Writes::Kept => DiskMode::ReadWrite,
            Writes::Discarded => DiskMode::Snapshot,
            Writes::Refused => DiskMode::ReadOnly,
        }
    }

    /// The guest's writes reach the image.
    pub fn is_written(&self) -> bool {
        self.writes == Writes::Kept
    }

    /// Opens the disk as its mode needs it.
    pub fn open(&self) -> Result<File, ImageError> {
        images::open("the disk", &self.path, images::WANTED_DISK)?;
        OpenOptions::new().read(true).write(self.is_written()).open(&self.path).map_err(|source| {
            if !self.is_written() {
                ImageError::Read { what: "the disk", path: self.path.clone(), source }
            } else {
                ImageError::ReadOnly { path: self.path.clone(), source }
            }
        })
    }

    /// Opens the disk and locks it against other runs of vprof for as long as the file is open: two machines that
    /// write one file system destroy it. What is wrong with its format is known then, before a host is chosen.
    pub fn open_locked(&self) -> Result<File, ImageError> {
        let file = self.open()?;
        let locked = if self.is_written() { file.try_lock() } else { file.try_lock_shared() };
        match locked {
            Err(TryLockError::WouldBlock) => {
                Err(ImageError::InUse { path: self.path.clone(), writes: self.is_written() })
            }
            // Some network file systems have no locks; then there is nothing to find out.
            Ok(()) | Err(TryLockError::Error(_)) => {
                let read = |source| ImageError::Read { what: "the disk", path: self.path.clone(), source };
                self.contents(file.try_clone().map_err(read)?, false)?;
                Ok(file)
            }
        }
    }
}

/// In an emulated host a system takes many times as long to start as systemd waits for its devices and services: 90 s
/// (systemd-system.conf(5); these words: kernel-command-line(7), systemd 257; older versions know the first one).
const PATIENT: &str = "systemd.default_timeout_start_sec=900 systemd.default_device_timeout_sec=900";

/// The kernel command line on an emulated host: whatever it says of the same things itself comes later, and so wins.
pub fn patient(cmdline: &str) -> String {
    format!("{PATIENT} {cmdline}")
}

/// The kernel command line: the words of the disk's own boot loader or of a unified kernel image, ours, then the user's.
/// Of those that name the same thing the last one wins.
pub fn cmdline(theirs: Option<&str>, device: ConsoleDevice, append: Option<&str>) -> String {
    // panic=-1 resets a panicked guest at once; otherwise it would spin until someone looks.
    let ours = match device {
        ConsoleDevice::Serial => "console=ttyS0 quiet panic=-1",
        ConsoleDevice::Virtio => "console=hvc0 quiet panic=-1",
    };
    let parts =
        [theirs, Some(ours), append].into_iter().flatten().map(str::trim).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(" ")
}

/// A path for a row of `meta`.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_words_come_last() {
        let serial = ConsoleDevice::Serial;
        assert_eq!(cmdline(None, serial, None), "console=ttyS0 quiet panic=-1");
        assert_eq!(cmdline(None, ConsoleDevice::Virtio, None), "console=hvc0 quiet panic=-1");
        assert_eq!(
            cmdline(Some("root=/dev/vda rw"), serial, Some(" root=/dev/vdb ")),
            "root=/dev/vda rw console=ttyS0 quiet panic=-1 root=/dev/vdb"
        );
    }

    #[test]
    fn a_written_disk_is_locked_and_a_read_one_is_shared() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"disk").unwrap();
        let disk = |writes| DiskSpec::at(file.path().to_owned(), writes).unwrap();
        let reader = disk(Writes::Discarded).open_locked().unwrap();
        disk(Writes::Refused).open_locked().unwrap();
        let refused = disk(Writes::Kept).open_locked().unwrap_err().to_string();
        assert!(refused.contains("in use by another vprof"), "{refused}");
        drop(reader);
        let _writer = disk(Writes::Kept).open_locked().unwrap();
        assert!(disk(Writes::Refused).open_locked().is_err());
    }
}
