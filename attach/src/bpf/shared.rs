//! Structures that the kernel's programs and this process share. Layouts and constants are those of
//! attach/bpf/record.c.

use aya::Pod;
use guest_linux::PT_REGS_WORDS;
use runtimes::{CopyPlan, CopyStep, REGISTERS};

/// Ranges of the guest's memory that a program knows.
pub(crate) const SLOTS: usize = 32;
/// Parts of a task.
pub(crate) const SPANS: usize = 8;
pub(crate) const WORDS: usize = 768;
pub(crate) const PIECES: usize = 1072;
pub(crate) const PAGES: usize = 24;
/// Bytes of a small piece.
pub(crate) const SMALL: usize = 512;
const SMALLS: usize = 16;
/// Words of a vCPU's registers that a program copies at once.
const BLOCK: usize = 48;
pub(crate) const PAGE: usize = 4096;
/// Page tables that a program remembers, and pages of a process.
const TABLES: usize = 8;
const NEAR_PAGES: usize = 16;
/// Plans of copies that a program searches for one process.
pub(crate) const PLAN_PROBES: usize = 8;
/// Bytes that the steps of a plan copy at a sample.
const HEAP: usize = 64 << 10;

/// Rows of exits of a vCPU, the last one for all reasons that have none.
pub(crate) const EXITS: usize = 128 + 1;
/// Buckets of durations (profile/src/histogram.rs).
pub(crate) const BUCKETS: usize = 242;
/// Rows of processes that had a CPU, the last one for all that have none.
pub(crate) const TAKERS: usize = 32 + 1;

/// Notes of a vCPU that were not read yet.
pub(crate) const NOTES: usize = 128;
/// Parts of the guest's memory in a note.
pub(crate) const NOTE_PARTS: usize = 12;
/// Bytes of these parts.
pub(crate) const NOTE_BYTES: usize = 256 + 256;

/// Functions of the kernel on a stack of the host.
pub(crate) const HOST_FRAMES: usize = 127;
/// Bytes of the VMM's stack, from within a page on.
pub(crate) const HOST_BYTES: usize = 8192 + PAGE;

pub(crate) const VENDOR_SVM: u32 = 1;
pub(crate) const VENDOR_PVM: u32 = 2;
pub(crate) const VENDOR_VMX: u32 = 3;

/// Values of [`RawState::registers`]: all but those that KVM leaves to the processor, and the same without
/// RIP. 0 is for all of them.
pub(crate) const PARTIAL: u32 = 1;
pub(crate) const NO_RIP: u32 = 2;

/// Offset of a member that this kernel does not have.
pub(crate) const ABSENT: u32 = u32::MAX;

/// `struct options`: offsets in the kernel's structures, bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawOptions {
    pub process: u32,
    pub vendor: u32,
    pub vcpu_notifier: u32,
    pub vcpu_regs: u32,
    pub vcpu_rip: u32,
    pub vcpu_cr0: u32,
    pub vcpu_cr2: u32,
    pub vcpu_cr3: u32,
    pub vcpu_cr4: u32,
    pub vcpu_efer: u32,
    pub vcpu_mp_state: u32,
    pub vcpu_nested: u32,
    pub svm_vmcb: u32,
    pub vmcb_nested_paging: u32,
    pub vmcb_cs: u32,
    pub vmcb_cpl: u32,
    pub vmcb_cr0: u32,
    pub vmcb_cr3: u32,
    pub vmcb_rflags: u32,
    pub vmcb_intercepts: u32,
    pub vmcb_exit_code: u32,
    pub vmcb_fs_base: u32,
    pub vcpu_run: u32,
    pub pvm_segments: u32,
    pub pvm_cpl: u32,
    pub pvm_rflags: u32,
    pub task_flags: u32,
    pub task_state: u32,
    pub task_on_cpu: u32,
    pub task_cpu: u32,
    pub task_pid: u32,
    pub task_tgid: u32,
    pub task_start: u32,
    pub task_exit: u32,
    pub task_notifiers: u32,
    pub task_queued: u32,
    pub task_arrived: u32,
    pub task_delay: u32,
    pub task_comm: u32,
    /// The process that asks for samples.
    pub asker: u32,
    /// 1 to copy the stacks of vCPUs' threads.
    pub host_stacks: u32,
    /// 1 to count exits by their reasons, and to note some.
    pub exits: u32,
    /// 1 if KVM has only some of the registers in its memory.
    pub partial: u32,
    /// Which registers those are, and the bit of the instruction pointer.
    pub vcpu_available: u32,
    pub rip_available: u32,
    /// Number of plans of copies, a power of two.
    pub plans: u32,
}

/// `struct slot`: range of the guest's memory in the VMM.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawSlot {
    pub guest: u64,
    pub bytes: u64,
    pub host: u64,
}

/// `struct span`: part of a structure.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawSpan {
    pub offset: u32,
    pub bytes: u32,
}

/// `struct guest`: addresses in the guest's kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawGuest {
    pub known: u32,
    pub five_level: u32,
    pub kernel_root: u64,
    pub identity: u64,
    /// Of a vCPU that was plugged in later; 0 for others.
    pub apic_id: u64,
    pub preempt_count: u64,
    pub current_task: u64,
    pub irq_stack: u64,
    pub tss: u64,
    pub direct_map: u64,
    pub init_task: u64,
    pub init_task_phys: u64,
    pub task_leader: u32,
    pub task_stack: u32,
    pub task_mm: u32,
    pub mm_pgd: u32,
    pub stack_bytes: u32,
    pub irq_stack_bytes: u32,
    pub padding: u32,
    pub user_bytes: u32,
    pub task_spans: u32,
    pub leader_spans: u32,
    pub task: [RawSpan; SPANS],
    pub leader: [RawSpan; SPANS],
}

/// `struct target`: a vCPU to sample.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawTarget {
    /// Equal to `end_version`, except while a program may see a part of a change.
    pub version: u64,
    pub vcpu: u64,
    pub task: u64,
    pub start: u64,
    pub slots: u64,
    pub slot: [RawSlot; SLOTS],
    pub guest: RawGuest,
    pub end_version: u64,
}

// SAFETY: plain data without padding that matters: the kernel copies it as bytes.
unsafe impl Pod for RawTarget {}
// SAFETY: as above.
unsafe impl Pod for RawOptions {}

/// `struct word`: aligned word of the guest's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawWord {
    pub phys: u64,
    pub value: u64,
}

/// `struct piece`: range of the guest's memory that was copied.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawPiece {
    pub phys: u64,
    pub bytes: u32,
    /// Offset in the record.
    pub at: u32,
}

/// First part of `struct record`: state of the thread, and registers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawState {
    pub time_ns: u64,
    pub cpu: i32,
    pub mp_state: u32,
    pub in_run: u32,
    pub nested: u32,
    pub preempted: u32,
    pub cpl: u32,
    pub code_64_bit: u32,
    pub missing: u32,
    /// `KVM_EXIT_*` of the last return of KVM_RUN, if the VMM is blocked; else 0.
    pub exit_reason: u32,
    /// `enum registers`: those that the record has.
    pub registers: u32,
    /// In the order of the instruction set: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub code_base: u64,
    /// 0 where the kernel does not show it.
    pub fs_base: u64,
    pub words: u32,
    pub pieces: u32,
    pub smalls: u32,
    pub pages: u32,
    /// The program's own.
    pub process_root: u64,
    pub tables: [[u64; 3]; TABLES],
}

/// `struct load`: word that is loaded into a register.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawLoad {
    pub used: u8,
    pub into: u8,
    pub shift: u8,
    pub adds: u8,
    /// Words from the first byte that is copied.
    pub at: u32,
}

/// `struct step`: step of a plan.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawStep {
    pub offset: u64,
    pub bytes: u32,
    /// [`REGISTERS`] for none.
    pub base: u8,
    pub advance: u8,
    pub left: u8,
    pub right: u8,
    pub equal: u8,
    pub other: u8,
    pub missing: u8,
    pub unused: [u8; 5],
    pub load: [RawLoad; CopyStep::MAX_LOADS],
}

/// `struct plan`: plan of the copies of one process.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawPlan {
    /// Physical address of its page tables; 0 for no plan.
    pub root: u64,
    pub step: [RawStep; CopyPlan::MAX_STEPS],
}

/// `struct copier`: the program's own.
#[repr(C)]
pub(crate) struct RawCopier {
    pub registers: [u64; REGISTERS],
    pub used: u64,
    pub last: u64,
    pub page: [[u64; 2]; NEAR_PAGES],
    pub step: [RawStep; CopyPlan::MAX_STEPS],
    pub heap: [u8; HEAP + PAGE],
}

/// `struct record`.
#[repr(C)]
pub(crate) struct RawRecord {
    pub state: RawState,
    pub word: [RawWord; WORDS],
    pub piece: [RawPiece; PIECES],
    /// The program's own.
    pub block: [u64; BLOCK],
    pub small: [[u8; SMALL]; SMALLS],
    pub page: [[u8; PAGE]; PAGES + 1],
    /// The bytes of pieces are in its heap, too.
    pub copier: RawCopier,
}

/// `struct exit_row`: exits for one reason.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawExit {
    pub key: u64,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub unnoted: u64,
    pub unnoted_ns: u64,
    pub times: [u64; BUCKETS],
}

/// `struct taker`: waits for a CPU that a process had.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawTaker {
    pub tgid: u32,
    pub used: u32,
    pub comm: [u8; 16],
    pub count: u64,
    pub total_ns: u64,
}

/// First part of `struct course`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawTurns {
    pub exits: u64,
    pub returns: u64,
    pub left_ns: u64,
    pub left_key: u64,
    pub returned_ns: u64,
    pub returned_key: u64,
    pub vmm_ns: u64,
    pub vmm_off_ns: u64,
    pub vmm_waited_ns: u64,
    pub page_ns: u64,
    pub off_ns: u64,
    pub off: u32,
    pub taker: u32,
    pub delay_ns: u64,
    pub loaded_ns: u64,
}

/// `struct course`: turns and waits of a vCPU.
#[repr(C)]
pub(crate) struct RawCourse {
    pub turns: RawTurns,
    pub takers: [RawTaker; TAKERS],
}

/// `struct note`: exit that was noted with the guest's code that it interrupted.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawNote {
    pub key: u64,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub ns: u64,
    pub rip: u64,
    pub cr3: u64,
    pub code_base: u64,
    pub efer: u64,
    /// Number of exits that it is for.
    pub weight: u32,
    pub cpl: u32,
    pub code_64_bit: u32,
    pub nested: u32,
    pub parts: u32,
    /// The program's own.
    pub bytes: u32,
    /// Their offsets are in `data`.
    pub part: [RawPiece; NOTE_PARTS],
    pub data: [u8; NOTE_BYTES],
}

/// `struct notes`: notes of a vCPU, which are [`NOTES`] rows of another array.
#[repr(C)]
pub(crate) struct RawNotes {
    /// Number of notes that are complete. Note number `n` is at `n` modulo [`NOTES`].
    pub written: u64,
    /// The program's own.
    pub state: [u64; 4],
}

/// `struct host_stack`: stack of a vCPU's thread in the host.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawHostStack {
    /// Odd while the kernel writes it.
    pub version: u64,
    /// CLOCK_MONOTONIC; 0 for no stack.
    pub time_ns: u64,
    /// Bytes of the addresses, or an error number below 0.
    pub kernel_bytes: i32,
    pub user_bytes: u32,
    /// The innermost one first.
    pub kernel: [u64; HOST_FRAMES],
    /// `struct pt_regs` of the user code.
    pub registers: [u64; PT_REGS_WORDS],
    /// The user code's stack.
    pub user: [u8; HOST_BYTES],
}

/// `struct host_stacks`: at the last tick on a CPU, and when the thread left its CPU last.
#[repr(C)]
pub(crate) struct RawHostStacks {
    pub ticked: RawHostStack,
    pub left: RawHostStack,
}

/// `struct file_row`: open file of the process.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawFile {
    pub fd: u64,
    pub file: u64,
    pub task: u64,
}

/// State of a vCPU's thread (`enum outcome`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadFinding {
    /// An interrupt has just taken the CPU out of the guest.
    Guest,
    /// On a CPU, in KVM_RUN, between two stays in the guest.
    Kvm,
    /// On a CPU, in the VMM.
    Vmm,
    /// On another CPU than the one that was asked.
    Elsewhere,
    /// Waits for a CPU.
    Queued,
    /// Blocked.
    Blocked,
    /// The thread has ended, or is no longer the vCPU's.
    Gone,
    /// The CPU that was asked is taking another sample.
    Busy,
}

impl ThreadFinding {
    /// Returns the finding that the program has returned; `None` for an error of the program.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Guest,
            2 => Self::Kvm,
            3 => Self::Vmm,
            4 => Self::Elsewhere,
            5 => Self::Queued,
            6 => Self::Blocked,
            7 => Self::Gone,
            8 => Self::Busy,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes by hand: the compiler of the programs has the same rules.
    #[test]
    fn structures_have_no_holes_that_only_one_side_has() {
        assert_eq!(size_of::<RawOptions>(), 46 * 4);
        assert_eq!(size_of::<RawGuest>(), 8 + 10 * 8 + 10 * 4 + 2 * SPANS * 8);
        assert_eq!(size_of::<RawTarget>(), 6 * 8 + SLOTS * 24 + size_of::<RawGuest>());
        assert_eq!(size_of::<RawState>(), 8 + 10 * 4 + 25 * 8 + 4 * 4 + 8 + TABLES * 24);
        assert_eq!(size_of::<RawExit>(), 6 * 8 + BUCKETS * 8);
        let takers = TAKERS * (4 + 4 + 16 + 8 + 8);
        assert_eq!(size_of::<RawCourse>(), 14 * 8 + takers);
        assert_eq!(size_of::<RawNote>(), 7 * 8 + 6 * 4 + NOTE_PARTS * 16 + NOTE_BYTES);
        assert_eq!(size_of::<RawNotes>(), 5 * 8);
        assert_eq!(
            size_of::<RawHostStacks>(),
            2 * (2 * 8 + 2 * 4 + HOST_FRAMES * 8 + PT_REGS_WORDS * 8 + HOST_BYTES)
        );
        let steps = 16 * (8 + 4 + 12 + 4 * 8);
        assert_eq!(size_of::<RawPlan>(), 8 + steps);
        let copier = 8 * 8 + 2 * 8 + NEAR_PAGES * 16 + steps + HEAP + PAGE;
        assert_eq!(size_of::<RawCopier>(), copier);
        let data = BLOCK * 8 + SMALLS * SMALL + (PAGES + 1) * PAGE + copier;
        assert_eq!(size_of::<RawRecord>(), size_of::<RawState>() + WORDS * 16 + PIECES * 16 + data);
    }
}
