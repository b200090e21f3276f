//! ext2, ext3 and ext4, by the crate ext4-view.
//!
//! After a power cut the last changes are only in the journal: a kernel that was just installed, for example.
//! ext4-view replays a journal only if it has 64-bit block numbers and checksums of version 3, which ext3 and
//! the ext4 of CentOS 7 lack. So vprof replays every journal itself, and ext4-view sees a disk without one:
//!
//! ```text
//! ext4-view ──▶ ExtReader ──┬──▶ superblock without "needs recovery"
//!                           ├──▶ newest copy of a block in the journal (journal.rs)
//!                           └──▶ everything else: the disk
//! ```

mod blocks;
mod journal;
mod superblock;

use std::error::Error;
use std::io;
use std::sync::Arc;

use display::message::Reason;
use ext4_view::{Ext4, Ext4Read};

use self::blocks::MOST_BLOCKS;
use self::journal::JournalReplay;
use super::{MOST_NAMES, VolumeError, VolumeFiles};
use crate::contents::DiskPart;

/// Failure to replay a journal, in words that follow "its journal can't be replayed:".
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk cannot be read.
    #[error("{}", Reason(.0))]
    Read(#[from] io::Error),
    /// The journal is on a separate device.
    #[error("it is on another device")]
    External,
    /// The file system was not unmounted, but it has no journal.
    #[error("there is none")]
    Missing,
    /// A part, like "its superblock", is not what Linux would write.
    #[error("{0} is damaged")]
    Damaged(&'static str),
    /// The journal has features that vprof does not know.
    #[error("it has unknown features ({0:#x})")]
    Features(u32),
    /// The journal is larger than any that Linux' tools make unasked.
    #[error("it has more than {MOST_BLOCKS} blocks")]
    TooLarge,
}

/// Part of a disk with ext2, ext3 or ext4, as it is after a replay of its journal.
#[derive(Debug)]
pub struct ExtPart {
    part: DiskPart,
    replay: Option<Arc<JournalReplay>>,
    /// Failure to replay the journal. Files are then as they are without it, because an older file or name
    /// is of more use than none.
    pub unreplayed: Option<JournalError>,
}

impl ExtPart {
    /// Replays the journal if the file system was not unmounted. Nothing is written to the disk.
    pub fn new(part: DiskPart) -> Self {
        let (replay, unreplayed) = match JournalReplay::read(&part) {
            Ok(replay) => (replay.map(Arc::new), None),
            Err(error) => (None, Some(error)),
        };
        Self { part, replay, unreplayed }
    }

    /// Loads the file system.
    pub fn load(&self) -> Result<Ext4, VolumeError> {
        Ok(Ext4::load(Box::new(self.reader()))?)
    }

    /// Loads the file system as the files of a volume.
    pub fn open(&self) -> Result<Box<dyn VolumeFiles>, VolumeError> {
        Ok(Box::new(Ext4Volume { files: self.load()?, bytes: self.part.length().unwrap_or(u64::MAX) }))
    }

    fn reader(&self) -> ExtReader {
        ExtReader { part: self.part.clone(), replay: self.replay.clone() }
    }
}

/// Source of ext4-view: a part of a disk, covered by the blocks that are newer in the journal.
struct ExtReader {
    part: DiskPart,
    replay: Option<Arc<JournalReplay>>,
}

impl ExtReader {
    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.part.read_exact_at(into, start)?;
        if let Some(replay) = &self.replay {
            replay.cover(&self.part, start, into)?;
        }
        if start == superblock::START {
            superblock::clear_recovery(into);
        }
        Ok(())
    }
}

impl Ext4Read for ExtReader {
    fn read(&mut self, start: u64, dst: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.read_at(start, dst).map_err(Into::into)
    }
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

fn le_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u16::from_le_bytes)
}

fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u32::from_le_bytes)
}

/// Continues a CRC-32C, which begins with `!0`, as Linux does: without an inversion at the end.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    static CRC32C: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    let mut digest = CRC32C.digest_with_initial(seed.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

#[cfg(test)]
mod tests;
