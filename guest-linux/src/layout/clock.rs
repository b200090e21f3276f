//! Offsets of the kernel's clock.

use crate::btf::layout::layout;
use crate::missing::Missing;

layout! {
    /// Members of `struct tk_fast` (kernel/time/timekeeping.c) and of `struct tk_read_base`
    /// (include/linux/timekeeper_internal.h), Linux 5.10 to 6.12.
    #[derive(Debug, Clone, Copy)]
    ClockLayout {
        seq: usize = "tk_fast.seq",
        base: usize = "tk_fast.base",
        /// Bytes of a `tk_read_base`.
        size: usize => |btf| {
            let size = btf.size_of("tk_read_base").filter(|&size| size > 0);
            size.ok_or_else(|| Missing::NoField("tk_read_base".into()))
        },
        ns: usize = "tk_read_base.base",
        fraction: usize = "tk_read_base.xtime_nsec",
        shift: usize = "tk_read_base.shift",
        /// Next expiry of a CPU's high-resolution timers (include/linux/hrtimer.h, Linux 5.10 to 6.12).
        expires: Option<usize> = "hrtimer_cpu_base.expires_next",
    }
}
