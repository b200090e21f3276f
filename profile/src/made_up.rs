//! A made-up profile of any size: the same rows for the same arguments.
//!
//! 2 vCPUs, 64 processes, half user code with 20,000 addresses, half kernel code with 2,000 addresses, a
//! tenth of that in interrupts; exits, interrupts, counters and CPU times of one row each.

use std::path::Path;

use statistics::cpu_accounting::CpuStat;

use crate::rows::{
    Batch, CpuTimeRow, ExitRow, ExitSiteRow, FrameKind, FrameRow, HostWaitRow, InjectedRow, InlinedRow,
    InstanceRow, InterruptRow, KvmCounterRow, Microstates, Mode, RusageRow, SampleRow, StackRow, ThreadRow,
    ThreadTimeRow, VcpuRow,
};
use crate::{ProfileWriter, Sink, SinkError};

/// Processes of the run; row ids from 1, process ids from 100.
const PROCESSES: u32 = 64;
/// Addresses of samples in user code.
const USER_ADDRESSES: u32 = 20_000;
/// Addresses of samples in kernel code.
const KERNEL_ADDRESSES: u32 = 2_000;
/// Start of the run with number 0, ns since 1970.
const STARTED_NS: u64 = 1_700_000_000_000_000_000;
/// Samples per batch, as in a run at a high rate.
const BATCH: u64 = 8_192;

/// Writes a profile of `samples` samples. Each has one of `stacks` stacks, at most 65,536, 20 frames deep,
/// half of user code and half of kernel code; none if `stacks` is 0. An existing file is replaced.
///
/// # Panics
/// The profile cannot be written.
pub fn write_profile(path: &Path, samples: u64, stacks: u32) {
    write_run(path, samples, stacks, 0);
}

/// Writes a profile as [`write_profile`] does, of a separate run: each number is another start and another
/// seed.
///
/// # Panics
/// The profile cannot be written.
pub fn write_run(path: &Path, samples: u64, stacks: u32, number: u64) {
    let mut writer = ProfileWriter::create(path, true).expect("a new profile");
    let meta = [
        ("started_unix_ns", (STARTED_NS + number * 1_000_000_000).to_string()),
        ("seed", number.to_string()),
        ("host", "kvm".to_owned()),
    ];
    let meta = meta.map(|(key, value)| (key.to_owned(), value)).to_vec();
    writer.write(&Batch { meta, ..Batch::default() }).expect("a written profile");
    write_rows(&mut writer, samples, stacks).expect("a written profile");
}

fn write_rows(writer: &mut ProfileWriter, samples: u64, count: u32) -> Result<(), SinkError> {
    let mut batch = Batch::default();
    let leaves = stacks(count, &mut batch);
    processes(&mut batch);
    for kind in [FrameKind::User, FrameKind::Kernel] {
        let addresses = if kind == FrameKind::User { USER_ADDRESSES } else { KERNEL_ADDRESSES };
        batch.frames.extend((0..addresses).map(|number| hit(kind, number)));
    }
    for n in 0..samples {
        let mut sample = sample(n);
        put(&leaves, n, &mut sample);
        batch.samples.push(sample);
        if n % BATCH == BATCH - 1 {
            writer.write(&batch)?;
            batch = Batch::default();
        }
    }
    finish(&mut batch, samples);
    writer.write(&batch)?;
    writer.finish()
}

/// Adds what a finished run of `samples` samples has besides them: vCPUs, exits, CPU times, and its facts in
/// `meta`.
pub fn finish(batch: &mut Batch, samples: u64) {
    batch.vcpus.extend((0..2).map(|id| VcpuRow {
        id,
        samples: samples / 2,
        lost: 0,
        exits: samples / 2,
        states: Microstates { guest: samples * 498_000, sampler: samples * 2_000, ..Microstates::default() },
    }));
    times(batch);
    let meta = [
        ("duration_ns", (samples * 500_000).to_string()),
        ("rate_hz", "1000".into()),
        ("clock", "uniform".into()),
        ("complete", "1".into()),
    ];
    batch.meta.extend(meta.map(|(key, value)| (key.to_owned(), value)));
}

fn processes(batch: &mut Batch) {
    for number in 0..PROCESSES {
        let (id, pid) = (number + 1, 100 + number.cast_signed());
        let comm = format!("program-{number:02}");
        batch.instances.push(InstanceRow {
            id,
            pid,
            start_ns: 1_000,
            comm: comm.clone(),
            ..InstanceRow::default()
        });
        batch.threads.push(ThreadRow { instance: id, tid: pid, comm });
    }
    batch.interrupts.push(InterruptRow { id: 1, kind: "hard".to_owned(), name: "made_up_timer".to_owned() });
}

/// The frame of an address that samples hit.
fn hit(kind: FrameKind, number: u32) -> FrameRow {
    let (id, base) = match kind {
        FrameKind::User => (1 + number, 0x55_0000_0000),
        _ => (1 + USER_ADDRESSES + number, 0xffff_ffff_8100_0000),
    };
    FrameRow { id, address: base + u64::from(number), kind, ..FrameRow::default() }
}

/// The `n`th sample.
fn sample(n: u64) -> SampleRow {
    // A fixed permutation of 32 bits (Knuth's multiplicative hash): spread out, and the same in every run.
    let spread = n.wrapping_mul(2_654_435_761) & 0xffff_ffff;
    let below = |limit: u32| u32::try_from(spread % u64::from(limit)).unwrap_or(0);
    let process = u32::try_from((spread >> 16) % u64::from(PROCESSES)).unwrap_or(0);
    let (user, interrupt) = (n.is_multiple_of(2), n % 20 == 1);
    SampleRow {
        vcpu: u8::from(n % 4 > 1),
        time_ns: n * 500_000,
        late_ns: 20_000 + spread % 50_000,
        mode: match (user, interrupt) {
            (true, _) => Mode::User,
            (false, true) => Mode::HardIrq,
            (false, false) => Mode::Kernel,
        },
        frame: if user { 1 + below(USER_ADDRESSES) } else { 1 + USER_ADDRESSES + below(KERNEL_ADDRESSES) },
        rsp: 0x7ffc_0000_0000 + spread,
        cpl: if user { 3 } else { 0 },
        cr3: 0x1_0000 + u64::from(process) * 0x1000,
        interrupts_on: Some(!interrupt),
        preempt_count: Some(0),
        instance: Some(1 + process),
        tid: Some(100 + process.cast_signed()),
        interrupt: interrupt.then_some(1),
        ..SampleRow::default()
    }
}

/// Frames of a stack.
const DEPTH: u32 = 20;
/// Stacks differ from their 16th frame on at the latest.
const BITS: u32 = 16;
/// Addresses of each kind of code.
const ADDRESSES: u32 = 5_000;
/// Row ids of frames, far from those of the samples' own.
const FIRST_FRAME: u32 = 1 << 24;

/// The innermost node of a stack: its row and its frame's.
#[derive(Debug, Clone, Copy)]
pub struct Leaf {
    stack: u32,
    frame: u32,
}

/// Innermost nodes of user stacks and of kernel stacks.
#[derive(Debug, Default)]
pub struct Leaves {
    user: Vec<Leaf>,
    kernel: Vec<Leaf>,
}

/// Puts `count` stacks and their frames into the batch. Neighbours share their outer frames, as in real runs.
pub fn stacks(count: u32, batch: &mut Batch) -> Leaves {
    let mut leaves = Leaves::default();
    if count == 0 {
        return leaves;
    }
    frames(batch);
    let mut open = [(u32::MAX, 0); DEPTH as usize];
    for (kind, leaves, number) in [
        (FrameKind::User, &mut leaves.user, count.div_ceil(2)),
        (FrameKind::Kernel, &mut leaves.kernel, count / 2),
    ] {
        open.fill((u32::MAX, 0));
        for stack in 0..number.min(1 << BITS) {
            let mut parent = None;
            let mut frame = 0;
            for (depth, slot) in (0..DEPTH).zip(&mut open) {
                let prefix = stack >> BITS.saturating_sub(depth);
                frame = frame_id(kind, prefix.wrapping_mul(31).wrapping_add(depth * 251));
                if slot.0 != prefix {
                    let id = u32::try_from(batch.stacks.len()).unwrap_or(u32::MAX - 1) + 1;
                    batch.stacks.push(StackRow { id, parent, frame });
                    *slot = (prefix, id);
                }
                parent = Some(slot.1);
            }
            leaves.push(Leaf { stack: parent.unwrap_or(0), frame });
        }
    }
    leaves
}

fn frame_id(kind: FrameKind, number: u32) -> u32 {
    let first = if kind == FrameKind::User { FIRST_FRAME } else { FIRST_FRAME + ADDRESSES };
    first + number % ADDRESSES
}

/// Five addresses in each function; each seventh has a function copied into it.
fn frames(batch: &mut Batch) {
    for kind in [FrameKind::User, FrameKind::Kernel] {
        let (name, base) = match kind {
            FrameKind::User => ("user", 0x1000),
            _ => ("kernel", 0xffff_ffff_8200_0000),
        };
        for number in 0..ADDRESSES {
            let id = frame_id(kind, number);
            batch.frames.push(FrameRow {
                id,
                address: base + u64::from(number) * 8,
                kind,
                symbol: Some(format!("{name}_function_{}", number / 5)),
                module: (kind == FrameKind::User).then(|| "program".to_owned()),
                offset: u64::from(number % 5) * 8,
                source: Some(format!("{name}_{}.c", number / 100)),
                line: Some(number),
                ..FrameRow::default()
            });
            if number % 7 == 0 {
                let symbol = format!("{name}_inlined_{number}");
                batch.inlined.push(InlinedRow { frame: id, depth: 0, symbol, source: None, line: None });
            }
        }
    }
}

/// Gives the `n`th sample its stack.
pub fn put(leaves: &Leaves, n: u64, sample: &mut SampleRow) {
    let list = if sample.mode == Mode::User { &leaves.user } else { &leaves.kernel };
    // User and kernel samples alternate: each kind takes its stacks in turn.
    let place = usize::try_from(n / 2).unwrap_or(0).checked_rem(list.len());
    if let Some(leaf) = place.and_then(|place| list.get(place)) {
        (sample.stack, sample.frame) = (Some(leaf.stack), leaf.frame);
    }
}

/// Adds exits, interrupts and counters of vCPU 0.
pub fn exits(batch: &mut Batch) {
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
    let site = ExitSiteRow {
        exit: 1,
        mode: Mode::User,
        instance: 1,
        frame: 1,
        noted: 2,
        count: 2,
        total_ns: 21_000,
        ..ExitSiteRow::default()
    };
    batch.exit_sites.push(site);
    let rest = ExitSiteRow { noted: 1, count: 1, total_ns: 9_000, instance: 0, mode: Mode::HardIrq, ..site };
    batch.exit_sites.push(rest);
    batch.injected.push(InjectedRow { device: "disk 0".to_owned(), vector: Some(0x23), count: 7 });
    let host_wait = HostWaitRow { vcpu: 0, pid: 977, name: "cc1".to_owned(), count: 4, total_ns: 6_000_000 };
    batch.host_waits.push(host_wait);
    batch.kvm_counters.push(KvmCounterRow { vcpu: 0, name: "exits".to_owned(), value: 12, grows: true });
}

/// Adds [`exits`], and the guest's CPU accounting.
fn times(batch: &mut Batch) {
    exits(batch);
    batch.rusage.push(RusageRow {
        instance: 1,
        time_ns: u64::MAX >> 1,
        user_ns: 5_000_000,
        ..RusageRow::default()
    });
    batch.thread_times.push(ThreadTimeRow {
        instance: 1,
        tid: 100,
        time_ns: u64::MAX >> 1,
        ..ThreadTimeRow::default()
    });
    let stat = CpuStat { user_ns: 7_000_000, ..CpuStat::default() };
    batch.cpu_times.push(CpuTimeRow { stat, ..CpuTimeRow::default() });
}
