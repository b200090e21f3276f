//! Observer of one vCPU: draws the intervals, records the samples, keeps the vCPU's clock.
//!
//! A state change reads the clock once (Chubb), so the times are exact:
//!
//! ```text
//!   started ─── entering ──── exited ─────── entering ──── exited ── ticked ── entering ── ... ── stopped
//!       └─ VMM ─┘  └── KVM_RUN ─┘  └── VMM ──┘  └── KVM_RUN ─┘  └── sampler ──┘
//! ```

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use guest_linux::{PhysicalMemory, StackCopy};
use kvm_bindings::kvm_regs;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use vmm::{
    Activity, AttachedThread, Exit, KnownRegisters, Observer, ProbeHit, ProbeVerdict, Tick, TickContext,
    monotonic_ns,
};

use crate::buffer_pool::{BufferPool, BufferReturns, buffer_pool};
use crate::capacity::QueueCapacity;
use crate::exact::record::EventRecorder;
use crate::guest_cpu::GuestCpu;
use crate::kexec::KernelCheck;
use crate::managed::FrameCopier;
use crate::microstate::clock::ThreadState;
use crate::microstate::host::{own_cpu_time, own_times};
use crate::microstate::stats::VcpuStats;
use crate::microstate::wait::WaitDetector;
use crate::record::{self, GuestCells, GuestReaders, SampleMessage, SampleRecord};
use crate::sampling_rate::TickPlan;
use profile::rows::VcpuState;
use statistics::clock::{Intervals, TickHold};

/// Delay of a tick that means that the host had stopped the process (SIGSTOP), ns. The host's scheduler does
/// not count such a stop as a wait.
const STOPPED_NS: u64 = 500_000_000;

/// Meter of the cost to enter and leave KVM_RUN with a halted guest, by the thread's own CPU time. The time
/// that KVM polls for a wake-up meanwhile counts as halted, so it is left out. Clock and counter are read
/// only while the vCPU idles.
#[derive(Debug, Default)]
struct IdleCost {
    /// The registers of the halted vCPU at the last tick.
    regs: Option<kvm_regs>,
    /// At the last entry: time that KVM had polled, and the thread's CPU time, ns.
    entered: Option<(u64, u64)>,
    /// CPU time of the last KVM_RUN, ns.
    spent: Option<u64>,
}

impl IdleCost {
    fn entering(&mut self, polled: impl FnOnce() -> Option<u64>) {
        self.entered = self.regs.and_then(|_| Some((polled().unwrap_or(0), own_cpu_time()?)));
    }

    fn exited(&mut self, exit: Exit, polled: impl FnOnce() -> Option<u64>) {
        self.spent = self.entered.take().and_then(|(polled_before, from)| {
            let ran = own_cpu_time()?.checked_sub(from)?;
            Some(ran.saturating_sub(polled().unwrap_or(0).saturating_sub(polled_before)))
        });
        if exit != Exit::Interrupted {
            self.regs = None;
        }
    }

    /// Notes a tick that found the vCPU halted with these registers, or not halted. Returns the cost of the
    /// last KVM_RUN if the vCPU has not run in it: all its registers are those of the tick before.
    fn ticked(&mut self, halted: Option<&kvm_regs>) -> Option<u64> {
        let before = std::mem::replace(&mut self.regs, halted.copied());
        let spent = self.spent.take();
        spent.filter(|_| before.is_some() && before == self.regs)
    }
}

/// Time between two checks of the rate while sampling is off. Looks are made at checks.
const RATE_CHECK: Duration = Duration::from_millis(50);

/// Use of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickUse {
    /// Sampling is off, and no look is due: the next tick follows after this time.
    Pass(Duration),
    /// Sampling is off, and a look is due.
    Look,
    /// The tick takes a sample.
    Sample,
}

/// The collector's ends of the ring and the pool that it shares with a vCPU.
#[derive(Debug)]
pub(crate) struct RingEnds {
    /// Samples come out here.
    pub samples: Consumer<SampleMessage>,
    /// Stack buffers go back here.
    pub buffers: BufferReturns,
}

/// Observer of one vCPU.
pub struct VcpuSampler {
    intervals: Option<Intervals>,
    /// Purpose of the present ticks.
    plan: TickPlan,
    /// Time at which a look is due, CLOCK_MONOTONIC ns. It is made at the check of the rate that follows.
    look_due_ns: u64,
    ring: Producer<SampleMessage>,
    /// Stack buffers, given back by the collector.
    buffers: BufferPool,
    /// A buffer that was taken but not sent.
    spare: Option<Box<StackCopy>>,
    readers: Arc<OnceLock<GuestReaders>>,
    /// Copier of the frames of managed languages.
    frames: FrameCopier,
    kernel_check: KernelCheck,
    collector: Arc<OnceLock<Thread>>,
    vcpu: usize,
    /// The guest kernel's name for it.
    cpu: GuestCpu,
    published: Arc<VcpuStats>,
    /// Beginning of the last KVM_RUN, CLOCK_MONOTONIC ns.
    entered_ns: u64,
    /// End of the last KVM_RUN, CLOCK_MONOTONIC ns.
    exited_ns: u64,
    /// Detector of ticks that were due while the thread waited for a CPU of the host.
    wait: WaitDetector,
    /// Start of the last exact event, and the entry after it, CLOCK_MONOTONIC ns: the sampler's time, in
    /// which the clock runs.
    event: Option<(u64, u64)>,
    /// There is no thread, so the delay of a tick has no meaning.
    threadless: bool,
    idle: IdleCost,
    /// Exact mode, if it is on.
    recorder: Option<EventRecorder>,
    /// The tick that is being served hit a guest of the guest.
    nested: bool,
    /// Registers that are known at that tick.
    registers: KnownRegisters,
}

impl fmt::Debug for VcpuSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VcpuSampler").field("vcpu", &self.vcpu).finish_non_exhaustive()
    }
}

impl VcpuSampler {
    /// Creates the observer of vCPU `vcpu`, the other ends of its ring of samples and of its pool of stack
    /// buffers, and its statistics.
    pub(crate) fn new(
        vcpu: u8,
        intervals: Option<Intervals>,
        capacity: QueueCapacity,
        cells: GuestCells,
    ) -> (Self, RingEnds, Arc<VcpuStats>) {
        let (ring, samples) = RingBuffer::new(capacity.ring);
        let (buffers, returns) = buffer_pool(capacity.pool, capacity.reserve);
        let ends = RingEnds { samples, buffers: returns };
        let published = Arc::new(VcpuStats::default());
        let plan = TickPlan::Samples(intervals.as_ref().map_or(0.0, Intervals::rate_hz));
        published.pace.start(plan);
        let sampler = Self {
            intervals,
            plan,
            look_due_ns: 0,
            ring,
            buffers,
            spare: None,
            readers: cells.readers,
            frames: FrameCopier::new(cells.runtimes),
            kernel_check: KernelCheck::new(cells.identity),
            collector: cells.collector,
            vcpu: usize::from(vcpu),
            cpu: GuestCpu::ApicId(usize::from(vcpu)),
            published: Arc::clone(&published),
            entered_ns: 0,
            exited_ns: 0,
            wait: WaitDetector::default(),
            event: None,
            threadless: false,
            idle: IdleCost::default(),
            recorder: None,
            nested: false,
            registers: KnownRegisters::All,
        };
        (sampler, ends, published)
    }

    /// Wakes the collector, which has a sample to take. Not for a vCPU's own thread: it makes a system call.
    pub(crate) fn wake_collector(&self) {
        if let Some(collector) = self.collector.get() {
            collector.unpark();
        }
    }

    /// Serves one tick: the body of [`Observer::ticked`], with the tick's parts as arguments so that it runs
    /// on any registers and memory. Never allocates. Returns how long the guest runs until the next tick.
    ///
    /// The clock is stopped while a tick keeps the guest from running, and runs during anything else,
    /// whenever ticks are served ([`Intervals::next_after`]).
    pub fn serve<M: PhysicalMemory>(
        &mut self,
        context: &TickContext<'_, M>,
        activity: impl FnOnce() -> Option<Activity>,
    ) -> Option<Duration> {
        // While sampling is off, a tick checks the rate, and may look at the guest.
        match self.take_tick(context.now_ns) {
            TickUse::Pass(next) => return Some(next),
            TickUse::Look => {
                let (_, record) = self.read_record(context, activity);
                // Without room, others are on their way to the collector.
                drop(self.ring.push(SampleMessage { record, look: true, ..SampleMessage::default() }));
                return self.next_after(context.due_ns, TickHold::since(context.now_ns));
            }
            TickUse::Sample => {}
        }
        // The clock of states shows nothing of a tick that was due while an event was served.
        if !context.in_run && self.event.is_some_and(|(from, to)| (from..to).contains(&context.due_ns)) {
            return self.next_after(context.due_ns, TickHold::since(context.now_ns));
        }
        let (cpu, mut record) = self.read_record(context, activity);
        let (readers, nested) = (self.readers.get(), self.nested);
        let wait = self.wait.waited_at(context.due_ns, context.now_ns);
        let stopped = !self.threadless && record.late_ns >= STOPPED_NS;
        record.vcpu_state = vcpu_state(&record, context.in_run, wait.is_some() || stopped);
        // The vCPU's own timer interrupts the guest at once: a delay is that of the thread's way out of KVM.
        let is_own = self.wait.is_own();
        let held = match (record.vcpu_state, wait) {
            (VcpuState::Guest, _) if is_own => TickHold::since(context.due_ns),
            (VcpuState::Waiting, Some(held)) if !stopped => held,
            _ => TickHold::since(context.now_ns),
        };
        if let (VcpuState::Guest, Some(recorder), Some(intervals)) =
            (record.vcpu_state, &mut self.recorder, &self.intervals)
            && !nested
        {
            recorder.sampled(context.regs.rip, intervals.mean_ns());
        }
        if let Some(ns) = self.idle.ticked(record.halted.then_some(context.regs)) {
            VcpuStats::add_ns(&self.published.kvm_ns, ns);
        }
        let mut sampled = SampleMessage { record, ..SampleMessage::default() };
        // A halted vCPU is in the idle task, whose stack is always the same.
        if let Some((reader, user_bytes)) = readers.and_then(|readers| readers.stacks.as_ref())
            && let Some(cpu) = cpu
            && !record.halted
            && !nested
            && self.registers == KnownRegisters::All
        {
            sampled.stack = self.spare.take().or_else(|| self.buffers.take());
            match &mut sampled.stack {
                Some(stack) => {
                    record::copy_stacks((reader, *user_bytes), cpu, context, &record, stack);
                    let task = record.current.and_then(|current| current.task);
                    if task.is_some_and(|task| !task.kernel_thread) {
                        let thread = (context.sregs.fs.base, record.five_level);
                        self.frames.copy(context.memory, thread, stack);
                    }
                }
                None => sampled.stack_missed = true,
            }
        }
        // The vCPU never waits for the collector: a sample without room is lost and counted.
        match self.ring.push(sampled) {
            Ok(()) => {
                VcpuStats::add(&self.published.samples);
            }
            Err(PushError::Full(sampled)) => {
                self.spare = sampled.stack;
                VcpuStats::add(&self.published.lost);
            }
        }
        if is_own && !stopped && matches!(record.vcpu_state, VcpuState::Guest | VcpuState::Waiting) {
            self.stopped_since(held.passed_ns);
        }
        self.next_after(context.due_ns, held)
    }
}

impl VcpuSampler {
    /// Reads the record of a tick, and the guest kernel's number of the vCPU.
    fn read_record<M: PhysicalMemory>(
        &mut self,
        context: &TickContext<'_, M>,
        activity: impl FnOnce() -> Option<Activity>,
    ) -> (Option<usize>, SampleRecord) {
        let readers = self.readers.get();
        let cpu = readers.and_then(|readers| self.cpu.apic_id(readers.current.cpus()));
        let current = |memory: &M| readers?.current.read(memory, cpu?);
        let mut record = match self.registers {
            _ if self.nested => record::read_nested(context, current),
            KnownRegisters::All => record::read_record(context, current, activity),
            some => record::read_partial(context, some, current, activity),
        };
        // Checked while the vCPU is stopped: later the page tables may belong to another process.
        if self.registers == KnownRegisters::All {
            record.kernel_mapped = self.kernel_check.check(&record, context.memory);
        }
        (cpu, record)
    }

    /// Sets whether the registers of the next tick are those of a guest of the guest.
    pub(crate) fn set_nested(&mut self, nested: bool) {
        self.nested = nested;
    }

    /// Sets the registers that are known at the next tick.
    pub(crate) fn set_registers(&mut self, registers: KnownRegisters) {
        self.registers = registers;
    }

    /// Returns the mean rate of the ticks, Hz; `None` while there are none.
    pub(crate) fn rate_hz(&self) -> Option<f64> {
        Some(self.plan.ticks_hz()).filter(|hz| *hz > 0.0)
    }

    /// Charges the time since `from_ns` to the sampler: since the tick was due, or since the thread had a CPU
    /// again. The tick keeps the guest from running for all of it, and the clock of ticks does not run: as
    /// time of the guest, it would be shared out among all samples, whichever of them were late.
    fn stopped_since(&mut self, from_ns: u64) {
        let since_ns = from_ns.max(self.entered_ns).min(self.exited_ns);
        self.published.clock.charge_to_sampler(self.exited_ns - since_ns);
        // Never twice.
        self.entered_ns = self.exited_ns;
        if let Some(recorder) = &mut self.recorder {
            recorder.interrupted(since_ns);
        }
    }

    /// Returns [`Intervals::next_after`], or the time until the rate is checked again.
    pub(crate) fn next_after(&mut self, due_ns: u64, held: TickHold) -> Option<Duration> {
        if let TickPlan::Off | TickPlan::Looks(_) = self.plan {
            self.plan_look(held.stood_ns);
            return Some(RATE_CHECK);
        }
        let intervals = self.intervals.as_mut()?;
        Some(Duration::from_nanos(intervals.next_after(due_ns, held)))
    }

    /// Returns the time to the first tick.
    pub(crate) fn first_interval(&mut self) -> Option<Duration> {
        self.intervals.as_mut().map(|intervals| Duration::from_nanos(intervals.first_ns()))
    }

    /// Adopts another rate, and returns the use of the tick. A tick that ends a time without sampling is not
    /// a sample, because a check of the rate is not random.
    pub(crate) fn take_tick(&mut self, now_ns: u64) -> TickUse {
        let before = self.plan;
        if let (Some(plan), Some(intervals)) = (self.published.pace.take(now_ns), &mut self.intervals) {
            self.plan = plan;
            intervals.set_rate(plan.sampled_hz());
        }
        match (before, self.plan) {
            (TickPlan::Samples(_), _) => TickUse::Sample,
            (_, TickPlan::Looks(_)) if now_ns >= self.look_due_ns => TickUse::Look,
            _ => TickUse::Pass(self.next_alone()),
        }
    }

    /// Plans the look that follows a tick at `now_ns`, for the check of the rate that is nearest to it.
    fn plan_look(&mut self, now_ns: u64) {
        if let TickPlan::Looks(hz) = self.plan {
            let pause = Duration::try_from_secs_f64(1.0 / hz).unwrap_or(Duration::MAX);
            let pause_ns =
                u64::try_from((pause.saturating_sub(RATE_CHECK / 2)).as_nanos()).unwrap_or(u64::MAX);
            self.look_due_ns = now_ns.saturating_add(pause_ns);
        }
    }

    pub(crate) fn published(&self) -> &VcpuStats {
        &self.published
    }

    /// Attaches to a vCPU whose thread, if it has one, is another process'.
    pub(crate) fn attached_to(&mut self, thread: Option<&AttachedThread>) {
        self.threadless = thread.is_none();
        let cpu = thread.map_or(GuestCpu::Nth(self.vcpu), |thread| GuestCpu::ApicId(thread.cpu));
        self.cpu = *self.published.cpu.get_or_init(|| cpu);
        self.wait = WaitDetector::foreign(thread.and_then(|thread| thread.statistics.clone()));
    }

    /// Notes that a tick of another process' thread begins, for which the thread may not be stopped.
    pub(crate) fn forget_request(&mut self) {
        self.wait.forget_request();
    }

    /// Notes that the thread, another process', is about to be stopped for a tick.
    pub(crate) fn ask(&mut self, now_ns: u64) {
        self.wait.ask(now_ns);
    }

    /// Notes whether the thread, another process', waits for a CPU at the tick that is about to be served.
    pub(crate) fn note_wait(&mut self, waits: bool) {
        self.wait.note(waits);
    }

    /// Returns the time to the next tick, counted from now.
    fn next_alone(&mut self) -> Duration {
        match &mut self.intervals {
            Some(intervals) if self.plan.sampled_hz() > 0.0 => Duration::from_nanos(intervals.first_ns()),
            _ => RATE_CHECK,
        }
    }

    /// Turns on the recording of events.
    pub(crate) fn record_events(&mut self, recorder: EventRecorder) {
        self.recorder = Some(recorder);
    }
}

/// Returns the state of the vCPU at the tick, by the same entries and exits as the clock of states.
fn vcpu_state(record: &SampleRecord, in_run: bool, waited: bool) -> VcpuState {
    if record.halted {
        VcpuState::Halted
    } else if !in_run {
        VcpuState::Vmm
    } else if waited {
        VcpuState::Waiting
    } else {
        VcpuState::Guest
    }
}

impl Observer for VcpuSampler {
    fn started(&mut self) -> Option<Duration> {
        let now = monotonic_ns();
        self.wait = WaitDetector::own();
        self.published.exits.make_room();
        self.published.clock.start(now, own_times());
        self.first_interval()
    }

    fn entering(&mut self, now_ns: u64) {
        self.entered_ns = now_ns;
        self.published.exits.end(now_ns.saturating_sub(self.exited_ns));
        self.published.clock.change(ThreadState::Run, now_ns);
        if let Some((_, to_ns @ u64::MAX)) = &mut self.event {
            *to_ns = now_ns;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.entering(now_ns);
        }
        let polls = self.published.polls.get();
        self.idle.entering(|| polls?.read());
    }

    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.exited_ns = now_ns;
        let state = if exit == Exit::Interrupted { ThreadState::Sampler } else { ThreadState::Vmm };
        self.published.clock.change(state, now_ns);
        self.published.exits.begin(exit);
        if let (Exit::Interrupted, Some(recorder)) = (exit, &mut self.recorder) {
            recorder.interrupted(now_ns);
        }
        VcpuStats::add(&self.published.exit_count);
        let polls = self.published.polls.get();
        self.idle.exited(exit, || polls?.read());
    }

    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.set_nested(tick.in_nested_guest());
        self.serve(&tick.context, || tick.activity())
    }

    fn probe_hit(&mut self, hit: &ProbeHit<'_>) -> ProbeVerdict {
        self.published.clock.change(ThreadState::Sampler, hit.now_ns);
        self.event = Some((hit.now_ns, u64::MAX));
        let Some(recorder) = &mut self.recorder else { return ProbeVerdict::Keep };
        let ProbeHit { kind, now_ns, regs, sregs, memory } = *hit;
        let context = TickContext { due_ns: now_ns, now_ns, in_run: true, regs, sregs, memory };
        if recorder.hit(kind, &context) { ProbeVerdict::Withdraw } else { ProbeVerdict::Keep }
    }

    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        self.published.clock.change(ThreadState::Paused, from_ns);
        self.published.clock.change(ThreadState::Sampler, to_ns);
    }

    fn stopped(&mut self) {
        self.published.clock.end(monotonic_ns(), own_times());
    }
}

#[cfg(test)]
mod tests {
    use kvm_bindings::kvm_sregs;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use std::time::Instant;

    use super::*;
    use profile::rows::Microstates;
    use statistics::clock::ClockKind;
    use vmm::ThreadId;

    fn sampler(slots: usize, kind: ClockKind) -> (VcpuSampler, Consumer<SampleMessage>, Arc<VcpuStats>) {
        let (sampler, ends, counters) = VcpuSampler::new(
            2,
            Intervals::new(kind, 0.1, 1, 2),
            QueueCapacity { ring: slots, pool: 1, reserve: 0 },
            Default::default(),
        );
        (sampler, ends.samples, counters)
    }

    fn tick(sampler: &mut VcpuSampler, due_ns: u64, now_ns: u64) -> Option<Duration> {
        tick_in(true, sampler, due_ns, now_ns)
    }

    fn tick_in(in_run: bool, sampler: &mut VcpuSampler, due_ns: u64, now_ns: u64) -> Option<Duration> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let (regs, sregs) = (kvm_regs::default(), kvm_sregs::default());
        sampler.serve(
            &TickContext { due_ns, now_ns, in_run, regs: &regs, sregs: &sregs, memory: &memory },
            || None,
        )
    }

    #[test]
    fn a_full_ring_counts_and_never_blocks() {
        let (mut sampler, mut ring, counters) = sampler(3, ClockKind::Fixed);
        sampler.started();
        for _ in 0..5 {
            let now = monotonic_ns();
            assert!(tick(&mut sampler, now, now).is_some());
        }
        let row = counters.row(2, Microstates::default());
        assert_eq!((row.id, row.samples, row.lost), (2, 3, 2));
        assert!(ring.pop().is_ok());
        let now = monotonic_ns();
        tick(&mut sampler, now, now);
        let row = counters.row(2, Microstates::default());
        assert_eq!((row.samples, row.lost), (4, 2));
    }

    #[test]
    fn the_clock_stands_still_with_the_guest_alone() {
        let (mut sampler, _ring, _) = sampler(8, ClockKind::Fixed);
        let seconds = Duration::from_secs;
        assert_eq!(sampler.started(), Some(seconds(10)));
        // This thread may have waited for a CPU of the host since the last tick.
        let late_ticks = std::iter::repeat_with(|| {
            let now = monotonic_ns();
            tick(&mut sampler, now - 400_000_000, now)
        });
        assert!(late_ticks.take(100).any(|left| left == Some(seconds(10))));
        // A longer delay is that of a stop by a signal, during which the time has passed.
        let now = monotonic_ns();
        let left = tick(&mut sampler, now - 4_000_000_000, now).expect("ticks");
        assert!(left <= seconds(6) && left > seconds(5), "{left:?}");
        // The delay is longer than an interval: the tick that was due meanwhile is left out.
        let now = monotonic_ns();
        assert_eq!(tick(&mut sampler, now - 11_000_000_000, now), Some(seconds(9)));
        // Likewise while an exit was served.
        assert_eq!(tick_in(false, &mut sampler, now - 400_000_000, now), Some(Duration::from_millis(9_600)));
        // Nothing is known of a thread of another process.
        let id = ThreadId { process: 1, thread: 1 };
        sampler.attached_to(Some(&AttachedThread { id, cpu: 2, statistics: None }));
        assert_eq!(tick(&mut sampler, now - 400_000_000, now), Some(Duration::from_millis(9_600)));
    }

    #[test]
    fn the_way_out_of_kvm_for_a_tick_in_the_guest_is_the_samplers() {
        let (mut sampler, _ring, counters) = sampler(8, ClockKind::Fixed);
        sampler.started();
        let times = |now| counters.clock.read(|| now).map(|(_, times)| (times.run, times.sampler));
        let begin = monotonic_ns();
        sampler.entering(begin);
        sampler.exited(Exit::Interrupted, begin + 1_000_000);
        tick(&mut sampler, begin + 400_000, begin + 1_001_000);
        assert_eq!(times(begin + 1_001_000), Some((400_000, 601_000)));
        // A tick that was due before the entry has kept the guest from running since then.
        sampler.entering(begin + 2_000_000);
        sampler.exited(Exit::Interrupted, begin + 2_100_000);
        tick(&mut sampler, begin + 1_900_000, begin + 2_100_000);
        assert_eq!(times(begin + 2_100_000), Some((400_000, 1_700_000)));
        // Outside of KVM_RUN, the time is that of the exit.
        sampler.entering(begin + 2_200_000);
        sampler.exited(Exit::Interrupted, begin + 2_400_000);
        tick_in(false, &mut sampler, begin + 2_300_000, begin + 2_400_000);
        assert_eq!(times(begin + 2_400_000), Some((600_000, 1_800_000)));
    }

    /// Both the blocked time and the delay of the tick would take the same time from the guest's.
    #[test]
    fn a_late_tick_that_was_due_in_a_halt_takes_no_halted_time() {
        let (mut sampler, mut ring, counters) = sampler(8, ClockKind::Fixed);
        sampler.started();
        let begin = monotonic_ns();
        tick(&mut sampler, begin, begin);
        sampler.entering(monotonic_ns());
        // The halt: the thread waits until it is woken.
        std::thread::sleep(Duration::from_millis(20));
        let woken = monotonic_ns();
        while monotonic_ns() < woken + 5_000_000 {}
        let now = monotonic_ns();
        sampler.exited(Exit::Interrupted, now);
        tick(&mut sampler, begin + 10_000_000, now);
        let sampled = ring.pop().and_then(|_| ring.pop()).expect("two samples");
        assert_eq!(sampled.record.vcpu_state, VcpuState::Waiting);
        let (_, times) = counters.clock.read(|| now).expect("started");
        assert!(
            times.sampler <= now - woken + 1_000_000,
            "{times:?}: no part of the 10 ms before the wake-up"
        );
    }

    /// A vCPU that executes a guest of the guest.
    #[derive(Debug)]
    struct NestingVcpu;

    impl vmm::ActivitySource for NestingVcpu {
        fn activity(&self) -> Option<Activity> {
            panic!("a guest of the guest is not halted in the guest")
        }
        fn in_nested_guest(&self) -> bool {
            true
        }
    }

    #[test]
    fn registers_of_a_guest_of_the_guest_are_not_taken_for_the_guests() {
        let (mut sampler, mut ring, _) = sampler(8, ClockKind::Fixed);
        sampler.started();
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let regs = kvm_regs { rip: u64::MAX - 0xfff, rsp: 8, ..Default::default() };
        let sregs = kvm_sregs { cr3: 0x5000, cr0: 1 << 31 | 1, efer: 1 << 10, ..Default::default() };
        let now_ns = monotonic_ns();
        let context =
            TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &memory };
        sampler.ticked(&Tick { context, blocked: false, source: &NestingVcpu });
        let nested = ring.pop().expect("a sample");
        assert!(nested.record.nested && nested.stack.is_none() && !nested.stack_missed);
        assert_eq!((nested.record.rip.0, nested.record.rsp, nested.record.cr3), (0, 0, 0));
        assert_eq!(nested.record.vcpu_state, VcpuState::Guest, "the time is the guest's");
        assert!(!nested.record.in_64_bit_kernel() && nested.record.kernel_mapped.is_none());
    }

    #[test]
    fn each_state_gets_its_time() {
        let (mut sampler, mut ring, published) = sampler(8, ClockKind::Uniform);
        sampler.started();
        let start = monotonic_ns();
        let ms = |n: u64| start + n * 1_000_000;
        sampler.entering(ms(1));
        sampler.exited(Exit::Io { port: 0x3f8, write: true }, ms(3));
        sampler.entering(ms(4));
        sampler.exited(Exit::Interrupted, ms(9));
        // One tick while the port was served, one in KVM_RUN, also in an earlier one.
        tick_in(false, &mut sampler, ms(4) - 1, ms(4));
        tick(&mut sampler, ms(3), ms(4));
        // By the scheduler's statistics the thread did not wait, despite the delay.
        tick(&mut sampler, ms(5), ms(9));
        sampler.entering(ms(11));
        let (_, places) = published.clock.read(|| ms(20)).expect("started");
        // All of the last KVM_RUN was after the first tick was due.
        assert_eq!((places.run, places.sampler), (11_000_000, 7_000_000));
        assert!(places.vmm >= 2_000_000, "{places:?}");
        let exits = published.exits.read();
        let port = exits.iter().find(|exit| exit.key.address() == Some(0x3f8)).expect("counted");
        assert_eq!((port.count, port.total_ns), (1, 1_000_000));
        assert_eq!(published.row(2, Microstates::default()).exits, 2);
        // The host had stopped the process, which the scheduler's statistics do not count as a wait.
        tick(&mut sampler, ms(12), ms(512));
        let vcpu_state: Vec<_> =
            std::iter::from_fn(|| ring.pop().ok()).map(|s| s.record.vcpu_state).collect();
        assert_eq!(vcpu_state, [VcpuState::Vmm, VcpuState::Guest, VcpuState::Guest, VcpuState::Waiting]);
        sampler.stopped();
        assert!(published.clock.last().is_some());
    }

    #[test]
    fn a_tick_that_is_due_while_an_event_is_served_is_no_sample() {
        let (mut sampler, mut ring, _) = sampler(8, ClockKind::Fixed);
        sampler.started();
        let start = monotonic_ns();
        sampler.event = Some((start + 10, u64::MAX));
        sampler.entering(start + 30);
        for due in [9, 10, 29, 30] {
            assert!(tick_in(false, &mut sampler, start + due, start + 40).is_some());
        }
        // A tick that came once the guest ran is a sample.
        tick(&mut sampler, start + 20, start + 40);
        let times: Vec<_> = std::iter::from_fn(|| ring.pop().ok()).map(|s| s.record.late_ns).collect();
        assert_eq!(times, [31, 10, 20]);
    }

    #[test]
    fn a_halted_vcpu_that_has_not_run_costs_kvms_time_only() {
        let mut idle = IdleCost::default();
        let halted = kvm_regs { rip: 7, ..Default::default() };
        // Time that KVM has polled when it is left, ns; 0 when it is entered.
        let mut polled = 0;
        let mut round = |regs: Option<&kvm_regs>, exit| {
            idle.entering(|| Some(1_000));
            let busy = Instant::now();
            while busy.elapsed() < Duration::from_micros(200) {}
            idle.exited(exit, || Some(1_000 + polled));
            polled = 1_000_000_000;
            idle.ticked(regs)
        };
        let interrupted = Exit::Interrupted;
        assert_eq!(round(Some(&halted), interrupted), None, "it may have run before");
        assert_eq!(round(Some(&halted), interrupted), Some(0), "it was polled for all the time");
        let mut idle = IdleCost::default();
        let mut round = |regs: Option<&kvm_regs>, exit| {
            idle.entering(|| None);
            let busy = Instant::now();
            while busy.elapsed() < Duration::from_micros(200) {}
            idle.exited(exit, || None);
            idle.ticked(regs)
        };
        assert_eq!(round(Some(&halted), interrupted), None, "it may have run before");
        assert!(round(Some(&halted), interrupted).is_some_and(|ns| ns > 0));
        let moved = kvm_regs { rax: 1, ..halted };
        assert_eq!(round(Some(&moved), interrupted), None, "it has run");
        assert_eq!(round(None, interrupted), None);
        assert_eq!(round(Some(&moved), interrupted), None, "it was not halted before");
        assert_eq!(round(Some(&moved), Exit::Halt), None, "the guest has exited in between");
    }

    #[test]
    fn sampling_stops_and_goes_on_at_another_rate() {
        let (mut sampler, mut ring, published) = sampler(8, ClockKind::Fixed);
        sampler.started();
        let at = |ms: u64| 1_000_000_000_000 + ms * 1_000_000;
        published.pace.want(TickPlan::Off);
        // The tick that finds the new rate was a random one.
        assert_eq!(tick(&mut sampler, at(0), at(0)), Some(RATE_CHECK));
        assert_eq!(tick(&mut sampler, at(50), at(50)), Some(RATE_CHECK));
        published.pace.want(TickPlan::Samples(4.0));
        assert_eq!(tick(&mut sampler, at(100), at(100)), Some(Duration::from_millis(250)));
        assert_eq!(tick(&mut sampler, at(350), at(350)), Some(Duration::from_millis(250)));
        let times: Vec<_> = std::iter::from_fn(|| ring.pop().ok()).map(|s| s.record.time_ns).collect();
        assert_eq!(times, [at(0), at(350)]);
        assert_eq!(published.pace.in_force(), (TickPlan::Samples(4.0), at(100)));
    }

    #[test]
    fn a_look_is_no_sample_and_at_most_as_frequent_as_wanted() {
        let (mut sampler, mut ring, published) = sampler(64, ClockKind::Fixed);
        sampler.started();
        // The thread's own waits are by the real clock.
        let begin_ns = monotonic_ns();
        let at = |ms: u64| begin_ns + ms * 1_000_000;
        let mut taken = |plan, begin: u64| {
            published.pace.want(plan);
            // Ticks are a little early or late.
            for check in 0..20 {
                let due_ns = at(begin + 50 * check) + check % 3 * 1_000_000;
                tick(&mut sampler, due_ns, due_ns);
            }
            let looks: Vec<_> = std::iter::from_fn(|| ring.pop().ok()).map(|taken| taken.look).collect();
            (looks.iter().filter(|look| **look).count(), looks.iter().filter(|look| !**look).count())
        };
        assert_eq!(taken(TickPlan::Looks(20.0), 0), (19, 1), "the first tick was a random one");
        assert_eq!(taken(TickPlan::Looks(2.0), 1_000), (2, 0));
        assert_eq!(taken(TickPlan::Off, 2_000), (0, 0));
        assert_eq!(taken(TickPlan::Samples(20.0), 3_000), (0, 19), "the first tick was a check");
        assert_eq!(published.samples(), (20, 0));
    }

    #[test]
    fn without_a_rate_there_are_no_ticks() {
        let (mut sampler, _ring, _) =
            VcpuSampler::new(0, None, QueueCapacity { ring: 1, pool: 1, reserve: 0 }, Default::default());
        assert_eq!(sampler.started(), None);
    }
}
