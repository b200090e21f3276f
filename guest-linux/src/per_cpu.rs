//! Per-CPU areas of the kernel, and tables of CPUs by APIC id.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::image::KernelImage;
use crate::kallsyms::table::SymbolTable;
use crate::layout::Layouts;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;
use symbols::PhysAddr;

/// CPUs and APIC ids that are read, at most (x86's own limit, NR_CPUS in arch/x86/Kconfig).
const MAX_CPUS: u32 = 8192;

/// Absent CPUs whose APIC id one search for another reads, at most: a guest chooses how many it has.
const MAX_PROBED: usize = 64;

/// `__per_cpu_offset[]`: what to add to a per-CPU symbol to get a CPU's own copy.
pub(crate) struct PerCpuAreas {
    offsets: Vec<Option<u64>>,
}

impl PerCpuAreas {
    /// Reads the array. Until `setup_per_cpu_areas` (arch/x86/kernel/setup_percpu.c) has filled it, each
    /// CPU's offset leads to the initial copy, which is in the image. That function fills the array in
    /// ascending order, so the last possible CPU shows that all are done.
    pub(crate) fn new<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: &SymbolTable,
        array: u64,
        variable: u64,
    ) -> Result<Self, Missing> {
        let count =
            symbols.address_of("nr_cpu_ids").and_then(|at| view.u32(at, 0)).unwrap_or(1).clamp(1, MAX_CPUS);
        let ready = |offset: &u64| !Self::is_initial(view.image, offset.wrapping_add(variable));
        let offsets: Vec<Option<u64>> =
            (0..count as usize).map(|cpu| view.u64(array, cpu * 8).filter(ready)).collect();
        match offsets.last() {
            Some(Some(_)) => Ok(Self { offsets }),
            _ => Err(Missing::PerCpuNotReady),
        }
    }

    fn is_initial(image: &KernelImage, address: u64) -> bool {
        image.contains(address)
    }

    /// Returns the offset of each CPU's area.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> {
        self.offsets.iter().flatten().copied()
    }

    /// Returns the address of the first CPU's copy.
    pub(crate) fn first(&self, variable: u64) -> Result<u64, Missing> {
        let offset = self.offsets.iter().flatten().next();
        offset.map(|offset| offset.wrapping_add(variable)).ok_or(Missing::PerCpuNotReady)
    }

    /// Returns the result of `resolve` for each CPU's offset, by APIC id.
    pub(crate) fn by_apic_id<M: PhysicalMemory, T: Copy>(
        &self,
        view: &View<'_, M>,
        symbols: &SymbolTable,
        layouts: &Layouts,
        resolve: impl Fn(u64) -> Option<T>,
    ) -> Vec<Option<T>> {
        let table = self.table(view, symbols, layouts, resolve);
        (0..table.index_of.len()).map(|id| table.known_cpu(id).map(|cpu| cpu.value)).collect()
    }

    /// Returns the result of `resolve` for each CPU's offset. A CPU without an APIC id is absent: it may be
    /// plugged in later. If no CPU has an id, the kernel does not show them, and its own numbers are used.
    pub(crate) fn table<M: PhysicalMemory, T: Copy>(
        &self,
        view: &View<'_, M>,
        symbols: &SymbolTable,
        layouts: &Layouts,
        resolve: impl Fn(u64) -> Option<T>,
    ) -> CpuTable<T> {
        let ids = symbols.address_of("x86_cpu_to_apicid").zip(layouts.apic_id_size);
        let resolved = (0_u32..).zip(&self.offsets).filter_map(|(cpu, &base)| {
            let base = base?;
            let word = ids.and_then(|(map, bytes)| {
                Some(ApicIdWord { at: view.translate(base.wrapping_add(map))?, bytes })
            });
            Some((cpu, word, resolve(base)?))
        });
        let resolved: Vec<_> = resolved.collect();
        let id = |word: &Option<ApicIdWord>| word.and_then(|word| word.read(view.memory));
        let has_ids = resolved.iter().any(|(_, word, _)| id(word).is_some());
        let mut table = CpuTable::default();
        for (cpu, word, value) in resolved {
            table.add(value, word, if has_ids { id(&word) } else { Some(cpu) });
        }
        if !table.absent.is_empty() {
            table.index_of.resize(MAX_CPUS as usize, OnceLock::new());
        }
        table
    }
}

/// Place of a CPU's APIC id in its per-CPU area.
#[derive(Debug, Clone, Copy)]
struct ApicIdWord {
    at: PhysAddr,
    bytes: usize,
}

impl ApicIdWord {
    /// Returns the APIC id, if there is a valid one: all ones mark a CPU that is not there.
    fn read(self, memory: &impl PhysicalMemory) -> Option<u32> {
        let raw = memory.read_u32(self.at)?;
        let id = match self.bytes {
            2 => raw & 0xffff,
            4 => raw,
            _ => return None,
        };
        (id < MAX_CPUS).then_some(id)
    }
}

/// Values of CPUs by APIC id, which is what a VMM numbers its vCPUs by.
#[derive(Debug)]
pub(crate) struct CpuTable<T> {
    /// CPUs in the kernel's order.
    cpus: Vec<Cpu<T>>,
    /// Index in `cpus` by APIC id.
    index_of: Vec<OnceLock<u16>>,
    /// Indexes of CPUs that had no APIC id when the table was made: they may be plugged in later.
    absent: Vec<u16>,
    /// Absent CPU whose APIC id is read next.
    next: AtomicUsize,
}

/// A CPU, and the place of its APIC id.
#[derive(Debug, Clone, Copy)]
struct Cpu<T> {
    value: T,
    id: Option<ApicIdWord>,
}

impl<T> Default for CpuTable<T> {
    fn default() -> Self {
        Self { cpus: Vec::new(), index_of: Vec::new(), absent: Vec::new(), next: AtomicUsize::new(0) }
    }
}

impl<T: Copy> CpuTable<T> {
    /// Adds a CPU, with its APIC id if it has one; one that has neither an id nor a place for it is left out.
    fn add(&mut self, value: T, word: Option<ApicIdWord>, id: Option<u32>) {
        let Ok(index) = u16::try_from(self.cpus.len()) else { return };
        match (id, word) {
            (Some(id), _) => {
                let id = id as usize;
                if self.index_of.len() <= id {
                    self.index_of.resize(id + 1, OnceLock::new());
                }
                self.index_of[id] = OnceLock::from(index);
            }
            (None, Some(_)) => self.absent.push(index),
            (None, None) => return,
        }
        self.cpus.push(Cpu { value, id: word });
    }

    /// Returns the value of a CPU that has its APIC id by now; of many absent CPUs, later calls find it.
    /// Allocates nothing.
    #[inline]
    pub(crate) fn get(&self, memory: &impl PhysicalMemory, id: usize) -> Option<T> {
        if self.known_cpu(id).is_none() {
            self.probe(memory);
        }
        self.known_cpu(id).map(|cpu| cpu.value)
    }

    /// Reads the APIC ids of the next absent CPUs. The first CPU with an id keeps it.
    fn probe(&self, memory: &impl PhysicalMemory) {
        for _ in 0..self.absent.len().min(MAX_PROBED) {
            let index = self.absent[self.next.fetch_add(1, Ordering::Relaxed) % self.absent.len()];
            let word = self.cpus.get(usize::from(index)).and_then(|cpu| cpu.id);
            let id = word.and_then(|word| word.read(memory));
            if let Some(slot) = id.and_then(|id| self.index_of.get(id as usize)) {
                slot.get_or_init(|| index);
            }
        }
    }

    fn known_cpu(&self, id: usize) -> Option<&Cpu<T>> {
        self.cpus.get(usize::from(*self.index_of.get(id)?.get()?))
    }

    /// Returns the address of the APIC id of a CPU that is known.
    pub(crate) fn id_of(&self, id: usize) -> Option<PhysAddr> {
        Some(self.known_cpu(id)?.id?.at)
    }

    /// Returns the CPUs that are known by now, with their APIC ids, ascending.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, T)> {
        (0..self.index_of.len()).filter_map(|id| Some((id, self.known_cpu(id)?.value)))
    }

    /// Makes a table of CPUs that are known.
    #[cfg(test)]
    pub(crate) fn from_known(known: Vec<Option<T>>) -> Self {
        let mut table = Self::default();
        for (id, value) in (0..).zip(known).filter_map(|(id, value)| Some((id, value?))) {
            table.add(value, None, Some(id));
        }
        table
    }
}
