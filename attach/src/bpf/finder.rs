//! Search for the vCPUs of a process, their threads and the guest's memory in the kernel's own data.
//!
//! ```text
//! open file ──▶ kvm_vcpu ──▶ pid ──▶ task_struct           the thread that entered the vCPU last
//!                   └──────▶ kvm ──▶ kvm_memslots          exact ranges of the guest's memory
//! ```
//!
//! The data may change meanwhile. Each step is checked, and what has changed is not found.

mod vcpus;

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
/// Bytes of a copy of words, at most.
const MOST_WORDS: usize = 16 << 10;
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

    /// Reads the words at these offsets in one copy, which costs more than its bytes.
    pub(crate) fn words(&self, base: u64, offsets: impl Iterator<Item = u32> + Clone) -> Option<Vec<u64>> {
        let first = offsets.clone().min()?;
        let end = offsets.clone().max()?.checked_add(8)?;
        let mut bytes = vec![0; usize::try_from(end - first).ok()?.min(MOST_WORDS)];
        self.memory.peek(base.checked_add(u64::from(first))?, &mut bytes)?;
        let word = |offset: u32| {
            let at = usize::try_from(offset - first).ok()?;
            bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        offsets.map(word).collect()
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
mod tests;
