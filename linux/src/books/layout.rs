//! Offsets of the guest's books of CPU time.

use crate::btf::Btf;
use crate::layout::offset;
use crate::missing::Missing;

/// What the structures of CPU time look like.
#[derive(Debug, Clone)]
pub(crate) struct AccountingLayout {
    pub(crate) task: Result<TaskTimes, Missing>,
    /// `signal_struct`: times of threads that have ended.
    pub(crate) ended: Result<Ended, Missing>,
    /// `kernel_cpustat.cpustat` (include/linux/kernel_stat.h): all that there is until 7.1 or later, behind others in 7.3.
    pub(crate) cpu: Result<usize, Missing>,
    /// `tick_sched.idle_sleeptime` and `.iowait_sleeptime` (kernel/time/tick-sched.h): ns; the kernel's own idle time is
    /// there when it stops its tick. In 7.3 `cpustat` has it.
    pub(crate) sleep: Option<(usize, usize)>,
}

/// `struct task_struct` (include/linux/sched.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskTimes {
    /// `utime` and `stime`, u64, ns (4.11).
    pub(crate) user: usize,
    pub(crate) system: usize,
    /// `se.sum_exec_runtime`, u64, ns.
    pub(crate) runtime: usize,
    /// `nvcsw` and `nivcsw`, unsigned long.
    pub(crate) voluntary: usize,
    pub(crate) involuntary: usize,
    /// `usage`, refcount_t: 0 from the moment on at which the task and what belongs to it are freed (`__put_task_struct`,
    /// kernel/fork.c).
    pub(crate) usage: usize,
    /// `sched_info.run_delay`, ns, where the kernel keeps it (`CONFIG_SCHED_INFO`).
    pub(crate) run_delay: Option<usize>,
}

/// `struct signal_struct` (include/linux/sched/signal.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// `utime` and `stime`, u64, ns.
    pub(crate) user: usize,
    pub(crate) system: usize,
    /// `sum_sched_runtime`, unsigned long long, ns.
    pub(crate) runtime: usize,
    /// `nvcsw` and `nivcsw`, unsigned long.
    pub(crate) voluntary: usize,
    pub(crate) involuntary: usize,
    /// `prev_cputime`: utime and stime, u64, ns, that were last told, which never go back.
    pub(crate) told: Option<usize>,
    /// Sums over children that were waited for, and over theirs (`wait_task_zombie`, kernel/exit.c).
    pub(crate) children: Children,
}

/// Members of `struct signal_struct`, all of 64 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Children {
    /// `cutime` and `cstime`, ns.
    pub(crate) user: usize,
    pub(crate) system: usize,
    /// `cnvcsw` and `cnivcsw`.
    pub(crate) voluntary: usize,
    pub(crate) involuntary: usize,
    /// `cmin_flt` and `cmaj_flt`.
    pub(crate) minor_faults: usize,
    pub(crate) major_faults: usize,
}

impl AccountingLayout {
    pub(crate) fn new(btf: &Btf) -> Self {
        let sleep = |member| btf.member("tick_sched", member).map(|m| m.offset);
        Self {
            task: TaskTimes::new(btf),
            ended: Ended::new(btf),
            cpu: offset(btf, "kernel_cpustat", "cpustat"),
            sleep: sleep("idle_sleeptime").zip(sleep("iowait_sleeptime")),
        }
    }
}

impl TaskTimes {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let task = |member| offset(btf, "task_struct", member);
        Ok(Self {
            user: task("utime")?,
            system: task("stime")?,
            runtime: task("se.sum_exec_runtime")?,
            voluntary: task("nvcsw")?,
            involuntary: task("nivcsw")?,
            usage: task("usage")?,
            run_delay: task("sched_info.run_delay").ok(),
        })
    }
}

impl Ended {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let signal = |member| offset(btf, "signal_struct", member);
        Ok(Self {
            user: signal("utime")?,
            system: signal("stime")?,
            runtime: signal("sum_sched_runtime")?,
            voluntary: signal("nvcsw")?,
            involuntary: signal("nivcsw")?,
            told: signal("prev_cputime").ok(),
            children: Children {
                user: signal("cutime")?,
                system: signal("cstime")?,
                voluntary: signal("cnvcsw")?,
                involuntary: signal("cnivcsw")?,
                minor_faults: signal("cmin_flt")?,
                major_faults: signal("cmaj_flt")?,
            },
        })
    }
}
