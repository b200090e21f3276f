//! Reasons why an ELF file, or a part of it, could not be read.

/// Reason why an ELF file, or a part of it, could not be read; its `Display` is what a report shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum ElfError {
    /// The file has no ELF header.
    #[error("not an ELF file")]
    NotElf,
    /// 32 bit, big-endian, or of another processor.
    #[error("not an ELF file for x86-64")]
    NotX86_64,
    /// An object file, a core dump, or of an unknown type: neither ET_EXEC nor ET_DYN.
    #[error("neither a program nor a shared library (ELF type {0})")]
    NotLoadable(u16),
    /// A part is beyond the end of the file, or the file could not be read there.
    #[error("{0} cannot be read: the file is cut short or unreadable there")]
    Truncated(String),
    /// More entries than [`MAX_SEGMENTS`](super::MAX_SEGMENTS) or [`MAX_SECTIONS`](super::MAX_SECTIONS).
    #[error("too many {what}: {count}")]
    TooMany {
        /// Kind of entry.
        what: String,
        /// Entries that the file claims.
        count: u64,
    },
    /// A part is larger than its bound, or the file's bound for all that is read of it is used up.
    #[error("{what} is too large: {bytes} bytes")]
    TooLarge {
        /// Name of the part.
        what: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// Two load segments claim the same addresses.
    #[error("load segments overlap at {0:#x}")]
    Overlap(u64),
    /// The file has no such section, or the section has no bytes in this file.
    #[error("no section {0}")]
    NoSection(String),
    /// A compressed section that cannot be decompressed, or not to the size that it claims.
    #[error("section {0} cannot be decompressed")]
    BadCompression(String),
    /// A part contradicts its format.
    #[error("{0} is damaged")]
    Malformed(String),
}
