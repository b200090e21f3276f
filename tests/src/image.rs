//! Files of an image's ext4 file system.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use ext4_view::{Ext4, Ext4Read};

/// The file system of an image.
#[derive(Debug)]
pub struct ImageFiles(Ext4);

/// A file, from this byte on.
struct FileFrom(File, u64);

impl Ext4Read for FileFrom {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.0.read_exact_at(into, self.1 + at).map_err(Into::into)
    }
}

impl ImageFiles {
    /// Opens the one that is the whole image.
    ///
    /// # Errors
    /// It cannot be read, or is something else.
    pub fn open(image: &Path) -> anyhow::Result<Self> {
        Self::open_at(image, 0)
    }

    /// Opens the one of a partition, which starts at that byte.
    ///
    /// # Errors
    /// It cannot be read, or is something else.
    pub fn open_at(image: &Path, start: u64) -> anyhow::Result<Self> {
        Ok(Self(Ext4::load(Box::new(FileFrom(File::open(image)?, start)))?))
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// There is no such file.
    pub fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.0.read(path).with_context(|| format!("no {path} in the image"))
    }
}
