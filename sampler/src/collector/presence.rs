//! Whether the kernel that was found is still the one that runs: a guest may start another one (kexec), and then every
//! name that is read from the memory of the old one is wrong.
//!
//! ```text
//!   There ──low code in kernel mode──> Doubted ──its page tables map the kernel──> There
//!                                          └──they do not, three times──> Gone
//! ```
//!
//! On its way to another kernel a guest runs copying and unpacking code at low addresses, for longer than most sampling
//! intervals. The code that starts a CPU lies there, too, so that is a doubt only.

use std::sync::Arc;

use crate::memory::GuestMemory;
use symbols::{CurrentReader, Kernel};

use super::resolver::KERNEL_HALF;
use crate::record::Record;

/// How often the kernel is looked at without a doubt, ns.
const PERIOD_NS: u64 = 1_000_000_000;
/// So many looks in a row must fail: the guest runs meanwhile.
const LOOKS: u32 = 3;

/// What a sample may be taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Of the kernel that was found, or of a time before it.
    Known,
    /// Nothing is to be made of it but where it was.
    Doubtful,
    /// The same; this is the one that shows that another kernel runs.
    Gone,
}

/// What is known of the kernel that was found.
#[derive(Debug, Default)]
pub(super) enum Presence {
    /// None was found yet.
    #[default]
    NotFound,
    /// It runs, as it did at this moment, CLOCK_MONOTONIC ns.
    There(Arc<Kernel>, u64),
    /// It may not; how often a look at it has failed.
    Doubted(Arc<Kernel>, u32),
    /// Another one runs.
    Gone,
}

impl Presence {
    /// A kernel was found.
    pub(super) fn found(&mut self, kernel: Arc<Kernel>) {
        *self = Self::There(kernel, 0);
    }

    /// What `record` may be taken for; `reader` is what has read it.
    pub(super) fn judge(
        &mut self,
        record: &Record,
        memory: &GuestMemory,
        reader: Option<&CurrentReader>,
    ) -> Trust {
        // A CPU that was not started yet counts as halted.
        let runs_kernel = record.cpl == 0 && !record.halted;
        let high = record.long_mode && record.rip & KERNEL_HALF != 0;
        let (kernel, failed) = match self {
            Self::NotFound => return Trust::Known,
            Self::Gone => return Trust::Doubtful,
            Self::There(_, seen_ns)
                if !runs_kernel || high && record.time_ns < seen_ns.saturating_add(PERIOD_NS) =>
            {
                return Trust::Known;
            }
            Self::There(kernel, _) => (Arc::clone(kernel), 0),
            Self::Doubted(kernel, failed) => (Arc::clone(kernel), *failed),
        };
        if !runs_kernel || !high {
            *self = Self::Doubted(kernel, failed);
            return Trust::Doubtful;
        }
        if kernel.is_mapped_by(memory, (record.cr3, record.five_level), reader) {
            *self = Self::There(kernel, record.time_ns);
            return Trust::Known;
        }
        if failed + 1 < LOOKS {
            *self = Self::Doubted(kernel, failed + 1);
            return Trust::Doubtful;
        }
        *self = Self::Gone;
        Trust::Gone
    }
}
