//! Frames, and the step from a frame to its caller by a row.

use serde::{Deserialize, Serialize};

use super::images::KnownRegisters;
use super::row::{COLUMNS, CfaLocation, ColumnRule, General, PRESERVED, RA, Usual};
use super::work_budget::WorkBudget;
use super::{CfiTable, UserWalkError, expression};
use crate::address::{CodeAddr, VirtAddr};
use crate::registers::{Registers, StackMemory};

/// One frame of a user stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserFrame {
    /// Virtual address of the instruction that runs next in this frame.
    pub at: CodeAddr,
    /// Stack pointer in this frame. The frame's part of the stack ends at that of its caller.
    pub stack: u64,
    /// `None` for a frame that follows from the one before it by CFI. All frames after one with a doubt rest
    /// on it.
    pub doubt: Option<FrameDoubt>,
}

/// Reason why a frame may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum FrameDoubt {
    /// No CFI covers the callee: the frame is where the instructions that run next in the callee lead to.
    #[error("by the code that returns")]
    Code,
    /// No CFI covers the callee: the frame is where RBP points, which is right if the callee keeps a frame
    /// pointer. Wrong where RBP is the caller's still: then the caller is skipped.
    #[error("by frame pointer")]
    FramePointer,
    /// No CFI covers the callee: the frame is where the word at RSP returns to, right after a call.
    #[error("by return address")]
    ReturnAddress,
}

/// Registers of a frame; those that were lost on the way are not known.
#[derive(Debug, Clone)]
pub(super) struct FrameState {
    values: [u64; COLUMNS],
    /// Bit of each column whose value is known.
    known: u32,
}

impl FrameState {
    pub fn new(registers: &Registers) -> Self {
        let mut values = [0; COLUMNS];
        values[..RA].copy_from_slice(&registers.gpr);
        values[RA] = registers.rip;
        Self { values, known: (1 << COLUMNS) - 1 }
    }

    /// Returns the value of a column.
    pub fn get(&self, column: usize) -> Result<u64, UserWalkError> {
        let value = *self.values.get(column).ok_or(UserWalkError::BadCfi)?;
        if self.known & (1 << column) == 0 { Err(UserWalkError::RegisterUnknown) } else { Ok(value) }
    }

    /// RSP, which every step makes known.
    pub fn rsp(&self) -> u64 {
        self.values[Registers::RSP]
    }

    /// RIP, which every step makes known.
    pub fn rip(&self) -> VirtAddr {
        VirtAddr(self.values[RA])
    }

    /// Sets a column, or forgets it.
    pub fn set(&mut self, column: usize, value: Option<u64>) {
        let Some(place) = self.values.get_mut(column) else { return };
        match value {
            Some(value) => {
                *place = value;
                self.known |= 1 << column;
            }
            None => self.known &= !(1 << column),
        }
    }

    /// Returns all columns.
    pub fn registers(&self) -> KnownRegisters {
        std::array::from_fn(|column| self.get(column).ok())
    }

    /// Sets all columns; `None` without RSP or RIP, with nothing done.
    pub fn set_registers(&mut self, registers: &KnownRegisters) -> Option<()> {
        registers[Registers::RSP].and(registers[RA])?;
        for (column, &value) in registers.iter().enumerate() {
            self.set(column, value);
        }
        Some(())
    }

    /// Forgets all but RSP and RIP.
    pub fn forget(&mut self) {
        self.known = (1 << Registers::RSP) | (1 << RA);
    }

    /// Moves to the caller, by a usual row.
    pub fn step_usual(&mut self, row: &Usual, stack: &impl StackMemory) -> Result<(), UserWalkError> {
        let cfa = self.get(row.cfa_register.into())?.wrapping_add_signed(row.cfa_offset.into());
        let at = cfa.wrapping_sub(8);
        let rip = stack.read_u64(at).ok_or_else(|| missing(stack, at))?;
        for (&column, &slot) in PRESERVED.iter().zip(&row.slots) {
            if slot != 0 {
                self.set(column, stack.read_u64(cfa.wrapping_add_signed(i64::from(slot) * 8)));
            }
        }
        self.set(Registers::RSP, Some(cfa));
        self.set(RA, Some(rip));
        Ok(())
    }

    /// Moves to the caller, by any row.
    pub fn step_general(
        &mut self,
        row: &General,
        table: &CfiTable,
        stack: &impl StackMemory,
        work: &mut WorkBudget,
    ) -> Result<(), UserWalkError> {
        let from = self.clone();
        let mut evaluate = |at, cfa| {
            let bytes = table.expression(at).ok_or(UserWalkError::BadCfi)?;
            expression::evaluate(bytes, cfa, &from, stack, work)
        };
        let read = |at| stack.read_u64(at).ok_or_else(|| missing(stack, at));
        let cfa = match row.cfa {
            CfaLocation::Register(register, offset) => from.get(register.into())?.wrapping_add_signed(offset),
            CfaLocation::Expression(at) => evaluate(at, None)?,
        };
        self.set(Registers::RSP, Some(cfa));
        for (column, rule) in row.rules.iter().enumerate() {
            let value = match *rule {
                ColumnRule::Same => continue,
                ColumnRule::Undefined => Err(UserWalkError::RegisterUnknown),
                ColumnRule::Saved(offset) => read(cfa.wrapping_add_signed(offset)),
                ColumnRule::Value(offset) => Ok(cfa.wrapping_add_signed(offset)),
                ColumnRule::Register(register) => from.get(register.into()),
                ColumnRule::SavedAt(at) => evaluate(at, Some(cfa)).and_then(read),
                ColumnRule::ValueOf(at) => evaluate(at, Some(cfa)),
            };
            match value {
                // Without one of these there is no caller; another register may never be needed.
                Err(why) if column == RA || column == Registers::RSP => return Err(why),
                value => self.set(column, value.ok()),
            }
        }
        Ok(())
    }
}

/// Returns the reason why there is no word at `at`.
pub(super) fn missing(stack: &impl StackMemory, at: u64) -> UserWalkError {
    if stack.is_not_present(at) { UserWalkError::StackNotPresent } else { UserWalkError::StackNotCopied }
}
