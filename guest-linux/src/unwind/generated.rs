//! Steps out of code that the kernel has generated (see [`crate::GeneratedCode`]).

use super::KernelUnwinder;
use super::rule::{RuleKind, UnwindRule};
use super::walk::{StepResult, WalkState};
use crate::frame::KernelWalkError;
use crate::generated::CallerRule;
use symbols::AddressKind;
use symbols::StackMemory;

impl KernelUnwinder {
    /// Steps out of code that is neither the image's nor a module's; `at` is the address that a rule must
    /// hold at.
    pub(super) fn step_out_of_generated_code(
        &self,
        at: u64,
        state: &mut WalkState,
        stack: &impl StackMemory,
    ) -> StepResult {
        let rule = match self.generated.rule_at(at, state.kind == AddressKind::Exact) {
            Some(CallerRule::As(original)) => self.rule_at(original),
            Some(CallerRule::Return(above)) => {
                Some(UnwindRule { sp_offset: i16::from(above) + 8, ..UnwindRule::NULL_CALL })
            }
            Some(CallerRule::Registers) => {
                Some(UnwindRule { kind: RuleKind::Regs, sp_offset: 0, exact: true, ..UnwindRule::NULL_CALL })
            }
            Some(CallerRule::Unknown) => None,
            // Code that has no name yet, or never gets one, is most likely BPF.
            Some(CallerRule::FramePointer) | None => return self.step_by_generated_frame(state, stack),
        };
        self.apply(&rule.ok_or(KernelWalkError::NoRule)?, state, stack)
    }
}
