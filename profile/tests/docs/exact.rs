//! Reports of exact mode, and the profile that they are made of.

use std::path::Path;

use profile::report::{ExactReport, ReportError, TaskRun, Timehist};
use profile::rows::{
    Batch, ExactVcpuRow, FrameRow, InstanceRow, InterruptRow, InterruptSourceRow, InterruptTimeRow, Mode,
    PageFaultKind, ReapedRow, SampleRow, Sink, StackRow, TaskDelayRow, TaskLifeRow, TaskRunRow, TaskState,
    TaskStateRow, ThreadRow, WaitReason, WakeupRow,
};
use profile::{Filter, Profile, ProfileWriter};

use super::{profile, types, written};

/// Samples of the task: one before there is exact data, which does not count, then the parts of its time. An
/// interrupt counts only if the preempt count does not show it: its entry and exit before and after its
/// events.
fn samples() -> Vec<SampleRow> {
    let sample = |time_ns, mode, stack, interrupt| SampleRow {
        time_ns,
        mode,
        stack,
        interrupt,
        frame: 1,
        instance: Some(1),
        tid: Some(8),
        ..SampleRow::default()
    };
    vec![
        sample(500, Mode::User, None, None),
        sample(1100, Mode::User, None, None),
        sample(1200, Mode::Kernel, Some(2), None),
        SampleRow { fault: Some(PageFaultKind::Data), ..sample(1300, Mode::Kernel, Some(4), None) },
        sample(1400, Mode::SoftIrq, Some(2), Some(2)),
        SampleRow { preempt_count: Some(0x8001_0000), ..sample(1500, Mode::HardIrq, Some(2), Some(1)) },
        SampleRow { preempt_count: Some(0x8000_0000), ..sample(1600, Mode::HardIrq, Some(2), Some(1)) },
    ]
}

fn state(state: TaskState, wait_reason: WaitReason, stack: u32, ns: u64) -> TaskStateRow {
    TaskStateRow { instance: 1, tid: 8, state, wait_reason, stack, ns, count: 2 }
}

fn run(vcpu: u8, from_ns: u64, state: TaskState, wait_reason: WaitReason) -> TaskRunRow {
    TaskRunRow {
        vcpu,
        instance: 1,
        tid: 8,
        from_ns,
        wait_ns: 250,
        delay_ns: 40,
        running_ns: 200,
        interrupted_ns: 50,
        sampler_ns: 10,
        state,
        wait_reason,
    }
}

/// Waits of a bucket: their number, and the length of each and its begin.
fn delay(woken: bool, low_ns: u64, count: u64, (max_ns, max_from_ns): (u64, u64)) -> TaskDelayRow {
    TaskDelayRow { instance: 1, tid: 8, woken, low_ns, count, ns: count * max_ns, max_ns, max_from_ns }
}

/// A profile with one task that slept, was woken and interrupted.
pub(crate) fn exact_profile(path: &Path) -> Profile {
    written(path, &[first(), second()])
}

fn first() -> Batch {
    let frame = |id, symbol: &str| FrameRow { id, symbol: Some(symbol.into()), ..FrameRow::default() };
    Batch {
        meta: [
            ("exact", "1"),
            ("exact_from_ns", "1000"),
            ("exact_runs", "3"),
            ("duration_ns", "2000"),
            ("rate_hz", "1000"),
            ("hardirq_bits", "983040"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec(),
        instances: vec![
            InstanceRow { id: 1, pid: 7, comm: "sleeper".into(), ..InstanceRow::default() },
            InstanceRow { id: 2, pid: 6, comm: "sh".into(), ..InstanceRow::default() },
        ],
        threads: vec![ThreadRow { instance: 1, tid: 8, comm: "worker".into() }],
        reaped: vec![ReapedRow { child: 1, parent: 2, time_ns: 1900 }],
        frames: vec![
            frame(1, "pipe_read"),
            frame(2, "schedule"),
            frame(3, "exc_page_fault"),
            frame(4, "do_fault"),
        ],
        stacks: vec![
            StackRow { id: 1, parent: None, frame: 1 },
            StackRow { id: 2, parent: Some(1), frame: 2 },
            StackRow { id: 3, parent: Some(1), frame: 3 },
            StackRow { id: 4, parent: Some(3), frame: 4 },
        ],
        task_states: vec![
            state(TaskState::Running, WaitReason::None, 0, 300),
            state(TaskState::Sleep, WaitReason::Pipe, 2, 500),
        ],
        task_runs: vec![
            run(0, 1700, TaskState::Sleep, WaitReason::Pipe),
            run(1, 1100, TaskState::Runnable, WaitReason::None),
        ],
        task_delays: vec![delay(true, 192, 1, (200, 1200)), delay(false, 80, 2, (85, 1400))],
        task_lives: vec![
            TaskLifeRow { instance: 1, tid: 8, from_ns: 1000, to_ns: 1800, ended: false },
            TaskLifeRow { instance: 2, tid: 6, from_ns: 1000, to_ns: 2000, ended: false },
        ],
        wakeups: vec![
            WakeupRow { by: "task".into(), waker: 1, waker_tid: 8, woken: 1, woken_tid: 8, count: 3 },
            WakeupRow { by: "hard".into(), woken: 1, woken_tid: 8, count: 4, ..WakeupRow::default() },
        ],
        interrupt_times: vec![
            InterruptTimeRow { vcpu: 0, instance: 1, tid: 8, ns: 20, count: 1 },
            InterruptTimeRow { vcpu: 0, instance: 0, tid: 0, ns: 30, count: 2 },
        ],
        interrupts: ["virtio0-req.0", "NET_RX"]
            .into_iter()
            .zip(["hard", "soft"])
            .zip(1..)
            .map(|((name, kind), id)| InterruptRow { id, kind: kind.into(), name: name.into() })
            .collect(),
        interrupt_sources: [(0, 30, 20), (1, 20, 9)]
            .map(|(vcpu, ns, max_ns)| InterruptSourceRow {
                vcpu,
                interrupt: 1,
                vector: 35,
                ns,
                count: 2,
                max_ns,
            })
            .to_vec(),
        samples: samples(),
        exact_vcpus: vec![ExactVcpuRow { probe_exits: 9, switches: 4, ..ExactVcpuRow::default() }],
        ..Batch::default()
    }
}

fn second() -> Batch {
    Batch {
        meta: vec![("exact_to_ns".into(), "2000".into()), ("exact_end".into(), "the run ended".into())],
        task_states: vec![
            state(TaskState::Running, WaitReason::None, 0, 100),
            state(TaskState::Interrupted, WaitReason::None, 0, 100),
        ],
        task_delays: vec![delay(true, 192, 1, (205, 1300)), delay(false, 80, 1, (81, 1500))],
        task_lives: vec![TaskLifeRow { instance: 1, tid: 8, from_ns: 1000, to_ns: 2000, ended: true }],
        exact_vcpus: vec![ExactVcpuRow {
            probe_exits: 12,
            switches: 5,
            guest_switches: Some(5),
            ..ExactVcpuRow::default()
        }],
        ..Batch::default()
    }
}

#[test]
fn an_exact_report_fits_its_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let profile = exact_profile(&directory.path().join("exact.vprof"));
    for process in [None, Some("sleeper"), Some("7"), Some("sleeper#0"), Some("sl*p*r")] {
        let wanted: Vec<String> = process.map(str::to_owned).into_iter().collect();
        let report = ExactReport::read(&profile, &wanted).expect("exact data");
        types.check(&serde_json::to_value(&report).expect("JSON"), "ExactReport");
        let task = &report.tasks[0];
        assert!(report.complete && task.ended);
        assert!((task.states.iter().map(|state| state.s).sum::<f64>() - task.life_s).abs() < 1e-12);
        assert!((task.running_s - 400e-9).abs() < 1e-12);
        let parts = task.parts.expect("samples");
        let counts = [parts.user, parts.system, parts.trap, parts.soft].map(|part| part.samples);
        assert_eq!((parts.samples, counts), (5, [1, 2, 1, 1]));
        let faults = [parts.text_fault, parts.data_fault, parts.kernel_fault].map(|part| part.samples);
        assert_eq!(faults, [0, 1, 0]);
        assert!(parts.trap.low < 0.2 && parts.trap.share == 0.2 && parts.trap.high > 0.2);
        assert_eq!(task.states[0].count, 2);
        let delay = task.delay.expect("waits");
        let ns = [delay.mean_s, delay.p99_s, delay.max_s, delay.max_from_s].map(|s| (s * 1e9).round());
        assert_eq!((delay.count, ns), (5, [131.0, 200.0, 205.0, 1300.0]));
        let latency = report.wakeup_latency.as_ref().expect("wake-ups");
        let buckets: Vec<_> =
            latency.buckets.iter().map(|bucket| (bucket.from_s, bucket.to_s, bucket.count)).collect();
        assert_eq!((latency.count, buckets), (2, vec![(192e-9, 208e-9, 2)]));
        assert_eq!((latency.max_s * 1e9).round(), 205.0);
        assert_eq!(report.off_cpu[0].stack, ["schedule", "pipe_read"]);
        assert_eq!(report.wakeups.len(), 2);
        assert_eq!((report.vcpus[0].switches, report.vcpus[0].guest_switches), (5, Some(5)));
        assert_eq!(report.children.len(), usize::from(process.is_none()), "the process itself has none");
        let interrupts = if process.is_none() { 2 } else { 1 };
        assert_eq!(report.interrupts.len(), interrupts);
        if process.is_some() {
            assert!(report.sources.is_empty() && report.soft_interrupts.is_empty());
            continue;
        }
        let source = &report.sources[0];
        assert_eq!((source.name.as_str(), source.vector, source.count), ("virtio0-req.0", Some(35), 4));
        assert!((source.s - 50e-9).abs() < 1e-15 && (source.mean_s - 12.5e-9).abs() < 1e-15);
        assert!((source.max_s - 20e-9).abs() < 1e-15);
        let soft = &report.soft_interrupts;
        assert_eq!((soft.len(), soft[0].name.as_str(), soft[0].estimate.samples), (1, "NET_RX", 1));
    }
    let children = &ExactReport::read(&profile, &["sh".to_owned()]).expect("exact data").children[0];
    assert_eq!((children.comm.as_str(), children.waited_for, children.processes), ("sh", 1, 1));
    let sum: f64 = children.states.iter().map(|state| state.s).sum();
    assert!((sum - 1e-6).abs() < 1e-12 && (children.running_s - 400e-9).abs() < 1e-12, "{children:?}");
    let nobody =
        ExactReport::read(&profile, &["sleeper".to_owned(), "sleeper#1".to_owned()]).unwrap_err().to_string();
    assert!(nobody.contains("sleeper#1"), "{nobody}");
}

/// Reads at most `most` of the chosen runs.
fn runs<'a>(history: &'a Timehist<'_>, most: usize) -> Vec<TaskRun<'a>> {
    let mut runs = Vec::new();
    let read = history.for_each(most, |run| {
        runs.push(run);
        Ok::<_, ReportError>(())
    });
    read.expect("its runs");
    runs
}

#[test]
fn a_timehist_fits_its_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let profile = exact_profile(&directory.path().join("exact.vprof"));
    let read = |filter: Filter| Timehist::new(&profile, &filter);
    let all = read(Filter::default()).expect("exact data");
    types.check(&serde_json::to_value(&all).expect("JSON"), "Timehist");
    let begins = |history: &Timehist<'_>| {
        let runs = runs(history, usize::MAX);
        assert_eq!(runs.len() as u64, history.count);
        runs.iter().map(|run| run.time_s).collect::<Vec<_>>()
    };
    assert_eq!((all.left_out, begins(&all)), (1, vec![1.1e-6, 1.7e-6]), "in the order of begins");
    let both = runs(&all, 2);
    assert_eq!(runs(&all, 1), both[..1], "no more than requested");
    let run = &both[0];
    assert_eq!((run.vcpu, run.task.tid, run.state, run.wait_reason), (1, 8, "runnable", ""));
    let times = [run.wait_s, run.delay_s, run.running_s, run.interrupted_s, run.sampler_s];
    assert_eq!(times.map(|s| (s * 1e9).round()), [250.0, 40.0, 200.0, 50.0, 10.0]);
    assert_eq!((both[1].state, both[1].wait_reason), ("sleep", "pipe"));
    let later = Filter { from_ns: Some(1_101), ..Filter::default() };
    assert_eq!(begins(&read(later).expect("a part")), [1.7e-6]);
    let earlier = Filter { to_ns: Some(1_700), ..Filter::default() };
    assert_eq!(begins(&read(earlier).expect("a part")), [1.1e-6]);
    let thread = |name: &str| Filter { thread: Some(name.to_owned()), ..Filter::default() };
    assert_eq!(begins(&read(thread("worker")).expect("its runs")).len(), 2);
    let other = read(Filter { process: vec!["sh".to_owned()], ..Filter::default() }).expect("no runs");
    assert_eq!((begins(&other).len(), other.left_out), (0, 1));
    let nobody = Filter { process: vec!["nobody".to_owned()], ..Filter::default() };
    assert!(matches!(read(nobody), Err(ReportError::NoSuch { .. })));
}

#[test]
fn a_profile_without_exact_data_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let why = |profile: &Profile| ExactReport::read(profile, &[]).unwrap_err().to_string();
    assert!(why(&profile(directory.path())).ends_with("without `vprof run --exact`"));
    for (meta, part) in [
        (vec![("exact", "1")], "cut short"),
        (vec![("exact", "1"), ("exact_missing", "no BTF in this kernel")], "no BTF"),
    ] {
        let path = directory.path().join(part.replace(' ', "-"));
        let meta = meta.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut writer = ProfileWriter::create(&path, false).expect("a profile");
        writer.write(&Batch { meta, ..Batch::default() }).expect("room");
        let sentence = why(&Profile::open(&path).expect("a profile"));
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{sentence}");
    }
}
