//! HotSpot's frames among native ones: mappings of a process that also know code which HotSpot has generated.

use std::cell::RefCell;

use symbols::cfi::{CodeMapping, CodeMappings, GeneratedCaller, KnownRegisters};
use symbols::{CodeAddr, VirtAddr};
use symbols::{Registers, StackMemory};

use super::frames::JavaProcess;
use crate::ProcessMemory;
use crate::frames::ManagedFrame;

/// Mappings of a process and its Java virtual machine, for one walk.
#[derive(Debug)]
pub struct JavaUnwinding<'a, I, M> {
    images: &'a I,
    memory: &'a M,
    state: RefCell<WalkState<'a>>,
}

#[derive(Debug)]
struct WalkState<'a> {
    process: &'a mut JavaProcess,
    found: Vec<NativeJava>,
}

/// Frames of Java in a native frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeJava {
    /// Address of the native frame's code.
    pub at: CodeAddr,
    /// Stack pointer in the native frame.
    pub stack: u64,
    /// The frames of Java, innermost first.
    pub frames: Vec<ManagedFrame>,
}

impl<'a, I: CodeMappings, M: ProcessMemory> JavaUnwinding<'a, I, M> {
    /// Returns `images` with the rules of `process`, whose structures are read from `memory`.
    pub fn new(images: &'a I, process: &'a mut JavaProcess, memory: &'a M) -> Self {
        Self { images, memory, state: RefCell::new(WalkState { process, found: Vec::new() }) }
    }

    /// Returns the native frames of the walk that have frames of Java, innermost first.
    pub fn into_found(self) -> Vec<NativeJava> {
        self.state.into_inner().found
    }
}

impl<I: CodeMappings, M: ProcessMemory> CodeMappings for JavaUnwinding<'_, I, M> {
    fn find(&self, address: VirtAddr) -> Option<CodeMapping<'_>> {
        self.images.find(address)
    }

    fn code(&self, address: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.images.code(address, into)
    }

    fn generated_caller(
        &self,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> GeneratedCaller {
        // Never borrowed elsewhere: the walk does not call itself.
        let Ok(mut state) = self.state.try_borrow_mut() else { return GeneratedCaller::Unknown };
        let Some(java) = state.process.frames(self.memory, at, registers, stack) else {
            return GeneratedCaller::Unknown;
        };
        if !java.frames.is_empty() {
            let stack = registers.get(Registers::RSP).copied().flatten().unwrap_or(0);
            state.found.push(NativeJava { at, stack, frames: java.frames });
        }
        java.caller
    }
}
