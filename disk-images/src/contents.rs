//! Bytes of a disk image, independent of the format of its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vmm::DiskFile;

use super::ImageError;
use super::qcow2::{MAGIC, Qcow2Disk, Qcow2Error};

/// Format of an image's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFormat {
    /// The bytes of the disk as the guest sees them.
    Raw,
    /// qcow2.
    Qcow2,
}

impl ImageFormat {
    /// Recognizes the format by the first bytes of a file.
    ///
    /// A block device is always raw: a guest may have written its first bytes, and must not choose the
    /// format.
    pub fn from_file(file: &File) -> io::Result<Self> {
        if file.metadata()?.file_type().is_block_device() {
            return Ok(Self::Raw);
        }
        let mut start = [0; MAGIC.len()];
        let count = file.read_at(&mut start, 0)?;
        Ok(if start.get(..count) == Some(MAGIC) { Self::Qcow2 } else { Self::Raw })
    }

    /// Returns the format that was given, or else that of the first bytes of the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or it is a block device and was said to be qcow2.
    pub fn choose(given: Option<Self>, file: &File, path: &Path) -> Result<Self, ImageError> {
        let read = |source| ImageError::Read { what: "the disk", path: path.to_owned(), source };
        match given {
            Some(Self::Qcow2) if file.metadata().map_err(read)?.file_type().is_block_device() => {
                Err(ImageError::Foreign {
                    path: path.to_owned(),
                    found: "a block device".to_owned(),
                    advice: "vprof takes block devices as raw only".to_owned(),
                })
            }
            Some(given) => Ok(given),
            None => Self::from_file(file).map_err(read),
        }
    }

    /// Returns true if the name of a file says raw and its first bytes say qcow2. The guest of a raw disk can
    /// write these bytes.
    pub fn contradicts_name(self, path: &Path) -> bool {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        self == Self::Qcow2 && ["raw", "img"].iter().any(|raw| extension.eq_ignore_ascii_case(raw))
    }
}

/// Returns the purpose of another file that the header of a qcow2 file names; `None` if it names none. Reads
/// fixed fields of the header alone (docs/interop/qcow2.txt of QEMU): the offset of a backing file's name at
/// byte 8, and bit 2 of the incompatible features at byte 72.
///
/// # Errors
/// The file cannot be read.
pub fn named_by_header(file: &File) -> io::Result<Option<&'static str>> {
    let mut header = [0; 80];
    let count = file.read_at(&mut header, 0)?;
    let is_set = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    Ok(if is_set(&header[8..16]) {
        Some("a backing file")
    } else if count == header.len() && header[79] & 4 != 0 {
        Some("a data file")
    } else {
        None
    })
}

/// Bytes of a disk. Clones share the file.
#[derive(Debug, Clone)]
pub enum DiskContents {
    /// Disk in a raw image or on a block device.
    Raw(Arc<File>),
    /// Disk in a qcow2 image.
    Qcow2(Qcow2Disk),
}

impl DiskContents {
    /// Opens the disk in `file`, which is open for writing if `writable`. `path` is for error messages.
    ///
    /// # Errors
    /// A qcow2 file is damaged, or it needs other files.
    pub fn open(file: File, format: ImageFormat, writable: bool, path: &Path) -> Result<Self, ImageError> {
        match format {
            ImageFormat::Raw => Ok(Self::Raw(Arc::new(file))),
            ImageFormat::Qcow2 => match Qcow2Disk::open(file, writable) {
                Ok(disk) => Ok(Self::Qcow2(disk)),
                Err(Qcow2Error::Unreadable(reason)) => {
                    Err(ImageError::Qcow2 { path: path.to_owned(), reason })
                }
                Err(Qcow2Error::NeedsFile { what, name }) => {
                    Err(ImageError::NeedsFile { path: path.to_owned(), what, name })
                }
            },
        }
    }

    /// Returns the size in bytes; `None` for a block device, whose size is not known.
    pub fn size(&self) -> io::Result<Option<u64>> {
        match self {
            Self::Raw(file) => {
                let metadata = file.metadata()?;
                Ok((!metadata.file_type().is_block_device()).then_some(metadata.len()))
            }
            Self::Qcow2(disk) => Ok(Some(disk.size())),
        }
    }

    /// Fills `into` with the bytes of the disk at `offset`.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(into, offset),
            Self::Qcow2(disk) => disk.read_exact_at(into, offset),
        }
    }

    /// Makes the writes to a qcow2 image durable. For a raw image the guest's own flushes do that.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(_) => Ok(()),
            Self::Qcow2(disk) => disk.flush(),
        }
    }

    /// Returns the disk in the form that a machine takes.
    pub fn to_disk(&self) -> io::Result<DiskFile> {
        Ok(match self {
            Self::Raw(file) => DiskFile::Raw(file.try_clone()?),
            Self::Qcow2(disk) => DiskFile::Formatted(Box::new(disk.clone())),
        })
    }
}

/// Part of a disk: all of it, or a partition. Clones share the file.
#[derive(Debug, Clone)]
pub struct DiskPart {
    contents: DiskContents,
    start: u64,
    /// Length in bytes; `None` for a whole block device, whose size is not known.
    length: Option<u64>,
}

impl DiskPart {
    /// Returns the whole disk.
    pub fn whole(contents: DiskContents) -> io::Result<Self> {
        let length = contents.size()?;
        Ok(Self { contents, start: 0, length })
    }

    /// Returns the `length` bytes from `start` on, where both are relative to this part.
    pub fn part(&self, start: u64, length: u64) -> Self {
        let length = self.length.map_or(length, |whole| length.min(whole.saturating_sub(start)));
        Self {
            contents: self.contents.clone(),
            start: self.start.saturating_add(start),
            length: Some(length),
        }
    }

    /// Returns true if the file has the bytes of the disk as the guest sees them.
    pub fn is_raw(&self) -> bool {
        matches!(self.contents, DiskContents::Raw(_))
    }

    /// Returns the length in bytes if it is known.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Fills `into` with the bytes at `offset`, which is relative to this part.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64);
        let on_disk = self.start.checked_add(offset);
        match (end, on_disk) {
            (Some(end), Some(on_disk)) if self.length.is_none_or(|length| end <= length) => {
                self.contents.read_exact_at(into, on_disk)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns the first `most` bytes, or all if there are fewer.
    pub fn beginning(&self, most: usize) -> io::Result<Vec<u8>> {
        let length = self.length.unwrap_or(u64::MAX);
        let mut bytes = vec![0; most.min(usize::try_from(length).unwrap_or(usize::MAX))];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) fn part_of(bytes: &[u8]) -> DiskPart {
    use std::io::Write;
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room");
    DiskPart::whole(DiskContents::Raw(Arc::new(file))).expect("a size")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::qcow2::test_images;

    fn open(bytes: &[u8]) -> DiskContents {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let format = ImageFormat::from_file(&file).unwrap();
        DiskContents::open(file, format, false, Path::new("disk")).unwrap()
    }

    #[test]
    fn raw_and_qcow2_read_alike() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let content: Vec<u8> = (0..400_000_u32).map(|n| (n / 512).to_le_bytes()[0]).collect();
        test_images::create_with(&path, &content);
        let (raw, qcow2) = (open(&content), open(&std::fs::read(&path).unwrap()));
        assert!(matches!((&raw, &qcow2), (DiskContents::Raw(_), DiskContents::Qcow2(_))));
        for contents in [raw, qcow2] {
            assert_eq!(contents.size().unwrap(), Some(400_000));
            let mut part = [0; 700];
            contents.read_exact_at(&mut part, 65_500).unwrap();
            assert_eq!(part, content[65_500..66_200]);
            assert!(contents.read_exact_at(&mut part, 399_999).is_err());
            let whole = DiskPart::whole(contents).unwrap();
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
    fn a_guest_does_not_choose_the_format_that_was_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        test_images::create_with(&path, &[7; 70_000]);
        let file = File::open(&path).unwrap();
        let by_bytes = ImageFormat::choose(None, &file, &path).unwrap();
        assert_eq!(by_bytes, ImageFormat::Qcow2);
        let given = ImageFormat::choose(Some(ImageFormat::Raw), &file, &path).unwrap();
        assert_eq!(given, ImageFormat::Raw);
        let raw = DiskContents::open(file, given, false, &path).unwrap();
        let mut start = [0; 4];
        raw.read_exact_at(&mut start, 0).unwrap();
        assert_eq!(&start, MAGIC, "the guest sees what it wrote");
        for (name, doubtful) in
            [("a.img", true), ("a.RAW", true), ("a.qcow2", false), ("img", false), ("a", false)]
        {
            assert_eq!(by_bytes.contradicts_name(Path::new(name)), doubtful, "{name}");
            assert!(!ImageFormat::Raw.contradicts_name(Path::new(name)));
        }
    }

    #[test]
    fn short_files_are_raw() {
        assert!(matches!(open(b"QFI"), DiskContents::Raw(_)));
        assert!(matches!(open(b""), DiskContents::Raw(_)));
    }
}
