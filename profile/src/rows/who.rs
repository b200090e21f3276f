//! Owners of code: processes, threads, control groups.

use serde::{Deserialize, Serialize};

/// A row of table `instance`: one instance of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (exec renamed the process).
    pub id: u32,
    /// Process id (tgid).
    pub pid: i32,
    /// Start since guest boot, ns; with `pid` the identity.
    pub start_ns: u64,
    /// Program name.
    pub comm: String,
    /// SLEEPY's instance number: 0, 1, 2 ... per program name, never reused.
    pub number: u32,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// Process id of the parent, once read.
    pub parent_pid: Option<i32>,
    /// Command line as the process sees it, arguments separated by blanks, once read.
    pub command: Option<String>,
    /// File row id of the program, once read.
    pub exe: Option<u32>,
    /// Control group row id, once read.
    pub cgroup: Option<u32>,
}

/// A row of table `thread`. A row with a known instance and tid replaces the earlier (the thread was
/// renamed).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// The thread's own name.
    pub comm: String,
}

/// A row of table `cgroup`: a control group that processes belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// Path from the root of the hierarchy, `/` for the root.
    pub path: String,
    /// The systemd unit that the path names.
    pub unit: Option<String>,
    /// The container that the path names: its id, or its name.
    pub container: Option<String>,
}
