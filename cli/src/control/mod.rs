//! The control socket of a run: whoever owns the run can look at it and steer it while it goes on. docs/control.md
//! describes it for users.
//!
//! ```text
//!  vprof top ─┐                       ┌─ live tables ◀── batches of the run
//!  vprof ctl ─┼── JSON lines ── server┤
//!  scripts ───┘                       └─▶ Control ──▶ the run, here or in the portable host
//! ```

pub mod client;
pub mod ctl;
pub mod place;
pub mod protocol;
pub mod server;
