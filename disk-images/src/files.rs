//! Files of the guest on its disks, for the names of its code. They are read from ext4 while the guest runs.
//!
//! A path is one in the guest, where file systems are mounted into each other. The mount points are not known
//! from the disk's partitions: a file system that is mounted at /home has /home/a as /a. Therefore a path
//! that no file system has is tried without its first directories.
//!
//! Changes that the guest makes meanwhile may be missed. The sampler compares the files with the guest's
//! memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ext4_view::Ext4;
use symbols::elf::ReadAt;
use symbols::names::{GuestFiles, OpenFiles};

use super::contents::{DiskContents, DiskPart};
use super::partition;
use super::volume::ext4::ExtPart;
use super::volume::signature::VolumeSignature;

/// Most directories between the root and a mount point.
const MOUNT_DEPTH: usize = 3;
/// Most file systems of all disks that are searched.
const MOST_VOLUMES: usize = 64;

/// Disks of one machine.
#[derive(Debug)]
struct MachineDisks {
    /// Id of the machine, unique in this process.
    id: u64,
    disks: Vec<DiskContents>,
    /// Ext4 file systems on the disks, found at the first use.
    volumes: OnceLock<Vec<ExtPart>>,
}

/// File that is open: machine, file system, path and reader.
type OpenFile = (u64, usize, Arc<str>, ext4_view::File);

thread_local! {
    /// File systems that this thread has loaded. ext4-view's file systems cannot be shared between threads.
    static LOADED: RefCell<LoadedVolumes> = RefCell::default();
    /// File that was read last, kept because reads of one file follow each other.
    static LAST: RefCell<Option<OpenFile>> = const { RefCell::new(None) };
}

/// File systems of one machine that a thread has loaded. Those of a machine before it are dropped, and their
/// disks closed.
#[derive(Default)]
struct LoadedVolumes {
    machine: u64,
    /// By number; `None` for a file system that cannot be read.
    volumes: HashMap<usize, Option<Ext4>>,
}

/// Returns a reader of files on the disks' ext4 file systems. Other file systems are skipped.
pub fn open(disks: Vec<DiskContents>) -> OpenFiles {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let disks = Arc::new(MachineDisks { id, disks, volumes: OnceLock::new() });
    Arc::new(move || Box::new(FilesOnDisks(Arc::clone(&disks))))
}

/// Returns the ext4 file systems on a disk.
fn volumes(disk: &DiskContents) -> Vec<ExtPart> {
    let Ok(whole) = DiskPart::whole(disk.clone()) else { return Vec::new() };
    let parts = match partition::read(&whole) {
        Ok(Some(table)) => table.partitions.iter().map(|p| whole.part(p.start, p.length)).collect(),
        _ => vec![whole],
    };
    let is_ext =
        |part: &DiskPart| VolumeSignature::from_part(part).is_some_and(|found| found.name.starts_with("ext"));
    parts.into_iter().filter(is_ext).map(ExtPart::new).collect()
}

impl MachineDisks {
    fn volumes(&self) -> &[ExtPart] {
        self.volumes.get_or_init(|| self.disks.iter().flat_map(volumes).take(MOST_VOLUMES).collect())
    }

    fn with<T>(&self, index: usize, ask: impl FnOnce(&Ext4) -> Option<T>) -> Option<T> {
        LOADED.with_borrow_mut(|loaded| {
            if loaded.machine != self.id {
                *loaded = LoadedVolumes { machine: self.id, volumes: HashMap::new() };
            }
            let fs = loaded
                .volumes
                .entry(index)
                .or_insert_with(|| self.volumes().get(index).and_then(|part| part.load().ok()));
            fs.as_ref().and_then(ask)
        })
    }
}

/// Files on the disks of one machine.
struct FilesOnDisks(Arc<MachineDisks>);

impl GuestFiles for FilesOnDisks {
    fn open(&self, path: &str) -> Option<Box<dyn ReadAt>> {
        let below = path.match_indices('/').take(MOUNT_DEPTH + 1).filter_map(|(at, _)| path.get(at..));
        below.filter(|path| path.len() > 1).find_map(|path| self.find(path))
    }

    fn prepare(&self) {
        for index in 0..self.0.volumes().len() {
            // A file system that cannot be loaded is marked as such, and not tried again.
            let _ = self.0.with(index, |_| Some(()));
        }
    }
}

impl FilesOnDisks {
    fn find(&self, path: &str) -> Option<Box<dyn ReadAt>> {
        (0..self.0.volumes().len()).find_map(|index| {
            let len = self.0.with(index, |fs| {
                let metadata = fs.metadata(path).ok()?;
                metadata.file_type().is_regular_file().then(|| metadata.len())
            })?;
            let found = FileOnDisk { disks: Arc::clone(&self.0), index, path: path.into(), len };
            Some(Box::new(found) as Box<dyn ReadAt>)
        })
    }
}

/// File on a disk.
struct FileOnDisk {
    disks: Arc<MachineDisks>,
    index: usize,
    path: Arc<str>,
    len: u64,
}

impl ReadAt for FileOnDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        LAST.with_borrow_mut(|last| {
            let same = |(id, index, path, _): &OpenFile| {
                *id == self.disks.id && *index == self.index && *path == self.path
            };
            if !last.as_ref().is_some_and(same) {
                let file = self.disks.with(self.index, |fs| fs.open(&*self.path).ok())?;
                *last = Some((self.disks.id, self.index, Arc::clone(&self.path), file));
            }
            let (.., file) = last.as_mut()?;
            file.seek_to(offset).ok()?;
            let mut done = 0;
            while done < into.len() {
                match file.read_bytes(into.get_mut(done..)?) {
                    Ok(0) | Err(_) => return None,
                    Ok(read) => done += read,
                }
            }
            Some(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn files_are_found_below_mounts_and_after_the_guest_has_changed_its_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (root, image) = (directory.path().join("root"), directory.path().join("image"));
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/program"), b"its bytes").unwrap();
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&root).arg(&image);
        assert!(make.status().expect("mke2fs (Debian package e2fsprogs) is installed").success());
        let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
        let open = open(vec![DiskContents::Raw(Arc::new(file.try_clone().unwrap()))]);
        let files = open();
        files.prepare();
        assert!(files.open("/").is_none(), "a directory has no bytes");
        // A guest rewrites its superblock while it runs; this damage is worse.
        file.write_all_at(&[0xff; 1024], 1024).unwrap();
        for path in ["/bin/program", "/home/bin/program"] {
            let found = files.open(path).expect(path);
            let mut bytes = [0; 9];
            assert_eq!((found.read_at(0, &mut bytes), &bytes), (Some(()), b"its bytes"), "{path}");
        }
        assert!(files.open("/bin").is_none() && files.open("/bin/other").is_none());
    }
}
