//! Offsets of what is read about tasks (threads).

use crate::btf::Btf;
use crate::btf::layout::{NumberLayout, layout, offset};
use crate::gather::GatherPlan;
use crate::missing::Missing;

/// `TASK_COMM_LEN` (include/linux/sched.h).
pub(crate) const COMM: usize = 16;

/// Members that are read of every task, in the order of [`TaskField`].
const FIELDS: usize = 5;

/// Index of a gathered member.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskField {
    Flags,
    Pid,
    Tgid,
    GroupLeader,
    Comm,
}

layout! {
    /// `struct task_struct` (include/linux/sched.h): the members that a snapshot needs, and a plan to read
    /// them with few reads.
    #[derive(Debug, Clone, Copy)]
    TaskLayout {
        /// Members that are read of every task.
        gather: GatherPlan<FIELDS> => gather,
        comm: usize = "task_struct.comm",
        /// The first name since 5.5, the second before.
        start: usize = "task_struct.start_boottime" | "task_struct.real_start_time",
    }

    /// The lists of processes and of their threads.
    #[derive(Debug, Clone, Copy)]
    ThreadLayout {
        /// Links the leaders of all processes.
        tasks: usize = "task_struct.tasks",
        signal: usize = "task_struct.signal",
        /// Links the threads of a process.
        thread_node: usize = "task_struct.thread_node",
        /// The head of that list.
        thread_head: usize = "signal_struct.thread_head",
    }

    /// `struct pcpu_hot` (arch/x86/include/asm/current.h, 6.2 to 6.14).
    #[derive(Debug, Clone, Copy)]
    HotLayout {
        current_task: usize = "pcpu_hot.current_task",
        preempt_count: usize = "pcpu_hot.preempt_count",
        irq_stack: Option<usize> = "pcpu_hot.hardirq_stack_ptr",
    }

    /// Offsets of the members that make up a task's state, and of a CPU's count of switches.
    #[derive(Debug, Clone, Copy)]
    StateLayout {
        /// The first name since 5.14, the second before.
        state: usize = "task_struct.__state" | "task_struct.state",
        exit_state: usize = "task_struct.exit_state",
        /// int, and u8 in 7.3.
        on_rq: NumberLayout = "task_struct.on_rq",
        /// Since 6.12: asleep, though the task's run queue keeps it for a while.
        delayed: Option<usize> = "task_struct.se.sched_delayed",
        switches: usize = "rq.nr_switches",
        /// `SYSTEM_RUNNING`: 3 since 5.14.
        running: u32 => |btf| Ok(btf.enumerator("system_states", "SYSTEM_RUNNING").unwrap_or(3)),
    }

    /// Offsets in `task_struct` (include/linux/sched.h) besides those of the state.
    #[derive(Debug, Clone, Copy)]
    ObservationLayout {
        /// int, and u8 in 7.3.
        on_cpu: NumberLayout = "task_struct.on_cpu",
        /// unsigned long.
        voluntary: usize = "task_struct.nvcsw",
        /// unsigned long.
        involuntary: usize = "task_struct.nivcsw",
        saved_sp: usize = "task_struct.thread.sp",
    }
}

fn gather(btf: &Btf<'_>) -> Result<GatherPlan<FIELDS>, Missing> {
    let task = |path| offset(btf, &[path]);
    Ok(GatherPlan::new([
        (task("task_struct.flags")?, 4),
        (task("task_struct.pid")?, 4),
        (task("task_struct.tgid")?, 4),
        (task("task_struct.group_leader")?, 8),
        (task("task_struct.comm")?, COMM),
    ]))
}
