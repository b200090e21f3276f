//! Tables that processes have in common: each makes its own of what it has read, and then uses equal bytes
//! that all processes map instead.
//!
//! ```text
//! file of known tables, read only:   { hash, length, 48 bytes of zeroes, bytes, zeroes up to 64 } ...
//!      │ all bytes equal?            the same, behind a word with the number of bytes in use,
//! table ──yes──▶ those bytes         for tables that no file has
//!   └─────no───▶ appended, for other processes
//! ```
//!
//! Nothing in a file is believed: bytes are used only after they were compared with the process's own.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::bytes::{index, u64_at};

/// Smaller tables are not shared, bytes: a page.
const LEAST: usize = 4 << 10;
/// Alignment of a table and of its head, bytes.
const ALIGNMENT: usize = 64;
/// Tables of all files that are known, at most.
const MOST: usize = 1 << 16;

static POOL: OnceLock<TablePool> = OnceLock::new();

/// Element of a table.
///
/// # Safety
/// It has no padding, and each pattern of bits is a value. Its alignment is at most 64 bytes.
pub unsafe trait TableElement: Copy + 'static {}

// SAFETY: a number.
unsafe impl TableElement for u8 {}
// SAFETY: as above.
unsafe impl TableElement for u16 {}
// SAFETY: as above.
unsafe impl TableElement for u32 {}
// SAFETY: numbers without padding between them.
unsafe impl<const N: usize> TableElement for [u32; N] {}

/// A table that never changes: memory of this process, or bytes that several processes map.
pub struct SharedTable<T: TableElement>(Content<T>);

enum Content<T: TableElement> {
    Own(Box<[T]>),
    Mapped(&'static [T]),
}

impl<T: TableElement> SharedTable<T> {
    /// Returns the table in memory that processes share, if this process takes part ([`TablePool::install`]).
    #[must_use]
    pub fn shared(self) -> Self {
        match (&self.0, POOL.get()) {
            (Content::Own(own), Some(pool)) => {
                pool.share(own).map_or(self, |mapped| Self(Content::Mapped(mapped)))
            }
            _ => self,
        }
    }
}

impl<T: TableElement> From<Vec<T>> for SharedTable<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Content::Own(elements.into_boxed_slice()))
    }
}

impl<T: TableElement> Default for SharedTable<T> {
    fn default() -> Self {
        Self(Content::Mapped(&[]))
    }
}

impl<T: TableElement> Deref for SharedTable<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Content::Own(own) => own,
            Content::Mapped(mapped) => mapped,
        }
    }
}

impl<T: TableElement> fmt::Debug for SharedTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mapped = matches!(self.0, Content::Mapped(_));
        f.debug_struct("SharedTable").field("len", &self.len()).field("mapped", &is_mapped).finish()
    }
}

/// Tables of other processes, and room for those that they do not have.
#[derive(Debug)]
pub struct TablePool(Mutex<PoolState>);

#[derive(Debug)]
struct PoolState {
    /// By hash and length.
    known: HashMap<(u64, usize), &'static [u8]>,
    room: TableRoom,
}

/// Memory for tables that no file has; another process copies it into a file.
#[derive(Debug)]
pub struct TableRoom {
    used: &'static AtomicU64,
    rest: &'static mut [u8],
    count: usize,
}

impl TableRoom {
    /// Takes memory whose first byte is at a multiple of 64, and the word with the number of bytes in use.
    pub fn new(used: &'static AtomicU64, room: &'static mut [u8]) -> Self {
        Self { used, rest: room, count: 0 }
    }

    /// Appends a table; `None` without room.
    fn append(&mut self, hash: u64, table: &[u8]) -> Option<&'static [u8]> {
        let end = ALIGNMENT.checked_add(table.len())?.checked_next_multiple_of(ALIGNMENT)?;
        if end > self.rest.len() || self.count >= MOST {
            return None;
        }
        let (own, rest) = std::mem::take(&mut self.rest).split_at_mut(end);
        self.rest = rest;
        self.count += 1;
        let (head, body) = own.split_at_mut(ALIGNMENT);
        head[..8].copy_from_slice(&hash.to_le_bytes());
        head[8..16].copy_from_slice(&(table.len() as u64).to_le_bytes());
        let (body, _) = body.split_at_mut(table.len());
        body.copy_from_slice(table);
        // The bytes before the number: the copy of another process has whole tables.
        self.used.fetch_add(end as u64, Ordering::Release);
        Some(body)
    }
}

impl TablePool {
    /// Prepares a pool with the tables of these files.
    pub fn new(files: &[&'static [u8]], room: TableRoom) -> Self {
        let known = files.iter().flat_map(|file| tables(file)).take(MOST).collect();
        Self(Mutex::new(PoolState { known, room }))
    }

    /// Lets all tables of this process be shared from now on. Fails if that was done before.
    ///
    /// # Errors
    /// Returns the pool if there is one already.
    pub fn install(self) -> Result<(), Self> {
        POOL.set(self)
    }

    /// Returns equal elements in mapped memory; `None` for a table that is not shared.
    fn share<T: TableElement>(&self, table: &[T]) -> Option<&'static [T]> {
        // SAFETY: elements have no padding, so all of their bytes are initialized.
        let (_, bytes, _) = unsafe { table.align_to::<u8>() };
        let mapped = self.share_bytes(bytes)?;
        // SAFETY: each pattern of bits is an element.
        let (before, elements, after) = unsafe { mapped.align_to::<T>() };
        (before.is_empty() && after.is_empty()).then_some(elements)
    }

    fn share_bytes(&self, table: &[u8]) -> Option<&'static [u8]> {
        if table.len() < LEAST {
            return None;
        }
        let hash = hash(table);
        let PoolState { known, room } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (hash, table.len());
        match known.get(&key) {
            Some(found) if *found == table => Some(found),
            // Another file of the same hash and length is not what its head says.
            _ => {
                let own = room.append(hash, table)?;
                known.insert(key, own);
                Some(own)
            }
        }
    }
}

/// Returns the tables of a file with hash and length, up to the first that is not whole.
fn tables(file: &'static [u8]) -> impl Iterator<Item = ((u64, usize), &'static [u8])> {
    let mut rest = file;
    std::iter::from_fn(move || {
        let (hash, length) = (u64_at(rest, 0)?, index(u64_at(rest, 8)?));
        let table = rest.get(ALIGNMENT..ALIGNMENT.checked_add(length)?)?;
        let end = ALIGNMENT.checked_add(length)?.checked_next_multiple_of(ALIGNMENT)?;
        rest = rest.get(end..).unwrap_or_default();
        Some(((hash, length), table))
    })
}

/// A hash to find a table by: the bytes are compared then.
fn hash(table: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(table);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory at a multiple of 64, which stays.
    fn memory(bytes: usize) -> &'static mut [u8] {
        let room = Box::leak(vec![0u8; bytes + ALIGNMENT].into_boxed_slice());
        let skip = room.as_ptr().align_offset(ALIGNMENT);
        &mut room[skip..skip + bytes]
    }

    fn room(bytes: usize) -> (TableRoom, &'static AtomicU64, *const u8) {
        let used = Box::leak(Box::new(AtomicU64::new(0)));
        let memory = memory(bytes);
        let start = memory.as_ptr();
        (TableRoom::new(used, memory), used, start)
    }

    /// Returns a copy of what a process has appended, as a file has it.
    fn file(used: &AtomicU64, start: *const u8) -> &'static [u8] {
        let bytes = index(used.load(Ordering::Acquire));
        let copy = memory(bytes);
        // SAFETY: the memory stays, and nothing is appended during the test.
        copy.copy_from_slice(unsafe { std::slice::from_raw_parts(start, bytes) });
        copy
    }

    #[test]
    fn the_second_process_uses_the_tables_of_the_first() {
        let numbers: Vec<u32> = (0..5_000).collect();
        let words: Vec<[u32; 3]> = (0..700).map(|n| [n, n + 1, n + 2]).collect();
        let (first_room, used, start) = room(1 << 16);
        let first = TablePool::new(&[], first_room);
        let own = first.share(&numbers).unwrap();
        assert_eq!(own, numbers);
        assert_eq!(first.share(&words).unwrap(), words);
        assert!(std::ptr::eq(first.share(&numbers).unwrap(), own), "once only");
        let file = file(used, start);
        assert_eq!(tables(file).count(), 2);

        let (second_room, used, _) = room(1 << 16);
        let second = TablePool::new(&[file], second_room);
        let shared = second.share(&numbers).unwrap();
        assert!(file.as_ptr_range().contains(&shared.as_ptr().cast()) && shared == numbers);
        assert_eq!(second.share(&words).unwrap(), words);
        assert_eq!(used.load(Ordering::Relaxed), 0, "nothing is new");
    }

    #[test]
    fn bytes_that_differ_are_not_used_whatever_the_file_says() {
        let table = vec![7u8; 5_000];
        let (first_room, used, start) = room(1 << 16);
        TablePool::new(&[], first_room).share(&table).unwrap();
        let mut wrong = file(used, start).to_vec();
        wrong[ALIGNMENT + 4_321] = 8;
        let copy = memory(wrong.len());
        copy.copy_from_slice(&wrong);
        let copy = &*copy;
        let (second_room, used, _) = room(1 << 16);
        let second = TablePool::new(&[copy], second_room);
        let shared = second.share(&table).unwrap();
        assert!(shared == table && !copy.as_ptr_range().contains(&shared.as_ptr()));
        assert!(used.load(Ordering::Relaxed) > 5_000, "the right one is new");
    }

    #[test]
    fn damaged_files_end_at_the_damage() {
        let (first_room, used, start) = room(1 << 16);
        let first = TablePool::new(&[], first_room);
        first.share(&vec![1u8; 5_000]).unwrap();
        first.share(&vec![2u8; 6_000]).unwrap();
        let whole = file(used, start);
        for end in 0..whole.len() {
            let found = tables(&whole[..end]).count();
            assert_eq!(found, usize::from(end >= 5_064) + usize::from(end >= 5_120 + 64 + 6_000), "{end}");
        }
        let huge = memory(256);
        huge[..16].fill(0xff);
        assert_eq!(tables(huge).count(), 0);
    }

    #[test]
    fn small_tables_and_those_without_room_stay_where_they_are() {
        let (small, ..) = room(8 << 10);
        let pool = TablePool::new(&[], small);
        assert!(pool.share(&vec![1u8; LEAST - 1]).is_none());
        assert!(pool.share(&vec![1u8; 5_000]).is_some());
        assert!(pool.share(&vec![2u8; 5_000]).is_none());
        assert!(pool.share(&vec![1u8; 5_000]).is_some(), "the first is still there");
        let table = SharedTable::from(vec![1u32, 2, 3]).shared();
        assert_eq!(*table, [1, 2, 3]);
        assert!(SharedTable::<u16>::default().is_empty());
    }
}
