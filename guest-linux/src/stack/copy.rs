//! The copy of some stacks, in a buffer that is used again and again.

use bytes::BytesMut;

use crate::frame::UserRegisters;
use crate::pt_regs::PtRegs;
use symbols::AddressKind;
use symbols::{Registers, StackMemory};

/// Runs of bytes that a copy holds, at most: four kernel stacks, the user's registers, the user stack, whose
/// eleven pages have at most five holes between them, and a part of it further up, of at most two pages.
const MAX_SEGMENTS: usize = 13;

/// Bytes of stack that are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CopiedSegment {
    start: u64,
    /// Offset of the bytes in the buffer.
    at: usize,
    len: usize,
}

/// Reason why a copy ends earlier than it was meant to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StackGaps {
    /// A page of the user stack was not present: one that the program has never touched, or one beyond the
    /// stack's end. This is not a loss by itself.
    pub user_not_present: bool,
    /// A page of a kernel stack was not present.
    pub kernel_not_present: bool,
    /// The buffer was full.
    pub full: bool,
}

/// Registers and stacks of one sample.
#[derive(Debug, Clone)]
pub struct StackCopy {
    pub(super) registers: Registers,
    pub(super) first: AddressKind,
    pub(super) user_mode: bool,
    /// Address of the user's `pt_regs`, for a task that has some.
    pub(super) pt_regs: Option<u64>,
    pub(super) gaps: StackGaps,
    pub(super) user_root: Option<u64>,
    pub(super) fetching: Option<bool>,
    segments: [CopiedSegment; MAX_SEGMENTS],
    count: usize,
    bytes: BytesMut,
    used: usize,
    /// Bytes of notes, after those of the stacks.
    noted: usize,
}

impl Default for StackCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl StackCopy {
    /// Bytes that a copy holds, at most.
    pub const BYTES: usize = 64 << 10;

    /// Returns an empty copy.
    pub fn new() -> Self {
        Self::with_room(Self::BYTES)
    }

    /// Returns an empty copy that holds at most `bytes`; the only place that allocates.
    pub fn with_room(bytes: usize) -> Self {
        Self::in_buffer(BytesMut::zeroed(bytes))
    }

    /// Returns an empty copy that holds at most what fits into `buffer`.
    pub fn in_buffer(buffer: BytesMut) -> Self {
        Self {
            registers: Registers::default(),
            first: AddressKind::Exact,
            user_mode: false,
            pt_regs: None,
            gaps: StackGaps::default(),
            user_root: None,
            fetching: None,
            segments: [CopiedSegment::default(); MAX_SEGMENTS],
            count: 0,
            bytes: buffer,
            used: 0,
            noted: 0,
        }
    }

    /// Forgets what was copied.
    pub fn clear(&mut self) {
        self.registers = Registers::default();
        self.first = AddressKind::Exact;
        self.user_mode = false;
        self.pt_regs = None;
        self.gaps = StackGaps::default();
        self.user_root = None;
        self.fetching = None;
        self.count = 0;
        self.used = 0;
        self.noted = 0;
    }

    /// Adds a word that the caller has read at the same moment as the stacks, after these have been copied.
    /// Returns false if the buffer is full. Never allocates.
    #[inline]
    pub fn note(&mut self, word: u64) -> bool {
        let at = self.used + self.noted;
        let room = self.bytes.get_mut(at..).and_then(|rest| rest.get_mut(..8));
        let Some(room) = room else { return false };
        room.copy_from_slice(&word.to_le_bytes());
        self.noted += 8;
        true
    }

    /// Returns the words that were added, in their order.
    pub fn notes(&self) -> impl Iterator<Item = u64> {
        let bytes = self.bytes.get(self.used..self.used + self.noted).unwrap_or_default();
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// Replaces what was copied by registers of user code alone: a walk ends at its first frame. `root` is
    /// the CR3 that they belong to.
    pub fn set_user(&mut self, registers: Registers, root: u64) {
        self.clear();
        self.registers = registers;
        self.user_mode = true;
        self.user_root = Some(root);
    }

    /// Discards the copy, and returns the buffer with any contents.
    pub fn take_back(&mut self) -> &mut [u8] {
        self.clear();
        &mut self.bytes
    }

    /// Returns the registers at the sample, where a walk starts.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Returns true if the instruction pointer is where the task was interrupted, or an address that it will
    /// return to.
    pub fn first(&self) -> AddressKind {
        self.first
    }

    /// True when the sample was taken in user mode: there is no kernel stack.
    pub fn is_user_mode(&self) -> bool {
        self.user_mode
    }

    /// Returns the reason why the copy ends early, if it does.
    pub fn gaps(&self) -> StackGaps {
        self.gaps
    }

    /// Returns the physical address of the page tables that the user stack was found by: those of the current
    /// task. `None` where the kernel stack is already that of the next task, to which the kernel is
    /// switching: the user stack is that one's, too.
    pub fn user_root(&self) -> Option<u64> {
        self.user_root
    }

    /// Returns true if the page of the program's next instruction was not present, or is at the address of
    /// the processor's last fault. For a task that came into the kernel otherwise than by a system call: in a
    /// page fault it is then that page that is being fetched. `None` where this does not apply, or could not
    /// be found out.
    pub fn is_fetching(&self) -> Option<bool> {
        self.fetching
    }

    /// Returns the bytes that were copied.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns true if nothing was copied.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the copied bytes, in the order of copying: virtual address and bytes.
    pub fn segments(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.parts().iter().filter_map(|s| Some((s.start, self.bytes.get(s.at..s.at + s.len)?)))
    }

    /// Returns the user's registers as the kernel saved them when it was entered (`task_pt_regs`), which do
    /// not depend on unwinding the kernel; in user mode those of the sample. `None` for a kernel thread, or
    /// when they were not copied.
    pub fn task_pt_regs(&self) -> Option<UserRegisters> {
        if self.user_mode {
            return Some(UserRegisters { registers: self.registers, orig_ax: u64::MAX });
        }
        PtRegs::read(self, self.pt_regs?).and_then(UserRegisters::new)
    }

    /// Returns the address of the registers with which the program entered the kernel; `None` for a kernel
    /// thread.
    pub(crate) fn user_registers_at(&self) -> Option<u64> {
        self.pt_regs
    }

    /// Returns the user's registers when the sample was taken in the kernel's entry code, while they were
    /// pushed or popped.
    pub(crate) fn entry_registers(&self) -> Option<UserRegisters> {
        let user_stack = self.registers.rsp() >> 63 == 0;
        if user_stack {
            // The first instructions of a system call: RCX is where it returns to.
            let registers = Registers { rip: *self.registers.gpr.get(2)?, ..self.registers };
            return Some(UserRegisters { registers, orig_ax: u64::MAX });
        }
        PtRegs::read_in_entry_code(self, self.pt_regs?, &self.registers).and_then(UserRegisters::new)
    }

    /// Room for `len` bytes of address `start`, which [`StackCopy::keep`] makes a part of the copy; less than
    /// `len` when the buffer ends.
    #[inline]
    pub(super) fn room(&mut self, start: u64, len: usize) -> Option<&mut [u8]> {
        self.noted = 0;
        let continues =
            self.parts().last().is_some_and(|last| last.start.wrapping_add(last.len as u64) == start);
        let len = len.min(self.bytes.len() - self.used);
        if len == 0 || !continues && self.count == MAX_SEGMENTS {
            self.gaps.full = true;
            return None;
        }
        self.bytes.get_mut(self.used..self.used + len)
    }

    /// Takes the first `len` bytes of the room at `start` into the copy.
    #[inline]
    pub(super) fn keep(&mut self, start: u64, len: usize) {
        let len = len.min(self.bytes.len() - self.used);
        match self.segments.get_mut(..self.count).and_then(<[CopiedSegment]>::last_mut) {
            Some(last) if last.start.wrapping_add(last.len as u64) == start => last.len += len,
            _ => {
                if let Some(next) = self.segments.get_mut(self.count) {
                    *next = CopiedSegment { start, at: self.used, len };
                    self.count += 1;
                }
            }
        }
        self.used += len;
    }

    fn parts(&self) -> &[CopiedSegment] {
        self.segments.get(..self.count).unwrap_or_default()
    }
}

impl StackMemory for StackCopy {
    #[inline]
    fn read_u64(&self, at: u64) -> Option<u64> {
        self.parts().iter().find_map(|segment| {
            let offset = symbols::bytes::index(at.checked_sub(segment.start)?);
            if offset.checked_add(8)? > segment.len {
                return None;
            }
            symbols::bytes::u64_at(&self.bytes, segment.at + offset)
        })
    }
}
