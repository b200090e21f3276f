use guest_linux::fixture::{Guest, Style};
use kvm_bindings::kvm_regs;

use super::*;
use profile::rows::TaskState;

use crate::task_state::{TaskActivity, TaskId, TaskKey};

/// Returns a merger for one vCPU that runs a task from time 0 on, and its recorder, whose ring is full:
/// an event is lost at 1 ms.
fn merger(guest: &Guest) -> (EventMerger, EventRecorder) {
    let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    let readers: Arc<OnceLock<GuestReaders>> = Arc::default();
    let current = kernel.current_reader(&guest.memory).expect("a reader");
    readers.set(GuestReaders { current, stacks: None }).expect("once");
    let (mut merger, mut recorders) = EventMerger::new(1, 0, &readers);
    let sites = kernel.probe_sites(&guest.memory, true, &[]).expect("sites");
    let states = kernel.sched_state_reader(&guest.memory).expect("states");
    merger.events.set(EventReaders { sites, states, accounting: None, watched: Vec::new() }).expect("once");
    let task = TaskId { address: 8, who: TaskKey { instance: 1, tid: 8 } };
    merger.accounts.runs(0, 0, Some(task));
    let mut recorder = recorders.remove(0);
    let mut serve = |time_ns| {
        recorder.serve_event(ProbeEvent::InterruptEnd, time_ns, &kvm_regs::default(), &guest.memory);
    };
    (1..=merger.ends[0].events.buffer().capacity() as u64).for_each(&mut serve);
    assert_eq!(merger.ends[0].counters.lost.load(Ordering::Relaxed), 0);
    serve(1_000_000);
    (merger, recorder)
}

fn ns(merger: &mut EventMerger, state: TaskState) -> u64 {
    let who = TaskKey { instance: 1, tid: 8 };
    merger.accounts.take().states.get(&(who, TaskActivity::plain(state))).map_or(0, |sum| sum.ns)
}

#[test]
fn what_is_lost_is_unknown_from_the_first_lost_event_on() {
    let guest = Guest::traceable(Style::V6_12);
    let (mut merger, mut recorder) = merger(&guest);
    let (mut resolver, mut batch) = (SampleResolver::new(0), Batch::default());
    let mut serve = |time_ns| {
        recorder.serve_event(ProbeEvent::InterruptEnd, time_ns, &kvm_regs::default(), &guest.memory);
    };
    // The ring is full of older events: this is the second one that is lost.
    serve(1_200_000);
    merger.drain(&mut resolver, &mut batch);
    merger.account(u64::MAX, &mut resolver, &mut batch);
    serve(1_300_000);
    merger.drain(&mut resolver, &mut batch);
    merger.account(u64::MAX, &mut resolver, &mut batch);
    merger.accounts.settle(1_500_000);
    assert_eq!(ns(&mut merger, TaskState::Unknown), 500_000);
}

#[test]
fn a_loss_that_is_over_when_the_ring_is_looked_into_counts_from_its_begin() {
    let guest = Guest::traceable(Style::V6_12);
    let (mut merger, mut recorder) = merger(&guest);
    let (mut resolver, mut batch) = (SampleResolver::new(0), Batch::default());
    drop(merger.ends[0].events.pop());
    recorder.serve_event(ProbeEvent::InterruptEnd, 1_400_000, &kvm_regs::default(), &guest.memory);
    assert_eq!(merger.ends[0].counters.losing_ns.load(Ordering::Relaxed), 0);
    merger.drain(&mut resolver, &mut batch);
    merger.account(u64::MAX, &mut resolver, &mut batch);
    merger.accounts.settle(1_500_000);
    assert_eq!(ns(&mut merger, TaskState::Unknown), 500_000);
}

#[test]
fn an_event_that_is_being_recorded_holds_up_what_is_younger() {
    let (merger, _) = EventMerger::new(2, 0, &Arc::default());
    let now_ns = 5_000_000_000;
    assert_eq!(merger.complete_until(now_ns), now_ns - SLACK_NS);
    let serving = |ns| merger.ends[1].counters.serving_ns.store(ns, Ordering::Relaxed);
    serving(now_ns - 10);
    assert_eq!(merger.complete_until(now_ns), now_ns - SLACK_NS);
    serving(now_ns - 70_000_000);
    assert_eq!(merger.complete_until(now_ns), now_ns - 70_000_001);
    serving(1);
    assert_eq!(merger.complete_until(now_ns), now_ns - LONGEST_NS, "not for ever");
}

#[test]
fn functions_that_are_never_watched_are_a_failure_and_exact_mode_is_not() {
    let readers = Arc::default();
    for exact in [false, true] {
        let (mut merger, _recorders) = EventMerger::new(1, 0, &readers);
        let (mut resolver, mut batch) = (SampleResolver::new(0), Batch::default());
        merger.watch(TripCollector::new(vec!["vfs_read".to_owned()], Vec::new(), 0), exact);
        assert_eq!(merger.refused(), None);
        merger.close(&mut resolver, &mut batch);
        let reason = merger.refused().expect("a reason");
        assert_eq!(reason, "no function was watched: the guest's kernel was not found");
        assert_eq!(batch.meta.iter().any(|(key, _)| key == "exact_missing"), exact);
        assert_eq!(batch.events.len(), 1 + usize::from(exact));
    }
    let (mut merger, _recorders) = EventMerger::new(1, 0, &readers);
    merger.close(&mut SampleResolver::new(0), &mut Batch::default());
    assert_eq!(merger.refused(), None);
}
