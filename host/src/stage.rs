//! Classification of failures of a run.

use serde::{Deserialize, Serialize};

/// Stage of a run in which it failed, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// There is no hypervisor that works.
    Hypervisor,
    /// Nothing of the guest was recorded yet.
    BeforeGuest,
    /// The guest was being recorded.
    Guest,
}
