//! States of all tasks, read while the guest runs by one scan of the lists of processes and threads.
//!
//! ```text
//!  init_task.tasks -> leader -> leader -> ...
//!                       `-> signal.thread_head -> thread -> thread -> ...
//! ```
//!
//! All of it is in the direct map, so no page tables are walked. A task that is switched while it is read
//! shows it by its counts of switches, and is read again.

use crate::current::TaskAddresses;
use crate::kernel::Kernel;
use crate::layout::{ObservationLayout, ThreadLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::probe::{SchedState, SchedStateReader};
use crate::task::TaskMemory;
use symbols::PhysAddr;

/// Tasks on one way over the lists, at most.
const MAX_TASKS: usize = 1 << 17;
/// Readings of one task, at most: one that is switched during all of them is reported as inconsistent.
const READINGS: usize = 3;

/// A task as it was seen at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskObservation {
    /// Identity of the task, and its state as the scheduler keeps it.
    pub state: SchedState,
    /// On a CPU of the guest.
    pub on_cpu: bool,
    /// Number of times that it has been switched from (`nvcsw` + `nivcsw`): while this and [`Self::saved_sp`]
    /// stay the same a sleeping task is in the same sleep.
    pub switches: u64,
    /// `thread.sp`: where the registers of a task that does not run are.
    pub saved_sp: u64,
    /// The task was switched during each of several readings: only its identity can be believed.
    pub inconsistent: bool,
}

/// Result of a scan of the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanResult {
    /// All tasks were seen.
    Complete,
    /// There are more tasks than are read: those after the 131,072nd were not seen.
    Truncated,
    /// A link could not be followed, most likely because its task went away: some tasks were not seen.
    Inconsistent,
}

/// Looks at all tasks, or at one. Allocates nothing.
#[derive(Debug, Clone)]
pub struct TaskListReader {
    states: SchedStateReader,
    places: TaskAddresses,
    layout: ObservationLayout,
    threads: ThreadLayout,
    /// `init_task`, which all lists begin at and which is the idle task of the first CPU.
    init_task: u64,
}

/// Words by virtual address in the direct map.
struct DirectMapWords<'a, M>(&'a TaskAddresses, &'a M);

impl<M: PhysicalMemory> DirectMapWords<'_, M> {
    fn address(&self, base: u64, offset: usize) -> Option<PhysAddr> {
        self.0.translate(base)?.checked_add(offset as u64)
    }

    fn u64(&self, base: u64, offset: usize) -> Option<u64> {
        self.1.read_u64(self.address(base, offset)?)
    }
}

impl<M: PhysicalMemory> TaskMemory for DirectMapWords<'_, M> {
    fn read(&self, task: u64, offset: usize, into: &mut [u8]) -> Option<()> {
        self.1.read(self.address(task, offset)?, into)
    }
}

impl TaskListReader {
    /// Returns the task at `task`; `None` for what cannot be one. Bounded reads.
    pub fn read(&self, memory: &impl PhysicalMemory, task: u64) -> Option<TaskObservation> {
        let words = DirectMapWords(&self.places, memory);
        let moving = || {
            let voluntary = words.u64(task, self.layout.voluntary)?;
            let switches = voluntary.wrapping_add(words.u64(task, self.layout.involuntary)?);
            Some((switches, words.number(task, self.layout.on_cpu)? != 0))
        };
        let mut observation = TaskObservation { inconsistent: true, ..TaskObservation::default() };
        for _ in 0..READINGS {
            let before = moving()?;
            observation.state = self.states.read(memory, task)?;
            observation.saved_sp = words.u64(task, self.layout.saved_sp)?;
            (observation.switches, observation.on_cpu) = before;
            if moving()? == before {
                observation.inconsistent = false;
                break;
            }
        }
        Some(observation)
    }

    /// Looks at every task but the idle ones, which are on no list. A task that starts or ends meanwhile may
    /// be left out; in a hostile guest one may be seen more than once.
    pub fn walk(&self, memory: &impl PhysicalMemory, mut seen: impl FnMut(&TaskObservation)) -> ScanResult {
        let words = DirectMapWords(&self.places, memory);
        let head = self.init_task.wrapping_add(self.threads.tasks as u64);
        let mut left = MAX_TASKS;
        let mut link = words.u64(self.init_task, self.threads.tasks);
        while let Some(at) = link.filter(|&at| at != head) {
            let leader = at.wrapping_sub(self.threads.tasks as u64);
            match self.process(memory, leader, &mut left, &mut seen) {
                Some(()) if left > 0 => link = words.u64(leader, self.threads.tasks),
                Some(()) => return ScanResult::Truncated,
                None => return ScanResult::Inconsistent,
            }
        }
        if link.is_some() { ScanResult::Complete } else { ScanResult::Inconsistent }
    }

    /// Looks at the threads of one process; `None` where their list cannot be followed to its end.
    fn process(
        &self,
        memory: &impl PhysicalMemory,
        leader: u64,
        left: &mut usize,
        seen: &mut impl FnMut(&TaskObservation),
    ) -> Option<()> {
        let words = DirectMapWords(&self.places, memory);
        let ThreadLayout { signal, thread_node, thread_head, .. } = self.threads;
        let signal = words.u64(leader, signal)?;
        let head = signal.checked_add(thread_head as u64)?;
        let mut link = words.u64(signal, thread_head)?;
        while link != head {
            if *left == 0 {
                return Some(());
            }
            *left -= 1;
            let thread = link.wrapping_sub(thread_node as u64);
            seen(&self.read(memory, thread)?);
            link = words.u64(thread, thread_node)?;
        }
        Some(())
    }
}

impl Kernel {
    /// Returns a reader of all tasks, once the per-CPU areas are set up.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn task_list_reader(&self, memory: &impl PhysicalMemory) -> Result<TaskListReader, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let states = self.sched_state_reader(memory)?;
        Ok(TaskListReader {
            places: *states.places(),
            states,
            layout: layouts.observation.clone()?,
            threads: layouts.threads.clone()?,
            init_task: self.symbol("init_task")?,
        })
    }
}
