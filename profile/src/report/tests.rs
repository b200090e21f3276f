mod views;
pub(super) use views::known as known_with_stacks;

use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, EventRow, FrameKind, FrameRow, InstanceRow, MicrostateRow, Mode, RateRow, SampleRow, Sink,
    VcpuRow, VcpuState,
};
use crate::store::{Profile, ProfileWriter, Value};

const MS: u64 = 1_000_000;

/// A made-up run: frames 1 to 4 are kernel code, 5 and 6 user code of instances 1 and 2.
pub(super) struct Run {
    batch: Batch,
}

impl Run {
    fn new() -> Self {
        let meta = [
            ("version", "0.1.0"),
            ("host", "portable"),
            ("kernel", "6.1.0"),
            ("started_unix_ns", "1500000000000000000"),
            ("duration_ns", "2000000000"),
            ("rate_hz", "1000"),
            ("clock", "uniform"),
            ("seed", "18446744073709551615"),
            ("vcpus", "2"),
            ("complete", "1"),
            ("image", "demo.img"),
        ];
        let mut batch =
            Batch { meta: meta.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(), ..Batch::default() };
        for id in 0..2 {
            batch.vcpus.push(VcpuRow {
                id,
                samples: 10,
                lost: u64::from(id),
                exits: 30,
                states: Microstates {
                    guest: 1_900 * MS,
                    vmm: 95 * MS,
                    sampler: 5 * MS,
                    ..Microstates::default()
                },
            });
        }
        for (id, pid, comm, number, kernel_thread) in [
            (1, 10, "gzip", 0, false),
            (2, 11, "gzip", 1, false),
            (3, 2, "kthreadd", 0, true),
            (4, 0, "swapper/0", 0, true),
        ] {
            batch.instances.push(InstanceRow {
                id,
                pid,
                start_ns: 1,
                comm: comm.to_owned(),
                number,
                kernel_thread,
                ..Default::default()
            });
        }
        for (id, address, symbol, module) in [
            (1, 0xffff_ffff_8100_0000, Some("schedule"), None),
            (2, 0xffff_ffff_8100_0008, Some("schedule"), None),
            (3, 0xffff_ffff_c000_0000, Some("ext4_read"), Some("ext4")),
            (4, 0xffff_ffff_c100_0000, None, None),
        ] {
            let (symbol, module) = (symbol.map(str::to_owned), module.map(str::to_owned));
            batch.frames.push(FrameRow { id, address, symbol, module, ..Default::default() });
        }
        for (id, instance) in [(5, Some(1)), (6, Some(2)), (7, None)] {
            let kind = FrameKind::User;
            batch.frames.push(FrameRow { id, address: 0x40_1000, kind, instance, ..Default::default() });
        }
        batch.frames.push(FrameRow { id: 8, module: Some("zfs".to_owned()), ..batch.frames[3].clone() });
        batch.events.push(EventRow {
            time_ns: 500 * MS,
            kind: "missing".to_owned(),
            text: "no BTF".to_owned(),
        });
        Self { batch }
    }

    fn add(&mut self, count: u64, vcpu: u8, mode: Mode, instance: Option<u32>, frame: u32) {
        for _ in 0..count {
            let n = self.batch.samples.len() as u64;
            self.batch.samples.push(SampleRow {
                vcpu,
                time_ns: n * 10 * MS,
                late_ns: if n == 0 { 3 * MS } else { 20_000 },
                mode,
                halted: mode == Mode::Idle,
                vcpu_state: if mode == Mode::Idle { VcpuState::Halted } else { VcpuState::Guest },
                frame,
                rsp: 0,
                cpl: if mode == Mode::User { 3 } else { 0 },
                cr3: 0,
                interrupts_on: true,
                preempt_count: None,
                instance,
                ..Default::default()
            });
        }
    }

    pub(super) fn write(&self) -> (TempDir, PathBuf) {
        let directory = tempdir().expect("a directory");
        let path = directory.path().join("run.vprof");
        let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
        writer.write(&self.batch).expect("room");
        writer.finish().expect("room");
        (directory, path)
    }
}

/// 100 samples: 40 on vCPU 0 that are all busy, 60 on vCPU 1 of which 20 are idle.
pub(super) fn known() -> Run {
    let mut run = Run::new();
    run.add(20, 0, Mode::User, Some(1), 5);
    run.add(6, 0, Mode::Kernel, Some(1), 1);
    run.add(4, 0, Mode::Kernel, Some(1), 2);
    run.add(5, 0, Mode::HardIrq, Some(1), 1);
    run.add(1, 0, Mode::Nmi, Some(1), 1);
    run.add(4, 0, Mode::SoftIrq, None, 3);
    run.add(10, 1, Mode::User, Some(2), 6);
    run.add(6, 1, Mode::Kernel, Some(3), 3);
    run.add(20, 1, Mode::Idle, Some(4), 2);
    run.add(8, 1, Mode::Boot, None, 4);
    run.add(7, 1, Mode::Unknown, None, 4);
    run.add(3, 1, Mode::User, None, 7);
    run.add(2, 1, Mode::Kernel, Some(2), 4);
    run.add(4, 1, Mode::Kernel, Some(2), 8);
    run
}

fn read(path: &Path, filter: &Filter) -> Report {
    Report::read(&Profile::open(path).expect("a profile"), filter).expect("a report")
}

fn shares(report: &Report) -> [f64; 2] {
    [
        report.processes.iter().map(|p| p.estimate.share).sum(),
        report.functions.iter().map(|f| f.estimate.share).sum(),
    ]
}

#[test]
fn the_known_answer() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    assert_eq!((report.samples, report.busy_samples, report.lost), (100, 80, 1));
    let rows: Vec<_> = report
        .processes
        .iter()
        .map(|p| (p.comm.as_str(), p.pid, p.instance, p.kind, p.estimate.samples))
        .collect();
    use ProcessKind::{Boot, Interrupt, KernelThread, Process, Unknown};
    assert_eq!(
        rows,
        [
            ("gzip", 10, 0, Process, 30),
            ("gzip", 11, 1, Process, 16),
            ("[unknown]", 0, 0, Unknown, 10),
            ("[early boot]", 0, 0, Boot, 8),
            ("[hard interrupts]", 0, 0, Interrupt, 6),
            ("kthreadd", 2, 0, KernelThread, 6),
            ("[soft interrupts]", 0, 0, Interrupt, 4),
        ]
    );
    let programs: Vec<_> =
        report.programs.iter().map(|p| (p.comm.as_str(), p.instances, p.pid, p.estimate.samples)).collect();
    assert_eq!(
        programs,
        [
            ("gzip", 2, None, 46),
            ("[unknown]", 0, None, 10),
            ("[early boot]", 0, None, 8),
            ("[hard interrupts]", 0, None, 6),
            ("kthreadd", 1, Some(2), 6),
            ("[soft interrupts]", 0, None, 4),
        ]
    );
    let sum = |of: fn(&Program) -> f64| report.programs.iter().map(of).sum::<f64>();
    assert!((sum(|p| p.estimate.share) - 1.0).abs() < 1e-12);
    assert!((sum(|p| p.user_share + p.kernel_share) - 1.0).abs() < 1e-12);
    let gzip = &report.processes[0];
    assert_eq!((gzip.estimate.share, gzip.user_share, gzip.kernel_share), (0.375, 0.25, 0.125));
    assert!(
        gzip.estimate.share_low < 0.375
            && gzip.estimate.share_low > 0.27
            && gzip.estimate.share_high > 0.375
            && gzip.estimate.share_high < 0.49
    );
    for process in &report.processes {
        assert!((process.user_share + process.kernel_share - process.estimate.share).abs() < 1e-12);
    }
    let functions: Vec<_> = report
        .functions
        .iter()
        .map(|f| (f.symbol.as_str(), f.module.as_deref(), f.mode.as_str(), f.estimate.samples))
        .collect();
    assert_eq!(
        functions,
        [
            ("[user]", Some("gzip"), "user", 30),
            ("schedule", None, "kernel", 10),
            ("[early boot]", None, "boot", 8),
            ("0xffffffffc1000000", None, "unknown", 7),
            ("ext4_read", Some("ext4"), "kernel", 6),
            ("schedule", None, "hardirq", 5),
            ("[zfs]", Some("zfs"), "kernel", 4),
            ("ext4_read", Some("ext4"), "softirq", 4),
            ("[user]", Some("[unknown]"), "user", 3),
            ("0xffffffffc1000000", None, "kernel", 2),
            ("schedule", None, "nmi", 1),
        ]
    );
    for sum in shares(&report) {
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}

#[test]
fn vcpus_and_the_rest() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    let [first, second] = report.vcpus.as_slice() else { panic!("two vCPUs") };
    assert_eq!((first.samples, first.user, first.kernel, first.hardirq), (40, 0.5, 0.25, 0.15));
    assert_eq!((first.softirq, first.idle, first.lost), (0.1, 0.0, 0));
    assert_eq!((second.samples, second.lost, second.exits), (60, 1, 30));
    assert!((second.kernel - 27.0 / 60.0).abs() < 1e-12 && (second.idle - 20.0 / 60.0).abs() < 1e-12);
    for vcpu in &report.vcpus {
        let sum = vcpu.user + vcpu.kernel + vcpu.hardirq + vcpu.softirq + vcpu.idle;
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
    assert_eq!(
        (report.host.as_str(), report.kernel.as_deref(), report.complete),
        ("portable", Some("6.1.0"), true)
    );
    assert_eq!((report.duration_s, report.rate_hz, report.seed), (2.0, 1_000.0, u64::MAX));
    assert_eq!((report.started_unix_s, report.measured_rate_hz), (1.5e9, 21.0 / 4.0));
    assert_eq!(report.overhead, Overhead { sampler_s: 0.01, guest_s: 3.8, wall_s: 4.0, share: 0.0025 });
    assert_eq!(report.lateness.over_1ms, 1);
    assert!((19_900..=20_100).contains(&report.lateness.median_ns), "{:?}", report.lateness);
    assert!((2_990_000..=3_010_000).contains(&report.lateness.max_ns), "{:?}", report.lateness);
    assert_eq!(report.missing, ["no BTF"]);
    assert_eq!(report.events[0].time_s, 0.5);
    assert_eq!(report.meta.into_iter().collect::<Vec<_>>(), [("image".to_owned(), "demo.img".to_owned())]);
}

/// The views agree with the report.
#[test]
fn views_agree_with_the_report() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    let profile = Profile::open(&path).expect("a profile");
    let rows = |sql: &str| profile.query(sql).expect("an answer").rows;
    let integer = |value: u64| Value::Integer(value.try_into().expect("small"));
    let near =
        |value: &Value, expected: f64| matches!(value, Value::Real(value) if (value - expected).abs() < 1e-9);
    let processes = rows(
        "SELECT comm, pid, instance, samples, sample_share, user_sample_share, kernel_sample_share FROM v_processes",
    );
    assert_eq!(processes.len(), report.processes.len());
    for p in &report.processes {
        let same = |row: &&Vec<Value>| {
            row[0] == Value::Text(p.comm.clone()) && row[1] == integer(p.pid.unsigned_abs().into())
        };
        let row = processes.iter().find(same).expect("the same process");
        assert_eq!(row[2..4], [integer(p.instance.into()), integer(p.estimate.samples)]);
        assert!(
            near(&row[4], p.estimate.share) && near(&row[5], p.user_share) && near(&row[6], p.kernel_share),
            "{row:?}"
        );
    }
    let functions = rows("SELECT symbol, module, mode, samples, sample_share FROM v_functions");
    assert_eq!(functions.len(), report.functions.len());
    for f in &report.functions {
        let module = f.module.clone().map_or(Value::Null, Value::Text);
        let key =
            [Value::Text(f.symbol.clone()), module, Value::Text(f.mode.clone()), integer(f.estimate.samples)];
        let row = functions.iter().find(|row| row[..4] == key).expect("the same function");
        assert!(near(&row[4], f.estimate.share));
    }
    let vcpus = rows("SELECT id, samples, user, kernel, hardirq, softirq, idle FROM v_vcpus ORDER BY id");
    for (v, row) in report.vcpus.iter().zip(&vcpus) {
        assert_eq!(row[..2], [integer(v.id.into()), integer(v.samples)]);
        let parts = [v.user, v.kernel, v.hardirq, v.softirq, v.idle];
        assert!(row[2..].iter().zip(parts).all(|(value, part)| near(value, part)), "{row:?}");
    }
}

#[test]
fn filters_choose_a_part() {
    let (_directory, path) = known().write();
    let by_process =
        |process: &str| read(&path, &Filter { process: Some(process.to_owned()), ..Filter::default() });
    let both = by_process("gzip");
    assert_eq!(
        both.processes.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(),
        [(10, 30), (11, 16)]
    );
    assert_eq!((both.samples, both.busy_samples, both.vcpus.len()), (100, 80, 2));
    for sum in shares(&both) {
        assert!((sum - 46.0 / 80.0).abs() < 1e-9, "shares still refer to everything: {sum}");
    }
    for one in ["11", "gzip#1"] {
        let report = by_process(one);
        assert_eq!(
            report.processes.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(),
            [(11, 16)]
        );
        assert!(report.functions.iter().all(|f| f.mode == "user" || f.mode == "kernel"));
    }
    let first = read(&path, &Filter { vcpu: Some(0), ..Filter::default() });
    assert_eq!((first.samples, first.busy_samples, first.vcpus.len()), (40, 40, 1));
    assert!((shares(&first)[0] - 1.0).abs() < 1e-9);
    // Sample n was taken at n * 10 ms.
    let early = read(&path, &Filter { from_ns: Some(100 * MS), to_ns: Some(200 * MS), ..Filter::default() });
    assert_eq!((early.samples, early.processes.len(), early.processes[0].estimate.share), (10, 1, 1.0));
    let none = read(&path, &Filter { from_ns: Some(1_999 * MS), ..Filter::default() });
    assert_eq!((none.samples, none.processes.len(), none.vcpus[0].user), (0, 0, 0.0));
}

#[test]
fn wrong_filters_are_told() {
    let (_directory, path) = known().write();
    let profile = Profile::open(&path).expect("a profile");
    let told = |filter: Filter| Report::read(&profile, &filter).expect_err("a wrong filter").to_string();
    for process in ["xz", "12", "gzip#22", "gzip#x", ""] {
        let filter = Filter { process: Some(process.to_owned()), ..Filter::default() };
        let (told, start) = (told(filter), format!("the profile has no process {process}: "));
        let advice = told.strip_prefix(&start).expect("what is not there");
        let near = if process.starts_with("gzip#") { "near are gzip" } else { "" };
        assert!([near, "`vprof report FILE --by process` lists them"].contains(&advice), "{told}");
    }
    let no_vcpu = Filter { vcpu: Some(2), ..Filter::default() };
    assert_eq!(told(no_vcpu), "the profile has no vCPU 2: it has 2, counted from 0");
    let late = Filter { from_ns: Some(2_001 * MS), ..Filter::default() };
    assert_eq!(told(late), "the time range begins after the end of the run, which lasted 2.000 s");
    let empty = Filter { from_ns: Some(5), to_ns: Some(5), ..Filter::default() };
    assert_eq!(told(empty), "the time range ends before it begins");
}

#[test]
fn rows_are_sorted_as_asked() {
    let (_directory, path) = known().write();
    let mut report = read(&path, &Filter::default());
    let order = |report: &mut Report, key: &str| {
        report.sort(key.parse().expect("a key"));
        let pids = report.processes.iter().map(|p| p.pid).collect::<Vec<_>>();
        (pids, report.functions[0].symbol.clone())
    };
    assert_eq!(order(&mut report, "pid"), (vec![0, 0, 0, 0, 2, 10, 11], "[user]".into()));
    assert_eq!(order(&mut report, "name"), (vec![0, 0, 0, 0, 10, 11, 2], "0xffffffffc1000000".into()));
    assert_eq!(order(&mut report, "kernel").1, "schedule");
    assert_eq!(report.processes[0].comm, "gzip");
    assert_eq!(order(&mut report, "user").0[..2], [10, 11]);
    assert_eq!(order(&mut report, "samples").0, [10, 11, 0, 0, 0, 2, 0]);
    assert_eq!(
        "size".parse::<Sort>().expect_err("no key").to_string(),
        "size is not one of self, samples, total, name, pid, user, kernel"
    );
}

#[test]
fn two_hundred_instances_of_one_name() {
    let mut run = Run::new();
    run.batch.instances.clear();
    for id in 1..=200 {
        run.batch.instances.push(InstanceRow {
            id,
            pid: 300,
            start_ns: id.into(),
            comm: "true".to_owned(),
            number: id - 1,
            ..Default::default()
        });
        run.add(1, 0, Mode::Kernel, Some(id), 1);
    }
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    assert_eq!(report.processes.len(), 200);
    assert!(report.processes.iter().all(|p| p.comm == "true" && p.pid == 300 && p.estimate.samples == 1));
    assert_eq!(
        read(&path, &Filter { process: Some("true#77".into()), ..Filter::default() }).processes.len(),
        1
    );
    assert_eq!(report.functions.len(), 1);
}

#[test]
fn a_profile_without_samples_has_a_report() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("run.vprof");
    // As in a run that continues: without a sample its file is there as long as its writer.
    let _writer = ProfileWriter::create(&path, false).expect("a new profile");
    let report = read(&path, &Filter::default());
    assert_eq!((report.samples, report.complete, report.host.as_str()), (0, false, "unknown"));
    assert_eq!(report.lateness, Lateness { median_ns: 0, p99_ns: 0, max_ns: 0, over_1ms: 0 });
    assert!(report.processes.is_empty() && report.vcpus.is_empty());
}

#[test]
fn frames_without_a_row_keep_the_sum() {
    let mut run = Run::new();
    run.add(3, 0, Mode::Kernel, Some(1), 999);
    run.add(1, 0, Mode::Kernel, Some(77), 1);
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    for sum in shares(&report) {
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
    assert_eq!((report.functions[0].symbol.as_str(), report.functions[0].estimate.samples), ("[unknown]", 3));
}

/// Ticks during work of the VMM or waits for the host do not count for the guest, whatever process was there.
#[test]
fn ticks_outside_of_the_guest_move_no_share() {
    let mut run = known();
    let (_directory, path) = run.write();
    let before = read(&path, &Filter::default());
    assert_eq!(before.ticks, TickCounts { guest: 80, halted: 20, vmm: 0, waiting: 0 });
    for (count, vcpu_state) in [(50, VcpuState::Vmm), (70, VcpuState::Waiting)] {
        let first = run.batch.samples.len();
        run.add(count, 0, Mode::Kernel, Some(3), 3);
        run.batch.samples[first..].iter_mut().for_each(|sample| sample.vcpu_state = vcpu_state);
    }
    let (_directory, path) = run.write();
    let after = read(&path, &Filter::default());
    assert_eq!(after.ticks, TickCounts { guest: 80, halted: 20, vmm: 50, waiting: 70 });
    assert_eq!((after.samples, after.busy_samples, after.chosen_samples), (220, 80, 80));
    assert_eq!((&after.processes, &after.functions), (&before.processes, &before.functions));
    assert_eq!((after.vcpus[0].user, after.vcpus[0].times), (before.vcpus[0].user, before.vcpus[0].times));
    let profile = Profile::open(&path).expect("a profile");
    let rows =
        profile.query("SELECT samples FROM v_processes WHERE comm = 'kthreadd'").expect("an answer").rows;
    assert_eq!(rows, [[Value::Integer(6)]]);
    assert_eq!(
        profile.query("SELECT sum(samples) FROM v_functions").expect("an answer").rows,
        [[Value::Integer(80)]]
    );
}

#[test]
fn rows_have_their_part_of_the_exact_time() {
    let mut run = known();
    run.batch.vcpus[1].states = Microstates { guest: 100 * MS, halted: 1_900 * MS, ..Microstates::default() };
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let sum: f64 = report.processes.iter().map(|p| p.estimate.time_s).sum();
    assert!((sum - 2.0).abs() < 1e-9, "{sum}");
    // gzip#0 has 30 of 40 samples of the first vCPU, gzip#1 16 of 40 of the second.
    let of = |pid: i32| report.processes.iter().find(|p| p.pid == pid).expect("a process").estimate;
    let (first, second) = (of(10), of(11));
    assert!((first.time_s - 0.75 * 1.9).abs() < 1e-9 && (second.time_s - 0.4 * 0.1).abs() < 1e-9);
    assert!(
        (first.share - first.time_s / 2.0).abs() < 1e-9
            && (first.share_low - first.time_low_s / 2.0).abs() < 1e-9
    );
    assert!(first.time_low_s < first.time_s && first.time_s < first.time_high_s);
    for vcpu in &report.vcpus {
        let ModeTimes { user, kernel, hardirq, softirq, nmi, idle } = vcpu.times;
        let all = [user, kernel, hardirq, softirq, nmi, idle];
        let sum: f64 = all.iter().map(|mode| mode.time_s).sum();
        assert!((sum - vcpu.guest_s - vcpu.halted_s).abs() < 1e-9, "{sum}");
        assert!((all.iter().map(|mode| mode.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(all.iter().all(|mode| mode.time_low_s <= mode.time_s && mode.time_s <= mode.time_high_s));
    }
    let idle = report.vcpus[1].times.idle;
    assert_eq!((idle.samples, idle.time_s, report.vcpus[0].times.nmi.samples), (20, 1.9, 1));
}

/// Soft interrupts are charged to no process, but those of ksoftirqd to it; a process of that name is not the
/// kernel's.
#[test]
fn soft_interrupts_of_ksoftirqd_are_its_own_work() {
    let mut run = known();
    for (id, kernel_thread) in [(5, true), (6, false)] {
        let comm = "ksoftirqd/0".to_owned();
        let pid = 100 + i32::try_from(id).expect("small");
        run.batch.instances.push(InstanceRow { id, pid, comm, kernel_thread, ..InstanceRow::default() });
        run.batch.samples.extend((0..3).map(|n| SampleRow {
            time_ns: 1_990 * MS + n,
            mode: Mode::SoftIrq,
            instance: Some(id),
            vcpu_state: VcpuState::Guest,
            frame: 1,
            ..SampleRow::default()
        }));
    }
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let named: Vec<_> = report.processes.iter().filter(|p| p.comm == "ksoftirqd/0").collect();
    assert_eq!(named.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(), [(105, 3)]);
    let profile = Profile::open(&path).expect("a profile");
    let view = profile.query("SELECT pid, samples FROM v_processes WHERE comm = 'ksoftirqd/0'");
    assert_eq!(view.expect("an answer").rows, [[Value::Integer(105), Value::Integer(3)]]);
}

/// An idle task that does not halt: a process's share is of busy time, its time a part of all time in the
/// guest.
#[test]
fn a_guest_that_polls_is_idle_in_its_own_time() {
    let mut run = Run::new();
    run.batch.vcpus.truncate(1);
    for _ in 0..250 {
        run.add(1, 0, Mode::User, Some(1), 5);
        run.add(3, 0, Mode::Idle, Some(4), 2);
    }
    run.batch.samples.iter_mut().for_each(|sample| sample.vcpu_state = VcpuState::Guest);
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let gzip = report.processes[0].estimate;
    assert_eq!((report.busy_samples, gzip.samples, gzip.share), (250, 250, 1.0));
    assert!((gzip.time_s - 1.9 / 4.0).abs() < 1e-9, "{gzip:?}");
    // The precision is at most that of a quarter of 1,000 samples.
    assert!(gzip.time_low_s < 0.46 && gzip.time_high_s > 0.49, "{gzip:?}");
    assert!((report.vcpus[0].times.idle.share - 0.75).abs() < 1e-9);
}

#[test]
fn a_part_of_the_run_has_its_part_of_the_time() {
    let mut run = known();
    let segment = |vcpu, end: u64, guest: u64| MicrostateRow {
        vcpu,
        time_ns: end * MS,
        states: Microstates { guest: guest * MS, halted: (200 - guest) * MS, ..Microstates::default() },
    };
    run.batch.microstates = vec![segment(0, 200, 100), segment(0, 400, 180), segment(1, 200, 200)];
    let (_directory, path) = run.write();
    // Samples of the first 400 ms are on vCPU 0. Half of the first segment, and all of the second.
    let filter = |from, to| Filter {
        vcpu: Some(0),
        from_ns: Some(from * MS),
        to_ns: Some(to * MS),
        ..Filter::default()
    };
    let time = |report: &Report| report.processes.iter().map(|p| p.estimate.time_s).sum::<f64>();
    assert!((time(&read(&path, &filter(100, 400))) - 0.23).abs() < 1e-9);
    assert!((time(&read(&path, &filter(0, 200))) - 0.1).abs() < 1e-9);
    run.batch.microstates.clear();
    let (_directory, path) = run.write();
    // A fifth of the run's 2 s.
    assert!((time(&read(&path, &filter(0, 400))) - 0.38).abs() < 1e-9);
}

/// Sampled at 1,000 Hz for half a second, not at all for a second, and at 500 Hz for half a second.
#[test]
fn time_without_sampling_has_no_share() {
    let mut run = Run::new();
    run.batch.vcpus.truncate(1);
    for n in 0..500_u64 {
        run.batch.samples.push(sampled(n * MS, 1));
        if n % 2 == 0 {
            run.batch.samples.push(sampled((1_500 + n) * MS, 2));
        }
    }
    run.batch.samples.sort_by_key(|sample| sample.time_ns);
    let rate = |ms: u64, rate_hz| RateRow { vcpu: 0, time_ns: ms * MS, rate_hz };
    run.batch.rates = vec![rate(500, 0.0), rate(1_500, 500.0)];
    let states = Microstates { guest: 200 * MS, ..Microstates::default() };
    run.batch.microstates =
        (1..=10).map(|n| MicrostateRow { vcpu: 0, time_ns: n * 200 * MS, states }).collect();
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    assert!((report.unsampled_s - 1.0).abs() < 1e-9);
    // Twice as many samples, the same time.
    for process in &report.processes {
        assert!((process.estimate.time_s - 0.5).abs() < 0.01, "{process:?}");
        assert!((process.estimate.share - 0.5).abs() < 0.01, "{process:?}");
    }
    assert_eq!(report.processes.len(), 2);
}

/// User code of an instance, hit on vCPU 0.
fn sampled(time_ns: u64, instance: u32) -> SampleRow {
    SampleRow {
        mode: Mode::User,
        time_ns,
        instance: Some(instance),
        frame: 5,
        cpl: 3,
        ..SampleRow::default()
    }
}

#[test]
fn a_clock_without_chance_has_no_valid_intervals() {
    let mut run = known();
    for (clock, valid) in [("uniform", true), ("exponential", true), ("fixed", false), ("", false)] {
        run.batch
            .meta
            .iter_mut()
            .filter(|(key, _)| key == "clock")
            .for_each(|(_, value)| *value = clock.to_owned());
        let (_directory, path) = run.write();
        let report = read(&path, &Filter::default());
        assert_eq!(report.intervals_valid, valid, "{clock}");
        assert!((2.0..4.1).contains(&report.needed_for_half.expect("a factor")));
    }
}
