//! Offsets of the guest's accounting of CPU time.

use crate::btf::layout::{layout, offset};
use crate::missing::Missing;

layout! {
    /// Layouts of the structures of CPU time.
    #[derive(Debug, Clone)]
    AccountingLayout {
        task: Result<TaskTimesLayout, Missing>,
        ended: Result<EndedTimesLayout, Missing>,
        /// (include/linux/kernel_stat.h): the only member until 7.1 or later, after others in 7.3.
        cpu: Result<usize, Missing> = "kernel_cpustat.cpustat",
        /// `tick_sched.idle_sleeptime` and `.iowait_sleeptime` (kernel/time/tick-sched.h): ns. The kernel's
        /// own idle time is there when it stops its tick. In 7.3 `cpustat` has it.
        sleep: Option<(usize, usize)> => |btf| {
            let sleep = |path| offset(btf, &[path]).ok();
            Ok(sleep("tick_sched.idle_sleeptime").zip(sleep("tick_sched.iowait_sleeptime")))
        },
    }

    /// Times of a living thread: `struct task_struct` (include/linux/sched.h).
    #[derive(Debug, Clone, Copy)]
    TaskTimesLayout {
        /// u64, ns (4.11).
        user: usize = "task_struct.utime",
        /// u64, ns (4.11).
        system: usize = "task_struct.stime",
        /// u64, ns.
        runtime: usize = "task_struct.se.sum_exec_runtime",
        /// unsigned long.
        voluntary: usize = "task_struct.nvcsw",
        /// unsigned long.
        involuntary: usize = "task_struct.nivcsw",
        /// refcount_t: 0 from the moment at which the task and its structures are freed (`__put_task_struct`,
        /// kernel/fork.c).
        usage: usize = "task_struct.usage",
        /// ns, where the kernel keeps it (`CONFIG_SCHED_INFO`).
        run_delay: Option<usize> = "task_struct.sched_info.run_delay",
    }

    /// Times of threads that have ended: `struct signal_struct` (include/linux/sched/signal.h).
    #[derive(Debug, Clone, Copy)]
    EndedTimesLayout {
        /// u64, ns.
        user: usize = "signal_struct.utime",
        /// u64, ns.
        system: usize = "signal_struct.stime",
        /// unsigned long long, ns.
        runtime: usize = "signal_struct.sum_sched_runtime",
        /// unsigned long.
        voluntary: usize = "signal_struct.nvcsw",
        /// unsigned long.
        involuntary: usize = "signal_struct.nivcsw",
        /// utime and stime, u64, ns, as last reported; they never decrease.
        reported: Option<usize> = "signal_struct.prev_cputime",
        /// Sums over children that were waited for, and over theirs (`wait_task_zombie`, kernel/exit.c).
        children: ChildTimesLayout,
    }

    /// Members of `struct signal_struct`, all of 64 bits.
    #[derive(Debug, Clone, Copy)]
    ChildTimesLayout {
        /// ns.
        user: usize = "signal_struct.cutime",
        /// ns.
        system: usize = "signal_struct.cstime",
        voluntary: usize = "signal_struct.cnvcsw",
        involuntary: usize = "signal_struct.cnivcsw",
        minor_faults: usize = "signal_struct.cmin_flt",
        major_faults: usize = "signal_struct.cmaj_flt",
    }
}
