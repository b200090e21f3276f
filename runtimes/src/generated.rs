//! Managed frames in code that a runtime unwinds by its own rules, among native frames: mappings of a process
//! that also know these rules.

use std::cell::RefCell;

use symbols::cfi::{CodeMapping, CodeMappings, GeneratedCaller, KnownRegisters};
use symbols::{CodeAddr, Registers, StackMemory, VirtAddr};

use crate::ProcessMemory;
use crate::frames::ManagedFrame;

/// DWARF number of the return address (System V ABI, AMD64 supplement 1.0, figure 3.36).
const RA: usize = 16;

/// Runtime of a process, whose rules find callers and managed frames.
pub trait GeneratedRules {
    /// Returns the managed frames in the native frame at `at` in the mapping `image`, with these registers;
    /// `None` if its code is not the runtime's.
    fn frames(
        &mut self,
        memory: &impl ProcessMemory,
        image: &CodeMapping<'_>,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> Option<GeneratedFrames>;
}

/// Managed frames in one native frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedFrames {
    /// Innermost first: a function and those that it is inlined into. Empty for code that belongs to no
    /// function.
    pub frames: Vec<ManagedFrame>,
    /// The caller of the native frame.
    pub caller: GeneratedCaller,
}

/// Mappings of a process and its runtime, for one walk.
#[derive(Debug)]
pub struct GeneratedUnwinding<'a, I, M, R> {
    images: &'a I,
    memory: &'a M,
    state: RefCell<WalkState<'a, R>>,
}

#[derive(Debug)]
struct WalkState<'a, R> {
    runtime: &'a mut R,
    found: Vec<NativeManaged>,
}

/// Managed frames of a native frame in a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeManaged {
    /// Address of the native frame's code.
    pub at: CodeAddr,
    /// Stack pointer in the native frame.
    pub stack: u64,
    /// The managed frames, innermost first.
    pub frames: Vec<ManagedFrame>,
}

impl<'a, I: CodeMappings, M: ProcessMemory, R: GeneratedRules> GeneratedUnwinding<'a, I, M, R> {
    /// Returns `images` with the rules of `runtime`, whose structures are read from `memory`.
    pub fn new(images: &'a I, runtime: &'a mut R, memory: &'a M) -> Self {
        Self { images, memory, state: RefCell::new(WalkState { runtime, found: Vec::new() }) }
    }

    /// Returns the native frames of the walk that have managed frames, innermost first.
    pub fn into_found(self) -> Vec<NativeManaged> {
        self.state.into_inner().found
    }
}

impl<I: CodeMappings, M: ProcessMemory, R: GeneratedRules> CodeMappings for GeneratedUnwinding<'_, I, M, R> {
    fn find(&self, address: VirtAddr) -> Option<CodeMapping<'_>> {
        self.images.find(address)
    }

    fn code(&self, address: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.images.code(address, into)
    }

    fn generated_caller(
        &self,
        image: &CodeMapping<'_>,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> GeneratedCaller {
        // Never borrowed elsewhere: the walk does not call itself.
        let Ok(mut state) = self.state.try_borrow_mut() else { return GeneratedCaller::Unknown };
        let Some(managed) = state.runtime.frames(self.memory, image, at, registers, stack) else {
            return GeneratedCaller::Unknown;
        };
        if !managed.frames.is_empty() {
            let stack = registers.get(Registers::RSP).copied().flatten().unwrap_or(0);
            state.found.push(NativeManaged { at, stack, frames: managed.frames });
        }
        managed.caller
    }
}

/// Returns a frame whose function is not known: it has no name.
pub(crate) fn unknown(at: VirtAddr) -> ManagedFrame {
    ManagedFrame { code: at, instruction: None, identity: 0 }
}

/// A native frame in code of a runtime.
pub(crate) struct NativeFrame<'a> {
    pub at: CodeAddr,
    pub registers: &'a KnownRegisters,
    pub stack: &'a dyn StackMemory,
}

impl NativeFrame<'_> {
    pub(crate) fn register(&self, number: usize) -> Option<u64> {
        self.registers.get(number).copied().flatten()
    }

    pub(crate) fn rsp(&self) -> Option<u64> {
        self.register(Registers::RSP)
    }

    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        self.stack.read_u64(at)
    }

    pub(crate) fn caller(&self, pc: u64, rsp: u64, rbp: Option<u64>) -> GeneratedCaller {
        let mut registers = [None; RA + 1];
        registers[Registers::RSP] = Some(rsp);
        registers[Registers::RBP] = rbp;
        registers[RA] = Some(pc);
        GeneratedCaller::Found(registers)
    }

    /// Returns the caller if the frame has `size` bytes, of which the last two words are the caller's RBP and
    /// the return address.
    pub(crate) fn caller_above(&self, size: u64) -> GeneratedCaller {
        let Some(top) = self.rsp().and_then(|rsp| rsp.checked_add(size)) else {
            return GeneratedCaller::Unknown;
        };
        if size < 16 {
            return GeneratedCaller::Unknown;
        }
        match (self.word(top - 8), self.word(top - 16)) {
            (Some(pc), Some(rbp)) => self.caller(pc, top, Some(rbp)),
            _ => GeneratedCaller::Missing(top - 8),
        }
    }

    /// Returns the caller if the return address is `offset` bytes above RSP, and RBP is the caller's.
    pub(crate) fn caller_at(&self, offset: u64) -> GeneratedCaller {
        let Some(slot) = self.rsp().and_then(|rsp| rsp.checked_add(offset)) else {
            return GeneratedCaller::Unknown;
        };
        match self.word(slot) {
            Some(pc) => self.caller(pc, slot.saturating_add(8), self.register(Registers::RBP)),
            None => GeneratedCaller::Missing(slot),
        }
    }

    /// Returns the caller of an entry from native code, which has a frame pointer and saves what its caller
    /// preserves: `saved` has registers and their offsets from RBP.
    pub(crate) fn caller_of_entry(&self, saved: &[(usize, i64)]) -> GeneratedCaller {
        let Some(rbp) = self.register(Registers::RBP) else { return GeneratedCaller::Unknown };
        let slot = |offset: i64| self.word(rbp.wrapping_add_signed(offset));
        let (Some(outer), Some(pc)) = (slot(0), slot(8)) else { return GeneratedCaller::Missing(rbp) };
        let GeneratedCaller::Found(mut registers) = self.caller(pc, rbp.saturating_add(16), Some(outer))
        else {
            return GeneratedCaller::Unknown;
        };
        for &(number, offset) in saved {
            if let Some(register) = registers.get_mut(number) {
                *register = slot(offset);
            }
        }
        GeneratedCaller::Found(registers)
    }
}
