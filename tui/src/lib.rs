//! The two views that fill a terminal: a run in progress ([`live`], for `vprof top`) and the tables of a
//! profile ([`browse`], for `vprof report -i`).
//!
//! ```text
//!  bytes ──▶ keys ──▶ view: `key` ──▶ [`frame`] ──▶ source: a run, or a profile
//!  signals ─────────────────────────▶ [`frame`] ──▶ view: `draw` ──▶ [`screen`] ──▶ terminal
//! ```
//!
//! Both have one loop ([`frame::show`]) and one set of `widgets`, because a user who knows one view knows
//! the other: `/` filters, `s` sorts, Enter goes in. Between two events there is no work, and only changes
//! are written.

mod backend;
pub mod browse;
pub mod frame;
mod keys;
mod list;
pub mod live;
pub mod screen;
mod table;
pub mod terminal;
mod widgets;

use std::io;
use std::path::PathBuf;

use profile::ProfileError;
use profile::report::ReportError;

/// Failure of a view.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// An operation on the terminal or the system failed.
    #[error("can't {action}: {}", display::message::Reason(.source))]
    System {
        /// Like "read keys".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The profile cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The profile has no such part.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The profile has no data.
    #[error("{} has no data: its run has just begun, or could not write, as on a full disk", display::message::Shown(.0))]
    NoData(PathBuf),
}
