//! ext2, ext3 and ext4, by the crate ext4-view.

use std::error::Error;

use ext4_view::{Ext4, Ext4Read};

use super::{MOST_NAMES, VolumeError, VolumeFiles};
use crate::contents::DiskPart;

/// Part of a disk as the source of ext4-view.
struct PartReader(DiskPart);

impl Ext4Read for PartReader {
    fn read(&mut self, start: u64, dst: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.0.read_exact_at(dst, start).map_err(Into::into)
    }
}

/// Loads the file system in this part of a disk.
pub fn load(part: &DiskPart) -> Result<Ext4, VolumeError> {
    Ok(Ext4::load(Box::new(PartReader(part.clone())))?)
}

/// Loads the file system in this part of a disk as the files of a volume.
pub fn open(part: &DiskPart) -> Result<Box<dyn VolumeFiles>, VolumeError> {
    Ok(Box::new(Ext4Volume { files: load(part)?, bytes: part.length().unwrap_or(u64::MAX) }))
}

/// File system and its length.
#[derive(Debug)]
struct Ext4Volume {
    files: Ext4,
    bytes: u64,
}

impl VolumeFiles for Ext4Volume {
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, VolumeError> {
        // The reader allocates all of the file, which may claim to be a large hole.
        let most = most.min(self.bytes);
        let size = self.files.metadata(path).map_err(|error| VolumeError::in_file(path, error))?.len();
        if size > most {
            return Err(VolumeError::TooLarge { path: path.to_owned(), most });
        }
        self.files.read(path).map_err(|error| VolumeError::in_file(path, error))
    }

    fn is_file(&self, path: &str) -> bool {
        self.files.metadata(path).is_ok_and(|m| m.file_type().is_regular_file())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = self.files.read_dir(directory) else { return Vec::new() };
        let names = entries.take(MOST_NAMES).map_while(Result::ok);
        let mut names: Vec<String> =
            names.filter_map(|entry| entry.file_name().as_str().ok().map(str::to_owned)).collect();
        names.sort();
        names
    }

    fn resolved(&self, path: String) -> String {
        match self.files.canonicalize(path.as_str()) {
            Ok(real) => String::from_utf8_lossy(real.as_ref()).into_owned(),
            Err(_) => path,
        }
    }
}
