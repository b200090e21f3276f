//! Files of an image's ext4 file system.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use ext4_view::{Ext4, Ext4Read};

/// The file system of an image.
#[derive(Debug)]
pub struct Ext4Image(Ext4);

/// A file from this byte to its end.
struct FileFrom(File, u64);

impl Ext4Read for FileFrom {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.0.read_exact_at(into, self.1 + at).map_err(Into::into)
    }
}

impl Ext4Image {
    /// Opens the file system that is the whole image.
    ///
    /// # Errors
    /// The image cannot be read, or is not an ext4 file system.
    pub fn open(image: &Path) -> anyhow::Result<Self> {
        Self::open_at(image, 0)
    }

    /// Opens the file system of the partition that starts at that byte.
    ///
    /// # Errors
    /// The image cannot be read, or the partition is not an ext4 file system.
    pub fn open_at(image: &Path, start: u64) -> anyhow::Result<Self> {
        Ok(Self(Ext4::load(Box::new(FileFrom(File::open(image)?, start)))?))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// There is no such file.
    pub fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.0.read(path).with_context(|| format!("no {path} in the image"))
    }
}
