//! Data of a vCPU for the kernel's programs: ranges of memory, and addresses in the guest's kernel.

use guest_linux::{SampleReads, StackReader, StructurePart};

use super::shared::{ABSENT, RawGuest, RawSlot, RawSpan, RawTarget, SLOTS, SMALL, SPANS};
use crate::memory::MemoryLayout;

/// Sets the largest pieces of a layout.
pub(super) fn set_slots(target: &mut RawTarget, layout: &MemoryLayout) {
    let mut pieces = layout.pieces().to_vec();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
    target.slot = [RawSlot::default(); SLOTS];
    let slots = target.slot.iter_mut().zip(&pieces);
    for (slot, piece) in slots {
        *slot = RawSlot { guest: piece.guest.0, bytes: piece.bytes, host: piece.host.0 };
    }
    target.slots = u64::try_from(pieces.len().min(SLOTS)).unwrap_or(0);
}

/// Returns the addresses in the guest's kernel that a sample reads.
pub(super) fn guest(reads: &SampleReads) -> RawGuest {
    let small = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
    let spans = |parts: &[StructurePart]| {
        let mut spans = [RawSpan::default(); SPANS];
        let parts = parts.iter().filter(|part| part.bytes <= SMALL);
        for (span, part) in spans.iter_mut().zip(parts) {
            *span = RawSpan { offset: small(part.offset), bytes: small(part.bytes) };
        }
        spans
    };
    let count = |parts: &[StructurePart]| small(parts.len().min(SPANS));
    let (init_task, init_task_phys) = reads.init_task;
    let (task_mm, mm_pgd) = reads.page_tables.map_or((ABSENT, ABSENT), |(mm, pgd)| (small(mm), small(pgd)));
    RawGuest {
        known: 1,
        five_level: u32::from(reads.five_level),
        kernel_root: reads.kernel_root.0,
        identity: reads.identity.map_or(0, |at| at.0),
        apic_id: 0,
        preempt_count: reads.preempt_count.0,
        current_task: reads.current_task.0,
        irq_stack: reads.irq_stack.map_or(0, |at| at.0),
        tss: reads.tss.map_or(0, |at| at.0),
        direct_map: reads.direct_map,
        init_task,
        init_task_phys: init_task_phys.0,
        task_leader: small(reads.task_leader),
        task_stack: small(reads.task_stack),
        task_mm,
        mm_pgd,
        stack_bytes: u32::try_from(reads.stack_bytes).unwrap_or(0),
        irq_stack_bytes: u32::try_from(reads.irq_stack_bytes).unwrap_or(0),
        padding: u32::try_from(reads.padding).unwrap_or(0),
        user_bytes: small(StackReader::USER_BYTES),
        task_spans: count(&reads.task),
        leader_spans: count(&reads.leader),
        task: spans(&reads.task),
        leader: spans(&reads.leader),
    }
}
