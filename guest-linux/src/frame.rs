//! Frames of a call stack and ends of a walk.

use crate::pt_regs::{PtRegs, SavedMode};
use symbols::Registers;

/// The registers of the user program that the kernel was entered from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRegisters {
    /// All of them.
    pub registers: Registers,
    /// `pt_regs.orig_ax`: the system call's number, or negative after an interrupt or exception. All ones
    /// where it is not known.
    pub orig_ax: u64,
}

impl UserRegisters {
    /// Returns the registers in `regs`, if they are a user's.
    pub(crate) fn new(regs: PtRegs) -> Option<Self> {
        (regs.mode() == Some(SavedMode::User))
            .then_some(Self { registers: regs.registers, orig_ax: regs.orig_ax })
    }

    /// Returns the number of the system call that the kernel is in; `None` in an interrupt or exception.
    pub fn system_call(&self) -> Option<u32> {
        // An int for the kernel: its lower half.
        u32::try_from(self.orig_ax).ok().filter(|number| number >> 31 == 0)
    }
}

/// End of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkEnd {
    /// At the entry from user mode; there the user's stack continues.
    User(UserRegisters),
    /// At the bottom of the stack of a kernel thread or an idle task.
    Complete,
    /// Before its time.
    Broken(KernelWalkError),
}

/// Reason why a walk could not continue; its `Display` replaces the frames that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum KernelWalkError {
    /// No rule holds at an address of the kernel.
    #[error("no unwind rule for this address")]
    NoRule,
    /// The address is neither in the image nor in a module: generated code without a frame pointer.
    #[error("code outside of kernel and modules")]
    UnknownCode,
    /// The first instructions of the kernel's entry, or its last ones.
    #[error("kernel entry code")]
    EntryCode,
    /// A word of the stack that is needed was not copied.
    #[error("stack not copied this far")]
    NotCopied,
    /// A register that is needed is not known in this frame.
    #[error("caller's register not known")]
    NoRegister,
    /// The stack pointer went down, or from stack to stack without end.
    #[error("stack pointer goes the wrong way")]
    StackPointer,
    /// The words at the place of saved registers are not registers.
    #[error("no saved registers where they are expected")]
    BadRegisters,
    /// The guest traces this function's return.
    #[error("return address replaced by a tracer")]
    ReturnHook,
    /// The stack has more frames than are wanted.
    #[error("more frames than the limit")]
    Limit,
}
