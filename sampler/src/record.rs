//! Reads one sample at a tick, on the vCPU's own thread while the guest CPU is stopped.
//!
//! Everything here runs between two KVM_RUNs: no lock, no allocation, and no system call. The exception is
//! the query of KVM's run state, made only where the guest has most likely executed HLT.

use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use guest_linux::{
    AddressSpace, CurrentContext, CurrentReader, KernelIdentity, PhysAddr, PhysicalMemory, StackCopy,
    StackReader, StackSample, VirtAddr,
};
use kvm_bindings::{kvm_regs, kvm_sregs};
use symbols::Registers;
use vmm::x86::{CR0_PG, CR4_LA57, EFER_LMA, OPCODE_HLT, RFLAGS_IF};
use vmm::{Activity, KnownRegisters, TickContext, is_at_reset};

use crate::managed::RuntimeTable;
use profile::rows::VcpuState;

/// Kernel addresses are the upper half, whatever the number of page table levels.
pub(crate) const KERNEL_HALF: u64 = 1 << 63;

/// Readers of the parts of a sample that are in the guest's kernel, set once the kernel is found.
#[derive(Debug)]
pub struct GuestReaders {
    /// Reader of the current task of each vCPU.
    pub current: CurrentReader,
    /// Reader of the task's stacks, and the bytes of user stack to copy. `None` without call stacks: not
    /// wanted, or the kernel's stacks cannot be found.
    pub stacks: Option<(StackReader, usize)>,
}

/// Cells that the finder and the collector set once they know the kernel and the runtimes of processes, and
/// that the vCPUs' threads read. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestCells {
    pub readers: Arc<OnceLock<GuestReaders>>,
    pub identity: Arc<OnceLock<KernelIdentity>>,
    pub runtimes: RuntimeTable,
    /// The collector's thread.
    pub collector: Arc<OnceLock<Thread>>,
}

/// A sample with its stacks, as the ring carries it.
#[derive(Debug, Default)]
pub struct SampleMessage {
    /// The sample.
    pub record: SampleRecord,
    /// Copied stacks. The buffer belongs to the vCPU's pool and returns there.
    pub stack: Option<Box<StackCopy>>,
    /// Stacks were wanted, but all buffers of the pool were in use.
    pub stack_missed: bool,
    /// Sampling is off: the record shows the guest, and is not a sample.
    pub look: bool,
}

/// One sample as the ring carries it: fixed size, nothing resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleRecord {
    /// When the tick was served, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// Delay from the due time to the serving of the tick, ns.
    pub late_ns: u64,
    /// Linear address of the next instruction.
    pub rip: VirtAddr,
    /// Stack pointer.
    pub rsp: u64,
    /// CR3.
    pub cr3: u64,
    /// Privilege level, 0 to 3.
    pub cpl: u8,
    /// RFLAGS.IF; false if it is not known.
    pub interrupts_on: bool,
    /// Long mode with paging is on: CR3 may lead to a 64-bit kernel.
    pub long_mode: bool,
    /// CR4.LA57: five levels of page tables.
    pub five_level: bool,
    /// The vCPU has executed HLT, or was not started yet.
    pub halted: bool,
    /// The vCPU executed a guest of the guest. Its registers, which say nothing of the guest, are 0 here.
    pub nested: bool,
    /// Registers that are known. The others are 0 here.
    pub registers: KnownRegisters,
    /// State of the vCPU when the tick came.
    pub vcpu_state: VcpuState,
    /// Current task and preempt count; `None` if they could not be read.
    pub current: Option<CurrentContext>,
    /// True if the page tables mapped the kernel that was found; `None` if that was not checked.
    pub kernel_mapped: Option<bool>,
}

impl SampleRecord {
    /// Returns true if the instruction is in the upper half, where a 64-bit kernel's code is.
    pub(crate) fn in_64_bit_kernel(&self) -> bool {
        self.long_mode && self.rip.0 & KERNEL_HALF != 0
    }

    /// Returns true if the kernel has halted the vCPU with interrupts off, so that no timer wakes it: in a
    /// halted system, on the other CPUs of a panicked one, or on a CPU that is offline. Returns false if the
    /// flags are not known.
    pub(crate) fn is_halted_for_good(&self) -> bool {
        let shows_flags = self.registers == KnownRegisters::All;
        self.halted && shows_flags && !self.interrupts_on && self.in_64_bit_kernel()
    }
}

/// Reads one sample. `current` reads the running task, once the kernel is found. `activity` queries the run
/// state from KVM. The query costs a system call, so it runs only where the guest most likely idles.
pub fn read_record<M: PhysicalMemory>(
    context: &TickContext<'_, M>,
    current: impl FnOnce(&M) -> Option<CurrentContext>,
    activity: impl FnOnce() -> Option<Activity>,
) -> SampleRecord {
    let (regs, sregs) = (context.regs, context.sregs);
    // The DPL of SS is the privilege level (Intel SDM vol. 3, 5.5).
    let cpl = sregs.ss.dpl & 3;
    let long_mode = sregs.efer & EFER_LMA != 0 && sregs.cr0 & CR0_PG != 0;
    let halted = cpl == 0
        && may_be_halted(regs, sregs, context.memory)
        && matches!(activity(), Some(Activity::Halted | Activity::NotStarted));
    SampleRecord {
        time_ns: context.now_ns,
        late_ns: context.now_ns.saturating_sub(context.due_ns),
        rip: VirtAddr(linear(sregs, regs.rip)),
        rsp: regs.rsp,
        cr3: sregs.cr3,
        cpl,
        interrupts_on: regs.rflags & RFLAGS_IF != 0,
        long_mode,
        five_level: sregs.cr4 & CR4_LA57 != 0,
        halted,
        nested: false,
        registers: KnownRegisters::All,
        vcpu_state: VcpuState::Guest,
        current: current(context.memory),
        kernel_mapped: None,
    }
}

/// Reads the sample of a tick that hit a guest of the guest: the registers are that one's, and their
/// addresses mean nothing in the guest's memory. The guest's own task, which runs it, is in the guest's
/// kernel.
pub fn read_nested<M: PhysicalMemory>(
    context: &TickContext<'_, M>,
    current: impl FnOnce(&M) -> Option<CurrentContext>,
) -> SampleRecord {
    SampleRecord {
        time_ns: context.now_ns,
        late_ns: context.now_ns.saturating_sub(context.due_ns),
        nested: true,
        current: current(context.memory),
        ..SampleRecord::default()
    }
}

/// Reads the sample of a tick at which only some registers are known. The activity is then known without
/// them.
pub fn read_partial<M: PhysicalMemory>(
    context: &TickContext<'_, M>,
    registers: KnownRegisters,
    current: impl FnOnce(&M) -> Option<CurrentContext>,
    activity: impl FnOnce() -> Option<Activity>,
) -> SampleRecord {
    let (regs, sregs) = (context.regs, context.sregs);
    let halted = matches!(activity(), Some(Activity::Halted | Activity::NotStarted));
    let has_code = registers != KnownRegisters::Task;
    SampleRecord {
        time_ns: context.now_ns,
        late_ns: context.now_ns.saturating_sub(context.due_ns),
        rip: VirtAddr(if has_code { regs.rip } else { 0 }),
        cr3: sregs.cr3,
        cpl: if has_code && !halted { context.cpl() & 3 } else { 0 },
        // Paging is on in long mode.
        long_mode: sregs.efer & EFER_LMA != 0,
        five_level: sregs.cr4 & CR4_LA57 != 0,
        halted,
        registers,
        current: current(context.memory),
        ..SampleRecord::default()
    }
}

/// Copies the stacks of the sample from which `record` was read.
pub fn copy_stacks<M: PhysicalMemory>(
    (reader, user_bytes): (&StackReader, usize),
    vcpu: usize,
    context: &TickContext<'_, M>,
    record: &SampleRecord,
    into: &mut StackCopy,
) {
    let task = record.current.and_then(|current| current.task);
    let sample = StackSample {
        registers: &registers(context.regs),
        cpl: record.cpl,
        cr3: record.cr3,
        cr2: context.sregs.cr2,
        five_level: record.five_level,
        task: task.map(|task| task.task),
        kernel_thread: task.is_none_or(|task| task.kernel_thread),
        user_bytes,
    };
    reader.copy(context.memory, vcpu, &sample, into);
}

/// Returns the registers in the order of DWARF's numbers.
fn registers(regs: &kvm_regs) -> Registers {
    Registers {
        gpr: [
            regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8, regs.r9,
            regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ],
        rip: regs.rip,
    }
}

/// Returns the linear address of `ip`: 64-bit code has no segment base, older code has a base and 32 bits.
fn linear(sregs: &kvm_sregs, ip: u64) -> u64 {
    if sregs.efer & EFER_LMA != 0 && sregs.cs.l != 0 {
        ip
    } else {
        sregs.cs.base.wrapping_add(ip) & 0xffff_ffff
    }
}

/// Returns true if the run state is worth a query. KVM leaves RIP after the HLT that it has executed, and a
/// vCPU that waits for INIT or SIPI is at the reset vector. A byte that cannot be read decides nothing, so it
/// counts as HLT.
fn may_be_halted(regs: &kvm_regs, sregs: &kvm_sregs, memory: &impl PhysicalMemory) -> bool {
    if is_at_reset(regs, sregs) {
        return true;
    }
    let last = linear(sregs, regs.rip.wrapping_sub(1));
    let mut byte = [0];
    match translate(sregs, memory, last).and_then(|at| memory.read(at, &mut byte)) {
        Some(()) => byte[0] == OPCODE_HLT,
        None => true,
    }
}

/// Translates a linear address by the page tables of this vCPU.
fn translate(sregs: &kvm_sregs, memory: &impl PhysicalMemory, linear: u64) -> Option<PhysAddr> {
    if sregs.cr0 & CR0_PG == 0 {
        return Some(PhysAddr(linear));
    }
    if sregs.efer & EFER_LMA == 0 {
        return None;
    }
    let space = AddressSpace::new(sregs.cr3, sregs.cr4 & CR4_LA57 != 0);
    space.translate(memory, VirtAddr(linear)).map(|found| found.phys)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
    use vmm::x86::CR0_PE;

    use super::*;

    const PRESENT: u64 = 1;
    const CODE: u64 = 0xffff_ffff_8100_0000;

    /// 1 MiB of memory whose 4-level tables at 0x1000 map `CODE` to the page at 0x8000.
    fn memory() -> GuestMemoryMmap {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).expect("memory");
        let mut table = 0x1000;
        for shift in [39, 30, 21, 12] {
            let next = if shift == 12 { 0x8000 } else { table + 0x1000 };
            let at = table + ((CODE >> shift) & 0x1ff) * 8;
            memory.write_obj(next | PRESENT, GuestAddress(at)).expect("inside");
            table = next;
        }
        memory
    }

    fn long_mode(cpl: u8, rip: u64) -> (kvm_regs, kvm_sregs) {
        let mut sregs = kvm_sregs { cr0: CR0_PE | CR0_PG, cr3: 0x1000, efer: EFER_LMA, ..Default::default() };
        sregs.cs.l = 1;
        sregs.ss.dpl = cpl;
        (kvm_regs { rip, rsp: 0x7000, rflags: RFLAGS_IF, ..Default::default() }, sregs)
    }

    fn sample(
        memory: &GuestMemoryMmap,
        state: &(kvm_regs, kvm_sregs),
        activity: Option<Activity>,
    ) -> (SampleRecord, u32) {
        let asked = Cell::new(0);
        let context =
            TickContext { due_ns: 100, now_ns: 130, in_run: true, regs: &state.0, sregs: &state.1, memory };
        let record = read_record(
            &context,
            |_| None,
            || {
                asked.set(asked.get() + 1);
                activity
            },
        );
        (record, asked.get())
    }

    #[test]
    fn registers_arrive_in_the_record() {
        let memory = memory();
        let mut state = long_mode(3, 0x40_1000);
        state.1.cr4 = CR4_LA57;
        state.0.rflags = 0;
        let (record, asked) = sample(&memory, &state, Some(Activity::Halted));
        assert_eq!(asked, 0, "code at CPL 3 cannot halt");
        assert_eq!((record.time_ns, record.late_ns), (130, 30));
        assert_eq!((record.rip.0, record.rsp, record.cr3, record.cpl), (0x40_1000, 0x7000, 0x1000, 3));
        assert!(!record.interrupts_on && record.five_level && record.long_mode && !record.halted);
    }

    #[test]
    fn a_sample_with_some_registers_has_no_others() {
        let memory = memory();
        let state = long_mode(3, 0x40_1000);
        let context = TickContext {
            due_ns: 100,
            now_ns: 130,
            in_run: true,
            regs: &state.0,
            sregs: &state.1,
            memory: &memory,
        };
        let read = |registers, activity| read_partial(&context, registers, |_| None, || Some(activity));
        let code = read(KnownRegisters::Code, Activity::Running);
        assert_eq!((code.rip.0, code.cpl, code.cr3, code.rsp), (0x40_1000, 3, 0x1000, 0));
        assert!(!code.interrupts_on && code.long_mode && !code.halted && code.late_ns == 30);
        let task = read(KnownRegisters::Task, Activity::Running);
        assert_eq!((task.rip.0, task.cpl, task.cr3), (0, 0, 0x1000));
        let halted = read(KnownRegisters::Code, Activity::Halted);
        assert!(halted.halted && halted.cpl == 0);
        assert!(read(KnownRegisters::Task, Activity::NotStarted).halted);
    }

    #[test]
    fn asks_kvm_only_behind_a_hlt() {
        let memory = memory();
        memory.write_obj(OPCODE_HLT, GuestAddress(0x8010)).expect("inside");
        let behind = long_mode(0, CODE + 0x11);
        assert_eq!(
            sample(&memory, &behind, Some(Activity::Halted)),
            (SampleRecord { halted: true, ..record_at(CODE + 0x11) }, 1)
        );
        assert_eq!(sample(&memory, &behind, Some(Activity::Running)), (record_at(CODE + 0x11), 1));
        assert_eq!(sample(&memory, &behind, None), (record_at(CODE + 0x11), 1));
        let elsewhere = long_mode(0, CODE + 0x10);
        assert_eq!(sample(&memory, &elsewhere, Some(Activity::Halted)), (record_at(CODE + 0x10), 0));
    }

    fn record_at(rip: u64) -> SampleRecord {
        SampleRecord {
            time_ns: 130,
            late_ns: 30,
            rip: VirtAddr(rip),
            rsp: 0x7000,
            cr3: 0x1000,
            interrupts_on: true,
            long_mode: true,
            ..Default::default()
        }
    }

    #[test]
    fn asks_kvm_when_the_code_cannot_be_read() {
        let memory = memory();
        let unmapped = long_mode(0, 0xffff_ffff_8200_0001);
        assert!(sample(&memory, &unmapped, Some(Activity::Halted)).0.halted);
        let mut outside = long_mode(0, CODE + 1);
        outside.1.cr3 = 0x7fff_ffff_f000;
        assert!(sample(&memory, &outside, Some(Activity::Halted)).0.halted);
    }

    #[test]
    fn a_vcpu_at_the_reset_vector_is_asked_for() {
        let memory = memory();
        let mut sregs = kvm_sregs::default();
        sregs.cs.base = 0xffff_0000;
        let regs = kvm_regs { rip: 0xfff0, ..Default::default() };
        let (record, asked) = sample(&memory, &(regs, sregs), Some(Activity::NotStarted));
        assert_eq!((record.halted, record.rip.0, asked), (true, 0xffff_fff0, 1));
        assert!(!record.long_mode);
    }

    #[test]
    fn addresses_are_translated_as_the_processor_would() {
        let memory = memory();
        let (_, mut sregs) = long_mode(0, 0);
        assert_eq!(translate(&sregs, &memory, CODE + 5), Some(PhysAddr(0x8005)));
        // A fifth level above: its entry leads to the old top.
        sregs.cr4 = CR4_LA57;
        sregs.cr3 = 0x9000;
        assert_eq!(translate(&sregs, &memory, CODE), None);
        memory
            .write_obj(0x1000 | PRESENT, GuestAddress(0x9000 + ((CODE >> 48) & 0x1ff) * 8))
            .expect("inside");
        assert_eq!(translate(&sregs, &memory, CODE + 1), Some(PhysAddr(0x8001)));
        // Without long mode there are no such tables, and without paging there is nothing to translate.
        sregs.efer = 0;
        assert_eq!(translate(&sregs, &memory, CODE), None);
        sregs.cr0 = CR0_PE;
        assert_eq!(translate(&sregs, &memory, 0x1234), Some(PhysAddr(0x1234)));
    }

    #[test]
    fn hostile_tables_end_the_walk() {
        let memory = memory();
        let (_, sregs) = long_mode(0, 0);
        for value in [u64::MAX, 0x000f_ffff_ffff_f001, PRESENT] {
            for table in [0x1000_u64, 0x2000, 0x3000, 0x4000] {
                for index in 0..512 {
                    memory.write_obj(value, GuestAddress(table + index * 8)).expect("inside");
                }
            }
            for linear in [0, 1, CODE, u64::MAX, 1 << 47] {
                let _ = sample(&memory, &long_mode(0, linear), None);
                let _ = translate(&sregs, &memory, linear);
            }
        }
    }
}
