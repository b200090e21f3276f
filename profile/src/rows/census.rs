//! The census of tasks.

use serde::{Deserialize, Serialize};

use crate::rows::{Cause, State};

/// A row of table `census_moment`: a moment at which all tasks were looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusMomentRow {
    /// 1 and up.
    pub id: u64,
    /// Since the run's start, ns.
    pub time_ns: u64,
    /// How late it came, ns.
    pub late_ns: u64,
    /// The mean interval before it was that of the census times 2 to the power of this.
    pub stretch: u8,
}

/// A row of table `census_state`: what a task was seen doing from a moment on, until its next row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusStateRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// The moment's id.
    pub moment: u64,
    /// What it did; `None`: it is there no more.
    pub state: Option<State>,
    /// What it slept for.
    pub cause: Cause,
    /// Stack row id of what it slept in; 0 for none.
    pub stack: u32,
}

impl CensusStateRow {
    /// The state as in the table.
    pub fn state_name(&self) -> &'static str {
        self.state.map_or("gone", State::name)
    }
}
