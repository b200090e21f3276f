//! Registers of the first vCPU at entry: long mode, identity-mapped, interrupts off.
//!
//! The descriptor table holds the segments of both levels and a task state segment that lets CPL 3 use I/O
//! ports. Page tables start at [`PAGE_TABLES`]: PML4, PDPT, four page directories of 2 MiB pages, so that the
//! first 4 GiB are mapped.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::memory::{GDT, PAGE_TABLES, TASK_STATE, TASK_STATE_LENGTH};
use crate::x86::{CR0_PE, CR0_PG, EFER_LMA, PAGE};

/// Page table entry bits (Intel SDM vol. 3, 4.5): present, writable, user, 2 MiB page.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
/// Gibibytes that the page tables map.
const MAPPED_GIB: u64 = 4;

/// Control register bits (Intel SDM vol. 3, 2.5).
const CR0_MP: u64 = 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
/// Extended feature enable register (Intel SDM vol. 3, 2.2.1).
const EFER_LME: u64 = 1 << 8;

/// RFLAGS bit 1 is always set.
const RFLAGS_FIXED: u64 = 1 << 1;
/// RFLAGS: any privilege level may use I/O ports. Between this and the I/O bitmap every KVM takes
/// one: kvm_pvm does not keep IOPL for code at CPL 3, and QEMU's SVM ignores the bitmap of a busy
/// TSS (`check_io` in `target/i386/tcg/seg_helper.c`, 7.2).
const RFLAGS_IOPL_3: u64 = 3 << 12;
/// Offset of the I/O map base in a 64-bit TSS, and of the bitmap in ours (Intel SDM vol. 3, 8.7).
const IO_MAP_BASE: u64 = 0x66;
const IO_MAP: u16 = 0x68;

/// Indices into the descriptor table. The kernel ones are `__BOOT_CS` and `__BOOT_DS` of the
/// boot protocol.
const KERNEL_CODE: u16 = 2;
const KERNEL_DATA: u16 = 3;
const USER_DATA: u16 = 4;
const USER_CODE: u16 = 5;
const TASK: u16 = 6;
/// The table's entries; a task state segment takes two.
const DESCRIPTORS: usize = 8;

/// Registers with which the first vCPU starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryState {
    /// First instruction.
    pub rip: u64,
    /// Top of the stack.
    pub rsp: u64,
    /// Linux: address of `struct boot_params`.
    pub rsi: u64,
    /// Privilege level, 0 or 3.
    pub cpl: u8,
}

impl EntryState {
    /// Returns the general registers at entry.
    pub(crate) fn regs(&self) -> kvm_regs {
        let iopl = if self.cpl == 0 { 0 } else { RFLAGS_IOPL_3 };
        kvm_regs {
            rip: self.rip,
            rsp: self.rsp,
            rsi: self.rsi,
            rflags: RFLAGS_FIXED | iopl,
            ..Default::default()
        }
    }

    /// Returns the segment and control registers at entry, from those after reset.
    pub(crate) fn sregs(&self, reset: &kvm_sregs) -> kvm_sregs {
        let (code, data) = match self.cpl {
            0 => (code_segment(KERNEL_CODE, 0), data_segment(KERNEL_DATA, 0)),
            cpl => (code_segment(USER_CODE, cpl), data_segment(USER_DATA, cpl)),
        };
        let mut sregs = *reset;
        sregs.cs = code;
        for segment in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
            *segment = data;
        }
        sregs.tr = task_segment();
        sregs.gdt.base = GDT;
        sregs.gdt.limit = gdt_limit();
        sregs.idt.base = 0;
        sregs.idt.limit = 0;
        sregs.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
        sregs.cr3 = PAGE_TABLES;
        sregs.cr4 = CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT;
        sregs.efer = EFER_LME | EFER_LMA;
        sregs
    }
}

/// Returns the size of the descriptor table minus one.
fn gdt_limit() -> u16 {
    const { assert!(DESCRIPTORS * 8 <= u16::MAX as usize) };
    u16::try_from(DESCRIPTORS * 8 - 1).unwrap_or(u16::MAX)
}

fn code_segment(index: u16, cpl: u8) -> kvm_segment {
    kvm_segment { type_: 0xb, l: 1, ..flat_segment(index, cpl) }
}

fn data_segment(index: u16, cpl: u8) -> kvm_segment {
    kvm_segment { type_: 0x3, db: 1, ..flat_segment(index, cpl) }
}

/// Returns a segment over all addresses.
fn flat_segment(index: u16, cpl: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: (index << 3) | u16::from(cpl),
        present: 1,
        dpl: cpl,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

/// Returns the busy 64-bit task state segment, without which VMX refuses to enter the guest.
fn task_segment() -> kvm_segment {
    kvm_segment {
        base: TASK_STATE,
        limit: TASK_STATE_LENGTH - 1,
        selector: TASK << 3,
        type_: 0xb,
        present: 1,
        ..Default::default()
    }
}

/// Writes a TSS whose bitmap lets every privilege level use every port.
fn write_task_state(memory: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    memory.write_obj(IO_MAP, GuestAddress(TASK_STATE + IO_MAP_BASE))?;
    let last = TASK_STATE + u64::from(TASK_STATE_LENGTH) - 1;
    // Memory is zero, which is what the bitmap wants.
    memory.write_obj(0xff_u8, GuestAddress(last))
}

/// Encodes a segment as the descriptor table holds it (Intel SDM vol. 3, 3.4.5).
fn descriptor(segment: &kvm_segment) -> u64 {
    let limit = if segment.g == 1 { segment.limit >> 12 } else { segment.limit };
    let (base, limit) = (segment.base, u64::from(limit));
    let bit = |value: u8, at: u32| u64::from(value) << at;
    (limit & 0xffff)
        | ((base & 0xff_ffff) << 16)
        | bit(segment.type_, 40)
        | bit(segment.s, 44)
        | bit(segment.dpl, 45)
        | bit(segment.present, 47)
        | ((limit & 0xf_0000) << 32)
        | bit(segment.l, 53)
        | bit(segment.db, 54)
        | bit(segment.g, 55)
        | ((base >> 24) & 0xff) << 56
}

/// Writes descriptor table, task state and page tables.
pub(super) fn write_tables(memory: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    for segment in [
        code_segment(KERNEL_CODE, 0),
        data_segment(KERNEL_DATA, 0),
        data_segment(USER_DATA, 3),
        code_segment(USER_CODE, 3),
        task_segment(),
    ] {
        let at = GuestAddress(GDT + u64::from(segment.selector & !7));
        memory.write_obj(descriptor(&segment), at)?;
    }
    write_task_state(memory)?;
    let link = PRESENT | WRITABLE | USER;
    let (pdpt, directories) = (PAGE_TABLES + PAGE, PAGE_TABLES + 2 * PAGE);
    memory.write_obj(pdpt | link, GuestAddress(PAGE_TABLES))?;
    for gib in 0..MAPPED_GIB {
        let directory = directories + gib * PAGE;
        memory.write_obj(directory | link, GuestAddress(pdpt + gib * 8))?;
        for index in 0..512 {
            let page = (gib << 30) | (index << 21);
            memory.write_obj(page | link | LARGE, GuestAddress(directory + index * 8))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::COMMAND_LINE;

    #[test]
    fn descriptors_are_the_well_known_numbers() {
        assert_eq!(descriptor(&code_segment(KERNEL_CODE, 0)), 0x00af_9b00_0000_ffff);
        assert_eq!(descriptor(&data_segment(KERNEL_DATA, 0)), 0x00cf_9300_0000_ffff);
        assert_eq!(descriptor(&code_segment(USER_CODE, 3)), 0x00af_fb00_0000_ffff);
        assert_eq!(descriptor(&data_segment(USER_DATA, 3)), 0x00cf_f300_0000_ffff);
        assert_eq!(descriptor(&task_segment()), 0x0000_8b00_3000_2068);
    }

    #[test]
    fn selectors_follow_the_boot_protocol() {
        let sregs = EntryState { rip: 0, rsp: 0, rsi: 0, cpl: 0 }.sregs(&kvm_sregs::default());
        assert_eq!((sregs.cs.selector, sregs.ds.selector), (0x10, 0x18));
        let sregs = EntryState { rip: 0, rsp: 0, rsi: 0, cpl: 3 }.sregs(&kvm_sregs::default());
        assert_eq!((sregs.cs.selector, sregs.ss.selector, sregs.ss.dpl), (0x2b, 0x23, 3));
    }

    #[test]
    fn the_first_4_gib_are_identity_mapped() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&memory).unwrap();
        let entry = |at: u64| -> u64 { memory.read_obj(GuestAddress(at)).unwrap() };
        for address in [0u64, 0x20_0000, 0x4000_0000, 0xffe0_0000] {
            let pdpt = entry(PAGE_TABLES) & !0xfff;
            let directory = entry(pdpt + (address >> 30) * 8) & !0xfff;
            let page = entry(directory + ((address >> 21) & 511) * 8);
            assert_eq!(page, address | PRESENT | WRITABLE | USER | LARGE);
        }
        assert_eq!(entry(PAGE_TABLES + PAGE + 4 * 8), 0, "nothing beyond 4 GiB");
        const { assert!(PAGE_TABLES + (2 + MAPPED_GIB) * PAGE <= COMMAND_LINE) };
    }
}
