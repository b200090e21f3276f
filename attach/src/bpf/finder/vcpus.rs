//! vCPUs of a known machine, and the states of their threads.
//!
//! ```text
//! kvm ──▶ vcpu_array: struct xarray ──▶ kvm_vcpu ──▶ pid ──▶ task_struct
//! ```

use kvm_bindings::KVM_EXIT_HLT;
use vmm::ThreadTimes;

use super::{KernelMemory, KernelReader, KernelThread, kernel};
use crate::bpf::offsets::VcpuListOffsets;

/// Offset of the exit reason in the run page (`struct kvm_run`, include/uapi/linux/kvm.h).
const EXIT_REASON: u64 = 8;
/// Kind of an entry of a tree, and the kind that is a node (`xa_is_internal`, include/linux/xarray.h).
const ENTRY_KIND: u64 = 3;
const NODE: u64 = 2;
/// Entries of a node of a tree, at most (XA_CHUNK_SIZE).
const MOST_ENTRIES: u32 = 64;

impl<M: KernelMemory> KernelReader<'_, M> {
    /// Returns the addresses of the first `most` vCPUs of a machine, in the order in which they were made,
    /// and one more if there are more. `None` if this kernel lists them in an unknown way.
    pub(crate) fn vcpus_of(&self, kvm: u64, most: usize) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        match self.finder().vcpu_list? {
            VcpuListOffsets::Tree { head, .. } => {
                self.add_entries(self.u64(kvm, head)?, None, most, &mut found)?;
            }
            VcpuListOffsets::Array { vcpus, count } => {
                found = self.addresses(kvm, vcpus, count)?.into_iter().filter_map(kernel).collect();
            }
        }
        found.truncate(most.saturating_add(1));
        Some(found)
    }

    /// Adds the vCPUs below an entry of a tree. The nodes above it have larger shifts than `above`.
    fn add_entries(&self, entry: u64, above: Option<u8>, most: usize, found: &mut Vec<u64>) -> Option<()> {
        let VcpuListOffsets::Tree { shift, slots, count, .. } = self.finder().vcpu_list? else { return None };
        if entry & ENTRY_KIND != NODE {
            found.extend(kernel(entry));
            return Some(());
        }
        // Other entries of this kind are marks of the tree's own.
        let Some(node) = kernel(entry - NODE) else { return Some(()) };
        let mut own = [0];
        self.memory.peek(node.checked_add(u64::from(shift))?, &mut own)?;
        let [own] = own;
        if above.is_some_and(|above| own >= above) {
            return None;
        }
        for entry in self.addresses(node, slots, count.min(MOST_ENTRIES))? {
            if found.len() > most {
                break;
            }
            self.add_entries(entry, Some(own), most, found)?;
        }
        Some(())
    }

    /// Reads an array of addresses, at most a page.
    fn addresses(&self, base: u64, offset: u32, count: u32) -> Option<Vec<u64>> {
        let mut bytes = vec![0; usize::try_from(count.min(512)).ok()? * 8];
        self.memory.peek(base.checked_add(u64::from(offset))?, &mut bytes)?;
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        bytes.chunks_exact(8).map(word).collect()
    }

    /// Returns KVM's number and the thread of a vCPU of a machine, once a thread has entered it.
    pub(crate) fn entered(&self, kvm: u64, vcpu: u64) -> Option<(u32, KernelThread)> {
        let finder = self.finder();
        let number = self.u32(vcpu, finder.vcpu_number)?;
        (self.pointer(vcpu, finder.vcpu_kvm)? == kvm).then_some(())?;
        let thread = self.thread(vcpu)?;
        self.is_alive(thread).then_some((number, thread))
    }

    /// Returns true if the thread has not ended. The memory of one that has ended stays as it was for some
    /// time; later another thread may have it, with another start.
    pub(crate) fn is_alive(&self, thread: KernelThread) -> bool {
        let options = &self.offsets.options;
        self.u64(thread.task, options.task_start) == Some(thread.start)
            && self.u32(thread.task, options.task_exit) == Some(0)
    }

    /// Returns true if the VMM keeps a vCPU out of the guest, and not because the vCPU has halted; `None` if
    /// the vCPU's thread has ended.
    pub(crate) fn is_kept_out(&self, vcpu: u64, thread: KernelThread) -> Option<bool> {
        let options = &self.offsets.options;
        let has_cpu = self.u32(thread.task, options.task_on_cpu)? != 0;
        let blocked = !has_cpu && self.u32(thread.task, options.task_state)? != 0;
        let notified = self.u64(thread.task, options.task_notifiers)?;
        let in_run = Some(notified) == vcpu.checked_add(u64::from(options.vcpu_notifier));
        let run = self.pointer(vcpu, options.vcpu_run)?;
        let halted = self.memory.peek_u32(run.checked_add(EXIT_REASON)?)? == KVM_EXIT_HLT;
        self.is_alive(thread).then_some(blocked && !in_run && !halted)
    }

    /// Returns the times of a thread by the scheduler; `None` once its memory is another's.
    pub(crate) fn times(&self, thread: KernelThread) -> Option<ThreadTimes> {
        let options = &self.offsets.options;
        let members = [self.finder().task_ran, options.task_delay, options.task_start];
        let words = self.words(thread.task, members.into_iter())?;
        let [run_ns, waited_ns, start] = words[..] else { return None };
        (start == thread.start).then_some(ThreadTimes { run_ns, waited_ns })
    }
}
