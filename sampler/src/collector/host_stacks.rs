//! Stacks of vCPUs' threads in the host, as the host's kernel takes them at ticks.

use std::collections::HashMap;

use attach::{HostFrame, HostFrameKind, HostNames, HostState, HostTick};
use display::clean;
use profile::rows::{Batch, FrameKind, HostFrameRow, HostSampleRow, ThreadPlace};

use super::Collector;
use crate::resolve::stacks::StackTable;

/// Frames that are remembered at once. Beyond that all are forgotten and get new rows.
const REMEMBERED: usize = 1 << 18;

/// Rows of the host's stacks.
#[derive(Debug)]
pub(super) struct HostStackTable {
    names: HostNames,
    frames: HashMap<HostFrame, u32>,
    given: u32,
    stacks: StackTable,
    /// Ticks for which there was no room.
    lost: u64,
}

impl HostStackTable {
    pub(super) fn new(names: HostNames) -> Self {
        Self { names, frames: HashMap::new(), given: 0, stacks: StackTable::default(), lost: 0 }
    }

    /// Returns the number of ticks for which there was no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds the row of a tick, but not of one in the guest without a stack. `zero_ns` is the start of the
    /// profile, CLOCK_MONOTONIC.
    fn add(&mut self, vcpu: u8, tick: &HostTick, zero_ns: u64, batch: &mut Batch) {
        let frames = self.names.frames(tick);
        if frames.is_empty() {
            return;
        }
        let ids: Vec<u32> = frames.iter().map(|frame| self.frame(frame, batch)).collect();
        batch.host_samples.push(HostSampleRow {
            vcpu,
            time_ns: tick.time_ns.saturating_sub(zero_ns),
            place: match tick.state {
                HostState::Guest => ThreadPlace::Guest,
                HostState::Kvm => ThreadPlace::Kvm,
                HostState::Halted => ThreadPlace::Halted,
                HostState::Waiting => ThreadPlace::Waiting,
                HostState::Vmm => ThreadPlace::Vmm,
            },
            on_cpu: tick.on_cpu,
            stack: self.stacks.intern(ids.into_iter(), &mut batch.host_stacks),
        });
    }

    /// Returns the row id of a frame.
    fn frame(&mut self, frame: &HostFrame, batch: &mut Batch) -> u32 {
        if let Some(id) = self.frames.get(frame) {
            return *id;
        }
        if self.frames.len() >= REMEMBERED {
            self.frames.clear();
        }
        self.given = self.given.saturating_add(1);
        self.frames.insert(*frame, self.given);
        let name = self.names.name(frame);
        batch.host_frames.push(HostFrameRow {
            id: self.given,
            kind: match frame.kind {
                HostFrameKind::Kernel => FrameKind::Kernel,
                HostFrameKind::User => FrameKind::User,
                HostFrameKind::Missing(_) => FrameKind::Reason,
            },
            address: frame.address,
            call: frame.call,
            symbol: name.symbol.map(|symbol| clean::printable(&symbol)),
            module: name.module.map(|module| clean::printable(&module)),
            offset: name.offset,
        });
        self.given
    }
}

impl Collector {
    /// Sets the names of the host's functions: their stacks are taken.
    pub(crate) fn set_host_names(&mut self, names: HostNames) {
        self.host_stacks = Some(HostStackTable::new(names));
    }

    /// Takes the ticks with stacks of the host. Those of a time in which samples are dropped are dropped,
    /// too.
    pub(super) fn take_host_ticks(&mut self) {
        let Some(table) = &mut self.host_stacks else { return };
        for (vcpu, (ticks, lost)) in self.counters.take_host_ticks() {
            table.lost = table.lost.saturating_add(lost);
            // Ticks while sampling is off are looks.
            let on = !self.gate.is_closed() && self.shared.status().sampling;
            for tick in ticks.iter().filter(|_| on) {
                table.add(vcpu, tick, self.shared.zero_ns, &mut self.batch);
            }
        }
    }
}
