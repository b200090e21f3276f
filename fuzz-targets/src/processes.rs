//! Data of a process: mappings by maple tree, or by list and red-black tree; files, arguments, control group;
//! names in the dcache, and the page cache.

use arbitrary::Arbitrary;
use guest_linux::{FileRef, MappingKind, PageCache, PhysicalMemory, VirtAddr, container, systemd_unit};

use crate::input::guests::{ARGUMENTS, PAGE_TABLES, PAGES, PROCESS, SoundGuest, TASKS, sound};
use crate::input::patches::{MemoryPatch, PatchedMemory};
use crate::input::{self, decode};

#[derive(Debug, Arbitrary)]
struct ProcessesInput {
    guest: u8,
    address: u64,
    path: Vec<u8>,
    offset: u32,
    patches: Vec<MemoryPatch>,
}

fn read_file(guest: &SoundGuest, memory: &impl PhysicalMemory, file: &FileRef, offset: u64) {
    let Ok(cache) = PageCache::new(&guest.kernel, memory) else { return };
    let mut bytes = [0; 6000];
    for at in [0, offset, u64::MAX - 100] {
        let _ = cache.read(memory, file, at, &mut bytes);
    }
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<ProcessesInput>(bytes) else { return };
    let guest = sound(input.guest);
    let places = [PROCESS, PROCESS, PROCESS, PROCESS, TASKS, PAGES, ARGUMENTS, PAGE_TABLES];
    let memory = PatchedMemory::new(&guest.guest.memory, &places, &input.patches);
    let kernel = &guest.kernel;
    let Some(task) = guest.guest.task(100) else { return };
    let offset = u64::from(input.offset);
    if let Ok(mappings) = kernel.mappings(&memory, task) {
        assert!(mappings.len() <= 65_536);
        assert!(mappings.windows(2).all(|pair| pair[0].end <= pair[1].start), "ascending, without overlap");
        let files = mappings.iter().filter_map(|mapping| match &mapping.kind {
            MappingKind::File(file) => Some(file),
            _ => None,
        });
        for file in files.take(4) {
            read_file(guest, &memory, file, offset);
        }
    }
    for address in [0x40_1000, 0x7f00_0000_2000, 0x7fff_0000_1ff0, input.address] {
        let _ = kernel.mapping_at(&memory, task, VirtAddr(address));
    }
    let process = kernel.process(&memory, task);
    if let Ok(arguments) = &process.argv {
        assert!(arguments.len() <= 256);
    }
    if let Ok(group) = &process.cgroup {
        let _ = (systemd_unit(group), container(group));
    }
    if let Ok(root) = kernel.root_directory(&memory, task) {
        for path in [b"/srv/bin/pro\x01gram".as_slice(), b"/stacked", b"/srv/bin/none", &input.path] {
            if let Ok(file) = kernel.lookup(&memory, root, path) {
                read_file(guest, &memory, &file, offset);
            }
        }
    }
    if let Ok(space) = kernel.user_memory(&memory, task) {
        let mut bytes = [0; 300];
        for address in [0x7fff_0000_1f80, input.address] {
            let _ = space.read(&memory, VirtAddr(address), &mut bytes);
        }
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
