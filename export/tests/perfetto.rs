//! A trace as Perfetto's own schema reads it.
//!
//! The schema is that of Perfetto's package for Python. Its trace processor is not a part of the package,
//! which downloads it from another server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use export::{Format, Request};
use profile::rows::{
    Batch, EventRow, FrameKind, HostFrameRow, HostSampleRow, InstanceRow, InterruptRow, InterruptSourceRow,
    MemoryKind, MemoryReadingRow, MemoryUseRow, MicrostateRow, Microstates, StackRow, TaskLifeRow,
    TaskRunRow, TaskScanRow, TaskScanStateRow, TaskState, TaskStateRow, ThreadPlace, ThreadRow, WaitReason,
    WakeupRow,
};
use profile::store::Value;
use profile::{Profile, ProfileWriter, Sink, made_up};
use testkit::python_packages;

const PACKAGE: &str = "perfetto==0.59.1";

/// Prints what the messages of a trace add up to, as JSON.
const PROGRAM: &str = "\
import json, sys
from collections import Counter
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
trace = schema.Trace()
trace.ParseFromString(open(sys.argv[1], 'rb').read())
size = trace.ByteSize()
trace.DiscardUnknownFields()
assert trace.ByteSize() == size, 'fields that the schema does not have'
counts, tracks, names, frames, stacks, leaves = Counter(), {}, {}, {}, {}, Counter()
last, threads = {}, {}
for packet in trace.packet:
    names.update((text.iid, text.str.decode()) for text in packet.interned_data.function_names)
    frames.update((frame.iid, names[frame.function_name_id]) for frame in packet.interned_data.frames)
    stacks.update((stack.iid, stack.frame_ids) for stack in packet.interned_data.callstacks)
    if packet.HasField('track_descriptor'):
        track = packet.track_descriptor
        tracks[track.uuid] = track
        if track.HasField('thread'):
            assert track.thread.tid not in threads
            threads[track.thread.tid] = track.thread.thread_name
    elif packet.HasField('perf_sample'):
        sample = packet.perf_sample
        counts['samples'] += 1
        counts['samples vcpu %d' % sample.cpu] += 1
        counts['samples ' + threads[sample.tid]] += 1
        counts['user samples'] += sample.cpu_mode == schema.Profiling.MODE_USER
        leaves[frames[stacks[sample.callstack_iid][-1]]] += 1
        if sample.cpu_mode == schema.Profiling.MODE_HYPERVISOR:
            counts['host samples of ' + threads[sample.tid]] += 1
            counts['ns of host samples'] += packet.timestamp
            place, *functions = (frames[frame] for frame in stacks[sample.callstack_iid])
            counts[place] += 1
            counts.update('in ' + name for name in functions)
        assert sample.timebase_count >= last.get(sample.cpu, 0)
        last[sample.cpu] = sample.timebase_count
    elif packet.HasField('track_event'):
        event = packet.track_event
        kind = schema.TrackEvent.Type.Name(event.type)
        counts[kind] += 1
        if kind == 'TYPE_COUNTER':
            counts[tracks[event.track_uuid].name] += round(event.double_counter_value)
        category = event.categories[0] if event.categories else ''
        if category == 'sampled state':
            counts['state ' + event.name] += 1
            begin = (event.name, packet.timestamp)
        elif category == '' and kind == 'TYPE_SLICE_END' and tracks[event.track_uuid].HasField('thread'):
            counts['ns ' + begin[0]] += packet.timestamp - begin[1]
        if category == 'task run':
            counts['runs on ' + tracks[event.track_uuid].name] += 1
            begun = packet.timestamp
        elif kind == 'TYPE_SLICE_END' and tracks[event.track_uuid].name.endswith(' tasks'):
            counts['ns of runs'] += packet.timestamp - begun
        for group in event.debug_annotations:
            counts[group.name] += group.uint_value
            for row in group.dict_entries:
                for number in row.dict_entries:
                    counts['%s %s %s' % (group.name, row.name, number.name)] += number.uint_value
counts['ns'] = sum(last.values())
assert set(threads) and all(stack for stack in stacks.values())
print(json.dumps(counts))
";

/// Writes a profile with samples of two vCPUs, states of one thread by scans and by exact mode, and two
/// processes that have had the same id.
fn write(path: &Path) {
    let mut writer = ProfileWriter::create(path, true).expect("a new profile");
    let mut batch = Batch::default();
    add_samples(&mut batch);
    add_host(&mut batch);
    for time_ns in [100_000_000, 200_000_000] {
        let states = Microstates { guest: 75_000_000, halted: 25_000_000, ..Microstates::default() };
        batch.microstates.push(MicrostateRow { vcpu: 0, time_ns, states });
    }
    add_scans(&mut batch);
    add_exact(&mut batch);
    add_memory(&mut batch);
    batch.events.push(EventRow { time_ns: 1, kind: "mark".to_owned(), text: "warm".to_owned() });
    writer.write(&batch).expect("room");
    writer.finish().expect("room");
}

/// Adds the two processes and their samples.
fn add_samples(batch: &mut Batch) {
    for (id, number) in [(1, 0), (2, 1)] {
        let comm = "twice".to_owned();
        batch.instances.push(InstanceRow {
            id,
            pid: 100,
            comm: comm.clone(),
            number,
            ..InstanceRow::default()
        });
        batch.threads.push(ThreadRow { instance: id, tid: 100, comm });
    }
    let leaves = made_up::stacks(10, batch);
    for n in 0..600_u64 {
        let mut sample = profile::rows::SampleRow {
            vcpu: u8::from(n % 3 == 0),
            time_ns: n * 1_000_000,
            mode: if n % 4 == 0 { profile::rows::Mode::Kernel } else { profile::rows::Mode::User },
            instance: Some(1 + u32::from(n > 400)),
            tid: Some(100),
            vcpu_state: profile::rows::VcpuState::Guest,
            ..profile::rows::SampleRow::default()
        };
        made_up::put(&leaves, n, &mut sample);
        batch.samples.push(sample);
    }
    made_up::finish(batch, 600);
}

/// Adds four scans, with states of the first process's thread.
fn add_scans(batch: &mut Batch) {
    batch.task_scans.extend((1..=4).map(|id| TaskScanRow {
        id,
        time_ns: id * 10_000_000,
        ..TaskScanRow::default()
    }));
    let states = [
        (1, Some(TaskState::Running), WaitReason::None),
        (2, Some(TaskState::Sleep), WaitReason::Futex),
        (4, None, WaitReason::None),
    ];
    batch.task_scan_states.extend(states.map(|(scan, state, wait_reason)| TaskScanStateRow {
        instance: 1,
        tid: 100,
        scan,
        state,
        wait_reason,
        stack: 0,
    }));
}

/// Adds what exact mode records: runs and states of the second process's thread, wake-ups and interrupts.
fn add_exact(batch: &mut Batch) {
    batch.task_lives.push(TaskLifeRow { instance: 2, tid: 100, from_ns: 5, to_ns: 95, ended: false });
    let of = |state, wait_reason, ns, count| TaskStateRow {
        instance: 2,
        tid: 100,
        state,
        wait_reason,
        stack: 0,
        ns,
        count,
    };
    batch.meta.push(("exact_from_ns".to_owned(), "5".to_owned()));
    batch.task_runs.extend([(0, 10), (1, 30), (1, 60)].map(|(vcpu, from_ns)| TaskRunRow {
        vcpu,
        instance: 2,
        tid: 100,
        from_ns,
        delay_ns: 7,
        running_ns: 20,
        interrupted_ns: 3,
        ..TaskRunRow::default()
    }));
    batch.task_states.push(of(TaskState::Running, WaitReason::None, 60, 3));
    batch.task_states.push(of(TaskState::Sleep, WaitReason::Futex, 30, 2));
    let wakeup = |by: &str, waker, count| WakeupRow {
        by: by.to_owned(),
        waker,
        waker_tid: if waker > 0 { 100 } else { 0 },
        woken: 2,
        woken_tid: 100,
        count,
    };
    batch.wakeups.extend([wakeup("task", 1, 7), wakeup("hard", 0, 4)]);
    batch.interrupts.push(InterruptRow { id: 1, kind: "hard".to_owned(), name: "disk".to_owned() });
    batch.interrupt_sources.push(InterruptSourceRow {
        vcpu: 1,
        interrupt: 1,
        vector: 35,
        ns: 900,
        count: 9,
        max_ns: 200,
    });
}

/// Adds three readings of the guest's memory.
fn add_memory(batch: &mut Batch) {
    for id in 1..=3 {
        batch.memory_readings.push(MemoryReadingRow {
            id,
            time_ns: id * 1_000,
            ..MemoryReadingRow::default()
        });
        for (kind, name, pid) in [(MemoryKind::Part, "free", 0), (MemoryKind::Process, "twice", 100)] {
            batch.memory_uses.push(MemoryUseRow { pid, ..MemoryUseRow::new(id, kind, name, id * 4_096) });
        }
    }
}

/// Adds stacks of the host: each fifth sample was in KVM, and between samples ticks were in the VMM.
fn add_host(batch: &mut Batch) {
    let frame = |id, kind, symbol: &str| HostFrameRow {
        id,
        kind,
        address: 0x1000 * u64::from(id),
        symbol: Some(symbol.to_owned()),
        ..HostFrameRow::default()
    };
    batch.host_frames = vec![
        frame(1, FrameKind::User, "main_loop"),
        frame(2, FrameKind::Kernel, "kvm_vcpu_ioctl"),
        frame(3, FrameKind::Kernel, "__schedule"),
    ];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    batch.host_stacks = vec![stack(1, None, 1), stack(2, Some(1), 2), stack(3, Some(1), 3)];
    let in_kvm = batch.samples.iter().step_by(5).map(|sample| HostSampleRow {
        vcpu: sample.vcpu,
        time_ns: sample.time_ns,
        place: ThreadPlace::Kvm,
        on_cpu: true,
        stack: Some(2),
    });
    batch.host_samples = in_kvm.collect();
    batch.host_samples.extend((0..90_u64).map(|n| {
        let on_cpu = n % 3 > 0;
        let (place, stack) = if on_cpu { (ThreadPlace::Vmm, 1) } else { (ThreadPlace::Waiting, 3) };
        let vcpu = u8::from(n % 2 > 0);
        HostSampleRow { vcpu, time_ns: n * 2_000_000 + 7, place, on_cpu, stack: Some(stack) }
    }));
    for vcpu in &mut batch.vcpus {
        (vcpu.states.vmm, vcpu.states.waiting) = (30_000_000, 15_000_000);
    }
}

/// Exports the profile, and returns what Perfetto's schema reads; `None` without Perfetto's package.
fn exported(profile: &Profile, directory: &Path, request: &Request) -> Option<BTreeMap<String, u64>> {
    let programs = python_packages(&[PACKAGE])?;
    let mut bytes = Vec::new();
    export::write(profile, request, &mut bytes, &mut |_, _| {}).expect("an export");
    let file = directory.join("made-up.pftrace");
    fs::write(&file, bytes).expect("room");
    let output =
        Command::new(programs.join("python3")).args(["-c", PROGRAM]).arg(&file).output().expect("Python");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Compares counts with the answers of queries.
fn assert_counted(profile: &Profile, counts: &BTreeMap<String, u64>, wanted: &[(&str, &str)]) {
    for (name, sql) in wanted {
        let rows = profile.query(sql).expect("an answer").rows;
        let Some([Value::Integer(wanted)]) = rows.first().map(Vec::as_slice) else { panic!("{sql}") };
        assert!(*wanted > 0, "{sql}");
        assert_eq!(counts.get(*name).copied(), u64::try_from(*wanted).ok(), "{name}: {counts:#?}");
    }
}

#[test]
fn the_schema_of_perfetto_reads_the_counts_of_queries() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    write(&path);
    let profile = Profile::open(&path).expect("a profile");
    let request = Request::new(Format::Perfetto);
    let Some(counts) = exported(&profile, directory.path(), &request) else { return };
    let wanted = [
        ("samples", "SELECT count(*) FROM sample"),
        ("samples vcpu 1", "SELECT count(*) FROM sample WHERE vcpu = 1"),
        ("user samples", "SELECT count(*) FROM sample JOIN mode ON mode.id = mode WHERE name = 'user'"),
        ("samples twice", "SELECT count(*) FROM v_samples WHERE comm = 'twice'"),
        ("memory free", "SELECT sum(bytes) FROM memory_use WHERE kind = 'part'"),
        ("process twice (100)", "SELECT sum(bytes) FROM memory_use WHERE kind = 'process'"),
        ("state running", "SELECT count(*) FROM task_scan_state WHERE state = 'running'"),
        ("state sleep: futex", "SELECT count(*) FROM task_scan_state WHERE wait_reason = 'futex'"),
        ("ns running", "SELECT 10000000"),
        ("ns sleep: futex", "SELECT 20000000"),
        ("vCPU 0 guest", "SELECT sum(100 * guest_ns / 100000000) FROM microstate"),
        ("vCPU 0 halted", "SELECT sum(100 * halted_ns / 100000000) FROM microstate"),
        ("exits port write 0x3f8 (serial port) count", "SELECT sum(count) FROM exit"),
        ("exits port write 0x3f8 (serial port) total_ns", "SELECT sum(total_ns) FROM exit"),
        ("interrupts disk (vector 35) count", "SELECT sum(count) FROM interrupt_source"),
        ("states running ns", "SELECT sum(ns) FROM task_state WHERE state = 'running'"),
        ("states sleep: futex count", "SELECT sum(count) FROM task_state WHERE wait_reason = 'futex'"),
        ("woken by twice#0 100 count", "SELECT sum(count) FROM wakeup WHERE \"by\" = 'task'"),
        ("woken by [hard interrupts] count", "SELECT sum(count) FROM wakeup WHERE \"by\" = 'hard'"),
        ("runs on vCPU 1 tasks", "SELECT count(*) FROM task_run WHERE vcpu = 1"),
        ("ns of runs", "SELECT sum(running_ns + interrupted_ns) FROM task_run"),
        ("delay_ns", "SELECT sum(delay_ns) FROM task_run"),
        ("TYPE_INSTANT", "SELECT count(*) FROM event"),
    ];
    assert_counted(&profile, &counts, &wanted);
    assert!(!counts.contains_key("ns of host samples"), "only where it is wanted: {counts:#?}");
    // Both vCPUs' time in the guest, which samples are weighted by.
    let rows = profile.query("SELECT sum(guest_ns) FROM vcpu").expect("an answer").rows;
    let Some([Value::Integer(guest)]) = rows.first().map(Vec::as_slice) else { panic!("{rows:?}") };
    assert!(counts["ns"].abs_diff(guest.unsigned_abs()) <= 2, "{counts:#?}");
    assert_eq!(counts["TYPE_SLICE_BEGIN"], counts["TYPE_SLICE_END"]);
}

#[test]
fn guest_and_host_have_one_axis_of_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    write(&path);
    let profile = Profile::open(&path).expect("a profile");
    let request = Request { host: true, ..Request::new(Format::Perfetto) };
    let Some(counts) = exported(&profile, directory.path(), &request) else { return };
    let wanted = [
        (
            "samples",
            "SELECT (SELECT count(*) FROM sample) + (SELECT count(*) FROM host_sample WHERE place <> 'kvm')",
        ),
        ("host samples of vCPU 0", "SELECT count(*) FROM host_sample WHERE vcpu = 0"),
        ("host samples of vCPU 1", "SELECT count(*) FROM host_sample WHERE vcpu = 1"),
        ("ns of host samples", "SELECT sum(time_ns) FROM host_sample"),
        ("[host: kvm]", "SELECT count(*) FROM host_sample WHERE place = 'kvm'"),
        ("[host: vmm]", "SELECT count(*) FROM host_sample WHERE place = 'vmm'"),
        ("[host: waiting]", "SELECT count(*) FROM host_sample WHERE place = 'waiting'"),
        ("in main_loop", "SELECT count(*) FROM host_sample"),
        ("in kvm_vcpu_ioctl", "SELECT sum(ticks) FROM v_host_functions WHERE symbol = 'kvm_vcpu_ioctl'"),
        ("in __schedule", "SELECT sum(ticks) FROM v_host_functions WHERE symbol = '__schedule'"),
        // A tick in KVM has the stack of the host in place of the guest's.
        (
            "samples twice",
            "SELECT (SELECT count(*) FROM sample) - (SELECT count(*) FROM host_sample WHERE place = 'kvm')",
        ),
    ];
    assert_counted(&profile, &counts, &wanted);
    let rows = profile.query("SELECT sum(guest_ns + vmm_ns + waiting_ns) FROM vcpu").expect("an answer").rows;
    let Some([Value::Integer(all)]) = rows.first().map(Vec::as_slice) else { panic!("{rows:?}") };
    assert!(counts["ns"].abs_diff(all.unsigned_abs()) <= 2, "{counts:#?}");
}
