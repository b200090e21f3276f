//! Steps by the frame pointer: for kernels without ORC (CONFIG_UNWINDER_FRAME_POINTER), and out of code that
//! has been generated while the kernel ran and keeps RBP as a frame pointer (BPF programs and trampolines).
//!
//! ```text
//! RBP -> caller's RBP | return address | caller's frame ...
//! RBP with bit 0 set: RBP - 1 -> pt_regs (ENCODE_FRAME_POINTER, arch/x86/include/asm/frame.h)
//! ```

use super::KernelUnwinder;
use super::walk::{StepResult, WalkState, word};
use crate::frame::{KernelWalkError, UserRegisters, WalkEnd};
use crate::pt_regs::{self, PtRegs};
use symbols::StackMemory;

impl KernelUnwinder {
    /// Returns a step in a kernel that keeps frame pointers everywhere. The caller is missed when a function
    /// was interrupted before it had set up its frame.
    pub(super) fn step_by_frame_pointer(
        &self,
        state: &mut WalkState,
        stack: &impl StackMemory,
    ) -> StepResult {
        let old_sp = state.sp;
        if state.bp == 0 {
            return Ok(Some(self.bottom(state, stack)));
        }
        if state.bp & 1 == 0 {
            state.enter_frame(stack)?;
        } else {
            let regs = state.bp & !1;
            // A kernel thread has none: there are zeros in their place.
            if word(stack, regs.wrapping_add(pt_regs::IRET))? == 0 {
                return Ok(Some(WalkEnd::Complete));
            }
            let end = state.enter_registers(regs, stack)?;
            if end.is_some() {
                return Ok(end);
            }
        }
        state.check_direction(old_sp, false)
    }

    /// Steps out of code that is neither the image's nor a module's.
    pub(super) fn step_by_generated_frame(
        &self,
        state: &mut WalkState,
        stack: &impl StackMemory,
    ) -> StepResult {
        let (old_sp, old_bp) = (state.sp, state.bp);
        if old_bp < old_sp || old_bp & 7 != 0 {
            return Err(KernelWalkError::UnknownCode);
        }
        state.enter_frame(stack).map_err(|_| KernelWalkError::UnknownCode)?;
        if !self.is_code(state.ip) && !self.generated.contains(state.ip) && state.bp <= old_bp {
            return Err(KernelWalkError::UnknownCode);
        }
        state.check_direction(old_sp, true)
    }

    /// Returns the outermost frame: entry code clears RBP, and has the user's registers right above.
    fn bottom(&self, state: &WalkState, stack: &impl StackMemory) -> WalkEnd {
        let regs = PtRegs::read(stack, state.sp).filter(|_| self.in_entry_code(state.ip));
        regs.and_then(UserRegisters::new).map_or(WalkEnd::Complete, WalkEnd::User)
    }
}

impl WalkState {
    /// Moves to the frame that RBP points to.
    fn enter_frame(&mut self, stack: &impl StackMemory) -> Result<(), KernelWalkError> {
        let (bp, ip) = (word(stack, self.bp)?, word(stack, self.bp.wrapping_add(8))?);
        self.enter_caller(ip, self.bp.wrapping_add(16), bp);
        Ok(())
    }
}
