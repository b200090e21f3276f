//! Input of unwinders: registers, and the stack as it was when they were read.

/// General registers by their DWARF numbers (System V ABI, AMD64 supplement 1.0, figure 3.36), and the
/// instruction pointer, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8 to R15.
    pub gpr: [u64; 16],
    /// Virtual address of the next instruction.
    pub rip: u64,
}

impl Registers {
    /// Index of RBP in [`Registers::gpr`].
    pub const RBP: usize = 6;
    /// Index of RSP in [`Registers::gpr`].
    pub const RSP: usize = 7;

    /// RBP.
    pub fn rbp(&self) -> u64 {
        self.gpr[Self::RBP]
    }

    /// RSP.
    pub fn rsp(&self) -> u64 {
        self.gpr[Self::RSP]
    }
}

/// Virtual memory of the moment at which registers were read: at least a part of the stack.
pub trait StackMemory {
    /// Returns the little-endian u64 at virtual address `at`; `None` where nothing is known, because the page
    /// was not present or was not kept.
    fn read_u64(&self, at: u64) -> Option<u64>;

    /// Returns true if the word at `at` is missing because its page was not present; false where that is not
    /// known.
    fn is_not_present(&self, _at: u64) -> bool {
        false
    }
}
