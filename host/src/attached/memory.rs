//! Memory by holder of a machine of another VMM: in the guest, and what of it the host has backed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::Instant;

use attach::{ForeignMemory, MemoryLayout, MemoryPiece};
use guest_linux::{Kernel, MemoryUse, Missing, PhysicalMemory};
use serde::{Deserialize, Serialize};

/// Answer of an attach half about memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MemoryAnswer {
    /// The memory.
    Memory(Box<AttachedMemoryUse>),
    /// It cannot be read; the reason in a sentence.
    Refused(String),
}

/// Memory of an attached machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachedMemoryUse {
    /// Release of the guest's kernel.
    pub kernel: Option<String>,
    /// Memory of the guest by holder.
    pub memory: MemoryUse,
    /// Memory of the host for it; `None` if the VMM is not a process of this machine that may be read.
    pub host: Option<HostMemory>,
    /// Time that the reading took, s.
    pub read_s: f64,
}

/// Memory of the host for a guest's memory, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// Memory of the guest that the VMM has mapped.
    pub mapped: u64,
    /// Pages in the host's memory.
    pub resident: u64,
    /// Pages that the host has swapped out.
    pub swapped: u64,
    /// Resident pages that are parts of huge pages.
    pub huge: u64,
}

/// Reason why a machine's memory cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryUseError {
    /// The guest's kernel is not known.
    #[error("the guest's kernel was not found: it is not Linux, or has not booted yet")]
    NoKernel,
    /// Ctrl-Z cannot be made to wait for the end of a stop.
    #[error("the process inside the sandbox cannot start: {0}")]
    Start(#[source] io::Error),
    /// A part of the guest cannot be read.
    #[error("cannot read the guest's memory by holder: {0}")]
    Missing(#[from] Missing),
}

/// Reads the memory of a guest in a process.
pub(super) fn of_process(
    memory: &ForeignMemory,
    rows: usize,
    smaps: Option<&File>,
) -> Result<AttachedMemoryUse, MemoryUseError> {
    let (kernel, layout) = memory.kernel().zip(memory.layout()).ok_or(MemoryUseError::NoKernel)?;
    let host = smaps.and_then(|smaps| HostMemory::read(&layout, BufReader::new(smaps)).ok());
    read(kernel, memory, rows, host)
}

/// Reads the memory of a guest through a stub: `tables` are CR3 and CR4.LA57 of a vCPU.
pub(super) fn of_stub(
    memory: &impl PhysicalMemory,
    (cr3, five_level): (u64, bool),
    rows: usize,
) -> Result<AttachedMemoryUse, MemoryUseError> {
    let kernel = Kernel::find(memory, cr3, five_level).map_err(|_| MemoryUseError::NoKernel)?;
    read(&kernel, memory, rows, None)
}

fn read(
    kernel: &Kernel,
    memory: &impl PhysicalMemory,
    rows: usize,
    host: Option<HostMemory>,
) -> Result<AttachedMemoryUse, MemoryUseError> {
    let reader = kernel.memory_reader(memory)?;
    let begin = Instant::now();
    let memory = reader.read(memory, rows)?;
    let read_s = begin.elapsed().as_secs_f64();
    Ok(AttachedMemoryUse { kernel: kernel.release().map(str::to_owned), memory, host, read_s })
}

impl HostMemory {
    /// Sums up the mappings of a layout in `/proc/PID/smaps` (proc_pid_smaps(5)).
    fn read(layout: &MemoryLayout, smaps: impl BufRead) -> io::Result<Self> {
        let mut sum = Self::default();
        let mut is_guest = false;
        for line in smaps.lines() {
            let line = line?;
            let mut words = line.split_ascii_whitespace();
            let (Some(first), second) = (words.next(), words.next()) else { continue };
            if let Some(range) = range(first) {
                let overlap = overlap(layout, range);
                is_guest = overlap > 0;
                sum.mapped = sum.mapped.saturating_add(overlap);
            }
            let bytes =
                second.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024);
            if is_guest {
                sum.add(first, bytes);
            }
        }
        Ok(sum)
    }

    fn add(&mut self, field: &str, bytes: u64) {
        let to: &mut [&mut u64] = match field {
            "Rss:" => &mut [&mut self.resident],
            "Swap:" => &mut [&mut self.swapped],
            "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => &mut [&mut self.huge],
            // They are not in Rss.
            "Shared_Hugetlb:" | "Private_Hugetlb:" => &mut [&mut self.resident, &mut self.huge],
            _ => &mut [],
        };
        for sum in to {
            **sum = sum.saturating_add(bytes);
        }
    }
}

/// Returns the addresses of a mapping's first line.
fn range(word: &str) -> Option<(u64, u64)> {
    let (start, end) = word.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    hex(start).zip(hex(end))
}

/// Returns the bytes of a mapping that are guest memory.
fn overlap(layout: &MemoryLayout, (start, end): (u64, u64)) -> u64 {
    let piece = |piece: &MemoryPiece| {
        let (from, to) = (piece.host.0.max(start), piece.host.0.saturating_add(piece.bytes).min(end));
        to.saturating_sub(from)
    };
    layout.pieces().iter().map(piece).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0040000000 rw-p 00000000 00:00 0 
Size:            1048576 kB
Rss:              300000 kB
AnonHugePages:    204800 kB
Swap:               4096 kB
VmFlags: rd wr mr mw me dc ac sd 
7f0040000000-7f0050000000 rw-s 00000000 00:01 77                         /memfd:ram (deleted)
Rss:                   0 kB
Shared_Hugetlb:     8192 kB
7f0060000000-7f0070000000 r--p 00000000 00:00 0 
Rss:                1000 kB
";

    #[test]
    fn only_mappings_of_the_guest_count() {
        let layout = MemoryLayout::new(vec![
            MemoryPiece::new(0, 0x7f00_0000_0000, 0x3000_0000),
            MemoryPiece::new(1 << 32, 0x7f00_3000_0000, 0x1000_0000),
            MemoryPiece::new(1 << 33, 0x7f00_4000_0000, 0x1000_0000),
        ]);
        let host = HostMemory::read(&layout.expect("a layout"), SMAPS.as_bytes()).expect("text");
        let kib = |number: u64| number * 1024;
        let wanted = HostMemory {
            mapped: 0x5000_0000,
            resident: kib(300_000 + 8_192),
            swapped: kib(4096),
            huge: kib(204_800 + 8_192),
        };
        assert_eq!(host, wanted);
    }
}
