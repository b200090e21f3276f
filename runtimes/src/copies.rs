//! Plans of copies: what a walk reads, for a reader that knows no runtime and has to read all of it in one
//! moment.
//!
//! ```text
//! step    address = a register, or none, + offset
//!         copies so many bytes from there on, and loads some of their words into registers
//!         next step: by a comparison of two registers; another one where the bytes are not present
//! ```
//!
//! The first register has the thread's FS base, the others 0. An address ignores the lowest three bits of its
//! register, and nothing is present at a register of 0. The reader ends at [`CopyStep::END`], or after any
//! number of steps. A walk of what it has copied finds the frames as one of the memory itself, up to what is
//! missing: a plan that is wrong leads to missing frames, and never to other ones.

/// Registers of a reader.
pub const REGISTERS: usize = 8;
/// Register with the FS base.
pub(crate) const FS_BASE: u8 = 0;

/// A step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyStep {
    /// Register with the address of the structure; `None` if `offset` is the address.
    pub base: Option<u8>,
    /// Offset of the first byte from that address, modulo 2^64.
    pub offset: u64,
    /// Bytes to copy, [`CopyStep::MAX_BYTES`] at most; 0 for a step that only compares.
    pub bytes: u16,
    /// Bytes that are added to the register `base` before words are loaded.
    pub advance: u8,
    /// Words of the copied bytes that are loaded into registers, in this order.
    pub loads: [Option<WordLoad>; CopyStep::MAX_LOADS],
    /// The next step.
    pub next: NextStep,
    /// Number of the next step if the bytes are not present.
    pub missing: u8,
}

/// Word that is loaded into a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordLoad {
    /// The register.
    pub register: u8,
    /// Offset of the word from the first byte that is copied: a multiple of 8.
    pub at: u16,
    /// Bits that the word is shifted to the left.
    pub shift: u8,
    /// The word is added to the register's value.
    pub adds: bool,
}

/// Next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Number of the step.
    Always(u8),
    /// Numbers of the steps if two registers are equal, and if they are not.
    Compare {
        /// The registers.
        registers: [u8; 2],
        /// Step if they are equal.
        equal: u8,
        /// Step if they differ.
        other: u8,
    },
}

/// Plan of the copies for one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPlan(Vec<CopyStep>);

/// Returns a number of bytes, or one that no plan has if it is too large.
fn small(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

impl WordLoad {
    /// Returns a load of the word at this offset.
    pub(crate) fn new(register: u8, at: impl Into<usize>) -> Self {
        Self { register, at: small(at.into()), shift: 0, adds: false }
    }
}

impl CopyStep {
    /// Number of the step at which a reader ends.
    pub const END: u8 = u8::MAX;
    /// Bytes of a step, at most.
    pub const MAX_BYTES: u16 = 4096;
    /// Words that a step loads, at most.
    pub const MAX_LOADS: usize = 4;

    /// Returns a step that copies `bytes` bytes from `offset` of the structure that `base` has the address
    /// of, and continues with `next` in any case.
    pub(crate) fn new(base: u8, (offset, bytes): (u64, usize), next: u8) -> Self {
        Self {
            base: Some(base),
            offset,
            bytes: small(bytes),
            advance: 0,
            loads: [None; Self::MAX_LOADS],
            next: NextStep::Always(next),
            missing: next,
        }
    }

    /// Returns a step that loads the word at `address` into a register, or ends the reader.
    pub(crate) fn word_at(address: u64, register: u8, next: u8) -> Self {
        let step = Self { base: None, ..Self::new(0, (address, 8), next) };
        step.load(WordLoad::new(register, 0_usize)).or(Self::END)
    }

    /// Returns a step that loads the word at `offset` of a structure into a register, or ends the reader.
    pub(crate) fn word_of(base: u8, offset: u64, register: u8, next: u8) -> Self {
        Self::new(base, (offset, 8), next).load(WordLoad::new(register, 0_usize)).or(Self::END)
    }

    /// Returns the step with one more load.
    pub(crate) fn load(mut self, load: WordLoad) -> Self {
        if let Some(free) = self.loads.iter_mut().find(|load| load.is_none()) {
            *free = Some(load);
        }
        self
    }

    /// Returns the step with another one to follow where the bytes are not present.
    pub(crate) fn or(self, missing: u8) -> Self {
        Self { missing, ..self }
    }

    /// Returns true if a reader can execute the step in a plan of `steps` steps.
    fn is_valid(&self, steps: usize) -> bool {
        let is_step = |number: u8| number == Self::END || usize::from(number) < steps;
        let is_register = |number: u8| usize::from(number) < REGISTERS;
        let fits = |load: &WordLoad| {
            is_register(load.register)
                && load.at.is_multiple_of(8)
                && load.at.checked_add(8).is_some_and(|end| end <= self.bytes)
                && load.shift < 64
        };
        let next = match self.next {
            NextStep::Always(next) => is_step(next),
            NextStep::Compare { registers, equal, other } => {
                registers.into_iter().all(is_register) && is_step(equal) && is_step(other)
            }
        };
        next && is_step(self.missing)
            && self.base.is_none_or(is_register)
            && self.bytes <= Self::MAX_BYTES
            && self.loads.iter().flatten().all(fits)
    }
}

impl CopyPlan {
    /// Steps of a plan, at most.
    pub const MAX_STEPS: usize = 16;

    /// Returns a plan; `None` if a reader cannot execute it: offsets in the memory of a process lead to
    /// anything.
    pub(crate) fn new(steps: Vec<CopyStep>) -> Option<Self> {
        let is_valid = steps.len() <= Self::MAX_STEPS && steps.iter().all(|step| step.is_valid(steps.len()));
        is_valid.then_some(Self(steps))
    }

    /// Returns the steps; a reader begins with the first one.
    pub fn steps(&self) -> &[CopyStep] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_no_reader_can_execute_make_no_plan() {
        let step = CopyStep::word_of(1, 8, 2, 0);
        assert!(CopyPlan::new(vec![step; CopyPlan::MAX_STEPS]).is_some());
        assert!(CopyPlan::new(vec![step; CopyPlan::MAX_STEPS + 1]).is_none());
        let compare = |registers| NextStep::Compare { registers, equal: CopyStep::END, other: 0 };
        for (wrong, why) in [
            (CopyStep { base: Some(8), ..step }, "a register"),
            (CopyStep { bytes: 4097, ..step }, "too many bytes"),
            (CopyStep { next: NextStep::Always(1), ..step }, "a step"),
            (CopyStep { missing: 1, ..step }, "a step"),
            (CopyStep { next: compare([0, 8]), ..step }, "a register"),
            (step.load(WordLoad::new(8, 0_usize)), "a register"),
            (step.load(WordLoad::new(0, 8_usize)), "a word beyond the bytes"),
            (CopyStep { bytes: 16, ..step }.load(WordLoad::new(0, 4_usize)), "a word that is not aligned"),
        ] {
            assert!(CopyPlan::new(vec![wrong]).is_none(), "{why}");
        }
        assert!(CopyPlan::new(vec![CopyStep { next: compare([0, 7]), ..step }]).is_some());
    }
}
