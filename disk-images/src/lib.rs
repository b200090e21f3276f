//! Disk images, kernels and initrds that `vprof run` boots, recognized by their content, never by their name.
//!
//! A disk image brings its own kernel and initrd. vprof reads both from the image's file systems without a
//! mount.
//!
//! ```text
//! file --contents--> disk --partition--> parts --volume--> file systems --boot--> entries --choice--> kernel
//!      raw, qcow2         GPT, MBR              ext4, vfat               loaders' configurations
//! ```
//!
//! A kernel file gets its initrd from another file. Everything is checked as far as possible before a machine
//! is built, so that an error names the wrong file, where otherwise the guest would hang.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod boot;
mod choice;
pub mod command;
pub mod contents;
pub mod cpio;
pub mod files;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod initrd;
pub mod initrd_check;
mod inspect;
mod kernel;
pub mod lock;
mod partition;
mod qcow2;
mod sniff;
mod survey;
mod volume;

pub use boot::UnifiedError;
pub use command::CommandError;
pub use inspect::{ImageInspection, KernelSummary, RunSummary, VolumeSummary, inspect};
pub use kernel::KernelFault;
pub use partition::TableDamage;
pub use qcow2::Qcow2Fault;
pub use volume::VolumeError;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use contents::{DiskContents, DiskPart, ImageFormat};
use display::message::{Reason, Shown};
use kernel::KernelParts;
use sniff::FileContent;
use survey::DiskSurvey;

/// Largest kernel or initrd, bytes: both have to fit into the memory below 4 GiB.
pub const MAX_FILE: u64 = 2 << 30;

/// Reason for which an image, a kernel or an initrd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be opened or read.
    #[error("can't read {what} {}: {}", Shown(.path), Reason(.source))]
    Read {
        /// Kind of the file, like "the image".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path leads to a directory, a socket or the like.
    #[error("{} is a {found}, not a file: give {wanted}", Shown(.path))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Kind of the file there, like "directory".
        found: &'static str,
        /// Kind of file that is needed.
        wanted: &'static str,
    },
    /// The file has no bytes.
    #[error("{} is empty: give {wanted}", Shown(.path))]
    Empty {
        /// The file.
        path: PathBuf,
        /// Kind of file that is needed.
        wanted: &'static str,
    },
    /// The file is cut off.
    #[error("{} is cut off: {detail}; copy or download it again", Shown(.path))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The missing part.
        detail: String,
    },
    /// The file is not a kernel that vprof can boot.
    #[error("{}: {reason}", Shown(.path))]
    Kernel {
        /// The file.
        path: PathBuf,
        /// The fault, and the cure where there is one.
        reason: KernelFault,
    },
    /// The file is of another kind.
    #[error("{} is {found}: {advice}", Shown(.path))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Kind of the file, like "a VMDK image".
        found: String,
        /// The cure.
        advice: String,
    },
    /// The image's partition table cannot be used.
    #[error("{} has a damaged partition table: {reason}; run `sfdisk --verify` for details", Shown(.path))]
    PartitionTable {
        /// The image.
        path: PathBuf,
        /// The damage.
        reason: TableDamage,
    },
    /// A file system of the image cannot be read.
    #[error("can't read the {name} file system in {}: {reason}", Shown(.path))]
    FileSystem {
        /// The image.
        path: PathBuf,
        /// Name of the file system, like "ext4".
        name: &'static str,
        /// The error of the file system's reader.
        reason: VolumeError,
    },
    /// A qcow2 file cannot be read.
    #[error("can't read the qcow2 image {}: {reason}; run `qemu-img check` for details", Shown(.path))]
    Qcow2 {
        /// The image.
        path: PathBuf,
        /// The fault.
        reason: Qcow2Fault,
    },
    /// A qcow2 file holds only a part of a disk.
    #[error("{} needs {what} ({}), and vprof opens no file that an image names: make one image of both with `qemu-img convert -O qcow2 IN OUT`", Shown(.path), display::clean::escaped(.name))]
    NeedsFile {
        /// The image.
        path: PathBuf,
        /// Purpose of the other file, like "a backing file".
        what: &'static str,
        /// Name of the other file, as the image has it.
        name: String,
    },
    /// The image has no kernel.
    #[error("no kernel in {}: {searched}; give one with --kernel FILE and --initrd FILE", Shown(.path))]
    NoKernel {
        /// The image.
        path: PathBuf,
        /// Places that were searched, and those that could not be.
        searched: String,
    },
    /// The run has to write the disk and cannot.
    #[error("{} can't be written ({}): add --snapshot to discard the guest's writes, or --read-only", Shown(.path), Reason(.source))]
    ReadOnly {
        /// The image.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another program uses the disk.
    #[error(
        "{} is in use by {}: end it first{}",
        Shown(.path),
        InUseBy(.holder.as_ref()),
        if *.writes { ", or use --snapshot here if the other only reads" } else { "" }
    )]
    InUse {
        /// The image.
        path: PathBuf,
        /// True if this run writes the image.
        writes: bool,
        /// The program, if it was found.
        holder: Option<lock::Holder>,
    },
    /// The host uses the block device.
    #[error(
        "{} is in use by this host, as a file system or as a part of a RAID or LVM: unmount it, or use --read-only",
        Shown(.path)
    )]
    DeviceInUse {
        /// The block device.
        path: PathBuf,
    },
    /// A file inside of the image is at fault.
    #[error("in {}: {source}", Shown(.image))]
    Inside {
        /// The image.
        image: PathBuf,
        /// The fault of the inner file.
        source: Box<ImageError>,
    },
    /// The guest cannot run the command that was given.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Displays the program that uses a disk.
struct InUseBy<'a>(Option<&'a lock::Holder>);

impl fmt::Display for InUseBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(lock::Holder { pid, name }) => write!(f, "{} (pid {pid})", display::clean::escaped(name)),
            None => f.write_str("another program"),
        }
    }
}

/// Kernel and initrd of a guest, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootPayload {
    /// Kernel: bzImage or ELF vmlinux.
    pub kernel: Vec<u8>,
    /// Initial file system, compressed or not.
    pub initrd: Option<Vec<u8>>,
}

/// Open file. Its path is for messages only.
#[derive(Debug)]
pub struct NamedFile {
    /// The path.
    pub path: PathBuf,
    /// The file.
    pub file: File,
}

impl NamedFile {
    /// Opens IMAGE: a disk image or a kernel.
    ///
    /// # Errors
    /// As of [`open`].
    pub fn image(path: &Path) -> Result<Self, ImageError> {
        Self::open("the image", path, WANTED_IMAGE)
    }

    /// Opens the file of `--kernel`.
    ///
    /// # Errors
    /// As of [`open`].
    pub fn kernel(path: &Path) -> Result<Self, ImageError> {
        Self::open("the kernel", path, WANTED_KERNEL)
    }

    /// Opens the file of `--initrd`.
    ///
    /// # Errors
    /// As of [`open`].
    pub fn initrd(path: &Path) -> Result<Self, ImageError> {
        Self::open("the initrd", path, WANTED_INITRD)
    }

    fn open(what: &'static str, path: &Path, wanted: &'static str) -> Result<Self, ImageError> {
        Ok(Self { path: path.to_owned(), file: open(what, path, wanted)? })
    }
}

/// Files that the command line names.
#[derive(Debug)]
pub struct BootRequest {
    /// IMAGE: a disk image or a kernel.
    pub image: NamedFile,
    /// Format of a disk image. `None`: that of its first bytes.
    pub format: Option<ImageFormat>,
    /// Kernel of `--kernel`.
    pub kernel: Option<NamedFile>,
    /// Initrd of `--initrd`.
    pub initrd: Option<NamedFile>,
}

/// Everything that a run boots, and its origin.
#[derive(Debug)]
pub struct BootPlan {
    /// Kernel and initrd.
    pub payload: BootPayload,
    /// True if IMAGE is a disk, false if it is a kernel.
    pub is_disk: bool,
    /// Words for the kernel's command line: for a disk those that lead to its root, for a unified kernel
    /// image those in the image.
    pub words: Option<String>,
    /// Origin of the kernel in one line, for the profile.
    pub origin: String,
    /// Choice made for a disk and its reason, in one line for the user.
    pub sentence: Option<String>,
    /// True if the disk's init is systemd; `None` if that is unknown.
    pub has_systemd: Option<bool>,
}

/// Bytes of a file in which a kernel's headers are searched: more than any of them has.
const BEGINNING: usize = 1 << 20;

const WANTED_IMAGE: &str = "a disk image (raw or qcow2) or a kernel (bzImage, vmlinux or unified image)";
const WANTED_KERNEL: &str = "a kernel for x86-64 (bzImage, vmlinux or unified image)";
const WANTED_INITRD: &str = "an initrd (a cpio archive, compressed or not)";
/// Kinds of files that are usable as a disk, for messages.
pub const WANTED_DISK: &str = "a disk image (raw or qcow2)";

/// Reads and checks everything that the request names.
///
/// # Errors
/// A file is damaged, of another kind than needed, or the disk has no kernel.
pub fn load(request: BootRequest) -> Result<BootPlan, ImageError> {
    let BootRequest { image, format, kernel, initrd } = request;
    let disk = open_disk(&image, format)?;
    let content = sniff::content(&disk, &image.path)?;
    let given_initrd = initrd.map(read_initrd).transpose()?;
    match content {
        FileContent::BzImage | FileContent::Elf | FileContent::UnifiedImage if disk.is_raw() => {
            if let Some(kernel) = kernel {
                return Err(ImageError::Foreign {
                    path: image.path,
                    found: "a kernel".to_owned(),
                    advice: format!("with --kernel {} IMAGE has to be a disk image", Shown(&kernel.path)),
                });
            }
            let origin = image.path.display().to_string();
            let KernelParts { kernel, initrds, options } = read_kernel(image)?;
            Ok(BootPlan {
                payload: BootPayload {
                    kernel,
                    initrd: given_initrd.or_else(|| initrd_check::joined(initrds)),
                },
                is_disk: false,
                words: options,
                origin,
                sentence: None,
                has_systemd: Some(false),
            })
        }
        FileContent::Foreign { found, advice } => {
            Err(ImageError::Foreign { path: image.path, found, advice })
        }
        FileContent::Unknown | FileContent::BzImage | FileContent::Elf | FileContent::UnifiedImage => {
            match kernel {
                // With a kernel from elsewhere, a disk of any contents is usable.
                Some(kernel) => with_kernel(&disk, kernel, given_initrd, &image.path),
                None => from_disk(&disk, given_initrd, &image.path),
            }
        }
    }
}

/// Opens an image as the disk that the guest will see.
fn open_disk(image: &NamedFile, format: Option<ImageFormat>) -> Result<DiskPart, ImageError> {
    let NamedFile { path, file } = image;
    let read = |source| ImageError::Read { what: "the image", path: path.to_owned(), source };
    let format = ImageFormat::choose(format, file, path)?;
    let file = file.try_clone().map_err(read)?;
    DiskPart::whole(DiskContents::open(file, format, false, path)?).map_err(read)
}

/// Loads a kernel from a file, and finds the root on the disk by the disk's contents.
fn with_kernel(
    disk: &DiskPart,
    kernel: NamedFile,
    initrd: Option<Vec<u8>>,
    image: &Path,
) -> Result<BootPlan, ImageError> {
    let origin = kernel.path.display().to_string();
    let parts = read_kernel(kernel)?;
    let payload =
        BootPayload { kernel: parts.kernel, initrd: initrd.or_else(|| initrd_check::joined(parts.initrds)) };
    let survey = match DiskSurvey::from_disk(disk, image) {
        // The guest may be able to read a damaged table, and --append can name the root.
        Err(ImageError::PartitionTable { .. }) => None,
        other => Some(other?),
    };
    let words = match &survey {
        Some(survey) => choice::words(survey, parts.options.as_deref(), payload.initrd.is_some()),
        None => parts.options.unwrap_or_else(|| "root=/dev/vda rw".to_owned()),
    };
    let has_systemd = survey.as_ref().and_then(|survey| choice::has_systemd(survey, &words));
    let notes = survey.map(|survey| choice::root_notes(&survey, &words)).filter(|notes| !notes.is_empty());
    Ok(BootPlan {
        payload,
        has_systemd,
        sentence: notes.map(|notes| format!("{words}; {}", notes.join("; "))),
        is_disk: true,
        words: Some(words),
        origin,
    })
}

/// Loads the kernel and the initrd that are on the disk.
fn from_disk(disk: &DiskPart, given_initrd: Option<Vec<u8>>, image: &Path) -> Result<BootPlan, ImageError> {
    let survey = DiskSurvey::from_disk(disk, image)?;
    if survey.table.is_none() && survey.volumes.iter().all(|volume| volume.signature.is_none()) {
        return Err(no_disk(disk, image)?);
    }
    let choice = choice::choose(&survey, survey.entries().first(), image)?;
    Ok(BootPlan {
        has_systemd: choice::has_systemd(&survey, &choice.words),
        payload: BootPayload { kernel: choice.kernel, initrd: given_initrd.or(choice.initrd) },
        is_disk: true,
        words: Some(choice.words),
        origin: choice.origin,
        sentence: Some(choice.sentence),
    })
}

/// Returns the error for a file that has neither partitions nor a file system.
fn no_disk(disk: &DiskPart, image: &Path) -> Result<ImageError, ImageError> {
    let read = |source| ImageError::Read { what: "the image", path: image.to_owned(), source };
    // A kernel for another architecture gets its own message.
    Ok(match vmm::check_kernel(&disk.beginning(BEGINNING).map_err(read)?) {
        Err(reason @ vmm::KernelError::Architecture(_)) => {
            ImageError::Kernel { path: image.to_owned(), reason: reason.into() }
        }
        _ => ImageError::Foreign {
            path: image.to_owned(),
            found: "neither a disk image with an ext4 file system nor a kernel".to_owned(),
            advice: "give another image, or the guest's kernel with --kernel".to_owned(),
        },
    })
}

fn read_kernel(NamedFile { path, file }: NamedFile) -> Result<KernelParts, ImageError> {
    kernel::take_apart(read_all("the kernel", file, &path)?, &path)
}

fn read_initrd(NamedFile { path, file }: NamedFile) -> Result<Vec<u8>, ImageError> {
    let bytes = read_all("the initrd", file, &path)?;
    initrd_check::check(&bytes, &path)?;
    Ok(bytes)
}

/// Opens a regular file that is not empty, or a block device.
///
/// # Errors
/// The path leads to another kind of file, the file is empty, or it cannot be opened.
pub fn open(what: &'static str, path: &Path, wanted: &'static str) -> Result<File, ImageError> {
    use std::os::unix::fs::FileTypeExt;
    let fail = |source| ImageError::Read { what, path: path.to_owned(), source };
    // The check comes before the opening, because opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(fail)?;
    let kind = metadata.file_type();
    let found = if kind.is_file() || kind.is_block_device() {
        None
    } else if kind.is_dir() {
        Some("directory")
    } else if kind.is_char_device() {
        Some("character device")
    } else if kind.is_fifo() {
        Some("pipe")
    } else {
        Some("socket")
    };
    if let Some(found) = found {
        return Err(ImageError::NotAFile { path: path.to_owned(), found, wanted });
    }
    if kind.is_file() && metadata.len() == 0 {
        return Err(ImageError::Empty { path: path.to_owned(), wanted });
    }
    File::open(path).map_err(fail)
}

fn read_all(what: &'static str, mut file: File, path: &Path) -> Result<Vec<u8>, ImageError> {
    use std::io::Seek;
    let fail = |source| ImageError::Read { what, path: path.to_owned(), source };
    file.rewind().map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    if size > MAX_FILE {
        return Err(ImageError::Foreign {
            path: path.to_owned(),
            found: format!("{} large", display::units::bytes(size)),
            advice: format!("{what} has to be smaller than 2 GiB"),
        });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}
