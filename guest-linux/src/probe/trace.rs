//! Tracers of a function, by the records of the kernel's function tracer.

use super::site::ProbeSites;
use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use symbols::PhysAddr;
use symbols::bytes::index;

/// The count of tracers in `dyn_ftrace.flags`: its lowest 19 to 23 bits (`FTRACE_REF_MAX`,
/// include/linux/ftrace.h, Linux 5.10 to 6.12), of which no kernel needs so many.
const COUNT: u64 = 0xffff;
/// Groups of records, and records, at most: a kernel of Debian's has 400 of 50,000.
const MAX_GROUPS: usize = 1 << 16;
const MAX_RECORDS: u64 = 1 << 20;
/// Bytes of records that are read at once.
const BLOCK: usize = 4096;

impl Kernel {
    /// Returns the addresses at which the function tracer counts the tracers of the functions whose no-ops
    /// are at `sites`, in any order.
    pub(super) fn trace_counts(
        &self,
        memory: &impl PhysicalMemory,
        sites: &[u64],
    ) -> Result<Vec<PhysAddr>, Missing> {
        let layouts = self.layouts.as_ref().map_err(Clone::clone)?;
        let layout = layouts.trace.as_ref().map_err(Clone::clone)?;
        let unreadable = || Missing::Unreadable("the function tracer's list of functions".to_owned());
        let view = self.view(memory);
        let mut group = view.u64(self.symbol("ftrace_pages_start")?, 0).ok_or_else(unreadable)?;
        let mut found = Vec::with_capacity(sites.len());
        for _ in 0..MAX_GROUPS {
            if group == 0 || found.len() == sites.len() {
                break;
            }
            let count = view.u32(group, layout.count).map(u64::from).filter(|count| *count <= MAX_RECORDS);
            let records = view.u64(group, layout.records).zip(count);
            let (records, count) = records.ok_or_else(unreadable)?;
            let mut left = index(count).saturating_mul(layout.record);
            let mut at = records;
            let mut block = [0; BLOCK];
            while left > 0 {
                let bytes =
                    block.get_mut(..left.min(BLOCK - BLOCK % layout.record)).ok_or_else(unreadable)?;
                view.read(at, bytes).ok_or_else(unreadable)?;
                for (record, at) in bytes.chunks_exact(layout.record).zip((at..).step_by(layout.record)) {
                    let ip = record.get(layout.ip..).and_then(|bytes| bytes.first_chunk());
                    if ip.is_some_and(|ip| sites.contains(&u64::from_le_bytes(*ip))) {
                        let flags = at.checked_add(layout.flags as u64).and_then(|at| view.translate(at));
                        found.push(flags.ok_or_else(unreadable)?);
                    }
                }
                left -= bytes.len();
                at = at.checked_add(bytes.len() as u64).ok_or_else(unreadable)?;
            }
            group = view.u64(group, layout.next).ok_or_else(unreadable)?;
        }
        if found.len() == sites.len() { Ok(found) } else { Err(unreadable()) }
    }
}

impl ProbeSites {
    /// Returns true if a function that has a site is traced, or is about to be traced; also where that cannot
    /// be read.
    pub(super) fn are_traced(&self, memory: &impl PhysicalMemory) -> bool {
        are_traced(&self.traced, memory)
    }
}

/// Returns true if one of these counts of tracers is not 0, or cannot be read.
pub(super) fn are_traced(counts: &[PhysAddr], memory: &impl PhysicalMemory) -> bool {
    counts.iter().any(|at| memory.read_u64(*at).is_none_or(|flags| flags & COUNT != 0))
}
