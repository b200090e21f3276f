//! One rule of ORC.

use crate::layout::{Bits, OrcLayout};

/// What the caller's stack pointer is told by (`ORC_REG_*`, the same numbers in all versions).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Undefined,
    /// The stack pointer that was found just now.
    PreviousSp,
    Sp,
    Bp,
    R10,
    R13,
    Di,
    Dx,
    /// The word at SP, then the offset (5.12; before, no rule had it).
    SpIndirect,
    /// The word at BP plus the offset.
    BpIndirect,
}

/// What lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing that could be told.
    Undefined,
    /// The bottom of the stack.
    Bottom,
    /// A return address below the caller's stack.
    Call,
    /// A `pt_regs`.
    Regs,
    /// An iret frame: the upper five words of a `pt_regs`.
    Partial,
}

/// A rule, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) sp_offset: i16,
    pub(super) bp_offset: i16,
    pub(super) sp: Base,
    pub(super) bp: Base,
    pub(super) kind: Kind,
    /// The caller's address is that of an interrupted instruction.
    pub(super) exact: bool,
}

impl Rule {
    /// What holds at address 0, which is only got to by calling it: nothing was pushed but the return address.
    pub(super) const NULL_CALL: Self = Self {
        sp_offset: 8,
        bp_offset: 0,
        sp: Base::Sp,
        bp: Base::Undefined,
        kind: Kind::Call,
        exact: false,
    };

    /// Takes apart the bytes of a rule, of which there are at most eight.
    pub(super) fn decode(layout: &OrcLayout, bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        let word = u64::from_le_bytes(word);
        // At most 16 bits, all within the word (see the layout).
        let field = |(first, bits): Bits| {
            let value = word.checked_shr(first).unwrap_or(0) & ((1 << bits.min(16)) - 1);
            u16::try_from(value).unwrap_or(0)
        };
        let flag = |bits: Option<Bits>| bits.is_some_and(|bits| field(bits) != 0);
        let sp = Base::new(field(layout.sp_reg));
        let kind = match (layout.kind.1, field(layout.kind)) {
            (3, 1) => Kind::Bottom,
            (0..=2, _) if sp == Base::Undefined && flag(layout.end) => Kind::Bottom,
            (0..=2, _) if sp == Base::Undefined => Kind::Undefined,
            (0..=2, 0) | (3, 2) => Kind::Call,
            (0..=2, 1) | (3, 3) => Kind::Regs,
            (0..=2, 2) | (3, 4) => Kind::Partial,
            _ => Kind::Undefined,
        };
        let exact = match layout.signal {
            Some(signal) => flag(Some(signal)),
            None => matches!(kind, Kind::Regs | Kind::Partial),
        };
        Self {
            sp_offset: field(layout.sp_offset).cast_signed(),
            bp_offset: field(layout.bp_offset).cast_signed(),
            sp,
            bp: Base::new(field(layout.bp_reg)),
            kind,
            exact,
        }
    }

    /// True for what only marks the end of a section: another rule at the same address is the real one.
    pub(super) fn is_weak(&self) -> bool {
        self.kind == Kind::Undefined
    }
}

impl Base {
    fn new(number: u16) -> Self {
        match number {
            1 => Self::PreviousSp,
            2 => Self::Dx,
            3 => Self::Di,
            4 => Self::Bp,
            5 => Self::Sp,
            6 => Self::R10,
            7 => Self::R13,
            8 => Self::BpIndirect,
            9 => Self::SpIndirect,
            _ => Self::Undefined,
        }
    }
}
