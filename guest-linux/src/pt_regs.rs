//! `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h): the registers of an interrupted program or of a
//! system call's caller, as the kernel's entry code pushes them.
//!
//! ```text
//!   0 r15  8 r14  16 r13  24 r12  32 rbp  40 rbx  48 r11  56 r10  64 r9  72 r8
//!  80 rax 88 rcx  96 rdx 104 rsi 112 rdi 120 orig_ax
//! 128 rip 136 cs 144 rflags 152 rsp 160 ss       pushed by the processor, or as if by it (an iret frame)
//! ```

use symbols::{Registers, StackMemory};

/// Bytes of it.
pub(crate) const SIZE: u64 = 168;
/// Offset of `orig_ax`: the system call's number, an exception's error code, or all ones.
pub(crate) const ORIG_AX: u64 = 120;
/// Offset of `ip`, with which the iret frame starts.
pub(crate) const IRET: u64 = 128;
/// Offset of `cs`.
pub(crate) const CS: u64 = 136;
/// Offset of `sp`.
pub(crate) const SP: u64 = 152;
/// Offset of each general register, by its number in [`Registers::gpr`].
const GPR: [u64; 16] = [80, 96, 88, 40, 104, 112, 32, SP, 72, 64, 56, 48, 24, 16, 8, 0];

/// Code segments (arch/x86/include/asm/segment.h).
const KERNEL_CS: u64 = 0x10;
const USER32_CS: u64 = 0x23;
const USER_CS: u64 = 0x33;

/// Words of a `pt_regs`.
pub const WORDS: usize = 21;

/// Returns the registers of a `pt_regs` that was copied word by word.
pub fn saved_registers(words: &[u64; WORDS]) -> Registers {
    let word = |offset: u64| usize::try_from(offset / 8).ok().and_then(|at| words.get(at)).copied();
    Registers { gpr: GPR.map(|offset| word(offset).unwrap_or(0)), rip: word(IRET).unwrap_or(0) }
}

/// Saved registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtRegs {
    pub(crate) registers: Registers,
    pub(crate) orig_ax: u64,
    pub(crate) cs: u64,
}

impl PtRegs {
    /// Reads a `pt_regs` at `at`.
    pub(crate) fn read(stack: &impl StackMemory, at: u64) -> Option<Self> {
        Self::read_partly(stack, at, |_, _| None)
    }

    /// Reads a `pt_regs` at `at`; a value that `instead` returns for a slot's address and offset replaces the
    /// stack's word.
    fn read_partly(
        stack: &impl StackMemory,
        at: u64,
        instead: impl Fn(u64, u64) -> Option<u64>,
    ) -> Option<Self> {
        let slot = |offset: u64| {
            let slot = at.checked_add(offset)?;
            instead(slot, offset).or_else(|| stack.read_u64(slot))
        };
        let mut gpr = [0; 16];
        for (value, offset) in gpr.iter_mut().zip(GPR) {
            *value = slot(offset)?;
        }
        Some(Self { registers: Registers { gpr, rip: slot(IRET)? }, orig_ax: slot(ORIG_AX)?, cs: slot(CS)? })
    }

    /// Reads a `pt_regs` at `at` while entry code is pushing or popping it: the registers of slots below
    /// `now`'s stack pointer are still, or again, in `now`. RIP is then in RCX, where SYSCALL puts it (Intel
    /// SDM volume 2, SYSCALL).
    pub(crate) fn read_in_entry_code(stack: &impl StackMemory, at: u64, now: &Registers) -> Option<Self> {
        // On another stack: all of it is there.
        if !(at..at.checked_add(SIZE)?).contains(&now.rsp()) {
            return Self::read(stack, at);
        }
        Self::read_partly(stack, at, |slot, offset| {
            if slot >= now.rsp() {
                return None;
            }
            match offset {
                // The user's own stack pointer is not in a register any more.
                SP => None,
                IRET => now.gpr.get(2).copied(),
                CS => Some(USER_CS),
                ORIG_AX => Some(u64::MAX),
                _ => GPR.iter().position(|&known| known == offset).and_then(|i| now.gpr.get(i).copied()),
            }
        })
    }

    /// Returns the mode in which the registers were saved.
    pub(crate) fn mode(&self) -> Option<SavedMode> {
        SavedMode::from_code_segment(self.cs)
    }
}

/// Mode in which registers were saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavedMode {
    Kernel,
    User,
}

impl SavedMode {
    /// Returns the mode that a saved code segment shows; `None` if it cannot be a code segment, so that the
    /// words around it are not saved registers. The upper bits are not the selector's (FRED keeps more
    /// there).
    pub(crate) fn from_code_segment(cs: u64) -> Option<Self> {
        match cs & 0xffff {
            KERNEL_CS => Some(Self::Kernel),
            USER_CS | USER32_CS => Some(Self::User),
            // A segment of the program's own (modify_ldt).
            own if own & 7 == 7 => Some(Self::User),
            _ => None,
        }
    }
}
