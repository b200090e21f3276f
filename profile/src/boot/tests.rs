use std::path::Path;

use tempfile::tempdir;

use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, CgroupRow, ConsoleRow, EventRow, FrameKind, FrameRow, InstanceRow, MicrostateRow, Mode, RateRow,
    SampleRow, Sink, StackRow, TaskScanRow, TaskScanStateRow, UnitEventRow, VcpuRow, VcpuState,
};
use crate::store::{Profile, ProfileWriter};

const MS: u64 = 1_000_000;
/// An address in the kernel's half.
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// Frames of the fixture, by id from 1.
const FUNCTIONS: [&str; 9] = [
    "start_kernel",
    "mm_init",
    "kernel_init",
    "do_one_initcall",
    "acpi_init",
    "pci_scan",
    "net_init",
    "main",
    "panic",
];

/// Stacks by id from 1: parent, frame.
const STACKS: [(u32, u32); 9] = [(0, 1), (1, 2), (0, 3), (3, 4), (4, 5), (5, 6), (4, 7), (0, 8), (3, 9)];

fn event(ms: u64, kind: &str, text: &str) -> EventRow {
    EventRow { time_ns: ms * MS, kind: kind.to_owned(), text: text.to_owned() }
}

/// Returns a made-up boot: it begins at 100 ms, and each ms has a sample.
fn batch() -> Batch {
    let meta = [("version", "0"), ("host", "kvm"), ("kernel", "6.1.0"), ("duration_ns", "1000000000")];
    let mut batch = Batch {
        meta: meta.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        vcpus: vec![VcpuRow::default()],
        ..Batch::default()
    };
    for ((id, name), address) in (1..).zip(FUNCTIONS).zip(KERNEL..) {
        let kernel = name != "main";
        batch.frames.push(FrameRow {
            id,
            address: if kernel { address } else { 0x40_0000 },
            kind: if kernel { FrameKind::Kernel } else { FrameKind::User },
            symbol: Some(name.to_owned()),
            module: (name == "net_init").then(|| "net".to_owned()),
            ..FrameRow::default()
        });
    }
    batch.frames.push(FrameRow {
        id: 10,
        address: 0x10_0000,
        kind: FrameKind::Kernel,
        ..FrameRow::default()
    });
    for (id, (parent, frame)) in (1..).zip(STACKS) {
        batch.stacks.push(StackRow { id, parent: (parent > 0).then_some(parent), frame });
    }
    for (id, pid, comm, cgroup) in [(1, 1, "init", None), (2, 40, "sshd", Some(1))] {
        let comm = comm.to_owned();
        batch.instances.push(InstanceRow { id, pid, comm, cgroup, ..InstanceRow::default() });
    }
    let path = "/system.slice/ssh.service".to_owned();
    batch.cgroups.push(CgroupRow { id: 1, path, unit: Some("ssh.service".to_owned()), container: None });
    let guest = Microstates { guest: 900 * MS, ..Microstates::default() };
    batch.microstates.push(MicrostateRow { vcpu: 0, time_ns: 1_000 * MS, states: guest });
    let mut add = |from: u64, to: u64, frame: u32, stack: Option<u32>, mode: Mode, instance: Option<u32>| {
        batch.samples.extend((from..to).map(|ms| SampleRow {
            time_ns: ms * MS,
            frame,
            stack,
            mode,
            instance,
            vcpu_state: VcpuState::Guest,
            ..SampleRow::default()
        }));
    };
    add(100, 200, 10, None, Mode::Boot, None);
    add(200, 250, 1, None, Mode::Boot, None);
    add(250, 300, 2, Some(2), Mode::Boot, None);
    add(300, 310, 3, Some(3), Mode::Kernel, Some(1));
    add(310, 390, 6, Some(6), Mode::Kernel, Some(1));
    add(390, 400, 6, Some(6), Mode::HardIrq, Some(1));
    add(400, 500, 8, Some(8), Mode::User, Some(1));
    add(500, 520, 7, Some(7), Mode::Kernel, Some(1));
    add(520, 700, 8, Some(8), Mode::User, Some(2));
    batch.events.push(event(405, "init", "/init rootfs"));
    batch.events.push(event(480, "init", "/bin/run init rootfs"));
    batch.events.push(event(550, "init", "/usr/lib/systemd/systemd ext4"));
    batch.events.push(event(650, "condition", "unit:ssh.service: the run ends"));
    batch
}

fn profile_of(directory: &Path, batch: &Batch) -> Profile {
    let path = directory.join("boot.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile");
    writer.write(batch).expect("rows that fit");
    writer.finish().expect("a profile");
    Profile::open(&path).expect("a profile")
}

fn read(batch: &Batch) -> Boot {
    let directory = tempdir().expect("a directory");
    Boot::read(&profile_of(directory.path(), batch)).expect("a boot")
}

/// Returns start and end of a phase, ms.
fn bounds(boot: &Boot, name: &str) -> (f64, f64) {
    let phase = boot.phase(name).unwrap_or_else(|| panic!("no {name}"));
    (phase.from_s * 1e3, phase.to_s * 1e3)
}

#[test]
fn a_profile_without_its_guest_s_boot_has_none() {
    let is_boot = |batch: &Batch| {
        let directory = tempdir().expect("a directory");
        Boot::is_recorded(&profile_of(directory.path(), batch)).expect("an answer")
    };
    let mut batch = batch();
    assert!(is_boot(&batch));
    batch.samples.retain(|sample| sample.mode != Mode::Boot);
    let has_symbol = |batch: &Batch| batch.frames.iter().any(|f| f.symbol.as_deref() == Some("kernel_init"));
    assert!(has_symbol(&batch) && is_boot(&batch), "initcalls");
    batch.frames.retain(|frame| frame.symbol.as_deref() != Some("kernel_init"));
    // An idle task of a guest that runs for long still has start_kernel on its stack.
    assert!(!is_boot(&batch));
}

#[test]
fn a_boot_that_was_not_sampled_from_its_start_has_no_phases() {
    let mut batch = batch();
    batch.samples.retain(|sample| sample.time_ns >= 390 * MS);
    batch.rates = [(0, 0.0), (390 * MS, 1_000.0)]
        .map(|(time_ns, rate_hz)| RateRow { vcpu: 0, time_ns, rate_hz })
        .to_vec();
    let boot = read(&batch);
    assert!(boot.sampled_from_s.is_some_and(|s| (s - 0.29).abs() < 1e-9), "{:?}", boot.sampled_from_s);
    let found: Vec<&str> = boot.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(found, ["total"]);
}

#[test]
fn without_stacks_the_kernel_s_phase_is_not_divided() {
    let mut batch = batch();
    batch.samples.iter_mut().for_each(|sample| sample.stack = None);
    let boot = read(&batch);
    assert_eq!(boot.sampled_from_s, None);
    let found: Vec<&str> = boot.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(found, ["total", "decompression", "kernel", "initrd", "userspace"]);
}

#[test]
fn phases_follow_one_another_from_the_first_instruction_on() {
    let boot = read(&batch());
    assert!((boot.began_s - 0.1).abs() < 1e-9 && boot.reached_s.is_some_and(|s| (s - 0.55).abs() < 1e-9));
    for (name, from, to) in [
        ("total", 0.0, 550.0),
        ("decompression", 0.0, 100.0),
        ("kernel", 100.0, 300.0),
        ("early", 100.0, 200.0),
        ("initcalls", 200.0, 300.0),
        ("initrd", 300.0, 450.0),
        ("userspace", 450.0, 550.0),
    ] {
        let found = bounds(&boot, name);
        assert!((found.0 - from).abs() < 1.5 && (found.1 - to).abs() < 1.5, "{name}: {found:?}");
    }
    let names: Vec<&str> = boot.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, PHASES);
    assert!(boot.phases.iter().all(|phase| phase.ended && phase.within_s < 0.0021));
}

#[test]
fn what_the_kernel_called_has_its_time_without_interrupts() {
    let boot = read(&batch());
    let found = |calls: &[Call]| {
        let call = |call: &Call| (call.function.clone(), call.module.clone(), call.time.samples);
        calls.iter().map(call).collect::<Vec<_>>()
    };
    assert_eq!(found(&boot.early), [("mm_init".to_owned(), None, 50)]);
    let net = ("net_init".to_owned(), Some("net".to_owned()), 20);
    assert_eq!(found(&boot.initcalls), [("acpi_init".to_owned(), None, 80), net]);
    let acpi = &boot.initcalls[0];
    // 80 of 100 samples, in 100 ms.
    assert!((acpi.time.s - 0.08).abs() < 0.002 && acpi.time.low_s < 0.08 && acpi.time.high_s > 0.08);
    assert!((acpi.from_s - 0.21).abs() < 0.001 && (acpi.to_s - 0.289).abs() < 0.001);
}

#[test]
fn modules_whose_initcalls_end_in_the_same_function_are_as_many_calls() {
    let mut batch = batch();
    for sample in &mut batch.samples {
        // Another process loads two more modules, and is back in its program between them.
        if matches!(sample.time_ns / MS, 525..530 | 540..545) {
            (sample.mode, sample.frame, sample.stack) = (Mode::Kernel, 7, Some(7));
        }
        // In the first one an interrupt, and the program of another process, which do not end it.
        match sample.time_ns / MS {
            510 => sample.mode = Mode::HardIrq,
            511 => (sample.mode, sample.instance) = (Mode::User, Some(2)),
            _ => {}
        }
    }
    let boot = read(&batch);
    let calls = boot.initcalls.iter().filter(|call| call.function == "net_init");
    let found: Vec<_> = calls
        .map(|call| ((1e3 * call.from_s).round(), (1e3 * call.to_s).round(), call.time.samples))
        .collect();
    assert_eq!(found, [(400.0, 419.0, 18), (425.0, 429.0, 5), (440.0, 444.0, 5)]);
}

#[test]
fn units_and_programs_of_the_first_process_are_told() {
    let boot = read(&batch());
    assert_eq!(boot.init.len(), 3);
    assert_eq!((boot.init[1].path.as_str(), boot.init[1].filesystem.as_str()), ("/bin/run init", "rootfs"));
    let units: Vec<_> = boot.units.iter().map(|unit| (unit.name.as_str(), unit.processes)).collect();
    assert_eq!(units, [("ssh.service", 1)]);
    assert_eq!(boot.processes[0].name, "sshd");
}

fn said(ms: u64, step: &str, unit: &str) -> UnitEventRow {
    let unit = (!unit.is_empty()).then(|| unit.to_owned());
    let result = (step == "failed").then(|| "timeout".to_owned());
    UnitEventRow {
        time_ns: ms * MS,
        guest_ns: (ms - 50) * MS,
        within_ns: (unit.as_deref() != Some("early.target")).then_some(3 * MS),
        step: step.to_owned(),
        unit,
        result,
    }
}

/// Returns the same boot with systemd's messages; its run has no condition.
fn started() -> Batch {
    let mut batch = batch();
    batch.events.retain(|event| event.kind != "condition");
    batch.unit_events = vec![
        said(550, "started", "early.target"),
        said(551, "starting", "a.service"),
        said(552, "starting", "ssh.service"),
        said(553, "started", "b.socket"),
        said(580, "started", "a.service"),
        said(582, "starting", "late.service"),
        said(600, "started", "ssh.service"),
        said(602, "started", "c.timer"),
        said(603, "failed", "late.service"),
        said(610, "started", "multi-user.target"),
        said(611, "started", "other.target"),
        said(630, "finished", ""),
    ];
    let times =
        STARTUP_TIMES.iter().zip([200, 150, 180]).map(|(key, ms)| ((*key).to_owned(), (ms * MS).to_string()));
    batch.meta.extend(times);
    batch.meta.push((SYSTEMD_JOURNAL.to_owned(), "read".to_owned()));
    batch
}

#[test]
fn a_boot_ends_when_systemd_says_so() {
    let boot = read(&started());
    assert_eq!(boot.reached_s, None);
    for name in ["total", "userspace"] {
        let phase = boot.phase(name).expect("a phase");
        assert!((phase.to_s - 0.53).abs() < 1e-9 && phase.ended, "{phase:?}");
    }
    let startup = boot.systemd.startup.expect("an end");
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    assert!(near(startup.at_s, 0.53) && near(startup.kernel_s, 0.2) && near(startup.userspace_s, 0.18));
    assert_eq!(startup.initrd_s, Some(0.15));
    assert!(near(boot.systemd.within_s, 0.003) && boot.systemd.missing.is_none());
}

#[test]
fn what_was_waited_for_comes_before_what_systemd_says() {
    for (until, event, end_s) in [
        // Received 20 ms later.
        ("started", Some(650), 0.53),
        ("unit:ssh.service", Some(650), 0.55),
        // Not received: the boot is as long as the run.
        ("unit:none.service", None, 0.9),
    ] {
        let mut batch = started();
        batch.meta.push((UNTIL.to_owned(), until.to_owned()));
        batch.events.extend(event.map(|ms| self::event(ms, "condition", &format!("{until}: the run ends"))));
        let boot = read(&batch);
        let total = boot.phase("total").expect("a phase");
        assert!((total.to_s - end_s).abs() < 1e-9 && total.ended == event.is_some(), "{until}: {total:?}");
        assert_eq!(boot.reached_s.is_some(), event.is_some());
    }
}

#[test]
fn the_chain_leads_from_the_default_target_to_what_became_active_before() {
    let systemd = read(&started()).systemd;
    let chain: Vec<_> =
        systemd.chain.iter().map(|link| (link.name.as_str(), (link.gap_s * 1e3).round())).collect();
    assert_eq!(chain, [("multi-user.target", 0.0), ("ssh.service", 10.0), ("early.target", 2.0)]);
    let ssh = &systemd.chain[1];
    // sshd of the fixture runs all the time.
    assert!((ssh.to_s - ssh.from_s - 0.048).abs() < 1e-9, "{ssh:?}");
    assert_eq!((ssh.own.samples, ssh.all.samples), (48, 48));
    assert!((ssh.own.s - 0.048).abs() < 0.004, "{ssh:?}");
    assert_eq!(systemd.chain.iter().map(|link| link.by_log).collect::<Vec<_>>(), [false, false, true]);
    let targets: Vec<_> = systemd.targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(targets, ["early.target", "multi-user.target", "other.target"]);
    let failed: Vec<_> =
        systemd.failed.iter().map(|unit| (unit.name.as_str(), unit.result.as_str())).collect();
    assert_eq!(failed, [("late.service", "timeout")]);
}

#[test]
fn why_systemd_says_nothing_is_said() {
    let mut batch = batch();
    batch.meta.push((SYSTEMD_JOURNAL.to_owned(), "no process systemd-journald was seen".to_owned()));
    let systemd = read(&batch).systemd;
    assert_eq!(systemd.missing.as_deref(), Some("no process systemd-journald was seen"));
    assert!(systemd.chain.is_empty() && systemd.startup.is_none());
}

#[test]
fn a_boot_that_ends_early_has_the_phases_that_it_came_to() {
    let mut cut = batch();
    cut.samples.retain(|sample| sample.time_ns < 260 * MS);
    cut.events.clear();
    cut.meta[3].1 = (260 * MS).to_string();
    let boot = read(&cut);
    let found: Vec<_> = boot.phases.iter().map(|phase| (phase.name.as_str(), phase.ended)).collect();
    assert_eq!(found, [("total", false), ("decompression", true), ("kernel", false), ("early", false)]);
    let nothing = Batch { meta: cut.meta, ..Batch::default() };
    assert_eq!(read(&nothing).phases.iter().filter(|phase| phase.samples > 0).count(), 0);
}

#[test]
fn where_ticks_are_missing_those_that_came_stand_for_more() {
    let mut batch = batch();
    let segment = |time_ms: u64, length_ms: u64| MicrostateRow {
        vcpu: 0,
        time_ns: time_ms * MS,
        states: Microstates { guest: length_ms * MS, ..Microstates::default() },
    };
    batch.microstates = vec![segment(350, 250), segment(450, 100), segment(1_000, 550)];
    // Three of four ticks of a segment are lost.
    batch.samples.retain(|sample| {
        let ms = sample.time_ns / MS;
        !(350..450).contains(&ms) || ms.is_multiple_of(4)
    });
    let boot = read(&batch);
    let acpi = boot.initcalls.iter().find(|call| call.function == "acpi_init").expect("acpi_init");
    assert_eq!(acpi.time.samples, 50);
    assert!((acpi.time.s - 0.080).abs() < 0.003 && acpi.time.low_s < 0.080, "{:?}", acpi.time);
}

/// Samples of a boot whose kernel has 40 ms of an initcall and 10 ms of the idle task in turn.
#[test]
fn time_of_the_idle_task_is_nobodys() {
    let mut batch = batch();
    for sample in &mut batch.samples {
        if (310..390).contains(&(sample.time_ns / MS)) && (sample.time_ns / MS).is_multiple_of(5) {
            (sample.mode, sample.frame, sample.stack) = (Mode::Idle, 1, None);
        }
    }
    let boot = read(&batch);
    let acpi = boot.initcalls.iter().find(|call| call.function == "acpi_init").expect("acpi_init");
    assert_eq!(acpi.time.samples, 64);
    assert!((acpi.time.s - 0.064).abs() < 0.001, "{:?}", acpi.time);
}

/// Simulates a vCPU that runs `on_us` of a program every 0.2 s and is halted otherwise, sampled at `rate` Hz
/// for 200 s: a segment of the clock contains one such run, and many have no sample.
fn mostly_halted(on_us: u64, rate: f64) -> f64 {
    use statistics::clock::{ClockKind, Intervals};
    const PERIOD: u64 = 200 * MS;
    let mut batch = batch();
    batch.samples.clear();
    batch.events.truncate(1);
    batch.meta.extend([("clock", "uniform"), ("rate_hz", "200")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    let (count, mut now) = (1_000, 0);
    batch.meta[3].1 = (count * PERIOD).to_string();
    let mut intervals = Intervals::new(ClockKind::Uniform, rate, 3, 0).expect("a clock");
    let row =
        SampleRow { frame: 8, stack: Some(8), mode: Mode::User, instance: Some(1), ..SampleRow::default() };
    // The first samples are of all phases before user space.
    for (time_ns, frame, stack) in [(0, 1, 1), (1, 3, 3), (2, 8, 8)] {
        let mode = if frame == 8 { Mode::User } else { Mode::Kernel };
        let stack = Some(stack);
        batch.samples.push(SampleRow {
            time_ns,
            frame,
            stack,
            mode,
            vcpu_state: VcpuState::Guest,
            ..row.clone()
        });
    }
    loop {
        now += intervals.next_ns();
        if now >= count * PERIOD {
            break;
        }
        let guest = now % PERIOD >= PERIOD - on_us * 1_000;
        let vcpu_state = if guest { VcpuState::Guest } else { VcpuState::Halted };
        batch.samples.push(SampleRow { time_ns: now, vcpu_state, instance: Some(2), ..row.clone() });
    }
    let guest = on_us * 1_000;
    batch.microstates = (1..=count)
        .map(|n| {
            let states = Microstates { guest, halted: PERIOD - guest, ..Microstates::default() };
            MicrostateRow { vcpu: 0, time_ns: n * PERIOD, states }
        })
        .collect();
    let boot = read(&batch);
    let unit = boot.processes.iter().find(|unit| unit.name == "sshd").expect("sshd");
    unit.time.s / ((count * guest) as f64 / 1e9)
}

#[test]
fn stretches_without_a_sample_lose_no_time() {
    for (on_us, rate) in [(1_000, 200.0), (2_000, 200.0), (1_000, 1_000.0)] {
        let found = mostly_halted(on_us, rate);
        assert!((0.99..1.001).contains(&found), "{found} of the time, {on_us} us at {rate} Hz");
    }
}

#[test]
fn a_chart_joins_samples_with_the_same_calls() {
    let directory = tempdir().expect("a directory");
    let chart = Chart::read(&profile_of(directory.path(), &batch())).expect("a chart");
    let (vcpu, pieces) = &chart.vcpus[0];
    let acpi: Vec<_> = pieces.iter().filter(|piece| piece.name == "acpi_init").collect();
    assert_eq!((*vcpu, acpi.len(), acpi[0].depth), (0, 1, 3));
    assert!((acpi[0].from_s - 0.209).abs() < 0.002 && (acpi[0].to_s - 0.299).abs() < 0.002, "{:?}", acpi[0]);
    assert!(pieces.iter().all(|piece| piece.from_s <= piece.to_s && piece.to_s <= chart.end_s + 1e-9));
}

#[test]
fn evidence_tells_panics_progress_and_sleepers() {
    let mut batch = batch();
    for (ms, line) in
        [(300, "hello\r\n"), (900, "\x1b[1mKernel panic - not "), (901, "syncing: no init\n"), (902, "> ")]
    {
        batch.console.push(ConsoleRow { time_ns: ms * MS, bytes: line.as_bytes().to_vec() });
    }
    let meta = [("kernel_died", "0".to_owned()), ("progress_ns", (902 * MS).to_string())];
    batch.meta.extend(meta.map(|(key, value)| (key.to_owned(), value)));
    batch.task_scans.push(TaskScanRow { id: 1, time_ns: 600 * MS, ..TaskScanRow::default() });
    batch.task_scans.push(TaskScanRow { id: 2, time_ns: 700 * MS, ..TaskScanRow::default() });
    let state = |instance, scan, state, stack| TaskScanStateRow {
        instance,
        tid: 1,
        scan,
        state,
        wait_reason: crate::rows::WaitReason::Other,
        stack,
    };
    batch.task_scan_states.push(state(1, 1, Some(crate::rows::TaskState::Disk), 9));
    batch.task_scan_states.push(state(2, 1, Some(crate::rows::TaskState::Sleep), 0));
    batch.task_scan_states.push(state(2, 2, Some(crate::rows::TaskState::Running), 0));
    let directory = tempdir().expect("a directory");
    let evidence = Evidence::read(&profile_of(directory.path(), &batch)).expect("evidence");
    assert_eq!(evidence.panic_line.as_deref(), Some("Kernel panic - not syncing: no init"));
    assert_eq!((evidence.oops_line.as_deref(), evidence.died, evidence.panicked), (None, Some(false), None));
    assert_eq!(evidence.console, ["hello", "Kernel panic - not syncing: no init", ">"]);
    assert!((evidence.progress_s - 0.902).abs() < 1e-9 && evidence.busiest() > 0.99);
    assert_eq!(evidence.vcpus[0].process.as_deref(), Some("sshd"));
    let blocked: Vec<_> =
        evidence.blocked.iter().map(|task| (task.comm.as_str(), task.stack.join(" "))).collect();
    assert_eq!(blocked, [("init", "panic kernel_init".to_owned())]);
}
