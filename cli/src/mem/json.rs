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
    processes: HoldersJson<ProcessJson<'a>>,
    groups: HoldersJson<&'a GroupMemory>,
    slabs: HoldersJson<&'a SlabMemory>,
    filesystems: HoldersJson<&'a FilesystemMemory>,
    files: &'a [FileMemory],
}

#[derive(Debug, Serialize)]
struct PartJson {
    holder: MemoryPart,
    bytes: u64,
}

/// A process, with a sum.
#[derive(Debug, Serialize)]
struct ProcessJson<'a> {
    #[serde(flatten)]
    process: &'a ProcessMemory,
    resident: u64,
}

impl<'a> From<&'a ProcessMemory> for ProcessJson<'a> {
    fn from(process: &'a ProcessMemory) -> Self {
        Self { process, resident: process.resident() }
    }
}

/// Rows of one kind, or why there are none.
#[derive(Debug, Serialize)]
struct HoldersJson<R> {
    rows: Vec<R>,
    count: u64,
    complete: bool,
    missing: Option<String>,
}

impl<R> HoldersJson<R> {
    fn new<'a, T>(holders: &'a Result<Holders<T>, Missing>) -> Self
    where
        R: From<&'a T>,
    {
        match holders {
            Ok(Holders { rows, count, complete }) => {
                let rows = rows.iter().map(R::from).collect();
                Self { rows, count: *count, complete: *complete, missing: None }
            }
            Err(missing) => {
                Self { rows: Vec::new(), count: 0, complete: false, missing: Some(missing.to_string()) }
            }
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
