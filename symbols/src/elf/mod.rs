//! ELF files of the guest and their separate debug files.
//!
//! [`ElfFile::open`] reads headers alone; a section is read, decompressed and bounded when it is asked
//! for. What a file is read through is a [`ReadAt`]: a file on a disk image, pages of the guest's page
//! cache, an image in guest memory such as the vDSO, or a file of the host.
//!
//! Bounds: [`MAX_SEGMENTS`], [`MAX_SECTIONS`], [`MAX_SECTION`] and [`MAX_READ`]. A file that goes beyond
//! one of them, that is cut short or that contradicts itself gives an [`ElfError`], which says why.

mod build_id;
mod compress;
mod error;
mod file;
mod frames;
mod header;
mod note;
mod read;
mod segment;
#[cfg(test)]
mod tests;

pub use build_id::BuildId;
pub use error::ElfError;
pub use file::{DebugLink, ElfFile, ElfSection, SectionInfo};
pub use read::ReadAt;
pub use segment::ElfSegment;

/// Program headers of a file, at most; the largest programs have some twenty.
pub const MAX_SEGMENTS: usize = 1024;
/// Section headers of a file, at most; programs and libraries have less than a hundred.
pub const MAX_SECTIONS: usize = 1 << 16;
/// Bytes of one section, compressed and not, at most.
pub const MAX_SECTION: u64 = 512 << 20;
/// Bytes that are read of one file plus bytes that come out of decompression, at most. A section that is
/// still held by someone is not read again.
pub const MAX_READ: u64 = 1 << 30;
