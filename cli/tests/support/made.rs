//! Rows of profiles that have something in each table.

use profile::made_up;
use profile::rows::Microstates;
use profile::rows::{
    Batch, CgroupRow, CpuTimeRow, ExactVcpuRow, FrameKind, HostFrameRow, HostSampleRow, InterruptRow,
    InterruptSourceRow, InterruptTimeRow, MemoryKind, MemoryReadingRow, MemoryUseRow, MicrostateRow, Mode,
    RusageRow, StackRow, TaskDelayRow, TaskLifeRow, TaskRunRow, TaskScanRow, TaskScanStateRow, TaskStateRow,
    ThreadPlace, ThreadRow, TripArgumentRow, TripCallRow, TripRow, TripTextRow, VcpuState, WakeupRow,
};
use profile::rows::{TaskState, WaitReason};
use statistics::cpu_accounting::CpuStat;

use super::batch_with_quarters;

const MS: u64 = 1_000_000;

/// Rows that every profile has: stacks, exits, the guest's CPU accounting, control groups.
pub fn with_everything(quarters: u64) -> Batch {
    let mut batch = batch_with_quarters(quarters);
    let states = Microstates {
        guest: 600 * MS,
        halted: 100 * MS,
        waiting: 76 * MS,
        vmm: 20 * MS,
        sampler: 4 * MS,
        ..Microstates::default()
    };
    batch.microstates = (0..2).map(|vcpu| MicrostateRow { vcpu, time_ns: 800 * MS, states }).collect();
    made_up::exits(&mut batch);
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
    with_host(&mut batch);
    batch
}

/// Adds stacks of the host: each fourth sample in the guest was in KVM, and a tick after it in the VMM.
fn with_host(batch: &mut Batch) {
    let frame = |id, kind, symbol: Option<&str>, module: Option<&str>| HostFrameRow {
        id,
        kind,
        address: 0x7f00_0000_1000 + u64::from(id),
        symbol: symbol.map(str::to_owned),
        module: module.map(str::to_owned),
        ..HostFrameRow::default()
    };
    batch.host_frames = vec![
        frame(1, FrameKind::User, Some("vcpu_thread"), Some("qemu-system-x86_64")),
        frame(2, FrameKind::Kernel, Some("kvm_arch_vcpu_ioctl_run"), Some("kvm")),
        frame(3, FrameKind::User, None, Some("libc.so.6")),
        frame(4, FrameKind::Reason, Some("no stack was taken of this thread"), None),
        frame(5, FrameKind::Reason, Some("stack beyond what was copied"), None),
    ];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    batch.host_stacks = vec![
        stack(1, None, 1),
        stack(2, Some(1), 2),
        stack(4, None, 4),
        stack(5, None, 5),
        stack(6, Some(5), 3),
    ];
    let guest = batch.samples.iter().filter(|sample| sample.vcpu_state == VcpuState::Guest);
    let hits = guest.step_by(4).map(|sample| (sample.vcpu, sample.time_ns));
    for (n, (vcpu, time_ns)) in hits.enumerate() {
        let tick = HostSampleRow { vcpu, time_ns, place: ThreadPlace::Kvm, on_cpu: true, stack: Some(2) };
        let stack = Some(if n % 5 == 0 { 4 } else { 6 });
        let in_vmm = HostSampleRow { time_ns: time_ns + 1, place: ThreadPlace::Vmm, stack, ..tick };
        batch.host_samples.extend([tick, in_vmm]);
    }
}

/// Rows of half a second of exact data: two tasks, one of which waits for a pipe.
pub fn with_exact() -> Batch {
    let mut batch = with_everything(3);
    for (key, value) in [
        ("exact", "1"),
        ("exact_from_ns", "100000000"),
        ("exact_to_ns", "600000000"),
        ("exact_runs", "7"),
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
    let run = |vcpu, (instance, tid), from_ms, (wait, delay, running), (state, wait_reason)| TaskRunRow {
        vcpu,
        instance,
        tid,
        from_ns: from_ms * MS,
        wait_ns: wait * MS,
        delay_ns: delay * MS,
        running_ns: running * MS,
        interrupted_ns: MS / 4,
        sampler_ns: 0,
        state,
        wait_reason,
    };
    let (pipe, block) = ((TaskState::Sleep, WaitReason::Pipe), (TaskState::Disk, WaitReason::Block));
    let preempted = (TaskState::Runnable, WaitReason::None);
    batch.task_runs = vec![
        run(0, (1, 100), 100, (0, 0, 120), preempted),
        run(1, (2, 101), 120, (0, 1, 100), block),
        run(0, (1, 100), 250, (0, 30, 50), pipe),
    ];
    let delay = |woken, low_ns, count, max_ns, at_ms| TaskDelayRow {
        instance: 1,
        tid: 100,
        woken,
        low_ns,
        count,
        ns: count * max_ns,
        max_ns,
        max_from_ns: at_ms * MS,
    };
    batch.task_delays = vec![
        delay(true, 49_152, 5, 50_000, 120),
        delay(true, 983_040, 2, MS, 300),
        delay(true, 3_932_160, 2, 4 * MS, 440),
        delay(false, 29_360_128, 1, 30 * MS, 220),
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

/// Rows of two watched functions: one with callers of which a part has a stack, and one without types.
pub fn with_trips() -> Batch {
    let mut batch = with_everything(3);
    for (key, value) in [
        ("trips", "vfs_fsync_range, foo.isra.0"),
        ("trip_from_ns", "100000000"),
        ("trip_to_ns", "600000000"),
        ("trip_end", "the run ended"),
        ("trip_exit_ns", "2100"),
        ("trip_calls", "45"),
        ("trip_lost", "2"),
        ("trip_cost_ns", "1300000"),
    ] {
        batch.meta.push((key.to_owned(), value.to_owned()));
    }
    let trip = |id, symbol: &str, calls, typed| TripRow {
        id,
        symbol: symbol.to_owned(),
        calls,
        typed,
        ..TripRow::default()
    };
    let (lost, cost_ns, switching_ns, switching_samples) = (2, 300_000, MS, 4);
    batch.trips = vec![
        TripRow { lost, cost_ns, switching_ns, switching_samples, ..trip(1, "vfs_fsync_range", 42, true) },
        TripRow { stacks_missed: 1, ..trip(2, "foo.isra.0", 3, false) },
    ];
    let argument = |number, name: &str, type_name: &str, kind: &str| TripArgumentRow {
        trip: 1,
        number,
        name: name.to_owned(),
        type_name: type_name.to_owned(),
        kind: kind.to_owned(),
        values: Vec::new(),
    };
    batch.trip_arguments = vec![
        argument(1, "file", "struct file *", "pointer"),
        argument(2, "start", "loff_t", "signed"),
        argument(3, "name", "const char *", "text"),
    ];
    batch.trip_texts.push(TripTextRow { id: 1, text: "data.db".to_owned() });
    let call = |n: u32| {
        let has_stack = !n.is_multiple_of(4);
        TripCallRow {
            trip: 1,
            vcpu: 0,
            time_ns: 100 * MS + u64::from(n) * u64::from(n) * MS / 10,
            mode: if n == 39 { Mode::SoftIrq } else { Mode::Kernel },
            instance: Some(1 + u32::from(n > 30)),
            tid: Some(100),
            stack: has_stack.then_some(2),
            weight: if has_stack { 1 + u32::from(n > 20) } else { 0 },
            arguments: [Some(4_096), Some(-i64::from(n % 3)), Some(i64::from(n % 2)), None, None, None],
        }
    };
    batch.trip_calls = (0..40).map(call).collect();
    batch
}

/// Rows of the same tasks by 40 scans.
pub fn with_task_scans() -> Batch {
    let mut batch = with_everything(3);
    batch.meta.push(("task_scan_hz".to_owned(), "50".to_owned()));
    let scan = |id| TaskScanRow { id, time_ns: id * 19 * MS, late_ns: 30_000, backoff: 0 };
    batch.task_scans = (1..=40).map(scan).collect();
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
    add_memory(&mut batch);
    batch
}

/// Adds three readings of the guest's memory, in which a process grows by 16 MiB each.
fn add_memory(batch: &mut Batch) {
    const MIB: u64 = 1 << 20;
    for id in 1..=3_u64 {
        batch.memory_readings.push(MemoryReadingRow {
            id,
            time_ns: id * 200 * MS,
            total: 463 * MIB,
            available: Some((400 - id * 16) * MIB),
            cost_ns: 2 * MS,
            ..MemoryReadingRow::default()
        });
        for (kind, name, pid, mib) in [
            (MemoryKind::Part, "free", 0, 400 - id * 16),
            (MemoryKind::Part, "anonymous", 0, 48 + id * 16),
            (MemoryKind::Part, "other", 0, 15),
            (MemoryKind::Process, "worker", 100, id * 16),
            (MemoryKind::Process, "writer", 101, 4),
            (MemoryKind::Group, "/system.slice", 0, 52),
            (MemoryKind::File, "/usr/lib/libc.so.6", 0, 2),
        ] {
            batch.memory_uses.push(MemoryUseRow { pid, ..MemoryUseRow::new(id, kind, name, mib * MIB) });
        }
    }
}
