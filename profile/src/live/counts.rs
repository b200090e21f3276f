//! Samples, counted over the run and over its last seconds.

use std::collections::{HashMap, VecDeque};

use super::code::NONE;
use crate::rows::Charged;
use crate::rows::{Mode, SampleRow, VcpuState};

/// Limit of distinct kinds of samples over the whole run; beyond it new stacks count without their callers,
/// and new frames for their process only. Beyond twice as many new processes count as unknown.
const KINDS: usize = 1 << 18;
/// Limit of samples of the last seconds.
const RECENT: usize = 1 << 16;

/// Common properties of equal samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SampleKind {
    pub charged: Charged,
    pub mode: Mode,
    pub frame: u32,
    pub stack: u32,
}

/// A sample in the guest, or in which it was halted.
#[derive(Debug, Clone, Copy)]
struct RecentSample {
    time_ns: u64,
    vcpu: u8,
    /// `None`: idle.
    kind: Option<SampleKind>,
}

/// Counters of samples.
#[derive(Debug, Default)]
pub(super) struct Counts {
    whole: HashMap<SampleKind, u64>,
    idle: u64,
    recent: VecDeque<RecentSample>,
}

impl Counts {
    /// Counts a sample; `is_ksoftirqd` returns true for instances that serve soft interrupts.
    pub fn add(&mut self, row: &SampleRow, is_ksoftirqd: impl FnOnce(u32) -> bool) {
        let kind = match row.vcpu_state {
            VcpuState::Guest => Charged::from_mode(row.mode, row.instance, is_ksoftirqd).map(|charged| {
                SampleKind { charged, mode: row.mode, frame: row.frame, stack: row.stack.unwrap_or(NONE) }
            }),
            VcpuState::Halted => None,
            // These samples do not count for the guest.
            VcpuState::Vmm | VcpuState::Waiting => return,
        };
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentSample { time_ns: row.time_ns, vcpu: row.vcpu, kind });
        let Some(kind) = kind else {
            self.idle += 1;
            return;
        };
        let room = self.whole.len() < KINDS;
        let coarse =
            [kind, SampleKind { stack: NONE, ..kind }, SampleKind { stack: NONE, frame: NONE, ..kind }];
        let known = coarse.into_iter().find(|kind| room || self.whole.contains_key(kind));
        let last = match self.whole.len() < 2 * KINDS {
            true => coarse[2],
            false => SampleKind { charged: Charged::Unknown, ..coarse[2] },
        };
        *self.whole.entry(known.unwrap_or(last)).or_default() += 1;
    }

    /// Returns the instances that samples are charged to.
    pub fn instances(&self) -> impl Iterator<Item = u32> {
        let recent = self.recent.iter().filter_map(|recent| recent.kind.as_ref());
        self.whole.keys().chain(recent).filter_map(|kind| match kind.charged {
            Charged::Instance(id) => Some(id),
            _ => None,
        })
    }

    /// Returns the time from which samples are kept, if older ones were dropped for lack of memory.
    pub fn kept_from(&self) -> Option<u64> {
        (self.recent.len() >= RECENT).then(|| self.recent.front().map(|recent| recent.time_ns)).flatten()
    }

    /// Removes samples of the last seconds that are older.
    pub fn forget(&mut self, before_ns: u64) {
        while self.recent.front().is_some_and(|recent| recent.time_ns < before_ns) {
            self.recent.pop_front();
        }
    }

    /// Returns the kinds of samples since a time, of all vCPUs or of one; `None` for the idle ones.
    pub fn since(&self, from_ns: u64, vcpu: Option<u8>) -> HashMap<Option<SampleKind>, u64> {
        let mut counts = HashMap::new();
        let wanted =
            |recent: &&RecentSample| recent.time_ns >= from_ns && vcpu.is_none_or(|vcpu| vcpu == recent.vcpu);
        for recent in self.recent.iter().filter(wanted) {
            *counts.entry(recent.kind).or_default() += 1;
        }
        counts
    }

    /// Returns the kinds of samples of the whole run.
    pub fn whole(&self) -> HashMap<Option<SampleKind>, u64> {
        let idle = std::iter::once((None, self.idle)).filter(|(_, count)| *count > 0);
        self.whole.iter().map(|(kind, count)| (Some(*kind), *count)).chain(idle).collect()
    }
}
