//! Samples of a KVM that leaves some of the guest's registers to the processor, as that of Intel's does.
//!
//! Such a sample has the instruction pointer, and no stack pointer and no CR3. The rest follows from the
//! guest's memory:
//!
//! ```text
//! address     a kernel's code is in the upper half, but for the page of the vsyscalls
//! page tables those of the current task's process, which also map all of the kernel
//! user code   only where these page tables lead to memory: low code of the kernel and of firmware has others
//! ```
//!
//! Whatever is not certain makes a sample without an instruction pointer, which counts for no code.

use guest_linux::{AddressSpace, PhysAddr, PhysicalMemory, VirtAddr};
use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm::KnownRegisters;
use vmm::x86::{CR4_LA57, EFER_LMA};

use super::area::registers;
use super::shared::{ABSENT, PARTIAL, RawGuest, RawState};

/// Bit of all addresses of a 64-bit kernel.
const KERNEL_HALF: u64 = 1 << 63;
/// Page of the vsyscalls, whose code runs as user code (VSYSCALL_ADDR,
/// arch/x86/include/uapi/asm/vsyscall.h).
const VSYSCALL_PAGE: u64 = 0xffff_ffff_ff60_0000;
const PAGE_MASK: u64 = !0xfff;

/// Registers of a sample, completed from the guest's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompletedRegisters {
    pub regs: kvm_regs,
    pub sregs: kvm_sregs,
    pub known: KnownRegisters,
}

/// Completes the registers of a sample. `memory` is the guest's at the sample, as far as it was copied.
pub(crate) fn complete(
    state: &RawState,
    guest: &RawGuest,
    memory: &impl PhysicalMemory,
) -> CompletedRegisters {
    let (regs, mut sregs) = registers(state);
    let long_mode = state.efer & EFER_LMA != 0;
    sregs.cs.l = u8::from(long_mode);
    let mut known = match state.registers {
        // The base of other code is not known.
        PARTIAL if long_mode => KnownRegisters::Code,
        _ => KnownRegisters::Task,
    };
    let is_kernel = regs.rip & KERNEL_HALF != 0 && regs.rip & PAGE_MASK != VSYSCALL_PAGE;
    if known == KnownRegisters::Code && !is_kernel {
        sregs.ss.dpl = 3;
    }
    if guest.known != 0 {
        let own = user_root(guest, memory);
        sregs.cr3 = own.unwrap_or(guest.kernel_root);
        let is_mapped = |root| {
            let space = AddressSpace::new(root, sregs.cr4 & CR4_LA57 != 0);
            space.translate(memory, VirtAddr(regs.rip)).is_some()
        };
        if !is_kernel && regs.rip & KERNEL_HALF == 0 && !own.is_some_and(is_mapped) {
            (known, sregs.ss.dpl) = (KnownRegisters::Task, 0);
        }
    }
    CompletedRegisters { regs, sregs, known }
}

/// Returns the root of the page tables of the current task's process; `None` if it has none, or its memory
/// was not copied. The program copies the same words (`user_root` in attach/bpf/record.c).
fn user_root(guest: &RawGuest, memory: &impl PhysicalMemory) -> Option<u64> {
    if guest.task_mm == ABSENT {
        return None;
    }
    let direct = |virt: u64| match virt == guest.init_task {
        true => guest.init_task_phys,
        false => virt.wrapping_sub(guest.direct_map),
    };
    let pointer =
        |at: u64| memory.read_u64(PhysAddr(at)).filter(|value| value & KERNEL_HALF != 0).map(direct);
    let task = pointer(guest.current_task)?;
    let mm = pointer(task.checked_add(guest.task_mm.into())?)?;
    pointer(mm.checked_add(guest.mm_pgd.into())?)
}

/// Returns the first register that differs from those that KVM reports, of those that such a sample uses.
pub(crate) fn difference(state: &RawState, kvm: &(kvm_regs, kvm_sregs)) -> Option<String> {
    if state.registers != PARTIAL {
        return Some("RIP is not available".to_owned());
    }
    let (own, own_sregs) = registers(state);
    // What a program does not have is as KVM has it.
    let regs = kvm_regs { rsp: kvm.0.rsp, rflags: kvm.0.rflags, ..own };
    let sregs = kvm_sregs { efer: own_sregs.efer, ..kvm.1 };
    let masked = |cr4: u64| cr4 & CR4_LA57;
    if masked(own_sregs.cr4) != masked(kvm.1.cr4) {
        return Some(format!("CR4 is {:#x} instead of {:#x}", own_sregs.cr4, kvm.1.cr4));
    }
    super::area::difference(&(regs, sregs), kvm)
}

#[cfg(test)]
mod tests {
    use guest_linux::FlatMemory;

    use super::super::shared::NO_RIP;
    use super::*;

    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    const CODE: u64 = 0x40_1000;

    /// Returns a guest whose current task has page tables that map one page at [`CODE`].
    fn guest() -> (RawGuest, FlatMemory<Vec<u8>>) {
        let mut memory = vec![0; 0x10000];
        let mut put = |at: usize, value: u64| memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0x100, DIRECT_MAP + 0x1000);
        put(0x1000 + 0x40, DIRECT_MAP + 0x2000);
        put(0x2000 + 0x50, DIRECT_MAP + 0x3000);
        put(0x3000, 0x4001);
        put(0x4000, 0x5001);
        put(0x5000 + 2 * 8, 0x6001);
        put(0x6000 + 8, 0x7001);
        let guest = RawGuest {
            known: 1,
            current_task: 0x100,
            direct_map: DIRECT_MAP,
            kernel_root: 0x8000,
            task_mm: 0x40,
            mm_pgd: 0x50,
            ..RawGuest::default()
        };
        (guest, FlatMemory(memory))
    }

    fn state(rip: u64) -> RawState {
        RawState { registers: PARTIAL, rip, efer: EFER_LMA, ..RawState::default() }
    }

    /// Returns what is known, privilege level and CR3.
    fn found(state: &RawState, change: impl FnOnce(&mut RawGuest)) -> (KnownRegisters, u8, u64) {
        let (mut guest, memory) = guest();
        change(&mut guest);
        let found = complete(state, &guest, &memory);
        (found.known, found.sregs.ss.dpl, found.sregs.cr3)
    }

    #[test]
    fn user_code_is_where_the_current_task_has_memory() {
        assert_eq!(found(&state(CODE + 5), |_| ()), (KnownRegisters::Code, 3, 0x3000));
        // Not mapped there, and no page tables of a process.
        assert_eq!(found(&state(0x9000), |_| ()), (KnownRegisters::Task, 0, 0x3000));
        let no_process = |guest: &mut RawGuest| guest.current_task = 0x200;
        assert_eq!(found(&state(CODE), no_process), (KnownRegisters::Task, 0, 0x8000));
        assert_eq!(found(&state(CODE), |guest| guest.task_mm = ABSENT), (KnownRegisters::Task, 0, 0x8000));
    }

    #[test]
    fn the_upper_half_is_the_kernel_but_for_one_page() {
        let kernel = 0xffff_ffff_8123_4567;
        assert_eq!(found(&state(kernel), |_| ()), (KnownRegisters::Code, 0, 0x3000));
        let kernel_thread = |guest: &mut RawGuest| guest.current_task = 0x200;
        assert_eq!(found(&state(kernel), kernel_thread), (KnownRegisters::Code, 0, 0x8000));
        assert_eq!(found(&state(VSYSCALL_PAGE + 0x400), |_| ()), (KnownRegisters::Code, 3, 0x3000));
        assert_eq!(found(&state(VSYSCALL_PAGE - 1), |_| ()).1, 0);
        assert_eq!(found(&state(VSYSCALL_PAGE + 0x1000), |_| ()).1, 0);
    }

    #[test]
    fn a_sample_without_rip_or_outside_of_long_mode_has_no_code() {
        let without = RawState { registers: NO_RIP, ..state(0) };
        assert_eq!(found(&without, |_| ()), (KnownRegisters::Task, 0, 0x3000));
        let old = RawState { efer: 0, ..state(CODE) };
        assert_eq!(found(&old, |_| ()), (KnownRegisters::Task, 0, 0x3000));
        assert_eq!(found(&RawState { registers: 77, ..state(CODE) }, |_| ()).0, KnownRegisters::Task);
    }

    #[test]
    fn hostile_pointers_lead_nowhere() {
        let (mut guest, mut memory) = guest();
        for value in [u64::MAX, KERNEL_HALF, DIRECT_MAP + 0xffff_f000] {
            memory.0[0x100..0x108].copy_from_slice(&value.to_le_bytes());
            guest.task_mm = u32::MAX - 1;
            assert_eq!(complete(&state(CODE), &guest, &memory).known, KnownRegisters::Task);
        }
    }

    #[test]
    fn only_registers_that_such_a_sample_has_are_compared() {
        let mut own = state(CODE);
        own.gpr[0] = 5;
        let mut kvm = registers(&own);
        (kvm.0.rsp, kvm.0.rflags, kvm.1.cr3, kvm.1.ss.dpl) = (0x7000, 0x202, 0x3000, 3);
        (kvm.1.cr0, kvm.1.cr4) = (u64::MAX, !CR4_LA57);
        assert_eq!(difference(&own, &kvm), None);
        assert_eq!(difference(&RawState { rip: 1, ..own }, &kvm).unwrap(), "RIP is 0x1 instead of 0x401000");
        own.gpr[0] = 6;
        assert_eq!(difference(&own, &kvm).unwrap(), "RAX is 0x6 instead of 0x5");
        own.gpr[0] = 5;
        assert!(difference(&RawState { efer: 0, ..own }, &kvm).unwrap().starts_with("EFER"));
        assert!(difference(&RawState { cr4: CR4_LA57, ..own }, &kvm).unwrap().starts_with("CR4"));
        assert_eq!(difference(&RawState { registers: NO_RIP, ..own }, &kvm).unwrap(), "RIP is not available");
    }
}
