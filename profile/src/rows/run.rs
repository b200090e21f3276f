//! Events of a run: console, systemd, vprof.

use serde::{Deserialize, Serialize};

/// Key in table `meta` whose value is 1 in the profile of a run that came to its end.
pub const COMPLETE: &str = "complete";
/// Key in table `meta` of the condition with which sampling begins, as on a command line; an empty text once
/// sampling has begun.
pub const AWAITED: &str = "awaited";
/// Key in table `meta` of the name of the host that vprof ran on.
pub const HOSTNAME: &str = "hostname";

/// A row of table `console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Bytes as the guest wrote them.
    pub bytes: Vec<u8>,
}

/// A row of table `unit_event`: a message of systemd about a unit, or about the whole boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitEventRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// The same time by the guest's CLOCK_MONOTONIC, ns.
    pub guest_ns: u64,
    /// Largest error of `time_ns`, ns: the precision of the relation between the two clocks. `None` if it is
    /// not known, for a time of the kernel's log.
    pub within_ns: Option<u64>,
    /// `starting`, `started`, `failed`, or `finished`: the whole boot.
    pub step: String,
    /// The unit.
    pub unit: Option<String>,
    /// Result of the start job of a failed unit: `failed`, `timeout`, `dependency` ...
    pub result: Option<String>,
}

/// A row of table `event`: something that the user should know (kernel found, data missing, end).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Kind, like `kernel`, `missing`, `end`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}
