//! The guest kernel's own CPU accounting: the numbers that getrusage, `/proc/PID/stat` and `/proc/stat`
//! report.

mod exit;

use statistics::cpu_accounting::{ChildCpuTimes, CpuStat, CpuTime};

use crate::kernel::Kernel;
use crate::layout::{EndedTimesLayout, TaskTimesLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;
use crate::task::{self, MAX_TASKS, TaskSnapshot};
use crate::view::View;
pub use exit::{ExitAccounting, ExitAccountingReader};

/// CPU times of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCpuTimes {
    /// Identity of the thread.
    pub task: TaskSnapshot,
    /// Times that the kernel keeps of it.
    pub time: CpuTime,
}

/// CPU times of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessCpuTimes {
    /// Leader.
    pub leader: TaskSnapshot,
    /// All its threads together, those that have ended as well.
    pub time: CpuTime,
    /// User and system time as getrusage and `/proc/PID/stat` report them, ns.
    pub reported: (u64, u64),
    /// Children that it has waited for.
    pub children: ChildCpuTimes,
    /// Living threads.
    pub threads: Vec<ThreadCpuTimes>,
}

/// Indexes of `kernel_cpustat.cpustat` (`enum cpu_usage_stat`, include/linux/kernel_stat.h, the same since
/// 2.6.33).
const CPU_FIELDS: usize = 8;

impl Kernel {
    /// Returns the CPU times of every process, read now; at most 65,536 threads in all. Threads that start or
    /// end meanwhile may be left out.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub fn process_cpu_times(&self, memory: &impl PhysicalMemory) -> Result<Vec<ProcessCpuTimes>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let threads = layouts.threads.clone()?;
        let view = self.view(memory);
        let head = self.symbol("init_task")?.wrapping_add(threads.tasks as u64);
        let leaders = task::list(&view, head, MAX_TASKS).ok_or(Missing::TaskList)?;
        let mut left = MAX_TASKS;
        let mut list = Vec::new();
        for link in leaders {
            let leader = link.wrapping_sub(threads.tasks as u64);
            list.extend(self.read_cpu_times(&view, leader, &mut left)?);
            if left == 0 {
                break;
            }
        }
        Ok(list)
    }

    /// Returns the CPU times of the process that the task at this address belongs to; `None` if they can no
    /// longer be read.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub fn process_cpu_times_of(
        &self,
        memory: &impl PhysicalMemory,
        task: u64,
    ) -> Result<Option<ProcessCpuTimes>, Missing> {
        let layout = self.layouts.as_ref().map_err(Clone::clone)?.task.clone()?;
        let view = self.view(memory);
        let Some(leader) = layout.leader(&view, task) else { return Ok(None) };
        self.read_cpu_times(&view, leader, &mut MAX_TASKS.clone())
    }

    fn read_cpu_times<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        leader: u64,
        left: &mut usize,
    ) -> Result<Option<ProcessCpuTimes>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let (layout, links) = (layouts.task.clone()?, layouts.threads.clone()?);
        let (times, ended) = (layouts.accounting.task.clone()?, layouts.accounting.ended.clone()?);
        // A freed structure belongs to no process: the numbers that were read may be anything.
        let is_freed = |task: u64| view.u32(task, times.usage).is_none_or(|references| references == 0);
        let mut read = || {
            let leader = layout.snapshot(view, leader)?;
            let signal = view.u64(leader.task, links.signal)?;
            let mut time = ended.read(|offset| view.u64(signal, offset))?;
            let mut threads = Vec::new();
            let nodes = task::list(view, signal.checked_add(links.thread_head as u64)?, *left)?;
            for node in nodes {
                *left = left.saturating_sub(1);
                let thread = node.wrapping_sub(links.thread_node as u64);
                let Some(task) = layout.snapshot(view, thread).filter(|task| task.pid == leader.pid) else {
                    continue;
                };
                let own = times.read(|offset| view.u64(thread, offset)).filter(|_| !is_freed(thread));
                let Some(own) = own else { continue };
                time.add(&own);
                threads.push(ThreadCpuTimes { task, time: own });
            }
            let reported = time.reported(ended.reported_before(|offset| view.u64(signal, offset)));
            let children = ended.children(|offset| view.u64(signal, offset))?;
            (!is_freed(leader.task)).then_some(ProcessCpuTimes { leader, time, reported, children, threads })
        };
        Ok(read())
    }

    /// Returns the times of every CPU, ascending by APIC id. The guest adds the time of a sleep when it
    /// ends.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub fn cpu_stats(&self, memory: &impl PhysicalMemory) -> Result<Vec<CpuStat>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let symbols = self.symbol_table()?;
        let view = self.view(memory);
        let stat = self.symbol("kernel_cpustat")?.wrapping_add(layouts.accounting.cpu.clone()? as u64);
        let sleep = layouts.accounting.sleep.zip(self.symbol("tick_cpu_sched").ok());
        let areas = PerCpuAreas::new(&view, symbols, self.symbol("__per_cpu_offset")?, stat)?;
        let by_vcpu = areas.by_apic_id(&view, symbols, layouts, Some);
        let read = |(cpu, base): (u32, Option<u64>)| {
            let base = base?;
            let mut numbers = [0; CPU_FIELDS];
            for (index, number) in numbers.iter_mut().enumerate() {
                *number = view.u64(base.wrapping_add(stat), index * 8)?;
            }
            let [user_ns, nice_ns, system_ns, softirq_ns, irq_ns, idle_ns, iowait_ns, steal_ns] = numbers;
            let mut books = CpuStat {
                cpu,
                user_ns,
                nice_ns,
                system_ns,
                softirq_ns,
                irq_ns,
                idle_ns,
                iowait_ns,
                steal_ns,
            };
            if let Some(((idle, iowait), at)) = sleep {
                let at = base.wrapping_add(at);
                // A kernel that never stops its tick counts idleness by it (`get_idle_time`, fs/proc/stat.c).
                books.idle_ns = view.u64(at, idle).filter(|ns| *ns > 0).unwrap_or(idle_ns);
                books.iowait_ns = view.u64(at, iowait).filter(|ns| *ns > 0).unwrap_or(iowait_ns);
            }
            Some(books)
        };
        Ok((0..).zip(by_vcpu).filter_map(read).collect())
    }
}

impl TaskTimesLayout {
    /// `word` reads the task at an offset.
    fn read(&self, word: impl Fn(usize) -> Option<u64>) -> Option<CpuTime> {
        Some(CpuTime {
            user_ns: word(self.user)?,
            system_ns: word(self.system)?,
            runtime_ns: word(self.runtime)?,
            run_delay_ns: self.run_delay.and_then(&word).unwrap_or(0),
            voluntary: word(self.voluntary)?,
            involuntary: word(self.involuntary)?,
        })
    }
}

impl EndedTimesLayout {
    /// `word` reads the `signal_struct` at an offset.
    fn read(&self, word: impl Fn(usize) -> Option<u64>) -> Option<CpuTime> {
        Some(CpuTime {
            user_ns: word(self.user)?,
            system_ns: word(self.system)?,
            runtime_ns: word(self.runtime)?,
            run_delay_ns: 0,
            voluntary: word(self.voluntary)?,
            involuntary: word(self.involuntary)?,
        })
    }

    /// `word` reads the `signal_struct` at an offset.
    fn children(&self, word: impl Fn(usize) -> Option<u64>) -> Option<ChildCpuTimes> {
        Some(ChildCpuTimes {
            user_ns: word(self.children.user)?,
            system_ns: word(self.children.system)?,
            voluntary: word(self.children.voluntary)?,
            involuntary: word(self.children.involuntary)?,
            minor_faults: word(self.children.minor_faults)?,
            major_faults: word(self.children.major_faults)?,
        })
    }

    /// Returns user and system time as last reported, ns; 0 where they cannot be read.
    fn reported_before(&self, word: impl Fn(usize) -> Option<u64>) -> (u64, u64) {
        self.reported.and_then(|at| Some((word(at)?, word(at.checked_add(8)?)?))).unwrap_or_default()
    }
}
