//! Shares of the chosen samples under names that are valid in other profiles, too.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::code::small;
use super::read::LoadedProfile;
use super::sums::Leaf;
use super::view::{View, frames};
use super::{By, Estimate, Filter, ReportError};
use crate::numbers::seconds;
use crate::rows::FrameKind;
use crate::store::Profile;

/// Kind of thing that has shares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharesBy {
    /// Functions, by their own samples.
    #[default]
    Function,
    /// Functions, by samples in them and in their callees.
    Total,
    /// Programs.
    Process,
    /// Whole stacks.
    Stack,
}

/// Name of a thing with a share.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShareKey {
    /// Of a function or a process; of a stack its functions, outermost first, separated by semicolons.
    pub name: String,
    /// Kernel module, or file name of user code, of a function.
    pub module: Option<String>,
    /// `user` or `kernel` of a function, `process`, `kernel_thread`, `interrupt`, `boot` or `unknown` of a
    /// process.
    pub kind: Option<String>,
}

/// Shares of all things of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Each with its share of all time in the guest that is not idle.
    pub rows: Vec<(ShareKey, Estimate)>,
    /// Estimate of a thing without a sample.
    pub absent: Estimate,
    /// Estimate of all chosen samples together.
    pub whole: Estimate,
    /// Samples in the guest that are not idle.
    pub busy_samples: u64,
    /// Time that all shares refer to, s.
    pub busy_s: f64,
    /// Length of the run, s.
    pub duration_s: f64,
    /// `kvm`, `portable` or `unknown`.
    pub host: String,
    /// False if the run was cut short, or is in progress.
    pub complete: bool,
    /// True if intervals are valid: not under a fixed clock.
    pub intervals_valid: bool,
}

impl Shares {
    /// Reads a profile without the thing that the filter names: no rows.
    pub(crate) fn read_none(profile: &Profile, filter: &Filter, by: SharesBy) -> Result<Self, ReportError> {
        let found = Self::read(profile, &filter.of_time(), by)?;
        Ok(Self { rows: Vec::new(), whole: found.absent, ..found })
    }

    /// Reads the shares from the part of a profile that `filter` chooses.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(profile: &Profile, filter: &Filter, by: SharesBy) -> Result<Self, ReportError> {
        let loaded = LoadedProfile::read(profile, filter)?;
        let view = loaded.view();
        let rows = match by {
            SharesBy::Function | SharesBy::Total => functions(&view, by == SharesBy::Total),
            SharesBy::Process => rows(view.program_rows(), false),
            SharesBy::Stack => stacks(&view),
        };
        let needs_stacks = matches!(by, SharesBy::Total | SharesBy::Stack);
        let tick_log = if needs_stacks { view.sums.stack_log() } else { &view.sums.tick_log };
        let tables = view.tables;
        let absent = tick_log.estimates(1, |_| &[]).pop().unwrap_or_default();
        let whole = tick_log.estimates(1, |_| &[0]).pop().unwrap_or_default();
        Ok(Self {
            rows,
            absent,
            whole,
            busy_samples: tick_log.busy(),
            busy_s: seconds(tick_log.busy_ns()),
            duration_s: tables.duration_s(),
            host: tables.meta.get("host").cloned().unwrap_or_else(|| "unknown".to_owned()),
            complete: tables.meta.get("complete").is_some_and(|value| value == "1"),
            intervals_valid: tables.intervals_valid(),
        })
    }
}

fn functions(view: &View<'_>, total: bool) -> Vec<(ShareKey, Estimate)> {
    let found = view.rows(&[By::Function]).0;
    let shown = found.into_iter().filter(|row| total || row.own.samples > 0);
    rows(shown.collect(), total)
}

fn rows(rows: Vec<super::Row>, total: bool) -> Vec<(ShareKey, Estimate)> {
    let key = |row: super::Row| {
        let estimate = if total { row.total } else { row.own };
        (ShareKey { name: row.name, module: row.module, kind: row.kind }, estimate)
    };
    rows.into_iter().map(key).collect()
}

/// Returns the shares of stacks; stacks with the same names are one.
fn stacks(view: &View<'_>) -> Vec<(ShareKey, Estimate)> {
    let mut names: Vec<String> = Vec::new();
    let mut known: HashMap<String, u32> = HashMap::new();
    let places: HashMap<Leaf, u32> = (view.sums.leaves.list.iter())
        .filter(|(leaf, _)| !leaf.flat)
        .map(|(leaf, _)| {
            let place = *known.entry(folded(view, leaf)).or_insert_with_key(|name| {
                names.push(name.clone());
                small(names.len() - 1)
            });
            (*leaf, place)
        })
        .collect();
    let (found, _) = view.by_stack(|leaf| places.get(leaf).copied());
    let row = |(place, estimate): (u32, Estimate)| {
        let name = names.get(place as usize).cloned().unwrap_or_default();
        (ShareKey { name, ..ShareKey::default() }, estimate)
    };
    found.into_iter().map(row).collect()
}

fn folded(view: &View<'_>, leaf: &Leaf) -> String {
    let mut functions: Vec<u32> = frames(view.stacks, leaf)
        .flat_map(|frame| &view.code.entries[view.code.frames[frame as usize].slots()])
        .map(|entry| entry.function)
        .collect();
    functions.reverse();
    let name = |&function: &u32| {
        let function = &view.code.functions[function as usize];
        let symbol = function.symbol.replace(';', ":");
        match function.kind {
            FrameKind::Reason => format!("[no frame: {symbol}]"),
            _ => symbol,
        }
    };
    functions.iter().map(name).collect::<Vec<_>>().join(";")
}
