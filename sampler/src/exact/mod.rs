//! Exact mode: every switch, wake-up, start and end of a task, and every hard interrupt, as an event instead
//! of a sample.
//!
//! ```text
//! guest calls finish_task_switch, try_to_wake_up, ...    (probes, crate `vmm`)
//!   └▶ vCPU thread: EventRecorder, a record of fixed size and the sleeper's stack ──ring──┐
//!                                                                                         ▼
//!                         collector: EventMerger merges all vCPUs by time ──▶ TaskAccounts ──▶ rows
//! ```
//!
//! The events give the state of every task at every time: microstates after Chubb (*Micro-State Accounting
//! for Linux*, 2003) and Solaris, none of which is sampled. The states of a task add up to its lifetime.
//!
//! The same probes watch other functions on request ([`trip`]), with exact mode or without.

pub(crate) mod accounts;
pub(crate) mod merger;
mod probes;
pub(crate) mod record;
mod rows;
mod runs;
mod task;
pub(crate) mod trip;
