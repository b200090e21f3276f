//! Code heaps: from an address to the blob that it is in.

use symbols::VirtAddr;

use super::layout::HeapLayout;
use crate::ProcessMemory;

/// Heaps of a process, at most (JDK 11 to 25: 3).
const MAX_HEAPS: u64 = 16;
/// Bits of the size of a segment, at most (JDK 11 to 25: 6 to 12).
const MAX_SEGMENT_BITS: u64 = 20;
/// Mark of a segment that no block uses (src/hotspot/share/memory/heap.hpp).
const FREE: u8 = 0xff;
/// Steps to the first segment of a block, at most: each is up to 254 segments.
const MAX_STEPS: usize = 16_384;

/// A code heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CodeHeap {
    low: VirtAddr,
    /// End of the reserved part.
    end: VirtAddr,
    /// Segment map: a byte for each segment.
    segments: VirtAddr,
    log2_segment: u32,
}

/// Memory of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlobMemory {
    /// Address of the `CodeBlob`.
    pub start: VirtAddr,
    /// Bytes of its block from there on.
    pub size: u64,
}

/// Reads the heaps of a process.
pub(super) fn read_heaps(memory: &impl ProcessMemory, layout: &HeapLayout) -> Option<Vec<CodeHeap>> {
    let array = VirtAddr(memory.read_u64(layout.heaps)?);
    let count = layout.length.read(memory, array).filter(|&count| count <= MAX_HEAPS)?;
    let data = layout.data.pointer(memory, array)?;
    let heaps = (0..count).map(|number| {
        let heap = VirtAddr(memory.read_u64(data.checked_add(number * 8)?)?);
        let space = heap.checked_add(layout.memory.into())?;
        let map = heap.checked_add(layout.segments.into())?;
        let log2_segment = layout.log2_segment.read(memory, heap);
        let log2_segment = log2_segment.filter(|&bits| bits <= MAX_SEGMENT_BITS)?;
        Some(CodeHeap {
            low: layout.low.pointer(memory, space)?,
            end: layout.end.pointer(memory, space)?,
            segments: layout.low.pointer(memory, map)?,
            log2_segment: u32::try_from(log2_segment).ok()?,
        })
    });
    heaps.collect::<Option<Vec<_>>>().filter(|heaps| !heaps.is_empty())
}

impl CodeHeap {
    /// Returns true if the heap may have code at `at`.
    pub(super) fn contains(&self, at: VirtAddr) -> bool {
        (self.low..self.end).contains(&at)
    }

    /// Returns the memory of the blob with code at `at`.
    pub(super) fn find(
        &self,
        memory: &impl ProcessMemory,
        layout: &HeapLayout,
        at: VirtAddr,
    ) -> Option<BlobMemory> {
        let mut segment = at.offset_from(self.low)? >> self.log2_segment;
        for _ in 0..MAX_STEPS {
            let mut mark = [0];
            memory.read(self.segments.checked_add(segment)?, &mut mark)?;
            match mark {
                [FREE] => return None,
                [0] => return self.block(memory, layout, segment),
                [step] => segment = segment.checked_sub(step.into())?,
            }
        }
        None
    }

    fn block(&self, memory: &impl ProcessMemory, layout: &HeapLayout, segment: u64) -> Option<BlobMemory> {
        let block = self.low.checked_add(segment << self.log2_segment)?;
        layout.block_used.read(memory, block).filter(|&used| used != 0)?;
        let segments = layout.block_length.read(memory, block)?;
        let size = segments.checked_mul(1 << self.log2_segment)?;
        let header = u64::from(layout.block_size);
        // A heap has 2 GiB at most (CODE_CACHE_SIZE_LIMIT).
        let size = size.checked_sub(header).filter(|_| segments < 1 << 31)?;
        Some(BlobMemory { start: block.checked_add(header)?, size })
    }
}
