//! Headers of cpio archives in the form "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).

/// Bytes of a header: magic and 13 numbers of 8 hexadecimal digits.
const BYTES: usize = 110;
/// Bytes of the magic.
const MAGIC: usize = 6;
/// Digits of a number.
const DIGITS: usize = 8;

/// The used members of an entry's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// Inode number in the archive: entries of one device with the same number are hard links to one file.
    pub inode: u32,
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Names that the file has.
    pub links: u32,
    /// Bytes of the file after the name.
    pub size: u32,
    /// Major and minor number of the device that the file was on.
    pub device: (u32, u32),
    /// Bytes of the name after the header, with its NUL.
    pub name_size: u32,
}

impl EntryHeader {
    /// Bytes of a header.
    pub const BYTES: usize = BYTES;
    /// Name of the entry that ends an archive.
    pub const TRAILER: &str = "TRAILER!!!";
    /// Header, name and content each begin at a multiple of this many bytes.
    pub const ALIGNMENT: u64 = 4;

    /// Reads a header, with or without checksum; `None` where it is another thing.
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let (magic, numbers) = bytes.split_at(MAGIC);
        if !matches!(magic, b"070701" | b"070702") {
            return None;
        }
        let mut fields = [0; 13];
        for (field, digits) in fields.iter_mut().zip(numbers.chunks_exact(DIGITS)) {
            // from_str_radix would take a sign.
            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
            *field = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let [inode, mode, _, _, links, _, size, major, minor, _, _, name_size, _] = fields;
        Some(Self { inode, mode, links, size, device: (major, minor), name_size })
    }
}
