//! The runtimes whose frames are read at a tick, as one kind.

use std::fmt;
use std::ops::Range;

use symbols::VirtAddr;
use symbols::elf::ElfFile;

use crate::copies::CopyPlan;
use crate::frames::{self, ManagedFrame};
use crate::php::{PhpBinary, PhpNames, PhpPlan, may_be_php};
use crate::python::{PythonBinary, PythonNames, PythonPlan, may_be_python};
use crate::ruby::{RubyBinary, RubyNames, RubyPlan, may_be_ruby};
use crate::{ManagedCode, ProcessMemory};

/// Language whose runtime keeps frames that are read at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuntimeLanguage {
    /// CPython.
    Python,
    /// CRuby.
    Ruby,
    /// PHP.
    Php,
}

impl RuntimeLanguage {
    /// Returns the module of all functions of the language.
    pub fn module(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Ruby => "ruby",
            Self::Php => "php",
        }
    }
}

impl fmt::Display for RuntimeLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Python => "Python",
            Self::Ruby => "Ruby",
            Self::Php => "PHP",
        })
    }
}

/// Reasons why the frames of a runtime cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LayoutError {
    /// Its structures have other offsets than those of the versions that are known: major and minor version.
    #[error("version {1}.{2} is not supported")]
    Version(RuntimeLanguage, u8, u8),
    /// CPython without the global interpreter lock.
    #[error("builds without the global interpreter lock are not supported")]
    FreeThreaded,
    /// PHP with thread safety (ZTS).
    #[error("builds with thread safety are not supported")]
    ThreadSafe,
    /// Its code does not show where it keeps the state of each thread.
    #[error("this build is not supported: its variable of each thread was not found")]
    NoThreadVariable,
    /// Its own tables are not present in memory: it may not have started yet.
    #[error("its tables are not present")]
    NotPresent,
    /// Its own table of offsets is not one of its version.
    #[error("its table of offsets is not valid")]
    Invalid,
}

/// Program or library that is a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeBinary {
    /// CPython.
    Python(PythonBinary),
    /// CRuby.
    Ruby(RubyBinary),
    /// PHP.
    Php(PhpBinary),
}

impl RuntimeBinary {
    /// Returns true if a file of this name may be a runtime. Only such files are opened.
    pub fn may_be(name: &str) -> bool {
        may_be_python(name) || may_be_ruby(name) || may_be_php(name)
    }

    /// Returns the runtime in `elf`, the file `name`; `None` if it has none.
    pub fn read(elf: &ElfFile, name: &str) -> Option<Self> {
        let python = || PythonBinary::read(elf, name).map(Self::Python);
        let ruby = || RubyBinary::read(elf).map(Self::Ruby);
        let php = || PhpBinary::read(elf).map(Self::Php);
        let python = may_be_python(name).then(python).flatten();
        let ruby = || may_be_ruby(name).then(ruby).flatten();
        python.or_else(ruby).or_else(|| may_be_php(name).then(php).flatten())
    }

    /// Returns the language.
    pub fn language(&self) -> RuntimeLanguage {
        match self {
            Self::Python(_) => RuntimeLanguage::Python,
            Self::Ruby(_) => RuntimeLanguage::Ruby,
            Self::Php(_) => RuntimeLanguage::Php,
        }
    }

    /// Returns the addresses in the file of the function that interprets code, where a symbol shows it.
    pub fn interpreter(&self) -> Option<Range<u64>> {
        match self {
            Self::Python(binary) => binary.interpreter(),
            Self::Ruby(_) => None,
            Self::Php(binary) => binary.interpreter(),
        }
    }

    /// Returns the plan for walks of a process that has mapped this file at `bias`, and its reader of names.
    pub fn plan(
        &self,
        memory: &impl ProcessMemory,
        bias: u64,
    ) -> Result<(RuntimePlan, RuntimeNames), LayoutError> {
        Ok(match self {
            Self::Python(binary) => {
                let (plan, names) = binary.plan(memory, bias)?;
                (RuntimePlan::Python(plan), RuntimeNames::Python(names))
            }
            Self::Ruby(binary) => {
                let (plan, names) = binary.plan(memory, bias)?;
                (RuntimePlan::Ruby(plan), RuntimeNames::Ruby(names))
            }
            Self::Php(binary) => {
                let (plan, names) = binary.plan(memory, bias)?;
                (RuntimePlan::Php(plan), RuntimeNames::Php(names))
            }
        })
    }
}

/// Registers of a thread in user mode, by which a runtime's state of the thread is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// FS base: the address of the thread's own variables.
    pub fs_base: u64,
    /// Stack pointer.
    pub stack_pointer: u64,
}

/// Positions and layout of the runtime of one process: what a walk of one of its threads needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimePlan {
    /// CPython.
    Python(PythonPlan),
    /// CRuby.
    Ruby(RubyPlan),
    /// PHP.
    Php(PhpPlan),
}

impl RuntimePlan {
    /// Returns the runtime's state of a thread, by which [`RuntimePlan::walk`] finds its frames; `None` for a
    /// thread that the runtime does not know. `hint` is an earlier result for the same FS base, which saves
    /// the search if it still holds. Bounded reads, no allocation.
    pub fn thread(
        &self,
        memory: &impl ProcessMemory,
        registers: ThreadRegisters,
        hint: Option<VirtAddr>,
    ) -> Option<VirtAddr> {
        match self {
            Self::Python(plan) => plan.thread(memory, registers.fs_base, hint),
            Self::Ruby(plan) => plan.thread(memory, registers.fs_base),
            Self::Php(plan) => plan.thread(memory, registers.stack_pointer),
        }
    }

    /// Returns the address above which the native stack of `thread` continues, if it has memory of the
    /// runtime between its first frames and the others. Bounded reads, no allocation.
    pub fn stack_above(
        &self,
        memory: &impl ProcessMemory,
        thread: VirtAddr,
        stack_pointer: u64,
    ) -> Option<VirtAddr> {
        match self {
            Self::Python(_) | Self::Php(_) => None,
            Self::Ruby(plan) => plan.stack_above(memory, thread, stack_pointer),
        }
    }

    /// Returns the plan of copies of all that [`Self::thread`], [`Self::stack_above`] and [`Self::walk`]
    /// read; `None` if the structures have no such plan.
    pub fn copies(&self) -> Option<CopyPlan> {
        match self {
            Self::Python(plan) => plan.copies(),
            Self::Ruby(plan) => plan.copies(),
            Self::Php(plan) => plan.copies(),
        }
    }

    /// Returns true if the runtime has names of threads that the kernel does not know.
    pub fn names_threads(&self) -> bool {
        matches!(self, Self::Python(_))
    }

    /// Passes the words of the frames of `thread` to `push`, until it returns false. No allocation; at most
    /// [`crate::MAX_FRAMES`] frames.
    pub fn walk(&self, memory: &impl ProcessMemory, thread: VirtAddr, push: impl FnMut(u64) -> bool) {
        match self {
            Self::Python(plan) => frames::write(push, |out| plan.walk(memory, thread, out)),
            Self::Ruby(plan) => frames::write(push, |out| plan.walk(memory, thread, out)),
            Self::Php(plan) => frames::write(push, |out| plan.walk(memory, thread, out)),
        }
    }

    /// Returns true if the runtime has a frame before its interpreter runs, so that the innermost one may
    /// still have no native frame.
    pub fn pushes_before_native(&self) -> bool {
        match self {
            Self::Python(_) => false,
            Self::Ruby(_) | Self::Php(_) => true,
        }
    }
}

/// Reader of the code objects of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeNames {
    /// CPython.
    Python(PythonNames),
    /// CRuby.
    Ruby(RubyNames),
    /// PHP.
    Php(PhpNames),
}

impl RuntimeNames {
    /// Returns the function of a frame's code; `None` if it cannot be read, or if its memory has another
    /// object by now. Bounded reads.
    pub fn read(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<ManagedCode> {
        match self {
            Self::Python(names) => names.read(memory, frame),
            Self::Ruby(names) => names.read(memory, frame),
            Self::Php(names) => names.read(memory, frame),
        }
    }

    /// Returns the name that the runtime has for `thread`, a state found by `plan`; `None` if it has none
    /// that the kernel does not know. Bounded reads.
    pub fn thread_name(
        &self,
        memory: &impl ProcessMemory,
        plan: &RuntimePlan,
        thread: VirtAddr,
    ) -> Option<String> {
        match (self, plan) {
            (Self::Python(names), RuntimePlan::Python(plan)) => names.thread_name(memory, plan, thread),
            _ => None,
        }
    }

    /// Returns an address in the function that interprets the frame's code, for runtimes whose code leads to
    /// it.
    pub fn interpreter(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<VirtAddr> {
        match self {
            Self::Python(_) | Self::Php(_) => None,
            Self::Ruby(names) => names.interpreter(memory, frame),
        }
    }
}
