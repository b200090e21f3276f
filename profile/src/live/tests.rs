use std::time::Duration;

use super::*;
use crate::calls::Direction;
use crate::rows::Microstates;
use crate::rows::TaskState;
use crate::rows::{
    ConsoleRow, EventRow, ExitRow, FLAT, FrameKind, FrameRow, InlinedRow, InstanceRow, MicrostateRow, Mode,
    RateRow, SampleRow, StackRow, TaskStateRow, VcpuRow, VcpuState,
};

const MS: u64 = 1_000_000;

fn frame(id: u32, symbol: &str, kind: FrameKind) -> FrameRow {
    FrameRow { id, symbol: Some(symbol.to_owned()), kind, ..FrameRow::default() }
}

fn sample(ms: u64, instance: u32, mode: Mode, (frame, stack): (u32, Option<u32>)) -> SampleRow {
    let time_ns = ms * MS;
    SampleRow {
        time_ns,
        mode,
        instance: Some(instance),
        frame,
        stack,
        vcpu_state: VcpuState::Guest,
        ..SampleRow::default()
    }
}

/// `main` calls `work`, which calls itself; `helper` is a copy in it. A second of it, then a second of
/// `other`.
fn batch() -> Batch {
    let mut batch = Batch::default();
    let meta = [("duration_ns", "2000000000"), ("rate_hz", "1000"), ("host", "kvm"), ("kernel", "6.1")];
    batch.meta = meta.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    for (id, comm) in [(1, "spin"), (2, "other")] {
        let (pid, comm) = (100 + i32::try_from(id).unwrap(), comm.to_owned());
        batch.instances.push(InstanceRow { id, pid, comm, ..InstanceRow::default() });
    }
    let (kernel, user) = (FrameKind::Kernel, FrameKind::User);
    batch.frames = vec![
        frame(1, "main", user),
        frame(2, "work", user),
        frame(3, "vfs_read", kernel),
        frame(4, "gone", FrameKind::Reason),
    ];
    batch.inlined =
        vec![InlinedRow { frame: 2, depth: 0, symbol: "helper".to_owned(), source: None, line: None }];
    for (id, parent, frame) in [(1, None, 1), (2, Some(1), 2), (3, Some(2), 2), (4, None, 4), (5, Some(4), 3)]
    {
        batch.stacks.push(StackRow { id, parent, frame });
    }
    for n in 0..10 {
        batch.samples.push(sample(n * 100, 1, Mode::User, (2, Some(3))));
    }
    for n in 10..20 {
        batch.samples.push(sample(n * 100, 2, Mode::Kernel, (3, Some(5))));
    }
    let halted = SampleRow {
        vcpu_state: VcpuState::Halted,
        mode: Mode::Idle,
        time_ns: 1_950 * MS,
        ..SampleRow::default()
    };
    let beside = SampleRow { vcpu_state: VcpuState::Vmm, ..halted.clone() };
    batch.samples.extend([halted, beside]);
    let states = Microstates { guest: 900 * MS, vmm: 100 * MS, ..Microstates::default() };
    batch.vcpus = vec![VcpuRow { id: 0, samples: 21, states: states.plus(&states), ..VcpuRow::default() }];
    let idle = Microstates { halted: 1_000 * MS, ..Microstates::default() };
    batch.microstates = vec![
        MicrostateRow { vcpu: 0, time_ns: 1_000 * MS, states },
        MicrostateRow { vcpu: 0, time_ns: 2_000 * MS, states: idle },
    ];
    batch.events.push(EventRow { time_ns: MS, kind: "mark".to_owned(), text: "here".to_owned() });
    batch.console.push(ConsoleRow { time_ns: MS, bytes: b"a\nb\n".to_vec() });
    batch
}

#[test]
fn the_driver_of_a_serial_port_is_found_on_stacks_of_the_last_seconds() {
    let mut batch = batch();
    batch.frames.push(frame(5, "io_serial_out", FrameKind::Kernel));
    batch.stacks.push(StackRow { id: 6, parent: Some(5), frame: 5 });
    batch.samples.extend((0..30).map(|n| sample(1_500 + n, 2, Mode::HardIrq, (5, Some(6)))));
    let mut tables = Tables::default();
    tables.add(&batch);
    // Samples of the other task each 100 ms, and those of the driver in the second half of the second.
    let of_last = tables.serial_share(Duration::from_secs(1)).unwrap();
    assert!((of_last.share - 30.0 / 40.0).abs() < 1e-9 && of_last.low > 0.5, "{of_last:?}");
    let of_run = tables.serial_share(Duration::from_secs(2)).unwrap();
    assert!((of_run.share - 30.0 / 50.0).abs() < 1e-9, "{of_run:?}");
    assert_eq!(tables.serial_share(Duration::from_secs(3)), None);
    // A program's function of the same name does not count.
    let module = Some("prog".to_owned());
    let program = FrameRow { module, ..frame(5, "io_serial_out", FrameKind::User) };
    tables.add(&Batch { frames: vec![program], ..Batch::default() });
    assert_eq!(tables.serial_share(Duration::from_secs(1)).unwrap().share, 0.0);
}

#[test]
fn the_whole_run_and_its_end_are_told_apart() {
    let mut tables = Tables::default();
    tables.add(&batch());
    let run = tables.snapshot(&View { span: Span::Run, rows: 10, ..View::default() });
    let shares = |snapshot: &Snapshot| {
        snapshot
            .processes
            .iter()
            .map(|p| (p.comm.clone(), p.samples, p.share.share, p.user))
            .collect::<Vec<_>>()
    };
    assert_eq!(shares(&run), [("spin".to_owned(), 10, 0.5, 1.0), ("other".to_owned(), 10, 0.5, 0.0)]);
    assert_eq!(
        (run.sampling.counted, run.time_s, run.span_s, run.kernel.as_deref()),
        (21, 2.0, 2.0, Some("6.1"))
    );
    let programs: Vec<_> = run.programs.iter().map(|p| (p.comm.as_str(), p.instances, p.samples)).collect();
    assert_eq!(programs, [("other", 1, 10), ("spin", 1, 10)]);
    assert!(run.sampling.on && (run.sampling.rate_hz - 1_000.0).abs() < 1e-9);
    assert!((run.modes.user - 10.0 / 21.0).abs() < 1e-12 && (run.modes.idle - 1.0 / 21.0).abs() < 1e-12);
    assert_eq!(
        (run.events[0].text.as_str(), run.console.as_slice()),
        ("here", ["a".to_owned(), "b".to_owned()].as_slice())
    );
    let last = tables.snapshot(&View { span: Span::Last(1.0), rows: 10, ..View::default() });
    assert_eq!(shares(&last), [("other".to_owned(), 10, 1.0, 0.0)]);
    let vcpu = &last.vcpus[0];
    assert_eq!(vcpu.states[1], ("halted".to_owned(), 1.0));
    assert!((run.vcpus[0].states[0].1 - 0.9).abs() < 1e-12, "{run:?}");
}

#[test]
fn a_history_has_columns_of_the_wanted_length() {
    let mut tables = Tables::default();
    tables.add(&batch());
    let history = |length_s| {
        let snapshot = tables.snapshot(&View { history_s: Some(length_s), ..View::default() });
        snapshot.vcpus[0].history.clone()
    };
    // guest, halted, waiting, kvm, vmm, sampler, paused
    let (busy, idle) = (vec![0.9, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0], vec![0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(history(0.5), [busy.clone(), busy.clone(), idle.clone(), idle]);
    assert_eq!(history(2.0), [[0.45, 0.5, 0.0, 0.0, 0.05, 0.0, 0.0]]);
    assert_eq!([0.0, -1.0, f64::NAN, 1e9].map(|length_s| history(length_s).len()), [20, 20, 0, 0]);
    assert!(tables.snapshot(&View::default()).vcpus[0].history.is_empty());
    // After a gap nothing is known.
    let meta = vec![("duration_ns".to_owned(), (100_000 * MS).to_string())];
    tables.add(&Batch { meta, ..Batch::default() });
    let snapshot = tables.snapshot(&View { history_s: Some(0.5), ..View::default() });
    assert_eq!(snapshot.vcpus[0].history, vec![vec![0.0; 7]; 120]);
}

#[test]
fn functions_count_once_for_each_stack() {
    let mut tables = Tables::default();
    tables.add(&batch());
    let run = tables.snapshot(&View { span: Span::Run, rows: 10, ..View::default() });
    let rows: Vec<_> = run.functions.iter().map(|f| (f.symbol.as_str(), f.samples, f.total.share)).collect();
    assert_eq!(rows, [("vfs_read", 10, 0.5), ("helper", 10, 0.5), ("main", 0, 0.5), ("work", 0, 0.5)]);
    // A better name replaces the first.
    tables.add(&Batch { frames: vec![frame(3, "ksys_read", FrameKind::Kernel)], ..Batch::default() });
    let run = tables.snapshot(&View { span: Span::Run, rows: 2, ..View::default() });
    assert_eq!((run.functions.len(), run.functions[1].symbol.as_str()), (2, "ksys_read"));
}

#[test]
fn totals_are_of_samples_with_stacks() {
    let mut flat = batch();
    let reason = FrameRow { module: Some(FLAT.to_owned()), ..frame(5, "no stack", FrameKind::Reason) };
    flat.frames.push(reason);
    for (id, parent, frame) in [(6, None, 5), (7, Some(6), 3)] {
        flat.stacks.push(StackRow { id, parent, frame });
    }
    for n in 0..20 {
        flat.samples.push(sample(1_000 + n * 40, 2, Mode::Kernel, (3, Some(7))));
    }
    let mut tables = Tables::default();
    tables.add(&flat);
    let run = tables.snapshot(&View { span: Span::Run, rows: 10, ..View::default() });
    let rows: Vec<_> = run.functions.iter().map(|f| (f.symbol.as_str(), f.samples, f.total.share)).collect();
    assert_eq!(rows, [("vfs_read", 30, 0.5), ("helper", 10, 0.5), ("main", 0, 0.5), ("work", 0, 0.5)]);
    assert_eq!(run.functions[0].own.share, 0.75);
    let view = CallsView { symbol: "vfs_read".to_owned(), module: None, direction: Direction::Callers };
    let calls = detail(&tables, SamplePart::All, Some(view)).calls;
    assert_eq!((calls[0].samples, calls[0].share.share), (10, 0.5));
}

/// The table of a part of the whole run.
fn detail(tables: &Tables, part: SamplePart, calls: Option<CallsView>) -> Detail {
    let view = DetailView { part, calls };
    let view = View { span: Span::Run, rows: 10, detail: Some(view.clone()), ..View::default() };
    tables.snapshot(&view).detail.unwrap()
}

#[test]
fn a_part_has_its_functions_and_its_calls() {
    let mut tables = Tables::default();
    tables.add(&batch());
    let functions = |part| {
        let found = detail(&tables, part, None);
        let rows = found.functions.iter().map(|f| (f.symbol.clone(), f.samples, f.total.share));
        (found.samples, rows.collect::<Vec<_>>())
    };
    let named = |name: &str, own| (name.to_owned(), own, 0.5);
    let process = |comm: &str, instance| SamplePart::Process { comm: comm.to_owned(), instance };
    let program = |comm: &str, kernel_thread| SamplePart::Program { comm: comm.to_owned(), kernel_thread };
    let of_spin = (10, vec![named("helper", 10), named("main", 0), named("work", 0)]);
    assert_eq!(functions(process("spin", 0)), of_spin);
    assert_eq!(functions(program("spin", false)), of_spin);
    assert_eq!(functions(program("other", false)), (10, vec![named("vfs_read", 10)]));
    for nothing in [process("spin", 1), program("spin", true), program("[hard interrupts]", false)] {
        assert_eq!(functions(nothing), (0, vec![]));
    }
    assert_eq!(functions(SamplePart::All).0, 20);
    let calls = |part, symbol: &str, direction| {
        let calls = CallsView { symbol: symbol.to_owned(), module: None, direction };
        let found = detail(&tables, part, Some(calls));
        assert!(found.functions.is_empty());
        found.calls.iter().map(|c| (c.depth, c.symbol.clone(), c.samples, c.share.share, c.part)).collect()
    };
    let rows = |rows: &[(u32, &str)]| -> Vec<(u32, String, u64, f64, f64)> {
        rows.iter().map(|(depth, name)| (*depth, (*name).to_owned(), 10, 0.5, 1.0)).collect()
    };
    // Each sample counts from the outermost `work` on; `helper` is a copy in both.
    let callees: Vec<_> = calls(SamplePart::All, "work", Direction::Callees);
    assert_eq!(callees, rows(&[(0, "work"), (1, "helper"), (2, "work"), (3, "helper")]));
    let callers: Vec<_> = calls(process("spin", 0), "helper", Direction::Callers);
    assert_eq!(callers, rows(&[(0, "helper"), (1, "work"), (2, "main")]));
    // The reason why a stack ends is not a caller.
    assert_eq!(calls(SamplePart::All, "vfs_read", Direction::Callers), rows(&[(0, "vfs_read")]));
    assert_eq!(calls(process("other", 0), "work", Direction::Callers), vec![]);
    assert_eq!(calls(SamplePart::All, "nothing", Direction::Callers), vec![]);
}

#[test]
fn exits_and_tasks_are_rates_of_late() {
    let mut tables = Tables::default();
    let exits_at = |s: u64, count: u64| Batch {
        meta: vec![("duration_ns".to_owned(), (s * 1_000 * MS).to_string())],
        exits: vec![ExitRow {
            id: 1,
            reason: "port write".to_owned(),
            count,
            total_ns: count * 1_000,
            ..ExitRow::default()
        }],
        task_states: vec![
            TaskStateRow {
                instance: 1,
                tid: 7,
                state: TaskState::Running,
                ns: 250 * MS,
                ..TaskStateRow::default()
            },
            TaskStateRow {
                instance: 1,
                tid: 7,
                state: TaskState::Runnable,
                ns: 750 * MS,
                ..TaskStateRow::default()
            },
        ],
        rates: vec![RateRow { vcpu: 0, time_ns: 0, rate_hz: 0.0 }],
        ..Batch::default()
    };
    tables.add(&exits_at(1, 1_000));
    tables.add(&exits_at(3, 5_000));
    let snapshot = tables.snapshot(&View { span: Span::Last(1.0), rows: 10, ..View::default() });
    let exit = &snapshot.exits[0];
    assert_eq!((exit.per_s, exit.mean_ns, exit.reason.as_str()), (2_000.0, 1_000.0, "port write"));
    assert!((exit.share - 0.002).abs() < 1e-12);
    assert_eq!((snapshot.tasks.len(), snapshot.tasks[0].tid, snapshot.tasks[0].time_s), (1, 7, 1.0));
    assert!(
        snapshot.tasks[0].states.contains(&("runnable".to_owned(), 0.75)),
        "{:?}",
        snapshot.tasks[0].states
    );
    assert!(!snapshot.sampling.on);
}

#[test]
fn a_sink_that_fails_counts_nothing() {
    struct Full;
    impl Sink for Full {
        fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
            Err(SinkError("full".to_owned()))
        }
    }
    let shared = SharedTables::default();
    let mut sink = LiveSink::new(Box::new(Full), shared.clone());
    assert!(sink.write(&batch()).is_err());
    assert_eq!(shared.lock().snapshot(&View::default()).sampling.counted, 0);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For all rows, in any order, a snapshot ends and its shares stay in range.
        #[test]
        fn any_rows_are_bounded(
            stacks in prop::collection::vec((0_u32..40, prop::option::of(0_u32..40), 0_u32..9), 0..40),
            samples in prop::collection::vec((0_u64..90_000, 0_u32..4, 0_u32..9, prop::option::of(0_u32..60)), 0..60),
            rows in 0_usize..5,
        ) {
            let mut batch = batch();
            batch.stacks.extend(stacks.into_iter().map(|(id, parent, frame)| StackRow { id, parent, frame }));
            for (ms, instance, frame, stack) in samples {
                batch.samples.push(sample(ms, instance, Mode::User, (frame, stack)));
            }
            batch.frames.push(frame(u32::MAX, "far", FrameKind::User));
            let mut tables = Tables::default();
            tables.add(&batch);
            let calls = |symbol: &str, direction| {
                Some(CallsView { symbol: symbol.to_owned(), module: None, direction })
            };
            let details = [None, calls("work", Direction::Callers), calls("main", Direction::Callees)];
            let spans = [Span::Run, Span::Last(2.0), Span::Last(f64::NAN)];
            for (span, calls) in spans.into_iter().zip(details) {
                let detail = Some(DetailView { part: SamplePart::All, calls });
                let snapshot = tables.snapshot(&View { span, rows, detail, history_s: None });
                let found = snapshot.detail.unwrap();
                prop_assert!(found.functions.len() <= rows && found.calls.len() <= rows);
                prop_assert!(found.calls.iter().all(|c| c.share.share <= 1.0 && c.part <= 1.0));
                prop_assert!(snapshot.functions.len() <= rows && snapshot.processes.len() <= rows);
                prop_assert!(snapshot.functions.iter().all(|f| f.total.share <= 1.0 && f.own.share <= 1.0));
            }
        }
    }
}

#[test]
fn a_guest_that_starts_programs_without_an_end_takes_bounded_memory() {
    let mut tables = Tables::default();
    tables.add(&batch());
    for round in 0..40_u32 {
        let ids = (0..10_000).map(|n| 1_000 + round * 10_000 + n);
        let short = |id| InstanceRow { id, comm: "short".to_owned(), ..InstanceRow::default() };
        tables.add(&Batch { instances: ids.map(short).collect(), ..Batch::default() });
        assert!(tables.instance_count() < 250_000, "{}", tables.instance_count());
    }
    assert!(tables.instance_count() > 65_000, "the newest are known");
    // Those with samples stay.
    let whole = tables.snapshot(&View { span: Span::Run, ..View::default() });
    let names: Vec<_> = whole.processes.iter().map(|row| row.comm.as_str()).collect();
    assert_eq!(names, ["spin", "other"]);
}
