//! Stacks of a made-up run.

use symbols::CpuBooks;

use crate::batch::{
    Batch, CpuTimeRow, ExitRow, FrameKind, FrameRow, InjectedRow, InlinedRow, KvmCounterRow, Mode, RusageRow,
    SampleRow, StackRow, ThreadTimeRow,
};

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
pub(super) struct Leaf {
    stack: u32,
    frame: u32,
}

/// Innermost nodes of user stacks and of kernel stacks.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    user: Vec<Leaf>,
    kernel: Vec<Leaf>,
}

/// Puts `count` stacks and their frames into the batch. Neighbours share their outer frames, as in real runs.
pub(super) fn stacks(count: u32, batch: &mut Batch) -> Leaves {
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
pub(super) fn put(leaves: &Leaves, n: u64, sample: &mut SampleRow) {
    let list = if sample.mode == Mode::User { &leaves.user } else { &leaves.kernel };
    // User and kernel samples alternate: each kind takes its stacks in turn.
    let place = usize::try_from(n / 2).unwrap_or(0).checked_rem(list.len());
    if let Some(leaf) = place.and_then(|place| list.get(place)) {
        (sample.stack, sample.frame) = (Some(leaf.stack), leaf.frame);
    }
}

/// Exits, interrupts and counters of vCPU 0, and the guest's own books.
pub(super) fn times(batch: &mut Batch) {
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
    batch.injected.push(InjectedRow { device: "disk 0".to_owned(), vector: Some(0x23), count: 7 });
    batch.kvm_counters.push(KvmCounterRow { vcpu: 0, name: "exits".to_owned(), value: 12, grows: true });
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
    let books = CpuBooks { user_ns: 7_000_000, ..CpuBooks::default() };
    batch.cpu_times.push(CpuTimeRow { books, ..CpuTimeRow::default() });
}
