//! The bytes of a disk image, whatever the format of its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vmm::DiskFile;

use super::ImageError;
use super::qcow2::{MAGIC, Qcow2Disk, Refused};

/// The format of an image's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Byte by byte as the guest sees it.
    Raw,
    /// qcow2.
    Qcow2,
}

impl Format {
    /// Told by a file's first bytes. Block devices are raw: what stands on them the guest may have written.
    pub fn of(file: &File) -> io::Result<Self> {
        if file.metadata()?.file_type().is_block_device() {
            return Ok(Self::Raw);
        }
        let mut start = [0; MAGIC.len()];
        let count = file.read_at(&mut start, 0)?;
        Ok(if start.get(..count) == Some(MAGIC) { Self::Qcow2 } else { Self::Raw })
    }
}

/// The bytes of a disk. Clones share the file.
#[derive(Debug, Clone)]
pub enum Contents {
    /// Of a raw image or a block device.
    Raw(Arc<File>),
    /// Of a qcow2 image.
    Qcow2(Qcow2Disk),
}

impl Contents {
    /// The disk in `file`, which is open for writing if `writable`; `path` is for what can go wrong.
    pub fn open(file: File, format: Format, writable: bool, path: &Path) -> Result<Self, ImageError> {
        match format {
            Format::Raw => Ok(Self::Raw(Arc::new(file))),
            Format::Qcow2 => match Qcow2Disk::open(file, writable) {
                Ok(disk) => Ok(Self::Qcow2(disk)),
                Err(Refused::Unreadable(reason)) => Err(ImageError::Qcow2 { path: path.to_owned(), reason }),
                Err(Refused::NeedsFile { what, name }) => {
                    Err(ImageError::NeedsFile { path: path.to_owned(), what, name })
                }
            },
        }
    }

    /// Size in bytes; `None` where it is not known, as of block devices.
    pub fn size(&self) -> io::Result<Option<u64>> {
        match self {
            Self::Raw(file) => {
                let metadata = file.metadata()?;
                Ok((!metadata.file_type().is_block_device()).then_some(metadata.len()))
            }
            Self::Qcow2(disk) => Ok(Some(disk.size())),
        }
    }

    /// Fills `into` with the bytes at `offset`.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(into, offset),
            Self::Qcow2(disk) => disk.read_exact_at(into, offset),
        }
    }

    /// Makes what the guest has written last; for raw images that is the guest's own matter.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(_) => Ok(()),
            Self::Qcow2(disk) => disk.flush(),
        }
    }

    /// As a disk of a machine.
    pub fn to_disk(&self) -> io::Result<DiskFile> {
        Ok(match self {
            Self::Raw(file) => DiskFile::Raw(file.try_clone()?),
            Self::Qcow2(disk) => DiskFile::Formatted(Box::new(disk.clone())),
        })
    }
}

/// A stretch of a disk: all of it, or a partition. Clones share the file.
#[derive(Debug, Clone)]
pub struct Part {
    contents: Contents,
    start: u64,
    /// `None` where it is not known, as of a whole block device.
    length: Option<u64>,
}

impl Part {
    /// The whole disk.
    pub fn whole(contents: Contents) -> io::Result<Self> {
        let length = contents.size()?;
        Ok(Self { contents, start: 0, length })
    }

    /// So many bytes from `start` on, both counted in this part.
    pub fn part(&self, start: u64, length: u64) -> Self {
        let length = self.length.map_or(length, |whole| length.min(whole.saturating_sub(start)));
        Self {
            contents: self.contents.clone(),
            start: self.start.saturating_add(start),
            length: Some(length),
        }
    }

    /// The file has the disk's bytes as they are.
    pub fn is_raw(&self) -> bool {
        matches!(self.contents, Contents::Raw(_))
    }

    /// Length in bytes, where it is known.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Fills `into` with the bytes at `offset`.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64);
        let at = self.start.checked_add(offset);
        match (end, at) {
            (Some(end), Some(at)) if self.length.is_none_or(|length| end <= length) => {
                self.contents.read_exact_at(into, at)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The first `most` bytes, or all.
    pub fn beginning(&self, most: usize) -> io::Result<Vec<u8>> {
        let length = self.length.unwrap_or(u64::MAX);
        let mut bytes = vec![0; most.min(usize::try_from(length).unwrap_or(usize::MAX))];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) fn part_of(bytes: &[u8]) -> Part {
    use std::io::Write;
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room");
    Part::whole(Contents::Raw(Arc::new(file))).expect("a size")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::qcow2::test_images;

    fn open(bytes: &[u8]) -> Contents {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let format = Format::of(&file).unwrap();
        Contents::open(file, format, false, Path::new("disk")).unwrap()
    }

    #[test]
    fn raw_and_qcow2_read_alike() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let content: Vec<u8> = (0..400_000_u32).map(|n| (n / 512).to_le_bytes()[0]).collect();
        test_images::create_with(&path, &content);
        let (raw, qcow2) = (open(&content), open(&std::fs::read(&path).unwrap()));
        assert!(matches!((&raw, &qcow2), (Contents::Raw(_), Contents::Qcow2(_))));
        for contents in [raw, qcow2] {
            assert_eq!(contents.size().unwrap(), Some(400_000));
            let mut part = [0; 700];
            contents.read_exact_at(&mut part, 65_500).unwrap();
            assert_eq!(part, content[65_500..66_200]);
            assert!(contents.read_exact_at(&mut part, 399_999).is_err());
            let whole = Part::whole(contents).unwrap();
            assert_eq!(whole.beginning(1 << 20).unwrap(), content);
            let middle = whole.part(100, 1000);
            assert_eq!(middle.beginning(700).unwrap(), content[100..800]);
            assert!(middle.read_exact_at(&mut part, 300).is_ok());
            assert!(middle.read_exact_at(&mut part, 301).is_err());
            assert!(middle.read_exact_at(&mut part, u64::MAX).is_err());
            assert_eq!(whole.part(399_000, 5000).length(), Some(1000));
            assert_eq!(whole.part(500_000, 5000).length(), Some(0));
        }
    }

    #[test]
    fn short_files_are_raw() {
        assert!(matches!(open(b"QFI"), Contents::Raw(_)));
        assert!(matches!(open(b""), Contents::Raw(_)));
    }
}
