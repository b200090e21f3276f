//! Observer of a vCPU that runs in another VMM: the same sample, and a clock based on the host's scheduler
//! ([`crate::microstate`]).
//!
//! Behind a GDB stub there are no threads: stops are exact, and all other times are by ticks.

use std::time::Duration;

use attach::{Missed, Observer, ThreadId, Tick};
use linux::PhysicalMemory;
use vmm::monotonic_ns;

use crate::microstate::clock::Place;
use crate::microstate::foreign::Sight;
use crate::microstate::host::{ThreadReader, schedstat_of};
use crate::record::Moment;
use crate::vcpu::VcpuSampler;
use profile::clock::Held;

/// Thread of a vCPU without one: in no process, and without a number.
const NOBODY: ThreadId = ThreadId { process: -1, thread: 0 };

impl Observer for VcpuSampler {
    fn started(&mut self, thread: Option<ThreadId>) -> Option<Duration> {
        let now = monotonic_ns();
        let ThreadId { process, thread } = thread.unwrap_or(NOBODY);
        let times = ThreadReader::of(process, thread).and_then(|reader| reader.read());
        self.attached_to((thread != NOBODY.thread).then(|| schedstat_of(process, thread)));
        let clock = &self.published().clock;
        clock.start_of(process, thread, now, times);
        clock.change(Place::Run, now);
        self.first_interval()
    }

    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        let passed = self.pass_while_off(now_ns);
        if passed.is_none() {
            self.ask(now_ns);
        }
        passed
    }

    fn ticked<M: PhysicalMemory>(&mut self, tick: &Tick<'_, M>) -> Option<Duration> {
        self.published().clock.pause(false, tick.now_ns);
        let moment = Moment {
            due_ns: tick.due_ns,
            now_ns: tick.now_ns,
            in_run: true,
            regs: tick.regs,
            sregs: tick.sregs,
            memory: tick.memory,
        };
        let mut halted = false;
        let next = self.serve(&moment, || {
            let activity = tick.activity();
            halted = matches!(activity, Some(vmm::Activity::Halted | vmm::Activity::NotStarted));
            activity
        });
        self.published().seen.note(match (halted, tick.blocked) {
            (_, true) => Sight::Halted,
            (true, false) => Sight::Polling,
            (false, false) => Sight::Guest,
        });
        next
    }

    fn missed(&mut self, why: Missed, due_ns: u64, now_ns: u64) -> Option<Duration> {
        self.published().clock.pause(why == Missed::Paused, now_ns);
        match why {
            Missed::InVmm => self.published().seen.note(Sight::Vmm),
            Missed::BlockedInVmm => self.published().seen.note(Sight::VmmBlocked),
            Missed::Paused | Missed::NotRun | Missed::Traced => {}
        }
        self.next_after(due_ns, Held::since(now_ns))
    }

    fn held(&mut self, from_ns: u64, to_ns: u64) {
        let clock = &self.published().clock;
        clock.change(Place::Sampler, from_ns);
        clock.change(Place::Run, to_ns);
    }

    fn stopped(&mut self) {
        let clock = &self.published().clock;
        let times = clock.reader().and_then(|reader| reader.read());
        clock.end(monotonic_ns(), times);
    }
}
