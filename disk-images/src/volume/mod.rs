//! File systems and other contents of a disk's parts.

pub mod ext4;
mod fat;
pub mod signature;
#[cfg(any(test, feature = "fuzz"))]
pub mod table;

use std::{fmt, io};

use super::contents::DiskPart;
use display::units;
use ext4::{ExtPart, JournalError};
use signature::VolumeSignature;

/// Most names that are read of one directory.
pub const MOST_NAMES: usize = 4096;

/// Failure to read a file system or one of its files.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The reader of ext2, ext3 and ext4 failed.
    #[error(transparent)]
    Ext(#[from] ext4_view::Ext4Error),
    /// The reader of FAT failed.
    #[error(transparent)]
    Fat(#[from] io::Error),
    /// The reader gave up with a panic.
    #[error("its tables contradict each other")]
    Contradiction,
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The reader's failure.
        source: Box<Self>,
    },
    /// A file has more bytes than the caller wants.
    #[error("{path} is larger than {}", units::bytes(*.most))]
    TooLarge {
        /// Path of the file.
        path: String,
        /// The limit, bytes.
        most: u64,
    },
    /// vprof does not read files of this volume.
    #[error("it has no files")]
    NoFiles,
}

impl VolumeError {
    /// Adds the path of the file that could not be read.
    fn in_file(path: &str, source: impl Into<Self>) -> Self {
        Self::File { path: path.to_owned(), source: Box::new(source.into()) }
    }
}

/// Files of a file system. Paths begin with `/`.
///
/// Only [`read`](Self::read) reports errors. To the other functions a path that cannot be read is not a file.
pub trait VolumeFiles: fmt::Debug {
    /// Returns the bytes of a file.
    ///
    /// # Errors
    /// The file cannot be read, or it has more than `most` bytes.
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, VolumeError>;

    /// Returns true if the path leads to a file, through links or not.
    fn is_file(&self, path: &str) -> bool;

    /// Returns the names in a directory, sorted, at most [`MOST_NAMES`]; none if there is no such directory.
    fn names(&self, directory: &str) -> Vec<String>;

    /// Returns the path without symbolic links.
    fn resolved(&self, path: String) -> String;
}

/// Part of a disk, and its contents.
#[derive(Debug)]
pub struct DiskVolume {
    /// Place on the disk.
    pub part: DiskPart,
    /// Signature in the first bytes; `None` for unknown contents.
    pub signature: Option<VolumeSignature>,
    /// Files, or the reason for which they cannot be read; `None` for contents whose files vprof does not
    /// read.
    pub files: Option<Result<Box<dyn VolumeFiles>, VolumeError>>,
    /// Failure to replay the journal of a file system that was not unmounted; its files may be older than the
    /// last change.
    pub unreplayed: Option<JournalError>,
}

impl DiskVolume {
    /// Recognizes the contents of a part of a disk, and opens its file system.
    pub fn open(part: DiskPart) -> Self {
        let signature = VolumeSignature::from_part(&part);
        let (files, unreplayed) = match signature.as_ref().map(|signature| signature.name) {
            Some("ext2" | "ext3" | "ext4") => {
                let ext = ExtPart::new(part.clone());
                (Some(ext.open()), ext.unreplayed)
            }
            Some("vfat") => (Some(fat::open(&part)), None),
            _ => (None, None),
        };
        Self { part, signature, files, unreplayed }
    }

    /// Returns the files of the volume if they can be read.
    pub fn readable(&self) -> Option<&dyn VolumeFiles> {
        match &self.files {
            Some(Ok(files)) => Some(files.as_ref()),
            _ => None,
        }
    }

    /// Returns the name of the contents, like `ext4`.
    pub fn name(&self) -> Option<&'static str> {
        self.signature.as_ref().map(|signature| signature.name)
    }
}

/// Returns the usual text of a GUID, whose first three groups are little endian (UEFI 2.10, appendix A).
pub fn guid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
    uuid_text(&[d, c, b, a, f, e, h, g], rest)
}

/// Returns the usual text of a UUID, whose groups are all big endian.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
    uuid_text(&[a, b, c, d, e, f, g, h], rest)
}

fn uuid_text(first: &[u8; 8], rest: [u8; 8]) -> String {
    let digits: String = first.iter().chain(&rest).map(|byte| format!("{byte:02x}")).collect();
    let group = |from: usize, to: usize| digits.get(from..to).unwrap_or("");
    [group(0, 8), group(8, 12), group(12, 16), group(16, 20), group(20, 32)].join("-")
}

#[cfg(test)]
mod tests;
