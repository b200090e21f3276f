//! Counters that show whether a kernel makes progress.
//!
//! ```text
//! runqueues.nr_switches              each CPU   task switches: [`SchedStateReader::switches`]
//! rcu_state.gp_seq                   number and state of the grace period of RCU
//! vm_event_states.event[OOM_KILL]    each CPU   processes that were killed for lack of memory
//! ```
//!
//! [`SchedStateReader::switches`]: crate::SchedStateReader::switches

use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;

/// Bits of `gp_seq` with the state of a grace period, 0 between two (`RCU_SEQ_STATE_MASK`, kernel/rcu/rcu.h,
/// Linux 4.19 to 6.18).
const STATE_MASK: u64 = 3;

/// Grace period of RCU: the kernel waits until every CPU has left the code that may read old data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePeriod {
    /// Number of the last one that has begun, with its state; it changes at each begin and end.
    pub sequence: u64,
    /// True if it has not ended.
    pub in_progress: bool,
}

impl Kernel {
    /// Returns the present grace period of RCU.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn grace_period(&self, memory: &impl PhysicalMemory) -> Result<GracePeriod, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let offset = layouts.progress.grace_period.clone()?;
        let sequence = self.view(memory).u64(self.symbol("rcu_state")?, offset);
        let sequence = sequence.ok_or_else(|| Missing::Unreadable("the state of RCU".into()))?;
        Ok(GracePeriod { sequence, in_progress: sequence & STATE_MASK != 0 })
    }

    /// Returns the number of processes that the kernel has killed for lack of memory since its boot
    /// (`oom_kill` of `/proc/vmstat`).
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn oom_kills(&self, memory: &impl PhysicalMemory) -> Result<u64, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let layout = layouts.progress.oom.clone()?;
        let unreadable = || Missing::Unreadable("the count of killed processes".into());
        let offset = layout.kills.0.checked_mul(8).and_then(|kills| kills.checked_add(layout.events));
        let events = self.symbol("vm_event_states")?.wrapping_add(offset.ok_or_else(unreadable)? as u64);
        let view = self.view(memory);
        let areas = PerCpuAreas::new(&view, self.symbol_table()?, self.symbol("__per_cpu_offset")?, events)?;
        // A CPU that goes offline passes its counts on, so all CPUs together have them.
        let mut kills = areas.offsets().map(|base| view.u64(base.wrapping_add(events), 0));
        kills.try_fold(0_u64, |sum, own| Some(sum.wrapping_add(own?))).ok_or_else(unreadable)
    }
}
