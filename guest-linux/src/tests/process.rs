//! Processes, files, the page cache and interrupts.

use super::{STYLES, find, styled};
use crate::fixture::{Config, Guest, Style, cached_byte};
use crate::{
    FileRef, InterruptAction, InterruptVector, Kernel, Mapping, MappingKind, Missing, PageCache, PhysAddr,
    PhysicalMemory, VirtAddr,
};
use proptest::prelude::*;

fn both_trees(check: impl Fn(Style, Guest, Kernel)) {
    for style in STYLES {
        for list in [false, true] {
            let (guest, kernel) = styled(style, |c| c.mapping_list = list);
            check(style, guest, kernel);
        }
    }
}

fn mappings(guest: &Guest, kernel: &Kernel) -> Vec<Mapping> {
    kernel.mappings(&guest.memory, guest.task(100).unwrap()).unwrap()
}

/// Writes at a virtual address of the kernel.
fn put(guest: &mut Guest, kernel: &Kernel, at: u64, bytes: &[u8]) {
    let phys = kernel.address_space().translate(&guest.memory, VirtAddr(at)).unwrap().phys;
    guest.put(phys, bytes);
}

#[test]
fn mappings_have_their_places_and_kinds() {
    both_trees(|_, guest, kernel| {
        let found = mappings(&guest, &kernel);
        assert_eq!(found.len(), 48);
        let MappingKind::File(program) = &found[1].kind else { panic!("{:?}", found[1]) };
        assert_eq!(program.path, "/srv/bin/pro?gram");
        assert_eq!(program.raw_path, b"/srv/bin/pro\x01gram");
        assert_eq!((program.device, program.inode, program.size), ((254, 3), 77, 0x2800));
        assert_eq!((program.filesystem.as_str(), program.deleted), ("ext4", false));
        assert_eq!((program.modified, &program.stacked), (Some((1_700_000_000, 5)), &None));
        assert_eq!(
            (found[1].start.0, found[1].end.0, found[1].file_offset.0),
            (0x40_1000, 0x40_3000, 0x1000)
        );
        assert_eq!(
            [found[1].read, found[1].write, found[1].execute, found[1].shared],
            [true, false, true, false]
        );
        let kinds = [3, 4, 44, 45, 46, 47].map(|i| found[i].kind.clone());
        let uprobes = MappingKind::Special("[uprobes]".into());
        assert_eq!(
            kinds,
            [
                MappingKind::Heap,
                MappingKind::Anonymous,
                MappingKind::Vvar,
                MappingKind::Vdso,
                uprobes,
                MappingKind::Stack
            ]
        );
        assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
    });
}

#[test]
fn a_stacked_file_has_its_own_path_and_the_bytes_of_another() {
    both_trees(|style, guest, kernel| {
        let found = mappings(&guest, &kernel);
        let MappingKind::File(file) = &found[2].kind else { panic!("{:?}", found[2]) };
        assert_eq!(
            (file.path.as_str(), file.filesystem.as_str(), file.inode),
            ("/stacked", "ext4", 78),
            "{style:?}"
        );
        let stacked = file.stacked.as_ref().expect("another file");
        assert_eq!((stacked.device, stacked.inode, stacked.filesystem.as_str()), ((0, 30), 900, "overlay"));
        assert!(found[2].shared);
    });
}

#[test]
fn one_descent_finds_what_the_walk_finds() {
    both_trees(|_, guest, kernel| {
        let task = guest.task(100).unwrap();
        let at = |address| kernel.mapping_at(&guest.memory, task, VirtAddr(address)).unwrap();
        for mapping in mappings(&guest, &kernel) {
            assert_eq!(at(mapping.start.0).as_ref(), Some(&mapping));
            assert_eq!(at(mapping.end.0 - 1).as_ref(), Some(&mapping));
        }
        for gap in [0, 0x3f_ffff, 0x40_4000, 0x7f00_0000_1000, 0x7fff_ffff_f000, u64::MAX] {
            assert_eq!(at(gap), None, "{gap:#x}");
        }
    });
}

#[test]
fn a_process_is_told_with_all_that_is_known() {
    both_trees(|_, guest, kernel| {
        let process = kernel.process(&guest.memory, guest.task(100).unwrap());
        assert_eq!((process.parent, process.uid), (Ok(1), Ok(1234)));
        assert_eq!(process.exe.unwrap().path, "/srv/bin/pro?gram");
        assert_eq!(process.argv.unwrap(), ["/srv/bin/program", "two words", "?[31mred"]);
        assert_eq!(process.cgroup.unwrap(), "/system.slice/demo.service");
    });
}

#[test]
fn a_kernel_thread_has_no_memory() {
    let (guest, kernel) = styled(Style::V6_12, |_| ());
    let task = guest.task(2).unwrap();
    assert_eq!(kernel.mappings(&guest.memory, task), Err(Missing::NoUserMemory));
    assert_eq!(kernel.user_memory(&guest.memory, task).err(), Some(Missing::NoUserMemory));
    assert_eq!(kernel.process(&guest.memory, task).exe, Err(Missing::NoUserMemory));
}

#[test]
fn work_is_told_of_work_queues_alone() {
    let (mut guest, kernel) = styled(Style::V6_12, |_| ());
    let task = guest.task(2).unwrap();
    assert_eq!(kernel.work_function(&guest.memory, task), Ok(None));
    // PF_WQ_WORKER and PF_KTHREAD.
    put(&mut guest, &kernel, task + 0x2c, &0x0020_0020u32.to_le_bytes());
    assert_eq!(kernel.work_function(&guest.memory, task), Ok(Some(guest.text(0x1400))));
}

#[test]
fn a_removed_name_is_told() {
    let (mut guest, kernel) = styled(Style::V6_12, |_| ());
    let dentry = guest.places.program_dentry;
    put(&mut guest, &kernel, dentry + 16, &[0; 8]);
    let MappingKind::File(file) = mappings(&guest, &kernel)[0].kind.clone() else { panic!() };
    assert!(file.deleted);
    assert_eq!(file.path, "/srv/bin/pro?gram");
}

#[test]
fn the_page_cache_has_the_bytes_of_whole_pages() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let MappingKind::File(file) = mappings(&guest, &kernel)[0].kind.clone() else { panic!() };
        let cache = PageCache::new(&kernel, &guest.memory).unwrap();
        let mut bytes = [0; 0x1800];
        cache.read(&guest.memory, &file, 0x700, &mut bytes).expect("a folio of two pages");
        assert!((0x700..).zip(bytes).all(|(at, byte)| byte == cached_byte(at)));
        // Up to a page that has not arrived, one that is swapped out, one that was never there.
        for page in 2..5 {
            assert_eq!(cache.read(&guest.memory, &file, page * 4096, &mut [0]), None, "{page}");
        }
        assert_eq!(cache.read(&guest.memory, &file, u64::MAX, &mut [0; 2]), None);
    }
}

/// Looks up `path` as the process of `task` would.
fn look_up(
    kernel: &Kernel,
    memory: &impl PhysicalMemory,
    task: u64,
    path: &[u8],
) -> Result<FileRef, Missing> {
    kernel.lookup(memory, kernel.root_directory(memory, task)?, path)
}

#[test]
fn a_path_leads_to_the_file_that_is_mapped() {
    both_trees(|style, guest, kernel| {
        let task = guest.task(100).unwrap();
        for mapping in &mappings(&guest, &kernel)[..3] {
            let MappingKind::File(file) = &mapping.kind else { panic!("{mapping:?}") };
            let found = look_up(&kernel, &guest.memory, task, &file.raw_path);
            assert_eq!(found.as_ref(), Ok(&**file), "{style:?}");
        }
        let at = |path: &str| look_up(&kernel, &guest.memory, task, path.as_bytes());
        assert_eq!(at("//srv/./bin/").map(|file| file.path), Ok("/srv/bin".into()));
        // The root of what is mounted, not the directory below it.
        assert_eq!(at("/srv").map(|file| file.raw_path), Ok(b"/srv".into()));
        assert_eq!(at("/").map(|file| file.inode), Ok(2));
        for none in ["/srv/bin/pro", "/srv/bin/none", "/bin", "/srv/../srv/bin", "/stacked/x", "/srv/bin/\0"]
        {
            assert_eq!(at(none), Err(Missing::NotCached), "{none}");
        }
        let kernel_thread = look_up(&kernel, &guest.memory, guest.task(2).unwrap(), b"/srv");
        assert_eq!(kernel_thread, Err(Missing::Unreadable("the root directory of the process".into())));
    });
}

#[test]
fn a_removed_file_is_not_looked_up() {
    for style in STYLES {
        let (mut guest, kernel) = styled(style, |_| ());
        let (task, places) = (guest.task(100).unwrap(), guest.places);
        put(&mut guest, &kernel, places.program_dentry + 16, &[0; 8]);
        assert_eq!(look_up(&kernel, &guest.memory, task, b"/srv/bin/pro\x01gram"), Err(Missing::NotCached));
        assert!(look_up(&kernel, &guest.memory, task, b"/srv/bin").is_ok());
    }
}

#[test]
fn what_is_no_file_of_the_name_does_not_stand_behind_a_stacked_one() {
    let (mut guest, kernel) = styled(Style::V6_12, |_| ());
    let (task, places) = (guest.task(100).unwrap(), guest.places);
    for other in [0, places.bin_dentry, places.mm, u64::MAX] {
        put(&mut guest, &kernel, places.stacked_inode + 600, &other.to_le_bytes());
        assert_eq!(look_up(&kernel, &guest.memory, task, b"/stacked"), Err(Missing::NotCached), "{other:#x}");
    }
}

#[test]
fn a_directory_that_is_a_loop_ends() {
    for style in STYLES {
        let (mut guest, kernel) = styled(style, |_| ());
        let (task, bin) = (guest.task(100).unwrap(), guest.places.bin_dentry);
        // The second name follows itself; the first is still found.
        let second = guest.places.program_dentry + 144;
        put(&mut guest, &kernel, second, &second.to_le_bytes());
        assert_eq!(look_up(&kernel, &guest.memory, task, b"/srv/bin/x"), Err(Missing::NotCached));
        assert!(look_up(&kernel, &guest.memory, task, b"/srv/bin/pro\x01gram").is_ok());
        // A directory within itself: as deep as a path may be.
        put(&mut guest, &kernel, bin + 24, &bin.to_le_bytes());
        put(&mut guest, &kernel, bin + 160, &(bin + 144).to_le_bytes());
        for path in [b"/srv/bin".to_vec(), [b"/srv".to_vec(), b"/bin".repeat(40)].concat()] {
            assert_eq!(look_up(&kernel, &guest.memory, task, &path), Err(Missing::NotCached));
        }
    }
}

#[test]
fn interrupts_and_system_calls_have_names() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let interrupts = kernel.interrupts(&guest.memory);
        let lines: Vec<_> =
            interrupts.lines.unwrap().into_iter().map(|line| (line.irq, line.actions)).collect();
        let handler = guest.text(0x3000);
        let action = |name: &str, thread| InterruptAction { name: name.into(), handler, thread };
        let shared = vec![action("acpi", handler.checked_add(16)), action("virtio0", None)];
        assert_eq!(lines, [(4, vec![action("ttyS0", None)]), (9, shared)]);
        let softirqs = interrupts.softirqs.unwrap();
        assert_eq!((softirqs.len(), softirqs[3].name.as_str(), softirqs[5].handler), (10, "NET_RX", None));
        assert_eq!(interrupts.vectors, Ok(vec![InterruptVector { cpu: 0, vector: 34, irq: 4 }]));
        let calls = kernel.system_calls(&guest.memory).unwrap();
        assert_eq!(calls, [Some("read".into()), None, Some("stat".into())]);
        let (guest, kernel) = styled(style, |config| config.apic_ids = vec![4, 1]);
        let vectors = kernel.interrupts(&guest.memory).vectors;
        assert_eq!(vectors, Ok(vec![InterruptVector { cpu: 4, vector: 34, irq: 4 }]), "by vCPU");
    }
}

#[test]
fn loops_end() {
    for list in [false, true] {
        let (mut guest, kernel) = styled(Style::V6_15, |c| c.mapping_list = list);
        let places = guest.places;
        let task = guest.task(100).unwrap();
        if list {
            put(&mut guest, &kernel, places.mappings + 16, &places.mappings.to_le_bytes());
        } else {
            // The root's first child is the root.
            put(&mut guest, &kernel, places.mappings + 80, &(places.mappings | 3 << 3 | 4).to_le_bytes());
        }
        assert!(kernel.mappings(&guest.memory, task).unwrap().len() < 48);
        put(&mut guest, &kernel, places.bin_dentry + 24, &places.program_dentry.to_le_bytes());
        put(&mut guest, &kernel, places.group + 8, &places.group.to_le_bytes());
        let process = kernel.process(&guest.memory, task);
        assert_eq!(process.exe.unwrap().path, "");
        assert_eq!(process.cgroup, Err(Missing::Unreadable("the control group".into())));
    }
}

#[test]
fn absurd_lengths_are_cut_or_refused() {
    let (mut guest, kernel) = styled(Style::V6_12, |_| ());
    let (task, places) = (guest.task(100).unwrap(), guest.places);
    // arg_end; the length of a name.
    put(&mut guest, &kernel, places.mm + 384, &u64::MAX.to_le_bytes());
    put(&mut guest, &kernel, places.program_dentry + 36, &u32::MAX.to_le_bytes());
    let process = kernel.process(&guest.memory, task);
    let argv = process.argv.unwrap();
    assert_eq!((argv.len(), argv[1].as_str()), (256, "two words"));
    assert_eq!(process.exe.unwrap().path, "");
}

proptest! {
    #[test]
    fn random_bytes_behind_a_process_never_panic(
        style in prop::sample::select(STYLES.to_vec()),
        list: bool,
        hits in prop::collection::vec((0u64..0x2000, any::<u64>(), 0u64..0x2000, 0u8..3), 1..60),
        path in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut config = Config::new(style);
        config.mapping_list = list;
        let mut guest = config.build();
        let place = |i: u64| 0x2a0_0000 + i * 8;
        for (to, value, from, how) in hits {
            // Any number, a small one, or a pointer of the guest's own at a wrong place.
            let at = symbols::bytes::index(place(from));
            let other: [u8; 8] = guest.memory.0[at..at + 8].try_into().unwrap();
            let value = match how { 0 => value.to_le_bytes(), 1 => (value >> 52).to_le_bytes(), _ => other };
            guest.put(PhysAddr(place(to)), &value);
        }
        let kernel = find(&guest).unwrap();
        for tid in [100, 2] {
            let task = guest.task(tid).unwrap();
            let found = kernel.mappings(&guest.memory, task).unwrap_or_default();
            prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(found.iter().all(|m| m.start < m.end && m.end.0 <= 1 << 56));
            let cache = PageCache::new(&kernel, &guest.memory).unwrap();
            for mapping in found.iter().take(8) {
                let _ = kernel.mapping_at(&guest.memory, task, mapping.start);
                if let MappingKind::File(file) = &mapping.kind {
                    prop_assert!(file.raw_path.len() <= 4096);
                    let _ = cache.read(&guest.memory, file, 0, &mut [0; 0x2000]);
                }
            }
            let process = kernel.process(&guest.memory, task);
            prop_assert!(process.argv.map_or(0, |argv| argv.len()) <= 256);
            prop_assert!(process.cgroup.map_or(0, |path| path.len()) <= 4096);
            let _ = kernel.work_function(&guest.memory, task);
            for path in [&b"/srv/bin/pro\x01gram"[..], b"/stacked", b"/", &b"/srv/bin".repeat(100), &path] {
                if let Ok(file) = look_up(&kernel, &guest.memory, task, path) {
                    prop_assert!(file.raw_path.len() <= 4096);
                }
            }
        }
        let _ = kernel.interrupts(&guest.memory);
    }
}
