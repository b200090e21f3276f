//! Times of the run's own command (`vprof run IMAGE -- CMD`), for benchmarks.

use serde::{Deserialize, Serialize};

use super::subtree::{COMMAND, subtree};
use super::view::View;
use super::{Estimate, Filter, ReportError};
use crate::rows::Charged;
use crate::rows::Mode;
use crate::store::Profile;

/// Times of the command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandTimes {
    /// Its words, separated by blanks.
    pub command: String,
    /// Time from its start to its end by the guest's monotonic clock, s; `None` if the guest has not reported
    /// it, or the command has not ended.
    pub wall_s: Option<f64>,
    /// CPU time of the command and its descendants; `None` in a report on another part of the profile, and if
    /// none of its processes is known.
    pub cpu: Option<Estimate>,
    /// The part of `cpu` in user code.
    pub user: Option<Estimate>,
    /// The part of `cpu` in the kernel: system calls and page faults, without interrupts.
    pub system: Option<Estimate>,
}

/// True for a profile of a run with its own command.
///
/// # Errors
/// See [`ReportError`].
pub(crate) fn has_command(profile: &Profile) -> Result<bool, ReportError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM meta WHERE key = 'command')";
    let found = profile.connection().query_row(sql, [], |row| row.get(0));
    Ok(found.map_err(|error| profile.error(&error))?)
}

impl CommandTimes {
    /// Reads the times; `None` for a run without a command.
    pub(super) fn new(filter: &Filter, view: &View<'_>) -> Option<Self> {
        let meta = &view.tables.meta;
        let command = meta.get("command")?.clone();
        let wall_ns = meta.get("command_wall_ns").and_then(|ns| ns.parse::<u64>().ok());
        let wall_s = wall_ns.map(crate::numbers::seconds);
        let tree = Filter { tree: Some(COMMAND.to_owned()), ..Filter::default() };
        let filter = Filter { relative: false, ..filter.clone() };
        if filter != Filter::default() && filter != tree {
            return Some(Self { command, wall_s, ..Self::default() });
        }
        let subtree = subtree(view.tables, COMMAND);
        if subtree.is_empty() {
            return Some(Self { command, wall_s, ..Self::default() });
        }
        let is_its = |charged| matches!(charged, Charged::Instance(id) if subtree.contains(&id));
        // The interval of the whole does not follow from those of its parts.
        let (whole, _) = view.by_context(|context| is_its(context.thread.charged).then_some(()));
        let (parts, _) =
            view.by_context(|context| is_its(context.thread.charged).then_some(context.mode == Mode::User));
        let part =
            |user| parts.iter().find(|(of, _)| *of == user).map_or_else(Estimate::default, |(_, part)| *part);
        Some(Self {
            command,
            wall_s,
            cpu: Some(whole.into_iter().map(|((), whole)| whole).next().unwrap_or_default()),
            user: Some(part(true)),
            system: Some(part(false)),
        })
    }
}
