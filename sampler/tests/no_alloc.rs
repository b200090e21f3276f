//! The record path's promise, checked by a counting allocator: a tick never allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guest_linux::fixture::{Config, Style};
use kvm_bindings::{kvm_regs, kvm_sregs};
use profile::{Batch, Sink, SinkError};
use sampler::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use statistics::clock::ClockKind;
use vm_memory::{Bytes, GuestAddress};
use vmm::{Activity, Exit, GuestMemoryMmap, Observer, TickContext, monotonic_ns};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // The cell has no destructor, so it can be used at any time of a thread's life.
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's requirements.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promises are the system allocator's requirements.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's requirements.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sink that counts the samples whose task was read.
#[derive(Default, Clone)]
struct Named(Arc<AtomicUsize>);

impl Sink for Named {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.0.fetch_add(batch.samples.iter().filter(|s| s.instance.is_some()).count(), Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_tick_never_allocates() {
    let guest = Config::new(Style::V6_12).build();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), guest.memory.0.len())]).expect("memory");
    memory.write_slice(&guest.memory.0, GuestAddress(0)).expect("inside");
    for clock in [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed] {
        let config = SessionConfig {
            vcpus: 1,
            recording: RecordingConfig {
                rate_hz: 500.0,
                clock,
                stack_depth: 127,
                ..RecordingConfig::default()
            },
            meta: Vec::new(),
        };
        let named = Named::default();
        let (mut session, mut samplers) =
            Session::new(config, Box::new(named.clone()), symbols::names::no_files());
        session.start(memory.clone()).expect("a sink that takes everything");
        let sampler = &mut samplers[0];
        let mut sregs =
            kvm_sregs { cr0: 0x8000_0001, cr3: guest.cr3, cr4: 1 << 12, efer: 0x500, ..Default::default() };
        sregs.cs.l = 1;
        let tick = |sampler: &mut VcpuSampler, sregs: &kvm_sregs, rip: u64| {
            let regs = kvm_regs { rip, rflags: 0x202, ..Default::default() };
            let now_ns = vmm::monotonic_ns();
            let moment =
                TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs, memory: &memory };
            sampler.serve(&moment, || Some(Activity::Halted))
        };
        let begin = Instant::now();
        while named.0.load(Ordering::SeqCst) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(30), "the current task is never read");
            tick(sampler, &sregs, guest.text(0x1404).0);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Before the guest runs.
        sampler.started();
        let known = named.0.load(Ordering::SeqCst);
        let counted = ALLOCATIONS.with(Cell::get);
        drop(std::hint::black_box(Box::new(clock)));
        let before = ALLOCATIONS.with(Cell::get);
        assert_eq!(before - counted, 2, "the allocator counts");
        // More ticks than the ring has room for: a lost sample must not allocate either.
        for n in 0..10_000_u64 {
            sregs.ss.dpl = if n % 2 == 0 { 3 } else { 0 };
            sampler.entering(monotonic_ns());
            sampler.exited(Exit::Interrupted, monotonic_ns());
            sampler.entering(monotonic_ns());
            sampler.exited(Exit::Io { port: 0x3f8, write: true }, monotonic_ns());
            let next = tick(sampler, &sregs, guest.text(n).0);
            assert!(next.is_some_and(|next| next > Duration::ZERO));
        }
        sampler.stopped();
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
        let totals = session.finish(Vec::new());
        assert!(totals.samples + totals.lost > 10_000);
        assert!(totals.lost > 0, "the ring of 4 s at 500 Hz was full at times");
        assert!(named.0.load(Ordering::SeqCst) > known + 1_000, "the measured ticks read the current task");
    }
}
