//! Guest memory with wrong bytes in it.

use std::cell::Cell;

use arbitrary::Arbitrary;
use guest_linux::{FlatMemory, PhysAddr, PhysicalMemory};

/// Changes of one memory, at most: more only hide each other.
const MAX_PATCHES: usize = 24;

/// A change of 1 to 8 bytes.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct MemoryPatch {
    /// Index of the place among the target's places, modulo their number.
    place: u8,
    /// Offset in the place, modulo its length.
    at: u16,
    /// Reads of memory before the change is there: a guest continues to run while it is read.
    after: u8,
    what: PatchKind,
}

/// Change of the bytes.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum PatchKind {
    /// One byte.
    Byte(u8),
    /// Two bytes.
    Half(u16),
    /// An aligned word.
    Word(u64),
    /// An aligned word moved by so much.
    Add(i16),
    /// An aligned word from elsewhere in the memory: a pointer that is valid at another place.
    Copy(u8, u16),
}

/// A part of a memory that the fuzzer may change: first address and bytes.
pub type MemoryPlace = (u64, u64);

/// A memory under changes. It is not copied.
#[derive(Debug)]
pub struct PatchedMemory<'a> {
    sound: &'a FlatMemory<Vec<u8>>,
    /// Address, bytes, how many of them, reads before.
    changes: Vec<(u64, [u8; 8], u64, u32)>,
    /// Written over the sound memory: address, bytes.
    written: Vec<(u64, Vec<u8>)>,
    reads: Cell<u32>,
}

impl<'a> PatchedMemory<'a> {
    /// Makes `sound` memory with `patches` in `places`, which are in it and not empty.
    pub fn new(sound: &'a FlatMemory<Vec<u8>>, places: &[MemoryPlace], patches: &[MemoryPatch]) -> Self {
        let word_at = |place: u8, at: u16| {
            let (start, len) = places[usize::from(place) % places.len()];
            start + u64::from(at) % (len / 8) * 8
        };
        let changes = patches.iter().take(MAX_PATCHES).map(|patch| {
            let word = word_at(patch.place, patch.at);
            let (start, len) = places[usize::from(patch.place) % places.len()];
            let byte = start + u64::from(patch.at) % len;
            let (at, value, bytes) = match patch.what {
                PatchKind::Byte(value) => (byte, u64::from(value), 1),
                PatchKind::Half(value) => (byte, u64::from(value), 2),
                PatchKind::Word(value) => (word, value, 8),
                PatchKind::Add(value) => {
                    let before = sound.read_u64(PhysAddr(word)).unwrap_or(0);
                    (word, before.wrapping_add_signed(i64::from(value)), 8)
                }
                PatchKind::Copy(place, at) => {
                    (word, sound.read_u64(PhysAddr(word_at(place, at))).unwrap_or(0), 8)
                }
            };
            (at, value.to_le_bytes(), bytes, u32::from(patch.after.saturating_sub(128)))
        });
        Self { sound, changes: changes.collect(), written: Vec::new(), reads: Cell::new(0) }
    }

    /// Writes `bytes` at `at`, below the changes.
    pub fn write(&mut self, at: u64, bytes: Vec<u8>) {
        self.written.push((at, bytes));
    }
}

impl PhysicalMemory for PatchedMemory<'_> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        self.sound.read(at, into)?;
        let now = self.reads.get();
        self.reads.set(now.saturating_add(1));
        let end = at.0 + into.len() as u64;
        for (start, bytes) in &self.written {
            let from = at.0.max(*start);
            let to = end.min(start + bytes.len() as u64);
            if from < to {
                into[index(from - at.0)..index(to - at.0)]
                    .copy_from_slice(&bytes[index(from - start)..index(to - start)]);
            }
        }
        for &(start, bytes, count, after) in &self.changes {
            if now < after || start >= end || start + count <= at.0 {
                continue;
            }
            for (address, byte) in (start..start + count).zip(bytes) {
                if (at.0..end).contains(&address) {
                    into[index(address - at.0)] = byte;
                }
            }
        }
        Some(())
    }
}

/// Returns an offset in a buffer as its index.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in a buffer")
}
