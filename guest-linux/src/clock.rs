//! The guest's CLOCK_MONOTONIC as its kernel keeps it in memory.
//!
//! ```text
//! tk_fast_mono: seq | base[0] | base[1]      base + (xtime_nsec >> shift): the time at the last tick
//! ```
//!
//! The kernel writes one copy while readers take the other, which the lowest bit of `seq` selects (a latch).
//! Source: kernel/time/timekeeping.c, `struct tk_fast`, and include/linux/timekeeper_internal.h, `struct
//! tk_read_base`, of Linux 5.10 to 6.12.

use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;

/// Attempts until both copies are left alone meanwhile.
const ATTEMPTS: usize = 8;
/// A tick is no longer than this, ns (`CONFIG_HZ` is 100 or more), and no shorter.
const LONGEST_TICK: u64 = 10_000_000;
const SHORTEST_TICK: u64 = 100_000;

/// `KTIME_MAX`.
const KTIME_MAX: u64 = i64::MAX as u64;

/// The clock at a tick of the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestClock {
    /// CLOCK_MONOTONIC, ns: as of the last tick, and at most [`Self::tick_ns`] before it.
    pub monotonic_ns: u64,
    /// Length of a tick, ns.
    pub tick_ns: u64,
}

impl Kernel {
    /// Returns the guest's CLOCK_MONOTONIC as its last tick has left it.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn clock(&self, memory: &impl PhysicalMemory) -> Result<GuestClock, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let layout = layouts.clock.as_ref().map_err(Clone::clone)?;
        let at = self.symbol("tk_fast_mono")?;
        let view = self.view(memory);
        let torn = || Missing::Unreadable("the guest's clock".into());
        let read = || {
            let seq = view.u32(at, layout.seq)?;
            let copy = if seq & 1 == 0 { 0 } else { layout.size };
            let base = at.checked_add(layout.base as u64)?.checked_add(copy as u64)?;
            let (ns, fraction) = (view.u64(base, layout.ns)?, view.u64(base, layout.fraction)?);
            let shift = view.u32(base, layout.shift)?;
            let fraction = fraction.checked_shr(shift)?;
            (view.u32(at, layout.seq)? == seq).then_some(())?;
            ns.checked_add(fraction)
        };
        let monotonic_ns = (0..ATTEMPTS).find_map(|_| read()).ok_or_else(torn)?;
        let tick = self.symbol("tick_nsec").ok().and_then(|at| view.u64(at, 0));
        let tick_ns =
            tick.filter(|tick| (SHORTEST_TICK..=LONGEST_TICK).contains(tick)).unwrap_or(LONGEST_TICK);
        Ok(GuestClock { monotonic_ns, tick_ns })
    }

    /// Returns the time for which the first CPU's timer is programmed, CLOCK_MONOTONIC ns; `None` if there is
    /// no timer. Kernels without high-resolution timers do not keep this time.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn next_timer(&self, memory: &impl PhysicalMemory) -> Result<Option<u64>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let layout = layouts.clock.as_ref().map_err(Clone::clone)?;
        let missing = || Missing::NoField("hrtimer_cpu_base.expires_next".into());
        let expires = layout.expires.ok_or_else(missing)?;
        let view = self.view(memory);
        let bases = self.symbol("hrtimer_bases")?.wrapping_add(expires as u64);
        let symbols = self.symbol_table()?;
        let areas = PerCpuAreas::new(&view, symbols, self.symbol("__per_cpu_offset")?, bases)?;
        let timers = areas.by_apic_id(&view, symbols, layouts, |base| view.u64(base.wrapping_add(bases), 0));
        // A CPU without a timer, or one that is not up, has `KTIME_MAX` or 0 (include/linux/ktime.h).
        Ok(timers.into_iter().flatten().filter(|ns| (1..KTIME_MAX).contains(ns)).min())
    }

    /// Returns the identifier of this boot, as in `/proc/sys/kernel/random/boot_id`: zero until somebody asks
    /// for it.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn boot_id(&self, memory: &impl PhysicalMemory) -> Result<[u8; 16], Missing> {
        // drivers/char/random.c, Linux 5.10 to 6.12.
        let at = self.symbol("sysctl_bootid")?;
        let mut id = [0; 16];
        let read = self.view(memory).read(at, &mut id).filter(|()| id != [0; 16]);
        read.map(|()| id).ok_or_else(|| Missing::Unreadable("the boot's identifier".into()))
    }
}
