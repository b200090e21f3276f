//! The current task of a CPU, which is read at every sample.
//!
//! ```text
//! __per_cpu_offset[cpu] + current_task  -> task_struct   (until 6.1, since 6.15)
//!                       + __preempt_count
//!                       + pcpu_hot.{current_task,preempt_count}        (6.2 to 6.14)
//! ```
//!
//! Everything that stays the same is resolved beforehand, so that a sample costs a handful of small
//! reads of physical memory. GS is not used: in entry code its base is still the user's.

use std::collections::HashSet;

use crate::kallsyms::table::SymbolTable;
use crate::layout::{COMM, Layouts, TaskField, TaskLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::{CpuTable, PerCpuAreas};
use crate::preempt::{IrqContext, PreemptBits};
use crate::sample_reads::StructurePart;
use crate::task::{TaskMemory, TaskSnapshot};
use crate::view::View;
use symbols::{PhysAddr, VirtAddr};

/// Activity of a CPU, read at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentContext {
    /// Lower 32 bits of `__preempt_count`, raw; [`IrqContext`] is what they say.
    pub preempt_count: u32,
    /// Context in the kernel; [`IrqContext::Task`] also for interrupts of a kernel that counts them in an
    /// unknown way, which [`CurrentReader::missing`] reports.
    pub serving: IrqContext,
    /// The current task; `None` when it could not be read.
    pub task: Option<TaskSnapshot>,
}

/// Reads the current task of each CPU without allocating: addresses are resolved beforehand.
#[derive(Debug)]
pub struct CurrentReader {
    cpus: CpuTable<PerCpu>,
    tasks: TaskReader,
    bits: Result<PreemptBits, Missing>,
}

/// Physical addresses of one CPU's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PerCpu {
    task: PhysAddr,
    preempt_count: PhysAddr,
}

/// Offsets and addresses of task_structs.
#[derive(Debug, Clone, Copy)]
struct TaskReader {
    layout: TaskLayout,
    places: TaskAddresses,
}

/// Addresses of task_structs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskAddresses {
    /// Virtual address of physical address 0: almost all tasks are in the direct map.
    direct_map: u64,
    /// `init_task`, the one that is in the image.
    init_task: u64,
    init_task_phys: PhysAddr,
}

/// [`TaskReader`] with the memory to read from.
struct TasksIn<'a, M>(&'a TaskReader, &'a M);

impl<M: PhysicalMemory> TaskMemory for TasksIn<'_, M> {
    fn read(&self, task: u64, offset: usize, into: &mut [u8]) -> Option<()> {
        let phys = self.0.places.translate(task)?.checked_add(offset as u64)?;
        self.1.read(phys, into)
    }
}

impl TaskAddresses {
    /// Finds the addresses; `sample` is any address in the direct map.
    pub(crate) fn new<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: &SymbolTable,
        sample: u64,
    ) -> Result<Self, Missing> {
        let none = || Missing::NoSymbol("init_task".into());
        let init_task = symbols.address_of("init_task").ok_or_else(none)?;
        Ok(Self {
            direct_map: direct_map(view, symbols, sample)?,
            init_task,
            init_task_phys: view.translate(init_task).ok_or_else(none)?,
        })
    }

    /// Places that a test knows.
    #[cfg(test)]
    pub(crate) fn from_parts(direct_map: u64, init_task: u64, init_task_phys: PhysAddr) -> Self {
        Self { direct_map, init_task, init_task_phys }
    }

    /// Returns the physical address of a task; `None` for what cannot be one.
    #[inline]
    pub(crate) fn translate(&self, task: u64) -> Option<PhysAddr> {
        if task == self.init_task {
            return Some(self.init_task_phys);
        }
        if task & 7 != 0 {
            return None;
        }
        // The memory refuses an address that is not RAM.
        task.checked_sub(self.direct_map).map(PhysAddr)
    }
}

impl CurrentReader {
    /// Returns the activity of vCPU `cpu` (its APIC id). No allocation, no lock, bounded reads; `None` if the
    /// kernel has no such CPU.
    #[inline]
    pub fn read(&self, memory: &impl PhysicalMemory, cpu: usize) -> Option<CurrentContext> {
        let per_cpu = self.cpus.get(memory, cpu)?;
        let preempt_count = memory.read_u32(per_cpu.preempt_count)?;
        let task = memory.read_u64(per_cpu.task)?;
        let serving = self.bits.as_ref().copied().unwrap_or_default().serving(preempt_count);
        Some(CurrentContext {
            preempt_count,
            serving,
            task: self.tasks.layout.snapshot(&TasksIn(&self.tasks, memory), task),
        })
    }

    /// Returns the bits of the preempt count that count hard interrupts; `None` where they are not known.
    pub fn hardirq_bits(&self) -> Option<u32> {
        self.bits.as_ref().ok().map(|bits| bits.hardirq())
    }

    /// Returns the reason why interrupts are not recognized, if so.
    pub fn missing(&self) -> Option<&Missing> {
        self.bits.as_ref().err()
    }

    /// Returns the addresses of a CPU's preempt count and of the pointer to its current task.
    pub(crate) fn addresses_of(
        &self,
        memory: &impl PhysicalMemory,
        cpu: usize,
    ) -> Option<(PhysAddr, PhysAddr)> {
        let per_cpu = self.cpus.get(memory, cpu)?;
        Some((per_cpu.preempt_count, per_cpu.task))
    }

    /// Returns the address at which the kernel has a CPU's APIC id: [`Self::read`] reads it of CPUs that had
    /// none when this reader was made.
    pub(crate) fn apic_id_of(&self, cpu: usize) -> Option<PhysAddr> {
        self.cpus.id_of(cpu)
    }

    /// Returns the virtual address of physical address 0, and both addresses of the task that is not in the
    /// direct map.
    pub(crate) fn task_addresses(&self) -> (u64, (u64, PhysAddr)) {
        let places = &self.tasks.places;
        (places.direct_map, (places.init_task, places.init_task_phys))
    }

    /// Returns the parts of a task that are read, the offset of the pointer to its leader, and the parts of
    /// the leader.
    pub(crate) fn task_parts(&self) -> (Vec<StructurePart>, usize, Vec<StructurePart>) {
        let layout = &self.tasks.layout;
        let parts = layout.gather.spans().map(|(offset, bytes)| StructurePart { offset, bytes });
        let leader = [
            StructurePart { offset: layout.start, bytes: 8 },
            StructurePart { offset: layout.comm, bytes: COMM },
        ];
        (parts.collect(), layout.gather.offset_of(TaskField::GroupLeader as usize), leader.to_vec())
    }

    /// Returns true if every CPU that `before` knows has its variables where `before` has them.
    pub(crate) fn has_same_addresses(&self, before: &Self) -> bool {
        let now: HashSet<_> = self.cpus.known().collect();
        before.cpus.known().all(|cpu| now.contains(&cpu))
    }

    /// Returns the vCPUs (APIC ids) that the kernel has a per-CPU area for, ascending, with those that were
    /// plugged in and read meanwhile.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.cpus.known().map(|(id, _)| id)
    }

    /// Resolves the addresses; [`Missing::PerCpuNotReady`] and [`Missing::NoDirectMap`] while the
    /// kernel is still booting.
    pub(crate) fn new<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: &SymbolTable,
        layouts: &Layouts,
    ) -> Result<Self, Missing> {
        let layout = layouts.task.clone()?;
        let symbol = |name: &str| symbols.address_of(name).ok_or_else(|| Missing::NoSymbol(name.into()));
        let (task, preempt_count) = match (symbols.address_of("pcpu_hot"), &layouts.hot) {
            (Some(hot), Some(layout)) => {
                (hot.wrapping_add(layout.current_task as u64), hot.wrapping_add(layout.preempt_count as u64))
            }
            _ => (symbol("current_task")?, symbol("__preempt_count")?),
        };
        let areas = PerCpuAreas::new(view, symbols, symbol("__per_cpu_offset")?, task)?;
        let places = TaskAddresses::new(view, symbols, areas.first(task)?)?;
        let cpus = areas.table(view, symbols, layouts, |base| {
            let at = |variable: u64| view.translate(base.wrapping_add(variable));
            Some(PerCpu { task: at(task)?, preempt_count: at(preempt_count)? })
        });
        let bits = PreemptBits::find(view, symbols, preempt_count);
        Ok(Self { cpus, tasks: TaskReader { layout, places }, bits })
    }
}

/// Returns the virtual address of physical address 0. `page_offset_base` (arch/x86/kernel/head64.c) holds it,
/// where the kernel has that variable. The page tables decide, by `sample`, a kernel address.
fn direct_map<M: PhysicalMemory>(
    view: &View<'_, M>,
    symbols: &SymbolTable,
    sample: u64,
) -> Result<u64, Missing> {
    let maps = |base: &u64| {
        // The image is RAM, so the direct map has it too.
        let (image, _) = view.image.range();
        let phys = view.image.translate(image)?;
        let again = VirtAddr(base.checked_add(phys.0)?);
        let found = view.space.translate(view.memory, again)?;
        (found.phys == phys).then_some(*base)
    };
    symbols
        .address_of("page_offset_base")
        .and_then(|at| view.u64(at, 0))
        .and_then(|base| maps(&base))
        .or_else(|| {
            let phys = view.space.translate(view.memory, VirtAddr(sample))?.phys;
            maps(&sample.checked_sub(phys.0)?)
        })
        .ok_or(Missing::NoDirectMap)
}
