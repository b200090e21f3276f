//! A walk from frame to frame.

use super::rule::{Base, Kind, Rule};
use super::{Broken, FrameKind, KernelFrame, KernelUnwinder, UserRegisters, WalkEnd};
use crate::address::VirtAddr;
use crate::pt_regs::{self, PtRegs};
use crate::registers::{Registers, StackMemory};

/// Times that the stack pointer may go down, at most: switches between the stacks of a CPU, of which there are seven.
const MAX_SWITCHES: u32 = 8;
/// RDX, RDI, R10 and R13 in [`Registers::gpr`].
const DX: usize = 1;
const DI: usize = 5;
const R10: usize = 10;
const R13: usize = 13;

/// A frame while a walk is at it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ip: u64,
    pub(super) kind: FrameKind,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// All general registers, as far as `known`.
    gpr: [u64; 16],
    /// True in the first frame and behind a `pt_regs`.
    known: bool,
    switches: u32,
}

/// Where a step leads: an end, or, with `None`, to the frame that the state is now at.
pub(super) type Step = Result<Option<WalkEnd>, Broken>;

/// A word of the stack.
#[inline]
pub(super) fn word(stack: &impl StackMemory, at: u64) -> Result<u64, Broken> {
    stack.read_u64(at).ok_or(Broken::NotCopied)
}

impl KernelUnwinder {
    /// [`KernelUnwinder::walk`] from registers whose instruction pointer may be a return address: those of a task that
    /// does not run.
    pub fn walk_from(
        &self,
        (registers, kind): (&Registers, FrameKind),
        stack: &impl StackMemory,
        limit: usize,
        mut push: impl FnMut(KernelFrame),
    ) -> WalkEnd {
        let mut state = State {
            ip: registers.rip,
            kind,
            sp: registers.rsp(),
            bp: registers.rbp(),
            gpr: registers.gpr,
            known: kind == FrameKind::Exact,
            switches: 0,
        };
        for _ in 0..limit {
            push(KernelFrame { address: VirtAddr(state.ip), kind: state.kind });
            match self.step(&mut state, stack) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(reason) => return WalkEnd::Broken(reason),
            }
        }
        WalkEnd::Broken(Broken::Limit)
    }

    fn step(&self, state: &mut State, stack: &impl StackMemory) -> Step {
        if state.kind == FrameKind::Return && state.ip != 0 && self.hooks.contains(&state.ip) {
            return Err(Broken::ReturnHook);
        }
        if self.orc.is_err() {
            return self.step_by_frame_pointer(state, stack);
        }
        let at = match state.kind {
            FrameKind::Exact => state.ip,
            FrameKind::Return => state.ip.wrapping_sub(1),
        };
        let rule = if state.ip == 0 { Some(Rule::NULL_CALL) } else { self.rule_at(at) };
        match rule {
            Some(rule) => self.apply(&rule, state, stack),
            None if self.is_code(at) => Err(Broken::NoRule),
            None => self.step_out_of_generated_code(state, stack),
        }
    }

    fn apply(&self, rule: &Rule, state: &mut State, stack: &impl StackMemory) -> Step {
        match rule.kind {
            Kind::Bottom => return Ok(Some(WalkEnd::Complete)),
            Kind::Undefined if self.in_entry_code(state.ip) => return Err(Broken::EntryCode),
            Kind::Undefined => return Err(Broken::NoRule),
            Kind::Call | Kind::Regs | Kind::Partial => {}
        }
        let sp = state.previous_sp(rule, stack)?;
        let (old_sp, old_bp) = (state.sp, state.bp);
        let end = match rule.kind {
            Kind::Regs => state.to_registers(sp, stack)?,
            Kind::Partial => state.to_iret_frame(sp, stack)?,
            _ => {
                (state.ip, state.sp, state.known) = (word(stack, sp.wrapping_sub(8))?, sp, false);
                None
            }
        };
        if end.is_some() {
            return Ok(end);
        }
        state.kind = if rule.exact { FrameKind::Exact } else { FrameKind::Return };
        let saved_at = |base: u64| word(stack, base.wrapping_add_signed(i64::from(rule.bp_offset)));
        match rule.bp {
            Base::PreviousSp => state.bp = saved_at(sp)?,
            Base::Bp => state.bp = saved_at(old_bp)?,
            Base::Undefined => {}
            _ => return Err(Broken::NoRule),
        }
        state.check_direction(old_sp, rule.kind == Kind::Call && rule.sp == Base::Sp)
    }
}

impl State {
    /// Breaks off when the stack pointer has gone down where it must not.
    pub(super) fn check_direction(&mut self, old_sp: u64, same_stack: bool) -> Step {
        if self.sp <= old_sp {
            self.switches += 1;
            if same_stack || self.switches > MAX_SWITCHES {
                return Err(Broken::StackPointer);
            }
        }
        Ok(None)
    }

    /// The caller's stack pointer.
    fn previous_sp(&self, rule: &Rule, stack: &impl StackMemory) -> Result<u64, Broken> {
        let offset = i64::from(rule.sp_offset);
        let register =
            |number: usize| self.gpr.get(number).copied().filter(|_| self.known).ok_or(Broken::NoRegister);
        match rule.sp {
            Base::Sp => Ok(self.sp.wrapping_add_signed(offset)),
            Base::Bp => Ok(self.bp.wrapping_add_signed(offset)),
            Base::SpIndirect => Ok(word(stack, self.sp)?.wrapping_add_signed(offset)),
            Base::BpIndirect => word(stack, self.bp.wrapping_add_signed(offset)),
            Base::R10 => register(R10),
            Base::R13 => register(R13),
            Base::Di => register(DI),
            Base::Dx => register(DX),
            Base::Undefined | Base::PreviousSp => Err(Broken::NoRule),
        }
    }

    /// To a call's return, of which no more than this is known.
    pub(super) fn to_caller(&mut self, ip: u64, sp: u64, bp: u64) {
        (self.ip, self.sp, self.bp, self.known, self.kind) = (ip, sp, bp, false, FrameKind::Return);
    }

    /// To the frame whose registers are saved at `at`; the end if they are a user's.
    pub(super) fn to_registers(&mut self, at: u64, stack: &impl StackMemory) -> Step {
        let regs = PtRegs::read(stack, at).ok_or(Broken::NotCopied)?;
        if let Some(user) = UserRegisters::new(regs) {
            return Ok(Some(WalkEnd::User(user)));
        }
        let Registers { gpr, rip } = regs.registers;
        (self.ip, self.kind, self.gpr, self.known) = (rip, FrameKind::Exact, gpr, true);
        (self.sp, self.bp) = (regs.registers.rsp(), regs.registers.rbp());
        Ok(None)
    }

    /// To the frame that was interrupted just before: nothing but the iret frame at `at` has been pushed, and all other
    /// registers are still the interrupted code's.
    fn to_iret_frame(&mut self, at: u64, stack: &impl StackMemory) -> Step {
        let field = |offset: u64| word(stack, at.wrapping_add(offset - pt_regs::IRET));
        let (ip, cs, sp) = (field(pt_regs::IRET)?, field(pt_regs::CS)?, field(pt_regs::SP)?);
        if pt_regs::is_user(cs) {
            let gpr = if self.known { self.gpr } else { [0; 16] };
            let mut registers = Registers { gpr, rip: ip };
            registers.gpr[Registers::RBP] = self.bp;
            registers.gpr[Registers::RSP] = sp;
            return Ok(Some(WalkEnd::User(UserRegisters { registers, orig_ax: u64::MAX })));
        }
        (self.ip, self.kind, self.sp) = (ip, FrameKind::Exact, sp);
        Ok(None)
    }
}
