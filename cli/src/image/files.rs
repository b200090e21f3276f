//! Files of the guest on its disks, for the names of its code: read straight from ext4, beside the running guest.
//!
//! What the guest changes meanwhile may be missed here; the sampler compares with what the guest has in memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ext4_view::Ext4;
use sampler::{GuestFiles, OpenFiles, ReadAt};

use super::contents::Contents;
use super::disk;

/// The disks of one machine.
#[derive(Debug)]
struct Disks {
    /// Never given twice.
    id: u64,
    files: Vec<Contents>,
}

/// An open file: machine, disk and path.
type Opened = (u64, usize, Arc<str>, ext4_view::File);

thread_local! {
    /// File systems that this thread has loaded, by machine and disk; `None` for a disk that cannot be read. A loaded
    /// one belongs to its thread.
    static LOADED: RefCell<HashMap<(u64, usize), Option<Ext4>>> = RefCell::default();
    /// The file that was read last: reads come in rows.
    static LAST: RefCell<Option<Opened>> = const { RefCell::new(None) };
}

/// Reads files of the disks' file systems; disks that hold something else are passed over.
pub fn open(disks: Vec<Contents>) -> OpenFiles {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let disks = Arc::new(Disks { id: NEXT.fetch_add(1, Ordering::Relaxed), files: disks });
    Arc::new(move || Box::new(OnDisks(Arc::clone(&disks))))
}

impl Disks {
    fn with<T>(&self, index: usize, ask: impl FnOnce(&Ext4) -> Option<T>) -> Option<T> {
        LOADED.with_borrow_mut(|loaded| {
            let fs = loaded
                .entry((self.id, index))
                .or_insert_with(|| self.files.get(index).and_then(|file| disk::load(file).ok()));
            fs.as_ref().and_then(ask)
        })
    }
}

struct OnDisks(Arc<Disks>);

impl GuestFiles for OnDisks {
    fn open(&self, path: &str) -> Option<Box<dyn ReadAt>> {
        (0..self.0.files.len()).find_map(|index| {
            let len = self.0.with(index, |fs| {
                let metadata = fs.metadata(path).ok()?;
                metadata.file_type().is_regular_file().then(|| metadata.len())
            })?;
            let found = OnDisk { disks: Arc::clone(&self.0), index, path: path.into(), len };
            Some(Box::new(found) as Box<dyn ReadAt>)
        })
    }
}

/// A file on a disk.
struct OnDisk {
    disks: Arc<Disks>,
    index: usize,
    path: Arc<str>,
    len: u64,
}

impl ReadAt for OnDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        LAST.with_borrow_mut(|last| {
            let same = |(id, index, path, _): &Opened| {
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
