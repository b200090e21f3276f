//! The observer of one vCPU: draws the intervals, records the samples, keeps the vCPU's clock.
//!
//! A state change reads the clock once (Chubb), so the time in KVM_RUN and the time in the sampler are exact:
//!
//! ```text
//!   started ── entering ── exited ── [ticked begins ── ticked ends] ── entering ── ... ── stopped
//!              └── guest_ns ──┘       └──── sampler_ns ────┘
//! ```

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use symbols::{PhysicalMemory, StackCopy};
use vmm::{Activity, Exit, Observer, Tick, monotonic_ns};

use crate::batch::VcpuRow;
use crate::clock::Intervals;
use crate::record::{self, Moment, Readers, Sampled};

/// What a vCPU's thread publishes for the collector. Each field has one writer and stands for itself, so relaxed
/// stores suffice; a cache line of its own keeps the vCPUs from disturbing each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    started_ns: AtomicU64,
    last_ns: AtomicU64,
    samples: AtomicU64,
    lost: AtomicU64,
    sampler_ns: AtomicU64,
    guest_ns: AtomicU64,
    exits: AtomicU64,
}

impl Counters {
    pub(crate) fn row(&self, id: u8) -> VcpuRow {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        VcpuRow {
            id,
            samples: load(&self.samples),
            lost: load(&self.lost),
            sampler_ns: load(&self.sampler_ns),
            guest_ns: load(&self.guest_ns),
            exits: load(&self.exits),
            wall_ns: load(&self.last_ns).saturating_sub(load(&self.started_ns)),
        }
    }
}

/// The collector's ends of what it shares with a vCPU.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Samples come out here.
    pub samples: Consumer<Sampled>,
    /// Boxes for stacks go back here.
    pub pool: Producer<Box<StackCopy>>,
}

/// The observer of one vCPU.
pub struct VcpuSampler {
    intervals: Option<Intervals>,
    ring: Producer<Sampled>,
    /// Boxes for stacks, given back by the collector.
    pool: Consumer<Box<StackCopy>>,
    /// A box that was taken but not sent.
    spare: Option<Box<StackCopy>>,
    readers: Arc<OnceLock<Readers>>,
    vcpu: usize,
    published: Arc<Counters>,
    entered_ns: u64,
    counts: VcpuRow,
}

impl fmt::Debug for VcpuSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VcpuSampler").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl VcpuSampler {
    /// The observer of vCPU `vcpu`, the other ends of its ring of `slots` samples and of its pool of `boxes` for their
    /// stacks, and what it publishes.
    pub(crate) fn new(
        vcpu: u8,
        intervals: Option<Intervals>,
        (slots, boxes): (usize, usize),
        readers: Arc<OnceLock<Readers>>,
    ) -> (Self, Ends, Arc<Counters>) {
        let (ring, samples) = RingBuffer::new(slots);
        let (mut giver, pool) = RingBuffer::new(boxes);
        for _ in 0..boxes {
            // The ring has as many slots.
            drop(giver.push(Box::default()));
        }
        let published = Arc::new(Counters::default());
        let counts =
            VcpuRow { id: vcpu, samples: 0, lost: 0, sampler_ns: 0, guest_ns: 0, exits: 0, wall_ns: 0 };
        let sampler = Self {
            intervals,
            ring,
            pool,
            spare: None,
            readers,
            vcpu: usize::from(vcpu),
            published: Arc::clone(&published),
            entered_ns: 0,
            counts,
        };
        (sampler, Ends { samples, pool: giver }, published)
    }

    /// Serves one tick: what [`Observer::ticked`] does, with the tick's parts given one by one so that it runs on any
    /// registers and memory. Never allocates. Returns the time from [`Moment::now_ns`] to the next tick.
    ///
    /// Ticks are due at the sums of the intervals, whenever they are served: lateness depends on what the guest does,
    /// and must not move the clock. Only where the next tick would be overdue already does the clock start anew.
    pub fn serve<M: PhysicalMemory>(
        &mut self,
        moment: &Moment<'_, M>,
        activity: impl FnOnce() -> Option<Activity>,
    ) -> Option<Duration> {
        let vcpu = self.vcpu;
        let readers = self.readers.get();
        let record = record::take(moment, |memory| readers?.current.read(memory, vcpu), activity);
        let mut sampled = Sampled { record, ..Sampled::default() };
        // A halted vCPU is in the idle task, whose stack is always the same.
        if let Some((reader, user_bytes)) = readers.and_then(|readers| readers.stacks.as_ref())
            && !record.halted
        {
            sampled.stack = self.spare.take().or_else(|| self.pool.pop().ok());
            match &mut sampled.stack {
                Some(stack) => record::copy_stacks((reader, *user_bytes), vcpu, moment, &record, stack),
                None => sampled.stack_missed = true,
            }
        }
        match self.ring.push(sampled) {
            Ok(()) => {
                self.counts.samples += 1;
                self.published.samples.store(self.counts.samples, Ordering::Relaxed);
            }
            Err(PushError::Full(sampled)) => {
                self.spare = sampled.stack;
                self.counts.lost += 1;
                self.published.lost.store(self.counts.lost, Ordering::Relaxed);
            }
        }
        let interval = self.intervals.as_mut().map(Intervals::next_ns);
        let done_ns = monotonic_ns();
        self.counts.sampler_ns += done_ns.saturating_sub(moment.now_ns);
        self.published.sampler_ns.store(self.counts.sampler_ns, Ordering::Relaxed);
        self.published.last_ns.store(done_ns, Ordering::Relaxed);
        interval.map(|interval| {
            let left =
                moment.due_ns.saturating_add(interval).checked_sub(moment.now_ns).filter(|&left| left > 0);
            Duration::from_nanos(left.unwrap_or(interval))
        })
    }
}

impl Observer for VcpuSampler {
    fn started(&mut self) -> Option<Duration> {
        let now = monotonic_ns();
        self.published.started_ns.store(now, Ordering::Relaxed);
        self.published.last_ns.store(now, Ordering::Relaxed);
        self.intervals.as_mut().map(|intervals| Duration::from_nanos(intervals.next_ns()))
    }

    fn entering(&mut self) {
        self.entered_ns = monotonic_ns();
    }

    fn exited(&mut self, _: Exit) {
        let now = monotonic_ns();
        self.counts.guest_ns += now.saturating_sub(self.entered_ns);
        self.counts.exits += 1;
        self.published.guest_ns.store(self.counts.guest_ns, Ordering::Relaxed);
        self.published.exits.store(self.counts.exits, Ordering::Relaxed);
        self.published.last_ns.store(now, Ordering::Relaxed);
    }

    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        let moment = Moment {
            due_ns: tick.due_ns,
            now_ns: tick.now_ns,
            regs: tick.regs,
            sregs: tick.sregs,
            memory: tick.memory,
        };
        self.serve(&moment, || tick.activity())
    }

    fn stopped(&mut self) {
        self.published.last_ns.store(monotonic_ns(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use kvm_bindings::{kvm_regs, kvm_sregs};
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::clock::ClockKind;

    fn sampler(slots: usize, kind: ClockKind) -> (VcpuSampler, Consumer<Sampled>, Arc<Counters>) {
        let (sampler, ends, counters) =
            VcpuSampler::new(2, Intervals::new(kind, 0.1, 1, 2), (slots, 1), Arc::default());
        (sampler, ends.samples, counters)
    }

    fn tick(sampler: &mut VcpuSampler, due_ns: u64, now_ns: u64) -> Option<Duration> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let (regs, sregs) = (kvm_regs::default(), kvm_sregs::default());
        sampler.serve(&Moment { due_ns, now_ns, regs: &regs, sregs: &sregs, memory: &memory }, || None)
    }

    #[test]
    fn a_full_ring_counts_and_never_blocks() {
        let (mut sampler, mut ring, counters) = sampler(3, ClockKind::Fixed);
        sampler.started();
        for _ in 0..5 {
            let now = monotonic_ns();
            assert!(tick(&mut sampler, now, now).is_some());
        }
        let row = counters.row(2);
        assert_eq!((row.id, row.samples, row.lost), (2, 3, 2));
        assert!(ring.pop().is_ok());
        let now = monotonic_ns();
        tick(&mut sampler, now, now);
        assert_eq!((counters.row(2).samples, counters.row(2).lost), (4, 2));
    }

    #[test]
    fn lateness_does_not_move_the_clock() {
        let (mut sampler, _ring, _) = sampler(8, ClockKind::Fixed);
        let seconds = Duration::from_secs;
        assert_eq!(sampler.started(), Some(seconds(10)));
        let now = monotonic_ns();
        let left = tick(&mut sampler, now - 4_000_000_000, now).expect("ticks");
        assert!(left <= seconds(6) && left > seconds(5), "{left:?}");
        // A tick later than a whole interval: the clock starts anew instead of ticking at once.
        let now = monotonic_ns();
        assert_eq!(tick(&mut sampler, now - 11_000_000_000, now), Some(seconds(10)));
    }

    #[test]
    fn time_in_guest_and_in_sampler_is_counted() {
        let (mut sampler, _ring, counters) = sampler(8, ClockKind::Uniform);
        sampler.started();
        for _ in 0..3 {
            sampler.entering();
            std::thread::sleep(Duration::from_millis(2));
            sampler.exited(Exit::Interrupted);
            let now = monotonic_ns();
            tick(&mut sampler, now, now);
        }
        sampler.stopped();
        let row = counters.row(2);
        assert_eq!(row.exits, 3);
        assert!(row.guest_ns >= 6_000_000 && row.sampler_ns > 0, "{row:?}");
        assert!(row.guest_ns + row.sampler_ns <= row.wall_ns, "{row:?}");
    }

    #[test]
    fn without_a_rate_there_are_no_ticks() {
        let (mut sampler, _ring, _) = VcpuSampler::new(0, None, (1, 1), Arc::default());
        assert_eq!(sampler.started(), None);
    }
}
