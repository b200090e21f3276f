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
use super::program::KernelPrograms;
use super::refusal::BpfRefusal;
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

/// A vCPU in the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelVcpu {
    /// KVM's number.
    pub number: u32,
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
pub(crate) struct KernelReader<'a> {
    pub programs: &'a KernelPrograms,
    pub offsets: &'a HostOffsets,
}

/// Returns an address, or `None` for one that is not the kernel's.
fn kernel(address: u64) -> Option<u64> {
    (address >> 63 == 1).then_some(address)
}

impl KernelReader<'_> {
    fn u64(&self, base: u64, offset: u32) -> Option<u64> {
        self.programs.peek_u64(base.checked_add(u64::from(offset))?)
    }

    fn u32(&self, base: u64, offset: u32) -> Option<u32> {
        self.programs.peek_u32(base.checked_add(u64::from(offset))?)
    }

    fn pointer(&self, base: u64, offset: u32) -> Option<u64> {
        self.u64(base, offset).and_then(kernel)
    }

    fn finder(&self) -> &FinderOffsets {
        &self.offsets.finder
    }

    /// Returns the vCPU with this number whose file this is; `None` if it is another file.
    pub(crate) fn vcpu(&self, row: &RawFile, number: u32) -> Option<KernelVcpu> {
        let finder = self.finder();
        let name = self.pointer(self.pointer(row.file, finder.file_dentry)?, finder.dentry_name)?;
        let mut text = [0; 24];
        self.programs.peek(name, &mut text)?;
        let text = text.split(|byte| *byte == 0).next()?;
        if text.strip_prefix(NAME)? != number.to_string().as_bytes() {
            return None;
        }
        let vcpu = self.pointer(row.file, finder.file_private)?;
        if self.u32(vcpu, finder.vcpu_number)? != number {
            return None;
        }
        let kvm = self.pointer(vcpu, finder.vcpu_kvm)?;
        Some(KernelVcpu { number, vcpu, kvm, thread: self.thread(vcpu) })
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

    /// Returns true if the registers of a vCPU are hidden from the host.
    pub(crate) fn is_protected(&self, vcpu: u64) -> bool {
        let mut flag = [0];
        let at = self.finder().vcpu_protected.and_then(|offset| vcpu.checked_add(u64::from(offset)));
        at.is_some_and(|at| self.programs.peek(at, &mut flag).is_some() && flag != [0])
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
        self.programs.peek(slots.checked_add(u64::from(table))?, &mut bytes)?;
        let mut pieces = Vec::new();
        for head in bytes.chunks_exact(8) {
            let mut next = u64::from_le_bytes(head.try_into().ok()?);
            for _ in 0..MOST_IN_CHAIN {
                let Some(link) = kernel(next) else { break };
                pieces.extend(self.slot(link.checked_sub(u64::from(node))?)?);
                next = self.programs.peek_u64(link)?;
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

/// Finds the vCPUs with these numbers and descriptors, and reads the memory of their machine.
///
/// # Errors
/// The kernel's data is not as expected, or the machine is protected.
pub(crate) fn find(
    programs: &mut KernelPrograms,
    offsets: &HostOffsets,
    descriptors: &[(u32, i32)],
) -> Result<(Vec<KernelVcpu>, FoundSlots), BpfRefusal> {
    let files = programs.files()?;
    let reader = KernelReader { programs, offsets };
    let mut vcpus = Vec::with_capacity(descriptors.len());
    for (number, fd) in descriptors {
        let row = files.iter().find(|row| i32::try_from(row.fd) == Ok(*fd));
        let row = row.ok_or(BpfRefusal::Unknown(*number, "it has no file"))?;
        let vcpu =
            reader.vcpu(row, *number).ok_or(BpfRefusal::Unknown(*number, "its file is another one"))?;
        if reader.is_protected(vcpu.vcpu) {
            return Err(BpfRefusal::Protected);
        }
        vcpus.push(vcpu);
    }
    let first = vcpus.first().ok_or(BpfRefusal::NoThreads)?;
    if let Some(other) = vcpus.iter().find(|vcpu| vcpu.kvm != first.kvm) {
        return Err(BpfRefusal::Unknown(other.number, "it is another machine's"));
    }
    let slots = reader.slots(first.kvm).ok_or(BpfRefusal::Unknown(first.number, "its memory changes"))?;
    Ok((vcpus, slots))
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
}
