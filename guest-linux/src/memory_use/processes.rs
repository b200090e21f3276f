//! Memory of processes (`get_mm_counter`, include/linux/mm.h).
//!
//! Until 6.1 a thread keeps up to 64 pages of changes to itself (`TASK_RSS_EVENTS_THRESH`, mm/memory.c);
//! since 6.2 each CPU keeps a part. Both are added, so a number is that of the process's page tables.

use std::ops::Deref;

use display::clean::ascii;

use super::{Holders, MemoryReader, ProcessMemory, pages, signed};
use crate::kernel::Kernel;
use crate::layout::{MmUseLayout, RssLayout, TaskLayout, ThreadLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::task::{self, MAX_TASKS, TaskSnapshot};
use crate::view::View;
use symbols::bytes::until_nul;

/// Layouts of tasks and their memory.
struct Tasks<'a> {
    task: &'a TaskLayout,
    threads: &'a ThreadLayout,
    mm: usize,
    used: &'a MmUseLayout,
}

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    /// Returns all processes with memory. Those that start, end or call exec meanwhile may be left out, as
    /// are numbers beyond `total` bytes.
    pub(super) fn processes<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        total: u64,
    ) -> Result<Holders<ProcessMemory>, Missing> {
        let layouts = self.kernel.layouts.as_ref().map_err(Clone::clone)?;
        let tasks = Tasks {
            task: layouts.task.as_ref().map_err(Clone::clone)?,
            threads: layouts.threads.as_ref().map_err(Clone::clone)?,
            mm: layouts.process.mm.as_ref().map_err(Clone::clone)?.mm,
            used: self.layouts.processes.as_ref().map_err(Clone::clone)?,
        };
        let head = self.kernel.symbol("init_task")?.wrapping_add(tasks.threads.tasks as u64);
        let leaders = task::list(view, head, MAX_TASKS).ok_or(Missing::TaskList)?;
        let mut left = MAX_TASKS;
        let mut rows = Vec::new();
        for link in leaders {
            let leader = link.wrapping_sub(tasks.threads.tasks as u64);
            let found = self.process(view, &tasks, leader, &mut left);
            rows.extend(found.filter(|process| process.resident() <= total));
            if left == 0 {
                break;
            }
        }
        rows.sort_by_key(|process| (std::cmp::Reverse(process.resident()), process.pid));
        Ok(Holders::new(rows, left > 0))
    }

    fn process<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        tasks: &Tasks<'_>,
        leader: u64,
        left: &mut usize,
    ) -> Option<ProcessMemory> {
        let snapshot = tasks.task.snapshot(view, leader).filter(|task| !task.kernel_thread)?;
        let signal = view.u64(leader, tasks.threads.signal)?;
        let nodes = task::list(view, signal.checked_add(tasks.threads.thread_head as u64)?, *left)?;
        let mut memory = 0;
        let mut cached = [0_i64; 4];
        for node in nodes {
            *left = left.saturating_sub(1);
            let thread = node.wrapping_sub(tasks.threads.thread_node as u64);
            let Some(own) = view.u64(thread, tasks.mm).filter(|&mm| mm != 0) else { continue };
            // A leader that has ended has none, unlike its threads.
            if memory == 0 {
                memory = own;
            }
            if own == memory {
                add_cached(view, tasks.used, thread, &mut cached)?;
            }
        }
        if memory == 0 {
            return None;
        }
        self.row(view, tasks.used, &snapshot, memory, cached)
    }

    /// Returns the numbers of the process with the address space at `memory`, whose threads keep `cached` to
    /// themselves.
    fn row<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        layout: &MmUseLayout,
        leader: &TaskSnapshot,
        memory: u64,
        cached: [i64; 4],
    ) -> Option<ProcessMemory> {
        let mut numbers = [0; 4];
        for ((number, index), cached) in numbers.iter_mut().zip(indexes(layout)).zip(cached) {
            *number = pages(self.rss(view, &layout.rss, memory, index)?.saturating_add(cached));
        }
        let [anonymous, file, shmem, swap] = numbers;
        let page_tables = layout.page_tables.and_then(|at| signed(view, memory, at)).unwrap_or(0);
        Some(ProcessMemory {
            pid: leader.pid,
            comm: ascii(until_nul(&leader.process_comm)),
            group: self.kernel.control_group(view, leader.task),
            anonymous,
            file,
            shmem,
            swap,
            page_tables: u64::try_from(page_tables).unwrap_or(0),
        })
    }

    fn rss<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        layout: &RssLayout,
        memory: u64,
        index: usize,
    ) -> Option<i64> {
        match *layout {
            RssLayout::Atomic(at) => signed(view, memory, at.checked_add(index.checked_mul(8)?)?),
            RssLayout::PerCpu { at, size, counter } => {
                let offset = (at as u64).checked_add((index as u64).checked_mul(size)?)?;
                let at = memory.checked_add(offset)?;
                let parts = self.per_cpu_sum(view, view.u64(at, counter.counters)?)?;
                Some(signed(view, at, counter.count)?.wrapping_add(parts))
            }
        }
    }
}

/// Returns the indexes of anonymous memory, files, shared memory and swap.
fn indexes(layout: &MmUseLayout) -> [usize; 4] {
    [layout.anonymous.0, layout.file.0, layout.shmem.0, layout.swap.0]
}

/// Adds the changes that a thread keeps to itself.
fn add_cached<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &MmUseLayout,
    thread: u64,
    cached: &mut [i64; 4],
) -> Option<()> {
    let Some(at) = layout.task else { return Some(()) };
    for (sum, index) in cached.iter_mut().zip(indexes(layout)) {
        let own = view.u32(thread, at.checked_add(index.checked_mul(4)?)?)?.cast_signed();
        *sum = sum.saturating_add(i64::from(own));
    }
    Some(())
}
