//! Observer of a vCPU that runs in another VMM: the same sample, and a clock based on the host's scheduler
//! ([`crate::microstate`]).
//!
//! Behind a GDB stub there are no threads: stops are exact, and all other times are by ticks.

use std::time::Duration;

use attach::StopMemory;
use vmm::{MissReason, Observer, ThreadId, Tick, monotonic_ns};

use crate::microstate::clock::ThreadState;
use crate::microstate::foreign::TickFinding;
use crate::microstate::host::{ThreadReader, schedstat_of};
use crate::vcpu::VcpuSampler;
use profile::clock::TickHold;

/// Thread of a vCPU without one: in no process, and without a number.
const NOBODY: ThreadId = ThreadId { process: -1, thread: 0 };

/// Observer of a foreign vCPU.
#[derive(Debug)]
pub struct AttachedSampler(VcpuSampler);

impl From<VcpuSampler> for AttachedSampler {
    fn from(sampler: VcpuSampler) -> Self {
        Self(sampler)
    }
}

impl Observer<StopMemory> for AttachedSampler {
    fn attached(&mut self, thread: Option<ThreadId>) {
        let now_ns = monotonic_ns();
        let ThreadId { process, thread } = thread.unwrap_or(NOBODY);
        let times = ThreadReader::of(process, thread).and_then(|reader| reader.read());
        self.0.attached_to((thread != NOBODY.thread).then(|| schedstat_of(process, thread)));
        let clock = &self.0.published().clock;
        clock.start_of(process, thread, now_ns, times);
        clock.change(ThreadState::Run, now_ns);
    }

    fn started(&mut self) -> Option<Duration> {
        self.0.first_interval()
    }

    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        let passed = self.0.pass_while_off(now_ns);
        if passed.is_none() {
            self.0.ask(now_ns);
        }
        passed
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        self.0.published().clock.pause(false, tick.now_ns);
        self.0.nested(tick.in_nested_guest());
        if let Some(waits) = tick.source.is_waiting() {
            self.0.note_wait(waits);
        }
        let mut halted = false;
        let next = self.0.serve(&tick.context, || {
            let activity = tick.activity();
            halted = matches!(activity, Some(vmm::Activity::Halted | vmm::Activity::NotStarted));
            activity
        });
        self.0.published().seen.note(match (halted, tick.blocked) {
            (_, true) => TickFinding::Halted,
            (true, false) => TickFinding::Polling,
            (false, false) => TickFinding::Guest,
        });
        next
    }

    fn missed(&mut self, reason: MissReason, due_ns: u64, now_ns: u64) -> Option<Duration> {
        self.0.published().clock.pause(reason == MissReason::Paused, now_ns);
        match reason {
            MissReason::InVmm => self.0.published().seen.note(TickFinding::Vmm),
            MissReason::BlockedInVmm => self.0.published().seen.note(TickFinding::VmmBlocked),
            MissReason::Paused | MissReason::NotRun | MissReason::Traced => {}
        }
        self.0.next_after(due_ns, TickHold::since(now_ns))
    }

    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        let clock = &self.0.published().clock;
        clock.change(ThreadState::Sampler, from_ns);
        clock.change(ThreadState::Run, to_ns);
    }

    fn stopped(&mut self) {
        let clock = &self.0.published().clock;
        let times = clock.reader().and_then(|reader| reader.read());
        clock.end(monotonic_ns(), times);
    }
}
