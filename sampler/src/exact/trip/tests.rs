//! Calls from the probe's hit to the rows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use guest_linux::fixture::{Guest, Style};
use guest_linux::{Kernel, MAX_WATCHED};
use kvm_bindings::{kvm_regs, kvm_sregs};
use profile::rows::{Batch, Mode, TripCallRow};
use vmm::TickContext;

use super::record::TripCounters;
use super::{TripCollector, TripRecorder};
use crate::exact::record::{EventReaders, EventRecorder, EventRingEnds};
use crate::managed::RuntimeTable;
use crate::record::GuestReaders;
use crate::resolve::resolver::SampleResolver;

/// Kinds of the probes of the two functions that are watched: release_task and try_to_wake_up.
const RELEASE: u8 = 10;
const WAKE: u8 = 11;

struct Watched {
    guest: Guest,
    recorder: EventRecorder,
    events: EventRingEnds,
    trips: TripCollector,
    counters: Arc<[TripCounters; MAX_WATCHED]>,
    resolver: SampleResolver,
    batch: Batch,
}

/// Returns vCPU 0 of two of a guest whose functions are watched, with exact mode or without.
fn watched(exact: bool) -> Watched {
    let guest = Guest::traceable(Style::V6_12);
    let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    let (readers, events) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let current = kernel.current_reader(&guest.memory).expect("a reader");
    readers.set(GuestReaders { current, stacks: None }).expect("once");
    let names = ["release_task", "try_to_wake_up"].map(str::to_owned).to_vec();
    let watched = kernel.watched(&guest.memory, &names).expect("functions");
    let sites = kernel.probe_sites(&guest.memory, exact, &watched).expect("sites");
    let states = kernel.sched_state_reader(&guest.memory).expect("states");
    let all = EventReaders { sites, states, accounting: None, watched: watched.clone() };
    events.set(all).expect("once");
    let (mut recorder, ends) = EventRecorder::new(0, 2, readers, events);
    let (watch, trip_ends) = TripRecorder::new((0, 2), 7, RuntimeTable::default());
    recorder.watch(watch);
    let counters = Arc::clone(&trip_ends.counters);
    let (mut trips, mut batch) = (TripCollector::new(names, vec![trip_ends], 100), Batch::default());
    trips.begin(watched, &mut batch);
    Watched { guest, recorder, events: ends, trips, counters, resolver: SampleResolver::new(100), batch }
}

impl Watched {
    fn hit(&mut self, kind: u8, now_ns: u64, regs: kvm_regs) -> bool {
        let mut sregs =
            kvm_sregs { cr3: self.guest.cr3, cr0: 1 << 31 | 1, efer: 1 << 10, ..kvm_sregs::default() };
        sregs.cr4 = u64::from(self.guest.five_level) << 12;
        let memory = &self.guest.memory;
        let context =
            TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory };
        self.recorder.hit(kind, &context)
    }

    fn calls(&mut self) -> Vec<TripCallRow> {
        self.trips.drain(&mut self.resolver, &mut self.batch);
        std::mem::take(&mut self.batch.trip_calls)
    }

    fn sum(&self, counter: fn(&TripCounters) -> &AtomicU64) -> u64 {
        counter(&self.counters[0]).load(Ordering::Relaxed)
    }
}

#[test]
fn a_call_has_its_task_and_its_arguments_by_their_types() {
    let mut watched = watched(false);
    let name = watched.guest.text(0x5280).0;
    watched.guest.put_text(0x5280, b"/etc/hosts\n\0more");
    let garbage = 0xabcd_0000_0000_0000;
    // const char *name, size_t count, enum hrtimer_mode mode, _Bool on, int error
    let call = kvm_regs {
        rdi: name,
        rsi: u64::MAX,
        rdx: garbage | 1,
        rcx: garbage | 1,
        r8: garbage | 0xffff_fffe,
        ..kvm_regs::default()
    };
    assert!(!watched.hit(RELEASE, 1_100, call), "nothing is withdrawn");
    watched.hit(RELEASE, 2_100, kvm_regs { rdi: name, ..kvm_regs::default() });
    watched.hit(RELEASE, 3_100, kvm_regs { rdi: 0, ..kvm_regs::default() });
    watched.hit(RELEASE, 4_100, kvm_regs { rdi: 0x10, ..kvm_regs::default() });
    let calls = watched.calls();
    assert_eq!(calls.iter().map(|call| call.time_ns).collect::<Vec<_>>(), [1_000, 2_000, 3_000, 4_000]);
    assert_eq!(calls[0].arguments, [Some(1), Some(-1), Some(1), Some(1), Some(-2), None]);
    // The same text, none, and an address that is not mapped.
    let texts = [1, 2, 3].map(|n| calls[n].arguments[0]);
    assert_eq!(texts, [Some(1), None, Some(0)]);
    assert_eq!(watched.batch.trip_texts.len(), 1);
    assert_eq!(watched.batch.trip_texts[0].text, "/etc/hosts\\x0a");
    let call = &calls[0];
    assert_eq!(
        (call.trip, call.mode, call.tid, call.stack, call.weight),
        (1, Mode::Kernel, Some(1), None, 0)
    );
    assert_eq!(watched.batch.instances.iter().filter(|row| Some(row.id) == call.instance).count(), 1);
    let arguments: Vec<_> =
        watched.batch.trip_arguments.iter().map(|row| (row.trip, row.number, row.kind.as_str())).collect();
    assert_eq!(arguments[..3], [(1, 1, "text"), (1, 2, "unsigned"), (1, 3, "enum")]);
    assert_eq!(arguments[5..], [(2, 1, "pointer"), (2, 2, "unsigned"), (2, 3, "signed")]);
    assert!(watched.events.events.pop().is_err(), "no event of exact mode");
}

#[test]
fn a_function_of_exact_mode_is_watched_as_well() {
    let mut watched = watched(true);
    let init = watched.guest.task(1).expect("a task");
    watched.guest.set_state(1, [1, 0, 0]);
    let call = kvm_regs { rdi: init, rsi: 3, ..kvm_regs::default() };
    watched.hit(WAKE, 10, call);
    assert_eq!(watched.events.events.pop().expect("a wake-up").record.time_ns, 10);
    assert_eq!(watched.calls()[0].arguments[1], Some(3));
    let exact = watched.events.counters.trips.load(Ordering::Relaxed);
    assert_eq!(exact, 1);
}

#[test]
fn the_count_is_exact_where_records_are_lost() {
    let mut watched = watched(false);
    for n in 0..20_000 {
        watched.hit(RELEASE, n, kvm_regs { rdi: u64::MAX, rsp: 1, ..kvm_regs::default() });
    }
    watched.recorder.entering(20_009);
    let recorded = watched.calls().len() as u64;
    let (calls, lost) = (watched.sum(|counters| &counters.calls), watched.sum(|counters| &counters.lost));
    assert_eq!((calls, recorded + lost, watched.sum(|counters| &counters.cost_ns)), (20_000, 20_000, 10));
    assert!(lost > 0 && recorded > 1_000);
    let mut batch = Batch::default();
    watched.trips.flush(&mut batch);
    assert_eq!((batch.trips[0].calls, batch.trips[0].lost, batch.trips[1].calls), (20_000, lost, 0));
    // The cost is not that of exact mode.
    assert_eq!(watched.events.counters.cost_ns.load(Ordering::Relaxed), 0);
}

#[test]
fn samples_at_a_watched_function_are_the_cost_of_its_exits() {
    let mut watched = watched(false);
    let site = watched.guest.text(0x5140).0;
    watched.recorder.sampled(site, 1_000);
    assert_eq!(watched.sum(|counters| &counters.switching), 0, "before the first call");
    watched.hit(RELEASE, 1, kvm_regs::default());
    watched.recorder.sampled(site, 1_000);
    watched.recorder.sampled(site + 5, 1_000);
    watched.recorder.sampled(site + 6, 1_000);
    let sums = (watched.sum(|counters| &counters.switching), watched.sum(|counters| &counters.switching_ns));
    assert_eq!(sums, (2, 2_000));
}
