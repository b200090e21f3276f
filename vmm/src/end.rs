//! Reasons for the end of a machine.

use serde::{Deserialize, Serialize};

/// Start of the sentence of a machine that ended by a triple fault, after its vCPU.
pub const TRIPLE_FAULT: &str = "the guest caused a triple fault";

/// Reason for the end of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineEnd {
    /// The guest powered off through ACPI.
    PowerOff,
    /// The guest requested a reset.
    Reset,
    /// The guest wrote this value to the exit port ([`crate::EXIT_PORT`]).
    Exited(u32),
    /// [`crate::Machine::stop`] was called.
    Stopped,
    /// The guest or KVM failed: triple fault, KVM internal error, failed entry. The text is one sentence,
    /// then the registers of the vCPU, four a line.
    Failed(String),
}
