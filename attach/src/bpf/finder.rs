//! Search for the vCPUs of a process, their threads and the guest's memory in the kernel's own data.
//!
//! ```text
//! open file ──▶ kvm_vcpu ──▶ pid ──▶ task_struct           the thread that entered the vCPU last
//!                   └──────▶ kvm ──▶ kvm_memslots          exact ranges of the guest's memory
//! ```
//!
//! The data may change meanwhile. Each step is checked, and what has changed is not found.

use crate::memory::{MemoryLayout, MemoryPiece};

use super::offsets::{FinderOffsets, HostOffsets, SlotOffsets};
use super::refusal::{BpfRefusal, VmList, VmSummary};
use super::shared::RawFile;

/// Beginning of the name of a vCPU's file (`create_vcpu_fd`, virt/kvm/kvm_main.c).
const NAME: &[u8] = b"kvm-vcpu:";
/// Memory slots that are read, at most (KVM_USER_MEM_SLOTS, x86).
const MOST_SLOTS: usize = 32_764;
/// Slots with the same hash, at most.
const MOST_IN_CHAIN: usize = 1_024;
/// Attempts to read the slots while they change.
const ATTEMPTS: usize = 5;
/// Bytes of a guest's page.
const PAGE_SHIFT: u32 = 12;
/// Guest physical addresses have fewer bits than this (MAXPHYADDR, Intel SDM vol. 3, 4.1.4).
const PHYSICAL_BITS: u32 = 52;

/// The kernel's memory.
pub(crate) trait KernelMemory {
    /// Fills `into` from an address of the kernel; `None` if all of that is not mapped.
    fn peek(&self, at: u64, into: &mut [u8]) -> Option<()>;

    /// Returns the word at an address of the kernel.
    fn peek_u64(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.peek(at, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    /// Returns the half word at an address of the kernel.
    fn peek_u32(&self, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.peek(at, &mut bytes).map(|()| u32::from_le_bytes(bytes))
    }
}

/// A machine in the kernel's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelMachine {
    /// Address of its kvm.
    pub kvm: u64,
    /// Its vCPUs, in the order of KVM's numbers.
    pub vcpus: Vec<KernelVcpu>,
    /// Part of its state that is hidden from the host, as a clause.
    pub hidden: Option<&'static str>,
}

/// A vCPU in the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelVcpu {
    /// KVM's number.
    pub number: u32,
    /// The VMM's descriptor.
    pub fd: i32,
    /// Address of its kvm_vcpu.
    pub vcpu: u64,
    /// Address of its machine's kvm.
    pub kvm: u64,
    /// Its thread, if one has entered it.
    pub thread: Option<KernelThread>,
}

/// A thread in the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelThread {
    /// Address of its task_struct.
    pub task: u64,
    /// Time of its start, which distinguishes it from a later thread at the same address.
    pub start: u64,
    pub tid: u32,
    pub pid: u32,
}

/// Ranges of a guest's memory, and the kernel's number of their last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundSlots {
    pub generation: u64,
    pub layout: Option<MemoryLayout>,
}

/// Reader of the kernel's structures.
#[derive(Debug)]
pub(crate) struct KernelReader<'a, M> {
    pub memory: &'a M,
    pub offsets: &'a HostOffsets,
}

/// Returns an address, or `None` for one that is not the kernel's.
fn kernel(address: u64) -> Option<u64> {
    (address >> 63 == 1).then_some(address)
}

impl<M: KernelMemory> KernelReader<'_, M> {
    fn u64(&self, base: u64, offset: u32) -> Option<u64> {
        self.memory.peek_u64(base.checked_add(u64::from(offset))?)
    }

    fn u32(&self, base: u64, offset: u32) -> Option<u32> {
        self.memory.peek_u32(base.checked_add(u64::from(offset))?)
    }

    fn pointer(&self, base: u64, offset: u32) -> Option<u64> {
        self.u64(base, offset).and_then(kernel)
    }

    fn finder(&self) -> &FinderOffsets {
        &self.offsets.finder
    }

    /// Returns the vCPU with this number whose file this is, with the VMM's descriptor; `None` if it is
    /// another file.
    fn vcpu(&self, row: &RawFile, (number, fd): (u32, i32)) -> Option<KernelVcpu> {
        let finder = self.finder();
        let name = self.pointer(self.pointer(row.file, finder.file_dentry)?, finder.dentry_name)?;
        let mut text = [0; 24];
        self.memory.peek(name, &mut text)?;
        let text = text.split(|byte| *byte == 0).next()?;
        if text.strip_prefix(NAME)? != number.to_string().as_bytes() {
            return None;
        }
        let vcpu = self.pointer(row.file, finder.file_private)?;
        if self.u32(vcpu, finder.vcpu_number)? != number {
            return None;
        }
        let kvm = self.pointer(vcpu, finder.vcpu_kvm)?;
        Some(KernelVcpu { number, fd, vcpu, kvm, thread: self.thread(vcpu) })
    }

    /// Returns the thread that entered a vCPU last.
    pub(crate) fn thread(&self, vcpu: u64) -> Option<KernelThread> {
        let (finder, options) = (self.finder(), &self.offsets.options);
        let pid = self.pointer(vcpu, finder.vcpu_pid)?;
        // The first list is that of threads (PIDTYPE_PID).
        let link = self.pointer(pid, finder.pid_tasks)?;
        let task = link.checked_sub(u64::from(finder.task_pid_links))?;
        Some(KernelThread {
            task,
            start: self.u64(task, options.task_start)?,
            tid: self.u32(task, options.task_pid)?,
            pid: self.u32(task, options.task_tgid)?,
        })
    }

    /// Returns what of a vCPU's machine is hidden from the host, by the kernel's own flags.
    fn hidden(&self, vcpu: &KernelVcpu) -> Option<&'static str> {
        let is_set = |base: u64, offset: Option<u32>| {
            let mut flag = [0];
            let at = offset.and_then(|offset| base.checked_add(u64::from(offset)));
            at.is_some_and(|at| self.memory.peek(at, &mut flag).is_some() && flag != [0])
        };
        let finder = self.finder();
        if is_set(vcpu.vcpu, finder.vcpu_protected) {
            return Some("the host's kernel marks its registers as protected");
        }
        is_set(vcpu.kvm, finder.kvm_encrypted).then_some("the host's kernel marks its memory as encrypted")
    }

    /// Returns the kernel's number of the last change of a machine's memory.
    pub(crate) fn generation(&self, kvm: u64) -> Option<u64> {
        let slots = self.pointer(kvm, self.finder().kvm_slots)?;
        let (SlotOffsets::Hashed { generation, .. } | SlotOffsets::Listed { generation, .. }) =
            self.finder().slots;
        self.u64(slots, generation)
    }

    /// Reads the memory slots of a machine.
    pub(crate) fn slots(&self, kvm: u64) -> Option<FoundSlots> {
        for _ in 0..ATTEMPTS {
            let generation = self.generation(kvm)?;
            let slots = self.pointer(kvm, self.finder().kvm_slots)?;
            let pieces = match self.finder().slots {
                SlotOffsets::Hashed { table, heads, active, nodes, .. } => {
                    self.hashed(slots, (table, heads), active, nodes)
                }
                SlotOffsets::Listed { used, slots: list, bytes, .. } => self.listed(slots, used, list, bytes),
            };
            // Two sets of slots take turns: the other one may be in use by now.
            let same = self.generation(kvm) == Some(generation)
                && self.pointer(kvm, self.finder().kvm_slots) == Some(slots);
            if let Some(pieces) = pieces.filter(|_| same) {
                return Some(FoundSlots { generation, layout: MemoryLayout::new(merged(pieces)) });
            }
        }
        None
    }

    fn hashed(
        &self,
        slots: u64,
        (table, heads): (u32, u32),
        active: u32,
        nodes: u32,
    ) -> Option<Vec<MemoryPiece>> {
        // Each slot has a node for each of the two sets (`struct hlist_node`, two pointers).
        let node = nodes.checked_add(self.u32(slots, active)?.min(1) * 16)?;
        let mut bytes = vec![0; usize::try_from(heads).ok()? * 8];
        self.memory.peek(slots.checked_add(u64::from(table))?, &mut bytes)?;
        let mut pieces = Vec::new();
        for head in bytes.chunks_exact(8) {
            let mut next = u64::from_le_bytes(head.try_into().ok()?);
            for _ in 0..MOST_IN_CHAIN {
                let Some(link) = kernel(next) else { break };
                pieces.extend(self.slot(link.checked_sub(u64::from(node))?)?);
                next = self.memory.peek_u64(link)?;
            }
        }
        (pieces.len() <= MOST_SLOTS).then_some(pieces)
    }

    fn listed(&self, slots: u64, used: u32, list: u32, bytes: u32) -> Option<Vec<MemoryPiece>> {
        let used = self.u32(slots, used)?;
        let first = slots.checked_add(u64::from(list))?;
        let mut pieces = Vec::new();
        for index in 0..u64::from(used).min(u64::try_from(MOST_SLOTS).ok()?) {
            pieces.extend(self.slot(first.checked_add(index * u64::from(bytes))?)?);
        }
        Some(pieces)
    }

    /// Reads a slot; the inner `None` is an empty one.
    fn slot(&self, slot: u64) -> Option<Option<MemoryPiece>> {
        let finder = self.finder();
        let guest = self.u64(slot, finder.slot_gfn)?;
        let pages = self.u64(slot, finder.slot_pages)?;
        let host = self.u64(slot, finder.slot_host)?;
        let sound = guest >> (PHYSICAL_BITS - PAGE_SHIFT) == 0 && pages >> (PHYSICAL_BITS - PAGE_SHIFT) == 0;
        if !sound {
            return None;
        }
        let piece = MemoryPiece::new(guest << PAGE_SHIFT, host, pages << PAGE_SHIFT);
        Some((pages > 0).then_some(piece))
    }
}

/// Joins pieces that follow each other in the guest and in the VMM.
fn merged(mut pieces: Vec<MemoryPiece>) -> Vec<MemoryPiece> {
    pieces.sort_unstable();
    let mut joined: Vec<MemoryPiece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.guest.0.checked_add(last.bytes) == Some(piece.guest.0)
                    && last.host.0.checked_add(last.bytes) == Some(piece.host.0) =>
            {
                last.bytes = last.bytes.saturating_add(piece.bytes);
            }
            _ => joined.push(piece),
        }
    }
    joined
}

impl<M: KernelMemory> KernelReader<'_, M> {
    /// Returns the machines whose vCPUs have these numbers and descriptors, by the files of their process, in
    /// the order of their lowest descriptors. A vCPU counts once.
    ///
    /// # Errors
    /// The kernel's data is not as expected.
    pub(crate) fn machines(
        &self,
        files: &[RawFile],
        descriptors: &[(u32, i32)],
    ) -> Result<Vec<KernelMachine>, BpfRefusal> {
        let mut descriptors = descriptors.to_vec();
        descriptors.sort_unstable_by_key(|(_, fd)| *fd);
        let mut machines: Vec<KernelMachine> = Vec::new();
        for (number, fd) in descriptors {
            let row = files.iter().find(|row| i32::try_from(row.fd) == Ok(fd));
            let row = row.ok_or(BpfRefusal::Unknown(number, "it has no file"))?;
            let vcpu =
                self.vcpu(row, (number, fd)).ok_or(BpfRefusal::Unknown(number, "its file is another one"))?;
            let hidden = self.hidden(&vcpu);
            match machines.iter_mut().find(|machine| machine.kvm == vcpu.kvm) {
                Some(machine) if machine.vcpus.iter().any(|known| known.vcpu == vcpu.vcpu) => {}
                Some(machine) => {
                    machine.vcpus.push(vcpu);
                    machine.hidden = machine.hidden.or(hidden);
                }
                None => machines.push(KernelMachine { kvm: vcpu.kvm, vcpus: vec![vcpu], hidden }),
            }
        }
        for machine in &mut machines {
            machine.vcpus.sort_unstable_by_key(|vcpu| vcpu.number);
        }
        Ok(machines)
    }

    /// Returns the machine that is to be profiled: the one with this number, from 1 on, or the only one.
    ///
    /// # Errors
    /// There is no such machine, there are several, or the state of the machine is protected.
    pub(crate) fn choose(
        &self,
        mut machines: Vec<KernelMachine>,
        number: Option<usize>,
    ) -> Result<KernelMachine, BpfRefusal> {
        let index = match number {
            Some(number) => number.wrapping_sub(1),
            None if machines.len() > 1 => return Err(BpfRefusal::SeveralVms(self.list(&machines))),
            None => 0,
        };
        if index >= machines.len() {
            return Err(BpfRefusal::NoSuchVm(number.unwrap_or(1), self.list(&machines)));
        }
        let machine = machines.swap_remove(index);
        machine.hidden.map_or(Ok(machine), |hidden| Err(BpfRefusal::Protected(hidden)))
    }

    fn list(&self, machines: &[KernelMachine]) -> VmList {
        let summary = |machine: &KernelMachine| {
            let layout = self.slots(machine.kvm).and_then(|slots| slots.layout);
            let bytes = |layout: MemoryLayout| {
                layout.pieces().iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes))
            };
            VmSummary { vcpus: machine.vcpus.len(), memory_bytes: layout.map(bytes) }
        };
        VmList(machines.iter().map(summary).collect())
    }
}

#[cfg(test)]
mod tests {
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
        };
        HostOffsets { options: Default::default(), finder }
    }

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
}
