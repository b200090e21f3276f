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

/// A row of table `unit_event`: what systemd has said of a unit, or of the whole boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitEventRow {
    /// When, since the run's start, ns.
    pub time_ns: u64,
    /// The same by the guest's CLOCK_MONOTONIC, ns.
    pub guest_ns: u64,
    /// How far from `time_ns` it may have been, ns: how well the two clocks are known by each other; `None`: not known, the
    /// time is that of the kernel's log.
    pub within_ns: Option<u64>,
    /// `starting`, `started`, `failed`, or `finished`: the whole boot.
    pub step: String,
    /// The unit.
    pub unit: Option<String>,
    /// What the start job of a failed one came to: `failed`, `timeout`, `dependency` ...
    pub result: Option<String>,
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
