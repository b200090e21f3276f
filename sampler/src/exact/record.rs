//! What is read at one trip, on the vCPU's own thread between two KVM_RUNs: no lock, no allocation, no system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kvm_bindings::kvm_regs;
use linux::{
    ExitAccounting, ExitAccountingReader, IrqContext, PhysicalMemory, ProbeEvent, ProbeSites, RunState,
    SchedState, SchedStateReader, StackCopy, TaskSnapshot, VirtAddr,
};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::record::Readers;

/// Events that one vCPU's ring holds: a third of a second of 50,000 a second.
const RING: usize = 16_384;
/// All rings together take at most this many bytes.
const RINGS_BYTES: usize = 16 << 20;
/// Stacks in one vCPU's pool: two rounds of the collector at 20,000 sleeps a second.
const POOL: usize = 384;
/// All pools together take at most this many bytes.
const POOLS_BYTES: usize = 12 << 20;
/// Bytes of a sleeper's stacks that are copied. The kernel's takes one or two KiB.
pub(crate) const STACK_BYTES: usize = 24 << 10;
/// Of these the user stack's, at most: programs' stacks rarely take more.
pub(crate) const USER_BYTES: usize = 16 << 10;

/// Reads what belongs to an event, once the sites are known.
#[derive(Debug)]
pub(crate) struct EventReaders {
    pub sites: ProbeSites,
    pub states: SchedStateReader,
    /// `None` where the kernel's books cannot be read.
    pub books: Option<ExitAccountingReader>,
}

/// One event: fixed size, nothing resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TripRecord {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// Time that vprof has taken of this vCPU before, ns: measured for ticks and events, and estimated for the switches
    /// between guest and host that events cost ([`Recorder::sampled`]).
    pub served_ns: u64,
    pub event: ProbeEvent,
    /// What the CPU serves when it wakes a task; else, and where it was not read, [`IrqContext::Task`].
    pub serving: IrqContext,
    /// The task that a switch has led to.
    pub next: Option<TaskSnapshot>,
    /// The task that the event is about.
    pub task: Option<SchedState>,
    /// Where a handler that begins was called from; the vector of a device; else, and where it could not be read, 0.
    pub number: u64,
    /// What the process has come to whose last task this is.
    pub books: Option<ExitAccounting>,
    /// When the first event was lost since the one before in the ring, CLOCK_MONOTONIC ns; 0 if none was.
    pub lost_ns: u64,
}

impl TripRecord {
    fn new((time_ns, served_ns): (u64, u64), event: ProbeEvent) -> Self {
        Self {
            time_ns,
            served_ns,
            event,
            serving: IrqContext::Task,
            next: None,
            task: None,
            number: 0,
            books: None,
            lost_ns: 0,
        }
    }
}

/// An event as it travels through the ring.
#[derive(Debug)]
pub(crate) struct Tripped {
    pub record: TripRecord,
    /// The stack that the task sleeps in. The box belongs to the vCPU's pool.
    pub stack: Option<Box<StackCopy>>,
}

/// What a vCPU's thread publishes. Each field has one writer and stands for itself, so relaxed stores suffice.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct TripCounters {
    /// Trips, guards included.
    pub trips: AtomicU64,
    /// Trips whose record found no room.
    pub lost: AtomicU64,
    /// When the first one was lost since the last that was not, CLOCK_MONOTONIC ns; 0 if none was. What the ring holds when this
    /// is set is older.
    pub losing_ns: AtomicU64,
    /// The time of the event that is being recorded, CLOCK_MONOTONIC ns; 0 between events, when all are in the ring.
    pub serving_ns: AtomicU64,
    /// Switches among the trips.
    pub switches: AtomicU64,
    /// Sleeps without a stack, since all boxes were under way.
    pub stacks_missed: AtomicU64,
    /// From exits to entries, ns.
    pub cost_ns: AtomicU64,
    /// Samples that fell between guest and host for a trip.
    pub switching: AtomicU64,
    /// What they stand for, ns: each for the mean time between two ticks.
    pub switching_ns: AtomicU64,
}

fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// The collector's ends.
#[derive(Debug)]
pub(crate) struct TripEnds {
    /// Events come out here.
    pub events: Consumer<Tripped>,
    /// Boxes go back here.
    pub pool: Producer<Box<StackCopy>>,
    pub counters: Arc<TripCounters>,
}

/// The switches between guest and host for the events of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Switching {
    /// What the samples in them stand for, ns.
    ns: u64,
    /// How many events there were.
    trips: u64,
}

/// Records the events of one vCPU.
pub(crate) struct Recorder {
    vcpu: usize,
    ring: Producer<Tripped>,
    pool: Consumer<Box<StackCopy>>,
    spare: Option<Box<StackCopy>>,
    readers: Arc<OnceLock<Readers>>,
    events: Arc<OnceLock<EventReaders>>,
    counters: Arc<TripCounters>,
    /// When KVM_RUN returned for what is being served, and whether that is a trip.
    since: Option<(u64, bool)>,
    /// See [`TripRecord::served_ns`].
    served_ns: u64,
    /// By the number of the event.
    switching: [Switching; ProbeEvent::COUNT],
    /// See [`TripCounters::losing_ns`].
    losing_ns: u64,
}

impl Recorder {
    /// The recorder of vCPU `vcpu` of `vcpus`, and the collector's ends of it.
    pub(crate) fn new(
        (vcpu, vcpus): (u8, u8),
        readers: Arc<OnceLock<Readers>>,
        events: Arc<OnceLock<EventReaders>>,
    ) -> (Self, TripEnds) {
        let share = |bytes: usize, each: usize| bytes / each / usize::from(vcpus.max(1));
        let slots = RING.min(share(RINGS_BYTES, size_of::<Tripped>()));
        let boxes = POOL.min(share(POOLS_BYTES, STACK_BYTES)).max(8);
        let (ring, out) = RingBuffer::new(slots);
        let (mut giver, pool) = RingBuffer::new(boxes);
        for _ in 0..boxes {
            // The ring has as many slots.
            drop(giver.push(Box::new(StackCopy::with_room(STACK_BYTES))));
        }
        let counters = Arc::new(TripCounters::default());
        let ends = TripEnds { events: out, pool: giver, counters: Arc::clone(&counters) };
        let vcpu = usize::from(vcpu);
        let recorder = Self {
            vcpu,
            ring,
            pool,
            spare: None,
            readers,
            events,
            counters,
            since: None,
            served_ns: 0,
            switching: [Switching::default(); ProbeEvent::COUNT],
            losing_ns: 0,
        };
        (recorder, ends)
    }

    /// KVM_RUN has returned at `now_ns` for a tick, or for another signal.
    pub(crate) fn interrupted(&mut self, now_ns: u64) {
        self.since = Some((now_ns, false));
    }

    /// A sample in the guest's own time was at `rip`, one every `mean_ns` in the mean. The guest stands at a tripwire for as
    /// long as the switch to the host and back takes: no clock of the host's sees that time, but samples fall in it as
    /// often as it is long.
    pub(crate) fn sampled(&mut self, rip: u64, mean_ns: u64) {
        let event = self.events.get().and_then(|events| events.sites.event_at(VirtAddr(rip)));
        let switching = event.and_then(|event| self.switching.get_mut(usize::from(event.number())));
        if let Some(switching) = switching.filter(|switching| switching.trips > 0) {
            switching.ns = switching.ns.saturating_add(mean_ns);
            add(&self.counters.switching, 1);
            add(&self.counters.switching_ns, mean_ns);
        }
    }

    /// Serves a trip at `now_ns`. True when all tripwires must go before the guest goes on: it is about to look at its own
    /// text, or to change it.
    pub(crate) fn serve<M: PhysicalMemory>(
        &mut self,
        event: ProbeEvent,
        now_ns: u64,
        regs: &kvm_regs,
        memory: &M,
    ) -> bool {
        self.counters.serving_ns.store(now_ns, Ordering::Release);
        let withdraw = self.record(event, now_ns, regs, memory);
        self.counters.serving_ns.store(0, Ordering::Release);
        withdraw
    }

    fn record<M: PhysicalMemory>(
        &mut self,
        event: ProbeEvent,
        now_ns: u64,
        regs: &kvm_regs,
        memory: &M,
    ) -> bool {
        self.since = Some((now_ns, true));
        add(&self.counters.trips, 1);
        // Set before any tripwire was.
        let Some(EventReaders { sites, states, books }) = self.events.get() else { return false };
        let mut record = TripRecord::new((now_ns, self.served_ns), event);
        // The way back into the guest follows, and the way out for the next one: both are the next record's.
        if let Some(switching) = self.switching.get_mut(usize::from(event.number())) {
            switching.trips = switching.trips.saturating_add(1);
            self.served_ns = self.served_ns.wrapping_add(switching.ns / switching.trips);
        }
        let mut stack = None;
        match event {
            ProbeEvent::Trace | ProbeEvent::Patch | ProbeEvent::Core => {
                return sites.concerns(event, [regs.rdi, regs.rsi, regs.rdx, regs.rcx], memory);
            }
            ProbeEvent::Switch => {
                add(&self.counters.switches, 1);
                let readers = self.readers.get();
                record.next = readers.and_then(|readers| readers.current.read(memory, self.vcpu)?.task);
                record.task = states.read(memory, regs.rdi);
                stack = record.task.and_then(|task| self.sleeping(&task, memory));
            }
            ProbeEvent::Wake => {
                record.task = states.read(memory, regs.rdi);
                let [a, b, c, d, ..] = regs.rsi.to_le_bytes();
                if record.task.is_some_and(|task| !task.is_woken_by(u32::from_le_bytes([a, b, c, d]))) {
                    return false;
                }
                let current = self.readers.get().and_then(|readers| readers.current.read(memory, self.vcpu));
                record.serving = current.map_or(IrqContext::Task, |current| current.serving);
            }
            ProbeEvent::New => record.task = states.read(memory, regs.rdi),
            ProbeEvent::Release => {
                record.task = states.read(memory, regs.rdi);
                let leader = record.task.filter(|task| task.task.tid == task.task.pid);
                record.books = leader.and(books.as_ref()).and_then(|books| books.read(memory, regs.rdi));
            }
            ProbeEvent::InterruptBegin => {
                record.number = states.return_address(memory, VirtAddr(regs.rsp)).map_or(0, |at| at.0)
            }
            ProbeEvent::Vector => record.number = regs.rsi,
            ProbeEvent::InterruptEnd => {}
        }
        self.push(Tripped { record, stack });
        false
    }

    fn push(&mut self, mut tripped: Tripped) {
        let now_ns = tripped.record.time_ns;
        tripped.record.lost_ns = self.losing_ns;
        let losing_ns = match self.ring.push(tripped) {
            Ok(()) => 0,
            Err(PushError::Full(tripped)) => {
                self.spare = tripped.stack.or(self.spare.take());
                add(&self.counters.lost, 1);
                if self.losing_ns == 0 { now_ns } else { self.losing_ns }
            }
        };
        if std::mem::replace(&mut self.losing_ns, losing_ns) != losing_ns {
            self.counters.losing_ns.store(losing_ns, Ordering::Release);
        }
    }

    /// The stack that `task` sleeps in, if it does.
    fn sleeping<M: PhysicalMemory>(&mut self, task: &SchedState, memory: &M) -> Option<Box<StackCopy>> {
        if !matches!(
            task.run_state(),
            RunState::Interruptible | RunState::Uninterruptible | RunState::Stopped
        ) {
            return None;
        }
        let (reader, user_bytes) = self.readers.get()?.stacks.as_ref()?;
        let Some(mut stack) = self.spare.take().or_else(|| self.pool.pop().ok()) else {
            add(&self.counters.stacks_missed, 1);
            return None;
        };
        let (whose, user_bytes) = (task.task.sleeping(), USER_BYTES.min(*user_bytes));
        if reader.copy_sleeping(memory, whose, user_bytes, &mut stack).is_none() {
            self.spare = Some(stack);
            return None;
        }
        Some(stack)
    }

    /// KVM_RUN is entered at `now_ns`.
    pub(crate) fn entering(&mut self, now_ns: u64) {
        if let Some((since_ns, is_trip)) = self.since.take() {
            let ns = now_ns.saturating_sub(since_ns);
            self.served_ns = self.served_ns.wrapping_add(ns);
            if is_trip {
                add(&self.counters.cost_ns, ns);
            }
        }
    }
}

#[cfg(test)]
mod tests;
