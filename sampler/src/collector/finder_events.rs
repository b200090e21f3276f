//! Events of the finder and the namer, as the collector handles them.

use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use guest_linux::journal::StartupTimes;
use vmm::monotonic_ns;

use super::finder::{FinderEvent, KernelCode, UnitEvents};
use super::namer::{CodeNamer, NameRequest, NameResult};
use super::{Collector, FinderHandle, NamerHandle};
use crate::kexec::SampleTrust;
use crate::record::SampleRecord;
use crate::resolve::walker::{CodeSource, GuestSource, StackWalker};
use profile::boot::{STARTUP_TIMES, SYSTEMD_JOURNAL};
use profile::rows::Batch;

/// Total time that the collector waits for the programs of an initrd: less than a ring holds.
const WALKER_PATIENCE: Duration = Duration::from_secs(1);
/// Total time that the namer waits; a run may end this much later.
const NAMER_PATIENCE: Duration = Duration::from_secs(20);

impl Collector {
    /// Returns true if the record is of the kernel that was found, or from before that. Stops all reading if
    /// the kernel is gone.
    pub(super) fn trusts(&mut self, vcpu: usize, record: &SampleRecord) -> bool {
        let Some(memory) = &self.memory else { return true };
        let reader = self.readers.get().map(|readers| &readers.current);
        match self.kexec.judge(vcpu, record, memory, reader) {
            SampleTrust::Known => true,
            SampleTrust::Doubtful => false,
            SampleTrust::Gone => {
                self.kernel_gone();
                false
            }
        }
    }

    /// Stops all reading of the old kernel: the guest has started another one.
    pub(super) fn kernel_gone(&mut self) {
        self.event("missing", "the guest started another kernel (kexec): later code has no names".to_owned());
        if self.ends_with_kernel {
            self.totals.kernel_gone = true;
            self.shared.reached.set();
        }
        self.finder = None;
        self.forget_watched();
        self.resolver.kernel_gone();
        if let Some(exact) = &mut self.exact {
            exact.kernel_gone(&mut self.batch);
        }
        if let Some(task_states) = &mut self.task_states {
            task_states.close(&mut self.resolver, &mut self.batch);
        }
        if let Some(memory_use) = &mut self.memory_use {
            memory_use.close(&mut self.batch);
        }
    }

    pub(super) fn take_finder_events(&mut self) {
        while let Some(finder) = &self.finder {
            match finder.events.try_recv() {
                Ok(event) => self.handle(event),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    if let Some(finder) = self.finder.take() {
                        self.join_finder(finder);
                    }
                }
            }
        }
    }

    pub(super) fn ask_finder(&mut self) {
        let Some(finder) = &self.finder else { return };
        if let Some((cr3, five_level)) = self.resolver.candidate.take() {
            finder.wanted.candidate(cr3, five_level);
        }
        if std::mem::take(&mut self.resolver.unknown_code) {
            finder.wanted.modules();
        }
    }

    pub(super) fn handle(&mut self, event: FinderEvent) {
        match event {
            FinderEvent::Kernel(found) => {
                let release = found.release.unwrap_or_else(|| "of unknown release".to_owned());
                let after = Duration::from_nanos(monotonic_ns().saturating_sub(self.shared.zero_ns));
                let symbols = found.symbols;
                self.event(
                    "kernel",
                    format!("Linux {release} found {after:.2?} after the start, {symbols} symbols"),
                );
                self.batch.meta.push(("kernel".to_owned(), release.clone()));
                self.shared.change(|status| status.kernel = Some(release));
                // Everything that reads this kernel gets it before the resolver names its first frame.
                if let (Some(kernel), Some(memory)) = (&found.code.kernel, &self.memory) {
                    self.resolver.accounting.set_kernel(Arc::clone(kernel), memory.clone());
                }
                if let Some(kernel) = &found.code.kernel {
                    self.kexec.found(Arc::clone(kernel), monotonic_ns());
                }
                if let Some(exact) = &mut self.exact {
                    exact.kernel_found(found.code.kernel.clone(), &mut self.batch);
                }
                // The walker takes the stack inputs, so there is one for the whole run.
                let walker = self.walker(&found.code);
                if let Some((kernel, memory)) = found.code.kernel.zip(self.memory.as_ref()) {
                    if let Some(task_states) = &mut self.task_states {
                        task_states.start(Arc::clone(&kernel), memory.clone(), &mut self.batch);
                    }
                    if let Some(memory_use) = &mut self.memory_use {
                        memory_use.start(kernel, memory.clone(), &mut self.batch);
                    }
                }
                self.resolver.kernel_found(found.code.names, walker, &mut self.batch);
            }
            FinderEvent::Code(code) => {
                self.resolver.modules_changed(code.names, code.unwinder, &mut self.batch);
            }
            FinderEvent::Interrupts(interrupts) => self.resolver.interrupts_changed(&interrupts),
            FinderEvent::SystemCalls(names) => {
                let named = (0..).zip(names).filter_map(|(number, name)| Some((number, name?)));
                self.batch.syscalls.extend(named);
            }
            FinderEvent::Books(mut all) => {
                self.counters.number_vcpus(&mut all.cpus);
                self.resolver.books(&all, &mut self.batch);
            }
            FinderEvent::Tasks(tasks) | FinderEvent::List(tasks) => {
                self.gate.list(&tasks);
                self.resolver.list(&tasks, &mut self.batch);
                if let Some(program) = self.resolver.init_program(&tasks) {
                    self.event("init", program);
                }
            }
            FinderEvent::Units(UnitEvents { mut rows, startup }) => {
                rows.iter_mut().for_each(|row| row.time_ns = row.time_ns.saturating_sub(self.shared.zero_ns));
                self.batch.unit_events.append(&mut rows);
                self.batch.meta.push((SYSTEMD_JOURNAL.to_owned(), "read".to_owned()));
                let times = startup.map(startup_meta).into_iter().flatten();
                self.batch.meta.extend(times.map(|(key, ns)| (key.to_owned(), ns.to_string())));
            }
            FinderEvent::NoUnits(reason) => {
                self.batch.meta.push((SYSTEMD_JOURNAL.to_owned(), reason.to_string()));
            }
            FinderEvent::Trouble(trouble) => {
                let rows = trouble.meta().map(|(key, value)| (key.to_owned(), value));
                self.batch.meta.extend(rows);
            }
            FinderEvent::Missing(text) => self.event("missing", text),
        }
    }

    /// Returns a walker for the kernel that was found; also starts a namer of its frames if stacks are
    /// wanted.
    fn walker(&mut self, code: &KernelCode) -> Option<StackWalker> {
        let guest = self.stack_inputs.take()?;
        let kernel = code.kernel.clone()?;
        let source = |patience| {
            GuestSource::new(Arc::clone(&kernel), guest.memory.clone(), (guest.files)())
                .with_initrd(guest.initrd.clone(), patience)
        };
        let own = source(WALKER_PATIENCE);
        if code.unwinder.is_some() {
            self.start(CodeNamer::new(source(NAMER_PATIENCE), (guest.files)()));
            own.prepare();
        }
        let walker = StackWalker::new(code.unwinder.clone(), own, guest.depth).with_runtimes(guest.runtimes);
        Some(match &self.finder {
            Some(finder) => walker.with_code(Arc::clone(&finder.wanted) as Arc<dyn CodeSource>),
            None => walker,
        })
    }

    fn start(&mut self, namer: CodeNamer) {
        let ((wanted, to_name), (to_tell, named)) = (mpsc::channel(), mpsc::channel());
        let thread = thread::Builder::new().name("namer".to_owned());
        match thread.spawn(move || namer.run(&to_name, &to_tell)) {
            Ok(thread) => self.namer = Some(NamerHandle { wanted, named, thread }),
            Err(error) => {
                self.event("missing", format!("cannot name user code: cannot start a thread: {error}"))
            }
        }
    }

    pub(super) fn ask_namer(&mut self) {
        let Some(namer) = &self.namer else { return self.resolver.nameless.clear() };
        for nameless in self.resolver.nameless.drain(..) {
            // The namer ends early only by a panic, which is reported at the end.
            drop(namer.wanted.send(NameRequest::Name(nameless)));
        }
        while let Ok(named) = namer.named.try_recv() {
            take_name(named, &mut self.batch);
        }
    }

    /// Joins the finder's thread, which ends by itself only by a panic.
    pub(super) fn join_finder(&mut self, mut finder: FinderHandle) {
        if finder.thread.take().is_some_and(|thread| thread.join().is_err()) {
            self.event(
                "missing",
                "reading the guest's kernel failed unexpectedly; later code has no names".to_owned(),
            );
        }
    }
}

/// Returns rows of `meta` with systemd's times of the boot.
fn startup_meta(startup: StartupTimes) -> impl Iterator<Item = (&'static str, u64)> {
    let [kernel, initrd, userspace] = STARTUP_TIMES;
    let times = [
        Some((kernel, startup.kernel_ns)),
        startup.initrd_ns.map(|ns| (initrd, ns)),
        Some((userspace, startup.userspace_ns)),
    ];
    times.into_iter().flatten()
}

pub(super) fn take_name(named: NameResult, batch: &mut Batch) {
    match named {
        NameResult::Frame(row, mut inlined) => {
            batch.frames.push(row);
            batch.inlined.append(&mut inlined);
        }
        NameResult::File(row) => batch.files.push(row),
        NameResult::Code(row) => batch.code.push(row),
    }
}
