//! Stacks and registers out of the fuzzer's bytes.

use arbitrary::Arbitrary;
use symbols::{Registers, StackMemory};

/// Words of a stack from an address up; all others were not copied.
#[derive(Debug)]
pub struct StackWords<'a> {
    /// Address of the first word.
    pub start: u64,
    /// The words.
    pub words: &'a [u64],
}

impl StackMemory for StackWords<'_> {
    fn read_u64(&self, at: u64) -> Option<u64> {
        let offset = at.checked_sub(self.start)?;
        let index = usize::try_from(offset / 8).ok()?;
        self.words.get(index).copied().filter(|_| offset % 8 == 0)
    }

    fn is_not_present(&self, at: u64) -> bool {
        at == self.start.wrapping_add(self.words.len() as u64 * 8)
    }
}

/// A word of a stack: mostly an address that means something.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum StackWord {
    /// Somewhere in the code.
    Code(u16),
    /// Somewhere on the stack.
    Stack(u8),
    /// Anything.
    Any(u64),
}

impl StackWord {
    /// Returns the word, with code at `code` and the stack at `stack`.
    pub fn value(self, code: u64, stack: u64) -> u64 {
        match self {
            Self::Code(offset) => code.wrapping_add(u64::from(offset)),
            Self::Stack(word) => stack.wrapping_add(u64::from(word) * 8),
            Self::Any(value) => value,
        }
    }
}

/// Returns registers with `rip`, `rsp` and `rbp`; the others hold the stack's words.
pub fn registers(rip: u64, rsp: u64, rbp: u64, words: &[u64]) -> Registers {
    let mut registers = Registers { rip, ..Registers::default() };
    for (register, word) in registers.gpr.iter_mut().zip(words) {
        *register = *word;
    }
    registers.gpr[Registers::RSP] = rsp;
    registers.gpr[Registers::RBP] = rbp;
    registers
}
