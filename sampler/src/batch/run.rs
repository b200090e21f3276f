//! What happened in a run: console, events.

use serde::{Deserialize, Serialize};

/// A row of table `console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Bytes as the guest wrote them.
    pub bytes: Vec<u8>,
}

/// A row of table `event`: something worth telling (kernel found, what is missing, end).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Kind, like `kernel`, `missing`, `end`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}
