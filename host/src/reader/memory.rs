//! Kernel and initrd of a guest in files in memory, which other processes inherit.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use disk_images::{BootPayload, cpio};

use crate::process::memory_file;

/// Kernel and initrd of a guest, each in a file in memory that is at its beginning.
#[derive(Debug)]
pub struct BootMemory {
    /// Kernel: bzImage or ELF vmlinux.
    pub kernel: File,
    /// Initial file system, compressed or not.
    pub initrd: Option<File>,
}

impl BootMemory {
    /// Adds an archive to the initrd, if there is one.
    ///
    /// # Errors
    /// No memory is left.
    pub fn append(&mut self, archive: &[u8]) -> io::Result<()> {
        let Some(initrd) = &mut self.initrd else { return Ok(()) };
        let end = initrd.seek(SeekFrom::End(0))?;
        let start = end.next_multiple_of(cpio::ALIGNMENT as u64);
        initrd.set_len(start)?;
        initrd.seek(SeekFrom::Start(start))?;
        initrd.write_all(archive)?;
        initrd.rewind()
    }

    /// Returns a copy of the initrd's bytes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn initrd_bytes(&self) -> io::Result<Option<Vec<u8>>> {
        self.initrd.as_ref().map(bytes).transpose()
    }

    /// Returns the bytes of both.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn into_bytes(self) -> io::Result<BootPayload> {
        Ok(BootPayload { kernel: bytes(&self.kernel)?, initrd: self.initrd_bytes()? })
    }

    /// Makes two empty files.
    pub(super) fn empty() -> io::Result<(File, File)> {
        Ok((memory_file(c"vprof-kernel", &[])?.into(), memory_file(c"vprof-initrd", &[])?.into()))
    }
}

/// Returns the bytes of a file, and leaves it at its beginning.
fn bytes(mut file: &File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    file.rewind()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_follows_the_initrd_at_a_multiple_of_four() {
        let file = |bytes| File::from(memory_file(c"test", bytes).unwrap());
        let mut memory = BootMemory { kernel: file(b"kernel"), initrd: Some(file(b"12345")) };
        memory.append(b"archive").unwrap();
        assert_eq!(memory.initrd_bytes().unwrap().unwrap(), b"12345\0\0\0archive");
        let payload = memory.into_bytes().unwrap();
        assert_eq!((payload.kernel.as_slice(), payload.initrd.unwrap().len()), (&b"kernel"[..], 15));
        let mut bare = BootMemory { kernel: file(b"kernel"), initrd: None };
        bare.append(b"archive").unwrap();
        assert_eq!(bare.initrd_bytes().unwrap(), None);
    }
}
