//! Tests of the search in made-up memory of a kernel.

use vmm::ThreadTimes;

use super::super::offsets::{MissingMember, VcpuListOffsets};
use super::super::shared::RawOptions;
use super::*;

#[test]
fn slots_that_follow_each_other_on_both_sides_are_one_piece() {
    let piece = MemoryPiece::new;
    let pieces = vec![
        piece(0x10_0000, 0x9010_0000, 0x10_0000),
        piece(0, 0x9000_0000, 0xa_0000),
        piece(0xc_0000, 0x900c_0000, 0x4_0000),
        piece(1 << 32, 0xa000_0000, 0x1000),
        piece((1 << 32) + 0x1000, 0xb000_0000, 0x1000),
    ];
    let expected = [
        piece(0, 0x9000_0000, 0xa_0000),
        piece(0xc_0000, 0x900c_0000, 0x14_0000),
        piece(1 << 32, 0xa000_0000, 0x1000),
        piece((1 << 32) + 0x1000, 0xb000_0000, 0x1000),
    ];
    assert_eq!(merged(pieces), expected);
}

#[test]
fn vcpus_are_listed_in_the_order_in_which_they_were_made() {
    let (kernel, mut offsets) = (FakeKernel::default(), offsets(LISTED));
    let list =
        |offsets: &HostOffsets, most| KernelReader { memory: &kernel, offsets }.vcpus_of(kvm_at(1), most);
    let (root, node) = (BASE + 900 * PAGE, BASE + 901 * PAGE);
    assert_eq!(list(&offsets, 64), Some(vec![]), "no vCPU");
    kernel.put_u64(kvm_at(1) + 48, vcpu_at(1, 0));
    assert_eq!(list(&offsets, 64), Some(vec![vcpu_at(1, 0)]), "one has no node");
    kernel.put_u64(kvm_at(1) + 48, node + 2);
    for vcpu in 0..3 {
        kernel.put_u64(node + 8 + vcpu * 8, vcpu_at(1, vcpu));
    }
    // A slot that is reserved (XA_ZERO_ENTRY).
    kernel.put_u64(node + 8 + 3 * 8, 257 << 2 | 2);
    let all: Vec<_> = (0..3).map(|vcpu| vcpu_at(1, vcpu)).collect();
    assert_eq!(list(&offsets, 64), Some(all.clone()));
    assert_eq!(list(&offsets, 1).map(|found| found.len()), Some(2), "one more than the most");
    // Another level.
    kernel.put(root, &[6]);
    kernel.put_u64(root + 8, node + 2);
    kernel.put_u64(root + 16, vcpu_at(1, 4));
    kernel.put_u64(kvm_at(1) + 48, root + 2);
    assert_eq!(list(&offsets, 64), Some([all.clone(), vec![vcpu_at(1, 4)]].concat()));
    // A node that leads to itself.
    kernel.put_u64(root + 8, root + 2);
    assert_eq!(list(&offsets, 64), None);
    offsets.finder.vcpu_list = Some(VcpuListOffsets::Array { vcpus: 8, count: 4 });
    kernel.put_u64(kvm_at(1) + 8, vcpu_at(1, 7));
    kernel.put_u64(kvm_at(1) + 16, vcpu_at(1, 8));
    kernel.put_u64(kvm_at(1) + 24, 0);
    kernel.put_u64(kvm_at(1) + 32, 0);
    assert_eq!(list(&offsets, 64), Some(vec![vcpu_at(1, 7), vcpu_at(1, 8)]));
    offsets.finder.vcpu_list = None;
    assert_eq!(list(&offsets, 64), None);
}

#[test]
fn times_are_those_of_the_thread_and_not_of_a_later_one() {
    let (kernel, offsets) = (FakeKernel::default(), offsets(LISTED));
    let reader = KernelReader { memory: &kernel, offsets: &offsets };
    let thread = KernelThread { task: BASE + 800 * PAGE, start: 11, tid: 7 };
    for (offset, value) in [(72, 1_000), (80, 11), (104, 30)] {
        kernel.put_u64(thread.task + offset, value);
    }
    let times = Some(ThreadTimes { run_ns: 1_000, waited_ns: 30 });
    assert_eq!((reader.times(thread), reader.is_alive(thread)), (times, true));
    // It has ended, and its memory is nobody's yet.
    kernel.put_u64(thread.task + 88, 0x10);
    assert_eq!((reader.times(thread), reader.is_alive(thread)), (times, false));
    for (offset, value) in [(80, 12), (88, 0)] {
        kernel.put_u64(thread.task + offset, value);
    }
    assert_eq!((reader.times(thread), reader.is_alive(thread)), (None, false));
}

/// Address of the kernel's memory in the tests.
const BASE: u64 = 0xffff_8880_0000_0000;
const PAGE: u64 = 4096;

/// Memory of a kernel: pages of zeroes, with what was put there.
#[derive(Debug, Default)]
struct FakeKernel(std::cell::RefCell<std::collections::BTreeMap<u64, u8>>);

impl FakeKernel {
    fn put(&self, at: u64, bytes: &[u8]) {
        self.0.borrow_mut().extend((at..).zip(bytes.iter().copied()));
    }

    fn put_u64(&self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }
}

impl KernelMemory for FakeKernel {
    fn peek(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let end = BASE + 1_000 * PAGE;
        let is_mapped = at >= BASE && at.checked_add(into.len() as u64)? <= end;
        is_mapped.then_some(())?;
        let bytes = self.0.borrow();
        for (at, byte) in (at..).zip(into) {
            *byte = bytes.get(&at).copied().unwrap_or(0);
        }
        Some(())
    }
}

/// Offsets that are multiples of 8, so that no two members overlap.
fn offsets(slots: SlotOffsets) -> HostOffsets {
    let finder = FinderOffsets {
        file_private: 8,
        file_dentry: 16,
        dentry_name: 24,
        vcpu_kvm: 8,
        vcpu_number: 16,
        vcpu_pid: 24,
        vcpu_protected: Some(32),
        kvm_encrypted: Some(40),
        pid_tasks: 8,
        task_pid_links: 64,
        kvm_slots: 16,
        slots,
        slot_gfn: 0,
        slot_pages: 8,
        slot_host: 16,
        vcpu_list: Some(TREE),
        task_ran: 72,
    };
    let options = RawOptions { task_start: 80, task_exit: 88, task_delay: 104, ..RawOptions::default() };
    HostOffsets { options, finder, partial: Err(MissingMember("none")) }
}

const TREE: VcpuListOffsets = VcpuListOffsets::Tree { head: 48, shift: 0, slots: 8, count: 64 };
const LISTED: SlotOffsets = SlotOffsets::Listed { generation: 0, used: 8, slots: 16, bytes: 32 };

/// Pages of the parts of machine `machine` and of its vCPU `vcpu`.
fn kvm_at(machine: u64) -> u64 {
    BASE + machine * 20 * PAGE
}

fn slots_at(machine: u64) -> u64 {
    kvm_at(machine) + PAGE
}

fn vcpu_at(machine: u64, vcpu: u64) -> u64 {
    kvm_at(machine) + (2 + vcpu * 4) * PAGE
}

/// Puts a machine with two vCPUs, and with one MiB of memory for each part of `memory`. Returns the files
/// of the vCPUs, with descriptors from 10 times the machine's number on.
fn put_machine(kernel: &FakeKernel, machine: u64, memory: &[u64]) -> Vec<RawFile> {
    kernel.put_u64(kvm_at(machine) + 16, slots_at(machine));
    put_slots(kernel, machine, 1, memory);
    let file = |vcpu: u64| {
        let at = vcpu_at(machine, vcpu);
        kernel.put_u64(at + 8, kvm_at(machine));
        kernel.put_u64(at + 16, vcpu);
        let (file, dentry, name) = (at + PAGE, at + 2 * PAGE, at + 3 * PAGE);
        kernel.put_u64(file + 8, at);
        kernel.put_u64(file + 16, dentry);
        kernel.put_u64(dentry + 24, name);
        kernel.put(name, format!("kvm-vcpu:{vcpu}\0").as_bytes());
        RawFile { fd: machine * 10 + vcpu, file, task: BASE }
    };
    vec![file(0), file(1)]
}

fn put_slots(kernel: &FakeKernel, machine: u64, generation: u64, memory: &[u64]) {
    let at = slots_at(machine);
    kernel.put_u64(at, generation);
    kernel.put_u64(at + 8, memory.len() as u64);
    for (slot, guest) in (0..).zip(memory) {
        let slot = at + 16 + slot * 32;
        kernel.put_u64(slot, guest >> PAGE_SHIFT);
        kernel.put_u64(slot + 8, 256);
        kernel.put_u64(slot + 16, 0x7000_0000_0000 + 2 * guest);
    }
}

fn descriptors(files: &[RawFile]) -> Vec<(u32, i32)> {
    let number = |value: u64| u32::try_from(value).unwrap();
    let mut all: Vec<_> =
        files.iter().map(|file| (number(file.fd % 10), i32::try_from(file.fd).unwrap())).collect();
    all.sort_unstable();
    all
}

#[test]
fn machines_of_one_process_are_distinguished_by_their_kvm() {
    let (kernel, offsets) = (FakeKernel::default(), offsets(LISTED));
    let reader = KernelReader { memory: &kernel, offsets: &offsets };
    let mut files = put_machine(&kernel, 2, &[0, 1 << 32]);
    files.extend(put_machine(&kernel, 1, &[0]));
    let machines = reader.machines(&files, &descriptors(&files)).unwrap();
    let seen: Vec<_> =
        machines.iter().map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.fd).collect::<Vec<_>>()).collect();
    assert_eq!(seen, [vec![10, 11], vec![20, 21]]);
    let refusal = reader.choose(machines.clone(), None).unwrap_err().to_string();
    assert!(refusal.contains("1: 2 vCPUs, 1 MiB; 2: 2 vCPUs, 2 MiB"), "{refusal}");
    assert_eq!(reader.choose(machines.clone(), Some(2)).unwrap().kvm, kvm_at(2));
    for number in [0, 3] {
        let refusal = reader.choose(machines.clone(), Some(number)).unwrap_err();
        assert!(matches!(refusal, BpfRefusal::NoSuchVm(..)), "{refusal}");
    }
    // A copy of a descriptor is the same vCPU.
    let copy = RawFile { fd: 30, ..files[0] };
    let files = [files[0], files[1], copy];
    let machines = reader.machines(&files, &descriptors(&files)).unwrap();
    assert_eq!((machines.len(), machines[0].vcpus.len()), (1, 2));
    let other = [(0, 20), (0, 21)];
    assert!(matches!(reader.machines(&files, &other), Err(BpfRefusal::Unknown(0, _))), "its number is 1");
}

#[test]
fn a_machine_that_the_kernel_protects_is_refused() {
    let (kernel, offsets) = (FakeKernel::default(), offsets(LISTED));
    let reader = KernelReader { memory: &kernel, offsets: &offsets };
    let files = put_machine(&kernel, 1, &[0]);
    let choose = || reader.choose(reader.machines(&files, &descriptors(&files))?, None);
    choose().unwrap();
    kernel.put(kvm_at(1) + 40, &[1]);
    assert!(matches!(choose(), Err(BpfRefusal::Protected(what)) if what.contains("memory")));
    kernel.put(vcpu_at(1, 1) + 32, &[1]);
    assert!(matches!(choose(), Err(BpfRefusal::Protected(what)) if what.contains("memory")), "the first");
    kernel.put(vcpu_at(1, 0) + 32, &[1]);
    assert!(matches!(choose(), Err(BpfRefusal::Protected(what)) if what.contains("registers")));
}

#[test]
fn memory_that_was_plugged_in_has_another_generation() {
    let (kernel, offsets) = (FakeKernel::default(), offsets(LISTED));
    let reader = KernelReader { memory: &kernel, offsets: &offsets };
    put_machine(&kernel, 1, &[0]);
    let pieces = || {
        let found = reader.slots(kvm_at(1)).unwrap();
        (found.generation, found.layout.unwrap().pieces().to_vec())
    };
    let piece = |guest| MemoryPiece::new(guest, 0x7000_0000_0000 + 2 * guest, 1 << 20);
    assert_eq!(pieces(), (1, vec![piece(0)]));
    put_slots(&kernel, 1, 2, &[0, 1 << 33]);
    assert_eq!(pieces(), (2, vec![piece(0), piece(1 << 33)]));
    // A slot that no guest has.
    put_slots(&kernel, 1, 3, &[1 << 60]);
    assert_eq!(reader.slots(kvm_at(1)), None);
}

#[test]
fn slots_in_a_hash_table_are_those_of_the_active_set() {
    let table = SlotOffsets::Hashed { generation: 0, table: 64, heads: 4, active: 8, nodes: 32 };
    let (kernel, offsets) = (FakeKernel::default(), offsets(table));
    let reader = KernelReader { memory: &kernel, offsets: &offsets };
    let slots = slots_at(1);
    kernel.put_u64(kvm_at(1) + 16, slots);
    kernel.put_u64(slots, 7);
    kernel.put_u64(slots + 8, 1);
    let slot = |number: u64| slots + 1024 + number * 128;
    for number in 0..3 {
        kernel.put_u64(slot(number), number << 20);
        kernel.put_u64(slot(number) + 8, 16);
        kernel.put_u64(slot(number) + 16, number << 40);
    }
    // Two in one chain, one in another, by the nodes of the second set.
    let node = |number| slot(number) + 32 + 16;
    kernel.put_u64(slots + 64, node(0));
    kernel.put_u64(node(0), node(2));
    kernel.put_u64(slots + 64 + 24, node(1));
    let layout = reader.slots(kvm_at(1)).unwrap().layout.unwrap();
    let guests: Vec<_> = layout.pieces().iter().map(|piece| piece.guest.0 >> 32).collect();
    assert_eq!(guests, [0, 1, 2]);
    // A chain that leads to itself ends.
    kernel.put_u64(node(2), node(0));
    assert!(reader.slots(kvm_at(1)).is_none_or(|found| found.layout.is_none()));
}
