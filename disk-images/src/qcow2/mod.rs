//! Disks in qcow2 files, by the crate imago.
//!
//! A qcow2 file may name other files: one with the contents of its unwritten clusters (a backing file), and
//! one with its data. The author of the image chooses the name, and it could be any file that the user can
//! read. Therefore an image that names another file is refused. An image whose tables contradict each other
//! is refused as well ([`check`]): imago trusts them, and may recurse without an end.

mod check;

use std::fmt;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, StorageOpenOptions};
use vmm::DiskFormat;

pub use self::check::Qcow2Fault;

/// First bytes of a qcow2 file ("QFI", docs/interop/qcow2.txt of QEMU).
pub const MAGIC: &[u8] = b"QFI\xfb";

/// Disk in an open qcow2 file. Clones share the file, and each sees the writes of the others.
#[derive(Clone)]
pub struct Qcow2Disk {
    disk: Arc<FormatAccess<ImagoFile>>,
}

impl fmt::Debug for Qcow2Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qcow2Disk").field("bytes", &self.disk.size()).finish_non_exhaustive()
    }
}

/// Reason for which a qcow2 file cannot be used.
#[derive(Debug)]
pub enum Qcow2Error {
    /// The file is damaged, or it uses an unsupported feature.
    Unreadable(Qcow2Fault),
    /// The file needs another file.
    NeedsFile {
        /// Purpose of the other file, like "a backing file".
        what: &'static str,
        /// Name of the other file, as the image has it.
        name: String,
    },
}

/// Calls imago, and turns its panic, by which it gives up on some damage, into an error. The panic's message
/// on standard error has the place in imago.
fn guarded<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(io::Error::other("its tables contradict each other")))
}

impl Qcow2Disk {
    /// Opens `file`, which is open for writing if `writable`. No other file is opened.
    ///
    /// # Errors
    /// The file is damaged, uses an unsupported feature, or needs another file.
    pub fn open(file: File, writable: bool) -> Result<Self, Qcow2Error> {
        let unreadable = |error: io::Error| Qcow2Error::Unreadable(Qcow2Fault::Open(error));
        check::check(&file).map_err(Qcow2Error::Unreadable)?;
        let options = StorageOpenOptions::new().write(writable);
        let file = ImagoFile::from_open_file(file, options).map_err(unreadable)?;
        let mut image: Qcow2<ImagoFile> =
            guarded(|| Qcow2::open_image(file, writable)).map_err(unreadable)?;
        let named = |what, name: Option<&String>| Qcow2Error::NeedsFile {
            what,
            name: name.map_or_else(|| "which it does not name".to_owned(), Clone::clone),
        };
        if let Some(name) = image.implicit_backing_file() {
            return Err(named("a backing file", Some(name)));
        }
        if image.requires_external_data_file() {
            return Err(named("a data file", image.implicit_external_data_file()));
        }
        // Without these calls imago would open the files that the image names.
        image.set_backing(None);
        image.set_data_file(None);
        Ok(Self { disk: Arc::new(FormatAccess::new(image)) })
    }

    /// Returns the size of the disk, bytes.
    pub fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Fills `into` with the bytes of the disk at `offset`.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        // imago would return zeros past the end of the disk.
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        guarded(|| self.disk.read(into, offset))
    }

    /// Makes the completed writes durable.
    pub fn flush(&self) -> io::Result<()> {
        guarded(|| self.disk.flush().and_then(|()| self.disk.sync()))
    }
}

impl DiskFormat for Qcow2Disk {
    fn size(&self) -> u64 {
        Self::size(self)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        guarded(|| self.disk.write(data, offset))
    }

    fn flush(&self) -> io::Result<()> {
        Self::flush(self)
    }
}

#[cfg(test)]
pub mod test_images {
    //! qcow2 files, made by code.

    use imago::{FormatCreateBuilder, FormatDriverBuilder, PermissiveImplicitOpenGate};

    use super::*;

    /// Creates an empty disk of `bytes`, with a backing file of this name, which need not exist.
    pub fn create(path: &std::path::Path, bytes: u64, backing: Option<&str>) {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        let file = ImagoFile::from_open_file(file, StorageOpenOptions::new().write(true)).unwrap();
        let builder = Qcow2::<ImagoFile>::create_builder(file).size(bytes);
        let builder = match backing {
            Some(name) => builder.backing(name.to_owned(), "raw".to_owned()),
            None => builder,
        };
        builder.create().unwrap();
    }

    /// Creates a disk that begins with these bytes.
    pub fn create_with(path: &std::path::Path, content: &[u8]) {
        create(path, content.len() as u64, None);
        let disk = Qcow2::<ImagoFile>::builder_path(path)
            .write(true)
            .open(PermissiveImplicitOpenGate::default())
            .unwrap();
        let disk = FormatAccess::new(disk);
        disk.write(content, 0).unwrap();
        disk.flush().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::test_images::{create, create_with};
    use super::*;

    fn open(path: &std::path::Path, writable: bool) -> Result<Qcow2Disk, Qcow2Error> {
        Qcow2Disk::open(File::options().read(true).write(writable).open(path).unwrap(), writable)
    }

    #[test]
    fn what_is_written_is_read_by_all_and_after_a_flush_by_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create(&path, 3 << 20, None);
        let disk = open(&path, true).unwrap();
        let reader = disk.clone();
        assert_eq!(disk.size(), 3 << 20);
        disk.write_at((1 << 20) - 256, &[7; 512]).unwrap();
        let mut bytes = [1; 1024];
        reader.read_exact_at(&mut bytes, (1 << 20) - 512).unwrap();
        assert_eq!((bytes[255], bytes[256], bytes[767], bytes[768]), (0, 7, 7, 0));
        disk.flush().unwrap();
        // Open still, as after a crash.
        let other = open(&path, false).unwrap();
        other.read_exact_at(&mut bytes, (1 << 20) - 512).unwrap();
        assert_eq!((bytes[255], bytes[256]), (0, 7));
        assert!(other.write_at(0, &[1; 512]).is_err(), "open for reading only");
        assert!(other.read_exact_at(&mut bytes, (3 << 20) - 512).is_err(), "beyond the end");
        assert!(other.read_exact_at(&mut bytes, u64::MAX).is_err());
    }

    #[test]
    fn other_files_are_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create(&path, 1 << 20, Some("/etc/passwd"));
        let refused = open(&path, false).unwrap_err();
        assert!(
            matches!(&refused, Qcow2Error::NeedsFile { what: "a backing file", name } if name == "/etc/passwd"),
            "{refused:?}"
        );
        // The bit for an external data file (incompatible features, byte 72 of the header on, bit 2).
        create(&path, 1 << 20, None);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[79] |= 4;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(open(&path, true).unwrap_err(), Qcow2Error::NeedsFile { what: "a data file", .. }));
    }

    #[test]
    fn other_and_torn_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create(&path, 1 << 20, None);
        let whole = std::fs::read(&path).unwrap();
        let mut encrypted = whole.clone();
        encrypted[35] = 1;
        let mut version = whole.clone();
        version[7] = 9;
        for bytes in [&whole[..60], b"QFI\xfb", &encrypted, &version] {
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(open(&path, false).unwrap_err(), Qcow2Error::Unreadable(_)), "{}", bytes.len());
        }
    }

    proptest! {
        #[test]
        fn a_damaged_image_gives_the_same_answer_twice_and_keeps_what_is_written(
            damage in proptest::collection::vec((0_usize..0x5_0000, any::<u8>()), 1..6),
            table in proptest::collection::vec((0_usize..104, any::<u8>()), 0..3),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("disk");
            create_with(&path, &[5; 200_000]);
            let mut bytes = std::fs::read(&path).unwrap();
            for (at, value) in damage.into_iter().chain(table) {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            std::fs::write(&path, bytes).unwrap();
            if let Ok(disk) = open(&path, true) {
                let mut into = vec![0; 64 << 10];
                for at in (0..disk.size().min(1 << 20)).step_by(64 << 10) {
                    let first = disk.read_exact_at(&mut into, at).map(|()| into.clone());
                    let second = disk.read_exact_at(&mut into, at).map(|()| into.clone());
                    prop_assert_eq!(first.ok(), second.ok());
                    let written = [u8::try_from(at >> 16).unwrap() ^ 0xa5; 512];
                    if disk.write_at(at, &written).is_ok() && disk.read_exact_at(&mut into, at).is_ok() {
                        prop_assert_eq!(&into[..512], &written[..]);
                    }
                }
            }
        }
    }
}
