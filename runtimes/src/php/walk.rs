//! The walk of the frames at a tick.

use symbols::VirtAddr;
use symbols::bytes::{u32_at, u64_at};

use super::layout::PhpLayout;
use crate::ProcessMemory;
use crate::copies::{CopyPlan, CopyStep, WordLoad};
use crate::frames::{EntryPlace, FrameWriter, MAX_FRAMES, WalkFailure, identity};

/// `zend_executor_globals.bailout`: the place of the outermost handler of errors, on the native stack of the
/// thread that runs PHP (Zend/zend_globals.h of 8.2 to 8.5).
const BAILOUT: u64 = 416;
/// Distance of that place from the stack pointer, at most. The stacks of other threads are further away: the
/// kernel keeps 128 MiB below the first thread's stack free of mappings (arch/x86/mm/mmap.c, Linux 6.12).
const MAX_STACK: u64 = 64 << 20;
/// Members of `zend_execute_data`, and its bytes that are read.
const OPLINE: usize = 0;
const FUNC: usize = 24;
const CALL_INFO: usize = 40;
const PREVIOUS: usize = 48;
const FRAME: usize = 56;
/// `ZEND_CALL_TOP`, a bit of the information about the call: the outermost frame of an `execute_ex`.
const TOP: u32 = 1 << 17;
/// Members of `zend_function`, of any type, and its bytes that are read.
const NAME: usize = 8;
const SCOPE: usize = 16;
const HEAD: usize = 24;
/// `ZEND_INTERNAL_FUNCTION`; `ZEND_USER_FUNCTION`, and `ZEND_EVAL_CODE`: code of PHP.
const INTERNAL: u8 = 1;
const USER: u8 = 2;
pub(super) const EVALUATED: u8 = 4;
/// Members of a `zend_op_array`, from the number of its instructions on, and the bytes that are read.
const OPCODES: usize = 8;
const FILE: usize = 72;
const USER_BYTES: usize = 80;
/// Bytes of `zend_op`.
pub(super) const INSTRUCTION: u64 = 32;

/// Positions and offsets for walks of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhpPlan {
    /// Address of `executor_globals`.
    globals: VirtAddr,
    layout: PhpLayout,
}

/// Words of a function that are read at a tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct FunctionWords {
    /// The function's type.
    pub kind: u8,
    /// Address of the name; 0 for code outside of functions.
    pub name: u64,
    /// Address of the class; 0 for functions outside of classes.
    pub scope: u64,
    /// Of code of PHP.
    pub code: Option<CodeWords>,
    /// Hash of the words that show another object at the same address.
    pub identity: u32,
}

/// Words of code of PHP.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeWords {
    /// Address and number of the instructions.
    pub instructions: (u64, u64),
    /// Address of the file's name.
    pub file: u64,
}

impl FunctionWords {
    /// Reads the function at `at`.
    pub(super) fn read(
        memory: &impl ProcessMemory,
        at: VirtAddr,
        layout: PhpLayout,
    ) -> Result<Self, WalkFailure> {
        let mut head = [0; HEAD];
        read(memory, at, &mut head)?;
        let [kind, ..] = head;
        let [name, scope] = [NAME, SCOPE].map(|at| u64_at(&head, at).unwrap_or(0));
        if kind == INTERNAL {
            let identity = identity([kind.into(), name, scope]);
            return Ok(Self { kind, name, scope, code: None, identity });
        }
        if ![USER, EVALUATED].contains(&kind) {
            return Err(WalkFailure::Inconsistent);
        }
        let mut bytes = [0; USER_BYTES];
        let at = at.checked_add(layout.instructions.into()).ok_or(WalkFailure::Inconsistent)?;
        read(memory, at, &mut bytes)?;
        let [opcodes, file] = [OPCODES, FILE].map(|at| u64_at(&bytes, at).unwrap_or(0));
        let instructions = (opcodes, u32_at(&bytes, 0).unwrap_or(0).into());
        let identity = identity([name, scope, opcodes, file]);
        Ok(Self { kind, name, scope, code: Some(CodeWords { instructions, file }), identity })
    }
}

impl PhpPlan {
    pub(super) fn new(globals: VirtAddr, layout: PhpLayout) -> Self {
        Self { globals, layout }
    }

    /// See [`crate::RuntimePlan::thread`]: the address of the pointer to the innermost frame, if the thread
    /// with this stack pointer runs PHP.
    pub(crate) fn thread(&self, memory: &impl ProcessMemory, stack: u64) -> Option<VirtAddr> {
        let bailout = memory.read_u64(self.globals.checked_add(BAILOUT)?)?;
        bailout.checked_sub(stack).filter(|&distance| distance < MAX_STACK)?;
        self.globals.checked_add(self.layout.current.into())
    }

    /// See [`crate::RuntimePlan::copies`].
    pub(crate) fn copies(&self) -> Option<CopyPlan> {
        const FRAME_AT: u8 = 1;
        const FUNCTION: u8 = 2;
        let variable = |offset: u64| self.globals.0.wrapping_add(offset);
        CopyPlan::new(vec![
            CopyStep::word_at(variable(BAILOUT), FRAME_AT, 1),
            CopyStep::word_at(variable(self.layout.current.into()), FRAME_AT, 2),
            CopyStep::new(FRAME_AT, (0, FRAME), 3)
                .load(WordLoad::new(FUNCTION, FUNC))
                .load(WordLoad::new(FRAME_AT, PREVIOUS))
                .or(CopyStep::END),
            // A mark between two calls has no function.
            CopyStep::new(FUNCTION, (0, HEAD), 4).or(2),
            CopyStep::new(FUNCTION, (self.layout.instructions.into(), USER_BYTES), 2),
        ])
    }

    /// See [`crate::RuntimePlan::walk`].
    pub(crate) fn walk<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        current: VirtAddr,
        out: &mut FrameWriter<P>,
    ) -> Result<(), WalkFailure> {
        let mut frame = memory.read_u64(current).ok_or(WalkFailure::NotPresent)?;
        // Frames of a fiber's caller are on another native stack.
        let (mut is_innermost, mut is_open, mut is_outside) = (true, false, false);
        // Frames of no function are next to those of functions.
        for _ in 0..2 * MAX_FRAMES {
            if frame == 0 {
                return if is_open { out.entry(EntryPlace::Outermost) } else { Ok(()) };
            }
            let mut bytes = [0; FRAME];
            read(memory, VirtAddr(frame), &mut bytes)?;
            let word = |at: usize| u64_at(&bytes, at).ok_or(WalkFailure::Inconsistent);
            let function = VirtAddr(word(FUNC)?);
            frame = word(PREVIOUS)?;
            // A mark that the interpreter puts between two calls.
            if function.0 == 0 {
                continue;
            }
            let words = FunctionWords::read(memory, function, self.layout)?;
            let Some(code) = words.code else {
                if words.name == 0 {
                    is_outside = true;
                } else {
                    out.frame(function, VirtAddr(0), words.identity)?;
                    (is_innermost, is_open) = (false, true);
                }
                continue;
            };
            let (start, count) = code.instructions;
            let offset =
                word(OPLINE)?.checked_sub(start).filter(|&at| at < count * INSTRUCTION && !is_innermost);
            let instruction = offset.and_then(|offset| function.checked_add(offset));
            out.frame(function, instruction.unwrap_or_default(), words.identity)?;
            (is_innermost, is_open) = (false, true);
            if u32_at(&bytes, CALL_INFO).unwrap_or(0) & TOP != 0 && !is_outside {
                out.entry(EntryPlace::Interpreter)?;
                is_open = false;
            }
        }
        Err(WalkFailure::TooDeep)
    }
}

fn read(memory: &impl ProcessMemory, at: VirtAddr, into: &mut [u8]) -> Result<(), WalkFailure> {
    memory.read(at, into).ok_or(WalkFailure::NotPresent)
}
