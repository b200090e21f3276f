//! What `vprof run` is asked to boot: told by content, never by name.
//!
//! A disk image brings its own kernel and initrd, which are read straight from its file systems; nothing is mounted.
//!
//! ```text
//! file --contents--> disk --partition--> parts --volume--> file systems --boot--> entries --choice--> kernel, words
//!      raw, qcow2         GPT, MBR              ext4, vfat               loaders' configurations
//! ```
//!
//! A kernel comes with an initrd from a file. Everything is checked as far as it can be before a machine is
//! built, so that a wrong file is named instead of ending in a guest that hangs.

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
mod partition;
mod qcow2;
mod sniff;
mod survey;
mod volume;

pub use inspect::{Inspection, KernelShown, RunShown, VolumeShown, inspect};

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use contents::{Contents, Format, Part};
use kernel::Parts;
use sniff::Content;
use survey::Survey;
use text::message::{Reason, Shown};

/// Files beyond this size are no kernel and no initrd, bytes: they have to fit below 4 GiB beside each other.
const MAX_FILE: u64 = 2 << 30;

/// Why an image, a kernel or an initrd can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It can't be opened or read.
    #[error("can't read {what} {}: {}", Shown(.path), Reason(.source))]
    Read {
        /// Like "the image".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a directory, a socket or the like.
    #[error("{} is a {found}, not a file: give {wanted}", Shown(.path))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Like "directory".
        found: &'static str,
        /// What belongs there.
        wanted: &'static str,
    },
    /// It has no bytes.
    #[error("{} is empty: give {wanted}", Shown(.path))]
    Empty {
        /// The file.
        path: PathBuf,
        /// What belongs there.
        wanted: &'static str,
    },
    /// It is cut off.
    #[error("{} is cut off: {detail}; copy or download it again", Shown(.path))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What is missing.
        detail: String,
    },
    /// It is no kernel that can be booted.
    #[error("{}: {reason}", Shown(.path))]
    Kernel {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// It is something else.
    #[error("{} is {found}: {advice}", Shown(.path))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is, like "a VMDK image".
        found: String,
        /// What to do.
        advice: String,
    },
    /// The image's partition table can't be read.
    #[error("{} has a damaged partition table: {reason}; `sfdisk --verify` tells more", Shown(.path))]
    PartitionTable {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file system of the image can't be read.
    #[error("can't read the {name} file system in {}: {reason}", Shown(.path))]
    FileSystem {
        /// The image.
        path: PathBuf,
        /// Like "ext4".
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// A qcow2 file can't be read.
    #[error("can't read the qcow2 image {}: {reason}; `qemu-img check` tells more", Shown(.path))]
    Qcow2 {
        /// The image.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A qcow2 file is only a part of a disk.
    #[error("{} needs {what} ({}), and vprof opens no file that an image names: make one image of both with `qemu-img convert -O qcow2 IN OUT`", Shown(.path), text::clean::escaped(.name))]
    NeedsFile {
        /// The image.
        path: PathBuf,
        /// Like "a backing file".
        what: &'static str,
        /// Its name in the image.
        name: String,
    },
    /// The image has no kernel.
    #[error("no kernel in {}: {looked}; give one with --kernel FILE and --initrd FILE", Shown(.path))]
    NoKernel {
        /// The image.
        path: PathBuf,
        /// Where was looked, and where not.
        looked: String,
    },
    /// The disk can't be written and would have to be.
    #[error("{} can't be written ({}): add --snapshot to discard the guest's writes, or --read-only", Shown(.path), Reason(.source))]
    ReadOnly {
        /// The image.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another vprof uses the disk.
    #[error("{} is in use by another vprof{}", Shown(.path), if *.writes { ": wait for its end, or use --snapshot in both" } else { ": wait for its end" })]
    InUse {
        /// The image.
        path: PathBuf,
        /// This run wants to write it.
        writes: bool,
    },
    /// A file inside of the image is at fault.
    #[error("in {}: {source}", Shown(.image))]
    Inside {
        /// The image.
        image: PathBuf,
        /// What is wrong in it.
        source: Box<ImageError>,
    },
    /// A command can't be run in what was given.
    #[error("{0}")]
    Command(String),
}

/// What the guest boots, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// bzImage or ELF vmlinux.
    pub kernel: Vec<u8>,
    /// Initial file system, compressed or not.
    pub initrd: Option<Vec<u8>>,
}

/// What was asked for on the command line.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Disk image or kernel.
    pub image: &'a Path,
    /// `--kernel`.
    pub kernel: Option<&'a Path>,
    /// `--initrd`.
    pub initrd: Option<&'a Path>,
}

/// What there is to boot.
#[derive(Debug)]
pub struct Loaded {
    /// Kernel and initrd.
    pub payload: Payload,
    /// IMAGE is a disk and not a kernel.
    pub is_disk: bool,
    /// Words for the kernel's command line: of a disk those that lead to its root, of a unified kernel image its own.
    pub words: Option<String>,
    /// One line on where the kernel came from, for the profile.
    pub origin: String,
    /// What was chosen of a disk and why, in one line for people.
    pub sentence: Option<String>,
    /// The disk's init is systemd; `None` where that can't be told.
    pub has_systemd: Option<bool>,
}

/// More than any header of a kernel, bytes.
const BEGINNING: usize = 1 << 20;

const WANTED_IMAGE: &str = "a disk image (raw or qcow2) or a kernel (bzImage, vmlinux or unified image)";
const WANTED_KERNEL: &str = "a kernel for x86-64 (bzImage, vmlinux or unified image)";
const WANTED_INITRD: &str = "an initrd (a cpio archive, compressed or not)";
/// What a disk has to be.
pub const WANTED_DISK: &str = "a disk image (raw or qcow2)";

/// Reads and checks everything that the request names.
pub fn load(request: Request<'_>) -> Result<Loaded, ImageError> {
    let disk = open_disk(request.image)?;
    let content = sniff::content(&disk, request.image)?;
    let given_initrd = request.initrd.map(read_initrd).transpose()?;
    match content {
        Content::BzImage | Content::Elf | Content::Unified if disk.is_raw() => {
            if let Some(kernel) = request.kernel {
                return Err(ImageError::Foreign {
                    path: request.image.to_owned(),
                    found: "a kernel".to_owned(),
                    advice: format!("with --kernel {} IMAGE has to be a disk image", Shown(kernel)),
                });
            }
            let Parts { kernel, initrds, options } = read_kernel(request.image)?;
            Ok(Loaded {
                payload: Payload { kernel, initrd: given_initrd.or_else(|| initrd_check::joined(initrds)) },
                is_disk: false,
                words: options,
                origin: request.image.display().to_string(),
                sentence: None,
                has_systemd: Some(false),
            })
        }
        Content::Foreign { found, advice } => {
            Err(ImageError::Foreign { path: request.image.to_owned(), found, advice })
        }
        Content::Unknown | Content::BzImage | Content::Elf | Content::Unified => match request.kernel {
            // Any disk will do where the kernel does not come from it.
            Some(kernel) => with_kernel(&disk, kernel, given_initrd, request.image),
            None => from_disk(&disk, given_initrd, request.image),
        },
    }
}

/// Opens an image as what the guest is going to see.
fn open_disk(path: &Path) -> Result<Part, ImageError> {
    let file = open("the image", path, WANTED_IMAGE)?;
    let read = |source| ImageError::Read { what: "the image", path: path.to_owned(), source };
    let format = Format::of(&file).map_err(read)?;
    Part::whole(Contents::open(file, format, false, path)?).map_err(read)
}

/// A disk that another kernel boots: its root is the one that is told by what is on it.
fn with_kernel(
    disk: &Part,
    kernel: &Path,
    initrd: Option<Vec<u8>>,
    image: &Path,
) -> Result<Loaded, ImageError> {
    let parts = read_kernel(kernel)?;
    let payload =
        Payload { kernel: parts.kernel, initrd: initrd.or_else(|| initrd_check::joined(parts.initrds)) };
    let survey = match Survey::of(disk, image) {
        // A guest may make more of a damaged table, and --append can name the root.
        Err(ImageError::PartitionTable { .. }) => None,
        other => Some(other?),
    };
    let words = match &survey {
        Some(survey) => choice::words(survey, parts.options.as_deref(), payload.initrd.is_some()),
        None => parts.options.unwrap_or_else(|| "root=/dev/vda rw".to_owned()),
    };
    let has_systemd = survey.as_ref().and_then(|survey| choice::has_systemd(survey, &words));
    let notes = survey.map(|survey| choice::root_notes(&survey, &words)).filter(|notes| !notes.is_empty());
    Ok(Loaded {
        payload,
        has_systemd,
        sentence: notes.map(|notes| format!("{words}; {}", notes.join("; "))),
        is_disk: true,
        words: Some(words),
        origin: kernel.display().to_string(),
    })
}

/// A disk with a kernel of its own.
fn from_disk(disk: &Part, given_initrd: Option<Vec<u8>>, image: &Path) -> Result<Loaded, ImageError> {
    let survey = Survey::of(disk, image)?;
    if survey.table.is_none() && survey.volumes.iter().all(|volume| volume.signature.is_none()) {
        return Err(no_disk(disk, image)?);
    }
    let choice = choice::choose(&survey, image)?;
    Ok(Loaded {
        has_systemd: choice::has_systemd(&survey, &choice.words),
        payload: Payload { kernel: choice.kernel, initrd: given_initrd.or(choice.initrd) },
        is_disk: true,
        words: Some(choice.words),
        origin: choice.origin,
        sentence: Some(choice.sentence),
    })
}

/// Why a file without partitions and without any file system is none that could be booted.
fn no_disk(disk: &Part, image: &Path) -> Result<ImageError, ImageError> {
    let read = |source| ImageError::Read { what: "the image", path: image.to_owned(), source };
    // A kernel for another machine is told as such.
    Ok(match vmm::check_kernel(&disk.beginning(BEGINNING).map_err(read)?) {
        Err(reason @ vmm::KernelError::Architecture(_)) => {
            ImageError::Kernel { path: image.to_owned(), reason: reason.to_string() }
        }
        _ => ImageError::Foreign {
            path: image.to_owned(),
            found: "neither a disk image with an ext4 file system nor a kernel".to_owned(),
            advice: "give another image, or the guest's kernel with --kernel".to_owned(),
        },
    })
}

fn read_kernel(path: &Path) -> Result<Parts, ImageError> {
    let file = read_all("the kernel", open("the kernel", path, WANTED_KERNEL)?, path)?;
    kernel::take_apart(file, path)
}

fn read_initrd(path: &Path) -> Result<Vec<u8>, ImageError> {
    let bytes = read_all("the initrd", open("the initrd", path, WANTED_INITRD)?, path)?;
    initrd_check::check(&bytes, path)?;
    Ok(bytes)
}

/// Opens a file that has to be a regular file or a block device with something in it.
pub fn open(what: &'static str, path: &Path, wanted: &'static str) -> Result<File, ImageError> {
    use std::os::unix::fs::FileTypeExt;
    let fail = |source| ImageError::Read { what, path: path.to_owned(), source };
    // Asked before opening: opening a fifo would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(fail)?;
    let kind = metadata.file_type();
    let found = match () {
        () if kind.is_file() || kind.is_block_device() => None,
        () if kind.is_dir() => Some("directory"),
        () if kind.is_char_device() => Some("character device"),
        () if kind.is_fifo() => Some("pipe"),
        () => Some("socket"),
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
            found: format!("{} large", text::units::bytes(size)),
            advice: format!("{what} has to be smaller than 2 GiB"),
        });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

#[cfg(test)]
pub mod test_files {
    //! Files that tests need, made by code.

    /// A fixed ELF executable for x86-64 with one segment at this virtual address (System V ABI, chapters 4 and 5).
    pub fn elf(address: u64) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        // e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags
        file.extend([2_u16, 62].map(u16::to_le_bytes).concat());
        file.extend(1_u32.to_le_bytes());
        file.extend([address, 64, 0].map(u64::to_le_bytes).concat());
        file.extend(0_u32.to_le_bytes());
        // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
        file.extend([64_u16, 56, 1, 64, 0, 0].map(u16::to_le_bytes).concat());
        // p_type PT_LOAD, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
        file.extend([1_u32, 5].map(u32::to_le_bytes).concat());
        file.extend([0, address, 0x10_0000, 120, 120, 0x1000].map(u64::to_le_bytes).concat());
        file
    }
}
