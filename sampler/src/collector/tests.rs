use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Waker};

use guest_linux::fixture::{Config, Style};
use guest_linux::{CurrentContext, IrqContext, TaskSnapshot, VirtAddr};
use kvm_bindings::{kvm_regs, kvm_sregs};
use testkit::eventually;
use vm_memory::{Bytes, GuestAddress};
use vmm::{
    Activity, ActivitySource, AttachedThread, GuestMemoryMmap, Observer, ThreadId, ThreadStatistics,
    ThreadTimes, Tick, TickContext,
};

use super::*;
use crate::AttachedSampler;
use crate::record::SampleRecord;
use crate::resolve::frames;
use crate::resolve::frames::tests::FakeNames;
use crate::sampling_rate::TickPlan;
use crate::session::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use profile::conditions::{Condition, RunTrigger};
use profile::rows::{AWAITED, Mode, SinkError};
use symbols::names::no_files;

const SOON: Duration = Duration::from_secs(10);

fn task(pid: i32, name: &str) -> TaskSnapshot {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    TaskSnapshot { pid, tid: pid, start_ns: 7, process_comm: comm, comm, ..Default::default() }
}

fn hit(cpl: u8, rip: u64, serving: IrqContext, task: Option<TaskSnapshot>) -> SampleRecord {
    let current = task.map(|task| CurrentContext { serving, task: Some(task), ..Default::default() });
    SampleRecord {
        time_ns: 1_500,
        late_ns: 9,
        rip: VirtAddr(rip),
        cpl,
        long_mode: true,
        cr3: 0x1000,
        current,
        ..Default::default()
    }
}

#[test]
fn a_run_is_resolved() {
    let mut resolver = SampleResolver::new(1_000);
    let mut batch = Batch::default();
    let gzip = task(5, "gzip");
    resolver.sample(0, &hit(0, 0x1234, IrqContext::Task, None), None, &mut batch);
    resolver.sample(0, &hit(0, 0x77, IrqContext::Task, None), None, &mut batch);
    resolver.kernel_found(Arc::new(FakeNames::default()), None, &mut batch);
    resolver.sample(1, &hit(3, 0x40_0000, IrqContext::Task, Some(gzip)), None, &mut batch);
    resolver.sample(1, &hit(0, 0x1240, IrqContext::HardIrq, Some(gzip)), None, &mut batch);
    resolver.sample(0, &hit(0, 0x1240, IrqContext::Task, Some(task(0, "swapper/0"))), None, &mut batch);
    let modes: Vec<_> = batch.samples.iter().map(|s| (s.vcpu, s.mode, s.frame, s.instance)).collect();
    assert_eq!(
        modes,
        [
            (0, Mode::Boot, 1, None),
            (0, Mode::Boot, 2, None),
            (1, Mode::User, 3, Some(1)),
            (1, Mode::HardIrq, 4, Some(1)),
            (0, Mode::Idle, 4, Some(2)),
        ]
    );
    assert!(batch.samples.iter().all(|s| (s.time_ns, s.late_ns) == (500, 9)));
    let frames: Vec<_> = batch.frames.iter().map(|f| (f.id, f.symbol.as_deref(), f.instance)).collect();
    assert_eq!(
        frames,
        [
            (1, None, None),
            (2, None, None),
            (1, Some("symbol_12"), None),
            (3, None, Some(1)),
            (4, Some("symbol_12"), None)
        ]
    );
    let window = resolver.take_window();
    assert_eq!((window.samples(), window.top()), (5, Some(("gzip".to_owned(), 0.25))));
}

/// Names of an interrupt's entry at 0x1000, of the common entry code at 0x1100, of other code from there on.
#[derive(Debug)]
struct EntryNames;

impl frames::KernelNames for EntryNames {
    fn name(&self, address: VirtAddr) -> Option<frames::KernelName> {
        let symbol = match address.0 >> 8 {
            0x10 => "asm_sysvec_call_function_single",
            0x11 => "error_entry",
            _ => "do_idle",
        };
        Some(frames::KernelName { symbol: Some(symbol.to_owned()), module: None, offset: address.0 & 0xff })
    }

    fn in_image(&self, _: VirtAddr) -> bool {
        true
    }
}

#[test]
fn entry_of_an_interrupt_is_not_the_tasks() {
    let mut resolver = SampleResolver::new(0);
    let mut batch = Batch::default();
    resolver.kernel_found(Arc::new(EntryNames), None, &mut batch);
    let (gzip, idle) = (task(5, "gzip"), task(0, "swapper/0"));
    let mut mode = |record: SampleRecord| {
        resolver.sample(0, &record, None, &mut batch);
        batch.samples.last().map(|sample| sample.mode)
    };
    assert_eq!(mode(hit(0, 0x1010, IrqContext::Task, Some(gzip))), Some(Mode::HardIrq));
    assert_eq!(mode(hit(0, 0x1010, IrqContext::Task, Some(idle))), Some(Mode::HardIrq));
    assert_eq!(mode(hit(0, 0x1010, IrqContext::SoftIrq, Some(gzip))), Some(Mode::HardIrq));
    assert_eq!(mode(hit(0, 0x1010, IrqContext::Nmi, Some(gzip))), Some(Mode::Nmi));
    assert_eq!(
        mode(hit(0, 0x1110, IrqContext::Task, Some(gzip))),
        Some(Mode::Kernel),
        "may be an exception's"
    );
    assert_eq!(mode(hit(0, 0x1210, IrqContext::SoftIrq, Some(gzip))), Some(Mode::SoftIrq));
    assert_eq!(mode(hit(3, 0x1010, IrqContext::Task, Some(gzip))), Some(Mode::User));
    let halted = SampleRecord { halted: true, ..hit(0, 0x1010, IrqContext::Task, Some(idle)) };
    assert_eq!(mode(halted), Some(Mode::Idle));
    assert_eq!(
        mode(hit(0, 0x1010, IrqContext::Task, None)),
        Some(Mode::Unknown),
        "nothing is known of the CPU"
    );
}

#[test]
fn a_guest_of_the_guest_is_its_task_in_the_kernel_under_a_name_of_its_own() {
    let mut resolver = SampleResolver::new(0);
    let mut batch = Batch::default();
    resolver.kernel_found(Arc::new(EntryNames), None, &mut batch);
    let qemu = task(5, "qemu");
    let nested = |serving| SampleRecord {
        nested: true,
        current: hit(0, 0, serving, Some(qemu)).current,
        ..SampleRecord::default()
    };
    for serving in [IrqContext::Task, IrqContext::Task, IrqContext::HardIrq] {
        resolver.sample(0, &nested(serving), None, &mut batch);
    }
    let samples: Vec<_> = batch.samples.iter().map(|s| (s.mode, s.instance, s.frame, s.stack)).collect();
    assert_eq!(
        samples,
        [
            (Mode::Kernel, Some(1), 1, None),
            (Mode::Kernel, Some(1), 1, None),
            (Mode::HardIrq, Some(1), 1, None)
        ]
    );
    let frames: Vec<_> = batch.frames.iter().map(|frame| frame.symbol.as_deref()).collect();
    assert_eq!(frames, [Some("[nested guest]")]);
    assert_eq!(resolver.candidate, None, "its page tables lead to another kernel");
}

#[test]
fn kernel_code_gives_candidates_and_unknown_code_a_request() {
    let mut resolver = SampleResolver::new(0);
    let mut batch = Batch::default();
    let high = 0xff11_0000_8100_0000;
    resolver.sample(0, &hit(3, high, IrqContext::Task, None), None, &mut batch);
    resolver.sample(0, &hit(0, 0x1000, IrqContext::Task, None), None, &mut batch);
    resolver.sample(
        0,
        &SampleRecord { long_mode: false, ..hit(0, high, IrqContext::Task, None) },
        None,
        &mut batch,
    );
    assert_eq!(resolver.candidate, None);
    resolver.sample(
        0,
        &SampleRecord { five_level: true, ..hit(0, high + 1, IrqContext::Task, None) },
        None,
        &mut batch,
    );
    assert_eq!(resolver.candidate.take(), Some((0x1000, true)));
    assert!(!resolver.unknown_code, "without a kernel every address is unknown");
    resolver.kernel_found(Arc::new(FakeNames::default()), None, &mut batch);
    resolver.sample(0, &hit(0, high + 2, IrqContext::Task, None), None, &mut batch);
    assert!(std::mem::take(&mut resolver.unknown_code));
    resolver.sample(0, &hit(0, high + 2, IrqContext::Task, None), None, &mut batch);
    assert!(!resolver.unknown_code, "an address asks once");
}

#[test]
fn tasks_without_samples_are_listed() {
    let mut resolver = SampleResolver::new(0);
    let mut batch = Batch::default();
    resolver.list(&[task(0, "swapper/0"), task(1, "init"), task(7, "half gone")], &mut batch);
    assert!(batch.instances.is_empty(), "what was seen once may be half gone");
    resolver.list(&[task(0, "swapper/0"), task(1, "init"), task(1, "init")], &mut batch);
    let names: Vec<_> = batch.instances.iter().map(|i| i.comm.as_str()).collect();
    assert_eq!(names, ["swapper/0", "init"]);
    resolver.sample(0, &hit(0, 0x1000, IrqContext::Task, Some(task(0, "swapper/0"))), None, &mut batch);
    assert_eq!(batch.samples[0].mode, Mode::Idle, "tasks exist, so the boot is over");
}

/// Keeps all batches; fails from the given write on.
#[derive(Clone)]
struct MemorySink {
    batches: Arc<Mutex<Vec<Batch>>>,
    fails_at: usize,
    writes: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
}

impl MemorySink {
    fn new(fails_at: usize) -> Self {
        Self { batches: Arc::default(), fails_at, writes: Arc::default(), finished: Arc::default() }
    }
    fn all(&self) -> Batch {
        let mut sum = Batch::default();
        for batch in self.batches.lock().expect("no panic").iter().cloned() {
            sum.meta.extend(batch.meta);
            sum.vcpus = batch.vcpus;
            sum.samples.extend(batch.samples);
            sum.console.extend(batch.console);
            sum.events.extend(batch.events);
        }
        sum
    }
}

impl Sink for MemorySink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.writes.fetch_add(1, Ordering::SeqCst) >= self.fails_at {
            return Err(SinkError("no room for rows".to_owned()));
        }
        self.batches.lock().expect("no panic").push(batch.clone());
        Ok(())
    }
    fn finish(&mut self) -> Result<(), SinkError> {
        self.finished.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn session(sink: &MemorySink, vcpus: u8) -> (Session, Vec<VcpuSampler>) {
    let meta = vec![("host".to_owned(), "kvm".to_owned())];
    let config = SessionConfig {
        vcpus,
        recording: RecordingConfig { seed: 4, stack_depth: 127, ..RecordingConfig::default() },
        meta,
    };
    Session::new(config, Box::new(sink.clone()), no_files())
}

fn guest() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory")
}

fn ticks(sampler: &mut VcpuSampler, count: u64) {
    let memory = guest();
    let mut sregs = kvm_sregs::default();
    sregs.ss.dpl = 3;
    for n in 0..count {
        let now_ns = monotonic_ns();
        let regs = kvm_regs { rip: n, ..Default::default() };
        let context =
            TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &memory };
        sampler.serve(&context, || None);
    }
}

fn value<'a>(batch: &'a Batch, key: &str) -> Option<&'a str> {
    batch.meta.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
}

#[test]
fn a_session_writes_everything() {
    let sink = MemorySink::new(usize::MAX);
    let (mut session, mut samplers) = session(&sink, 2);
    session.start(guest()).expect("starts");
    assert!(session.start(guest()).is_err(), "only once");
    use std::io::Write;
    session.console().write_all(b"hello\n").expect("never fails");
    session.event("note", "the guest says hello");
    for sampler in &mut samplers {
        sampler.started();
        ticks(sampler, 1_000);
        sampler.stopped();
    }
    eventually("window of a second", SOON, || (session.status().rate_hz != 0.0).then_some(()));
    let status = session.status();
    assert_eq!((status.samples, status.lost, status.top), (2_000, 0, None));
    assert!(!session.failed());
    ticks(&mut samplers[1], 5);
    let totals = session.finish(vec![("guest_exit".to_owned(), "0".to_owned())]);
    assert_eq!((totals.samples, totals.lost, totals.sink_error), (2_005, 0, None));
    let all = sink.all();
    assert_eq!(all.samples.len(), 2_005);
    assert_eq!(all.vcpus.iter().map(|v| (v.id, v.samples)).collect::<Vec<_>>(), [(0, 1_000), (1, 1_005)]);
    for (key, expected) in
        [("host", "kvm"), ("clock", "uniform"), ("seed", "4"), ("rate_hz", "1000"), ("vcpus", "2")]
    {
        assert_eq!(value(&all, key), Some(expected));
    }
    assert_eq!((value(&all, "complete"), value(&all, "guest_exit")), (Some("1"), Some("0")));
    assert!(value(&all, "started_unix_ns").is_some() && value(&all, "version").is_some());
    let duration: u64 = value(&all, "duration_ns").expect("written").parse().expect("a number");
    assert!(duration > 1_000_000_000);
    assert_eq!(all.console[0].bytes, b"hello\n");
    let kinds: Vec<_> = all.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["note", "missing"], "the guest has no kernel, and that is reported once");
    assert_eq!(sink.finished.load(Ordering::SeqCst), 1);
    // Written during the run, not only at its end.
    assert!(sink.writes.load(Ordering::SeqCst) >= 4);
}

#[test]
fn a_failing_sink_ends_writing_but_not_draining() {
    let sink = MemorySink::new(1);
    let (mut session, mut samplers) = session(&sink, 1);
    session.start(guest()).expect("the first write succeeds");
    samplers[0].started();
    eventually("failed sink", SOON, || {
        ticks(&mut samplers[0], 10);
        session.failed().then_some(())
    });
    // Far more than the ring of 4,000 records holds.
    for _ in 0..100 {
        ticks(&mut samplers[0], 100);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(session.status().lost, 0);
    let totals = session.finish(Vec::new());
    assert_eq!((totals.samples, totals.sink_error.as_deref()), (0, Some("no room for rows")));
    assert_eq!((sink.writes.load(Ordering::SeqCst), sink.finished.load(Ordering::SeqCst)), (2, 0));
}

#[test]
fn a_sink_that_fails_at_once_stops_the_start() {
    let sink = MemorySink::new(0);
    let (mut session, _samplers) = session(&sink, 1);
    assert_eq!(session.start(guest()).expect_err("no room").0, "no room for rows");
    assert!(session.failed());
}

#[test]
fn lost_samples_are_reported() {
    let sink = MemorySink::new(usize::MAX);
    let (session, mut samplers) = session(&sink, 1);
    ticks(&mut samplers[0], 5_000);
    let totals = session.finish(Vec::new());
    assert_eq!(totals.samples + totals.lost, 5_000);
    assert!(totals.lost > 0);
    let events = sink.all().events;
    assert_eq!(events.iter().filter(|event| event.kind == "lost").count(), 2, "{events:?}");
}

#[test]
fn a_run_that_depends_on_its_kernel_ends_with_it() {
    for ends_with_kernel in [false, true] {
        let (session, _samplers) = session(&MemorySink::new(usize::MAX), 1);
        let mut collector = session.into_parts();
        collector.ends_with_kernel = ends_with_kernel;
        collector.kernel_gone();
        let ends = collector.shared.reached.poll(&Context::from_waker(Waker::noop()));
        assert_eq!(ends.is_ready(), ends_with_kernel);
        assert_eq!(collector.close().kernel_gone, ends_with_kernel);
    }
}

#[test]
fn samples_without_a_stack_are_reported() {
    let sink = MemorySink::new(usize::MAX);
    let (session, _samplers) = session(&sink, 1);
    let mut collector = session.into_parts();
    collector.stacks_missed = 821;
    collector.close();
    let all = sink.all();
    assert_eq!(value(&all, "samples_without_stack"), Some("821"));
    assert_eq!(
        (all.events[0].kind.as_str(), &all.events[0].text[..25]),
        ("missing", "821 samples have no stack")
    );
}

#[test]
fn a_dropped_session_ends_incomplete() {
    let sink = MemorySink::new(usize::MAX);
    let (mut session, mut samplers) = session(&sink, 1);
    session.start(guest()).expect("starts");
    ticks(&mut samplers[0], 10);
    drop(session);
    let all = sink.all();
    assert_eq!((all.samples.len(), value(&all, "complete")), (10, None));
}

#[test]
fn a_finder_that_panics_is_reported_and_sampling_continues() {
    let sink = MemorySink::new(usize::MAX);
    let (session, mut samplers) = session(&sink, 1);
    let mut collector = session.into_parts();
    let (sender, events) = std::sync::mpsc::channel();
    let wanted = Arc::new(FinderRequests::default());
    let thread = thread::spawn(move || {
        let _sender: std::sync::mpsc::Sender<FinderEvent> = sender;
        panic!("a bug in reading the guest (this panic belongs to the test)");
    });
    collector.set_finder(FinderHandle { wanted, events, thread: Some(thread) });
    ticks(&mut samplers[0], 3);
    while collector.finder.is_some() {
        collector.collect();
    }
    ticks(&mut samplers[0], 3);
    assert_eq!(collector.close().samples, 6);
    assert!(
        sink.all().events.iter().any(|event| event.kind == "missing" && event.text.contains("unexpectedly"))
    );
}

#[test]
fn a_stall_on_the_console_is_an_event() {
    use std::io::Write;
    let sink = MemorySink::new(usize::MAX);
    let (mut session, _samplers) = session(&sink, 1);
    session.start(guest()).expect("starts");
    let line = b"[    9.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
    session.console().write_all(line).expect("never fails");
    session.finish(Vec::new());
    let all = sink.all();
    let stalls: Vec<_> = all.events.iter().filter(|event| event.kind == "stall").collect();
    assert_eq!(stalls.len(), 1, "{:?}", all.events);
    assert_eq!(stalls[0].text, "[    9.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:");
}

#[test]
fn a_console_flood_takes_a_bounded_part_of_the_profile_and_no_sample() {
    use std::io::Write;
    let sink = MemorySink::new(usize::MAX);
    let (session, mut samplers) = session(&sink, 1);
    let mut console = session.console();
    let mut collector = session.into_parts();
    samplers[0].started();
    // A row for each newline would be the most that a guest can make of its bytes. Long lines fill the rest
    // of the budget, because they take less of the test's time.
    let newlines = vec![b'\n'; 1 << 20];
    let lines = [&[b'x'; 1023][..], b"\n"].concat().repeat(1 << 10);
    for round in 0..120 {
        console.write_all(if round < 4 { &newlines } else { &lines }).expect("never fails");
        ticks(&mut samplers[0], 10);
        collector.collect();
        collector.flush();
    }
    console.write_all(b"the end\n").expect("never fails");
    samplers[0].stopped();
    assert_eq!(collector.close().samples, 1_200);
    let all = sink.all();
    assert_eq!(all.samples.len(), 1_200);
    // 64 MiB and the newest MiB.
    let bytes: usize = all.console.iter().map(|row| row.bytes.len() + 64).sum();
    assert!(bytes <= 65 << 20 && bytes > 60 << 20, "{bytes}");
    assert!(all.console.len() < 70_000, "{} rows instead of 4 million", all.console.len());
    assert!(all.console.last().expect("rows").bytes.ends_with(b"the end\n"));
    assert_eq!(all.events.iter().filter(|event| event.text == ConsoleBudget::SPENT).count(), 1);
    let dropped: u64 = value(&all, "console_dropped_bytes").expect("counted").parse().expect("a number");
    let kept: u64 = all.console.iter().map(|row| row.bytes.len() as u64).sum();
    assert_eq!(dropped + kept, (120 << 20) + 8);
}

/// Serves a tick in code at `rip`: in long mode with these page tables, or in real mode.
fn tick_at(sampler: &mut VcpuSampler, memory: &GuestMemoryMmap, rip: u64, tables: Option<u64>) {
    let mut sregs = kvm_sregs::default();
    if let Some(cr3) = tables {
        (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8000_0001, cr3, 1 << 12, 0x500);
        sregs.cs.l = 1;
    }
    let (regs, now_ns) = (kvm_regs { rip, ..Default::default() }, monotonic_ns());
    let context = TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory };
    sampler.serve(&context, || None);
}

/// The reason for which there are no samples before the kernel was found must not keep it from being found.
#[test]
fn a_process_is_awaited_in_a_guest_whose_kernel_was_not_found_when_sampling_ended() {
    let built = Config::new(Style::V6_12).build();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), built.memory.0.len())]).expect("memory");
    memory.write_slice(&built.memory.0, GuestAddress(0)).expect("inside");
    let awaited = || RunTrigger::Start(Condition::Process("many".to_owned()));
    // What is awaited from the start on, and what ends sampling.
    type Ends = fn(&Session);
    let mark = RunTrigger::Stop { when: Condition::Mark("x".to_owned()), end: false };
    let cases: [(RunTrigger, Ends); 3] = [
        // A rate that a GDB stub does not sustain is lowered.
        (awaited(), |session| session.set_rate(99.0)),
        (mark.clone(), |session| session.set_sampling(false)),
        (mark, |session| session.event("mark", "x")),
    ];
    for (first, ends) in cases {
        let sink = MemorySink::new(usize::MAX);
        let (mut session, mut samplers) = session(&sink, 1);
        let sampler = &mut samplers[0];
        session.wait_for(first);
        session.start(memory.clone()).expect("starts");
        sampler.started();
        // Firmware.
        tick_at(sampler, &memory, 0x1000, None);
        ends(&session);
        eventually("the end of sampling", SOON, || (!session.status().sampling).then_some(()));
        tick_at(sampler, &memory, 0x1000, None);
        let looks = sampler.published().pace.wanted();
        assert_eq!(looks, TickPlan::Looks(20.0));
        session.wait_for(awaited());
        eventually("the awaited process", 6 * SOON, || {
            tick_at(sampler, &memory, built.text(0x1404).0, Some(built.cr3));
            session.status().sampling.then_some(())
        });
        assert!(matches!(sampler.published().pace.wanted(), TickPlan::Samples(_)));
        session.set_sampling(false);
        assert_eq!(sampler.published().pace.wanted(), TickPlan::Off, "there is nothing to find");
        session.finish(Vec::new());
        let all = sink.all();
        assert!(all.samples.iter().all(|sample| sample.cr3 == 0), "only the firmware was sampled");
        let states = all.meta.iter().filter(|(key, _)| key == AWAITED).map(|(_, value)| value.as_str());
        let states: Vec<_> = states.collect();
        assert!(states.starts_with(&["process:many"]) && states.ends_with(&[""]), "{states:?}");
    }
}

/// Times of a thread that has run long before, and does not run.
#[derive(Debug)]
struct EarlierTimes;

impl ThreadStatistics for EarlierTimes {
    fn read(&self) -> Option<ThreadTimes> {
        Some(ThreadTimes { run_ns: 5_000_000_000_000, waited_ns: 7_000_000_000 })
    }
}

/// A vCPU in the guest.
#[derive(Debug)]
struct InGuest;

impl ActivitySource for InGuest {
    fn activity(&self) -> Option<Activity> {
        Some(Activity::Running)
    }
}

#[test]
fn a_vcpu_that_is_added_counts_from_then_on() {
    let sink = MemorySink::new(usize::MAX);
    let (mut session, mut samplers) = session(&sink, 1);
    session.start(guest()).expect("starts");
    samplers[0].started();
    ticks(&mut samplers[0], 10);
    // The times of both vCPUs differ by this time, and the added one is there for 50 ms.
    let before = Duration::from_millis(300);
    thread::sleep(before);
    let none = || VcpuCounts { opened: None, course: None };
    let mut added = AttachedSampler::from(session.add_vcpu(none()).expect("room"));
    let id = ThreadId { process: 1, thread: 1 };
    let attached = AttachedThread { id, cpu: 1, statistics: Some(Arc::new(EarlierTimes)) };
    Observer::<GuestMemoryMmap>::attached(&mut added, Some(attached));
    let (memory, regs, sregs) = (guest(), kvm_regs::default(), kvm_sregs::default());
    for _ in 0..5 {
        let now_ns = monotonic_ns();
        let context =
            TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &memory };
        assert!(added.ticked(&Tick { context, blocked: false, source: &InGuest }).is_some());
    }
    thread::sleep(Duration::from_millis(50));
    Observer::<GuestMemoryMmap>::stopped(&mut added);
    samplers[0].stopped();
    // It has the rate that is requested of the others.
    session.set_sampling(false);
    let mut off = AttachedSampler::from(session.add_vcpu(none()).expect("room"));
    let mut passes = || Observer::<GuestMemoryMmap>::pass(&mut off, monotonic_ns()).is_some();
    assert_eq!((passes(), passes()), (false, false), "no kernel was found, so a look is due");
    assert_eq!(session.status().kernel, None);
    assert_eq!(session.status().samples, 15);
    let further = (0..100).take_while(|_| session.add_vcpu(none()).is_some()).count();
    assert_eq!(further, 61, "64 at most");
    session.finish(Vec::new());
    let all = sink.all();
    let rows: Vec<_> = all.vcpus.iter().map(|row| (row.id, row.samples)).take(3).collect();
    assert_eq!(rows, [(0, 10), (1, 5), (2, 0)]);
    assert_eq!(value(&all, "vcpus"), Some("64"));
    assert_eq!(all.samples.iter().filter(|sample| sample.vcpu == 1).count(), 5);
    let [first, second, third, ..] = &all.vcpus[..] else { panic!("three vCPUs") };
    let before_ns = u64::try_from(before.as_nanos()).expect("a short time");
    assert!(first.states.wall() >= second.states.wall() + before_ns, "{:?}", all.vcpus);
    assert!(second.states.wall() >= 50_000_000, "{second:?}");
    assert_eq!(
        (second.states.guest, second.states.waiting),
        (0, 0),
        "its thread's earlier times: {second:?}"
    );
    assert_eq!(third.states.wall(), 0);
    let batches = sink.batches.lock().expect("no panic");
    assert!(batches.iter().flat_map(|batch| &batch.rates).all(|row| row.vcpu != 1), "one rate all the time");
}
