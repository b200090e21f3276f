//! Tasks (threads) of the guest: one of them, and all of them.

use std::collections::HashSet;

use crate::btf::layout::NumberLayout;
use crate::layout::{COMM, TaskField, TaskLayout, ThreadLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;

/// Tasks that are read, at most.
pub(crate) const MAX_TASKS: usize = 65_536;
/// `PF_KTHREAD` (include/linux/sched.h): set for kernel threads and idle tasks, and for nothing else.
/// The absence of `mm` would not do: an exiting process has none either.
const PF_KTHREAD: u32 = 0x0020_0000;

/// A task (thread) as read at one moment. Fixed size: it travels in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskSnapshot {
    /// Virtual address of its task_struct.
    pub task: u64,
    /// Thread id in the initial pid namespace (`task_struct.pid`).
    pub tid: i32,
    /// Process id (`task_struct.tgid`).
    pub pid: i32,
    /// `group_leader->start_boottime`, ns since boot: with `pid` the identity of a process instance.
    pub start_ns: u64,
    /// `group_leader->comm`: the process's name, NUL padded.
    pub process_comm: [u8; 16],
    /// `comm`: the thread's name, NUL padded.
    pub comm: [u8; 16],
    /// True for a kernel thread or an idle task (PF_KTHREAD).
    pub kernel_thread: bool,
}

/// Reads bytes of a task_struct, or of another task's: by address and offset.
pub(crate) trait TaskMemory {
    /// Fills `into` from member `offset` of the task at `task`; `None` if no task can be there.
    fn read(&self, task: u64, offset: usize, into: &mut [u8]) -> Option<()>;

    /// Returns a member of `N` bytes.
    fn member<const N: usize>(&self, task: u64, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(task, offset, &mut bytes)?;
        Some(bytes)
    }

    /// Returns a member that is a small number.
    fn number(&self, task: u64, NumberLayout { offset, bytes }: NumberLayout) -> Option<u32> {
        let mut number = [0; 4];
        self.read(task, offset, number.get_mut(..bytes)?)?;
        Some(u32::from_le_bytes(number))
    }
}

impl<M: PhysicalMemory> TaskMemory for View<'_, M> {
    fn read(&self, task: u64, offset: usize, into: &mut [u8]) -> Option<()> {
        View::read(self, task.checked_add(offset as u64)?, into)
    }
}

impl TaskLayout {
    /// Returns the leader of the process that the task at `task` belongs to.
    pub(crate) fn leader(&self, memory: &impl TaskMemory, task: u64) -> Option<u64> {
        let own = self.gather.read(|offset, into| memory.read(task, offset, into))?;
        Some(u64::from_le_bytes(own.member(TaskField::GroupLeader as usize)?))
    }

    /// Reads the task at `task`: four small reads in the kernels that are known, five if it is not its
    /// process's leader.
    #[inline]
    pub(crate) fn snapshot(&self, memory: &impl TaskMemory, task: u64) -> Option<TaskSnapshot> {
        let own = self.gather.read(|offset, into| memory.read(task, offset, into))?;
        let leader = u64::from_le_bytes(own.member(TaskField::GroupLeader as usize)?);
        let flags = u32::from_le_bytes(own.member(TaskField::Flags as usize)?);
        let comm = terminated(own.member(TaskField::Comm as usize)?);
        Some(TaskSnapshot {
            task,
            tid: i32::from_le_bytes(own.member(TaskField::Pid as usize)?),
            pid: i32::from_le_bytes(own.member(TaskField::Tgid as usize)?),
            start_ns: u64::from_le_bytes(memory.member(leader, self.start)?),
            process_comm: if leader == task { comm } else { terminated(memory.member(leader, self.comm)?) },
            comm,
            kernel_thread: flags & PF_KTHREAD != 0,
        })
    }
}

/// Clears the bytes after the first NUL: a comm is changed in place, so they are left of an earlier name.
#[inline]
fn terminated(comm: [u8; COMM]) -> [u8; COMM] {
    let text = u128::from_le_bytes(comm);
    // The lowest byte that is zero has its highest bit set here, and none below it has.
    let ones = u128::MAX / 0xff;
    let zeros = text.wrapping_sub(ones) & !text & (ones << 7);
    // The bits below that one: all of them when no byte is zero.
    let keep = (zeros & zeros.wrapping_neg()).wrapping_sub(1);
    (text & keep).to_le_bytes()
}

/// Walks a list of the kernel (`struct list_head`): the addresses of its links, from the first after
/// `head` to the last; `None` when not even the head can be read. Ends early at a link that cannot be
/// read, that was there before, or at the `max`-th: a running guest changes lists, a hostile one ties
/// them into loops.
pub(crate) fn list<M: PhysicalMemory>(
    view: &View<'_, M>,
    head: u64,
    max: usize,
) -> Option<impl Iterator<Item = u64>> {
    let mut next = Some(view.u64(head, 0)?);
    let mut seen = HashSet::new();
    Some(std::iter::from_fn(move || {
        let link = next.filter(|&link| link != head && link != 0)?;
        if seen.len() == max || !seen.insert(link) {
            return None;
        }
        next = view.u64(link, 0);
        Some(link)
    }))
}

/// Returns all tasks but the idle ones, which are on no list.
pub(crate) fn all<M: PhysicalMemory>(
    view: &View<'_, M>,
    task: &TaskLayout,
    threads: &ThreadLayout,
    init_task: u64,
) -> Result<Vec<TaskSnapshot>, Missing> {
    let head = init_task.wrapping_add(threads.tasks as u64);
    let leaders = list(view, head, MAX_TASKS).ok_or(Missing::TaskList)?;
    let mut tasks = Vec::new();
    // Bounds the threads of all processes together, which may share one list in a hostile guest.
    let mut left = MAX_TASKS;
    for leader in leaders {
        let leader = leader.wrapping_sub(threads.tasks as u64);
        let signal = view.u64(leader, threads.signal);
        let nodes =
            signal.and_then(|signal| list(view, signal.checked_add(threads.thread_head as u64)?, left));
        for node in nodes.into_iter().flatten() {
            left = left.saturating_sub(1);
            let thread = node.wrapping_sub(threads.thread_node as u64);
            tasks.extend(task.snapshot(view, thread));
        }
        if left == 0 {
            break;
        }
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_ends_with_its_first_nul(comm in prop::array::uniform16(prop::sample::select(vec![0u8, 1, 0x7f, 0x80, 0xff, b'a']))) {
            let mut plain = comm;
            let end = comm.iter().position(|&b| b == 0).unwrap_or(COMM);
            plain[end..].fill(0);
            prop_assert_eq!(terminated(comm), plain);
        }
    }
}
