//! Tables of guests' kernels that attach halves have in common: files in a directory, which each half maps.
//!
//! ```text
//!  vprof attach --tables DIR                         vprof attach-half
//!  opens DIR/*.tables, makes a file in memory ─────▶ maps them before its sandbox; compares its own
//!                                                   tables with those of the files;
//!  copies that file into DIR  ◀── new tables ─────── appends the others to the new one
//! ```
//!
//! A half reads a hostile guest, and may write anything into its file in memory. Another half uses bytes of a
//! file only where they are equal to those that it has itself made of its own guest
//! ([`symbols::shared_table`]). A file never changes once it has its name.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use symbols::shared_table::{TablePool, TableRoom};
use tokio::time::{MissedTickBehavior, interval};

use super::TableFiles;
use crate::process::memory_file;

/// Ending of a file with tables.
const ENDING: &str = "tables";
/// Bytes of new tables of one half, at most. Those of a distribution's kernel with its modules take 5 to 20
/// MB.
const ROOM: u64 = 32 << 20;
/// Bytes before them: the number of bytes in use.
const HEAD: u64 = 64;
/// Files, and bytes of all of them, at most.
const MOST_FILES: usize = 32;
const MOST_BYTES: u64 = 128 << 20;
/// Interval of the checks for new tables, which are copied once nothing was added between two.
const CHECK: Duration = Duration::from_secs(5);
const COPY: usize = 64 << 10;

/// Tables of a half, from its parent's side.
#[derive(Debug)]
pub(super) struct HalfTables {
    directory: PathBuf,
    /// Tables of other halves.
    known: Vec<File>,
    /// Those that only this half has.
    new: File,
    /// Bytes at the last check.
    seen: u64,
    /// Bytes that are in a file.
    copied: u64,
}

impl HalfTables {
    /// Opens the tables of a directory for another half.
    ///
    /// # Errors
    /// The directory cannot be read; no memory or no descriptors are left.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let new = File::from(memory_file(c"vprof-tables", &[])?);
        new.set_len(HEAD + ROOM)?;
        let paths = stored(directory)?.into_iter().map(|file| file.path);
        let known = paths.filter_map(|path| match File::open(path) {
            // Another recorder has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened),
        });
        let known = known.collect::<io::Result<_>>()?;
        Ok(Self { directory: directory.to_owned(), known, new, seen: 0, copied: 0 })
    }

    /// Returns the numbers of the descriptors, which the half inherits.
    pub(super) fn files(&self) -> TableFiles {
        TableFiles { known: self.known.iter().map(AsRawFd::as_raw_fd).collect(), new: self.new.as_raw_fd() }
    }

    /// Copies new tables into files until `run` ends. Returns its outcome, and the first error.
    pub(super) async fn copied_while<T>(mut self, run: impl Future<Output = T>) -> (T, io::Result<()>) {
        tokio::pin!(run);
        // The half has its own.
        self.known.clear();
        let mut checks = interval(CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut result = Ok(());
        loop {
            tokio::select! {
                outcome = &mut run => return (outcome, result.and_then(|()| self.copy_new(true))),
                _ = checks.tick(), if result.is_ok() => result = self.copy_new(false),
            }
        }
    }

    /// Copies what was appended into a file, if nothing was appended since the last call or the half has
    /// `ended`.
    fn copy_new(&mut self, ended: bool) -> io::Result<()> {
        let mut used = [0; 8];
        self.new.read_exact_at(&mut used, 0)?;
        let used = u64::from_le_bytes(used).min(ROOM);
        let is_stable = std::mem::replace(&mut self.seen, used) == used || ended;
        if used <= self.copied || !is_stable {
            return Ok(());
        }
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.directory)?;
        self.new.seek(SeekFrom::Start(HEAD + self.copied))?;
        let mut hasher = DefaultHasher::new();
        let mut rest = (&self.new).take(used - self.copied);
        let mut buffer = vec![0; COPY];
        loop {
            let count = rest.read(&mut buffer)?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
            hasher.write(bytes);
            file.write_all(bytes)?;
        }
        // Two halves of equal guests have the same tables.
        let name = format!("{:016x}.{ENDING}", hasher.finish());
        file.persist(self.directory.join(name)).map_err(|error| error.error)?;
        self.copied = used;
        remove_oldest(&self.directory)
    }
}

/// File with tables.
struct StoredTables {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// Returns the files of a directory by their names, as many as are allowed.
fn stored(directory: &Path) -> io::Result<Vec<StoredTables>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() => {
                found.push(StoredTables { path, bytes: meta.len(), modified: meta.modified()? });
            }
            // Not a file of this directory's recorders, or removed by one of them.
            _ => {}
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Removes the oldest files until the rest is within the limits. Those who have mapped them keep them.
fn remove_oldest(directory: &Path) -> io::Result<()> {
    let mut files = stored(directory)?;
    files.sort_by_key(|file| file.modified);
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let mut count = files.len();
    for file in files {
        if count <= MOST_FILES && bytes <= MOST_BYTES {
            break;
        }
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        count -= 1;
        bytes -= file.bytes;
    }
    Ok(())
}

/// Tables of other halves that this process has mapped.
#[derive(Debug, Default)]
pub(super) struct MappedTables(Vec<&'static [u8]>);

impl MappedTables {
    /// Lets go the pages of the tables that were not used lately: comparing a table reads all of it, names
    /// and unwinding a small part. They stay in the host's page cache while it has room.
    pub(super) fn give_back(&self) {
        for file in &self.0 {
            // SAFETY: exactly one mapping of a file, which is only read: a page that is used again has the
            // same bytes.
            unsafe {
                libc::madvise(file.as_ptr().cast_mut().cast(), file.len(), libc::MADV_DONTNEED);
            }
        }
    }
}

/// Maps the tables of other halves, and room for new ones, and lets all tables of this process be shared.
///
/// # Safety
/// The descriptors are this process's own, each occurs once, and nobody writes to the files of `known`.
///
/// # Errors
/// A file cannot be mapped.
pub(super) unsafe fn install(files: TableFiles) -> io::Result<MappedTables> {
    // SAFETY: as the caller promises.
    let own = |number: RawFd| OwnedFd::from(unsafe { crate::connection::inherited(number) });
    let mut known: Vec<&'static [u8]> = Vec::new();
    for file in files.known.into_iter().take(MOST_FILES + 1).map(own) {
        let bytes = File::from(file.try_clone()?).metadata()?.len();
        // Another program's file may be empty.
        if (1..=MOST_BYTES).contains(&bytes) {
            let at = map(&file, bytes, libc::PROT_READ)?;
            let len = usize::try_from(bytes).map_err(io::Error::other)?;
            // SAFETY: the mapping has so many bytes, and is never removed; nobody writes to the file.
            known.push(unsafe { std::slice::from_raw_parts(at, len) });
        }
    }
    let new = map(&own(files.new), HEAD + ROOM, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the mapping is never removed, its first word is aligned, and is used as this atomic alone.
    let used = unsafe { &*new.cast::<AtomicU64>() };
    let (head, room) = (usize::try_from(HEAD), usize::try_from(ROOM));
    let (head, room) = (head.map_err(io::Error::other)?, room.map_err(io::Error::other)?);
    // SAFETY: the rest of the mapping; nothing else in this process refers to it, and the parent only reads
    // it.
    let room = unsafe { std::slice::from_raw_parts_mut(new.add(head), room) };
    TablePool::new(&known, TableRoom::new(used, room)).install().map_err(|_| io::ErrorKind::AlreadyExists)?;
    Ok(MappedTables(known))
}

/// Maps the first bytes of a file for good.
fn map(file: &impl AsFd, bytes: u64, protection: i32) -> io::Result<*mut u8> {
    let len = usize::try_from(bytes).map_err(io::Error::other)?;
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: makes a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes bytes as a half does.
    fn append(tables: &HalfTables, bytes: &[u8], before: u64) {
        tables.new.write_all_at(bytes, HEAD + before).unwrap();
        let used = before + bytes.len() as u64;
        tables.new.write_all_at(&used.to_le_bytes(), 0).unwrap();
    }

    fn contents(directory: &Path) -> Vec<Vec<u8>> {
        let mut files = stored(directory).unwrap();
        files.sort_by_key(|file| file.modified);
        files.iter().map(|file| fs::read(&file.path).unwrap()).collect()
    }

    #[test]
    fn new_tables_are_copied_once_and_others_see_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut tables = HalfTables::open(directory.path()).unwrap();
        tables.copy_new(false).unwrap();
        assert!(contents(directory.path()).is_empty(), "nothing to copy");
        append(&tables, &[1; 6_400], 0);
        tables.copy_new(false).unwrap();
        assert!(contents(directory.path()).is_empty(), "more may be on its way");
        tables.copy_new(false).unwrap();
        tables.copy_new(false).unwrap();
        assert_eq!(contents(directory.path()), [vec![1; 6_400]]);
        append(&tables, &[2; 64], 6_400);
        tables.copy_new(true).unwrap();
        assert_eq!(contents(directory.path()), [vec![1; 6_400], vec![2; 64]]);

        let mut same = HalfTables::open(directory.path()).unwrap();
        assert_eq!(same.known.len(), 2);
        append(&same, &[1; 6_400], 0);
        same.copy_new(true).unwrap();
        assert_eq!(contents(directory.path()).len(), 2, "equal tables are one file");
    }

    #[test]
    fn pages_that_are_given_back_are_there_again_when_they_are_used() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[2]).collect();
        file.write_all(&bytes).unwrap();
        let at = map(&file, bytes.len() as u64, libc::PROT_READ).unwrap();
        // SAFETY: the mapping has so many bytes and stays; nobody writes to the file.
        let mapped = unsafe { std::slice::from_raw_parts(at.cast_const(), bytes.len()) };
        assert_eq!(mapped, bytes);
        let resident = || testkit::resident_kb(at.addr());
        assert_eq!(resident(), 4 << 10);
        MappedTables(vec![mapped]).give_back();
        assert_eq!(resident(), 0);
        assert_eq!(mapped, bytes);
    }

    #[test]
    fn a_half_that_has_been_taken_over_fills_no_disk() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..6u8 {
            let mut tables = HalfTables::open(directory.path()).unwrap();
            tables.new.write_all_at(&[number + 1], HEAD).unwrap();
            // Far more than it has room for.
            tables.new.write_all_at(&u64::MAX.to_le_bytes(), 0).unwrap();
            tables.copy_new(true).unwrap();
        }
        let found = contents(directory.path());
        let bytes: usize = found.iter().map(Vec::len).sum();
        assert!(bytes as u64 <= MOST_BYTES && found.len() == 4, "{bytes} in {}", found.len());
        assert_eq!(found.last().unwrap()[0], 6, "the oldest are removed");
    }
}
