//! Functions of frames, and the frames of stacks.

use std::collections::{HashMap, HashSet};

use crate::rows::{FLAT, FrameKind, FrameRow, InlinedRow, StackRow};

/// No function, frame or stack.
pub(super) const NONE: u32 = 0;
/// Limit of frames of one stack.
const DEEPEST: usize = 512;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Function {
    pub symbol: String,
    pub module: Option<String>,
}

/// Code of the run so far. Row ids are small numbers from 1, so they are indexes of lists.
#[derive(Debug, Default)]
pub(super) struct Code {
    functions: Vec<Function>,
    numbers: HashMap<Function, u32>,
    /// By frame id: its function's number from 1, [`NONE`] for a reason.
    frames: Vec<u32>,
    /// Functions that the compiler has copied into a frame, innermost first.
    inlined: HashMap<u32, Vec<u32>>,
    /// By stack id: the caller's stack, and the frame.
    stacks: Vec<(u32, u32)>,
    /// Frames that say that no stack was taken because of how the sample was taken.
    flat: HashSet<u32>,
}

impl Code {
    pub fn frame(&mut self, row: &FrameRow) {
        if row.kind == FrameKind::Reason && row.module.as_deref() == Some(FLAT) {
            self.flat.insert(row.id);
        }
        let number = match row.kind {
            FrameKind::Reason => NONE,
            FrameKind::Kernel | FrameKind::User | FrameKind::Managed => {
                let unnamed = || match row.module.as_deref() {
                    Some(module) => format!("{module}[0x{:x}]", row.address),
                    None => format!("0x{:x}", row.address),
                };
                self.number(row.symbol.clone().unwrap_or_else(unnamed), row.module.clone())
            }
        };
        place(&mut self.frames, row.id, number);
    }

    pub fn inlined(&mut self, row: &InlinedRow) {
        let module = self.of_frame(row.frame).and_then(|function| function.module.clone());
        let number = self.number(row.symbol.clone(), module);
        let list = self.inlined.entry(row.frame).or_default();
        // They are repeated if a frame gets a better name: from the innermost on.
        list.truncate(row.depth as usize);
        list.push(number);
    }

    pub fn stack(&mut self, row: &StackRow) {
        place(&mut self.stacks, row.id, (row.parent.unwrap_or(NONE), row.frame));
    }

    pub fn function(&self, number: u32) -> Option<&Function> {
        self.functions.get(number.checked_sub(1)? as usize)
    }

    /// Returns the innermost function of a frame.
    pub fn innermost(&self, frame: u32) -> u32 {
        match self.inlined.get(&frame).and_then(|list| list.first()) {
            Some(function) => *function,
            None => self.frames.get(frame as usize).copied().unwrap_or(NONE),
        }
    }

    /// Calls `each` with the functions at a frame and at those of its callers, innermost first; a stack
    /// without frames gives those at `frame`.
    pub fn functions(&self, frame: u32, stack: u32, mut each: impl FnMut(u32)) {
        let mut at = |frame: u32| {
            self.inlined.get(&frame).into_iter().flatten().for_each(|function| each(*function));
            each(self.frames.get(frame as usize).copied().unwrap_or(NONE));
        };
        if stack == NONE {
            return at(frame);
        }
        let mut next = stack;
        for _ in 0..DEEPEST {
            let Some(&(parent, frame)) = self.stacks.get(next as usize).filter(|_| next != NONE) else {
                return;
            };
            at(frame);
            next = parent;
        }
    }

    /// Returns true if no stack was taken because of how the sample was taken.
    pub fn is_flat(&self, stack: u32) -> bool {
        let at = |stack: u32| self.stacks.get(stack as usize).filter(|_| stack != NONE);
        let below = at(stack).and_then(|(parent, _)| at(*parent));
        below.is_some_and(|(_, frame)| self.flat.contains(frame))
    }

    /// Returns a function's number, [`NONE`] if no frame has it.
    pub fn find(&self, function: &Function) -> u32 {
        self.numbers.get(function).copied().unwrap_or(NONE)
    }

    pub fn count(&self) -> usize {
        self.functions.len()
    }

    fn of_frame(&self, frame: u32) -> Option<&Function> {
        self.function(*self.frames.get(frame as usize)?)
    }

    fn number(&mut self, symbol: String, module: Option<String>) -> u32 {
        let function = Function { symbol, module };
        if let Some(&number) = self.numbers.get(&function) {
            return number;
        }
        self.functions.push(function.clone());
        let number = u32::try_from(self.functions.len()).unwrap_or(NONE);
        self.numbers.insert(function, number);
        number
    }
}

/// Rows that are further than this after the last are not kept: ids follow one another.
const FURTHEST: usize = 1 << 20;

fn place<T: Clone + Default>(list: &mut Vec<T>, id: u32, thing: T) {
    let id = id as usize;
    if id >= list.len().saturating_add(FURTHEST) {
        return;
    }
    if id >= list.len() {
        list.resize(id + 1, T::default());
    }
    list[id] = thing;
}
