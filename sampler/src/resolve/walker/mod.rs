//! Walker from copied stacks to frames: the kernel's by its ORC tables, the program's by the tables of its
//! files.
//!
//! ```text
//!  registers + kernel stack ── KernelUnwinder ──▶ kernel frames, user registers
//!  user registers + user stack ── UserUnwinder ──▶ user frames
//!                                    ▲
//!            Spaces: mappings of each process ──▶ Files: their unwind tables
//!                                              └─▶ PerfMaps: names of code in memory without a file
//! ```
//!
//! A reason replaces missing frames.

mod files;
mod generated;
mod managed;
mod maps;
mod perfmap;
mod searches;
mod source;
mod spaces;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use guest_linux::{
    AddressKind, CodeAddr, KernelUnwinder, KernelWalkError, Missing, StackCopy, TaskSnapshot, UserRegisters,
    VirtAddr, WalkEnd,
};
use runtimes::{GeneratedUnwinding, ManagedFrame, RuntimeBinary};
use symbols::LinkAddr;
use symbols::cfi::{UserEnd, UserFrame, UserUnwinder};

use super::frames::KernelNames;
use crate::managed::RuntimeTable;
pub(crate) use files::{FileEntry, FileTable};
use generated::{GeneratedRuntimes, RuntimeMemory, may_be_runtime};
pub(crate) use managed::ManagedFunction;
use managed::{ManagedRuntimes, NativeFrame, NativePlace};
pub(crate) use maps::LateNames;
use maps::PerfMaps;
pub(crate) use perfmap::JitSymbol;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use perfmap::PerfMap;
use profile::rows::{Batch, FLAT};
pub(crate) use source::GuestSource;
use spaces::{CodePlace, ProcessSpaces};

/// One step of a stack.
#[derive(Debug, Clone)]
pub(crate) enum StackStep {
    /// Code of the kernel.
    Kernel(CodeAddr),
    /// Code of a process in a file.
    File { at: CodeAddr<LinkAddr>, file: Arc<FileEntry> },
    /// Code of a process elsewhere: in memory without a file (`anonymous`), or in unknown memory. `made` is
    /// the function, if the process has made the code and named it.
    Memory { at: CodeAddr, anonymous: bool, made: Option<JitSymbol> },
    /// A frame of a managed language.
    Managed { frame: ManagedFrame, function: ManagedFunction },
    /// Frames are missing or doubtful: the part of the stack, and the reason.
    Reason { of: ReasonSubject, why: String },
}

/// Part of a stack that a reason is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReasonSubject {
    /// Kernel frames are missing.
    Kernel,
    /// User frames are missing.
    User,
    /// All user frames are there, but some follow from no unwind table.
    Doubt,
    /// No stack was taken: the sample has only its own frame.
    Flat,
}

impl ReasonSubject {
    /// Returns the module in table `frame`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Doubt => "doubt",
            Self::Flat => FLAT,
        }
    }
}

/// Reason for missing user frames while the stack is no longer the current task's.
const NEXT_TASK: &str = "the kernel is switching: stack of the next task";

/// The system calls execve and execveat (Linux, arch/x86/entry/syscalls/syscall_64.tbl).
const EXEC: [u32; 2] = [59, 322];

/// Owner of a stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackOwner {
    pub instance: u32,
    pub task: TaskSnapshot,
}

/// Results of a walk besides the steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WalkResult {
    /// The system call that the task was in.
    pub syscall: Option<u32>,
    /// The kernel's stack was followed to where the kernel was entered from user mode.
    pub from_user: bool,
    /// Name of the thread that only its runtime knows.
    pub thread_name: Option<Arc<str>>,
}

/// Time between waits for unknown code after one that brought nothing, as a multiple of that wait.
const FRUITLESS_PAUSE: u32 = 10;

/// Code of the kernel that is present: unwind tables and names of the same moment.
#[derive(Debug, Clone)]
pub(crate) struct PresentCode {
    pub unwinder: Arc<KernelUnwinder>,
    pub names: Arc<dyn KernelNames>,
}

/// Source of the kernel's code with modules that have just been loaded.
pub(crate) trait CodeSource: Debug + Send + Sync {
    /// Returns the code that is read after the call; waits for it, for a bounded time. `None` if there is
    /// none.
    fn present(&self) -> Option<PresentCode>;
}

/// Walker of the stacks of one guest.
#[derive(Debug)]
pub(crate) struct StackWalker {
    /// `None` if stacks are not wanted: the processes' data is read all the same.
    unwinder: Option<Arc<KernelUnwinder>>,
    users: UserUnwinder,
    source: GuestSource,
    spaces: ProcessSpaces,
    maps: PerfMaps,
    files: FileTable,
    runtimes: ManagedRuntimes,
    generated: GeneratedRuntimes,
    depth: usize,
    code: Option<Arc<dyn CodeSource>>,
    /// Time before which no walk waits for code again.
    patient_at: Instant,
    /// Names of code that a walk waited for.
    learnt: Option<Arc<dyn KernelNames>>,
}

impl StackWalker {
    /// Creates a walker for stacks of at most `depth` frames.
    pub(crate) fn new(unwinder: Option<Arc<KernelUnwinder>>, source: GuestSource, depth: usize) -> Self {
        Self {
            unwinder,
            users: UserUnwinder::new(),
            source,
            spaces: ProcessSpaces::default(),
            maps: PerfMaps::default(),
            files: FileTable::default(),
            runtimes: ManagedRuntimes::default(),
            generated: GeneratedRuntimes::default(),
            depth,
            code: None,
            patient_at: Instant::now(),
            learnt: None,
        }
    }

    /// Puts the runtimes of processes into `table`, so that ticks copy the frames of managed languages.
    pub(crate) fn with_runtimes(self, table: RuntimeTable) -> Self {
        Self { runtimes: ManagedRuntimes::new(table), ..self }
    }

    /// Lets walks that meet unknown code wait for the code that is present then.
    pub(crate) fn with_code(self, code: Arc<dyn CodeSource>) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns true if there are newer unwind tables than those that met unknown code: a module's first
    /// samples come before its tables have been read. Waits take at most half of the time, and a tenth where
    /// they bring nothing.
    fn learns_code(&mut self) -> bool {
        let begun = Instant::now();
        if begun < self.patient_at {
            return false;
        }
        let Some(code) = self.code.as_ref().and_then(|code| code.present()) else { return false };
        let is_newer = self.unwinder.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &code.unwinder));
        let now = Instant::now();
        self.patient_at = now + (now - begun) * if is_newer { 1 } else { FRUITLESS_PAUSE };
        if is_newer {
            self.unwinder = Some(code.unwinder);
            self.learnt = Some(code.names);
        }
        is_newer
    }

    /// Takes the names of the code that the last walk waited for.
    pub(crate) fn learnt_names(&mut self) -> Option<Arc<dyn KernelNames>> {
        self.learnt.take()
    }

    /// Sets the unwinder for other modules or other generated code.
    pub(crate) fn unwinder_changed(&mut self, unwinder: Arc<KernelUnwinder>) {
        self.unwinder = Some(unwinder);
    }

    /// Returns the source that the walker reads the guest from.
    pub(crate) fn source(&self) -> &GuestSource {
        &self.source
    }

    /// Returns the row id of a file that is known by other means, such as the program of a process.
    pub(crate) fn file(&mut self, file: &guest_linux::FileRef, batch: &mut Batch) -> u32 {
        self.files.entry(file, &mut batch.files).id()
    }

    /// Returns the names for code that a process has made, and that had none when it was hit; `last` is true
    /// at the end of a run.
    pub(crate) fn late(&mut self, instance: u32, last: bool) -> LateNames<'_> {
        self.maps.late(instance, last, &self.source)
    }

    /// Walks the stack in `copy`; `steps` get the frames, innermost first, and `batch` the rows of files and
    /// mappings.
    pub(crate) fn walk(
        &mut self,
        copy: &StackCopy,
        owner: Option<StackOwner>,
        steps: &mut Vec<StackStep>,
        batch: &mut Batch,
    ) -> WalkResult {
        let Some(unwinder) = &self.unwinder else { return WalkResult::default() };
        let first = steps.len();
        let mut end = unwinder.walk_copy(copy, self.depth, |frame| steps.push(StackStep::Kernel(frame)));
        if end == WalkEnd::Broken(KernelWalkError::UnknownCode)
            && self.learns_code()
            && let Some(unwinder) = &self.unwinder
        {
            steps.truncate(first);
            end = unwinder.walk_copy(copy, self.depth, |frame| steps.push(StackStep::Kernel(frame)));
        }
        let user = match end {
            WalkEnd::User(user) => Some(user),
            WalkEnd::Complete => None,
            WalkEnd::Broken(why) => {
                steps.push(StackStep::Reason { of: ReasonSubject::Kernel, why: why.to_string() });
                copy.task_pt_regs()
            }
        };
        let from_user = matches!(end, WalkEnd::User(_));
        let mut walked = WalkResult { from_user, ..WalkResult::default() };
        let Some(user) = user else { return walked };
        let left = self.depth.saturating_sub(steps.len());
        if let Some(owner) = owner.filter(|owner| !owner.task.kernel_thread) {
            let Some(root) = copy.user_root() else {
                steps.push(StackStep::Reason { of: ReasonSubject::User, why: NEXT_TASK.to_owned() });
                return walked;
            };
            walked.thread_name = self.walk_user(&user, copy, (&owner, root), left, steps, batch);
        }
        WalkResult { syscall: user.system_call().filter(|_| !copy.is_user_mode()), ..walked }
    }

    /// Returns the last return address in the kernel's entry code, if the stack is left by code that all
    /// entries share.
    pub(crate) fn returned_to(&self, copy: &StackCopy) -> Option<CodeAddr> {
        self.unwinder.as_ref()?.returned_to(copy)
    }

    /// Walks the program's part; returns the name of the thread that only its runtime knows.
    fn walk_user(
        &mut self,
        user: &UserRegisters,
        copy: &StackCopy,
        owner: (&StackOwner, u64),
        limit: usize,
        steps: &mut Vec<StackStep>,
        batch: &mut Batch,
    ) -> Option<Arc<str>> {
        let space =
            self.spaces.get(owner, VirtAddr(user.registers.rip), &self.source, &mut self.files, batch);
        // A program that exec has replaced, or a process that ends, no longer has a stack; its saved
        // registers remain.
        let replaced = user.system_call().is_some_and(|number| EXEC.contains(&number))
            && space.lacks(VirtAddr(user.registers.rip));
        if !copy.is_user_mode() && (replaced || space.missing() == Some(&Missing::NoUserMemory)) {
            return None;
        }
        let is_runtime = |file: &FileEntry| RuntimeBinary::may_be(file.name());
        let mut runtime = self.runtimes.get(
            owner.0.instance,
            space,
            &self.source,
            space.loaded_files(is_runtime, &self.source, &self.files),
        );
        let generating = |file: &FileEntry| may_be_runtime(file.name());
        let mut generated = self.generated.get(
            owner.0.instance,
            (space, &self.source),
            space.loaded_files(generating, &self.source, &self.files),
        );
        let images = space.images(&self.source, &self.files);
        let (first, mut natives) = (steps.len(), Vec::new());
        let mut doubt = None;
        let mut push = |frame: UserFrame| {
            doubt = doubt.or(frame.doubt);
            // A signal's trampoline precedes the code that the signal interrupted. It called nothing, and
            // begins at its return address.
            if !frame.at.is_return() {
                match steps.last_mut() {
                    Some(StackStep::File { at, .. }) => at.kind = AddressKind::Exact,
                    Some(StackStep::Memory { at, .. }) => at.kind = AddressKind::Exact,
                    _ => {}
                }
            }
            let mut place = NativePlace::Unknown;
            steps.push(match space.place(frame.at) {
                CodePlace::File(at, file) => {
                    place = NativePlace::File(file.id(), at.lookup());
                    StackStep::File { at, file }
                }
                CodePlace::Memory { anonymous } => {
                    if anonymous {
                        place = NativePlace::Anonymous;
                    }
                    let find = || self.maps.find(owner, frame.at.lookup(), &self.source).cloned();
                    StackStep::Memory { at: frame.at, anonymous, made: anonymous.then(find).flatten() }
                }
            });
            natives.push(NativeFrame { at: frame.at, stack: frame.stack, place });
        };
        let limit = limit.max(1);
        let end = if let Some(generated) = &mut generated {
            let memory = RuntimeMemory::new(space, &self.source);
            let unwinding = GeneratedUnwinding::new(&images, *generated, &memory);
            let end = self.users.walk(&user.registers, copy, &unwinding, limit, &mut push);
            let found = unwinding.into_found();
            generated::insert(found, &natives, (generated, &memory), (steps, first));
            end
        } else {
            self.users.walk(&user.registers, copy, &images, limit, &mut push)
        };
        // Both in one process: the native frames would no longer be the steps.
        let thread_name = runtime.as_mut().filter(|_| generated.is_none()).and_then(|runtime| {
            let natives = (natives.as_slice(), end == UserEnd::Complete);
            runtime.insert(copy.notes(), natives, (space, &self.source), (steps, first))
        });
        let reason = match end {
            UserEnd::Complete => doubt.map(|doubt| (ReasonSubject::Doubt, doubt.to_string())),
            UserEnd::Broken(why) => {
                let why = space
                    .missing()
                    .map_or_else(|| why.to_string(), |missing| format!("mappings not read: {missing}"));
                Some((ReasonSubject::User, why))
            }
        };
        steps.extend(reason.map(|(of, why)| StackStep::Reason { of, why }));
        self.files.take_loaded(&mut batch.files);
        thread_name
    }
}
