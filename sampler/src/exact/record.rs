//! Recorder of exact events, on the vCPU's own thread between two KVM_RUNs: no lock, no allocation, no system
//! call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use guest_linux::{
    ExitAccounting, ExitAccountingReader, IrqContext, PhysicalMemory, ProbeEvent, ProbeSite, ProbeSites,
    RunState, SchedState, SchedStateReader, StackCopy, TaskSnapshot, VirtAddr, WatchedFunction,
};
use kvm_bindings::kvm_regs;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use vmm::TickContext;

use super::trip::{TripCall, TripRecorder};
use crate::record::GuestReaders;

/// Events per vCPU's ring: a third of a second at 50,000 events a second.
const RING: usize = 16_384;
/// Bytes of all rings together, at most.
const RINGS_BYTES: usize = 16 << 20;
/// Stacks per vCPU's pool: two rounds of the collector at 20,000 sleeps a second.
const POOL: usize = 384;
/// Bytes of all pools together, at most.
const POOLS_BYTES: usize = 12 << 20;
/// Bytes of a sleeper's stacks that are copied. The kernel's takes one or two KiB.
pub(crate) const STACK_BYTES: usize = 24 << 10;
/// Bytes of the user stack among these, at most: programs' stacks rarely take more.
pub(crate) const USER_BYTES: usize = 16 << 10;

/// Readers of the parts of an event, set once the sites are known.
#[derive(Debug)]
pub(crate) struct EventReaders {
    pub sites: ProbeSites,
    pub states: SchedStateReader,
    /// `None` if the kernel's CPU accounting cannot be read.
    pub accounting: Option<ExitAccountingReader>,
    /// Functions that are watched on request, by their numbers.
    pub watched: Vec<WatchedFunction>,
}

/// One event: fixed size, nothing resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventRecord {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// Time that vprof has taken from this vCPU before, ns: measured for ticks and events, and estimated for
    /// the switches between guest and host that events cost ([`EventRecorder::sampled`]).
    pub served_ns: u64,
    pub event: ProbeEvent,
    /// Context of the CPU when it wakes a task. Otherwise, and if it could not be read, [`IrqContext::Task`].
    pub serving: IrqContext,
    /// The task that a switch has led to.
    pub next: Option<TaskSnapshot>,
    /// The task that the event is about.
    pub task: Option<SchedState>,
    /// Return address of a handler that begins, or the vector of a device. Otherwise, and if it could not be
    /// read, 0.
    pub number: u64,
    /// Final CPU accounting of the process whose last task this is.
    pub accounting: Option<ExitAccounting>,
    /// Time of the first event that was lost since the previous one in the ring, CLOCK_MONOTONIC ns; 0 if
    /// none was.
    pub lost_ns: u64,
}

impl EventRecord {
    fn new(time_ns: u64, served_ns: u64, event: ProbeEvent) -> Self {
        Self {
            time_ns,
            served_ns,
            event,
            serving: IrqContext::Task,
            next: None,
            task: None,
            number: 0,
            accounting: None,
            lost_ns: 0,
        }
    }
}

/// An event as the ring carries it.
#[derive(Debug)]
pub(crate) struct EventMessage {
    pub record: EventRecord,
    /// The stack of the sleeping task. The buffer belongs to the vCPU's pool.
    pub stack: Option<Box<StackCopy>>,
}

/// Counters that a vCPU's thread publishes. Each field has one writer and is independent, so relaxed stores
/// suffice.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct EventCounters {
    /// Probe exits for events, guards included.
    pub trips: AtomicU64,
    /// Events whose record found no room in the ring.
    pub lost: AtomicU64,
    /// Time of the first event lost since the last one that was not, CLOCK_MONOTONIC ns; 0 if none was. The
    /// ring's events are older when this is set.
    pub losing_ns: AtomicU64,
    /// Time of the event that is being recorded, CLOCK_MONOTONIC ns; 0 between events, when all are in the
    /// ring.
    pub serving_ns: AtomicU64,
    /// Switches among the events.
    pub switches: AtomicU64,
    /// Sleeps without a stack: all buffers were in use.
    pub stacks_missed: AtomicU64,
    /// Time from exits to entries, ns.
    pub cost_ns: AtomicU64,
    /// Samples that fell between guest and host for a probe.
    pub switching: AtomicU64,
    /// Time that these samples represent, ns: the mean time between two ticks each.
    pub switching_ns: AtomicU64,
}

/// Adds to a counter that only the calling thread writes.
pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// The collector's ends of a recorder's ring and pool.
#[derive(Debug)]
pub(crate) struct EventRingEnds {
    /// Events come out here.
    pub events: Consumer<EventMessage>,
    /// Buffers go back here.
    pub pool: Producer<Box<StackCopy>>,
    pub counters: Arc<EventCounters>,
}

/// Cost of the switches between guest and host for the events of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct SwitchCost {
    /// Time that the samples in them represent, ns.
    ns: u64,
    /// Number of events.
    trips: u64,
}

/// Payer of the exit of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeHitKind {
    /// Exact mode.
    Event,
    /// The watched function with this number, also where its call means an event.
    Watched(u8),
}

impl ProbeHitKind {
    fn new(site: &ProbeSite) -> Self {
        site.watched.map_or(Self::Event, Self::Watched)
    }
}

/// Recorder of the events of one vCPU.
pub(crate) struct EventRecorder {
    vcpu: usize,
    ring: Producer<EventMessage>,
    pool: Consumer<Box<StackCopy>>,
    spare: Option<Box<StackCopy>>,
    readers: Arc<OnceLock<GuestReaders>>,
    events: Arc<OnceLock<EventReaders>>,
    counters: Arc<EventCounters>,
    /// Recorder of the calls of watched functions, if there are any.
    watch: Option<TripRecorder>,
    /// Time at which KVM_RUN returned for what is being served, and the probe that this is.
    since: Option<(u64, Option<ProbeHitKind>)>,
    /// See [`EventRecord::served_ns`].
    served_ns: u64,
    /// By the kind of the site.
    switching: [SwitchCost; ProbeSite::KINDS],
    /// See [`EventCounters::losing_ns`].
    losing_ns: u64,
}

impl EventRecorder {
    /// Creates the recorder of vCPU `vcpu` of `vcpus`, and the collector's ends.
    pub(crate) fn new(
        vcpu: u8,
        vcpus: u8,
        readers: Arc<OnceLock<GuestReaders>>,
        events: Arc<OnceLock<EventReaders>>,
    ) -> (Self, EventRingEnds) {
        let share = |bytes: usize, each: usize| bytes / each / usize::from(vcpus.max(1));
        let slots = RING.min(share(RINGS_BYTES, size_of::<EventMessage>()));
        let buffers = POOL.min(share(POOLS_BYTES, STACK_BYTES)).max(8);
        let (ring, out) = RingBuffer::new(slots);
        let (mut giver, pool) = RingBuffer::new(buffers);
        for _ in 0..buffers {
            // The ring has as many slots as the pool has buffers.
            drop(giver.push(Box::new(StackCopy::with_room(STACK_BYTES))));
        }
        let counters = Arc::new(EventCounters::default());
        let ends = EventRingEnds { events: out, pool: giver, counters: Arc::clone(&counters) };
        let vcpu = usize::from(vcpu);
        let recorder = Self {
            vcpu,
            ring,
            pool,
            spare: None,
            readers,
            events,
            counters,
            watch: None,
            since: None,
            served_ns: 0,
            switching: [SwitchCost::default(); ProbeSite::KINDS],
            losing_ns: 0,
        };
        (recorder, ends)
    }

    /// Has calls of watched functions recorded.
    pub(crate) fn watch(&mut self, recorder: TripRecorder) {
        self.watch = Some(recorder);
    }

    /// Notes that KVM_RUN has returned at `now_ns` for a tick, or for another signal.
    pub(crate) fn interrupted(&mut self, now_ns: u64) {
        self.since = Some((now_ns, None));
    }

    /// Notes a sample in the guest's own time at `rip`, with `mean_ns` between two samples on average. The
    /// guest is stopped at a probe while the CPU switches to the host and back. No clock of the host sees
    /// that time, but samples fall in it in proportion to its length.
    pub(crate) fn sampled(&mut self, rip: u64, mean_ns: u64) {
        let Some(events) = self.events.get() else { return };
        let Some(site) = events.sites.site_at(VirtAddr(rip)) else { return };
        let switching = self.switching.get_mut(usize::from(site.kind()));
        let Some(switching) = switching.filter(|switching| switching.trips > 0) else { return };
        switching.ns = switching.ns.saturating_add(mean_ns);
        match (ProbeHitKind::new(site), &self.watch) {
            (ProbeHitKind::Watched(number), Some(watch)) => watch.switched(number, mean_ns),
            _ => {
                add(&self.counters.switching, 1);
                add(&self.counters.switching_ns, mean_ns);
            }
        }
    }

    /// Records a hit of a probe of this kind. Returns true if all probes must be removed before the guest
    /// continues: it is about to read or change its own code.
    pub(crate) fn hit<M: PhysicalMemory>(&mut self, kind: u8, context: &TickContext<'_, M>) -> bool {
        let now_ns = context.now_ns;
        self.counters.serving_ns.store(now_ns, Ordering::Release);
        let withdraw = self.serve(kind, context);
        self.counters.serving_ns.store(0, Ordering::Release);
        withdraw
    }

    fn serve<M: PhysicalMemory>(&mut self, kind: u8, context: &TickContext<'_, M>) -> bool {
        // Set before any probe was.
        let Some(events) = self.events.get() else { return false };
        let Some(site) = events.sites.of_kind(kind) else { return false };
        self.since = Some((context.now_ns, Some(ProbeHitKind::new(site))));
        if let (Some(number), Some(watch)) = (site.watched, &mut self.watch)
            && let Some(function) = events.watched.get(usize::from(number))
        {
            let readers = self.readers.get();
            watch.record(&TripCall { number, function, context, readers, vcpu: self.vcpu });
        }
        // The way back into the guest, and the way out for the next hit, belong to the next record.
        let served_ns = self.served_ns;
        if let Some(switching) = self.switching.get_mut(usize::from(kind)) {
            switching.trips = switching.trips.saturating_add(1);
            self.served_ns = self.served_ns.wrapping_add(switching.ns / switching.trips);
        }
        let event = site.event;
        event.is_some_and(|event| {
            let record = EventRecord::new(context.now_ns, served_ns, event);
            self.record(record, context.regs, context.memory)
        })
    }

    fn record<M: PhysicalMemory>(&mut self, mut record: EventRecord, regs: &kvm_regs, memory: &M) -> bool {
        add(&self.counters.trips, 1);
        let Some(EventReaders { sites, states, accounting, .. }) = self.events.get() else { return false };
        let event = record.event;
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
                // The second argument of try_to_wake_up is the mask of states that the call wakes: other
                // calls do nothing, so they are not recorded.
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
                // The accounting of a process is complete when its leader is released, which is the last
                // task.
                let leader = record.task.filter(|task| task.task.tid == task.task.pid);
                record.accounting =
                    leader.and(accounting.as_ref()).and_then(|reader| reader.read(memory, regs.rdi));
            }
            ProbeEvent::InterruptBegin => {
                record.number = states.return_address(memory, VirtAddr(regs.rsp)).map_or(0, |at| at.0)
            }
            ProbeEvent::Vector => record.number = regs.rsi,
            ProbeEvent::InterruptEnd => {}
        }
        self.push(EventMessage { record, stack });
        false
    }

    fn push(&mut self, mut message: EventMessage) {
        let now_ns = message.record.time_ns;
        message.record.lost_ns = self.losing_ns;
        let losing_ns = match self.ring.push(message) {
            Ok(()) => 0,
            Err(PushError::Full(message)) => {
                self.spare = message.stack.or(self.spare.take());
                add(&self.counters.lost, 1);
                if self.losing_ns == 0 { now_ns } else { self.losing_ns }
            }
        };
        if std::mem::replace(&mut self.losing_ns, losing_ns) != losing_ns {
            self.counters.losing_ns.store(losing_ns, Ordering::Release);
        }
    }

    /// Copies the stack of `task` if the task sleeps.
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

    /// Notes that KVM_RUN is entered at `now_ns`.
    pub(crate) fn entering(&mut self, now_ns: u64) {
        if let Some((since_ns, hit)) = self.since.take() {
            let ns = now_ns.saturating_sub(since_ns);
            self.served_ns = self.served_ns.wrapping_add(ns);
            match (hit, &self.watch) {
                (None, _) => {}
                (Some(ProbeHitKind::Watched(number)), Some(watch)) => watch.entered(number, ns),
                (Some(_), _) => add(&self.counters.cost_ns, ns),
            }
        }
    }
}

#[cfg(test)]
mod tests;
