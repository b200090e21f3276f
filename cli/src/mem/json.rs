//! `vprof mem --json` (docs/json.md).

use host::attached::{AttachedMemoryUse, HostMemory};
use linux::{
    FileMemory, FilesystemMemory, GroupMemory, Holders, MemoryCounters, MemoryPart, Missing, ProcessMemory,
    SlabMemory,
};
use serde::Serialize;

/// The object.
#[derive(Debug, Serialize)]
pub struct MemJson<'a> {
    vm: &'a str,
    kernel: Option<&'a str>,
    read_s: f64,
    host: Option<HostMemory>,
    holders: Vec<PartJson>,
    meminfo: MemoryCounters,
    processes: HoldersJson<'a, ProcessMemory>,
    groups: HoldersJson<'a, GroupMemory>,
    slabs: HoldersJson<'a, SlabMemory>,
    filesystems: HoldersJson<'a, FilesystemMemory>,
    files: &'a [FileMemory],
}

#[derive(Debug, Serialize)]
struct PartJson {
    holder: MemoryPart,
    bytes: u64,
}

/// Rows of one kind, or why there are none.
#[derive(Debug, Serialize)]
struct HoldersJson<'a, T> {
    rows: &'a [T],
    count: u64,
    complete: bool,
    missing: Option<String>,
}

impl<'a, T> HoldersJson<'a, T> {
    fn new(holders: &'a Result<Holders<T>, Missing>) -> Self {
        match holders {
            Ok(Holders { rows, count, complete }) => {
                Self { rows, count: *count, complete: *complete, missing: None }
            }
            Err(missing) => Self { rows: &[], count: 0, complete: false, missing: Some(missing.to_string()) },
        }
    }
}

impl<'a> MemJson<'a> {
    /// Makes the object.
    pub fn new(vm: &'a str, read: &'a AttachedMemoryUse) -> Self {
        let memory = &read.memory;
        let parts = memory.counters.parts();
        Self {
            vm,
            kernel: read.kernel.as_deref(),
            read_s: read.read_s,
            host: read.host,
            holders: parts.into_iter().map(|(holder, bytes)| PartJson { holder, bytes }).collect(),
            meminfo: memory.counters,
            processes: HoldersJson::new(&memory.processes),
            groups: HoldersJson::new(&memory.groups),
            slabs: HoldersJson::new(&memory.slabs),
            filesystems: HoldersJson::new(&memory.filesystems),
            files: &memory.files,
        }
    }
}
