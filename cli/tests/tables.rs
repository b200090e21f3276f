//! Every table that vprof prints, as it stands in `golden/`: a change of one is seen and meant.
//!
//! `VPROF_GOLDEN=write cargo test -p vprof --test tables` writes what is printed now.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use linux::CpuStat;
use profile::rows::Microstates;
use profile::rows::{
    Batch, CgroupRow, CpuTimeRow, ExactVcpuRow, ExitRow, InjectedRow, InterruptRow, InterruptSourceRow,
    InterruptTimeRow, KvmCounterRow, MicrostateRow, RusageRow, StackRow, TaskLifeRow, TaskScanRow,
    TaskScanStateRow, TaskStateRow, ThreadRow, WakeupRow,
};
use profile::rows::{TaskState, WaitReason};
use support::{batch_of, run, stderr, stdout, write_batch, write_profile_of};

const MS: u64 = 1_000_000;

/// What every profile has: stacks, exits, the guest's books, who is in which control group.
fn with_everything(of_four: u64) -> Batch {
    let mut batch = batch_of(of_four);
    let states = Microstates {
        guest: 600 * MS,
        halted: 100 * MS,
        waiting: 76 * MS,
        vmm: 20 * MS,
        sampler: 4 * MS,
        ..Microstates::default()
    };
    batch.microstates = (0..2).map(|vcpu| MicrostateRow { vcpu, time_ns: 800 * MS, states }).collect();
    batch.exits.push(ExitRow {
        id: 1,
        vcpu: 0,
        reason: "port write".to_owned(),
        address: Some(0x3f8),
        device: Some("serial port".to_owned()),
        count: 3,
        total_ns: 30_000,
        max_ns: 12_000,
        p50_ns: 9_728,
        p99_ns: 11_776,
        times: vec![(9_216, 2), (11_264, 1)],
    });
    batch.kvm_counters.push(KvmCounterRow { vcpu: 0, name: "exits".to_owned(), value: 12, grows: true });
    batch.injected.push(InjectedRow { device: "disk 0".to_owned(), vector: Some(0x23), count: 7 });
    batch.rusage.push(RusageRow {
        instance: 1,
        time_ns: 790 * MS,
        user_ns: 300 * MS,
        system_ns: 12 * MS,
        runtime_ns: 312 * MS,
        voluntary: 5,
        ..RusageRow::default()
    });
    let stat = CpuStat { user_ns: 700 * MS, system_ns: 80 * MS, idle_ns: 20 * MS, ..CpuStat::default() };
    batch.cpu_times.push(CpuTimeRow { first: false, stat, time_ns: 790 * MS });
    let first =
        RusageRow { instance: 2, first: true, time_ns: 90 * MS, user_ns: 7 * MS, ..RusageRow::default() };
    batch.rusage.push(first);
    batch.rusage.push(RusageRow { first: false, time_ns: 790 * MS, user_ns: 9 * MS, ..first });
    let stat = CpuStat { user_ns: 90 * MS, system_ns: 10 * MS, ..CpuStat::default() };
    batch.cpu_times.push(CpuTimeRow { first: true, stat, time_ns: 90 * MS });
    batch.cgroups.push(CgroupRow {
        id: 1,
        path: "/system.slice/calm.service".to_owned(),
        unit: Some("calm.service".to_owned()),
        container: None,
    });
    batch.instances[1].cgroup = Some(1);
    batch.threads.push(ThreadRow { instance: 1, tid: 100, comm: "worker".to_owned() });
    batch.stacks =
        vec![StackRow { id: 1, parent: None, frame: 1 }, StackRow { id: 2, parent: Some(1), frame: 2 }];
    for sample in &mut batch.samples {
        sample.stack = Some(sample.frame);
    }
    batch
}

/// Half of a second of exact data: two tasks, one of which sleeps for a pipe.
fn with_exact() -> Batch {
    let mut batch = with_everything(3);
    for (key, value) in [
        ("exact", "1"),
        ("exact_from_ns", "100000000"),
        ("exact_to_ns", "600000000"),
        ("exact_cost_ns", "4000000"),
        ("exact_switching_ns", "16000000"),
        ("exact_switching_samples", "16"),
    ] {
        batch.meta.push((key.to_owned(), value.to_owned()));
    }
    let spent = |instance, tid, state, wait_reason, ns, count| TaskStateRow {
        instance,
        tid,
        state,
        wait_reason,
        stack: 0,
        ns,
        count,
    };
    batch.task_states = vec![
        spent(1, 100, TaskState::Running, WaitReason::None, 300 * MS, 10),
        spent(1, 100, TaskState::Interrupted, WaitReason::None, 4 * MS, 20),
        spent(1, 100, TaskState::Runnable, WaitReason::None, 46 * MS, 10),
        TaskStateRow { stack: 2, ..spent(1, 100, TaskState::Sleep, WaitReason::Pipe, 150 * MS, 9) },
        spent(2, 101, TaskState::Running, WaitReason::None, 100 * MS, 4),
        spent(2, 101, TaskState::Disk, WaitReason::Block, 400 * MS, 3),
    ];
    let life =
        |instance, tid| TaskLifeRow { instance, tid, from_ns: 100 * MS, to_ns: 600 * MS, ended: false };
    batch.task_lives = vec![life(1, 100), life(2, 101)];
    let woken = |by: &str, waker, waker_tid, count| WakeupRow {
        by: by.to_owned(),
        waker,
        waker_tid,
        woken: 1,
        woken_tid: 100,
        count,
    };
    batch.wakeups = vec![woken("task", 2, 101, 8), woken("hard", 0, 0, 1)];
    batch.interrupt_times = vec![InterruptTimeRow { vcpu: 0, instance: 1, tid: 100, ns: 4 * MS, count: 20 }];
    batch.interrupts.push(InterruptRow { id: 1, kind: "hard".to_owned(), name: "timer".to_owned() });
    batch.interrupt_sources =
        vec![InterruptSourceRow { vcpu: 0, interrupt: 1, vector: 0, ns: 4 * MS, count: 20, max_ns: MS }];
    let vcpu = |vcpu| ExactVcpuRow {
        vcpu,
        probe_exits: 120,
        switches: 14,
        guest_switches: Some(14),
        idle_ns: 90 * MS,
        cost_ns: 2 * MS,
        ..ExactVcpuRow::default()
    };
    batch.exact_vcpus = vec![vcpu(0), vcpu(1)];
    batch
}

/// The same tasks by 40 scans.
fn with_task_scans() -> Batch {
    let mut batch = with_everything(3);
    batch.meta.push(("task_scan_hz".to_owned(), "50".to_owned()));
    let moment = |id| TaskScanRow { id, time_ns: id * 19 * MS, late_ns: 30_000, backoff: 0 };
    batch.task_scans = (1..=40).map(moment).collect();
    let seen = |instance, tid, scan, state, wait_reason| TaskScanStateRow {
        instance,
        tid,
        scan,
        state: Some(state),
        wait_reason,
        stack: 0,
    };
    batch.task_scan_states = vec![
        seen(1, 100, 1, TaskState::Running, WaitReason::None),
        seen(1, 100, 25, TaskState::Runnable, WaitReason::None),
        seen(1, 100, 29, TaskState::Sleep, WaitReason::Pipe),
        seen(2, 101, 1, TaskState::Running, WaitReason::None),
        seen(2, 101, 9, TaskState::Disk, WaitReason::Block),
    ];
    batch
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

/// Runs `vprof` with these words in the directory and compares what it prints.
fn same(directory: &Path, name: &str, words: &str) {
    let arguments = words.split(' ').map(|word| match word.strip_prefix('@') {
        Some(profile) => directory.join(profile).to_string_lossy().into_owned(),
        None => word.to_owned(),
    });
    let output = run(arguments);
    assert!(output.status.success(), "{words}: {}", stderr(&output));
    // The profile's place is another one every time.
    let text = stdout(&output).replace(&*directory.to_string_lossy(), "DIRECTORY");
    let path = golden(name);
    if std::env::var("VPROF_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{words} prints:\n{text}\nand {} has:\n{expected}", path.display());
}

#[test]
fn tables_are_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    write_batch(&at("p.vprof"), &with_everything(3));
    write_batch(&at("exact.vprof"), &with_exact());
    write_batch(&at("sampled.vprof"), &with_task_scans());
    write_profile_of(&at("after.vprof"), 1);
    for by in [
        "function",
        "instruction",
        "line",
        "process",
        "instance",
        "thread",
        "cgroup",
        "module",
        "irq",
        "syscall",
    ] {
        same(directory.path(), &format!("report-by-{by}"), &format!("report @p.vprof --by {by}"));
    }
    for (name, words) in [
        ("report", "report @p.vprof"),
        ("report-callers", "report @p.vprof --callers do_work"),
        ("report-callees", "report @p.vprof --callees do_work"),
        ("report-exact", "report --exact @exact.vprof"),
        ("report-states-exact", "report --states @exact.vprof"),
        ("report-states-sampled", "report --states @sampled.vprof"),
        ("stat", "stat @p.vprof"),
        ("stat-csv", "stat --csv @p.vprof"),
        ("rusage", "rusage @p.vprof"),
        ("rusage-csv", "rusage --csv @p.vprof"),
        ("diff", "diff @p.vprof @after.vprof"),
        ("diff-markdown", "diff --markdown @p.vprof @after.vprof"),
        ("query-csv", "query --csv @p.vprof SELECT(comm)FROM(instance)"),
    ] {
        same(directory.path(), name, words);
    }
}
