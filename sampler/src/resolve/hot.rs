//! The code of the functions that were hit most, kept in the profile for `vprof annotate`: the kernel's as
//! patched at run time, and programs' without their files.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use guest_linux::VirtAddr;
use symbols::LinkAddr;

use super::frames::KernelNames;
use super::walker::{FileEntry, GuestSource};
use profile::rows::{CodeRow, CodeSource};

/// Functions of the kernel whose code is kept, and functions of programs, at most.
const KEPT: usize = 256;
/// Bytes of one function, at most.
pub(crate) const MAX_BYTES: u64 = 64 << 10;
/// Alignment of the kernel's functions (`CONFIG_FUNCTION_ALIGNMENT`, 16 on x86-64 distributions).
const ALIGNMENT: u64 = 16;
/// Addresses that are counted, at most; beyond that new ones are left out.
const COUNTED: usize = 1 << 18;

/// Counts of hits by address.
#[derive(Debug, Default)]
pub(super) struct HitCounts {
    kernel: HashMap<VirtAddr, u64>,
    /// By file row id and address in the file.
    files: HashMap<(u32, LinkAddr), (Arc<FileEntry>, u64)>,
}

impl HitCounts {
    /// Counts a hit of kernel code.
    pub(super) fn kernel(&mut self, address: VirtAddr) {
        if self.kernel.len() < COUNTED || self.kernel.contains_key(&address) {
            *self.kernel.entry(address).or_default() += 1;
        }
    }

    /// Counts a hit of a program's code.
    pub(super) fn file(&mut self, file: &Arc<FileEntry>, address: LinkAddr) {
        let key = (file.id(), address);
        if self.files.len() < COUNTED || self.files.contains_key(&key) {
            self.files.entry(key).or_insert_with(|| (Arc::clone(file), 0)).1 += 1;
        }
    }

    /// Returns the code of the kernel's functions that were hit most.
    pub(super) fn kernel_code(&self, source: &GuestSource, names: &dyn KernelNames) -> Vec<CodeRow> {
        let mut functions: HashMap<VirtAddr, u64> = HashMap::new();
        for (&address, &count) in &self.kernel {
            if let Some(name) = names.name(address).filter(|name| name.symbol.is_some()) {
                *functions.entry(VirtAddr(address.0.wrapping_sub(name.offset))).or_default() += count;
            }
        }
        most(functions).into_iter().filter_map(|start| kernel_function(start, source, names)).collect()
    }

    /// Returns the files and addresses of the programs' functions that were hit most.
    pub(super) fn programs(&self) -> Vec<(Arc<FileEntry>, LinkAddr)> {
        let mut functions: HashMap<(u32, LinkAddr), (Arc<FileEntry>, LinkAddr, u64)> = HashMap::new();
        for (&(id, address), (file, count)) in &self.files {
            let start = file.function_range(address).map_or(address, |(start, _)| start);
            functions.entry((id, start)).or_insert_with(|| (Arc::clone(file), address, 0)).2 += count;
        }
        let mut functions: Vec<_> = functions.into_values().collect();
        functions.sort_by_key(|(file, address, count)| (Reverse(*count), file.id(), *address));
        functions.into_iter().take(KEPT).map(|(file, address, _)| (file, address)).collect()
    }
}

/// Returns the keys with the highest counts.
fn most(counts: HashMap<VirtAddr, u64>) -> Vec<VirtAddr> {
    let mut counts: Vec<(VirtAddr, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|&(key, count)| (Reverse(count), key));
    counts.into_iter().take(KEPT).map(|(key, _)| key).collect()
}

/// Returns the code of the function at `start`, up to where another one starts.
fn kernel_function(
    VirtAddr(start): VirtAddr,
    source: &GuestSource,
    names: &dyn KernelNames,
) -> Option<CodeRow> {
    let own = names.name(VirtAddr(start))?;
    let same = |at: &u64| {
        names
            .name(VirtAddr(*at))
            .is_some_and(|name| name.symbol == own.symbol && at.wrapping_sub(name.offset) == start)
    };
    let steps =
        (1..=MAX_BYTES / ALIGNMENT).map(|step| start.saturating_add(step * ALIGNMENT) & !(ALIGNMENT - 1));
    let end = steps.take_while(same).last().unwrap_or(start) | (ALIGNMENT - 1);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?.checked_add(1)?).ok()?];
    source.kernel.address_space().read(&source.memory, VirtAddr(start), &mut bytes)?;
    Some(CodeRow { start, file: None, module: own.module, bytes, read: CodeSource::Memory })
}
