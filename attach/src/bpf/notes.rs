//! Exits that the kernel has noted with the guest's code and task that they interrupted.
//!
//! ```text
//!  exit ──▶ program `left` or `returned` ──▶ note: registers, parts of the current task
//!  entry ─▶ program `entered` ─────────────▶ note: reason and time; `written` + 1 ──▶ collector ──▶ `taken`
//! ```
//!
//! A note is for a number of exits, its weight: 1 as long as a vCPU has at most about 1,000 exits a second.
//! Beyond that the program decides at random which ones it notes, so that the cost of an exit is bounded and
//! the sum of the weights is, for each part of the exits, on average their number.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use guest_linux::{PhysAddr, PhysicalMemory};
use vmm::x86::EFER_LMA;

use super::area::ArrayMapping;
use super::shared::{NOTE_PARTS, NOTES, RawNote, RawNotes};

/// An exit, and the guest's state at it. Reads of [`PhysicalMemory`] find what was copied of the current
/// task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitNote(Box<RawNote>);

impl ExitNote {
    /// Makes a note of the bytes of a `struct note`.
    #[cfg(test)]
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), size_of::<RawNote>());
        // SAFETY: there are as many bytes, and all bit patterns are valid.
        Self(Box::new(unsafe { bytes.as_ptr().cast::<RawNote>().read_unaligned() }))
    }

    /// Returns the reason, as the key of a [`CourseExit`](super::CourseExit).
    pub fn key(&self) -> u64 {
        self.0.key
    }

    /// Returns the time of the exit, CLOCK_MONOTONIC ns.
    pub fn time_ns(&self) -> u64 {
        self.0.time_ns
    }

    /// Returns the guest's CR3.
    pub fn cr3(&self) -> u64 {
        self.0.cr3
    }

    /// Returns the time to the next entry, ns.
    pub fn ns(&self) -> u64 {
        self.0.ns
    }

    /// Returns the number of exits that it is for.
    pub fn weight(&self) -> u64 {
        self.0.weight.into()
    }

    /// Returns the linear address of the instruction at which KVM has left the guest.
    pub fn rip(&self) -> u64 {
        if self.is_long_mode() && self.0.code_64_bit != 0 {
            self.0.rip
        } else {
            self.0.code_base.wrapping_add(self.0.rip) & 0xffff_ffff
        }
    }

    /// Returns the privilege level, 0 to 3.
    pub fn cpl(&self) -> u8 {
        u8::try_from(self.0.cpl & 3).unwrap_or(0)
    }

    /// Returns true if the vCPU was in long mode.
    pub fn is_long_mode(&self) -> bool {
        self.0.efer & EFER_LMA != 0
    }

    /// Returns true if a guest of the guest was left: registers are that one's.
    pub fn is_nested(&self) -> bool {
        self.0.nested != 0
    }
}

impl PhysicalMemory for ExitNote {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let parts = usize::try_from(self.0.parts).map_or(NOTE_PARTS, |parts| parts.min(NOTE_PARTS));
        let find = |part: &super::shared::RawPiece| {
            let skipped = usize::try_from(at.0.checked_sub(part.phys)?).ok()?;
            let end = usize::try_from(part.bytes).ok()?;
            let bytes = self.0.data.get(usize::try_from(part.at).ok()?..)?.get(..end)?;
            bytes.get(skipped..)?.get(..into.len())
        };
        let bytes = self.0.part.get(..parts)?.iter().find_map(find)?;
        into.copy_from_slice(bytes);
        Some(())
    }
}

/// Notes of a vCPU. The kernel writes them at any time, each before it counts it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotesView<'a> {
    notes: *const RawNotes,
    rows: &'a ArrayMapping<RawNote>,
    first_row: usize,
    taken: &'a AtomicU64,
    _area: &'a ArrayMapping<RawNotes>,
}

impl<'a> NotesView<'a> {
    pub(super) fn new(
        area: &'a ArrayMapping<RawNotes>,
        rows: &'a ArrayMapping<RawNote>,
        taken: &'a ArrayMapping<AtomicU64>,
        index: usize,
    ) -> Option<Self> {
        let (notes, taken) = (area.element(index)?, taken.number(index)?);
        Some(Self { notes, rows, first_row: index.checked_mul(NOTES)?, taken, _area: area })
    }

    /// Moves the notes that are complete to `into`. The first call lets the kernel note exits. No two threads
    /// may call this at once.
    pub(super) fn take(self, into: &mut Vec<ExitNote>) {
        // SAFETY: the number is in the mapping, aligned, and valid for all bit patterns.
        let written = unsafe { (&raw const (*self.notes).written).read_volatile() };
        // The notes were written before their number.
        fence(Ordering::Acquire);
        let mut next = match self.taken.load(Ordering::Relaxed) {
            0 => written,
            taken => taken - 1,
        };
        // The program leaves notes out before it overwrites one that was not taken.
        while next != written {
            let place = usize::try_from(next).map_or(0, |next| next % NOTES);
            let Some(note) = self.rows.element(self.first_row.saturating_add(place)) else { break };
            // SAFETY: the note is in the mapping, aligned, and valid for all bit patterns. The program writes
            // it again after it was taken only.
            into.push(ExitNote(Box::new(unsafe { note.read_volatile() })));
            next = next.wrapping_add(1);
            if into.len() >= NOTES {
                break;
            }
        }
        self.taken.store(next.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::{NOTE_BYTES, RawPiece};
    use super::*;

    fn note(parts: &[RawPiece]) -> RawNote {
        let mut part = [RawPiece::default(); NOTE_PARTS];
        part[..parts.len()].copy_from_slice(parts);
        RawNote {
            key: 0,
            time_ns: 0,
            ns: 0,
            rip: 0x1000,
            cr3: 0,
            code_base: 0,
            efer: EFER_LMA,
            weight: 1,
            cpl: 0,
            code_64_bit: 1,
            nested: 0,
            parts: u32::try_from(parts.len()).unwrap(),
            bytes: 0,
            part,
            data: std::array::from_fn(|at| u8::try_from(at % 251).unwrap()),
        }
    }

    #[test]
    fn parts_are_read_and_nothing_else() {
        let parts = [
            RawPiece { phys: 0x1000, bytes: 8, at: 0 },
            RawPiece { phys: 0x2000, bytes: 16, at: 8 },
            // Numbers that no program writes.
            RawPiece { phys: 0x3000, bytes: u32::MAX, at: 16 },
            RawPiece { phys: 0x4000, bytes: 8, at: u32::MAX },
            RawPiece { phys: u64::MAX - 3, bytes: 8, at: u32::try_from(NOTE_BYTES).unwrap() - 4 },
        ];
        let mut raw = note(&parts);
        let note = ExitNote(Box::new(raw));
        let read = |at, bytes: usize| {
            let mut into = vec![0; bytes];
            note.read(PhysAddr(at), &mut into).map(|()| into)
        };
        assert_eq!(read(0x1000, 8), Some(vec![0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(read(0x2004, 4), Some(vec![12, 13, 14, 15]));
        assert_eq!((read(0x2004, 13), read(0xfff, 1), read(0x1008, 1)), (None, None, None));
        assert_eq!((read(0x3000, 4), read(0x4000, 4), read(u64::MAX - 3, 4)), (None, None, None));
        raw.parts = u32::MAX;
        assert_eq!(ExitNote(Box::new(raw)).read_u32(PhysAddr(0x1000)), Some(0x0302_0100));
    }

    #[test]
    fn addresses_have_the_base_of_their_segment_outside_of_64_bit_code() {
        let mut raw = note(&[]);
        raw.code_base = 0xffff_0000;
        raw.rip = 0xffff_ffff_8100_0000;
        assert_eq!(ExitNote(Box::new(raw)).rip(), 0xffff_ffff_8100_0000);
        (raw.efer, raw.rip) = (0, 0xfff0);
        let note = ExitNote(Box::new(raw));
        assert_eq!((note.rip(), note.is_long_mode()), (0xffff_fff0, false));
    }
}
