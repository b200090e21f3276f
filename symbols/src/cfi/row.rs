//! The rules by which one place's caller is found, in a form that is quick to apply.

use gimli::{
    CfaRule, ReaderOffset, Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression,
    UnwindTableRow,
};

use super::expression::ExpressionRange;
use super::table::{EntrySection, Fde};
use crate::go::GoFrame;
use crate::registers::Registers;

/// DWARF number of the return address column.
pub(super) const RA: usize = 16;

/// DWARF number of the stack pointer.
const RSP: u8 = 7;

/// Columns that are kept: the general registers and the return address.
pub(super) const COLUMNS: usize = RA + 1;

/// Registers that a function preserves (System V ABI, AMD64 supplement 1.0, section 3.2.1), but RSP.
pub(super) const PRESERVED: [usize; 6] = [3, Registers::RBP, 12, 13, 14, 15];

/// Columns that gimli keeps for a row. More are not CFI of a compiler for this machine, which has 17 and at
/// most 16 vector registers.
const RULES: usize = 40;

/// Storage of fixed size for gimli's rows: 1.3 KB for each state that `DW_CFA_remember_state` keeps.
#[derive(Debug)]
pub(super) struct Storage;

impl<T: ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(Register, RegisterRule<T>); RULES];
    type Stack = [UnwindTableRow<T, Self>; 6];
}

/// Memory in which gimli computes rows; kept between rows, as it is large.
pub(super) type RowContext = UnwindContext<usize, Storage>;

/// Rules of the tables for one address.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CfiRow {
    /// No function here.
    NoCfi,
    /// A function, but its rules cannot be understood.
    Bad,
    /// The return address is undefined: the outermost frame.
    Outermost,
    /// Form of almost every row.
    Usual(Usual),
    /// All others.
    General(Box<General>),
}

/// CFA = register + offset, return address at CFA - 8, preserved registers at CFA + 8 * slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usual {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    /// For each of [`PRESERVED`]; 0 for one that still has its caller's value.
    pub slots: [i16; PRESERVED.len()],
}

/// Every rule of CFI.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct General {
    pub cfa: CfaLocation,
    pub rules: [ColumnRule; COLUMNS],
    /// A signal handler's caller: interrupted, not calling.
    pub signal: bool,
}

/// Rule of the canonical frame address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CfaLocation {
    Register(u8, i64),
    Expression(ExpressionRange),
}

/// Rule of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ColumnRule {
    /// The register still has its caller's value.
    #[default]
    Same,
    Undefined,
    /// Saved at CFA + offset.
    Saved(i64),
    /// The value is CFA + offset.
    Value(i64),
    /// The value is in another register.
    Register(u8),
    /// Saved at the address that an expression gives.
    SavedAt(ExpressionRange),
    /// The value is the result of an expression.
    ValueOf(ExpressionRange),
}

impl CfiRow {
    /// Returns the row of a Go function: the return address is above the frame, and the caller's frame
    /// pointer on top of the frame.
    pub fn from_go(frame: GoFrame) -> Self {
        let GoFrame::Size(size) = frame else { return Self::Outermost };
        let Some(cfa_offset) = i32::try_from(size).ok().and_then(|size| size.checked_add(8)) else {
            return Self::Bad;
        };
        let mut slots = [0; PRESERVED.len()];
        if size > 0 {
            slots[1] = -2;
        }
        Self::Usual(Usual { cfa_offset, cfa_register: RSP, slots })
    }

    /// Returns the row for gimli's `row` of `fde`; `None` for a rule of an unknown kind.
    pub fn new(section: EntrySection, fde: &Fde<'_>, row: &UnwindTableRow<usize, Storage>) -> Option<Self> {
        (usize::from(fde.cie().return_address_register().0) == RA).then_some(())?;
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                CfaLocation::Register(general(*register)?, *offset)
            }
            CfaRule::Expression(expression) => {
                CfaLocation::Expression(expression_range(section, *expression)?)
            }
        };
        let mut rules = [ColumnRule::Same; COLUMNS];
        for (register, rule) in row.registers() {
            if let Some(column) = rules.get_mut(usize::from(register.0)) {
                *column = ColumnRule::new(section, rule)?;
            }
        }
        match rules[RA] {
            ColumnRule::Undefined => return Some(Self::Outermost),
            ColumnRule::Same => return None,
            _ => (),
        }
        let general = General { cfa, rules, signal: fde.is_signal_trampoline() };
        Some(match general.usual() {
            Some(usual) => Self::Usual(usual),
            None => Self::General(Box::new(general)),
        })
    }
}

impl General {
    /// Returns the short form, if nothing is lost by it.
    fn usual(&self) -> Option<Usual> {
        let CfaLocation::Register(cfa_register, offset) = self.cfa else { return None };
        if self.signal || self.rules[RA] != ColumnRule::Saved(-8) {
            return None;
        }
        let mut slots = [0; PRESERVED.len()];
        for (column, rule) in self.rules[..RA].iter().enumerate() {
            match *rule {
                ColumnRule::Same => (),
                ColumnRule::Saved(offset) if offset != 0 && offset % 8 == 0 => {
                    let slot = PRESERVED.iter().position(|&preserved| preserved == column)?;
                    slots[slot] = i16::try_from(offset / 8).ok()?;
                }
                _ => return None,
            }
        }
        Some(Usual { cfa_offset: i32::try_from(offset).ok()?, cfa_register, slots })
    }
}

impl ColumnRule {
    fn new(section: EntrySection, rule: &RegisterRule<usize>) -> Option<Self> {
        Some(match rule {
            RegisterRule::Undefined => Self::Undefined,
            RegisterRule::SameValue => Self::Same,
            RegisterRule::Offset(offset) => Self::Saved(*offset),
            RegisterRule::ValOffset(offset) => Self::Value(*offset),
            RegisterRule::Register(register) => general(*register).map_or(Self::Undefined, Self::Register),
            RegisterRule::Expression(expression) => Self::SavedAt(expression_range(section, *expression)?),
            RegisterRule::ValExpression(expression) => Self::ValueOf(expression_range(section, *expression)?),
            _ => return None,
        })
    }
}

/// Returns the number of a column that is kept.
fn general(register: Register) -> Option<u8> {
    u8::try_from(register.0).ok().filter(|&number| usize::from(number) < COLUMNS)
}

fn expression_range(section: EntrySection, expression: UnwindExpression<usize>) -> Option<ExpressionRange> {
    let start = u32::try_from(expression.offset).ok()?;
    Some(ExpressionRange { section, start, length: u32::try_from(expression.length).ok()? })
}
