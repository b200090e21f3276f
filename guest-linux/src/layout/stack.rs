//! Offsets and sizes of kernel stacks.

use super::MmLayout;
use crate::btf::Btf;
use crate::btf::layout::layout;

layout! {
    /// Kernel stacks.
    #[derive(Debug, Clone, Copy)]
    StackLayout {
        /// The lowest address of a task's stack.
        stack: usize = "task_struct.stack",
        /// The stack pointer of a task that does not run.
        saved_sp: usize = "task_struct.thread.sp",
        /// Bytes of a task's stack (`THREAD_SIZE`).
        size: u64 => |btf| Ok(size(btf, "thread_union")),
        /// Bytes of a CPU's interrupt stack (`IRQ_STACK_SIZE`).
        irq_size: u64 => |btf| Ok(size(btf, "irq_stack")),
        /// From the saved stack pointer (arch/x86/include/asm/switch_to.h).
        saved_bp: usize => |btf| Ok(btf.member_by_path("inactive_task_frame.bp").map_or(40, |m| m.offset)),
        /// From the saved stack pointer.
        return_address: usize => |btf| {
            Ok(btf.member_by_path("inactive_task_frame.ret_addr").map_or(48, |m| m.offset))
        },
        /// From a task to its page tables; `None` in a kernel whose BTF lacks them.
        mm: Option<MmLayout>,
    }
}

/// Returns the size of a stack in bytes: 16 KiB, twice that with KASAN
/// (arch/x86/include/asm/page_64_types.h).
fn size(btf: &Btf<'_>, union: &str) -> u64 {
    let size = btf.size_of(union).filter(|size| size.is_power_of_two() && (8192..=65_536).contains(size));
    size.unwrap_or(16_384) as u64
}
