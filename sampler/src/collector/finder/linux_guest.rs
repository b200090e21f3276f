//! The reader of a real guest: a Linux in a machine's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_linux::{
    GeneratedCode, InterruptTables, Kernel, KernelUnwinder, Missing, Modules, PhysAddr, PhysicalMemory,
    TaskSnapshot, VirtAddr,
};
use vmm::monotonic_ns;

use super::units::JournalFollower;
use super::{FoundKernel, GuestKernel, KernelCode, KernelTrouble, TaskListing, UnitError, UnitEvents};
use crate::memory::GuestMemory;
use crate::record::{GuestCells, GuestReaders};
use crate::resolve::accounting::AccountingSnapshot;
use crate::resolve::frames::{KernelName, KernelNames};

/// Time after which a kernel that uses fewer CPUs than there are vCPUs is accepted.
const PARTIAL_PATIENCE: Duration = Duration::from_secs(1);

/// A Linux guest in a machine's memory.
#[derive(Debug)]
pub(crate) struct LinuxGuest {
    memory: GuestMemory,
    kernel: Option<Arc<Kernel>>,
    modules: Arc<Modules>,
    generated: Arc<GeneratedCode>,
    cells: GuestCells,
    vcpus: u8,
    /// Bytes of user stack to copy; `None` for no stacks at all.
    user_bytes: Option<usize>,
    unwinder: Option<Arc<KernelUnwinder>>,
    interrupts: Option<InterruptTables>,
    partial_since: Option<Instant>,
    units: JournalFollower,
}

impl LinuxGuest {
    pub(crate) fn new(memory: GuestMemory, cells: GuestCells, vcpus: u8, user_bytes: Option<usize>) -> Self {
        Self {
            memory,
            kernel: None,
            modules: Arc::default(),
            generated: Arc::default(),
            cells,
            vcpus,
            user_bytes,
            unwinder: None,
            interrupts: None,
            partial_since: None,
            units: JournalFollower::default(),
        }
    }

    fn kernel(&self) -> Result<&Arc<Kernel>, Missing> {
        self.kernel.as_ref().ok_or(Missing::NoKernelImage)
    }

    /// Returns the kernel's code with other modules, if they have changed, and with this generated code;
    /// unwind tables only if stacks are wanted.
    fn code_with(
        &mut self,
        kernel: Arc<Kernel>,
        modules: Option<Modules>,
        generated: GeneratedCode,
    ) -> KernelCode {
        let same_modules = modules.is_none();
        if let Some(modules) = modules {
            self.modules = Arc::new(modules);
        }
        self.generated = Arc::new(generated);
        if self.user_bytes.is_some() {
            let generated = Arc::clone(&self.generated);
            self.unwinder = Some(Arc::new(match &self.unwinder {
                Some(before) if same_modules => before.with_generated(generated),
                Some(before) => {
                    kernel.unwinder_for(&self.memory, &self.modules, before).with_generated(generated)
                }
                None => kernel.unwinder(&self.memory, &self.modules).with_generated(generated),
            }));
        }
        let (modules, generated) = (Arc::clone(&self.modules), Arc::clone(&self.generated));
        KernelCode {
            unwinder: self.unwinder.clone(),
            kernel: Some(Arc::clone(&kernel)),
            names: Arc::new(LinuxNames { kernel, modules, generated }),
        }
    }
}

/// A byte of memory that every machine has.
const ANY_BYTE: PhysAddr = PhysAddr(0x1000);

impl GuestKernel for LinuxGuest {
    fn known_tables(&self) -> Option<(u64, bool)> {
        // The kernel itself is known, and not searched by its tables.
        self.memory.kernel().map(|kernel| (kernel.address_space().root().0, false))
    }

    fn is_gone(&self) -> bool {
        PhysicalMemory::read(&self.memory, ANY_BYTE, &mut [0]).is_none()
    }
    fn find(&mut self, cr3: u64, five_level: bool) -> Result<FoundKernel, Missing> {
        let kernel = match self.memory.kernel() {
            Some(kernel) => Arc::clone(kernel),
            None => Arc::new(Kernel::find(&self.memory, cr3, five_level)?),
        };
        self.kernel = Some(Arc::clone(&kernel));
        if let Some(place) = kernel.identity() {
            // Set once: there is no second kernel.
            let _ = self.cells.identity.set(place);
        }
        Ok(FoundKernel {
            release: kernel.release().map(display::clean::printable),
            symbols: kernel.symbol_count(),
            missing: kernel.missing().to_vec(),
            code: self.code_with(kernel, None, GeneratedCode::default()),
        })
    }

    fn publish_reader(&mut self) -> Result<Vec<String>, Missing> {
        let reader = self.kernel()?.current_reader(&self.memory)?;
        // The reader is final, so one that knows only some vCPUs waits: the kernel may be setting up the
        // others at this very time. Or its command line excludes them.
        let all = (0..self.vcpus).all(|vcpu| reader.read(&self.memory, usize::from(vcpu)).is_some());
        if !all && self.partial_since.get_or_insert_with(Instant::now).elapsed() < PARTIAL_PATIENCE {
            return Err(Missing::PerCpuNotReady);
        }
        let stacks = match self.user_bytes {
            Some(user_bytes) => match self.kernel()?.stack_reader(&self.memory) {
                Ok(reader) => Ok((reader, user_bytes)),
                Err(reason) if reason.may_come() => return Err(reason),
                Err(reason) => Err(Some(reason)),
            },
            None => Err(None),
        };
        let mut missing: Vec<String> = reader.missing().map(ToString::to_string).into_iter().collect();
        let stacks = match stacks {
            Ok(stacks) => Some(stacks),
            Err(reason) => {
                missing.extend(reason.map(|reason| format!("no call stacks: {reason}")));
                None
            }
        };
        // Set once: a second reader of the same kernel would be the same.
        drop(self.cells.readers.set(GuestReaders { current: reader, stacks }));
        Ok(missing)
    }

    fn code(&mut self) -> Result<Option<KernelCode>, Missing> {
        let kernel = Arc::clone(self.kernel()?);
        let modules = kernel.other_modules(&self.memory, &self.modules)?;
        let generated = kernel.generated_code(&self.memory);
        if modules.is_none() && generated == *self.generated {
            return Ok(None);
        }
        Ok(Some(self.code_with(kernel, modules, generated)))
    }

    fn interrupts(&mut self) -> Result<Option<InterruptTables>, Missing> {
        if self.user_bytes.is_none() {
            return Ok(None);
        }
        let interrupts = self.kernel()?.interrupts(&self.memory);
        if self.interrupts.as_ref() == Some(&interrupts) {
            return Ok(None);
        }
        self.interrupts = Some(interrupts.clone());
        Ok(Some(interrupts))
    }

    fn system_calls(&mut self) -> Result<Vec<Option<String>>, Missing> {
        // System calls show in the registers that a stack leads to.
        if self.user_bytes.is_none() { Ok(Vec::new()) } else { self.kernel()?.system_calls(&self.memory) }
    }

    fn list(&mut self) -> Result<Vec<TaskSnapshot>, Missing> {
        self.kernel()?.tasks(&self.memory)
    }

    fn units(&mut self, journald: &[TaskSnapshot]) -> Result<UnitEvents, UnitError> {
        let kernel = self.kernel.as_ref().ok_or(UnitError::NoKernel)?;
        self.units.read(kernel, &self.memory, journald)
    }

    fn trouble(&mut self) -> KernelTrouble {
        let Ok(kernel) = self.kernel() else { return KernelTrouble::default() };
        let read = |name: &str, bytes: &mut [u8]| {
            let at = kernel.address_of(name)?;
            kernel.address_space().read(&self.memory, at, bytes)
        };
        let (mut cpu, mut taint) = ([0; 4], [0; 8]);
        let panicked = read("panic_cpu", &mut cpu).map(|()| i32::from_le_bytes(cpu) != PANIC_CPU_INVALID);
        let taint = read("tainted_mask", &mut taint).map(|()| u64::from_le_bytes(taint));
        KernelTrouble {
            panicked,
            died: taint.map(|taint| taint & TAINT_DIE != 0),
            warned: taint.map(|taint| taint & TAINT_WARN != 0),
        }
    }

    fn tasks(&mut self) -> Result<TaskListing, Missing> {
        let kernel = self.kernel()?;
        let read_ns = monotonic_ns();
        let processes = match kernel.process_cpu_times(&self.memory) {
            Ok(processes) => processes,
            Err(reason) => return Ok(TaskListing { tasks: kernel.tasks(&self.memory)?, books: Err(reason) }),
        };
        let threads = processes.iter().flat_map(|process| &process.threads);
        let tasks = threads.map(|thread| thread.task).collect();
        let cpus = kernel.cpu_stats(&self.memory);
        Ok(TaskListing { tasks, books: cpus.map(|cpus| AccountingSnapshot { read_ns, cpus, processes }) })
    }
}

/// Value of `panic_cpu` without a CPU in `panic` (include/linux/panic.h, Linux 6.12).
const PANIC_CPU_INVALID: i32 = -1;
/// Bits of `tainted_mask` (include/linux/panic.h, Linux 6.12: TAINT_DIE 7, TAINT_WARN 9).
const TAINT_DIE: u64 = 1 << 7;
const TAINT_WARN: u64 = 1 << 9;

#[derive(Debug)]
struct LinuxNames {
    kernel: Arc<Kernel>,
    modules: Arc<Modules>,
    generated: Arc<GeneratedCode>,
}

impl KernelNames for LinuxNames {
    fn name(&self, address: VirtAddr) -> Option<KernelName> {
        let found = if self.in_image(address) {
            self.kernel.symbol_at(address)
        } else {
            self.modules.symbol_at(address).or_else(|| self.generated.symbol_at(address))
        }?;
        Some(KernelName {
            symbol: Some(found.name).filter(|name| !name.is_empty()).map(str::to_owned),
            module: found.module.map(str::to_owned),
            offset: found.offset,
        })
    }

    fn in_image(&self, address: VirtAddr) -> bool {
        let (start, end) = self.kernel.image();
        (start.0..end.0).contains(&address.0)
    }
}
