use guest_linux::fixture::{Guest, Style};
use guest_linux::{FlatMemory, IrqContext, Kernel};
use kvm_bindings::kvm_sregs;

use super::*;

/// Creates a recorder of vCPU 1 in a guest whose sites are known.
fn recorder() -> (Guest, EventRecorder, EventRingEnds) {
    let guest = Guest::traceable(Style::V6_12);
    let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    let (readers, events) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let current = kernel.current_reader(&guest.memory).expect("a reader");
    readers.set(GuestReaders { current, stacks: None }).expect("once");
    let sites = kernel.probe_sites(&guest.memory, true, &[]).expect("sites");
    let states = kernel.sched_state_reader(&guest.memory).expect("states");
    let accounting = Some(kernel.exit_accounting_reader(&guest.memory).expect("books"));
    events.set(EventReaders { sites, states, accounting, watched: Vec::new() }).expect("once");
    let (recorder, ends) = EventRecorder::new(1, 2, readers, events);
    (guest, recorder, ends)
}

impl EventRecorder {
    /// Records a hit of the probe of an event.
    pub(in crate::exact) fn serve_event<M: PhysicalMemory>(
        &mut self,
        event: ProbeEvent,
        now_ns: u64,
        regs: &kvm_regs,
        memory: &M,
    ) -> bool {
        let (due_ns, sregs) = (now_ns, &kvm_sregs::default());
        self.hit(event.number(), &TickContext { due_ns, now_ns, in_run: true, regs, sregs, memory })
    }
}

fn call(rdi: u64, rsi: u64, rdx: u64) -> kvm_regs {
    kvm_regs { rdi, rsi, rdx, ..kvm_regs::default() }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn a_switch_shows_both_tasks_and_a_wake_only_what_it_wakes() {
    let (mut guest, mut recorder, mut ends) = recorder();
    let (init, many) = (guest.task(1).unwrap(), guest.task(100).unwrap());
    guest.set_state(1, [1, 0, 0]);
    guest.set_state(100, [0, 0, 1]);
    assert!(!recorder.serve_event(ProbeEvent::Switch, 10, &call(init, 0, 0), &guest.memory));
    // Wake-ups of interruptible and uninterruptible tasks: one sleeps, one runs.
    assert!(!recorder.serve_event(ProbeEvent::Wake, 20, &call(init, 3, 0), &guest.memory));
    assert!(!recorder.serve_event(ProbeEvent::Wake, 30, &call(many, 3, 0), &guest.memory));
    assert!(!recorder.serve_event(ProbeEvent::InterruptBegin, 40, &call(0, 0, 0), &guest.memory));
    recorder.entering(45);
    let records: Vec<_> = std::iter::from_fn(|| ends.events.pop().ok()).map(|t| t.record).collect();
    assert_eq!(records.iter().map(|record| record.time_ns).collect::<Vec<_>>(), [10, 20, 40]);
    let switch = &records[0];
    let from = switch.task.unwrap();
    assert_eq!((from.task.tid, from.run_state()), (1, RunState::Interruptible));
    assert_eq!(switch.next.unwrap().tid, 102, "what vCPU 1 runs");
    assert_eq!(records[1].serving, IrqContext::HardIrq);
    assert_eq!((count(&ends.counters.trips), count(&ends.counters.switches)), (4, 1));
    assert_eq!(count(&ends.counters.cost_ns), 5, "of the last trip");
    recorder.interrupted(50);
    recorder.entering(60);
    assert!(!recorder.serve_event(ProbeEvent::InterruptEnd, 70, &call(0, 0, 0), &guest.memory));
    assert_eq!(ends.events.pop().unwrap().record.served_ns, 5 + 10);
    assert_eq!(count(&ends.counters.cost_ns), 5, "a tick is not an event");
}

#[test]
fn samples_at_a_probe_are_what_its_switches_to_the_host_cost() {
    let (guest, mut recorder, mut ends) = recorder();
    let site = guest.text(0x5100).0;
    let mut served = || {
        assert!(!recorder.serve_event(ProbeEvent::InterruptEnd, 1, &call(0, 0, 0), &guest.memory));
        ends.events.pop().unwrap().record.served_ns
    };
    assert_eq!([served(), served()], [0, 0]);
    // Neither the code after the probe nor another function counts.
    for rip in [site + 6, site - 1, guest.text(0x5300).0] {
        recorder.sampled(rip, 1_000);
    }
    assert_eq!(count(&recorder.counters.switching), 0);
    recorder.sampled(site, 1_000);
    recorder.sampled(site + 5, 2_000);
    let counters = Arc::clone(&recorder.counters);
    assert_eq!((count(&counters.switching), count(&counters.switching_ns)), (2, 3_000));
    let mut served = |event| {
        assert!(!recorder.serve_event(event, 1, &call(0, 0, 0), &guest.memory));
        ends.events.pop().unwrap().record.served_ns
    };
    // 3,000 ns over three events, then over four: each pays the mean, after its own record. Events of another
    // kind pay nothing.
    assert_eq!([ProbeEvent::InterruptEnd; 3].map(&mut served), [0, 1_000, 1_750]);
    assert_eq!([ProbeEvent::Vector; 2].map(&mut served), [2_350; 2]);
}

#[test]
fn the_last_task_of_a_process_brings_its_accounting() {
    let (mut guest, mut recorder, mut ends) = recorder();
    guest.set_times(100, [30, 10, 50, 3, 1, 7]);
    guest.set_ended_times(100, [10, 10, 20, 4, 5], [0, 0]);
    for tid in [102, 100] {
        recorder.serve_event(ProbeEvent::Release, 1, &call(guest.task(tid).unwrap(), 0, 0), &guest.memory);
    }
    let accounting: Vec<_> =
        std::iter::from_fn(|| ends.events.pop().ok()).map(|t| t.record.accounting).collect();
    let runtimes = [None, Some(70)];
    assert_eq!(
        [accounting[0], accounting[1]].map(|ended| ended.map(|ended| ended.time.runtime_ns)),
        runtimes
    );
}

#[test]
fn an_interrupt_shows_its_entry_and_a_devices_its_vector() {
    let (mut guest, mut recorder, mut ends) = recorder();
    let (stack, entry) = (guest.text(0x5280).0, guest.text(0x5004).0);
    guest.put_text(0x5280, &entry.to_le_bytes());
    let regs = kvm_regs { rsp: stack, ..kvm_regs::default() };
    assert!(!recorder.serve_event(ProbeEvent::InterruptBegin, 10, &regs, &guest.memory));
    assert!(!recorder.serve_event(ProbeEvent::Vector, 20, &call(0, 35, 0), &guest.memory));
    let numbers: Vec<_> = std::iter::from_fn(|| ends.events.pop().ok()).map(|t| t.record.number).collect();
    assert_eq!(numbers, [entry, 35]);
}

#[test]
fn a_reader_of_a_sites_bytes_removes_the_probes() {
    let (mut guest, mut recorder, mut ends) = recorder();
    let site = guest.text(0x5040).0;
    assert!(recorder.serve_event(ProbeEvent::Patch, 1, &call(0, site + 1, 0), &guest.memory));
    assert!(
        !recorder.serve_event(ProbeEvent::Trace, 2, &call(0, site, 0), &guest.memory),
        "another function's tracer"
    );
    guest.set_tracers(0x5040, 1);
    assert!(recorder.serve_event(ProbeEvent::Trace, 3, &call(0, 0, 0), &guest.memory));
    assert!(recorder.serve_event(ProbeEvent::Core, 4, &call(0, 0, 0), &guest.memory));
    assert!(ends.events.pop().is_err(), "guards are not events");
}

#[test]
fn a_full_ring_counts_and_hostile_registers_do_no_harm() {
    let (guest, mut recorder, mut ends) = recorder();
    for rdi in [0, 1, u64::MAX, !7, 1 << 63, guest.task(1).unwrap() + 4] {
        for event in [
            ProbeEvent::Switch,
            ProbeEvent::Wake,
            ProbeEvent::New,
            ProbeEvent::Release,
            ProbeEvent::InterruptBegin,
        ] {
            let regs = kvm_regs { rsp: rdi, ..call(rdi, u64::MAX, u64::MAX) };
            recorder.serve_event(event, 1, &regs, &guest.memory);
            recorder.serve_event(event, 1, &call(rdi, 0, 0), &FlatMemory([0_u8; 64]));
        }
    }
    while let Ok(message) = ends.events.pop() {
        assert_eq!(message.record.task, None);
    }
    for _ in 0..2 * RING {
        recorder.serve_event(ProbeEvent::InterruptEnd, 1, &call(0, 0, 0), &guest.memory);
    }
    let room = std::iter::from_fn(|| ends.events.pop().ok()).count();
    assert_eq!(room as u64 + count(&ends.counters.lost), 2 * RING as u64);
    assert!(count(&ends.counters.lost) > 0);
}
