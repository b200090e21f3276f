//! `vprof mem --json` (docs/json.md).

use guest_linux::{
    FileMemory, FilesystemMemory, GroupMemory, Holders, MemoryCounters, MemoryPart, Missing, ProcessMemory,
    SlabMemory,
};
use host::attached::{AttachedMemoryUse, HostMemory};
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
    /// Makes the object for the memory that was read of the VM with this name.
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

#[cfg(test)]
mod tests {
    use guest_linux::{GroupStat, MemoryUse};
    use serde_json::Value;

    use super::*;

    /// Returns the keys of all objects in a value.
    fn keys(value: &Value) -> Vec<String> {
        match value {
            Value::Object(members) => {
                members.iter().flat_map(|(key, value)| [vec![key.clone()], keys(value)].concat()).collect()
            }
            Value::Array(values) => values.iter().flat_map(keys).collect(),
            _ => Vec::new(),
        }
    }

    fn one<T>(row: T) -> Result<Holders<T>, Missing> {
        Ok(Holders { rows: vec![row], count: 1, complete: true })
    }

    fn read() -> AttachedMemoryUse {
        let process = ProcessMemory {
            pid: 7,
            comm: "a".to_owned(),
            group: None,
            anonymous: 1,
            file: 2,
            shmem: 4,
            swap: 8,
            page_tables: 16,
        };
        let group = GroupMemory { stat: Some(GroupStat::default()), ..GroupMemory::default() };
        let filesystem = FilesystemMemory {
            kind: "ext4".to_owned(),
            device: "vda1".to_owned(),
            mount: None,
            files: 1,
            bytes: 1,
        };
        let file =
            FileMemory { path: String::new(), kind: "ext4".to_owned(), inode: 12, bytes: 4096, size: 5000 };
        let memory = MemoryUse {
            counters: MemoryCounters::default(),
            processes: one(process),
            groups: one(group),
            slabs: Err(Missing::NoBtf),
            filesystems: one(filesystem),
            files: vec![file],
        };
        AttachedMemoryUse { kernel: None, memory, host: Some(HostMemory::default()), read_s: 0.01 }
    }

    #[test]
    fn every_member_is_documented() {
        let read = read();
        let object = serde_json::to_value(MemJson::new("vm", &read)).unwrap();
        assert_eq!(object["processes"]["rows"][0]["resident"], 7);
        assert_eq!(object["slabs"]["missing"], Missing::NoBtf.to_string());
        let document = include_str!("../../../docs/json.md");
        let (_, after) = document.split_once("## `vprof mem --json`").expect("a section");
        let section = after.split_once("\n## ").map_or(after, |(section, _)| section);
        for key in keys(&object) {
            assert!(section.contains(&format!("{key}: ")), "{key}");
        }
    }
}
