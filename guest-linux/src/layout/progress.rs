//! Offsets of what shows that a kernel makes progress.

use super::EnumValue;
use crate::btf::layout::layout;
use crate::missing::Missing;

layout! {
    /// Counters of progress, each of which a kernel may lack.
    #[derive(Debug, Clone)]
    ProgressLayout {
        oom: Result<OomLayout, Missing>,
        /// Unsigned long (kernel/rcu/tree.h, Linux 4.19 to 6.18). A kernel for one CPU has no such
        /// structure.
        grace_period: Result<usize, Missing> = "rcu_state.gp_seq",
    }

    /// The count of processes that the kernel has killed for lack of memory (include/linux/vm_event_item.h,
    /// Linux 4.13 to 6.18).
    #[derive(Debug, Clone, Copy)]
    OomLayout {
        events: usize = "vm_event_state.event",
        kills: EnumValue = "vm_event_item.OOM_KILL",
    }
}
