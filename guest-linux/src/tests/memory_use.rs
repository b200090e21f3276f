//! The guest's memory by holder.

use proptest::prelude::*;

use super::{STYLES, booted, empty, find, styled};
use crate::fixture::memory_use::{RSS, RSS_PARTS};
use crate::fixture::{Config, Guest, Style};
use crate::{Kernel, MemoryPart, MemoryUse, Missing};

/// Bytes of a page.
const PAGE: u64 = 4096;

fn read(guest: &Guest, kernel: &Kernel) -> MemoryUse {
    let reader = kernel.memory_reader(&guest.memory).expect("a reader");
    reader.read(&guest.memory, 10).expect("a guest with accounting")
}

/// Calls `check` with the memory of a guest of each style.
fn each(check: impl Fn(Style, &MemoryUse)) {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        check(style, &read(&guest, &kernel));
    }
}

#[test]
fn counters_are_those_of_proc_meminfo() {
    each(|style, memory| {
        let counters = memory.counters;
        let newest = style == Style::V6_15;
        assert_eq!((counters.total, counters.free), (30_000 * PAGE, 10_000 * PAGE));
        // 9000 pages of files, less 1019 of the swap cache and 300 of block devices.
        assert_eq!((counters.buffers, counters.cached), (Some(300 * PAGE), Some(7_681 * PAGE)));
        // 9,500 + (2,005 - 160) + (2,020 - 160) pages; the low watermarks are 160.
        assert_eq!(counters.available, Some(13_205 * PAGE));
        assert_eq!(counters.free_lists, Some(15 * PAGE));
        assert_eq!((counters.swap_total, counters.swap_free), (Some(30_000 * PAGE), Some(29_000 * PAGE)));
        assert_eq!(
            (counters.anonymous, counters.shmem, counters.mlocked),
            (1007 * PAGE, 1012 * PAGE, 5 * PAGE)
        );
        assert_eq!((counters.kernel_stacks, counters.page_tables), (1016 * 1024, 1017 * PAGE));
        assert_eq!(counters.committed, Some(5030 * PAGE));
        assert_eq!(counters.per_cpu, Some(24 * PAGE));
        assert_eq!(counters.huge_pool, Some((4 << 21) + (1 << 30)));
        assert_eq!(counters.huge_pool_free, Some(1 << 21));
        assert_eq!(counters.vmalloc, Some(if newest { 1020 } else { 777 } * PAGE));
        assert_eq!(counters.balloon, Some(if newest { 1021 } else { 75 } * PAGE));
    });
}

#[test]
fn parts_make_up_the_whole() {
    each(|_, memory| {
        let mut counters = memory.counters;
        counters.huge_pool = None;
        let parts = counters.parts();
        assert_eq!(parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), counters.total);
        let part = |wanted| parts.iter().find(|(part, _)| *part == wanted).expect("a part").1;
        assert_eq!(part(MemoryPart::Free), 10_015 * PAGE);
        assert_eq!(part(MemoryPart::PageCache), (7_681 - 1_012) * PAGE);
    });
}

#[test]
fn a_processs_numbers_are_whole_sums() {
    each(|_, memory| {
        let processes = memory.processes.as_ref().expect("processes");
        assert!(processes.complete);
        let [process] = &processes.rows[..] else { panic!("one has memory: {processes:?}") };
        let sum = |kind: usize| (RSS[kind] + i64::from(RSS_PARTS[kind])).cast_unsigned() * PAGE;
        assert_eq!((process.pid, process.comm.as_str()), (100, "many"));
        assert_eq!((process.file, process.anonymous), (sum(0), sum(1)));
        assert_eq!((process.swap, process.shmem, process.page_tables), (sum(2), sum(3), 40_960));
        assert_eq!(process.resident(), 2_021 * PAGE);
        assert_eq!(process.group.as_deref(), Some("/system.slice/demo.service"));
    });
}

#[test]
fn groups_have_their_changes_and_those_below_them() {
    each(|_, memory| {
        let groups = memory.groups.as_ref().expect("groups");
        let rows: Vec<_> = groups
            .rows
            .iter()
            .map(|group| {
                let pages = |bytes: Option<u64>| bytes.map(|bytes| bytes / PAGE);
                let stat = group.stat.expect("numbers");
                (
                    group.path.as_str(),
                    group.removed,
                    pages(group.current),
                    pages(group.swap),
                    stat.anonymous / PAGE,
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("/", false, None, None, 1005),
                ("/a.slice", false, Some(2500), Some(1), 105),
                ("/a.slice/b.service", false, Some(1666), Some(2), 14),
                ("/a.slice/c.service", true, Some(1250), Some(3), 6),
            ]
        );
    });
}

#[test]
fn slab_caches_are_those_of_proc_slabinfo() {
    each(|_, memory| {
        let slabs = memory.slabs.as_ref().expect("caches");
        let rows: Vec<_> = slabs
            .rows
            .iter()
            .map(|slab| (slab.name.as_str(), slab.objects, slab.object_bytes, slab.bytes / PAGE))
            .collect();
        assert_eq!(rows, [("inode_cache", 260, 600, 40), ("dentry", 630, 192, 30)]);
    });
}

#[test]
fn file_systems_and_files_have_their_own_pages() {
    each(|_, memory| {
        let filesystems = memory.filesystems.as_ref().expect("file systems");
        let rows: Vec<_> = filesystems
            .rows
            .iter()
            .map(|row| {
                (row.kind.as_str(), row.device.as_str(), row.mount.as_deref(), row.files, row.bytes / PAGE)
            })
            .collect();
        assert_eq!(rows, [("ext4", "vda1", Some("/data"), 2, 2050), ("bdev", "bdev", None, 1, 300)]);
        let files: Vec<_> = memory
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.kind.as_str(), file.inode, file.bytes / PAGE))
            .collect();
        assert_eq!(files, [("/data/big", "ext4", 10, 2000), ("", "bdev", 14, 300), ("", "ext4", 11, 50)]);
        assert_eq!(memory.files[0].size, 2000 * PAGE - 96);
    });
}

#[test]
fn only_the_largest_holders_are_listed() {
    let (guest, kernel) = booted(|_| ());
    let reader = kernel.memory_reader(&guest.memory).expect("a reader");
    for most in [0, 1, 2] {
        let memory = reader.read(&guest.memory, most).expect("memory");
        let sizes: Vec<u64> = memory.files.iter().map(|file| file.bytes / PAGE).collect();
        assert_eq!(sizes, [2000, 300][..most]);
        let slabs = memory.slabs.expect("caches");
        assert_eq!((slabs.rows.len(), slabs.count, slabs.complete), (most, 2, true));
    }
}

#[test]
fn a_guest_without_accounting_has_a_reason() {
    let (guest, kernel) = booted(|config| config.btf = false);
    assert_eq!(kernel.memory_reader(&guest.memory).map(drop), Err(Missing::NoBtf));
    let (guest, kernel) = booted(|config| config.per_cpu_ready = false);
    assert_eq!(kernel.memory_reader(&guest.memory).map(drop), Err(Missing::PerCpuNotReady));
    let (guest, kernel) = booted(|_| ());
    let reader = kernel.memory_reader(&guest.memory).expect("a reader");
    assert!(reader.read(&empty(), 10).is_err());
}

proptest! {
    /// A guest may put anything where its lists and numbers are.
    #[test]
    fn a_hostile_guest_is_read_to_an_end(
        style in prop::sample::select(STYLES.to_vec()),
        at in 0x230_8000_usize..0x230_e000,
        bytes in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut guest = Config::new(style).build();
        let kernel = find(&guest).expect("a kernel");
        guest.memory.0[at..at + bytes.len()].copy_from_slice(&bytes);
        let reader = kernel.memory_reader(&guest.memory).expect("a reader");
        if let Ok(memory) = reader.read(&guest.memory, 10) {
            prop_assert!(memory.files.len() <= 10);
        }
    }
}
