//! Places that a sample reads in the memory of a guest's kernel, for a reader that is not in this process.

use crate::current::CurrentReader;
use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::stack::StackReader;
use symbols::{PhysAddr, VirtAddr};

/// Part of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StructurePart {
    /// Bytes from its start.
    pub offset: usize,
    /// Size, bytes.
    pub bytes: usize,
}

/// Addresses and offsets of what [`CurrentReader::read`] and [`StackReader::copy`] read of a vCPU, so that
/// another reader copies it beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleReads {
    /// Page tables of the kernel.
    pub kernel_root: PhysAddr,
    /// The page tables have five levels.
    pub five_level: bool,
    /// Address that the page tables of a vCPU in kernel code map: that of the kernel's banner.
    pub identity: Option<VirtAddr>,
    /// The vCPU's APIC id, which is read of a vCPU that was plugged in after the reader was made.
    pub apic_id: Option<PhysAddr>,
    /// The vCPU's preempt count.
    pub preempt_count: PhysAddr,
    /// Pointer to the vCPU's current task.
    pub current_task: PhysAddr,
    /// Pointer to the top of the vCPU's interrupt stack.
    pub irq_stack: Option<PhysAddr>,
    /// The vCPU's TSS, 104 bytes.
    pub tss: Option<PhysAddr>,
    /// Virtual address of physical address 0.
    pub direct_map: u64,
    /// The task that is not in the direct map, and its address.
    pub init_task: (u64, PhysAddr),
    /// Parts of the current task.
    pub task: Vec<StructurePart>,
    /// Offset in a task of the pointer to its process's leader.
    pub task_leader: usize,
    /// Parts of the leader.
    pub leader: Vec<StructurePart>,
    /// Offset in a task of the pointer to the lowest address of its stack.
    pub task_stack: usize,
    /// Offsets of the pointers from a task to its memory, and from there to its page tables.
    pub page_tables: Option<(usize, usize)>,
    /// Size of a task's stack, bytes.
    pub stack_bytes: u64,
    /// Size of an interrupt stack, bytes.
    pub irq_stack_bytes: u64,
    /// Bytes above the registers that are saved at the top of a task's stack.
    pub padding: u64,
}

impl Kernel {
    /// Returns the places that a sample reads of each of these vCPUs, by APIC id, once the per-CPU areas are
    /// set up; `None` for one that the kernel has not.
    ///
    /// # Errors
    /// The reason; [`Missing::may_come`] is true if a later attempt may succeed.
    pub fn sample_reads(
        &self,
        memory: &impl PhysicalMemory,
        cpus: &[usize],
    ) -> Result<Vec<Option<SampleReads>>, Missing> {
        let current = self.current_reader(memory)?;
        let stacks = self.stack_reader(memory)?;
        Ok(cpus.iter().map(|cpu| self.reads_of(memory, &current, &stacks, *cpu)).collect())
    }

    fn reads_of(
        &self,
        memory: &impl PhysicalMemory,
        current: &CurrentReader,
        stacks: &StackReader,
        cpu: usize,
    ) -> Option<SampleReads> {
        let (preempt_count, current_task) = current.addresses_of(memory, cpu)?;
        let (irq_stack, tss) = stacks.addresses_of(memory, cpu);
        let (direct_map, init_task) = current.task_addresses();
        let (task, task_leader, leader) = current.task_parts();
        let layout = stacks.layout();
        let space = self.address_space();
        Some(SampleReads {
            kernel_root: space.root(),
            five_level: space.five_level(),
            identity: self.identity().map(|identity| identity.address()),
            apic_id: current.apic_id_of(cpu),
            preempt_count,
            current_task,
            irq_stack,
            tss,
            direct_map,
            init_task,
            task,
            task_leader,
            leader,
            task_stack: layout.stack,
            page_tables: layout.mm.as_ref().map(|layout| (layout.mm, layout.pgd)),
            stack_bytes: layout.size,
            irq_stack_bytes: layout.irq_size,
            padding: stacks.padding(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::fixture::{Config, Style};
    use crate::memory::FlatMemory;

    /// Memory that notes what is read.
    struct NotingMemory<'a>(&'a FlatMemory<Vec<u8>>, RefCell<Vec<(u64, usize)>>);

    impl PhysicalMemory for NotingMemory<'_> {
        fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
            self.1.borrow_mut().push((at.0, into.len()));
            self.0.read(at, into)
        }
    }

    #[test]
    fn every_read_of_the_current_task_is_announced() {
        for style in [Style::V6_1, Style::V6_12, Style::V6_15] {
            let guest = Config::new(style).build();
            let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).unwrap();
            let reader = kernel.current_reader(&guest.memory).unwrap();
            let cpus: Vec<_> = reader.cpus().collect();
            let Ok(all) = kernel.sample_reads(&guest.memory, &cpus) else { continue };
            for (cpu, reads) in cpus.into_iter().zip(&all) {
                let reads = reads.as_ref().unwrap();
                let memory = NotingMemory(&guest.memory, RefCell::default());
                reader.read(&memory, cpu).unwrap();
                let word = |at: PhysAddr| guest.memory.read_u64(at).unwrap();
                let direct = |task: u64| match task {
                    task if task == reads.init_task.0 => reads.init_task.1.0,
                    task => task - reads.direct_map,
                };
                let task = direct(word(reads.current_task));
                let leader = direct(word(PhysAddr(task + reads.task_leader as u64)));
                let parts = |base: u64, parts: &[StructurePart]| {
                    parts.iter().map(|p| (base + p.offset as u64, p.bytes)).collect::<Vec<_>>()
                };
                let mut announced = vec![(reads.preempt_count.0, 4), (reads.current_task.0, 8)];
                announced.extend(parts(task, &reads.task));
                announced.extend(parts(leader, &reads.leader));
                for (at, bytes) in memory.1.into_inner() {
                    let within = |(from, length): &(u64, usize)| {
                        *from <= at && at + bytes as u64 <= from + *length as u64
                    };
                    assert!(announced.iter().any(within), "{bytes} bytes at {at:#x}: {announced:x?}");
                }
            }
        }
    }
}
