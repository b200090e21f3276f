//! cpio archives, written by code.

/// S_IFREG with the permissions of a program.
const PROGRAM_MODE: u32 = 0o100_755;

/// An entry of an archive.
#[derive(Debug, Clone)]
pub struct CpioEntry {
    /// Name of the file.
    pub name: String,
    /// Type and permissions (inode(7)).
    pub mode: u32,
    /// Number of the inode, equal for all names of one file.
    pub inode: u32,
    /// Number of the file's names.
    pub links: u32,
    /// Bytes of the file.
    pub content: Vec<u8>,
}

impl CpioEntry {
    /// Makes a regular file with one name that may be executed.
    pub fn new(name: &str, content: &[u8]) -> Self {
        Self { name: name.to_owned(), mode: PROGRAM_MODE, inode: 0, links: 1, content: content.to_vec() }
    }
}

/// Returns an archive of these entries in the form "newc", with upper case digits
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
///
/// # Panics
/// A file has 4 GiB or more.
pub fn cpio_archive(entries: &[CpioEntry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let trailer = CpioEntry { mode: 0, ..CpioEntry::new("TRAILER!!!", b"") };
    for entry in entries.iter().chain([&trailer]) {
        let sizes = [entry.content.len(), entry.name.len() + 1];
        let [size, name_size] = sizes.map(|size| u32::try_from(size).expect("a file below 4 GiB"));
        bytes.extend(b"070701");
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize,
        // check
        for field in [entry.inode, entry.mode, 0, 0, entry.links, 0, size, 0, 0, 0, 0, name_size, 0] {
            bytes.extend(format!("{field:08X}").bytes());
        }
        bytes.extend(entry.name.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(&entry.content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_contents_are_aligned() {
        let archive = cpio_archive(&[CpioEntry::new("init", b"#!"), CpioEntry::new("a", b"")]);
        assert!(archive.starts_with(b"07070100000000000081ED"));
        // 110 bytes of header, the name, its NUL and a byte of padding.
        assert_eq!(&archive[110..116], b"init\0\0");
        assert_eq!(&archive[116..126], b"#!\0\x00070701");
        assert_eq!(archive.len(), 116 + 4 + 112 + 124);
        assert!(archive.ends_with(b"TRAILER!!!\0\0\0\0"));
    }
}
