//! A walk from frame to frame.

use super::KernelUnwinder;
use super::rule::{RegisterBase, RuleKind, UnwindRule};
use crate::frame::{KernelWalkError, UserRegisters, WalkEnd};
use crate::pt_regs::{self, PtRegs, SavedMode};
use crate::stack::StackCopy;
use symbols::{AddressKind, CodeAddr, Registers, StackMemory, VirtAddr};

/// Times that the stack pointer may go down, at most: switches between the stacks of a CPU, of which there
/// are seven.
const MAX_SWITCHES: u32 = 8;
/// Bytes of `__switch_to_asm`, at most (arch/x86/entry/entry_64.S).
const SWITCH_BYTES: u64 = 512;
/// Return addresses that fill the return stack buffer (`RSB_CLEAR_LOOPS`).
const MAX_STUFFED: u64 = 32;
/// RBP and the return address in `struct inactive_task_frame` (arch/x86/include/asm/switch_to.h), in words.
const SAVED_BP: u64 = 5;
const SAVED_IP: u64 = 6;
/// Bytes of a retpoline thunk (`RETPOLINE_THUNK_SIZE`, arch/x86/include/asm/nospec-branch.h).
const THUNK: u64 = 32;
/// Number of them: one for each general register.
const THUNKS: u64 = 16;
/// Bytes of a call instruction.
const CALL: u64 = 5;
/// RAX, RDX, RDI, R10 and R13 in [`Registers::gpr`].
const AX: usize = 0;
const DX: usize = 1;
const DI: usize = 5;
const R10: usize = 10;
const R13: usize = 13;

/// A frame while a walk is at it.
#[derive(Debug, Clone)]
pub(super) struct WalkState {
    pub(super) ip: u64,
    pub(super) kind: AddressKind,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// All general registers, as far as `known`.
    gpr: [u64; 16],
    /// True in the first frame and after a `pt_regs`.
    known: bool,
    switches: u32,
}

/// Result of a step: an end, or, with `None`, the frame that the state is now at.
pub(super) type StepResult = Result<Option<WalkEnd>, KernelWalkError>;

/// Returns a word of the stack.
#[inline]
pub(super) fn word(stack: &impl StackMemory, at: u64) -> Result<u64, KernelWalkError> {
    stack.read_u64(at).ok_or(KernelWalkError::NotCopied)
}

impl KernelUnwinder {
    /// [`KernelUnwinder::walk`] from registers whose instruction pointer may be a return address: those of a
    /// task that does not run.
    pub fn walk_from(
        &self,
        (registers, kind): (&Registers, AddressKind),
        stack: &impl StackMemory,
        limit: usize,
        mut push: impl FnMut(CodeAddr),
    ) -> WalkEnd {
        let mut state = WalkState::new((registers, kind));
        for _ in 0..limit {
            // No call returns to a tracer's hook: the code before its first instruction is another
            // function's.
            let kind = if self.is_at_hook(&state) { AddressKind::Exact } else { state.kind };
            push(CodeAddr { address: VirtAddr(state.ip), kind });
            match self.step(&mut state, stack) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(reason) => return WalkEnd::Broken(reason),
            }
        }
        WalkEnd::Broken(KernelWalkError::Limit)
    }

    /// True where a tracer has replaced the return address.
    fn is_at_hook(&self, state: &WalkState) -> bool {
        state.kind == AddressKind::Return && state.ip != 0 && self.hooks.contains(&state.ip)
    }

    /// Returns the return address of the last function that was called with the registers which a sample in
    /// entry code finds saved: it is in the entry code of the system call, exception or interrupt that is
    /// left. All ways out of the kernel share the code that restores registers. Only this word below them,
    /// which is not overwritten before the next entry, shows which one it was. `None` outside of entry code,
    /// and where it was not copied.
    pub fn returned_to(&self, copy: &StackCopy) -> Option<CodeAddr> {
        let registers = copy.registers();
        if !self.in_entry_code(registers.rip) {
            return None;
        }
        let state = WalkState::new((registers, AddressKind::Exact));
        let here = self.rule_at(registers.rip).and_then(|rule| {
            let sp = state.previous_sp(&rule, copy).ok()?;
            match rule.kind {
                RuleKind::Regs => Some(sp),
                RuleKind::Partial => sp.checked_sub(pt_regs::IRET),
                RuleKind::Undefined | RuleKind::Bottom | RuleKind::Call => None,
            }
        });
        let is_kernels = |at: &u64| {
            let cs = at.checked_add(pt_regs::CS).and_then(|at| copy.read_u64(at));
            cs.and_then(SavedMode::from_code_segment) == Some(SavedMode::Kernel)
        };
        // A user's are always at the same place, though its iret frame may be copied to another stack.
        let at = here.filter(is_kernels).or_else(|| copy.user_registers_at())?;
        copy.read_u64(at.checked_sub(8)?).map(|at| CodeAddr::returning(VirtAddr(at)))
    }

    /// While it switches stacks, the kernel fills the processor's return stack buffer with calls
    /// (FILL_RETURN_BUFFER, arch/x86/include/asm/nospec-branch.h), which the rules get wrong. Above their
    /// return addresses is what is saved of a task that does not run. False where the rule leads to code.
    fn leave_stuffing(
        &self,
        state: &mut WalkState,
        stack: &impl StackMemory,
    ) -> Result<bool, KernelWalkError> {
        let inside = |at: u64| at.checked_sub(self.switch).is_some_and(|offset| offset < SWITCH_BYTES);
        if state.kind != AddressKind::Exact || !inside(state.ip) {
            return Ok(false);
        }
        let at = |slot: u64| state.sp.wrapping_add(slot * 8);
        let stuffed =
            (0..MAX_STUFFED).take_while(|&i| stack.read_u64(at(i)).is_some_and(inside)).count() as u64;
        if stuffed == 0 {
            let mut by_rule = state.clone();
            let known =
                self.rule_at(state.ip).is_some_and(|rule| self.apply(&rule, &mut by_rule, stack).is_ok());
            if known && self.is_code(by_rule.ip) {
                return Ok(false);
            }
        }
        let (bp, ip) = (word(stack, at(stuffed + SAVED_BP))?, word(stack, at(stuffed + SAVED_IP))?);
        state.enter_caller(ip, at(stuffed + SAVED_IP + 1), bp);
        Ok(true)
    }

    fn step(&self, state: &mut WalkState, stack: &impl StackMemory) -> StepResult {
        if self.is_at_hook(state) {
            return Err(KernelWalkError::ReturnHook);
        }
        if self.orc.is_err() {
            return self.step_by_frame_pointer(state, stack);
        }
        if self.leave_stuffing(state, stack)? {
            return Ok(None);
        }
        let at = CodeAddr { address: VirtAddr(state.ip), kind: state.kind }.lookup().0;
        let rule = if state.ip == 0 { Some(UnwindRule::NULL_CALL) } else { self.rule_at(at) };
        let rule = self.thunk_rule(state).or(rule);
        match rule {
            Some(rule) => self.apply(&rule, state, stack),
            None if self.is_code(at) => Err(KernelWalkError::NoRule),
            None => self.step_out_of_generated_code(at, state, stack),
        }
    }

    /// Returns the rule for a thunk of indirect calls: thunks have no rules for their ways
    /// (arch/x86/lib/retpoline.S). The one way that pushes starts with a call, whose return address it
    /// replaces by the target.
    fn thunk_rule(&self, state: &WalkState) -> Option<UnwindRule> {
        let offset = state.ip.checked_sub(self.thunks).filter(|offset| *offset < THUNKS * THUNK)?;
        let sp_offset = if offset % THUNK < CALL { 8 } else { 16 };
        (state.kind == AddressKind::Exact).then_some(UnwindRule { sp_offset, ..UnwindRule::NULL_CALL })
    }

    pub(super) fn apply(
        &self,
        rule: &UnwindRule,
        state: &mut WalkState,
        stack: &impl StackMemory,
    ) -> StepResult {
        match rule.kind {
            RuleKind::Bottom => return Ok(Some(WalkEnd::Complete)),
            RuleKind::Undefined if self.in_entry_code(state.ip) => return Err(KernelWalkError::EntryCode),
            RuleKind::Undefined => return Err(KernelWalkError::NoRule),
            RuleKind::Call | RuleKind::Regs | RuleKind::Partial => {}
        }
        let sp = state.previous_sp(rule, stack)?;
        let (old_sp, old_bp) = (state.sp, state.bp);
        let end = match rule.kind {
            RuleKind::Regs => state.enter_registers(sp, stack)?,
            RuleKind::Partial => match state.enter_iret_frame(sp, stack) {
                // A rule that is late by one instruction: all registers have been pushed already.
                Err(KernelWalkError::BadRegisters) if self.in_entry_code(state.ip) => {
                    state.enter_registers(old_sp, stack)?
                }
                step => step?,
            },
            _ => {
                (state.ip, state.sp, state.known) = (word(stack, sp.wrapping_sub(8))?, sp, false);
                None
            }
        };
        if end.is_some() {
            return Ok(end);
        }
        state.kind = if rule.exact { AddressKind::Exact } else { AddressKind::Return };
        let saved_at = |base: u64| word(stack, base.wrapping_add_signed(i64::from(rule.bp_offset)));
        match rule.bp {
            RegisterBase::PreviousSp => state.bp = saved_at(sp)?,
            RegisterBase::Bp => state.bp = saved_at(old_bp)?,
            RegisterBase::Undefined => {}
            _ => return Err(KernelWalkError::NoRule),
        }
        state.check_direction(old_sp, rule.kind == RuleKind::Call && rule.sp == RegisterBase::Sp)
    }
}

impl WalkState {
    fn new((registers, kind): (&Registers, AddressKind)) -> Self {
        Self {
            ip: registers.rip,
            kind,
            sp: registers.rsp(),
            bp: registers.rbp(),
            gpr: registers.gpr,
            known: kind == AddressKind::Exact,
            switches: 0,
        }
    }

    /// Breaks off when the stack pointer has gone down where it must not.
    pub(super) fn check_direction(&mut self, old_sp: u64, same_stack: bool) -> StepResult {
        if self.sp <= old_sp {
            self.switches += 1;
            if same_stack || self.switches > MAX_SWITCHES {
                return Err(KernelWalkError::StackPointer);
            }
        }
        Ok(None)
    }

    /// Returns the caller's stack pointer.
    fn previous_sp(&self, rule: &UnwindRule, stack: &impl StackMemory) -> Result<u64, KernelWalkError> {
        let offset = i64::from(rule.sp_offset);
        let register = |number: usize| {
            self.gpr.get(number).copied().filter(|_| self.known).ok_or(KernelWalkError::NoRegister)
        };
        match rule.sp {
            RegisterBase::Sp => Ok(self.sp.wrapping_add_signed(offset)),
            RegisterBase::Bp => Ok(self.bp.wrapping_add_signed(offset)),
            RegisterBase::SpIndirect => Ok(word(stack, self.sp)?.wrapping_add_signed(offset)),
            RegisterBase::BpIndirect => word(stack, self.bp.wrapping_add_signed(offset)),
            RegisterBase::R10 => register(R10),
            RegisterBase::R13 => register(R13),
            RegisterBase::Di => register(DI),
            RegisterBase::Dx => register(DX),
            RegisterBase::Ax => register(AX),
            RegisterBase::Undefined | RegisterBase::PreviousSp => Err(KernelWalkError::NoRule),
        }
    }

    /// Moves to a call's return, of which only these registers are known.
    pub(super) fn enter_caller(&mut self, ip: u64, sp: u64, bp: u64) {
        (self.ip, self.sp, self.bp, self.known, self.kind) = (ip, sp, bp, false, AddressKind::Return);
    }

    /// Moves to the frame whose registers are saved at `at`; ends if they are a user's.
    pub(super) fn enter_registers(&mut self, at: u64, stack: &impl StackMemory) -> StepResult {
        // Below the stack pointer there are none yet, or no longer: they are still, or again, in place.
        let regs = if self.known && at < self.sp {
            let mut now = Registers { gpr: self.gpr, rip: self.ip };
            now.gpr[Registers::RSP] = self.sp;
            PtRegs::read_in_entry_code(stack, at, &now)
        } else {
            PtRegs::read(stack, at)
        };
        let regs = regs.ok_or(KernelWalkError::NotCopied)?;
        if regs.mode().ok_or(KernelWalkError::BadRegisters)? == SavedMode::User {
            return Ok(UserRegisters::new(regs).map(WalkEnd::User));
        }
        let Registers { gpr, rip } = regs.registers;
        (self.ip, self.kind, self.gpr, self.known) = (rip, AddressKind::Exact, gpr, true);
        (self.sp, self.bp) = (regs.registers.rsp(), regs.registers.rbp());
        Ok(None)
    }

    /// Moves to the frame that was interrupted just before: only the iret frame at `at` has been pushed, and
    /// all other registers are still the interrupted code's.
    fn enter_iret_frame(&mut self, at: u64, stack: &impl StackMemory) -> StepResult {
        let field = |offset: u64| word(stack, at.wrapping_add(offset - pt_regs::IRET));
        let (ip, cs, sp) = (field(pt_regs::IRET)?, field(pt_regs::CS)?, field(pt_regs::SP)?);
        if SavedMode::from_code_segment(cs).ok_or(KernelWalkError::BadRegisters)? == SavedMode::User {
            let gpr = if self.known { self.gpr } else { [0; 16] };
            let mut registers = Registers { gpr, rip: ip };
            registers.gpr[Registers::RBP] = self.bp;
            registers.gpr[Registers::RSP] = sp;
            return Ok(Some(WalkEnd::User(UserRegisters { registers, orig_ax: u64::MAX })));
        }
        (self.ip, self.kind, self.sp) = (ip, AddressKind::Exact, sp);
        Ok(None)
    }
}
