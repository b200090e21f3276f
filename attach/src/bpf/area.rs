//! Memory that the kernel's programs write and this process reads.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use aya::maps::{Map, MapData};
use guest_linux::PhysAddr;
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

use super::refusal::{BpfRefusal, host_refusal};
use super::shared::{PIECES, RawPiece, RawRecord, RawState, RawWord, WORDS};

/// Mapped array of a program, of elements of type `T`.
pub(crate) struct ArrayMapping<T> {
    start: NonNull<T>,
    count: usize,
}

impl<T> fmt::Debug for ArrayMapping<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayMapping").field("count", &self.count).finish_non_exhaustive()
    }
}

// SAFETY: the mapping belongs to no thread. It is read only, by copies, and the kernel writes it; what is
// written here are atomics, or has a lock.
unsafe impl<T> Send for ArrayMapping<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ArrayMapping<T> {}

impl<T> ArrayMapping<T> {
    /// Maps an array of `count` elements. The size of an element has to be a multiple of 8, as the kernel's
    /// arrays have it.
    pub(crate) fn new(map: &Map, count: usize) -> Result<Self, BpfRefusal> {
        Self::map(map, count, libc::PROT_READ)
    }

    fn map(map: &Map, count: usize, protection: i32) -> Result<Self, BpfRefusal> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let Map::Array(data) = map else {
            return Err(BpfRefusal::Program("it has no arrays".to_owned()));
        };
        Self::map_data(data, count, protection).map_err(host_refusal("map the memory of a program"))
    }

    fn map_data(data: &MapData, count: usize, protection: i32) -> io::Result<Self> {
        let bytes = size_of::<T>().checked_mul(count).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = data.fd().as_fd().as_raw_fd();
        // SAFETY: makes a new mapping at an address that the kernel chooses; the kernel refuses more bytes
        // than the array has.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, count })
    }

    /// Maps an array that this process writes.
    pub(crate) fn writable(map: &Map, count: usize) -> Result<Self, BpfRefusal> {
        Self::map(map, count, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the address of an element; `None` if there is none.
    pub(crate) fn element(&self, index: usize) -> Option<*const T> {
        // SAFETY: within the mapping.
        (index < self.count).then(|| unsafe { self.start.as_ptr().add(index).cast_const() })
    }
}

impl<T> Drop for ArrayMapping<T> {
    fn drop(&mut self) {
        // SAFETY: `map` has made exactly this mapping, and nothing borrows it any longer.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), size_of::<T>() * self.count);
        }
    }
}

impl ArrayMapping<AtomicU64> {
    /// Returns a number; `None` if there is none.
    pub(crate) fn number(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: the element is in the mapping, which lives as long as `self`, and aligned. The kernel only
        // reads it.
        self.element(index).map(|number| unsafe { &*number })
    }
}

/// Record of a vCPU in the records' array. The kernel writes it only while this process waits for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordView<'a> {
    record: *const RawRecord,
    _area: &'a ArrayMapping<RawRecord>,
}

impl<'a> RecordView<'a> {
    pub(crate) fn new(area: &'a ArrayMapping<RawRecord>, index: usize) -> Option<Self> {
        Some(Self { record: area.element(index)?, _area: area })
    }

    /// Returns state and registers.
    pub(crate) fn state(self) -> RawState {
        // SAFETY: the record is in the mapping, aligned, and valid for all bit patterns.
        unsafe { (&raw const (*self.record).state).read_volatile() }
    }

    /// Returns the numbers of words and of pieces that the record has.
    fn counts(self) -> [usize; 2] {
        // SAFETY: as above.
        let (words, pieces) = unsafe {
            let state = &raw const (*self.record).state;
            ((&raw const (*state).words).read_volatile(), (&raw const (*state).pieces).read_volatile())
        };
        let within = |count: u32, most: usize| usize::try_from(count).map_or(most, |count| count.min(most));
        [within(words, WORDS), within(pieces, PIECES)]
    }

    fn word(self, index: usize) -> Option<RawWord> {
        // SAFETY: as above; the index is within the array.
        (index < WORDS)
            .then(|| unsafe { (&raw const (*self.record).word).cast::<RawWord>().add(index).read_volatile() })
    }

    fn piece(self, index: usize) -> Option<RawPiece> {
        // SAFETY: as above.
        (index < PIECES).then(|| unsafe {
            (&raw const (*self.record).piece).cast::<RawPiece>().add(index).read_volatile()
        })
    }

    /// Fills `into` from guest physical `at`; `None` unless the program has copied all of it.
    pub(crate) fn read(self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let [words, pieces] = self.counts();
        let (mut at, mut rest) = (at.0, into);
        while !rest.is_empty() {
            let count = self.read_word(words, at, rest).or_else(|| self.read_piece(pieces, at, rest))?;
            at = at.checked_add(u64::try_from(count).ok()?)?;
            rest = rest.get_mut(count..)?;
        }
        Some(())
    }

    /// Fills what is in the word at `at`; returns the number of bytes.
    fn read_word(self, words: usize, at: u64, into: &mut [u8]) -> Option<usize> {
        // A part of a longer range is more likely in a piece, which has all of it.
        let offset = usize::try_from(at & 7).ok()?;
        let end = offset.checked_add(into.len()).filter(|&end| end <= size_of::<u64>())?;
        let word = (0..words).filter_map(|index| self.word(index)).find(|word| word.phys == at & !7)?;
        into.copy_from_slice(word.value.to_le_bytes().get(offset..end)?);
        Some(into.len())
    }

    /// Fills what is in a piece from `at` on; returns the number of bytes.
    fn read_piece(self, pieces: usize, at: u64, into: &mut [u8]) -> Option<usize> {
        let holds = |piece: &RawPiece| {
            at.checked_sub(piece.phys).is_some_and(|skipped| skipped < u64::from(piece.bytes))
        };
        let piece = (0..pieces).filter_map(|index| self.piece(index)).find(holds)?;
        let skipped = usize::try_from(at - piece.phys).ok()?;
        let from = usize::try_from(piece.at).ok()?.checked_add(skipped)?;
        let count = usize::try_from(piece.bytes).ok()?.checked_sub(skipped)?.min(into.len());
        let end = from.checked_add(count)?;
        if end > size_of::<RawRecord>() {
            return None;
        }
        // SAFETY: `from..end` is within the record; `into` has `count` bytes, and is not in the mapping.
        unsafe {
            ptr::copy_nonoverlapping(self.record.cast::<u8>().add(from), into.as_mut_ptr(), count);
        }
        Some(count)
    }
}

/// Returns a record's registers as KVM has them: all that a sample uses.
pub(crate) fn registers(state: &RawState) -> (kvm_regs, kvm_sregs) {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let regs = kvm_regs {
        rax,
        rcx,
        rdx,
        rbx,
        rsp,
        rbp,
        rsi,
        rdi,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: state.rip,
        rflags: state.rflags,
    };
    let code =
        kvm_segment { base: state.code_base, l: u8::from(state.code_64_bit != 0), ..kvm_segment::default() };
    let level = u8::try_from(state.cpl & 3).unwrap_or(0);
    let sregs = kvm_sregs {
        cs: code,
        ss: kvm_segment { dpl: level, ..kvm_segment::default() },
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        efer: state.efer,
        fs: kvm_segment { base: state.fs_base, ..kvm_segment::default() },
        ..kvm_sregs::default()
    };
    (regs, sregs)
}

/// Returns the first register that differs from those that KVM reports, of those that a sample uses.
pub(crate) fn difference(ours: &(kvm_regs, kvm_sregs), kvm: &(kvm_regs, kvm_sregs)) -> Option<String> {
    let ((regs, sregs), (kvm_regs, kvm_sregs)) = (ours, kvm);
    let general = |regs: &kvm_regs| {
        [
            ("RIP", regs.rip),
            ("RSP", regs.rsp),
            ("RBP", regs.rbp),
            ("RAX", regs.rax),
            ("RBX", regs.rbx),
            ("RCX", regs.rcx),
            ("RDX", regs.rdx),
            ("RSI", regs.rsi),
            ("RDI", regs.rdi),
            ("R8", regs.r8),
            ("R9", regs.r9),
            ("R10", regs.r10),
            ("R11", regs.r11),
            ("R12", regs.r12),
            ("R13", regs.r13),
            ("R14", regs.r14),
            ("R15", regs.r15),
            // RF, which KVM leaves to the next instruction, does not matter.
            ("RFLAGS", regs.rflags & !(1 << 16)),
        ]
    };
    let special = |sregs: &kvm_sregs| {
        [
            ("CR3", sregs.cr3),
            ("CR4", sregs.cr4),
            ("CR0", sregs.cr0),
            ("EFER", sregs.efer),
            ("CS.L", u64::from(sregs.cs.l)),
            ("CS.base", sregs.cs.base),
            ("CPL", u64::from(sregs.ss.dpl)),
        ]
    };
    // 0 where the kernel does not show it: then nothing uses it.
    let fs_base = |sregs: &kvm_sregs| ("FS base", sregs.fs.base);
    let fs_base = (sregs.fs.base != 0).then(|| (fs_base(sregs), fs_base(kvm_sregs)));
    let ours = general(regs).into_iter().chain(special(sregs)).chain(fs_base.map(|(ours, _)| ours));
    let kvm = general(kvm_regs).into_iter().chain(special(kvm_sregs)).chain(fs_base.map(|(_, kvm)| kvm));
    let differs = ours.zip(kvm).find(|((_, ours), (_, kvm))| ours != kvm);
    differs.map(|((name, ours), (_, kvm))| format!("{name} is {ours:#x} instead of {kvm:#x}"))
}

/// Returns a mapping of zeroes that belongs to no program.
#[cfg(test)]
pub(super) fn anonymous_array<T>(count: usize) -> ArrayMapping<T> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: makes a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>() * count, protection, flags, -1, 0) };
    assert!(at != libc::MAP_FAILED);
    ArrayMapping { start: NonNull::new(at.cast()).unwrap(), count }
}

/// Returns a mapping that belongs to no program, with a record of these bytes, and zeroes after them.
#[cfg(test)]
pub(super) fn anonymous(record: &[u8]) -> ArrayMapping<RawRecord> {
    let area = anonymous_array::<RawRecord>(1);
    assert!(record.len() <= size_of::<RawRecord>());
    // SAFETY: the mapping has room for the bytes, and nothing else refers to it.
    unsafe {
        ptr::copy_nonoverlapping(record.as_ptr(), area.start.as_ptr().cast(), record.len());
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a mapping of zeroes.
    fn area() -> ArrayMapping<RawRecord> {
        anonymous(&[])
    }

    /// Writes the record, as the kernel does.
    fn write(area: &ArrayMapping<RawRecord>, write: impl FnOnce(&mut RawRecord)) {
        // SAFETY: nothing else refers to the mapping, which is valid for all bit patterns.
        write(unsafe { &mut *area.start.as_ptr() });
    }

    #[test]
    fn what_was_copied_can_be_read_and_nothing_else() {
        let area = area();
        let small = u32::try_from(std::mem::offset_of!(RawRecord, small)).unwrap();
        write(&area, |record| {
            record.state.words = 1;
            record.word[0] = RawWord { phys: 0x1000, value: 0x0807_0605_0403_0201 };
            record.state.pieces = 2;
            // Two pieces that follow each other in the guest's memory, and not here.
            record.piece[0] = RawPiece { phys: 0x2ffe, bytes: 2, at: small };
            record.piece[1] = RawPiece { phys: 0x3000, bytes: 4, at: small + 512 };
            record.small[0][..2].copy_from_slice(&[1, 2]);
            record.small[1][..4].copy_from_slice(&[3, 4, 5, 6]);
        });
        let view = RecordView::new(&area, 0).unwrap();
        let read = |at: u64, bytes: usize| {
            let mut into = vec![0; bytes];
            view.read(PhysAddr(at), &mut into).map(|()| into)
        };
        assert_eq!(read(0x1000, 8), Some(vec![1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(read(0x1004, 4), Some(vec![5, 6, 7, 8]));
        assert_eq!(read(0x1004, 5), None);
        assert_eq!(read(0x2ffe, 6), Some(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(read(0x2fff, 2), Some(vec![2, 3]));
        assert_eq!((read(0x2ffe, 7), read(0x2ffd, 1), read(0x9000, 1)), (None, None, None));
        assert!(RecordView::new(&area, 1).is_none());
    }

    #[test]
    fn numbers_that_no_program_writes_are_not_believed() {
        let area = area();
        write(&area, |record| {
            record.state.words = u32::MAX;
            record.state.pieces = u32::MAX;
            for at in 0..PIECES {
                let phys = u64::MAX - 5 * at as u64;
                record.piece[at] = RawPiece { phys, bytes: u32::MAX, at: u32::MAX - 7 };
            }
        });
        let view = RecordView::new(&area, 0).unwrap();
        for at in [1, u64::MAX - 3, u64::MAX] {
            assert_eq!(view.read(PhysAddr(at), &mut [0; 16]), None);
        }
    }

    #[test]
    fn the_first_register_that_differs_is_named() {
        let ours = registers(&RawState { rip: 5, cpl: 3, rflags: 1 << 16 | 2, ..RawState::default() });
        let mut kvm = ours;
        kvm.0.rflags = 2;
        assert_eq!(difference(&ours, &kvm), None);
        kvm.1.ss.dpl = 0;
        assert_eq!(difference(&ours, &kvm).unwrap(), "CPL is 0x3 instead of 0x0");
        kvm.0.rip = 7;
        assert_eq!(difference(&ours, &kvm).unwrap(), "RIP is 0x5 instead of 0x7");
        let (mut ours, mut kvm) = (ours, ours);
        kvm.1.fs.base = 0x1000;
        assert_eq!(difference(&ours, &kvm), None, "not shown");
        ours.1.fs.base = 0x2000;
        assert_eq!(difference(&ours, &kvm).unwrap(), "FS base is 0x2000 instead of 0x1000");
    }
}
