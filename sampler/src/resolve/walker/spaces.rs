//! The executable mappings of each process.

use std::collections::HashMap;
use std::sync::Arc;

use guest_linux::{AddressSpace, CodeAddr, FileOffset, FileRef, Mapping, MappingKind, Missing, VirtAddr};
use symbols::LinkAddr;
use symbols::cfi::{CodeMapping, CodeMappings, ImageCode};

use super::StackOwner;
use super::files::{FileEntry, FileTable};
use super::generated::may_hold_runtime_data;
use super::source::GuestSource;
use crate::managed::ROOT;
use profile::rows::{Batch, MappingRow};
use vmm::monotonic_ns;

/// Processes whose mappings are remembered, at most; beyond that all are forgotten.
const REMEMBERED: usize = 4096;
/// Shortest time between two readings of mappings that lack an address, ns; doubles with each reading that
/// did not find it, up to [`BELIEVED_NS`].
const AGAIN_NS: u64 = 5_000_000;
/// Time for which mappings are used without reading them again, ns: a library may be replaced by another.
const BELIEVED_NS: u64 = 2_000_000_000;

/// Start and end.
type AddressRange = (VirtAddr, VirtAddr);

/// Executable memory.
#[derive(Debug)]
struct CodeRegion {
    start: VirtAddr,
    end: VirtAddr,
    file_offset: FileOffset,
    file: Option<Arc<FileEntry>>,
    /// The file is not known, although there is one.
    unknown_file: bool,
}

/// Memory that has the bytes of a file.
#[derive(Debug)]
struct DataRegion {
    start: VirtAddr,
    end: VirtAddr,
    file_offset: FileOffset,
    file: Arc<FileRef>,
}

/// Position of code of a process.
#[derive(Debug)]
pub(super) enum CodePlace {
    /// In a file.
    File(CodeAddr<LinkAddr>, Arc<FileEntry>),
    /// In memory without a file (`anonymous`), or in unknown memory.
    Memory { anonymous: bool },
}

/// One process's executable memory.
#[derive(Debug, Default)]
pub(super) struct ProcessSpace {
    root: u64,
    read_ns: u64,
    /// Time after that before which the mappings are not read again for an address that they lack, ns; 0
    /// before the first reading.
    pause_ns: u64,
    /// By start address.
    regions: Vec<CodeRegion>,
    /// Mappings, by start address, of files that may be read where the process has no page of them.
    data: Vec<DataRegion>,
    missing: Option<Missing>,
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct ProcessSpaces {
    known: HashMap<u32, ProcessSpace>,
}

impl ProcessSpaces {
    /// Returns the memory of `owner` with these page tables. Reads the mappings if they are not known, are
    /// stale, are from before an exec, or lack `rip`.
    pub(super) fn get(
        &mut self,
        (owner, root): (&StackOwner, u64),
        rip: VirtAddr,
        source: &GuestSource,
        files: &mut FileTable,
        batch: &mut Batch,
    ) -> &ProcessSpace {
        if self.known.len() >= REMEMBERED && !self.known.contains_key(&owner.instance) {
            self.known.clear();
        }
        let now = monotonic_ns();
        let root = root & ROOT;
        let space = self.known.entry(owner.instance).or_default();
        let age = now.saturating_sub(space.read_ns);
        let stale = age >= BELIEVED_NS || space.region(rip).is_none() && age >= space.pause_ns;
        // Another root means an exec: nothing of the earlier program is left.
        if space.root != root || stale {
            let pause_ns = if space.root == root { space.pause_ns } else { 0 };
            match source.kernel.mappings(&source.memory, owner.task.task) {
                Ok(mappings) => {
                    let before = std::mem::take(space);
                    let made = if before.root == root { before.made() } else { Vec::new() };
                    let fresh = ProcessSpace { root, read_ns: now, ..ProcessSpace::default() };
                    *space = fresh.with((&mappings, &made), owner, source, files, batch);
                }
                // A process that ends no longer has mappings: the earlier ones still hold.
                Err(_) if space.root == root && !space.regions.is_empty() => space.read_ns = now,
                Err(missing) => {
                    *space = ProcessSpace {
                        root,
                        read_ns: now,
                        missing: Some(missing),
                        ..ProcessSpace::default()
                    };
                }
            }
            space.pause_ns = next_pause_ns(pause_ns, space.region(rip).is_some());
        }
        space
    }
}

/// Returns the pause after a reading of the mappings that found the address or did not, ns; `before_ns` was
/// the one before that reading.
fn next_pause_ns(before_ns: u64, found: bool) -> u64 {
    if found { AGAIN_NS } else { before_ns.saturating_mul(2).clamp(AGAIN_NS, BELIEVED_NS) }
}

impl ProcessSpace {
    /// Takes the executable `mappings`, and those at the place of code that was `made` before. A program that
    /// writes its code removes the execute permission meanwhile, and returns there.
    fn with(
        mut self,
        (mappings, made): (&[Mapping], &[AddressRange]),
        owner: &StackOwner,
        source: &GuestSource,
        files: &mut FileTable,
        batch: &mut Batch,
    ) -> Self {
        for mapping in mappings {
            let range = (mapping.start, mapping.end);
            // A page that the process has changed may be in its swap: then the file has other bytes.
            if let MappingKind::File(file) = &mapping.kind
                && !mapping.write
                && may_hold_runtime_data(file.path.rsplit('/').next().unwrap_or(&file.path))
            {
                let (start, end) = range;
                self.data.push(DataRegion {
                    start,
                    end,
                    file_offset: mapping.file_offset,
                    file: Arc::clone(file),
                });
            }
            if !mapping.execute {
                let is_file = matches!(&mapping.kind, MappingKind::File(file) if !is_memory(file, || None));
                if mapping.write && !is_file && overlaps(made, range) {
                    let (start, end) = range;
                    self.regions.push(CodeRegion {
                        start,
                        end,
                        file_offset: FileOffset(0),
                        file: None,
                        unknown_file: false,
                    });
                }
                continue;
            }
            // Shared memory is a file without a directory: code there is made by the process, unless it is a
            // library.
            let file = match &mapping.kind {
                MappingKind::File(file) if is_memory(file, || head(source, file)) => None,
                MappingKind::File(file) => Some(files.entry(file, &mut batch.files)),
                MappingKind::Vdso => {
                    source.vdso(owner.task.task, range).map(|bytes| files.vdso(bytes, &mut batch.files))
                }
                _ => None,
            };
            batch.mappings.push(MappingRow {
                instance: owner.instance,
                start: mapping.start.0,
                end: mapping.end.0,
                file: file.as_ref().map(|file| file.id()),
                file_offset: mapping.file_offset.0,
            });
            self.regions.push(CodeRegion {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.file_offset,
                unknown_file: file.is_none()
                    && matches!(mapping.kind, MappingKind::UnknownFile | MappingKind::Vdso),
                file,
            });
        }
        self
    }

    fn region(&self, address: VirtAddr) -> Option<&CodeRegion> {
        let after = self.regions.partition_point(|region| region.start <= address);
        self.regions.get(after.checked_sub(1)?).filter(|region| address < region.end)
    }

    /// Returns the file, and the offset in it, of the byte at `address` of read-only data of a runtime.
    pub(super) fn file_at(&self, address: VirtAddr) -> Option<(&FileRef, u64)> {
        let after = self.data.partition_point(|region| region.start <= address);
        let region = self.data.get(after.checked_sub(1)?).filter(|region| address < region.end)?;
        let offset = region.file_offset.checked_add(address.offset_from(region.start)?)?;
        Some((&region.file, offset.0))
    }

    /// Returns true if the mappings are known and none of them has `address`.
    pub(super) fn lacks(&self, address: VirtAddr) -> bool {
        self.missing.is_none() && self.region(address).is_none()
    }

    /// Returns the ranges of code that the program has made, by address.
    fn made(&self) -> Vec<AddressRange> {
        let made = self.regions.iter().filter(|region| region.file.is_none() && !region.unknown_file);
        made.map(|region| (region.start, region.end)).collect()
    }

    /// Returns the page tables, and the time when the mappings were read, CLOCK_MONOTONIC ns.
    pub(super) fn version(&self) -> (u64, u64) {
        (self.root, self.read_ns)
    }

    /// Returns the page tables of the process in the guest of `source`.
    pub(super) fn address_space(&self, source: &GuestSource) -> AddressSpace {
        AddressSpace::new(self.root, source.kernel.address_space().five_level())
    }

    /// Returns the files of executable mappings with their load biases. Reads the files that `wanted` is true
    /// for; the others are left out.
    pub(super) fn loaded_files<'a>(
        &'a self,
        wanted: impl Fn(&FileEntry) -> bool + 'a,
        source: &'a GuestSource,
        files: &'a FileTable,
    ) -> impl Iterator<Item = (Arc<FileEntry>, u64)> + 'a {
        self.regions.iter().filter_map(move |region| {
            let file = region.file.as_ref().filter(|file| wanted(file))?;
            file.load(source, &files.room);
            Some((Arc::clone(file), region.bias(file)))
        })
    }

    /// Returns the reason why there are no mappings.
    pub(super) fn missing(&self) -> Option<&Missing> {
        self.missing.as_ref()
    }

    /// Returns the position of a frame's code, by the mapping of the instruction that the frame is in.
    pub(super) fn place(&self, at: CodeAddr) -> CodePlace {
        match self.region(at.lookup()) {
            Some(region) => match &region.file {
                Some(file) => CodePlace::File(at.linked(region.bias(file)), Arc::clone(file)),
                None => CodePlace::Memory { anonymous: !region.unknown_file },
            },
            None => CodePlace::Memory { anonymous: false },
        }
    }

    /// Returns the mappings as the unwinder reads them.
    pub(super) fn images<'a>(&'a self, source: &'a GuestSource, files: &'a FileTable) -> SpaceImages<'a> {
        SpaceImages { space: self, source, files }
    }
}

/// Returns true if one of `ranges`, by address and disjoint, has a byte of this one.
fn overlaps(ranges: &[AddressRange], (start, end): AddressRange) -> bool {
    let after = ranges.partition_point(|&(other, _)| other < end);
    after.checked_sub(1).and_then(|last| ranges.get(last)).is_some_and(|&(_, other_end)| other_end > start)
}

/// First bytes of a program or library (ELF specification 1.2, figure 1-4).
const ELF: [u8; 4] = *b"\x7fELF";

/// Returns true if the mapping is memory that the kernel keeps in a file without a directory: shared
/// anonymous memory (`shmem_zero_setup` in mm/shmem.c, Linux 5.10 to 6.12: `dev/zero`), that of memfd_create
/// (mm/memfd.c: `memfd:NAME`) and of System V (ipc/shm.c: `SYSV` and the key). Such a file may also be a
/// library, which its first bytes show.
fn is_memory(file: &FileRef, head: impl FnOnce() -> Option<[u8; 4]>) -> bool {
    let name = file.path.strip_prefix('/').unwrap_or(&file.path);
    let made_for_mapping = name == "dev/zero" || name.starts_with("memfd:") || name.starts_with("SYSV");
    file.deleted
        && matches!(file.filesystem.as_str(), "tmpfs" | "hugetlbfs")
        && made_for_mapping
        && head() != Some(ELF)
}

/// Reads the first bytes of a file.
fn head(source: &GuestSource, file: &FileRef) -> Option<[u8; 4]> {
    let mut bytes = [0; 4];
    source.open(file).ok()?.0.read_at(0, &mut bytes)?;
    Some(bytes)
}

impl CodeRegion {
    /// Returns the virtual address minus the address in the file. The file was read before, if possible.
    fn bias(&self, file: &FileEntry) -> u64 {
        self.start.bias(file.address_of(self.file_offset))
    }
}

/// A process's mappings with the contents of their files.
#[derive(Debug)]
pub(super) struct SpaceImages<'a> {
    space: &'a ProcessSpace,
    source: &'a GuestSource,
    files: &'a FileTable,
}

impl CodeMappings for SpaceImages<'_> {
    fn find(&self, address: VirtAddr) -> Option<CodeMapping<'_>> {
        let region = self.space.region(address)?;
        let Some(file) = &region.file else {
            let code = if region.unknown_file { ImageCode::NotRead } else { ImageCode::Anonymous };
            return Some(CodeMapping { id: 0, bias: 0, code });
        };
        let loaded = file.load(self.source, &self.files.room);
        let code = match &loaded.cfi {
            Some(cfi) => ImageCode::Cfi(cfi),
            None if loaded.was_read() => ImageCode::NoCfi,
            None => ImageCode::NotRead,
        };
        Some(CodeMapping { id: file.id(), bias: region.bias(file), code })
    }

    fn code(&self, address: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.space.address_space(self.source).read(&self.source.memory, address, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, deleted: bool, filesystem: &str) -> FileRef {
        FileRef {
            path: path.to_owned(),
            raw_path: path.as_bytes().to_vec(),
            deleted,
            device: (0, 1),
            inode: 1025,
            size: 32 << 20,
            filesystem: filesystem.to_owned(),
            modified: None,
            address_space: 0,
            stacked: None,
        }
    }

    #[test]
    fn mappings_that_lack_an_address_again_and_again_are_read_less_often() {
        let mut pause_ns = 0;
        // The samples of an hour, 19 a second, at addresses that the mappings never have.
        let (mut readings, mut read_ns) = (0_u64, 0);
        for now_ns in (0..3_600 * 19).map(|sample| sample * 1_000_000_000 / 19) {
            if readings == 0 || now_ns - read_ns >= pause_ns {
                (readings, read_ns) = (readings + 1, now_ns);
                pause_ns = next_pause_ns(pause_ns, false);
            }
        }
        assert!((1_700..2_000).contains(&readings), "{readings} of {} samples", 3_600 * 19);
        assert_eq!(next_pause_ns(pause_ns, true), AGAIN_NS, "a library is found at once again");
        assert_eq!(next_pause_ns(AGAIN_NS, false), 2 * AGAIN_NS);
    }

    #[test]
    fn ranges_overlap_where_they_share_a_byte() {
        let made = [(10, 20), (30, 40)].map(|(start, end)| (VirtAddr(start), VirtAddr(end)));
        for (range, wanted) in [
            ((0, 10), false),
            ((0, 11), true),
            ((15, 16), true),
            ((20, 30), false),
            ((20, 31), true),
            ((39, 50), true),
            ((40, 50), false),
        ] {
            let (start, end) = range;
            assert_eq!(overlaps(&made, (VirtAddr(start), VirtAddr(end))), wanted, "{range:?}");
        }
        assert!(!overlaps(&[], (VirtAddr(0), VirtAddr(u64::MAX))));
    }

    #[test]
    fn memory_that_is_shared_is_not_a_file() {
        let code = || Some([0x55, 0x48, 0x89, 0xe5]);
        for path in ["/dev/zero", "/memfd:doublemapper", "memfd:a/b", "/SYSV00000000"] {
            assert!(is_memory(&file(path, true, "tmpfs"), code), "{path}");
            assert!(is_memory(&file(path, true, "tmpfs"), || None), "{path}");
            assert!(!is_memory(&file(path, true, "tmpfs"), || Some(ELF)), "{path}: a library");
            assert!(!is_memory(&file(path, false, "tmpfs"), code), "{path}: a file of this name");
            assert!(!is_memory(&file(path, true, "ext4"), code), "{path}: a file of this name");
        }
        for path in ["/dev/shm/zero", "/usr/lib/libz.so", ""] {
            assert!(!is_memory(&file(path, true, "tmpfs"), code), "{path}");
        }
    }
}
