//! Resolver from samples to rows: identity, stack and mode of each sample. It knows neither threads nor a
//! clock.

mod call;
mod exit;
mod flat;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use guest_linux::{
    CodeAddr, ExitAccounting, InterruptTables, KernelUnwinder, ProcessCpuTimes, StackCopy, TaskSnapshot,
    VirtAddr,
};
use symbols::LinkAddr;

use super::accounting::{AccountingPoller, AccountingSnapshot, process_rows};
use super::entry::CodeOwner;
use super::frames::{FrameTable, KernelNames};
use super::hot::HitCounts;
use super::identity::{InstanceTable, ThreadNames};
use super::interrupts::InterruptNames;
use super::mode::{ModeClassifier, refined};
use super::stacks::StackTable;
use super::walker::{FileEntry, StackOwner, StackStep, StackWalker, WalkResult};
use crate::record::{KERNEL_HALF, SampleRecord};
use crate::task_state::{InterruptSource, TaskKey};
use display::clean;
pub(crate) use exit::ExitPlace;
use flat::is_flat;
use profile::rows::{Batch, CpuTimeRow, FrameRow, Mode, SampleRow};
use profile::rows::{PageFaultKind, WaitReason};
use vmm::KnownRegisters;

/// Samples of about a second, for the live line.
#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    samples: u64,
    busy: u64,
    processes: HashMap<u32, (u64, [u8; 16])>,
}

impl SampleWindow {
    /// Returns the number of all samples.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the process with the most non-idle samples, and its share of them.
    #[expect(clippy::cast_precision_loss, reason = "a share of less than 2^53 samples")]
    pub(crate) fn top(&self) -> Option<(String, f64)> {
        let (_, (count, comm)) =
            self.processes.iter().max_by_key(|&(&id, &(count, _))| (count, u32::MAX - id))?;
        Some((clean::comm(comm), *count as f64 / self.busy as f64))
    }
}

/// A frame without a name.
#[derive(Debug)]
pub(crate) struct UnnamedFrame {
    pub row: FrameRow,
    pub file: Arc<FileEntry>,
}

/// Resolver of samples.
#[derive(Debug, Default)]
pub(crate) struct SampleResolver {
    zero_ns: u64,
    identities: InstanceTable,
    threads: ThreadNames,
    frames: FrameTable,
    stacks: StackTable,
    classifier: ModeClassifier,
    hot: HitCounts,
    interrupts: InterruptNames,
    names: Option<Arc<dyn KernelNames>>,
    /// Walker of stacks, once the kernel is found.
    walker: Option<StackWalker>,
    steps: Vec<StackStep>,
    /// Registers of an exit in user code.
    exit_copy: Option<Box<StackCopy>>,
    window: SampleWindow,
    /// Time of the newest sample, CLOCK_MONOTONIC ns.
    latest_ns: u64,
    /// Program of the first process.
    init: Option<String>,
    /// Tasks of the last list: pid, start, name.
    listed: HashSet<(i32, u64, [u8; 16])>,
    /// CR3 and CR4.LA57 of the last kernel code that ran.
    pub(crate) candidate: Option<(u64, bool)>,
    /// An address was met that may belong to a new module or to new generated code.
    pub(crate) unknown_code: bool,
    /// Frames of files, to be named.
    pub(crate) nameless: Vec<UnnamedFrame>,
    /// Poller of CPU accounting.
    pub(crate) accounting: AccountingPoller,
}

/// Rows of a sample's stack.
#[derive(Debug, Default)]
struct ResolvedStack {
    mode: Mode,
    frame: Option<u32>,
    stack: Option<u32>,
    interrupt: Option<u32>,
    syscall: Option<u32>,
    fault: Option<PageFaultKind>,
}

impl SampleResolver {
    pub(crate) fn new(zero_ns: u64) -> Self {
        Self { zero_ns, accounting: AccountingPoller::new(zero_ns), ..Self::default() }
    }

    /// Adds the sample's row to `batch`, and rows for everything that it is the first to mention.
    pub(crate) fn sample(
        &mut self,
        vcpu: u8,
        record: &SampleRecord,
        stack: Option<&StackCopy>,
        batch: &mut Batch,
    ) {
        let mode = self.mode(record);
        let task = record.current.and_then(|current| current.task);
        self.latest_ns = self.latest_ns.max(record.time_ns);
        let instance = task.map(|task| {
            let instance = self.identify(&task, record.time_ns, batch);
            self.threads.note(instance, &task, &mut batch.threads);
            self.accounting.note(instance, &task);
            if mode == Mode::User && self.identities.runs(&task) {
                self.describe(&task, batch);
            }
            instance
        });
        // User code without a stack gets its frame last: a walk may find the file of its address.
        let leaf = if mode == Mode::User { None } else { Some(self.kernel_frame(record, batch)) };
        // The stack may correct the mode: the preempt count does not show an interrupt's entry and exit.
        let owner = instance.zip(task).map(|(instance, task)| StackOwner { instance, task });
        let placed = match stack {
            Some(stack) => self.place(stack, owner, mode, record, batch),
            None if is_flat(record) => Some(self.place_flat(leaf, owner, mode, record, batch)),
            None => None,
        };
        let placed = placed.unwrap_or_else(|| ResolvedStack {
            mode: refined(mode, record, leaf.map(|leaf| self.frames.part(leaf)).into_iter(), || None),
            ..ResolvedStack::default()
        });
        let mode = placed.mode;
        let frame = placed.frame.or(leaf).unwrap_or_else(|| {
            self.frames.user(CodeAddr::exact(record.rip), instance, false, &mut batch.frames)
        });
        self.count(mode, instance, task.as_ref());
        batch.samples.push(SampleRow {
            vcpu,
            time_ns: record.time_ns.saturating_sub(self.zero_ns),
            late_ns: record.late_ns,
            mode,
            halted: record.halted,
            vcpu_state: record.vcpu_state,
            frame,
            rsp: record.rsp,
            cpl: record.cpl,
            cr3: record.cr3,
            interrupts_on: (record.registers == KnownRegisters::All).then_some(record.interrupts_on),
            preempt_count: record.current.map(|current| current.preempt_count),
            instance,
            tid: task.map(|task| task.tid),
            stack: placed.stack,
            syscall: placed.syscall.filter(|_| mode == Mode::Kernel),
            interrupt: placed.interrupt,
            fault: placed.fault,
        });
    }

    /// Takes the data that finds the kernel from a dropped sample.
    pub(crate) fn pass_over(&mut self, record: &SampleRecord) {
        self.classifier.classify(record);
        self.latest_ns = self.latest_ns.max(record.time_ns);
        if record.in_64_bit_kernel() {
            self.candidate = Some((record.cr3, record.five_level));
        }
    }

    /// Returns the instance of a task that an event is about; notes its thread's name.
    pub(crate) fn task(&mut self, task: &TaskSnapshot, read_ns: u64, batch: &mut Batch) -> u32 {
        let instance = self.identify(task, read_ns, batch);
        self.threads.note(instance, task, &mut batch.threads);
        instance
    }

    /// Adds the accounting of all processes.
    pub(crate) fn books(&mut self, all: &AccountingSnapshot, batch: &mut Batch) {
        let time_ns = all.read_ns.saturating_sub(self.zero_ns);
        let first = self.accounting.open();
        for books in &all.processes {
            let instance = self.task(&books.leader, all.read_ns, batch);
            if !self.accounting.has_ended(instance) {
                process_rows(instance, time_ns, books, first, batch);
            }
        }
        batch.cpu_times.extend(all.cpus.iter().map(|&stat| CpuTimeRow { first, time_ns, stat }));
    }

    /// Reads the accounting of the processes that were hit since the last call, and their command lines
    /// again: many processes set it to their present work (setproctitle). Reads no more than
    /// [`AccountingPoller`] notes.
    pub(crate) fn read_hit(&mut self, batch: &mut Batch) {
        let there = self.accounting.read_hit(batch);
        let Some(walker) = &self.walker else { return };
        let source = walker.source();
        for task in there.iter().filter(|task| !task.kernel_thread) {
            if let Ok(argv) = source.kernel.arguments(&source.memory, task.task) {
                self.identities.retitle(task, &argv, &mut batch.instances);
            }
        }
    }

    /// Names code that processes have made and that had no name when it was hit; `last` is true at the end of
    /// a run.
    pub(crate) fn name_made(&mut self, last: bool, batch: &mut Batch) {
        let Some(walker) = &mut self.walker else { return };
        for instance in self.frames.without_names() {
            self.frames.name_made(instance, &walker.late(instance, last), &mut batch.frames);
        }
    }

    /// Adds the final accounting of a process that has ended.
    pub(crate) fn ended(
        &mut self,
        instance: u32,
        leader: &TaskSnapshot,
        read_ns: u64,
        books: &ExitAccounting,
        batch: &mut Batch,
    ) {
        let ExitAccounting { time, reported, children } = *books;
        let books = ProcessCpuTimes { leader: *leader, time, reported, children, threads: Vec::new() };
        // Without a first reading, the part from before vprof is unknown.
        if self.accounting.is_open() {
            process_rows(instance, read_ns.saturating_sub(self.zero_ns), &books, false, batch);
        }
        self.accounting.end(instance);
    }

    /// Returns the name of a thread.
    pub(crate) fn thread_name(&self, who: TaskKey) -> String {
        self.threads.name(who.instance, who.tid)
    }

    /// Returns the stack row id of the sleeping `task` (0 without a stack), read at `read_ns`, and its wait
    /// reason.
    pub(crate) fn sleeping(
        &mut self,
        stack: &StackCopy,
        task: &TaskSnapshot,
        read_ns: u64,
        batch: &mut Batch,
    ) -> (u32, WaitReason) {
        // Without the page tables of its program, only the kernel's part is available.
        let owner =
            stack.user_root().map(|_| StackOwner { instance: self.task(task, read_ns, batch), task: *task });
        let Some((walked, ids)) = self.walk(stack, owner, batch) else { return (0, WaitReason::Other) };
        let functions = ids.iter().filter_map(|&id| Some(self.frames.function(id)?.1));
        let kernel = self.kernel_functions(&self.steps, &ids);
        let wait_reason = WaitReason::from_sleep(functions, kernel, walked.from_user, stack.is_fetching());
        (self.stacks.intern(ids.iter().rev().copied(), &mut batch.stacks).unwrap_or(0), wait_reason)
    }

    /// Walks a stack, whose steps stay until the next walk. Returns the row ids of its frames, innermost
    /// first; `None` if stacks cannot be walked.
    fn walk(
        &mut self,
        stack: &StackCopy,
        owner: Option<StackOwner>,
        batch: &mut Batch,
    ) -> Option<(WalkResult, Vec<u32>)> {
        let walker = self.walker.as_mut()?;
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        let walked = walker.walk(stack, owner, &mut steps, batch);
        let learnt = walker.learnt_names();
        self.learn_names(learnt, batch);
        let ids = steps.iter().map(|step| self.step(step, owner, batch)).collect();
        self.steps = steps;
        if let (Some(name), Some(owner)) = (&walked.thread_name, owner) {
            self.threads.note_runtime_name(owner.instance, &owner.task, name, &mut batch.threads);
        }
        Some((walked, ids))
    }

    /// Returns the functions of the kernel among these steps, innermost first; `ids` are the frames of the
    /// steps.
    fn kernel_functions<'a>(
        &'a self,
        steps: &'a [StackStep],
        ids: &'a [u32],
    ) -> impl Iterator<Item = &'a str> + Clone {
        let of_kernel = steps.iter().zip(ids).filter(|(step, _)| matches!(step, StackStep::Kernel(_)));
        of_kernel.filter_map(|(_, &id)| Some(self.frames.function(id)?.1))
    }

    /// Returns the instance of `task`. Its data is read when it is new, after an exec, and when user code
    /// runs for the first time.
    fn identify(&mut self, task: &TaskSnapshot, read_ns: u64, batch: &mut Batch) -> u32 {
        let (instance, fresh) = self.identities.resolve(task, read_ns, &mut batch.instances);
        if fresh {
            self.describe(task, batch);
        }
        instance
    }

    fn describe(&mut self, task: &TaskSnapshot, batch: &mut Batch) {
        let Some(walker) = &mut self.walker else { return };
        self.identities.describe(task, walker, batch);
    }

    /// Walks the stack and stores its frames; `None` if stacks cannot be walked. `mode` is that of the
    /// preempt count.
    fn place(
        &mut self,
        stack: &StackCopy,
        owner: Option<StackOwner>,
        mode: Mode,
        record: &SampleRecord,
        batch: &mut Batch,
    ) -> Option<ResolvedStack> {
        let (walked, ids) = self.walk(stack, owner, batch)?;
        let steps = std::mem::take(&mut self.steps);
        // The code of the hottest functions is kept for `vprof annotate`.
        match steps.iter().find(|step| !matches!(step, StackStep::Managed { .. })) {
            Some(StackStep::Kernel(at)) => self.hot.kernel(at.address),
            Some(StackStep::File { at, file }) => self.hot.file(file, at.address),
            _ => {}
        }
        // Up to the code that was interrupted, whose registers were saved.
        let called = |step: &StackStep| matches!(step, StackStep::Kernel(at) if at.is_return());
        let since = 1 + steps.iter().skip(1).take_while(|step| called(step)).count();
        let parts = ids.iter().take(since).map(|&id| self.frames.part(id));
        let mut returned = None;
        let mode = refined(mode, record, parts, || {
            let at = self.walker.as_ref()?.returned_to(stack)?;
            let name = self.names.as_ref()?.name(at.lookup())?;
            let function = (at.address.0.wrapping_sub(name.offset), name.symbol?);
            let part = CodeOwner::from_symbol(&function.1);
            returned = Some(function);
            Some(part)
        });
        let kernel = self.kernel_functions(&steps, &ids);
        let fault = PageFaultKind::from_stack(kernel, walked.from_user, stack.is_fetching());
        // A function that returned to the exit code is no longer on the stack, but still shows the interrupt.
        let returned = returned.iter().map(|(start, symbol)| (*start, symbol.as_str()));
        let functions = returned.chain(ids.iter().map_while(|&id| self.frames.function(id)));
        let placed = ResolvedStack {
            mode,
            fault: fault.filter(|_| mode == Mode::Kernel),
            frame: steps
                .first()
                .filter(|step| !matches!(step, StackStep::Reason { .. }))
                .and(ids.first().copied()),
            interrupt: self.interrupts.served(mode, functions, &mut batch.interrupts),
            stack: self.stacks.intern(ids.iter().rev().copied(), &mut batch.stacks),
            syscall: walked.syscall,
        };
        self.steps = steps;
        Some(placed)
    }

    /// Adds the kernel code that was hit most.
    pub(crate) fn code(&self, batch: &mut Batch) {
        if let (Some(walker), Some(names)) = (&self.walker, &self.names) {
            batch.code.extend(self.hot.kernel_code(walker.source(), names.as_ref()));
        }
    }

    /// Returns the program code that was hit most: file and address in it.
    pub(crate) fn hot_programs(&self) -> Vec<(Arc<FileEntry>, LinkAddr)> {
        self.hot.programs()
    }

    fn step(&mut self, step: &StackStep, owner: Option<StackOwner>, batch: &mut Batch) -> u32 {
        let rows = &mut batch.frames;
        match step {
            StackStep::Kernel(at) => self.kernel_row(*at, rows),
            StackStep::File { at, file } => {
                let (id, new) = self.frames.file((file.id(), file.name()), *at, rows);
                if new && let Some(row) = rows.last() {
                    self.nameless.push(UnnamedFrame { row: row.clone(), file: Arc::clone(file) });
                }
                id
            }
            StackStep::Memory { at, made: Some(made), .. } => {
                self.frames.made(*at, owner.map(|owner| owner.instance), made, rows)
            }
            StackStep::Memory { at, anonymous, made: None } => {
                self.frames.user(*at, owner.map(|owner| owner.instance), *anonymous, rows)
            }
            StackStep::Managed { frame, function } => {
                self.frames.managed(frame, function, owner.map(|owner| owner.instance), rows)
            }
            StackStep::Reason { of, why } => self.frames.reason(*of, why, rows),
        }
    }

    fn kernel_frame(&mut self, record: &SampleRecord, batch: &mut Batch) -> u32 {
        if record.nested {
            return self.frames.nested_guest(&mut batch.frames);
        }
        if record.registers == KnownRegisters::Task && !record.halted {
            return self.frames.no_address(&mut batch.frames);
        }
        if record.rip.0 & KERNEL_HALF != 0 && record.long_mode {
            self.candidate = Some((record.cr3, record.five_level));
        }
        self.kernel_row(CodeAddr::exact(record.rip), &mut batch.frames)
    }

    /// Returns the row id of a kernel address. A new address without a name may be in new code.
    fn kernel_row(&mut self, at: CodeAddr, rows: &mut Vec<FrameRow>) -> u32 {
        let before = rows.len();
        let names = self.names.as_deref();
        let frame = self.frames.kernel(at, names, rows);
        let outside =
            at.address.0 & KERNEL_HALF != 0 && names.is_some_and(|names| !names.in_image(at.address));
        let unnamed = |row: &FrameRow| row.symbol.is_none() && row.module.is_none();
        if outside && rows.get(before..).is_some_and(|new| new.iter().any(unnamed)) {
            self.unknown_code = true;
        }
        frame
    }

    fn count(&mut self, mode: Mode, instance: Option<u32>, task: Option<&TaskSnapshot>) {
        self.window.samples += 1;
        if mode == Mode::Idle {
            return;
        }
        self.window.busy += 1;
        if let (Mode::User | Mode::Kernel, Some(instance), Some(task)) = (mode, instance, task) {
            let entry = self.window.processes.entry(instance).or_default();
            *entry = (entry.0 + 1, task.process_comm);
        }
    }

    /// Takes the samples since the last call.
    pub(crate) fn take_window(&mut self) -> SampleWindow {
        std::mem::take(&mut self.window)
    }

    /// Sets the names of the kernel that was found: later frames use them, and earlier frames get them now.
    pub(crate) fn kernel_found(
        &mut self,
        names: Arc<dyn KernelNames>,
        walker: Option<StackWalker>,
        batch: &mut Batch,
    ) {
        self.frames.name_unnamed(names.as_ref(), &mut batch.frames);
        self.names = Some(names);
        self.walker = walker;
    }

    /// Stops reading the kernel that was found: another one runs, and addresses have another meaning.
    pub(crate) fn kernel_gone(&mut self) {
        (self.names, self.walker) = (None, None);
        self.frames.forget_kernel();
        self.accounting.stop();
    }

    /// Returns the row id of a hard interrupt on `vcpu`; `None` while its name is not known, unless this is
    /// the `last` chance.
    pub(crate) fn source(
        &mut self,
        vcpu: usize,
        source: InterruptSource,
        last: bool,
        batch: &mut Batch,
    ) -> Option<u32> {
        let name = match (source, &self.names) {
            (InterruptSource::Entry(address), Some(names)) => {
                names.name(VirtAddr(address)).and_then(|name| name.symbol)
            }
            _ => None,
        };
        self.interrupts.source(vcpu, source, name.as_deref(), last, &mut batch.interrupts)
    }

    /// Sets the handlers of interrupts.
    pub(crate) fn interrupts_changed(&mut self, interrupts: &InterruptTables) {
        self.interrupts.update(interrupts);
    }

    fn learn_names(&mut self, names: Option<Arc<dyn KernelNames>>, batch: &mut Batch) {
        if let Some(names) = names {
            self.frames.modules_changed(names.as_ref(), &mut batch.frames);
            self.names = Some(names);
        }
    }

    /// Sets other modules or other generated code.
    pub(crate) fn modules_changed(
        &mut self,
        names: Arc<dyn KernelNames>,
        unwinder: Option<Arc<KernelUnwinder>>,
        batch: &mut Batch,
    ) {
        self.learn_names(Some(names), batch);
        if let Some((walker, unwinder)) = self.walker.as_mut().zip(unwinder) {
            walker.unwinder_changed(unwinder);
        }
    }

    /// Returns the program of the first process if it has changed: its path and its file system.
    pub(crate) fn init_program(&mut self, tasks: &[TaskSnapshot]) -> Option<String> {
        let source = self.walker.as_ref()?.source();
        let init = tasks.iter().find(|task| task.tid == 1 && !task.kernel_thread)?;
        let exe = source.kernel.process(&source.memory, init.task).exe.ok()?;
        let program = format!("{} {}", clean::printable(&exe.path), clean::printable(&exe.filesystem));
        if self.init.as_ref() == Some(&program) {
            return None;
        }
        self.init = Some(program.clone());
        Some(program)
    }

    /// Notes the tasks that exist, sampled or not. They are read while the guest runs, so a task in one list
    /// may be half made or half gone: two lists in a row have to agree. All samples from before the first
    /// list are resolved by then.
    pub(crate) fn list(&mut self, tasks: &[TaskSnapshot], batch: &mut Batch) {
        let key = |task: &TaskSnapshot| (task.pid, task.start_ns, task.process_comm);
        for task in tasks {
            if task.pid != 0 {
                self.classifier.tasks_exist();
            }
            if self.listed.contains(&key(task)) {
                self.identify(task, self.latest_ns, batch);
            }
        }
        self.listed = tasks.iter().map(key).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::tests::FakeNames;
    use super::*;

    #[test]
    fn code_without_a_name_is_asked_for_wherever_it_is_in_a_stack() {
        let (mut resolver, mut batch) = (SampleResolver::new(0), Batch::default());
        let frame = |address| StackStep::Kernel(CodeAddr::returning(VirtAddr(address)));
        resolver.step(&frame(0xffff_ffff_c030_0010), None, &mut batch);
        assert!(!resolver.unknown_code, "without a kernel every address is unknown");
        resolver.kernel_found(Arc::new(FakeNames { module: Some("ext4") }), None, &mut batch);
        resolver.step(&frame(0x1010), None, &mut batch);
        resolver.step(&frame(0x10010), None, &mut batch);
        assert!(!resolver.unknown_code, "the image and a module");
        resolver.step(&frame(0xffff_ffff_c030_0020), None, &mut batch);
        assert!(std::mem::take(&mut resolver.unknown_code));
        resolver.step(&frame(0xffff_ffff_c030_0020), None, &mut batch);
        assert!(!resolver.unknown_code, "an address asks once");
    }
}
