//! The kernel image as it is mapped: where it is and how to read it.
//!
//! Linux maps itself into `0xffffffff80000000..0xffffffffc0000000` (Documentation/arch/x86/x86_64/mm.rst),
//! at a place that KASLR picks. Parts of it may be unmapped (freed sections), so it is a list of
//! extents. Only what is mapped is ever scanned: the rest of RAM also holds dead copies.

use std::ops::ControlFlow;

use crate::memory::PhysicalMemory;
use crate::paging::{AddressSpace, MappedPage};
use symbols::bytes::index;
use symbols::{PhysAddr, VirtAddr};

/// First address of the region in which the kernel maps its image (`__START_KERNEL_map`).
pub(crate) const REGION_START: u64 = 0xffff_ffff_8000_0000;
/// Last address of that region; modules are above it when CONFIG_RANDOMIZE_BASE is set.
pub(crate) const REGION_LAST: u64 = 0xffff_ffff_bfff_ffff;
/// A hole this large ends the image: without CONFIG_RANDOMIZE_BASE modules share the region, but are at least
/// 256 MiB above it.
const MAX_HOLE: u64 = 32 << 20;
/// Bytes of image that are read, at most. Distribution kernels map 40 to 90 MiB.
const MAX_BYTES: u64 = 256 << 20;
/// Extents of the image, at most; a kernel has fewer than ten.
const MAX_EXTENTS: usize = 1024;
/// Fewer bytes are not a kernel, only what a user's page tables show of one.
const MIN_BYTES: u64 = 1 << 20;
/// Bytes searched at a time.
const CHUNK: usize = 64 << 10;

/// A run of the image that is contiguous in virtual and physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ImageExtent {
    virt: u64,
    phys: u64,
    len: u64,
}

/// The mapped kernel image: at least one extent, ascending, without overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelImage {
    extents: Vec<ImageExtent>,
    bytes: u64,
}

impl KernelImage {
    /// Walks the page tables of `space` for a kernel image; `None` when there is none.
    pub(crate) fn find(memory: &impl PhysicalMemory, space: &AddressSpace) -> Option<Self> {
        let mut image = KernelImage { extents: Vec::new(), bytes: 0 };
        let _ = space.pages(memory, (REGION_START, REGION_LAST), &mut |page| image.add(page));
        (image.bytes >= MIN_BYTES).then_some(image)
    }

    /// Returns an image at `virt` whose bytes start with physical memory.
    #[cfg(feature = "fixture")]
    pub(crate) fn from_range(virt: u64, len: u64) -> Self {
        KernelImage { extents: vec![ImageExtent { virt, phys: 0, len }], bytes: len }
    }

    /// Takes one more page; breaks when the image has ended.
    fn add(&mut self, page: MappedPage) -> ControlFlow<()> {
        // A 1 GiB page would start at the region's start: no kernel maps itself so.
        if page.virt < REGION_START || page.virt.saturating_add(page.size - 1) > REGION_LAST {
            return ControlFlow::Break(());
        }
        if self.bytes.saturating_add(page.size) > MAX_BYTES {
            return ControlFlow::Break(());
        }
        let full = self.extents.len() == MAX_EXTENTS;
        match self.extents.last_mut() {
            Some(last) if page.virt - (last.virt + last.len) > MAX_HOLE => {
                return ControlFlow::Break(());
            }
            Some(last) if last.virt + last.len == page.virt && last.phys + last.len == page.phys => {
                last.len += page.size;
            }
            _ if full => return ControlFlow::Break(()),
            _ => self.extents.push(ImageExtent { virt: page.virt, phys: page.phys, len: page.size }),
        }
        self.bytes += page.size;
        ControlFlow::Continue(())
    }

    /// Returns the bytes that are mapped.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the first address and the one after the last.
    pub(crate) fn range(&self) -> (u64, u64) {
        let start = self.extents.first().map_or(0, |e| e.virt);
        let end = self.extents.last().map_or(0, |e| e.virt + e.len);
        (start, end)
    }

    /// True between the first and the last mapped address.
    pub(crate) fn contains(&self, virt: u64) -> bool {
        let (start, end) = self.range();
        (start..end).contains(&virt)
    }

    fn extent_of(&self, virt: u64) -> Option<&ImageExtent> {
        let after = self.extents.partition_point(|e| e.virt <= virt);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        (virt - extent.virt < extent.len).then_some(extent)
    }

    /// Returns the physical address of a mapped address of the image.
    pub(crate) fn translate(&self, virt: u64) -> Option<PhysAddr> {
        let extent = self.extent_of(virt)?;
        PhysAddr(extent.phys).checked_add(virt - extent.virt)
    }

    /// Fills `into` from `virt`; `None` unless all of it is mapped.
    pub(crate) fn read(&self, memory: &impl PhysicalMemory, virt: u64, into: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < into.len() {
            let at = virt.checked_add(done as u64)?;
            let extent = self.extent_of(at)?;
            let count = index(extent.virt + extent.len - at).min(into.len() - done);
            let phys = PhysAddr(extent.phys).checked_add(at - extent.virt)?;
            memory.read(phys, &mut into[done..done + count])?;
            done += count;
        }
        Some(())
    }

    /// Returns the bytes of `start..end`, all mapped, or `None`; the caller bounds the length.
    pub(crate) fn bytes(&self, memory: &impl PhysicalMemory, (start, end): (u64, u64)) -> Option<Vec<u8>> {
        let len = end.checked_sub(start)?;
        // The length is checked against what is mapped before it is allocated.
        if len > self.bytes {
            return None;
        }
        let mut bytes = vec![0; index(len)];
        self.read(memory, start, &mut bytes)?;
        Some(bytes)
    }

    /// Reads a little-endian u64.
    pub(crate) fn u64(&self, memory: &impl PhysicalMemory, virt: u64) -> Option<u64> {
        let mut b = [0; 8];
        self.read(memory, virt, &mut b)?;
        Some(u64::from_le_bytes(b))
    }

    /// Offers the virtual address of every occurrence of `needle` to `accept`, in ascending order,
    /// until it returns something. `needle` has 1 to 255 bytes.
    pub(crate) fn search<T>(
        &self,
        memory: &impl PhysicalMemory,
        needle: &[u8],
        mut accept: impl FnMut(u64) -> Option<T>,
    ) -> Option<T> {
        let skips = SkipTable::new(needle);
        let overlap = needle.len() - 1;
        let mut buffer = vec![0; CHUNK + overlap];
        for extent in &self.extents {
            let mut at = 0;
            while at < extent.len {
                let count = index(extent.len - at).min(buffer.len());
                let chunk = &mut buffer[..count];
                let Some(phys) = extent.phys.checked_add(at) else {
                    break;
                };
                if memory.read(PhysAddr(phys), chunk).is_some() {
                    let mut from = 0;
                    while let Some(found) = skips.find(needle, chunk, from) {
                        if let Some(accepted) = accept(extent.virt + at + found as u64) {
                            return Some(accepted);
                        }
                        from = found + 1;
                    }
                }
                at += CHUNK as u64;
            }
        }
        None
    }

    /// Returns the start and end for the public interface.
    pub(crate) fn public_range(&self) -> (VirtAddr, VirtAddr) {
        let (start, end) = self.range();
        (VirtAddr(start), VirtAddr(end))
    }
}

/// Horspool's search: how far the window moves by its last byte.
struct SkipTable([u8; 256]);

impl SkipTable {
    fn new(needle: &[u8]) -> Self {
        let len = u8::try_from(needle.len()).unwrap_or(u8::MAX);
        let mut skips = [len; 256];
        for (skip, &byte) in (1..len).rev().zip(needle) {
            skips[usize::from(byte)] = skip;
        }
        Self(skips)
    }

    fn find(&self, needle: &[u8], hay: &[u8], mut from: usize) -> Option<usize> {
        loop {
            let window = hay.get(from..from + needle.len())?;
            if window == needle {
                return Some(from);
            }
            from += usize::from(self.0[usize::from(*window.last()?)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FlatMemory;
    use proptest::prelude::*;

    fn image(extents: &[(u64, u64, u64)]) -> KernelImage {
        let extents: Vec<_> =
            extents.iter().map(|&(virt, phys, len)| ImageExtent { virt, phys, len }).collect();
        let bytes = extents.iter().map(|e| e.len).sum();
        KernelImage { extents, bytes }
    }

    fn page(virt: u64, phys: u64, size: u64) -> MappedPage {
        MappedPage { virt, phys, size }
    }

    #[test]
    fn pages_join_to_extents_until_a_large_hole() {
        let mut i = image(&[]);
        let v = REGION_START + (16 << 20);
        let two = 2 << 20;
        assert!(i.add(page(v, 0x20_0000, two)).is_continue());
        assert!(i.add(page(v + two, 0x40_0000, two)).is_continue());
        assert!(i.add(page(v + 3 * two, 0x80_0000, 4096)).is_continue());
        assert!(i.add(page(v + (256 << 20), 0, 4096)).is_break());
        assert_eq!(i, image(&[(v, 0x20_0000, 2 * two), (v + 3 * two, 0x80_0000, 4096)]));
        assert_eq!(i.range(), (v, v + 3 * two + 4096));
    }

    #[test]
    fn an_image_is_bounded() {
        let mut i = image(&[]);
        let mut pages = 0u64;
        // Every page on its own: the extents run out.
        while i.add(page(REGION_START + pages * 4096, 0, 4096)).is_continue() {
            pages += 1;
        }
        assert_eq!(pages, MAX_EXTENTS as u64);
        let mut i = image(&[]);
        let mut pages = 0u64;
        let two = 2 << 20;
        while i.add(page(REGION_START + pages * two, pages * two, two)).is_continue() {
            pages += 1;
        }
        assert_eq!(pages * two, MAX_BYTES);
        assert!(image(&[]).add(page(REGION_START, 0, 1 << 30)).is_break());
    }

    #[test]
    fn reads_cross_extents_but_no_holes() {
        let memory = FlatMemory((0..64u8).collect::<Vec<_>>());
        let i = image(&[(100, 0, 8), (108, 32, 8), (120, 16, 8)]);
        let mut four = [0; 4];
        assert_eq!(i.read(&memory, 106, &mut four), Some(()));
        assert_eq!(four, [6, 7, 32, 33]);
        assert_eq!(i.read(&memory, 114, &mut four), None);
        assert_eq!(i.translate(116), None);
        assert_eq!(i.translate(121), Some(PhysAddr(17)));
        assert_eq!(i.translate(99), None);
        assert_eq!(i.bytes(&memory, (100, 100 + (1 << 40))), None);
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_plain_one_finds(
            mut hay in prop::collection::vec(0u8..3, 0..300),
            needle in prop::collection::vec(0u8..3, 1..6),
        ) {
            let plain: Vec<_> = hay.windows(needle.len()).enumerate()
                .filter(|(_, w)| *w == needle).map(|(i, _)| i as u64).collect();
            let len = hay.len() as u64;
            hay.push(0);
            let i = image(&[(0, 0, len)]);
            let mut found = Vec::new();
            let none = i.search(&FlatMemory(hay), &needle, |at| {
                found.push(at);
                None::<()>
            });
            prop_assert_eq!(none, None);
            prop_assert_eq!(found, plain);
        }
    }

    #[test]
    fn a_search_sees_across_its_chunks() {
        let mut hay = vec![0u8; 3 * CHUNK];
        for at in [CHUNK - 3, 2 * CHUNK - 1, 3 * CHUNK - 5] {
            hay[at..at + 5].copy_from_slice(b"hello");
        }
        let i = image(&[(1 << 40, 0, hay.len() as u64)]);
        let mut found = Vec::new();
        i.search(&FlatMemory(hay), b"hello", |at| {
            found.push(index(at - (1 << 40)));
            None::<()>
        });
        assert_eq!(found, [CHUNK - 3, 2 * CHUNK - 1, 3 * CHUNK - 5]);
    }
}
