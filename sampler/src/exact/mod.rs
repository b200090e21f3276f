//! Exact mode: every switch, wake, start and end of a task, and every hard interrupt, as an event instead of a sample.
//!
//! ```text
//!  guest calls finish_task_switch, try_to_wake_up, ...    (tripwires, crate `vmm`)
//!    └▶ vCPU thread: Recorder, a record of fixed size and the sleeper's stack ──ring──┐
//!                                                                                     ▼
//!                              collector: Watch merges all vCPUs by time ──▶ Accounts ──▶ rows
//! ```
//!
//! From the events follows what every task did at every moment: microstates after Chubb (*Micro-State Accounting for
//! Linux*, 2003) and Solaris, none of which is sampled. The states of a task add up to its life.

pub(crate) mod accounts;
pub(crate) mod record;
mod rows;
mod setting;
pub(crate) mod state;
mod task;
pub(crate) mod watch;
