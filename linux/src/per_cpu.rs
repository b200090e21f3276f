//! Per-CPU areas of the kernel, and tables of CPUs by APIC id.

use std::sync::OnceLock;

use crate::image::KernelImage;
use crate::kallsyms::table::SymbolTable;
use crate::layout::Layouts;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;
use symbols::PhysAddr;

/// CPUs and APIC ids that are read, at most (x86's own limit, NR_CPUS in arch/x86/Kconfig).
const MAX_CPUS: u32 = 8192;

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
        let known = self.table(view, symbols, layouts, resolve).known.into_iter();
        known.map(|cpu| cpu.map(|cpu| cpu.value)).collect()
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
        let (mut known, mut absent) = (Vec::new(), Vec::new());
        for (cpu, word, value) in resolved {
            match (if has_ids { id(&word) } else { Some(cpu) }, word) {
                (Some(id), _) => {
                    let id = id as usize;
                    if known.len() <= id {
                        known.resize(id + 1, None);
                    }
                    known[id] = Some(KnownCpu { value, id_at: word.map(|word| word.at) });
                }
                (None, Some(word)) => absent.push(AbsentCpu { value, word, id: OnceLock::new() }),
                (None, None) => {}
            }
        }
        CpuTable { known, absent }
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
#[derive(Debug, Clone)]
pub(crate) struct CpuTable<T> {
    known: Vec<Option<KnownCpu<T>>>,
    /// CPUs that had no APIC id when the table was made.
    absent: Vec<AbsentCpu<T>>,
}

/// A CPU with an APIC id, and the place of that.
#[derive(Debug, Clone, Copy)]
struct KnownCpu<T> {
    value: T,
    id_at: Option<PhysAddr>,
}

/// A CPU that may be plugged in later.
#[derive(Debug, Clone)]
struct AbsentCpu<T> {
    value: T,
    word: ApicIdWord,
    /// Its APIC id, once it has one.
    id: OnceLock<u32>,
}

impl<T: Copy> CpuTable<T> {
    /// Returns the value of a CPU that has its APIC id by now. Allocates nothing.
    #[inline]
    pub(crate) fn get(&self, memory: &impl PhysicalMemory, id: usize) -> Option<T> {
        match self.known.get(id) {
            Some(Some(cpu)) => Some(cpu.value),
            _ => self.absent.iter().find(|cpu| cpu.has(memory, id)).map(|cpu| cpu.value),
        }
    }

    /// Returns the address of the APIC id of a CPU that is known.
    pub(crate) fn id_of(&self, id: usize) -> Option<PhysAddr> {
        self.known.get(id).copied().flatten()?.id_at
    }

    /// Returns the CPUs that are known by now, with their APIC ids: ascending, and then those that were
    /// absent.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, T)> {
        let absent = self.absent.iter().filter_map(|cpu| Some((*cpu.id.get()? as usize, cpu.value)));
        let known = (0..).zip(&self.known).filter_map(|(id, cpu)| Some((id, (*cpu)?.value)));
        known.chain(absent)
    }

    /// Makes a table of CPUs that are known.
    #[cfg(test)]
    pub(crate) fn from_known(known: Vec<Option<T>>) -> Self {
        let known = known.into_iter().map(|value| Some(KnownCpu { value: value?, id_at: None }));
        Self { known: known.collect(), absent: Vec::new() }
    }
}

impl<T> AbsentCpu<T> {
    /// Returns true if the CPU has this APIC id. It keeps the first one that it gets.
    fn has(&self, memory: &impl PhysicalMemory, id: usize) -> bool {
        let own = self.id.get().copied().or_else(|| {
            let read = self.word.read(memory)?;
            Some(*self.id.get_or_init(|| read))
        });
        own.is_some_and(|own| own as usize == id)
    }
}
