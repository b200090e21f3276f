//! Made-up profiles.

use std::path::PathBuf;

use profile::rows::Microstates;
use profile::rows::{
    Batch, CodeRow, CodeSource, EventRow, FileRow, FrameKind, FrameRow, HostFrameRow, HostSampleRow,
    InlinedRow, InstanceRow, InterruptRow, Mode, SampleRow, StackRow, TaskDelayRow, TaskLifeRow, TaskState,
    TaskStateRow, ThreadPlace, ThreadRow, VcpuRow, VcpuState,
};
use profile::{ProfileWriter, Sink, made_up};
use tempfile::TempDir;

/// Samples in the guest, none of them idle.
pub const SAMPLES: u64 = 85;
/// Samples in which the guest was halted.
pub const IDLE: u64 = 10;
/// Exact time in the guest, all vCPUs.
pub const GUEST_NS: u64 = 90_000_000;

const MS: u64 = 1_000_000;

/// Row ids of stacks.
const MIX: u32 = 2;
const VFS: u32 = 5;
const NO_PAGE: u32 = 7;

/// A profile in a directory that is removed with it.
#[derive(Debug)]
pub struct Made {
    _directory: TempDir,
    pub path: PathBuf,
}

/// A run of `prog`, whose thread `worker` calls `main`, `work`, and inlined in it `hash` and `mix`.
pub fn plain() -> Made {
    named("prog")
}

/// Returns the same run; all names but those of functions with a meaning are `name`.
pub fn named(name: &str) -> Made {
    let mut batch = run(name);
    samples(&mut batch);
    finished(&batch)
}

pub fn empty() -> Made {
    finished(&Batch { meta: meta(), ..Batch::default() })
}

pub fn of_one() -> Made {
    let mut batch = run("prog");
    sample(&mut batch, 1, Mode::User, Some(1), (11, Some(MIX)));
    finished(&batch)
}

/// Returns a run of two processes of `prog`, the first with two threads, with a system call, code and exits.
pub fn several() -> Made {
    let mut batch = run("prog");
    let second = InstanceRow { id: 2, pid: 20, number: 1, comm: "prog".to_owned(), ..InstanceRow::default() };
    batch.instances.push(second);
    batch.threads.push(ThreadRow { instance: 1, tid: 12, comm: "helper".to_owned() });
    sample(&mut batch, 40, Mode::User, Some(1), (2, Some(MIX)));
    sample(&mut batch, 20, Mode::Kernel, Some(1), (5, Some(VFS)));
    sample(&mut batch, 10, Mode::User, Some(2), (2, Some(MIX)));
    sample(&mut batch, 6, Mode::HardIrq, Some(1), (5, Some(VFS)));
    for row in &mut batch.samples {
        row.tid = match (row.instance, row.mode) {
            (Some(2), _) => Some(20),
            (_, Mode::Kernel) => Some(12),
            _ => Some(11),
        };
    }
    made_up::exits(&mut batch);
    // push %rbp; mov %rsp, %rbp; nop, which is the instruction at 0x2004; ret
    let bytes = vec![0x55, 0x48, 0x89, 0xe5, 0x90, 0xc3];
    let (file, read) = (Some(1), CodeSource::File);
    batch.code.push(CodeRow { start: 0x2000, file, module: None, bytes, read });
    finished(&batch)
}

/// Returns the run of [`plain`] with stacks of the host: the first ten samples were in KVM, the next ten in
/// the guest, and five more ticks in the VMM.
pub fn with_host() -> Made {
    let mut batch = run("prog");
    samples(&mut batch);
    batch.vcpus[0].states.vmm = 5 * MS;
    let frame = |id, kind, symbol: &str| HostFrameRow {
        id,
        kind,
        address: 0x1000 * u64::from(id),
        symbol: Some(symbol.to_owned()),
        module: Some("vmm".to_owned()),
        ..HostFrameRow::default()
    };
    batch.host_frames = vec![
        frame(1, FrameKind::User, "main_loop"),
        frame(2, FrameKind::Kernel, "kvm_vcpu_ioctl"),
        frame(3, FrameKind::Kernel, "vcpu_enter_guest"),
    ];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    batch.host_stacks = vec![stack(1, None, 1), stack(2, Some(1), 2), stack(3, Some(2), 3)];
    let tick = |time_ns, place, stack| HostSampleRow { vcpu: 0, time_ns, place, on_cpu: true, stack };
    batch.host_samples = (1..=10).map(|n| tick(n * MS, ThreadPlace::Kvm, Some(2))).collect();
    batch.host_samples.extend((11..=20).map(|n| tick(n * MS, ThreadPlace::Guest, Some(3))));
    batch.host_samples.extend((1..=5).map(|n| tick(n * MS + MS / 2, ThreadPlace::Vmm, Some(1))));
    finished(&batch)
}

/// Returns a run of two kernel threads of one name, the serial port's driver on their stacks, in which most
/// of the time went into sampling.
pub fn slowed() -> Made {
    let mut batch = run("prog");
    samples(&mut batch);
    let second = InstanceRow { id: 2, pid: 20, number: 1, comm: "prog".to_owned(), ..InstanceRow::default() };
    batch.instances.push(second);
    batch.instances.iter_mut().for_each(|row| row.kernel_thread = true);
    sample(&mut batch, 10, Mode::Kernel, Some(2), (5, Some(VFS)));
    for frame in batch.frames.iter_mut().filter(|frame| frame.kind == FrameKind::Kernel) {
        frame.symbol = Some("io_serial_out".to_owned());
    }
    batch.vcpus[0].states.sampler = 300 * MS;
    finished(&batch)
}

/// Returns the run of [`plain`] in exact mode: its thread waited three times for a CPU.
pub fn of_exact() -> Made {
    let mut batch = run("prog");
    samples(&mut batch);
    batch.meta.push(("exact_from_ns".to_owned(), "0".to_owned()));
    let (instance, tid) = (1, 11);
    batch.task_lives.push(TaskLifeRow { instance, tid, to_ns: 100 * MS, ..TaskLifeRow::default() });
    batch.task_states = [(TaskState::Running, 90), (TaskState::Runnable, 10)]
        .map(|(state, ms)| TaskStateRow {
            instance,
            tid,
            state,
            ns: ms * MS,
            count: 3,
            ..TaskStateRow::default()
        })
        .to_vec();
    batch.task_delays = [(true, 983_040, 2, 1), (false, 7_864_320, 1, 8)]
        .map(|(woken, low_ns, count, max_ms)| TaskDelayRow {
            instance,
            tid,
            woken,
            low_ns,
            count,
            ns: count * max_ms * MS,
            max_ns: max_ms * MS,
            max_from_ns: 50 * MS,
        })
        .to_vec();
    finished(&batch)
}

pub fn of_boot() -> Made {
    let mut batch = run("prog");
    sample(&mut batch, 5, Mode::Boot, None, (12, None));
    finished(&batch)
}

/// Returns a run in progress: its rows are in the write-ahead log, which the writer keeps open.
pub fn unfinished() -> (Made, ProfileWriter) {
    let mut batch = run("prog");
    samples(&mut batch);
    batch.meta.retain(|(key, _)| key != "complete");
    write(&batch)
}

pub fn finished(batch: &Batch) -> Made {
    let (made, writer) = write(batch);
    let mut writer = writer;
    writer.finish().expect("room");
    made
}

fn write(batch: &Batch) -> (Made, ProfileWriter) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(batch).expect("room");
    (Made { _directory: directory, path }, writer)
}

fn meta() -> Vec<(String, String)> {
    let meta = [
        ("version", "0.1.0"),
        ("host", "kvm"),
        ("kernel", "6.1.0"),
        ("started_unix_ns", "1500000000000000000"),
        ("duration_ns", "100000000"),
        ("rate_hz", "1000"),
        ("clock", "uniform"),
        ("complete", "1"),
    ];
    meta.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
}

fn run(name: &str) -> Batch {
    let text = |text: &str| Some(text.to_owned());
    let mut batch = Batch { meta: meta(), ..Batch::default() };
    let states = Microstates { guest: GUEST_NS, halted: 10 * MS, ..Microstates::default() };
    batch.vcpus.push(VcpuRow { id: 0, samples: SAMPLES + IDLE, lost: 0, exits: 1, states });
    batch.instances.push(InstanceRow {
        id: 1,
        pid: 10,
        comm: name.to_owned(),
        command: text(name),
        ..InstanceRow::default()
    });
    let comm = if name == "prog" { "worker" } else { name };
    batch.threads.push(ThreadRow { instance: 1, tid: 11, comm: comm.to_owned() });
    batch.files.push(FileRow {
        id: 1,
        path: format!("/usr/bin/{name}"),
        build_id: text("abcd0123"),
        ..FileRow::default()
    });
    let frame = |id, address, call, kind, symbol: Option<&str>| FrameRow {
        id,
        address,
        call,
        kind,
        file: (kind == FrameKind::User).then_some(1),
        symbol: symbol.map(str::to_owned),
        module: match kind {
            FrameKind::User => text(name),
            FrameKind::Managed => text("python"),
            FrameKind::Reason => text("user"),
            FrameKind::Kernel => None,
        },
        offset: 4,
        source: symbol.filter(|_| kind == FrameKind::User).map(|_| format!("{name}.c")),
        line: Some(20),
        ..FrameRow::default()
    };
    let (user, kernel, reason) = (FrameKind::User, FrameKind::Kernel, FrameKind::Reason);
    // A task without its own name takes the run's.
    let own = if name == "prog" { None } else { Some(name) };
    batch.frames = vec![
        frame(1, 0x1010, true, user, Some("main")),
        frame(2, 0x2004, false, user, Some("work")),
        frame(3, 0x2040, true, user, Some("work")),
        frame(4, 0xffff_ffff_8100_0024, true, kernel, Some("ksys_read")),
        frame(5, 0xffff_ffff_8100_0104, false, kernel, Some("vfs_read")),
        frame(6, 0, false, reason, Some(own.unwrap_or("page not present"))),
        frame(7, 0x2044, false, user, Some("work")),
        frame(11, 0x9000, false, user, own),
        frame(12, 0xffff_ffff_8200_0000, false, kernel, own),
    ];
    let inlined = |depth, symbol: &str| InlinedRow {
        frame: 2,
        depth,
        symbol: symbol.to_owned(),
        source: text("mix.h"),
        line: Some(7),
    };
    batch.inlined = vec![inlined(0, own.unwrap_or("mix")), inlined(1, "hash")];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    batch.stacks = vec![
        stack(1, None, 1),
        stack(MIX, Some(1), 2),
        stack(3, Some(1), 3),
        stack(4, Some(3), 4),
        stack(VFS, Some(4), 5),
        stack(6, None, 6),
        stack(NO_PAGE, Some(6), 7),
    ];
    batch.interrupts = vec![InterruptRow {
        id: 1,
        kind: "hard".to_owned(),
        name: own.unwrap_or("virtio0-req.0").to_owned(),
    }];
    batch.syscalls = vec![(0, own.unwrap_or("read").to_owned())];
    batch.events.push(EventRow { time_ns: 5 * MS, kind: "kernel".to_owned(), text: format!("found {name}") });
    batch
}

fn samples(batch: &mut Batch) {
    sample(batch, 40, Mode::User, Some(1), (2, Some(MIX)));
    sample(batch, 20, Mode::Kernel, Some(1), (5, Some(VFS)));
    sample(batch, 10, Mode::User, Some(1), (7, Some(NO_PAGE)));
    sample(batch, 5, Mode::User, Some(1), (11, None));
    sample(batch, 6, Mode::HardIrq, Some(1), (5, Some(VFS)));
    sample(batch, 4, Mode::Boot, None, (12, None));
    sample(batch, IDLE, Mode::Idle, None, (12, None));
}

fn sample(
    batch: &mut Batch,
    count: u64,
    mode: Mode,
    instance: Option<u32>,
    (frame, stack): (u32, Option<u32>),
) {
    for _ in 0..count {
        let n = batch.samples.len() as u64;
        let halted = mode == Mode::Idle;
        batch.samples.push(SampleRow {
            time_ns: (n + 1) * MS,
            mode,
            halted,
            vcpu_state: if halted { VcpuState::Halted } else { VcpuState::Guest },
            frame,
            stack,
            instance,
            tid: instance.map(|_| 11),
            syscall: (mode == Mode::Kernel).then_some(0),
            interrupt: (mode == Mode::HardIrq).then_some(1),
            ..SampleRow::default()
        });
    }
}
