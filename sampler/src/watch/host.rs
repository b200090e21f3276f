//! The machine's share of its host: pauses, and waits for a CPU.

use std::collections::{BTreeMap, VecDeque};

use profile::rows::{HostWaitRow, MicrostateRow, Microstates};

use super::{Verdict, time};

/// Snapshots in the time over which waits are judged.
const SNAPSHOTS: u64 = 16;
/// Processes of the host that are remembered per vCPU, at most.
const MOST_TAKERS: usize = 64;

/// Pauses of the machine.
#[derive(Debug, Default)]
pub(super) struct PauseClock {
    total_ns: u64,
    /// Length of the present pause, ns.
    pause_ns: u64,
    known: bool,
}

impl PauseClock {
    /// Notes how vCPUs have spent their time since the last call. All are paused together.
    pub(super) fn windows(&mut self, windows: &[MicrostateRow]) {
        let Some(least) = windows.iter().min_by_key(|window| window.states.paused) else { return };
        self.known = true;
        let Microstates { paused, .. } = least.states;
        self.total_ns = self.total_ns.saturating_add(paused);
        // The first and the last segment of a pause have a part of it.
        let runs = paused < least.states.wall() / 2;
        self.pause_ns = if runs { 0 } else { self.pause_ns.saturating_add(paused) };
    }

    /// Returns the time for which the machine was paused so far, ns.
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Judges the present pause.
    pub(super) fn verdict(&self, threshold_ns: u64) -> Verdict {
        match self.pause_ns {
            _ if !self.known => Verdict::Unknown,
            0 => Verdict::Over,
            length_ns if length_ns >= threshold_ns => Verdict::Holds {
                length_ns,
                sentence: format!(
                    "the virtual machine has been paused, or stopped by a signal, for {}",
                    time(length_ns)
                ),
            },
            _ => Verdict::Unknown,
        }
    }
}

/// Process of the host that took a CPU from a vCPU, which then waited. Others may have had the CPU later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taker {
    /// 0 for all that share one row.
    pub pid: u32,
    pub name: String,
    /// Length of the waits for it, ns.
    pub total_ns: u64,
}

/// Sums up to a time.
#[derive(Debug, Clone)]
struct WaitSnapshot {
    time_ns: u64,
    waited_ns: u64,
    taken: BTreeMap<u32, u64>,
}

/// Waits of a vCPU for a CPU of the host.
#[derive(Debug, Default)]
pub(super) struct HostShare {
    /// Time waited so far, ns.
    waited_ns: u64,
    takers: BTreeMap<u32, Taker>,
    snapshots: VecDeque<WaitSnapshot>,
}

impl HostShare {
    /// Notes how the vCPU has spent its time since the last call.
    pub(super) fn window(&mut self, states: &Microstates) {
        self.waited_ns = self.waited_ns.saturating_add(states.waiting);
    }

    /// Notes the waits for a process up to now.
    pub(super) fn taken(&mut self, wait: &HostWaitRow) {
        if self.takers.len() < MOST_TAKERS || self.takers.contains_key(&wait.pid) {
            let taker = Taker { pid: wait.pid, name: wait.name.clone(), total_ns: wait.total_ns };
            self.takers.insert(wait.pid, taker);
        }
    }

    /// Judges the waits in the last two thresholds: the vCPU starves if it has waited for one of them.
    /// `sentence` gets the time waited, the time judged, and the process whose waits are the longest.
    pub(super) fn verdict(
        &mut self,
        threshold_ns: u64,
        now_ns: u64,
        sentence: impl FnOnce(u64, u64, Option<Taker>) -> String,
    ) -> Verdict {
        let span_ns = threshold_ns.saturating_mul(2);
        let from_ns = now_ns.saturating_sub(span_ns);
        // The oldest one is the last before the span.
        while self.snapshots.get(1).is_some_and(|second| second.time_ns <= from_ns) {
            self.snapshots.pop_front();
        }
        let due =
            self.snapshots.back().is_none_or(|last| now_ns - last.time_ns.min(now_ns) >= span_ns / SNAPSHOTS);
        if due {
            self.snapshots.push_back(WaitSnapshot {
                time_ns: now_ns,
                waited_ns: self.waited_ns,
                taken: self.takers.iter().map(|(pid, taker)| (*pid, taker.total_ns)).collect(),
            });
        }
        let Some(first) = self.snapshots.front() else { return Verdict::Unknown };
        let (waited_ns, of_ns) =
            (self.waited_ns.saturating_sub(first.waited_ns), now_ns.saturating_sub(first.time_ns));
        // Waits are counted when they end, at times that differ from those of the snapshots.
        let waited_ns = waited_ns.min(of_ns);
        if waited_ns < threshold_ns {
            let rests = of_ns >= span_ns && waited_ns < threshold_ns / 2;
            return if rests { Verdict::Over } else { Verdict::Unknown };
        }
        // A span that is longer than two thresholds has to be waited in for half of it.
        if waited_ns < of_ns / 2 {
            return Verdict::Unknown;
        }
        let since = |taker: &Taker| {
            let before = first.taken.get(&taker.pid).copied().unwrap_or(0);
            Taker { total_ns: taker.total_ns.saturating_sub(before).min(waited_ns), ..taker.clone() }
        };
        let longest = self.takers.values().map(since).max_by_key(|taker| taker.total_ns);
        let longest = longest.filter(|taker| taker.total_ns > 0);
        Verdict::Holds { length_ns: of_ns, sentence: sentence(waited_ns, of_ns, longest) }
    }
}
