//! The walk of a thread's control frames at a tick.

use symbols::VirtAddr;
use symbols::bytes::u64_at;

use super::layout::{BODY, LARGEST_FRAME, RubyLayout};
use super::objects::InternalKind;
use crate::ProcessMemory;
use crate::copies::{CopyPlan, CopyStep, NextStep, WordLoad};
use crate::frames::{EntryPlace, FrameWriter, MAX_FRAMES, WalkFailure, identity};
use crate::thread_local::ThreadVariable;

/// Bytes of a virtual machine's stack, at most (`RUBY_THREAD_VM_STACK_SIZE` is 1 MiB by default).
const MAX_STACK: u64 = 1 << 32;
/// Bytes of a thread's native stack below that stack, at most (`RUBY_THREAD_MACHINE_STACK_SIZE` is 1 MiB by
/// default).
const MAX_NATIVE: u64 = 64 << 20;
/// Members of `rb_execution_context_t`, and its bytes that are read: `vm_stack`, `vm_stack_size` in words,
/// `cfp`.
const STACK: usize = 0;
const STACK_SIZE: usize = 8;
const CURRENT: usize = 16;
const CONTEXT: usize = 24;
/// Members of `rb_control_frame_t`.
const PC: usize = 0;
const ISEQ: usize = 16;
const EP: usize = 32;
/// `rb_iseq_t.body`, and the bytes of an object that are read.
const ISEQ_BODY: usize = 16;
const OBJECT: usize = 40;
/// Members of `rb_iseq_constant_body`.
const ISEQ_SIZE: usize = 4;
pub(super) const ENCODED: usize = 8;
pub(super) const PATH: usize = 64;
pub(super) const LABEL: usize = 80;
/// Members of `rb_callable_method_entry_t`.
pub(super) const DEFINITION: usize = 16;
const CALLED_ID: usize = 24;
const OWNER: usize = 32;
/// Bytes of an environment's data before its end, and their members (`VM_ENV_DATA_INDEX_ME_CREF` and
/// `VM_ENV_DATA_INDEX_FLAGS`, from ep[-2] on).
const ENV: u64 = 16;
const METHOD: usize = 0;
const FLAGS: usize = 16;
const ENV_BYTES: usize = 24;
/// `vm_svar.cref_or_me`: the method that special variables lead to.
const BEHIND: usize = 8;
/// Bits of the flags with the kind of frame, and the kinds (`VM_FRAME_MAGIC_*`).
const KIND: u64 = 0x7fff_0001;
const C_FUNCTION: u64 = 0x5555_0001;
/// A block that C code implements, and the first frame of a thread: no function's.
const NO_FUNCTIONS: [u64; 2] = [0x6666_0001, 0x7999_0001];
/// Methods, blocks, classes, files, evaluated code, handlers of exceptions.
const FUNCTIONS: [u64; 6] = [0x1111_0001, 0x2222_0001, 0x3333_0001, 0x4444_0001, 0x7777_0001, 0x7888_0001];
/// `VM_FRAME_FLAG_FINISH`: the outermost frame of a `vm_exec`.
const FINISH: u64 = 0x20;

/// Positions and offsets for walks of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RubyPlan {
    /// `ruby_current_ec`.
    context: ThreadVariable,
    layout: RubyLayout,
}

/// Words of a code object that are read at a tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeWords {
    /// The object's kind.
    pub kind: InternalKind,
    /// `rb_iseq_t.body`, or the method's definition.
    pub body: u64,
    /// Start and bytes of the bytecode; 0 for methods.
    pub bytecode: (u64, u64),
    /// Hash of the words that show another object at the same address.
    pub identity: u32,
}

impl CodeWords {
    /// Reads the bytecode or method at `at`; [`WalkFailure::Inconsistent`] for other objects.
    pub(super) fn read(memory: &impl ProcessMemory, at: VirtAddr) -> Result<Self, WalkFailure> {
        let mut head = [0; OBJECT];
        read(memory, at, &mut head)?;
        let word = |offset: usize| u64_at(&head, offset).ok_or(WalkFailure::Inconsistent);
        match InternalKind::new(word(0)?) {
            Some(kind @ InternalKind::Method) => {
                let body = word(DEFINITION)?;
                let identity = identity([body, word(CALLED_ID)?, word(OWNER)?]);
                Ok(Self { kind, body, bytecode: (0, 0), identity })
            }
            Some(kind @ InternalKind::Bytecode) => {
                let body = word(ISEQ_BODY)?;
                let mut bytes = [0; BODY];
                read(memory, VirtAddr(body), &mut bytes)?;
                let word = |offset: usize| u64_at(&bytes, offset).ok_or(WalkFailure::Inconsistent);
                // An unsigned int, in words.
                let size = (word(ISEQ_SIZE)? & 0xffff_ffff) * 8;
                let identity = identity([body, word(ENCODED)?, word(PATH)?, word(LABEL)?]);
                Ok(Self { kind, body, bytecode: (word(ENCODED)?, size), identity })
            }
            _ => Err(WalkFailure::Inconsistent),
        }
    }
}

impl RubyPlan {
    pub(super) fn new(context: ThreadVariable, layout: RubyLayout) -> Self {
        Self { context, layout }
    }

    /// See [`crate::RuntimePlan::thread`]: the execution context of the fiber that runs on the thread.
    pub(crate) fn thread(&self, memory: &impl ProcessMemory, fs_base: u64) -> Option<VirtAddr> {
        let context = memory.read_u64(self.context.address(memory, fs_base)?)?;
        (context != 0).then_some(VirtAddr(context))
    }

    /// See [`crate::RuntimePlan::stack_above`]: threads but the first one have the stack of their frames on
    /// their native stack (`alloca` in `thread_start_func_2`, thread.c).
    pub(crate) fn stack_above(
        &self,
        memory: &impl ProcessMemory,
        context: VirtAddr,
        stack_pointer: u64,
    ) -> Option<VirtAddr> {
        let (stack, end) = frame_stack(memory, context).ok()?;
        let below = stack.checked_sub(stack_pointer)?;
        (below <= MAX_NATIVE).then_some(VirtAddr(end))
    }

    /// See [`crate::RuntimePlan::copies`].
    pub(crate) fn copies(&self) -> Option<CopyPlan> {
        let [context, end, frame, iseq, env, method] = [1, 2, 3, 4, 5, 6];
        let mut steps = self.context.copies(context);
        let first = u8::try_from(steps.len()).ok()?;
        let [above, frames, environment, code, body, of_method, behind, last] =
            [1, 2, 3, 4, 5, 6, 7, 8].map(|number| first + number);
        steps.extend([
            CopyStep::new(context, (0, CONTEXT), above)
                .load(WordLoad::new(end, STACK))
                .load(WordLoad { shift: 3, adds: true, ..WordLoad::new(end, STACK_SIZE) })
                .load(WordLoad::new(frame, CURRENT))
                .or(CopyStep::END),
            // The first native frames of a thread ([`Self::stack_above`]).
            CopyStep::new(end, (0, CopyStep::MAX_BYTES.into()), frames),
            CopyStep {
                advance: self.layout.frame,
                ..CopyStep::new(frame, (0, self.layout.frame.into()), environment)
            }
            .load(WordLoad::new(iseq, ISEQ))
            .load(WordLoad::new(env, EP))
            .or(CopyStep::END),
            CopyStep::new(env, (ENV.wrapping_neg(), ENV_BYTES), code)
                .load(WordLoad::new(method, METHOD))
                .or(last),
            CopyStep::new(iseq, (0, OBJECT), body).load(WordLoad::new(iseq, ISEQ_BODY)).or(of_method),
            CopyStep::new(iseq, (0, BODY), last),
            // A C function has a method, directly or through special variables.
            CopyStep::new(method, (0, OBJECT), behind).load(WordLoad::new(method, BEHIND)).or(last),
            CopyStep::new(method, (0, OBJECT), last),
            CopyStep {
                base: None,
                next: NextStep::Compare { registers: [frame, end], equal: CopyStep::END, other: frames },
                ..CopyStep::new(0, (0, 0), frames)
            },
        ]);
        CopyPlan::new(steps)
    }

    /// See [`crate::RuntimePlan::walk`].
    pub(crate) fn walk<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        context: VirtAddr,
        out: &mut FrameWriter<P>,
    ) -> Result<(), WalkFailure> {
        let (stack, end) = frame_stack(memory, context)?;
        let frame_at = context.checked_add(CURRENT as u64).ok_or(WalkFailure::Inconsistent)?;
        let mut frame = memory.read_u64(frame_at).ok_or(WalkFailure::NotPresent)?;
        let step = u64::from(self.layout.frame);
        if frame < stack || frame > end || !(end - frame).is_multiple_of(step) {
            return Err(WalkFailure::Inconsistent);
        }
        let (mut is_innermost, mut is_open) = (true, false);
        // Frames of no function are next to those of functions.
        for _ in 0..2 * MAX_FRAMES {
            if frame == end {
                return if is_open { out.entry(EntryPlace::Outermost) } else { Ok(()) };
            }
            match self.push(memory, VirtAddr(frame), is_innermost, out)? {
                FrameEnd::Native => is_open = false,
                FrameEnd::Open => is_open = true,
                FrameEnd::NoFunction => {}
            }
            (frame, is_innermost) = (frame + step, false);
        }
        Err(WalkFailure::TooDeep)
    }

    /// Adds the control frame at `at`.
    fn push<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        at: VirtAddr,
        is_innermost: bool,
        out: &mut FrameWriter<P>,
    ) -> Result<FrameEnd, WalkFailure> {
        let mut bytes = [0; LARGEST_FRAME];
        let bytes = bytes.get_mut(..self.layout.frame.into()).ok_or(WalkFailure::Inconsistent)?;
        read(memory, at, bytes)?;
        let word = |offset: usize| u64_at(bytes, offset).ok_or(WalkFailure::Inconsistent);
        let env = word(EP)?.checked_sub(ENV).ok_or(WalkFailure::Inconsistent)?;
        let mut data = [0; ENV_BYTES];
        read(memory, VirtAddr(env), &mut data)?;
        let [method, flags] = [METHOD, FLAGS].map(|at| u64_at(&data, at).unwrap_or(0));
        let kind = flags & KIND;
        if kind == C_FUNCTION {
            let (method, words) = method_of(memory, method)?;
            out.frame(method, VirtAddr(0), words.identity)?;
            return Ok(FrameEnd::Open);
        }
        if NO_FUNCTIONS.contains(&kind) {
            return Ok(FrameEnd::NoFunction);
        }
        if !FUNCTIONS.contains(&kind) {
            return Err(WalkFailure::Inconsistent);
        }
        let iseq = VirtAddr(word(ISEQ)?);
        let words = CodeWords::read(memory, iseq)?;
        if words.kind != InternalKind::Bytecode {
            return Err(WalkFailure::Inconsistent);
        }
        let is_compiled = match self.layout.jit_return {
            Some(at) => word(at.into())? != 0,
            None => false,
        };
        // The member is the next instruction: the one before it is executed (`calc_pos`, vm_backtrace.c).
        let (start, size) = words.bytecode;
        let next =
            word(PC)?.checked_sub(start).filter(|&next| next <= size && !(is_innermost && is_compiled));
        let instruction = next.and_then(|next| iseq.checked_add(next.saturating_sub(8)));
        out.frame(iseq, instruction.unwrap_or_default(), words.identity)?;
        if flags & FINISH == 0 {
            return Ok(FrameEnd::Open);
        }
        out.entry(EntryPlace::Interpreter)?;
        Ok(FrameEnd::Native)
    }
}

/// Position of a control frame among those of its native frame.
enum FrameEnd {
    /// It is the last one of its native frame.
    Native,
    /// Others of the same native frame follow.
    Open,
    /// It is the frame of no function.
    NoFunction,
}

/// Returns the method that a C function's environment leads to, directly or through special variables.
fn method_of(memory: &impl ProcessMemory, at: u64) -> Result<(VirtAddr, CodeWords), WalkFailure> {
    let mut head = [0; 16];
    read(memory, VirtAddr(at), &mut head)?;
    let kind = u64_at(&head, 0).and_then(InternalKind::new);
    let behind = u64_at(&head, BEHIND).filter(|_| kind == Some(InternalKind::SpecialVariables));
    let at = VirtAddr(behind.unwrap_or(at));
    let words = CodeWords::read(memory, at)?;
    if words.kind == InternalKind::Method { Ok((at, words)) } else { Err(WalkFailure::Inconsistent) }
}

/// Returns start and end of the stack of a context's frames.
fn frame_stack(memory: &impl ProcessMemory, context: VirtAddr) -> Result<(u64, u64), WalkFailure> {
    let mut head = [0; 16];
    read(memory, context, &mut head)?;
    let [stack, words] = [STACK, STACK_SIZE].map(|at| u64_at(&head, at).unwrap_or(0));
    let size = words.checked_mul(8).filter(|&size| size <= MAX_STACK);
    let end = size.and_then(|size| stack.checked_add(size)).ok_or(WalkFailure::Inconsistent)?;
    Ok((stack, end))
}

fn read(memory: &impl ProcessMemory, at: VirtAddr, into: &mut [u8]) -> Result<(), WalkFailure> {
    memory.read(at, into).ok_or(WalkFailure::NotPresent)
}
