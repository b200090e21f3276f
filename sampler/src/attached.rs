//! Observer of a vCPU that runs in another VMM: the same sample, and a clock based on the host's scheduler
//! ([`crate::microstate`]).
//!
//! Behind a GDB stub there are no threads: stops are exact, and all other times are by ticks.

use std::time::Duration;

use guest_linux::PhysicalMemory;
use statistics::clock::TickHold;
use vmm::{AttachedThread, MissReason, Observer, ThreadId, Tick, monotonic_ns};

use crate::microstate::clock::ThreadState;
use crate::microstate::foreign::TickFinding;
use crate::microstate::host::ThreadReader;
use crate::vcpu::{TickUse, VcpuSampler};

/// Thread of a vCPU without one: in no process, and without a number.
const NOBODY: ThreadId = ThreadId { process: -1, thread: 0 };

/// Observer of a foreign vCPU.
#[derive(Debug)]
pub struct AttachedSampler {
    sampler: VcpuSampler,
    /// The vCPU's thread is being stopped for a sample.
    suspending: bool,
}

impl From<VcpuSampler> for AttachedSampler {
    fn from(sampler: VcpuSampler) -> Self {
        Self { sampler, suspending: false }
    }
}

impl<M: PhysicalMemory> Observer<M> for AttachedSampler {
    fn attached(&mut self, thread: Option<AttachedThread>) {
        let now_ns = monotonic_ns();
        self.sampler.attached_to(thread.as_ref());
        let (id, statistics) = thread.map_or((NOBODY, None), |thread| (thread.id, thread.statistics));
        let reader = statistics.map(ThreadReader::Foreign);
        let clock = &self.sampler.published().clock;
        clock.start_of(id, reader, now_ns);
        clock.change(ThreadState::Run, now_ns);
    }

    fn started(&mut self) -> Option<Duration> {
        self.sampler.first_interval()
    }

    fn rate_hz(&self) -> Option<f64> {
        self.sampler.rate_hz()
    }

    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        self.sampler.forget_request();
        match self.sampler.take_tick(now_ns) {
            TickUse::Pass(next) => Some(next),
            TickUse::Look | TickUse::Sample => None,
        }
    }

    fn suspending(&mut self, now_ns: u64) {
        self.suspending = true;
        self.sampler.ask(now_ns);
    }

    fn ticked(&mut self, tick: &Tick<'_, M>) -> Option<Duration> {
        self.sampler.published().clock.pause(false, tick.now_ns);
        self.sampler.set_nested(tick.in_nested_guest());
        self.sampler.set_registers(tick.known_registers());
        if let Some(waits) = tick.source.is_waiting() {
            self.sampler.note_wait(waits);
        }
        let mut halted = false;
        let next = self.sampler.serve(&tick.context, || {
            let activity = tick.activity();
            halted = matches!(activity, Some(vmm::Activity::Halted | vmm::Activity::NotStarted));
            activity
        });
        // A vCPU that is stopped does not wait for it.
        if !self.suspending {
            self.sampler.wake_collector();
        }
        self.sampler.published().seen.note(match (halted, tick.blocked) {
            (_, true) => TickFinding::Halted,
            (true, false) => TickFinding::Polling,
            (false, false) => TickFinding::Guest,
        });
        next
    }

    fn missed(&mut self, reason: MissReason, due_ns: u64, now_ns: u64) -> Option<Duration> {
        self.suspending = false;
        self.sampler.published().clock.pause(reason == MissReason::Paused, now_ns);
        match reason {
            MissReason::InVmm => self.sampler.published().seen.note(TickFinding::Vmm),
            MissReason::BlockedInVmm => self.sampler.published().seen.note(TickFinding::VmmBlocked),
            MissReason::Paused | MissReason::NotRun | MissReason::Traced => {}
        }
        self.sampler.next_after(due_ns, TickHold::since(now_ns))
    }

    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        let clock = &self.sampler.published().clock;
        clock.change(ThreadState::Sampler, from_ns);
        clock.change(ThreadState::Run, to_ns);
        self.suspending = false;
        self.sampler.wake_collector();
    }

    fn stopped(&mut self) {
        let clock = &self.sampler.published().clock;
        let times = clock.reader().and_then(|reader| reader.read());
        clock.end(monotonic_ns(), times);
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::fixture::{Config, Style};
    use guest_linux::{FlatMemory, Kernel};
    use kvm_bindings::{kvm_regs, kvm_sregs};
    use profile::rows::VcpuState;
    use statistics::clock::{ClockKind, Intervals};
    use vm_memory::{GuestAddress, GuestMemoryMmap};
    use vmm::{Activity, ActivitySource, TickContext};

    use super::*;
    use crate::capacity::QueueCapacity;
    use crate::record::{GuestCells, GuestReaders};
    use crate::sampling_rate::TickPlan;

    /// A vCPU that executes the guest, or a guest of the guest.
    #[derive(Debug)]
    struct ForeignVcpu {
        nested: bool,
    }

    impl ActivitySource for ForeignVcpu {
        fn activity(&self) -> Option<Activity> {
            Some(Activity::Running)
        }

        fn in_nested_guest(&self) -> bool {
            self.nested
        }
    }

    #[test]
    fn samples_without_room_are_counted_as_lost() {
        let capacity = QueueCapacity { ring: 3, pool: 1, reserve: 0 };
        let intervals = Intervals::new(ClockKind::Fixed, 0.1, 1, 0);
        let (sampler, mut ends, stats) = VcpuSampler::new(0, intervals, capacity, Default::default());
        let mut attached = AttachedSampler::from(sampler);
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let (regs, sregs) = Default::default();
        let mut tick = |now_ns| {
            let context = TickContext {
                due_ns: now_ns,
                now_ns,
                in_run: true,
                regs: &regs,
                sregs: &sregs,
                memory: &memory,
            };
            let next =
                attached.ticked(&Tick { context, blocked: true, source: &ForeignVcpu { nested: false } });
            assert!(next.is_some(), "the ticks continue");
        };
        (1..=5).for_each(&mut tick);
        assert_eq!(stats.samples(), (3, 2));
        assert_eq!(ends.samples.pop().expect("the first one").record.time_ns, 1, "the oldest ones are kept");
        tick(6);
        assert_eq!(stats.samples(), (4, 2));
    }

    #[test]
    fn a_sample_of_a_guest_of_the_guest_has_none_of_its_registers() {
        let capacity = QueueCapacity { ring: 8, pool: 1, reserve: 0 };
        let intervals = Intervals::new(ClockKind::Fixed, 0.1, 1, 2);
        let (sampler, mut ends, _) = VcpuSampler::new(2, intervals, capacity, Default::default());
        let mut attached = AttachedSampler::from(sampler);
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let regs = kvm_regs { rip: 0x1234_5000, rsp: 8, ..Default::default() };
        let sregs = kvm_sregs { cr3: 0x5000, cr0: 1 << 31 | 1, efer: 1 << 10, ..Default::default() };
        for nested in [true, false] {
            let now_ns = monotonic_ns();
            let context = TickContext {
                due_ns: now_ns,
                now_ns,
                in_run: true,
                regs: &regs,
                sregs: &sregs,
                memory: &memory,
            };
            attached.ticked(&Tick { context, blocked: false, source: &ForeignVcpu { nested } });
            let sample = ends.samples.pop().expect("a sample");
            assert_eq!(sample.record.nested, nested);
            assert_eq!(sample.record.vcpu_state, VcpuState::Guest);
            let wanted = if nested { (0, 0, 0) } else { (regs.rip, regs.rsp, sregs.cr3) };
            assert_eq!((sample.record.rip.0, sample.record.rsp, sample.record.cr3), wanted);
            assert!(!nested || sample.stack.is_none());
        }
    }

    #[test]
    fn a_vcpu_is_stopped_for_a_look_whose_stack_is_not_copied() {
        let mut config = Config::new(Style::V6_12);
        config.running = vec![101, 102];
        let guest = config.build();
        let memory = &guest.memory;
        let kernel = Kernel::find(memory, guest.cr3, guest.five_level).expect("a kernel");
        let current = kernel.current_reader(memory).expect("a reader");
        let stacks = Some((kernel.stack_reader(memory).expect("stacks"), 4096));
        let cells = GuestCells::default();
        drop(cells.readers.set(GuestReaders { current, stacks }));
        let capacity = QueueCapacity { ring: 8, pool: 1, reserve: 0 };
        let intervals = Intervals::new(ClockKind::Fixed, 100.0, 1, 0);
        let (sampler, mut ends, stats) = VcpuSampler::new(0, intervals, capacity, cells);
        let mut attached = AttachedSampler::from(sampler);
        let at = |ms: u64| 1_000_000_000_000 + ms * 1_000_000;
        let mut tick = |ms| {
            let now_ns = at(ms);
            if Observer::<FlatMemory<Vec<u8>>>::pass(&mut attached, now_ns).is_some() {
                return None;
            }
            let regs = kvm_regs { rip: guest.text(0x1404).0, rflags: 0x202, ..Default::default() };
            let mut sregs =
                kvm_sregs { cr0: 0x8000_0001, cr3: guest.cr3, cr4: 1 << 12, ..Default::default() };
            (sregs.efer, sregs.cs.l) = (0x500, 1);
            let context =
                TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory };
            attached.ticked(&Tick { context, blocked: false, source: &ForeignVcpu { nested: false } });
            let taken = ends.samples.pop().expect("a record");
            let task = taken.record.current.and_then(|current| current.task).map(|task| task.tid);
            let copied = taken.stack.is_some();
            taken.stack.into_iter().for_each(|stack| ends.buffers.give_back(stack));
            Some((taken.look, task, copied))
        };
        assert_eq!(tick(0), Some((false, Some(101), true)));
        stats.pace.want(TickPlan::Looks(2.0));
        let found: Vec<_> = (1..=12).map(|check| tick(50 * check)).collect();
        assert_eq!(found.iter().flatten().count(), 2, "{found:?}");
        assert!(found.iter().flatten().all(|look| *look == (true, Some(101), false)), "{found:?}");
    }

    #[test]
    fn a_vcpu_is_the_cpu_with_its_apic_id() {
        let mut config = Config::new(Style::V6_12);
        (config.apic_ids, config.running) = (vec![0, 4], vec![1, 102]);
        let guest = config.build();
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
        let current = kernel.current_reader(&guest.memory).expect("a reader");
        let cells = GuestCells::default();
        drop(cells.readers.set(GuestReaders { current, stacks: None }));
        let (regs, sregs, now_ns) = (kvm_regs::default(), kvm_sregs::default(), monotonic_ns());
        let memory = &guest.memory;
        let sampled = |thread: Option<AttachedThread>| {
            let capacity = QueueCapacity { ring: 3, pool: 1, reserve: 0 };
            let intervals = Intervals::new(ClockKind::Fixed, 0.1, 1, 1);
            // The second vCPU of the machine.
            let (sampler, mut ends, _) = VcpuSampler::new(1, intervals, capacity, cells.clone());
            let mut attached = AttachedSampler::from(sampler);
            Observer::<FlatMemory<Vec<u8>>>::attached(&mut attached, thread);
            let context =
                TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory };
            attached.ticked(&Tick { context, blocked: false, source: &ForeignVcpu { nested: false } });
            let record = ends.samples.pop().expect("a sample").record;
            record.current.and_then(|current| current.task).map(|task| task.tid)
        };
        let id = ThreadId { process: 1, thread: 1 };
        assert_eq!(sampled(Some(AttachedThread { id, cpu: 4, statistics: None })), Some(102));
        // Behind a GDB stub.
        assert_eq!(sampled(None), Some(102));
    }
}
