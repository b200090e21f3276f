//! Samples, counted over the run and over its last seconds.

use std::collections::{HashMap, VecDeque};

use super::code::NONE;
use crate::rows::Charged;
use crate::rows::{Mode, SampleRow, VcpuState};

/// Kinds of samples that are told apart over the whole run, at most; beyond that new stacks count without their callers,
/// and new frames for their process only.
const KINDS: usize = 1 << 18;
/// Samples of the last seconds that are kept, at most.
const RECENT: usize = 1 << 16;

/// What equal samples have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub charged: Charged,
    pub mode: Mode,
    pub frame: u32,
    pub stack: u32,
}

/// A sample that fell into the guest, or found it halted.
#[derive(Debug, Clone, Copy)]
struct Recent {
    time_ns: u64,
    vcpu: u8,
    /// `None`: idle.
    kind: Option<Kind>,
}

/// The samples.
#[derive(Debug, Default)]
pub(super) struct Counts {
    whole: HashMap<Kind, u64>,
    idle: u64,
    recent: VecDeque<Recent>,
}

impl Counts {
    /// Counts a sample; `is_ksoftirqd` tells instances that serve soft interrupts.
    pub fn add(&mut self, row: &SampleRow, is_ksoftirqd: impl FnOnce(u32) -> bool) {
        let kind = match row.vcpu_state {
            VcpuState::Guest => Charged::of(row.mode, row.instance, is_ksoftirqd).map(|charged| Kind {
                charged,
                mode: row.mode,
                frame: row.frame,
                stack: row.stack.unwrap_or(NONE),
            }),
            VcpuState::Halted => None,
            // They say nothing of the guest.
            VcpuState::Vmm | VcpuState::Waiting => return,
        };
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { time_ns: row.time_ns, vcpu: row.vcpu, kind });
        let Some(kind) = kind else {
            self.idle += 1;
            return;
        };
        let room = self.whole.len() < KINDS;
        let coarse = [kind, Kind { stack: NONE, ..kind }, Kind { stack: NONE, frame: NONE, ..kind }];
        let known = coarse.into_iter().find(|kind| room || self.whole.contains_key(kind));
        // At last by process and mode alone, of which there are few.
        *self.whole.entry(known.unwrap_or(coarse[2])).or_default() += 1;
    }

    /// The moment from which samples are kept, if older ones were dropped for want of room.
    pub fn kept_from(&self) -> Option<u64> {
        (self.recent.len() >= RECENT).then(|| self.recent.front().map(|recent| recent.time_ns)).flatten()
    }

    /// Forgets what is older, for the last seconds.
    pub fn forget(&mut self, before_ns: u64) {
        while self.recent.front().is_some_and(|recent| recent.time_ns < before_ns) {
            self.recent.pop_front();
        }
    }

    /// The kinds of samples since a moment, of all vCPUs or of one; `None` for the idle ones.
    pub fn since(&self, from_ns: u64, vcpu: Option<u8>) -> HashMap<Option<Kind>, u64> {
        let mut counts = HashMap::new();
        let wanted =
            |recent: &&Recent| recent.time_ns >= from_ns && vcpu.is_none_or(|vcpu| vcpu == recent.vcpu);
        for recent in self.recent.iter().filter(wanted) {
            *counts.entry(recent.kind).or_default() += 1;
        }
        counts
    }

    /// The same of the whole run.
    pub fn whole(&self) -> HashMap<Option<Kind>, u64> {
        let idle = std::iter::once((None, self.idle)).filter(|(_, count)| *count > 0);
        self.whole.iter().map(|(kind, count)| (Some(*kind), *count)).chain(idle).collect()
    }
}
