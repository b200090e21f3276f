//! Expressions in CFI (DWARF 5, sections 2.5 and 6.4.2), evaluated on registers and stack memory.

use gimli::{
    DW_OP_piece, Encoding, Evaluation, EvaluationResult, EvaluationStorage, Format, Piece, Reader,
    UnitOffset, Value,
};

use super::UserWalkError;
use super::frame::{FrameState, missing};
use super::table::{Bytes, EntrySection};
use super::work_budget::WorkBudget;
use crate::bytes::index;
use crate::registers::StackMemory;

/// Operations of one expression; those of glibc's signal frames and of linkers' PLTs have 1 to 9.
pub(super) const MAX_OPERATIONS: u32 = 1_000;

/// Units of [`WorkBudget`] of one expression: as many that a walk evaluates about 2,000 of them.
pub(super) const UNITS: usize = 128;

/// Range of an expression in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpressionRange {
    pub section: EntrySection,
    /// Offset in the section.
    pub start: u32,
    /// Bytes.
    pub length: u32,
}

/// Fixed stacks: an expression with more than 64 values on its stack fails.
#[derive(Debug)]
struct Storage;

impl<'a> EvaluationStorage<Bytes<'a>> for Storage {
    type Stack = [Value; 64];
    type ExpressionStack = [(Bytes<'a>, Bytes<'a>); 1];
    type Result = [Piece<Bytes<'a>>; 1];
}

/// CFI of this machine: 8-byte addresses, generic values only.
const ENCODING: Encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 5 };

/// Returns the value of `expression` on `state`'s registers and `stack`, with `cfa` as its first value where
/// there is one.
pub(super) fn evaluate(
    expression: Bytes<'_>,
    cfa: Option<u64>,
    state: &FrameState,
    stack: &impl StackMemory,
    work: &mut WorkBudget,
) -> Result<u64, UserWalkError> {
    work.take(UNITS)?;
    if has_huge_piece(expression) {
        return Err(UserWalkError::BadCfi);
    }
    let mut evaluation = Evaluation::<_, Storage>::new_in(expression, ENCODING);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut result = evaluation.evaluate();
    loop {
        result = match result {
            Ok(EvaluationResult::Complete) => break,
            Ok(EvaluationResult::RequiresMemory { address, size, space: None, base_type: UnitOffset(0) }) => {
                evaluation.resume_with_memory(Value::Generic(read(stack, address, size)?))
            }
            Ok(EvaluationResult::RequiresRegister { register, base_type: UnitOffset(0) }) => {
                evaluation.resume_with_register(Value::Generic(state.get(usize::from(register.0))?))
            }
            _ => return Err(UserWalkError::BadCfi),
        };
    }
    match evaluation.value_result() {
        Some(Value::Generic(value)) => Ok(value),
        _ => Err(UserWalkError::BadCfi),
    }
}

/// Returns true if there may be a DW_OP_piece with more bits than a u64 counts: gimli multiplies without a
/// check. A branch may lead to any byte, so every byte is read as an operation. No rule needs pieces, which
/// are parts of variables (DWARF 5, section 2.6.1.2).
fn has_huge_piece(expression: Bytes<'_>) -> bool {
    let mut rest = expression;
    while let Ok(operation) = rest.read_u8() {
        let huge = |mut operand: Bytes<'_>| operand.read_uleb128().is_ok_and(|bytes| bytes > u64::MAX / 8);
        if operation == DW_OP_piece.0 && huge(rest) {
            return true;
        }
    }
    false
}

/// `size` bytes at `address`, as the low bytes of a word.
fn read(stack: &impl StackMemory, address: u64, size: u8) -> Result<u64, UserWalkError> {
    let word = stack.read_u64(address).ok_or_else(|| missing(stack, address))?;
    let spare = 64_usize.checked_sub(index(u64::from(size) * 8)).ok_or(UserWalkError::BadCfi)?;
    match spare {
        0 => Ok(word),
        64 => Err(UserWalkError::BadCfi),
        _ => Ok(word << spare >> spare),
    }
}
