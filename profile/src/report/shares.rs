//! The chosen samples by one thing under names that hold in other profiles, too.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::code::small;
use super::read::Loaded;
use super::sums::Leaf;
use super::view::{View, frames};
use super::{By, Estimate, Filter, ReportError};
use crate::estimate;
use crate::numbers::seconds;
use crate::rows::FrameKind;
use crate::store::Profile;

/// What shares are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharesBy {
    /// Functions: samples of their own.
    #[default]
    Function,
    /// Functions: samples in them and in what they call.
    Total,
    /// Programs.
    Process,
    /// Whole stacks.
    Stack,
}

/// What has a share.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShareKey {
    /// Of a function or a process; of a stack its functions, outermost first, separated by semicolons.
    pub name: String,
    /// Kernel module, or file name of user code, of a function.
    pub module: Option<String>,
    /// `user` or `kernel` of a function, `process`, `kernel_thread`, `interrupt`, `boot` or `unknown` of a process.
    pub kind: Option<String>,
}

/// What samples say of each thing.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Each with its share of all time in the guest that is not idle.
    pub rows: Vec<(ShareKey, Estimate)>,
    /// What is said of a thing that no sample hit.
    pub absent: Estimate,
    /// All that was chosen together.
    pub whole: Estimate,
    /// Samples that fell into the guest and are not idle.
    pub busy_samples: u64,
    /// The time that all shares are of, s.
    pub busy_s: f64,
    /// Length of the run, s.
    pub duration_s: f64,
    /// `kvm`, `portable` or `unknown`.
    pub host: String,
    /// False when the run was cut short, or goes on.
    pub complete: bool,
    /// Whether intervals hold: not under a fixed clock.
    pub intervals_valid: bool,
}

impl Shares {
    /// Of a profile without what the filter names: no rows.
    pub(crate) fn read_none(profile: &Profile, filter: &Filter, by: SharesBy) -> Result<Self, ReportError> {
        let Filter { vcpu, from_ns, to_ns, .. } = *filter;
        let whole = Filter { vcpu, from_ns, to_ns, ..Filter::default() };
        let found = Self::read(profile, &whole, by)?;
        Ok(Self { rows: Vec::new(), whole: found.absent, ..found })
    }

    /// Reads them from the part of a profile that `filter` chooses.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(profile: &Profile, filter: &Filter, by: SharesBy) -> Result<Self, ReportError> {
        let loaded = Loaded::read(profile, filter)?;
        let view = loaded.view();
        let rows = match by {
            SharesBy::Function | SharesBy::Total => functions(&view, by == SharesBy::Total),
            SharesBy::Process => rows(view.charged_rows(By::Process).0, false),
            SharesBy::Stack => stacks(&view),
        };
        let (tables, tick_log) = (view.tables, &view.sums.tick_log);
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
            intervals_valid: estimate::trustworthy(tables.clock()),
        })
    }
}

fn functions(view: &View<'_>, total: bool) -> Vec<(ShareKey, Estimate)> {
    let found = view.code_rows(By::Function).0;
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

/// Stacks that have the same names are one.
fn stacks(view: &View<'_>) -> Vec<(ShareKey, Estimate)> {
    let mut names: Vec<String> = Vec::new();
    let mut known: HashMap<String, u32> = HashMap::new();
    let places: HashMap<Leaf, u32> = (view.sums.leaves.list.iter())
        .map(|(leaf, _)| {
            let place = *known.entry(folded(view, leaf)).or_insert_with_key(|name| {
                names.push(name.clone());
                small(names.len() - 1)
            });
            (*leaf, place)
        })
        .collect();
    let (found, _) = view.by_leaf(|leaf| places.get(leaf).copied());
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
