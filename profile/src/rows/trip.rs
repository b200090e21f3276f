//! Watched functions: what they are, and their calls.

use serde::{Deserialize, Serialize};

use crate::rows::Mode;

/// A row of table `trip`: a watched function. Replaces the earlier one with the same id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TripRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// Its name in the guest's kernel.
    pub symbol: String,
    /// Its address.
    pub address: u64,
    /// True if the kernel's types describe its arguments.
    pub typed: bool,
    /// Calls.
    pub calls: u64,
    /// Calls without a row, because a vCPU's ring was full.
    pub lost: u64,
    /// Stacks that were chosen, but not read, because all buffers were in use.
    pub stacks_missed: u64,
    /// Time from the exits of calls to the next entries, ns.
    pub cost_ns: u64,
    /// Time of the switches between guest and host for calls, ns, estimated.
    pub switching_ns: u64,
    /// Samples that this estimate is from.
    pub switching_samples: u64,
}

/// A row of table `trip_argument`: an argument of a watched function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TripArgumentRow {
    /// Function row id.
    pub trip: u32,
    /// Place among the arguments; 1 and up.
    pub number: u8,
    /// Name; empty if it has none.
    pub name: String,
    /// Type as in C.
    pub type_name: String,
    /// `signed`, `unsigned`, `bool`, `pointer`, `text` or `enum`.
    pub kind: String,
    /// Values of an enumeration with their names.
    pub values: Vec<(i64, String)>,
}

/// A row of table `trip_text`: a text that an argument pointed to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TripTextRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// Its first 64 bytes, with control characters as `\x` escapes.
    pub text: String,
}

/// A row of table `trip_call`: a call of a watched function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TripCallRow {
    /// Function row id.
    pub trip: u32,
    /// vCPU.
    pub vcpu: u8,
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Context of the caller.
    pub mode: Mode,
    /// Instance row id of the current task's process; `None` if the task could not be read.
    pub instance: Option<u32>,
    /// Its thread id.
    pub tid: Option<i32>,
    /// Row id of the stack; `None` if none was read.
    pub stack: Option<u32>,
    /// Number of calls that the stack is for; 0 without a stack.
    pub weight: u32,
    /// Values of the arguments, by their kinds: for texts the row id, 0 for one that could not be read and
    /// `None` for a null pointer; all bits of an unsigned number. `None` for arguments that are not known.
    pub arguments: [Option<i64>; 6],
}
