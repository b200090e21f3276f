//! The guest's memory by holder over time.

use serde::{Deserialize, Serialize};

/// A row of table `memory_reading`: one reading of the guest's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReadingRow {
    /// 1 and up.
    pub id: u64,
    /// Since the run's start, ns.
    pub time_ns: u64,
    /// Memory that the guest's kernel manages (`MemTotal`), bytes.
    pub total: u64,
    /// Memory that programs can get without swapping, by the guest kernel's estimate (`MemAvailable`), bytes.
    pub available: Option<u64>,
    /// Swap of the guest, bytes.
    pub swap_total: Option<u64>,
    /// Part of it that is in use, bytes.
    pub swap_used: Option<u64>,
    /// CPU time of the reading, ns.
    pub cost_ns: u64,
}

/// Kind of holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// Parts that together are all of the memory, such as `free` and `anonymous`.
    Part,
    /// Processes. Pages that they share count for each.
    Process,
    /// Control groups. Each has the memory of its children, too.
    Group,
    /// File systems by their pages in memory.
    Filesystem,
    /// Files by their pages in memory.
    File,
    /// Caches of kernel objects.
    Slab,
}

impl MemoryKind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Part, Self::Process, Self::Group, Self::Filesystem, Self::File, Self::Slab];

    /// Returns the name in table `memory_use`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Part => "part",
            Self::Process => "process",
            Self::Group => "group",
            Self::Filesystem => "filesystem",
            Self::File => "file",
            Self::Slab => "slab",
        }
    }

    /// Returns the kind of this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A row of table `memory_use`: a holder of memory at a reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUseRow {
    /// `memory_reading.id`.
    pub reading: u64,
    /// Kind of the holder.
    pub kind: MemoryKind,
    /// Its name: of a part as `vprof mem --json` has it, of a process its program's, else a path or a name.
    pub name: String,
    /// Process id; 0 for other kinds.
    pub pid: i32,
    /// Memory, bytes: of a process what is resident, of a control group `memory.current`.
    pub bytes: u64,
    /// Anonymous memory of a process or control group, bytes.
    pub anonymous: Option<u64>,
    /// Memory of files, with tmpfs and shared memory, bytes.
    pub file: Option<u64>,
    /// Swapped out, bytes.
    pub swap: Option<u64>,
}

impl MemoryUseRow {
    /// Returns the row of a holder of which only its memory is known, in bytes, and which is not a process.
    pub fn new(reading: u64, kind: MemoryKind, name: impl Into<String>, bytes: u64) -> Self {
        let name = name.into();
        Self { reading, kind, name, pid: 0, bytes, anonymous: None, file: None, swap: None }
    }
}
