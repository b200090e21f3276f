//! The scheduler's state of a task, read at the moment of an event.

use crate::current::TaskAddresses;
use crate::kernel::Kernel;
use crate::layout::{StateLayout, TaskLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::paging::AddressSpace;
use crate::per_cpu::PerCpuAreas;
use crate::task::{TaskMemory, TaskSnapshot};
use symbols::{PhysAddr, VirtAddr};

/// Bits of `task_struct.__state` and `.exit_state` (include/linux/sched.h, Linux 6.1 and 6.12).
mod bits {
    pub(super) const UNINTERRUPTIBLE: u32 = 0x2;
    pub(super) const STOPPED: u32 = 0x4;
    pub(super) const TRACED: u32 = 0x8;
    pub(super) const EXIT_ZOMBIE: u32 = 0x20;
    pub(super) const DEAD: u32 = 0x80;
    pub(super) const WAKING: u32 = 0x200;
    pub(super) const NOLOAD: u32 = 0x400;
    pub(super) const NEW: u32 = 0x800;
    pub(super) const RTLOCK_WAIT: u32 = 0x1000;
    pub(super) const FROZEN: u32 = 0x8000;
}

/// Reason why a task does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// For a CPU.
    Runnable,
    /// For anything, and a signal wakes it; also a kernel thread that has nothing to do (TASK_IDLE, parked).
    Interruptible,
    /// For a disk, a lock, or something else that will come soon; no signal wakes it, or only one that kills.
    Uninterruptible,
    /// Until it is continued: stopped, traced or frozen.
    Stopped,
    /// For its parent: it has ended.
    Zombie,
    /// For nothing: it has ended, and no parent waits for it.
    Gone,
}

/// A task with its state, as read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedState {
    /// Identity of the task.
    pub task: TaskSnapshot,
    /// `__state`.
    pub state: u32,
    /// `exit_state`.
    pub exit_state: u32,
    /// On a run queue: it runs, or would if it got a CPU.
    pub queued: bool,
}

impl SchedState {
    /// Returns what the task waits for if it does not run now.
    pub fn run_state(&self) -> RunState {
        let is = |mask: u32| self.state & mask != 0;
        if is(bits::DEAD) {
            // The waiting parent sets this state in between.
            return if self.exit_state & bits::EXIT_ZOMBIE != 0 { RunState::Zombie } else { RunState::Gone };
        }
        if self.queued || self.state == 0 || is(bits::WAKING) {
            return RunState::Runnable;
        }
        if is(bits::STOPPED | bits::TRACED | bits::FROZEN) {
            RunState::Stopped
        } else if is(bits::RTLOCK_WAIT) || is(bits::UNINTERRUPTIBLE) && !is(bits::NOLOAD) {
            RunState::Uninterruptible
        } else {
            RunState::Interruptible
        }
    }

    /// Returns true if a wake of tasks in the states `mask` wakes it.
    pub fn is_woken_by(&self, mask: u32) -> bool {
        self.state & mask != 0
    }

    /// Returns true for a task that has never run: [`crate::ProbeEvent::New`] comes first.
    pub fn is_new(&self) -> bool {
        self.state & bits::NEW != 0
    }
}

/// Reads states of tasks without allocating: addresses are resolved beforehand.
#[derive(Debug, Clone)]
pub struct SchedStateReader {
    places: TaskAddresses,
    task: TaskLayout,
    state: StateLayout,
    /// `nr_switches` of each CPU's run queue, by APIC id.
    switches: Vec<Option<PhysAddr>>,
    kernel: AddressSpace,
}

/// Tasks by their places in physical memory.
struct DirectMapTasks<'a, M>(&'a TaskAddresses, &'a M);

impl<M: PhysicalMemory> TaskMemory for DirectMapTasks<'_, M> {
    fn read(&self, task: u64, offset: usize, into: &mut [u8]) -> Option<()> {
        self.1.read(self.0.translate(task)?.checked_add(offset as u64)?, into)
    }
}

impl SchedStateReader {
    /// Returns the task at `task`; `None` for what cannot be one. No allocation, no lock, bounded reads.
    #[inline]
    pub fn read(&self, memory: &impl PhysicalMemory, task: u64) -> Option<SchedState> {
        let tasks = DirectMapTasks(&self.places, memory);
        let number = |offset| Some(u32::from_le_bytes(tasks.member(task, offset)?));
        let delayed = match self.state.delayed {
            Some(offset) => tasks.member::<1>(task, offset)? != [0],
            None => false,
        };
        Some(SchedState {
            task: self.task.snapshot(&tasks, task)?,
            state: number(self.state.state)?,
            exit_state: number(self.state.exit_state)?,
            queued: tasks.number(task, self.state.on_rq)? != 0 && !delayed,
        })
    }

    /// Returns the addresses of tasks.
    pub(crate) fn places(&self) -> &TaskAddresses {
        &self.places
    }

    /// Returns the return address, in the kernel, of the call that a CPU with this stack pointer has just
    /// made. No allocation, no lock.
    pub fn return_address(&self, memory: &impl PhysicalMemory, rsp: VirtAddr) -> Option<VirtAddr> {
        // A word of a stack does not cross a page.
        let at = self.kernel.translate(memory, rsp).filter(|_| rsp.0.is_multiple_of(8))?;
        memory.read_u64(at.phys).filter(|address| address >> 63 == 1).map(VirtAddr)
    }

    /// Returns the number of task switches on vCPU `cpu` (its APIC id), by the kernel's own count.
    pub fn switches(&self, memory: &impl PhysicalMemory, cpu: usize) -> Option<u64> {
        memory.read_u64((*self.switches.get(cpu)?)?)
    }
}

impl Kernel {
    /// True once the kernel has booted and starts its first program (`system_state`): from then on it changes
    /// its text only where something asks for it.
    ///
    /// # Errors
    /// The reason why the state cannot be read.
    pub fn has_booted(&self, memory: &impl PhysicalMemory) -> Result<bool, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let running = layouts.state.as_ref().map_err(Clone::clone)?.running;
        let at = self.symbol("system_state")?;
        let state = self.view(memory).u32(at, 0);
        Ok(state.ok_or_else(|| Missing::Unreadable("system_state".to_owned()))? >= running)
    }

    /// Returns a reader of tasks' states, once the per-CPU areas are set up.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn sched_state_reader(&self, memory: &impl PhysicalMemory) -> Result<SchedStateReader, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let symbols = self.symbol_table()?;
        let state = layouts.state.clone()?;
        let view = self.view(memory);
        let queues = self.symbol("runqueues")?;
        let areas = PerCpuAreas::new(&view, symbols, self.symbol("__per_cpu_offset")?, queues)?;
        let switches = areas.by_apic_id(&view, symbols, layouts, |base| {
            view.translate(base.wrapping_add(queues).wrapping_add(state.switches as u64))
        });
        let places = TaskAddresses::new(&view, symbols, areas.first(queues)?)?;
        Ok(SchedStateReader { places, task: layouts.task.clone()?, state, switches, kernel: view.space })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(state: u32, exit_state: u32, queued: bool) -> RunState {
        SchedState { state, exit_state, queued, ..SchedState::default() }.run_state()
    }

    #[test]
    fn states_are_told_apart() {
        assert_eq!(rest(0, 0, true), RunState::Runnable);
        assert_eq!(rest(1, 0, false), RunState::Interruptible);
        // Preempted on its way to sleep, and woken on it.
        assert_eq!(rest(1, 0, true), RunState::Runnable);
        assert_eq!(rest(0x200, 0, false), RunState::Runnable);
        assert_eq!(rest(2, 0, false), RunState::Uninterruptible);
        assert_eq!(rest(0x102, 0, false), RunState::Uninterruptible, "TASK_KILLABLE");
        assert_eq!(rest(0x402, 0, false), RunState::Interruptible, "TASK_IDLE");
        assert_eq!(rest(0x2001, 0, false), RunState::Interruptible, "freezable");
        assert_eq!((rest(4, 0, false), rest(8, 0, false)), (RunState::Stopped, RunState::Stopped));
        assert_eq!((rest(0x80, 0x20, false), rest(0x80, 0x10, false)), (RunState::Zombie, RunState::Gone));
    }

    #[test]
    fn a_wake_reaches_the_states_it_is_for() {
        let sleeping = SchedState { state: 1, ..SchedState::default() };
        assert!(sleeping.is_woken_by(3) && !sleeping.is_woken_by(bits::STOPPED));
        assert!(!SchedState::default().is_woken_by(u32::MAX) && !sleeping.is_new());
    }
}
