//! Variables of each thread: where a function of a program or library finds one (ELF Handling For
//! Thread-Local Storage, version 0.21, sections 3.4.6 and 4.4.6, for x86-64).
//!
//! ```text
//! lea PAIR(%rip), %rdi; call __tls_get_addr    number of the module and offset in its block, in memory
//! mov SLOT(%rip), %rax; mov %fs:(%rax), %rax   offset from the FS base, in memory
//! mov $OFFSET, %rax;    mov %fs:(%rax), %rax   offset from the FS base
//! mov %fs:0, %rax;      mov OFFSET(%rax), %rax the same, also with lea
//! mov %fs:OFFSET, %rax                         the same
//! ```

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use symbols::{LinkAddr, VirtAddr};

use crate::ProcessMemory;
use crate::copies::{CopyStep, FS_BASE};

/// Instructions of a function that are searched.
const INSTRUCTIONS: usize = 16;
/// Offset from the FS base of the stack protector's canary, which is not the variable (System V ABI of
/// x86-64).
const CANARY: u64 = 0x28;
/// Offset from the FS base of the pointer to the vector of the blocks of all modules (`tcbhead_t.dtv`,
/// sysdeps/x86_64/nptl/tls.h of glibc 2.31 to 2.42).
const VECTOR: u64 = 8;
/// Bytes of an entry of the vector (`dtv_t`, sysdeps/generic/dl-dtv.h); the one before the first is the
/// number of entries.
const ENTRY: u64 = 16;
/// Modules with variables of each thread, at most.
const MAX_MODULES: u64 = 1 << 16;
/// Distance of a variable from the FS base, or the start of its block, at most.
const MAX_OFFSET: u64 = 1 << 30;

/// Access to a variable of each thread in the code of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadAccess {
    /// Two words at this address: number of the module, and offset in its block.
    Pair(LinkAddr),
    /// A word at this address: offset from the FS base.
    Slot(LinkAddr),
    /// Offset from the FS base.
    Offset(i64),
}

/// Variable of each thread of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadVariable {
    /// At this offset from the FS base.
    Static(i64),
    /// At this offset in the block of a module.
    Module { number: u64, offset: u64 },
}

impl ThreadAccess {
    /// Returns the first access in `code`, a function that begins at `start`.
    pub(crate) fn find(code: &[u8], start: LinkAddr) -> Option<Self> {
        let mut before = Instruction::default();
        for instruction in Decoder::with_ip(64, code, start.0, DecoderOptions::NONE).iter().take(INSTRUCTIONS)
        {
            if let Some(access) = access(&before, &instruction) {
                return Some(access);
            }
            if matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::INVALID) {
                return None;
            }
            before = instruction;
        }
        None
    }

    /// Returns the variable in a process that has mapped the file at `bias`.
    pub(crate) fn resolve(self, memory: &impl ProcessMemory, bias: u64) -> Option<ThreadVariable> {
        let variable = match self {
            Self::Pair(at) => {
                let at = at.loaded(bias);
                let [number, offset] = [at, at.checked_add(8)?].map(|at| memory.read_u64(at));
                let number = number.filter(|number| (1..MAX_MODULES).contains(number))?;
                ThreadVariable::Module { number, offset: offset.filter(|&offset| offset < MAX_OFFSET)? }
            }
            Self::Slot(at) => ThreadVariable::Static(memory.read_u64(at.loaded(bias))?.cast_signed()),
            Self::Offset(offset) => ThreadVariable::Static(offset),
        };
        match variable {
            // A relocation that was not done yet.
            ThreadVariable::Static(offset) if offset == 0 || offset.unsigned_abs() >= MAX_OFFSET => None,
            _ => Some(variable),
        }
    }
}

/// Returns the access that `instruction` makes, with the one before it.
fn access(before: &Instruction, instruction: &Instruction) -> Option<ThreadAccess> {
    let loads = |instruction: &Instruction| {
        instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Register
            && instruction.op1_kind() == OpKind::Memory
    };
    let is_lea = |instruction: &Instruction| instruction.mnemonic() == Mnemonic::Lea;
    if instruction.mnemonic() == Mnemonic::Call {
        let leads =
            is_lea(before) && before.op0_register() == Register::RDI && before.is_ip_rel_memory_operand();
        return leads.then(|| ThreadAccess::Pair(LinkAddr(before.ip_rel_memory_address())));
    }
    let base = instruction.memory_base();
    let offset = instruction.memory_displacement64();
    if instruction.memory_index() != Register::None {
        return None;
    }
    if instruction.segment_prefix() == Register::FS && loads(instruction) {
        if base == Register::None {
            return (![0, CANARY].contains(&offset)).then_some(ThreadAccess::Offset(offset.cast_signed()));
        }
        if offset != 0 || before.op0_kind() != OpKind::Register || before.op0_register() != base {
            return None;
        }
        if loads(before) && before.is_ip_rel_memory_operand() {
            return Some(ThreadAccess::Slot(LinkAddr(before.ip_rel_memory_address())));
        }
        let is_number = before.mnemonic() == Mnemonic::Mov && before.op1_kind() == OpKind::Immediate32to64;
        return is_number.then(|| ThreadAccess::Offset(before.immediate32to64()));
    }
    let from_base = loads(before)
        && before.segment_prefix() == Register::FS
        && before.memory_base() == Register::None
        && before.memory_displacement64() == 0;
    let of_base = base != Register::None && base == before.op0_register() && offset != 0;
    (from_base && of_base && (loads(instruction) || is_lea(instruction)))
        .then_some(ThreadAccess::Offset(offset.cast_signed()))
}

impl ThreadVariable {
    /// Returns the address of the variable of the thread with this FS base; `None` if the thread has not used
    /// it.
    pub(crate) fn address(self, memory: &impl ProcessMemory, fs_base: u64) -> Option<VirtAddr> {
        match self {
            Self::Static(offset) => fs_base.checked_add_signed(offset).map(VirtAddr),
            Self::Module { number, offset } => {
                let vector = memory.read_u64(VirtAddr(fs_base.checked_add(VECTOR)?))?;
                if memory.read_u64(VirtAddr(vector.checked_sub(ENTRY)?))? < number {
                    return None;
                }
                let block = memory.read_u64(VirtAddr(vector.checked_add(number.checked_mul(ENTRY)?)?))?;
                // -1 for a block that the thread has not used (`TLS_DTV_UNALLOCATED`).
                (![0, u64::MAX].contains(&block)).then_some(())?;
                block.checked_add(offset).map(VirtAddr)
            }
        }
    }

    /// Returns the steps, from the first of a plan on, that load the variable into a register.
    pub(crate) fn copies(self, register: u8) -> Vec<CopyStep> {
        match self {
            Self::Static(offset) => vec![CopyStep::word_of(FS_BASE, offset.cast_unsigned(), register, 1)],
            Self::Module { number, offset } => vec![
                CopyStep::word_of(FS_BASE, VECTOR, register, 1),
                CopyStep::new(register, (ENTRY.wrapping_neg(), 8), 2),
                CopyStep::word_of(register, number.wrapping_mul(ENTRY), register, 3),
                CopyStep::word_of(register, offset, register, 4),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BASE, FlatMemory};

    #[test]
    fn every_form_of_access_is_found() {
        let at = LinkAddr(0x1000);
        // endbr64; sub $8, %rsp; data16 lea 0x100(%rip), %rdi; data16 data16 rex.W call
        let pair = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8, 0x66, 0x48, 0x8d, 0x3d, 0, 1, 0, 0];
        let call = [0x66, 0x66, 0x48, 0xe8, 0, 2, 0, 0];
        let found = ThreadAccess::find(&[&pair[..], &call].concat(), at);
        assert_eq!(found, Some(ThreadAccess::Pair(LinkAddr(0x1110))));
        // mov 0x100(%rip), %rax; mov %fs:(%rax), %rax
        let through = [0x64, 0x48, 0x8b, 0];
        let slot = [0x48, 0x8b, 5, 0, 1, 0, 0];
        let found = ThreadAccess::find(&[&slot[..], &through].concat(), at);
        assert_eq!(found, Some(ThreadAccess::Slot(LinkAddr(0x1107))));
        // mov $-16, %rax; mov %fs:(%rax), %rax
        let number = [0x48, 0xc7, 0xc0, 0xf0, 0xff, 0xff, 0xff];
        let found = ThreadAccess::find(&[&number[..], &through].concat(), at);
        assert_eq!(found, Some(ThreadAccess::Offset(-16)));
        // mov %fs:0, %rax; mov -16(%rax), %rax
        let base = [0x64, 0x48, 0x8b, 4, 0x25, 0, 0, 0, 0];
        let found = ThreadAccess::find(&[&base[..], &[0x48, 0x8b, 0x40, 0xf0]].concat(), at);
        assert_eq!(found, Some(ThreadAccess::Offset(-16)));
        // mov %fs:-16, %rax
        let direct = [0x64, 0x48, 0x8b, 4, 0x25, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(ThreadAccess::find(&direct, at), Some(ThreadAccess::Offset(-16)));
    }

    #[test]
    fn other_code_has_no_access() {
        // mov %fs:0x28, %rax (the canary); ret; mov %fs:-16, %rax
        let canary = [0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0, 0xc3];
        let behind = [0x64, 0x48, 0x8b, 4, 0x25, 0xf0, 0xff, 0xff, 0xff];
        for code in [&[canary.as_slice(), &behind].concat()[..], &[0xe8, 0, 0, 0, 0, 0xc3], &[]] {
            assert_eq!(ThreadAccess::find(code, LinkAddr(0)), None, "{code:x?}");
        }
    }

    #[test]
    fn variables_of_modules_are_found_through_the_vector_of_the_thread() {
        let mut memory = FlatMemory { bytes: vec![0; 0x1000] };
        let (pair, fs_base, vector, block) = (BASE + 0x10, BASE + 0x200, BASE + 0x300, BASE + 0x400);
        memory.put(pair, 3);
        memory.put(pair + 8, 0x20);
        memory.put(fs_base + 8, vector);
        memory.put(vector - 16, 5);
        memory.put(vector + 3 * 16, block);
        let access = ThreadAccess::Pair(LinkAddr(0x10));
        let variable = access.resolve(&memory, BASE).expect("a variable");
        assert_eq!(variable.address(&memory, fs_base), Some(VirtAddr(block + 0x20)));
        // Not used by this thread; more modules than the vector has entries; no such module.
        for (at, word) in [(vector + 3 * 16, u64::MAX), (vector - 16, 2)] {
            let mut other = memory.clone();
            other.put(at, word);
            assert_eq!(variable.address(&other, fs_base), None, "{at:#x}");
        }
        memory.put(pair, 0);
        assert_eq!(access.resolve(&memory, BASE), None, "not relocated");
        let slot = ThreadAccess::Slot(LinkAddr(0x18)).resolve(&memory, BASE).expect("a variable");
        assert_eq!(slot.address(&memory, fs_base), Some(VirtAddr(fs_base + 0x20)));
    }
}
