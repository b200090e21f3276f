//! Messages of systemd out of its journal, a file that grows while it is read.
//!
//! ```text
//! header ── tail_object_offset ──────────────────────────────────┐
//!   └─ object, object, object ... each 8 bytes aligned, ... last ◀┘
//!        DATA   FIELD=value, once per file for each value
//!        ENTRY  times, boot, and the offsets of its DATA objects
//! ```
//!
//! [`Journal::read`] goes from object to object as far as the file has come, and continues there at the next
//! call. All but the last object are complete, since systemd-journald writes one after the other; the last
//! one is, if the header has its times. Nothing is known here of where the bytes come from. What they mean is
//! in `messages`.
//!
//! Source: the description "Journal File Format" of systemd (systemd.io/JOURNAL_FILE_FORMAT), of version 257.

mod messages;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use messages::{StartupTimes, UnitMessage, UnitMessages, UnitStep};
use symbols::bytes::{array_at, index, u32_at, u64_at};

/// First bytes of a journal.
const SIGNATURE: &[u8; 8] = b"LPKSHHRH";
/// Bytes of the header up to `n_data`, which all versions have.
const HEADER: usize = 208;
/// Bytes of an object's header.
const OBJECT: usize = 16;
/// Objects begin at a multiple of this.
const ALIGN: u64 = 8;
/// `HEADER_INCOMPATIBLE_*`: compressed by XZ, LZ4 or zstd, keyed hashes, and [`COMPACT`].
const KNOWN_FLAGS: u32 = 0x1f;
const COMPACT: u32 = 1 << 4;
/// `OBJECT_COMPRESSED_*`.
const COMPRESSED: u8 = 7;
/// `OBJECT_DATA`, `OBJECT_ENTRY`.
const DATA: u8 = 1;
const ENTRY: u8 = 3;
/// Offsets of the payload of a DATA object, and in a compact file.
const DATA_PAYLOAD: u64 = 64;
const COMPACT_DATA_PAYLOAD: u64 = 72;
/// Offset of the items of an ENTRY object.
const ITEMS: usize = 64;
/// Bytes of a FIELD=value that are read; no name of a unit is longer than 255 (`UNIT_NAME_MAX`).
const LONGEST_FIELD: usize = 320;
/// Items of an entry, at most; journald's own limit of fields is 1,024 (`ENTRY_FIELD_COUNT_MAX`).
const MOST_ITEMS: usize = 1_024;
/// A file is followed up to here, bytes; journald ends a file at 128 MiB by default (`SystemMaxFileSize`).
const LARGEST: u64 = 1 << 30;
/// Objects that are read by one call, at most.
const MOST_OBJECTS: usize = 200_000;
/// DATA objects whose worth is remembered, at most.
const MOST_KNOWN: usize = 65_536;
/// Bytes that are fetched at once.
const PAGE: usize = 4_096;

/// Source of a journal's bytes.
pub trait JournalBytes {
    /// Fills `into` from `offset` on; `None` unless all of it is there.
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<()>;
}

/// Reason why a journal is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The journal's header is not in memory.
    #[error("the journal's header is not in memory")]
    NoHeader,
    /// The file does not begin as a journal does.
    #[error("the file is not a journal")]
    NotAJournal,
    /// The journal has a feature that is not known.
    #[error("the journal has features {0:#x}, which are not known")]
    UnknownFeatures(u32),
    /// An object is not what it can be.
    #[error("the journal is damaged at byte {0}")]
    Damaged(u64),
}

/// An entry with the fields that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// When journald took it, µs since 1970 by the guest.
    pub realtime_us: u64,
    /// The same, µs by the guest's CLOCK_MONOTONIC.
    pub monotonic_us: u64,
    /// Boot of the entry.
    pub boot_id: [u8; 16],
    /// `FIELD=value` as it is in the file.
    pub fields: Vec<Vec<u8>>,
}

/// Selection of entries, and the fields that are read of them.
#[derive(Debug, Clone, Copy)]
pub struct WantedEntries<'a> {
    /// `FIELD=value` that entries are recognized by: 32 at most.
    pub values: &'a [&'a [u8]],
    /// True if an entry is wanted that has these of them, the first in bit 0.
    pub is_wanted: fn(u32) -> bool,
    /// Beginnings, `FIELD=`, of what is read of such an entry.
    pub fields: &'a [&'a [u8]],
}

/// The parts of the header that are used.
#[derive(Debug, Clone, Copy)]
struct JournalHeader {
    file_id: [u8; 16],
    compact: bool,
    first: u64,
    /// Offset of the last object.
    tail: u64,
    tail_realtime_us: u64,
    tail_monotonic_us: u64,
}

/// A journal file, as far as it was read.
#[derive(Debug, Default)]
pub struct Journal {
    /// `file_id`: another one is another file in the same place.
    file_id: Option<[u8; 16]>,
    /// The next object.
    next: u64,
    /// The object at which bytes were missing at the last call.
    stuck: Option<u64>,
    /// DATA objects: which of the wanted values they are, as a bit.
    known: HashMap<u64, u32>,
}

/// Reason why the way from object to object ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadStop {
    NotThere,
    Damaged(u64),
}

impl Journal {
    /// Reads the wanted entries that have come since the last call, in the order of the file; the same file
    /// is to be asked for the same fields at each call. Where bytes that are not the file's newest are not
    /// there, the rest up to the newest is left out at the second call.
    ///
    /// # Errors
    /// See [`JournalError`]; what was read before is in `entries`.
    pub fn read(
        &mut self,
        bytes: &impl JournalBytes,
        wanted: &WantedEntries<'_>,
        entries: &mut Vec<JournalEntry>,
    ) -> Result<(), JournalError> {
        let header = JournalHeader::read(bytes)?;
        if self.file_id.replace(header.file_id) != Some(header.file_id) {
            *self = Self { file_id: Some(header.file_id), next: header.first, ..Self::default() };
        }
        let mut window = ByteWindow::new(bytes);
        for _ in 0..MOST_OBJECTS {
            if self.next > header.tail {
                return Ok(());
            }
            match self.object(&header, &mut window, wanted) {
                // An entry that is being written.
                Ok(ObjectState::Unfinished) => return Ok(()),
                Ok(ObjectState::Nothing(next)) => self.next = next,
                Ok(ObjectState::Entry(entry, next)) => {
                    entries.push(entry);
                    self.next = next;
                }
                Err(ReadStop::Damaged(at)) => return Err(JournalError::Damaged(at)),
                Err(ReadStop::NotThere) if self.stuck == Some(self.next) && self.next < header.tail => {
                    self.next = header.tail;
                }
                Err(ReadStop::NotThere) => {
                    self.stuck = Some(self.next);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads the next object.
    fn object<B: JournalBytes>(
        &mut self,
        header: &JournalHeader,
        window: &mut ByteWindow<'_, B>,
        wanted: &WantedEntries<'_>,
    ) -> Result<ObjectState, ReadStop> {
        let at = self.next;
        let (kind, _, size) = window.object(at)?;
        let next = size
            .checked_next_multiple_of(ALIGN)
            .and_then(|size| at.checked_add(size))
            .filter(|&next| size >= OBJECT as u64 && next <= LARGEST)
            .ok_or(ReadStop::Damaged(at))?;
        if kind != ENTRY {
            return Ok(ObjectState::Nothing(next));
        }
        let item = if header.compact { 4 } else { 16 };
        let bytes = index(size).min(ITEMS + MOST_ITEMS * item);
        let mut entry = vec![0; bytes];
        window.read(at, &mut entry)?;
        let number = |at| u64_at(&entry, at).ok_or(ReadStop::Damaged(self.next));
        let (realtime_us, monotonic_us) = (number(24)?, number(32)?);
        let boot_id = array_at(&entry, 40).ok_or(ReadStop::Damaged(at))?;
        let of_header = (header.tail_realtime_us, header.tail_monotonic_us);
        if at == header.tail && of_header != (realtime_us, monotonic_us) {
            return Ok(ObjectState::Unfinished);
        }
        let offset = |item: &[u8]| {
            if header.compact { u32_at(item, 0).map(u64::from) } else { u64_at(item, 0) }
        };
        let items = entry.get(ITEMS..).unwrap_or_default().chunks_exact(item).filter_map(offset);
        let items: Vec<u64> = items.filter(|&at| at != 0).collect();
        if !(wanted.is_wanted)(self.values(header, window, wanted, &items)) {
            return Ok(ObjectState::Nothing(next));
        }
        let field = |&at: &u64| window.data(at, header.compact).ok().flatten();
        let is_asked = |field: &Vec<u8>| wanted.fields.iter().any(|name| field.starts_with(name));
        let fields = items.iter().filter_map(field).filter(is_asked).collect();
        Ok(ObjectState::Entry(JournalEntry { realtime_us, monotonic_us, boot_id, fields }, next))
    }

    /// Returns the wanted values that an entry with these items has. An absent item is not a wanted value.
    fn values<B: JournalBytes>(
        &mut self,
        header: &JournalHeader,
        window: &mut ByteWindow<'_, B>,
        wanted: &WantedEntries<'_>,
        items: &[u64],
    ) -> u32 {
        let mut values = 0;
        for &at in items {
            if let Some(known) = self.known.get(&at) {
                values |= known;
                continue;
            }
            let Ok(field) = window.data(at, header.compact) else { continue };
            let place = field.and_then(|field| wanted.values.iter().position(|value| *value == field));
            let bit =
                place.and_then(|place| u32::try_from(place).ok()).and_then(|place| 1_u32.checked_shl(place));
            if self.known.len() >= MOST_KNOWN {
                self.known.clear();
            }
            self.known.insert(at, bit.unwrap_or(0));
            values |= bit.unwrap_or(0);
        }
        values
    }
}

/// State of the bytes at the place of an object.
#[derive(Debug)]
enum ObjectState {
    /// An entry that is wanted, and where the next object begins.
    Entry(JournalEntry, u64),
    /// Another object.
    Nothing(u64),
    /// The last object is not complete yet.
    Unfinished,
}

impl JournalHeader {
    fn read(bytes: &impl JournalBytes) -> Result<Self, JournalError> {
        let mut header = [0; HEADER];
        bytes.read(0, &mut header).ok_or(JournalError::NoHeader)?;
        if !header.starts_with(SIGNATURE) {
            return Err(JournalError::NotAJournal);
        }
        let number = |at| u64_at(&header, at).unwrap_or(0);
        let flags = u32_at(&header, 12).unwrap_or(0);
        if flags & !KNOWN_FLAGS != 0 {
            return Err(JournalError::UnknownFeatures(flags));
        }
        let (first, tail) = (number(88), number(136));
        if first < HEADER as u64 || first % ALIGN != 0 || first > LARGEST {
            return Err(JournalError::Damaged(88));
        }
        // No object yet is 0.
        if tail != 0 && (tail < first || tail % ALIGN != 0 || tail > LARGEST) {
            return Err(JournalError::Damaged(136));
        }
        Ok(Self {
            file_id: array_at(&header, 24).unwrap_or_default(),
            compact: flags & COMPACT != 0,
            first,
            tail,
            tail_realtime_us: number(192),
            tail_monotonic_us: number(200),
        })
    }
}

/// The bytes, by pages: objects are small, and one follows the other.
struct ByteWindow<'a, B> {
    bytes: &'a B,
    start: u64,
    page: Option<Box<[u8; PAGE]>>,
}

impl<'a, B: JournalBytes> ByteWindow<'a, B> {
    fn new(bytes: &'a B) -> Self {
        Self { bytes, start: 0, page: None }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), ReadStop> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.checked_add(done as u64).ok_or(ReadStop::Damaged(offset))?;
            let page = self.page(at - at % PAGE as u64)?;
            let from = page.get(index(at % PAGE as u64)..).unwrap_or_default();
            let rest = into.get_mut(done..).unwrap_or_default();
            let count = from.len().min(rest.len());
            for (to, from) in rest.iter_mut().zip(from) {
                *to = *from;
            }
            done += count;
        }
        Ok(())
    }

    fn page(&mut self, start: u64) -> Result<&[u8; PAGE], ReadStop> {
        if self.page.is_none() || self.start != start {
            let mut page = self.page.take().unwrap_or_else(|| Box::new([0; PAGE]));
            self.bytes.read(start, page.as_mut_slice()).ok_or(ReadStop::NotThere)?;
            self.start = start;
            self.page = Some(page);
        }
        self.page.as_deref().ok_or(ReadStop::NotThere)
    }

    /// Returns the type, flags and size of the object at `at`.
    fn object(&mut self, at: u64) -> Result<(u8, u8, u64), ReadStop> {
        let mut object = [0; OBJECT];
        self.read(at, &mut object)?;
        let [kind, flags, ..] = object;
        Ok((kind, flags, u64_at(&object, 8).unwrap_or(0)))
    }

    /// `FIELD=value` of the DATA object at `at`; `None` where it is compressed, or too long to be a wanted
    /// one.
    fn data(&mut self, at: u64, compact: bool) -> Result<Option<Vec<u8>>, ReadStop> {
        let (kind, flags, size) = self.object(at)?;
        let start = if compact { COMPACT_DATA_PAYLOAD } else { DATA_PAYLOAD };
        let length = size.checked_sub(start).map(index).filter(|&length| length <= LONGEST_FIELD);
        let Some(length) = length.filter(|_| kind == DATA && flags & COMPRESSED == 0) else {
            return Ok(None);
        };
        let mut field = vec![0; length];
        self.read(at.checked_add(start).ok_or(ReadStop::Damaged(at))?, &mut field)?;
        Ok(Some(field))
    }
}
