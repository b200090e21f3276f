//! Finds the caller of code without CFI by the instructions that this code executes until it returns.
//!
//! From the frame's own address the instructions are followed, both ways at a branch, breadth first, until
//! the first way that leaves:
//!
//! ```text
//! ret                           the word at RSP is where the caller goes on
//! jmp to code that has CFI      that code goes on in the same frame: its rules lead further
//! ```
//!
//! Only values that move between RSP, RBP, the other registers and the stack are computed; all else makes a
//! value unknown, and a way on which RSP is not known ends. Words that a way has stored on the stack are not
//! read back from the copy. Other memory is read as it is by now, which RSP and RBP never come from: it shows
//! where a dispatch goes, and all code that it may go to shares the frame.
//!
//! Code that never leaves is left as its entry says ([`super::code_entry`]).
//!
//! Where nothing better is found, the code after a jump to an unknown place is followed, too: it has the same
//! frame if it is of the same function, and one as deep if it is the next one's. Instructions: Intel SDM
//! volume 2.

use std::collections::{HashSet, VecDeque};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::UserWalkError;
use super::code::{LONGEST_CALL, ends_with_call};
use super::code_entry::exit_by_entry;
use super::frame::FrameState;
use super::images::{CodeMapping, CodeMappings, ImageCode};
use super::path_memory::{HEAD, PathMemory, PathStart, RememberedPath};
use super::row::RA;
use super::work_budget::WorkBudget;
use crate::address::{AddressKind, CodeAddr, VirtAddr};
use crate::registers::{Registers, StackMemory};

/// Instructions that are followed for one frame, at most.
const INSTRUCTIONS: usize = 1024;
/// Ways that wait to be followed, at most.
const WAYS: usize = 64;
/// Words that a way has stored and that are remembered, at most; a way that stores more ends.
const STORED: usize = 64;
/// Units of a walk's work for one instruction: 16,000 instructions in all.
const UNITS: usize = 16;
/// Bytes of code that are read at once.
const CHUNK: usize = 64;
/// Bytes of the longest instruction.
const LONGEST: usize = 15;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// DWARF columns that a called function keeps (System V ABI, AMD64 supplement 1.0, figure 3.4): code made at
/// run time need not keep more than the stack and, if it has one, the frame pointer.
const KEPT_BY_CALLS: [usize; 2] = [Registers::RBP, Registers::RSP];

/// Kind of an exit from the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeExit {
    /// The code returns.
    Return,
    /// The code continues in code that has CFI.
    Jump,
}

/// One way through the code: registers, and what it has stored on the stack.
#[derive(Debug, Clone)]
struct CodePath {
    state: FrameState,
    /// RSP at its beginning.
    begin: u64,
    stored: Vec<(u64, Option<u64>)>,
    /// Number of its last instruction.
    last: Option<usize>,
}

/// Effect of an instruction on a way.
enum StepEffect {
    /// The one after it follows.
    Through,
    /// It may jump to this address, too.
    Branch(u64),
    /// It jumps to this address.
    Jump(u64),
    /// It jumps to an unknown address.
    Unknown,
    /// The code is left.
    Exit(CodeExit),
    /// The way cannot be followed further.
    Lost,
}

/// Code that is followed after a jump to an unknown place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CodeAfterJump {
    Nothing,
    /// The code after the jump.
    Code,
}

/// Work and remembered paths of a search.
pub(super) struct SearchContext<'a> {
    pub work: &'a mut WorkBudget,
    pub paths: &'a mut PathMemory,
}

/// Returns the exit from the code at the RIP of `state`, and the registers then; `None` if no way is found.
pub(super) fn find_exit<I: CodeMappings>(
    state: &FrameState,
    place: AddressKind,
    after_jump: CodeAfterJump,
    stack: &impl StackMemory,
    images: &I,
    SearchContext { work, paths }: &mut SearchContext<'_>,
) -> Option<(CodeExit, FrameState)> {
    let first = CodePath::new(state, place);
    let mut head = [0; HEAD];
    // Code at the end of what can be read is not remembered.
    let known_by =
        images.code(state.rip(), &mut head).map(|()| PathStart { at: state.rip(), place, after_jump, head });
    if let Some(start) = &known_by {
        match paths.recall(start) {
            RememberedPath::Path(way) => {
                if let Some(left) = first.clone().follow(&way, stack, images, work) {
                    return Some(left);
                }
            }
            RememberedPath::Nothing => return None,
            RememberedPath::Unasked => {}
        }
    }
    let mut search = ExitSearch::new(first.clone());
    let found = search.run(after_jump, stack, images, work).ok()?;
    let passed = match &found {
        Some((way, _)) => Some(search.passed(way)),
        None if is_made(state.rip(), images) => exit_by_entry(state.rip(), images, work).ok()?,
        None => None,
    };
    if let Some(start) = known_by {
        paths.remember(start, passed.clone());
    }
    match found {
        Some((way, left)) => Some((left, way.state)),
        None => first.follow(&passed?, stack, images, work),
    }
}

/// True if the code was made at run time.
fn is_made(at: VirtAddr, images: &impl CodeMappings) -> bool {
    images.find(at).is_some_and(|image| matches!(image.code, ImageCode::Anonymous))
}

/// The search for a way out.
struct ExitSearch {
    /// Instructions that were followed, each with the number of the one before it on its way.
    followed: Vec<(Instruction, Option<usize>)>,
    seen: HashSet<u64>,
    waiting: VecDeque<(u64, CodePath)>,
}

impl ExitSearch {
    fn new(first: CodePath) -> Self {
        let start = first.state.rip().0;
        Self { followed: Vec::new(), seen: HashSet::from([start]), waiting: VecDeque::from([(start, first)]) }
    }

    /// Returns the first way out, breadth first.
    ///
    /// # Errors
    /// The walk's work is spent.
    fn run<I: CodeMappings>(
        &mut self,
        after_jump: CodeAfterJump,
        stack: &impl StackMemory,
        images: &I,
        work: &mut WorkBudget,
    ) -> Result<Option<(CodePath, CodeExit)>, UserWalkError> {
        let mut info = InstructionInfoFactory::new();
        while let Some((mut at, mut way)) = self.waiting.pop_front() {
            let mut code = CodeChunk::default();
            loop {
                if self.followed.len() == INSTRUCTIONS {
                    return Ok(None);
                }
                work.take(UNITS)?;
                let Some(instruction) = code.instruction(at, images) else { break };
                self.followed.push((instruction, way.last));
                way.last = Some(self.followed.len() - 1);
                at = instruction.next_ip();
                match way.step(&instruction, stack, images, &mut info) {
                    StepEffect::Through => {}
                    StepEffect::Exit(how) => return Ok(Some((way, how))),
                    StepEffect::Branch(target) => {
                        if self.waiting.len() < WAYS && self.seen.insert(target) {
                            self.waiting.push_back((target, way.clone()));
                            // The other way waits, too: the shortest way out comes first.
                            if self.seen.insert(at) {
                                self.waiting.push_back((at, way));
                            }
                            break;
                        }
                    }
                    StepEffect::Jump(target) => {
                        self.wait_for(target, way);
                        break;
                    }
                    StepEffect::Unknown if after_jump == CodeAfterJump::Code => {
                        self.wait_for(at, way);
                        break;
                    }
                    StepEffect::Unknown | StepEffect::Lost => break,
                }
            }
        }
        Ok(None)
    }

    fn wait_for(&mut self, at: u64, way: CodePath) {
        if self.seen.insert(at) {
            self.waiting.push_back((at, way));
        }
    }

    /// Returns the instructions of a way, in their order.
    fn passed(&self, way: &CodePath) -> Vec<Instruction> {
        let before =
            |&(_, before): &(Instruction, Option<usize>)| before.and_then(|at| self.followed.get(at));
        let last = way.last.and_then(|at| self.followed.get(at));
        let mut passed: Vec<_> =
            std::iter::successors(last, |at| before(at)).map(|&(instruction, _)| instruction).collect();
        passed.reverse();
        passed
    }
}

impl CodePath {
    fn new(state: &FrameState, place: AddressKind) -> Self {
        let mut way = Self { state: state.clone(), begin: state.rsp(), stored: Vec::new(), last: None };
        if place == AddressKind::Return {
            way.forget_but(&KEPT_BY_FUNCTIONS);
        }
        way
    }

    /// Goes a way that was found before; `None` where it does not lead out this time.
    fn follow<I: CodeMappings>(
        mut self,
        passed: &[Instruction],
        stack: &impl StackMemory,
        images: &I,
        work: &mut WorkBudget,
    ) -> Option<(CodeExit, FrameState)> {
        let mut info = InstructionInfoFactory::new();
        for (number, instruction) in passed.iter().enumerate() {
            work.take(UNITS).ok()?;
            let next = passed.get(number + 1).map(Instruction::ip);
            match self.step(instruction, stack, images, &mut info) {
                StepEffect::Exit(how) => return Some((how, self.state)),
                StepEffect::Through | StepEffect::Branch(_) | StepEffect::Unknown => {}
                StepEffect::Jump(target) if next == Some(target) => {}
                StepEffect::Jump(_) | StepEffect::Lost => return None,
            }
        }
        None
    }

    fn step<I: CodeMappings>(
        &mut self,
        instruction: &Instruction,
        stack: &impl StackMemory,
        images: &I,
        info: &mut InstructionInfoFactory,
    ) -> StepEffect {
        match instruction.flow_control() {
            FlowControl::Next => {
                let known = self.compute(instruction, stack, images, info);
                if known.is_some() && self.state.get(Registers::RSP).is_ok() {
                    StepEffect::Through
                } else {
                    StepEffect::Lost
                }
            }
            FlowControl::ConditionalBranch => StepEffect::Branch(instruction.near_branch_target()),
            // Takes the address of the code: the called code does not return.
            FlowControl::Call if instruction.near_branch_target() == instruction.next_ip() => {
                StepEffect::Lost
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let target = match instruction.near_branch_target() {
                    0 => self.target(instruction, images),
                    target => Some(target),
                };
                let is_function = target
                    .and_then(|target| images.find(VirtAddr(target)))
                    .is_some_and(|image| matches!(image.code, ImageCode::Cfi(_) | ImageCode::NoCfi));
                self.forget_but(if is_function { &KEPT_BY_FUNCTIONS } else { &KEPT_BY_CALLS });
                StepEffect::Through
            }
            FlowControl::Return => self
                .ret(instruction, stack, images)
                .map_or(StepEffect::Lost, |()| StepEffect::Exit(CodeExit::Return)),
            FlowControl::UnconditionalBranch => self.jump(VirtAddr(instruction.near_branch_target()), images),
            FlowControl::IndirectBranch => match self.target(instruction, images) {
                None => StepEffect::Unknown,
                Some(target) => match self.jump(VirtAddr(target), images) {
                    // A jump by a register, within code made at run time, may be a return to a caller, whose
                    // own frame must not be passed over. A jump by a table or the like is not a return.
                    StepEffect::Jump(_) if instruction.op0_kind() == OpKind::Register => StepEffect::Lost,
                    next => next,
                },
            },
            _ => StepEffect::Lost,
        }
    }

    fn jump<I: CodeMappings>(&mut self, target: VirtAddr, images: &I) -> StepEffect {
        match images.find(target) {
            Some(CodeMapping { bias, code: ImageCode::Cfi(table), .. })
                if table.function_start(target.linked(bias)).is_some() =>
            {
                // A function is entered with the stack as it was, or higher.
                if self.rsp() < self.begin {
                    return StepEffect::Lost;
                }
                self.state.set(RA, Some(target.0));
                StepEffect::Exit(CodeExit::Jump)
            }
            // Files have code that their tables do not cover, too.
            Some(CodeMapping {
                code: ImageCode::Anonymous | ImageCode::NoCfi | ImageCode::Cfi(_), ..
            }) => StepEffect::Jump(target.0),
            _ => StepEffect::Lost,
        }
    }

    /// Returns the target of an indirect jump.
    fn target<I: CodeMappings>(&self, instruction: &Instruction, images: &I) -> Option<u64> {
        match instruction.op0_kind() {
            OpKind::Register => self.get(instruction.op0_register()),
            OpKind::Memory if instruction.segment_prefix() == Register::None => {
                let mut word = [0; 8];
                images.code(VirtAddr(self.address(instruction)?), &mut word)?;
                Some(u64::from_le_bytes(word))
            }
            _ => None,
        }
    }

    /// Returns to an address that follows a call, or is in code made at run time, which may push it by hand.
    fn ret<I: CodeMappings>(
        &mut self,
        instruction: &Instruction,
        stack: &impl StackMemory,
        images: &I,
    ) -> Option<()> {
        let rsp = self.rsp();
        let rip = VirtAddr(self.load(rsp, stack)?);
        let image = images.find(CodeAddr::returning(rip).lookup())?;
        let mut code = [0; LONGEST_CALL];
        let call =
            images.code(rip.checked_sub(LONGEST_CALL as u64)?, &mut code).map(|()| ends_with_call(&code));
        (call == Some(true) || matches!(image.code, ImageCode::Anonymous)).then_some(())?;
        let dropped = if instruction.op_count() == 1 { u64::from(instruction.immediate16()) } else { 0 };
        self.state.set(Registers::RSP, Some(rsp.checked_add(8)?.checked_add(dropped)?));
        self.state.set(RA, Some(rip.0));
        // What is above is what the caller had, as far as it is kept.
        for column in 0..RA {
            if !KEPT_BY_FUNCTIONS.contains(&column) {
                self.state.set(column, None);
            }
        }
        Some(())
    }

    /// Computes what the instruction does to registers and stack; `None` if the way ends.
    fn compute<I: CodeMappings>(
        &mut self,
        instruction: &Instruction,
        stack: &impl StackMemory,
        images: &I,
        info: &mut InstructionInfoFactory,
    ) -> Option<()> {
        let wide = |register: Register| register.is_gpr64().then(|| column(register)).flatten();
        match instruction.mnemonic() {
            Mnemonic::Push if instruction.stack_pointer_increment() == -8 => {
                let value = match instruction.op0_kind() {
                    OpKind::Register => self.get(instruction.op0_register()),
                    _ => None,
                };
                let rsp = self.rsp().checked_sub(8)?;
                self.state.set(Registers::RSP, Some(rsp));
                return self.store(rsp, value);
            }
            Mnemonic::Pop if instruction.code() == Code::Pop_r64 => {
                let rsp = self.rsp();
                let value = self.load(rsp, stack);
                self.state.set(Registers::RSP, Some(rsp.checked_add(8)?));
                self.state.set(column(instruction.op0_register())?, value);
                return Some(());
            }
            Mnemonic::Leave if instruction.code() == Code::Leaveq => {
                let rbp = self.state.get(Registers::RBP).ok()?;
                self.state.set(Registers::RSP, Some(rbp.checked_add(8)?));
                self.state.set(Registers::RBP, self.load(rbp, stack));
                return Some(());
            }
            Mnemonic::Add | Mnemonic::Sub if wide(instruction.op0_register()).is_some() => {
                let to = wide(instruction.op0_register())?;
                let by = immediate(instruction, 1);
                let value = self.state.get(to).ok().zip(by).map(|(value, by)| {
                    if instruction.mnemonic() == Mnemonic::Add {
                        value.wrapping_add(by)
                    } else {
                        value.wrapping_sub(by)
                    }
                });
                self.state.set(to, value);
                return Some(());
            }
            Mnemonic::Lea if wide(instruction.op0_register()).is_some() => {
                let value = self.address(instruction);
                self.state.set(wide(instruction.op0_register())?, value);
                return Some(());
            }
            Mnemonic::Mov if wide(instruction.op0_register()).is_some() => {
                let to = column(instruction.op0_register())?;
                let value = match instruction.op1_kind() {
                    OpKind::Register => self.get(instruction.op1_register()),
                    OpKind::Memory if instruction.segment_prefix() == Register::None => {
                        let at = self.address(instruction);
                        let of_frame = [Registers::RSP, Registers::RBP].contains(&to);
                        at.and_then(|at| {
                            self.load(at, stack)
                                .or_else(|| if of_frame { None } else { self.fetch(at, images) })
                        })
                    }
                    _ => immediate(instruction, 1),
                };
                self.state.set(to, value);
                return Some(());
            }
            _ => {}
        }
        self.other(instruction, info)
    }

    /// Forgets what any other instruction writes.
    fn other(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        let used = info.info(instruction);
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        // By the registers before the instruction.
        for memory in used.used_memory().iter().filter(|memory| writes(memory.access())) {
            let of_stack = [Register::RSP, Register::RBP].contains(&memory.base());
            if !of_stack || memory.index() != Register::None {
                continue;
            }
            let at = self.get(memory.base())?.wrapping_add(memory.displacement());
            let bytes = if memory.memory_size() == MemorySize::Unknown {
                64
            } else {
                memory.memory_size().size() as u64
            };
            for word in 0..bytes.div_ceil(8).max(1) {
                self.store(at.wrapping_add(word * 8), None)?;
            }
        }
        for register in used.used_registers().iter().filter(|register| writes(register.access())) {
            if let Some(column) = column(register.register().full_register()) {
                self.state.set(column, None);
            }
        }
        Some(())
    }

    fn rsp(&self) -> u64 {
        self.state.rsp()
    }

    fn get(&self, register: Register) -> Option<u64> {
        if !register.is_gpr64() {
            return None;
        }
        self.state.get(column(register)?).ok()
    }

    /// Returns the address of a memory operand.
    fn address(&self, instruction: &Instruction) -> Option<u64> {
        if instruction.is_ip_rel_memory_operand() {
            return Some(instruction.ip_rel_memory_address());
        }
        let part = |register| if register == Register::None { Some(0) } else { self.get(register) };
        let index =
            part(instruction.memory_index())?.wrapping_mul(u64::from(instruction.memory_index_scale()));
        let base = part(instruction.memory_base())?;
        Some(base.wrapping_add(index).wrapping_add(instruction.memory_displacement64()))
    }

    fn load(&self, at: u64, stack: &impl StackMemory) -> Option<u64> {
        let overlaps = |stored: u64| at.abs_diff(stored) < 8;
        match self.stored.iter().rev().find(|(stored, _)| overlaps(*stored)) {
            Some(&(stored, value)) if stored == at => value,
            Some(_) => None,
            None => stack.read_u64(at),
        }
    }

    /// Returns a word of memory that the way has not stored to and that is not of the copied stack, as it is
    /// by now.
    fn fetch<I: CodeMappings>(&self, at: u64, images: &I) -> Option<u64> {
        if self.stored.iter().any(|(stored, _)| at.abs_diff(*stored) < 8) {
            return None;
        }
        let mut word = [0; 8];
        images.code(VirtAddr(at), &mut word)?;
        Some(u64::from_le_bytes(word))
    }

    fn store(&mut self, at: u64, value: Option<u64>) -> Option<()> {
        if self.stored.len() == STORED {
            return None;
        }
        self.stored.push((at, value));
        Some(())
    }

    fn forget_but(&mut self, kept: &[usize]) {
        for column in (0..RA).filter(|column| !kept.contains(column)) {
            self.state.set(column, None);
        }
    }
}

/// DWARF columns that a function hands back as it got them: RBX, RBP, RSP, R12 to R15.
const KEPT_BY_FUNCTIONS: [usize; 7] = [3, Registers::RBP, Registers::RSP, 12, 13, 14, 15];

/// Returns the DWARF column of a general register of 64 bits.
fn column(register: Register) -> Option<usize> {
    // In the order of the instruction set: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    const COLUMNS: [usize; 16] =
        [0, 2, 1, 3, Registers::RSP, Registers::RBP, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    register.is_gpr64().then(|| COLUMNS.get(register.number()).copied()).flatten()
}

/// Returns an immediate operand.
fn immediate(instruction: &Instruction, operand: u32) -> Option<u64> {
    let kind = instruction.op_kind(operand);
    let is_immediate = !matches!(kind, OpKind::Register | OpKind::Memory);
    is_immediate.then(|| instruction.try_immediate(operand).ok()).flatten()
}

/// Code that has been read.
#[derive(Debug)]
struct CodeChunk {
    start: u64,
    len: usize,
    bytes: [u8; CHUNK],
}

impl Default for CodeChunk {
    fn default() -> Self {
        Self { start: 0, len: 0, bytes: [0; CHUNK] }
    }
}

impl CodeChunk {
    /// Returns the instruction at `at`, if it is one.
    fn instruction(&mut self, at: u64, images: &impl CodeMappings) -> Option<Instruction> {
        self.decode(at).or_else(|| {
            // To the end of the page, or, for an instruction that continues in the next one, beyond it.
            let page = crate::bytes::index(PAGE - at % PAGE).min(CHUNK);
            [CHUNK, page, LONGEST].into_iter().find_map(|len| {
                (self.start, self.len) = (at, 0);
                images.code(VirtAddr(at), self.bytes.get_mut(..len)?)?;
                self.len = len;
                self.decode(at)
            })
        })
    }

    fn decode(&self, at: u64) -> Option<Instruction> {
        let offset = crate::bytes::index(at.checked_sub(self.start)?);
        let bytes = self.bytes.get(..self.len)?.get(offset..)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}
