//! cpio archives in the format that Linux unpacks into its initramfs (`newc`,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;

use cpio::newc::{Builder, ModeFileType, trailer};
use guest_programs::{COMMAND_FILE, encode_command};

/// Alignment of archives that follow each other in an initrd, bytes.
pub const ALIGNMENT: usize = 4;

/// Archive under construction. Equal calls make equal bytes: times and owners are zero.
#[derive(Debug, Default)]
pub struct CpioArchive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl CpioArchive {
    /// Returns an empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory and its parents. A path may start with a slash.
    ///
    /// # Errors
    /// The path is too long for the format.
    pub fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.directories.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.directories.insert(path.to_owned());
        self.entry(path, |entry| entry.mode(mode).set_mode_file_type(ModeFileType::Directory), &[])
    }

    /// Adds a regular file and its parent directories.
    ///
    /// # Errors
    /// The file is larger than the format's limit of 4 GiB.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, |entry| entry.mode(mode).set_mode_file_type(ModeFileType::Regular), contents)
    }

    /// Adds a symbolic link and its parent directories.
    ///
    /// # Errors
    /// The path is too long for the format.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        let link = |entry: Builder| entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink);
        self.entry(path, link, target.as_bytes())
    }

    /// Adds a character device and its parent directories.
    ///
    /// # Errors
    /// The path is too long for the format.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> io::Result<()> {
        self.parents(path)?;
        let device = |entry: Builder| {
            entry.mode(mode).set_mode_file_type(ModeFileType::Char).rdev_major(major).rdev_minor(minor)
        };
        self.entry(path, device, &[])
    }

    /// Returns the bytes of the archive, whose number is a multiple of [`ALIGNMENT`].
    ///
    /// # Errors
    /// Never fails for an archive in memory.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        let mut bytes = trailer(self.bytes)?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        Ok(bytes)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.trim_matches('/').rsplit_once('/') {
            Some((parent, _)) => self.directory(parent, 0o755),
            None => Ok(()),
        }
    }

    fn entry(
        &mut self,
        path: &str,
        kind: impl FnOnce(Builder) -> Builder,
        contents: &[u8],
    ) -> io::Result<()> {
        let size = u32::try_from(contents.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{path}: a cpio archive holds files below 4 GiB"),
            )
        })?;
        self.entries += 1;
        // Entries of one inode number are hard links of one another, so each gets its own.
        let builder = kind(Builder::new(path.trim_matches('/')).ino(self.entries).nlink(1));
        let mut writer = builder.write(&mut self.bytes, size);
        io::Write::write_all(&mut writer, contents)?;
        writer.finish().map(drop)
    }
}

/// Returns the archive that gives an image's init its command. A launcher pads the image's initrd with zeros
/// to a multiple of [`ALIGNMENT`], and appends the archive.
///
/// # Errors
/// The command is longer than 4 GiB.
pub fn command_archive<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> io::Result<Vec<u8>> {
    let mut archive = CpioArchive::new();
    archive.file(COMMAND_FILE, 0o444, &encode_command(argv))?;
    archive.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Returns name, mode, inode and contents of every entry.
    fn entries(bytes: &[u8]) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut all = Vec::new();
        let mut rest = bytes;
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return all;
            }
            let mut contents = Vec::new();
            reader.read_to_end(&mut contents).unwrap();
            let entry = reader.entry();
            all.push((entry.name().to_owned(), entry.mode(), entry.ino(), contents));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn directories_come_before_what_is_in_them_and_once() {
        let mut archive = CpioArchive::new();
        archive.file("/lib/modules/a.ko", 0o644, b"module").unwrap();
        archive.directory("/lib/modules", 0o700).unwrap();
        archive.symlink("bin", "usr/bin").unwrap();
        archive.character_device("/dev/console", 0o600, 5, 1).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let found = entries(&bytes);
        let names: Vec<_> = found.iter().map(|(name, mode, ..)| (name.as_str(), *mode)).collect();
        assert_eq!(
            names,
            [
                ("lib", 0o040755),
                ("lib/modules", 0o040755),
                ("lib/modules/a.ko", 0o100644),
                ("bin", 0o120777),
                ("dev", 0o040755),
                ("dev/console", 0o020600),
            ]
        );
        assert_eq!(found[2].3, b"module");
        assert_eq!(found[3].3, b"usr/bin");
        let inodes: BTreeSet<_> = found.iter().map(|(_, _, inode, _)| inode).collect();
        assert_eq!(inodes.len(), found.len());
    }

    #[test]
    fn the_same_calls_make_the_same_bytes() {
        let make = || command_archive(["sh", "-c", "exit 3"]).unwrap();
        assert_eq!(make(), make());
        let found = entries(&make());
        assert_eq!(found[1].0, "vprof/command");
        assert_eq!(found[1].3, b"sh\0-c\0exit 3\0");
    }
}
