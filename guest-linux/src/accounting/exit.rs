//! The CPU times of a process at its exit, just before its structures are freed.

use super::Kernel;
use crate::current::TaskAddresses;
use crate::layout::{EndedTimesLayout, TaskTimesLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;
use statistics::cpu_accounting::{ChildCpuTimes, CpuTime};

/// Final CPU times of a process. Fixed size: it travels in an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitAccounting {
    /// All its threads together.
    pub time: CpuTime,
    /// User and system time as reported to the parent (wait4), ns.
    pub reported: (u64, u64),
    /// Children that it has waited for.
    pub children: ChildCpuTimes,
}

/// Reader of CPU times that allocates nothing: addresses are resolved beforehand.
#[derive(Debug, Clone)]
pub struct ExitAccountingReader {
    places: TaskAddresses,
    times: TaskTimesLayout,
    ended: EndedTimesLayout,
    /// `task_struct.signal`.
    signal: usize,
}

impl ExitAccountingReader {
    /// Returns the CPU times of the process whose leader is at `leader` and whose other threads are gone:
    /// when `release_task` is called for it (kernel/exit.c, Linux 6.1 and 6.12). No allocation, no lock,
    /// bounded reads.
    pub fn read(&self, memory: &impl PhysicalMemory, leader: u64) -> Option<ExitAccounting> {
        let word = |structure: u64, offset: usize| {
            memory.read_u64(self.places.translate(structure)?.checked_add(offset as u64)?)
        };
        let signal = word(leader, self.signal)?;
        let mut time = self.ended.read(|offset| word(signal, offset))?;
        time.add(&self.times.read(|offset| word(leader, offset))?);
        let children = self.ended.children(|offset| word(signal, offset))?;
        Some(ExitAccounting {
            time,
            children,
            reported: time.reported(self.ended.reported_before(|offset| word(signal, offset))),
        })
    }
}

impl Kernel {
    /// Returns a reader of the CPU times of exiting processes, once the per-CPU areas are set up.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn exit_accounting_reader(
        &self,
        memory: &impl PhysicalMemory,
    ) -> Result<ExitAccountingReader, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let symbols = self.symbol_table()?;
        let view = self.view(memory);
        let queues = self.symbol("runqueues")?;
        let areas = PerCpuAreas::new(&view, symbols, self.symbol("__per_cpu_offset")?, queues)?;
        Ok(ExitAccountingReader {
            places: TaskAddresses::new(&view, symbols, areas.first(queues)?)?,
            times: layouts.accounting.task.clone()?,
            ended: layouts.accounting.ended.clone()?,
            signal: layouts.threads.clone()?.signal,
        })
    }
}
