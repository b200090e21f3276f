//! States of the tasks of a machine, summed by program, and what the guest's own accounting has of it.

use std::collections::BTreeMap;

use profile::Profile;
use profile::report::{
    Filter, MemoryReport, ReportError, SourceChoice, StateReport, TaskStateTimes, TimeInState,
};
use profile::rows::MemoryKind;
use profile::rusage::Rusage;

use super::keys::{LONGEST_NAME, bounded, split_smallest};
use super::rows::TaskRow;
use super::{CommonColumns, MOST_ROWS, OTHER};
use crate::ExportError;

/// Value of column `state` in rows with the accounting of a program.
const ACCOUNTING: &str = "accounting";

/// Program, state and wait reason.
type StateKey = (String, String, String);

/// Sums of a profile.
#[derive(Debug, Default)]
pub(super) struct TaskSums {
    states: Vec<(StateKey, StateSum)>,
    accounting: Vec<(String, AccountingSum)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct StateSum {
    /// Scans; `None` if samples divide the time.
    moments: Option<u64>,
    s: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct AccountingSum {
    user_ns: u64,
    system_ns: u64,
    rss_bytes: Option<u64>,
}

impl TaskSums {
    /// Reads the sums. A profile without states, or without accounting, has no such rows.
    pub(super) fn read(profile: &Profile, memory: Option<&MemoryReport>) -> Result<Self, ExportError> {
        let states = match StateReport::read(profile, &Filter::default(), SourceChoice::Best) {
            Ok(report) => states(&report.tasks),
            Err(ReportError::NoStates(_)) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { states, accounting: accounting(&Rusage::read(profile)?, memory) })
    }

    /// Returns the rows in the order of programs.
    pub(super) fn rows<'a>(&'a self, common: &'a CommonColumns<'a>) -> impl Iterator<Item = TaskRow<'a>> {
        let row = move |process, state, cause| TaskRow {
            t: common.t,
            window_ns: common.window_ns,
            host: common.host,
            vm: common.vm,
            vm_name: &common.vm_name,
            group_: common.group,
            process,
            state,
            cause,
            moments: None,
            time_ns: None,
            user_ns: None,
            system_ns: None,
            rss_bytes: None,
            inclusion: common.inclusion,
        };
        let states = self.states.iter().map(move |((process, state, cause), sum)| TaskRow {
            moments: sum.moments,
            time_ns: Some(nanoseconds(sum.s)),
            ..row(process, state, cause)
        });
        let accounting = self.accounting.iter().map(move |(process, sum)| TaskRow {
            user_ns: Some(sum.user_ns),
            system_ns: Some(sum.system_ns),
            rss_bytes: sum.rss_bytes,
            ..row(process, ACCOUNTING, "")
        });
        states.chain(accounting)
    }
}

/// Sums states by program; waits have a row for each reason.
fn states(tasks: &[TaskStateTimes]) -> Vec<(StateKey, StateSum)> {
    let mut sums: BTreeMap<StateKey, StateSum> = BTreeMap::new();
    let mut add = |process: String, time: &TimeInState| {
        let sum = sums.entry((process, time.state.clone(), bounded(&time.wait_reason, LONGEST_NAME)));
        let sum = sum.or_default();
        sum.s += time.s;
        sum.moments = match (sum.moments, time.count) {
            (None, count) => count,
            (Some(moments), count) => Some(moments.saturating_add(count.unwrap_or(0))),
        };
    };
    for task in tasks {
        let process = bounded(&task.task.comm, LONGEST_NAME);
        let waited = |state: &str| task.waits.iter().any(|wait| wait.state == state);
        let whole = task.states.iter().filter(|time| time.s > 0.0 && !waited(&time.state));
        whole.chain(&task.waits).for_each(|time| add(process.clone(), time));
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    let rest = split_smallest(&mut sums, MOST_ROWS, |(_, sum)| nanoseconds(sum.s));
    let mut others: BTreeMap<StateKey, StateSum> = BTreeMap::new();
    for ((_, state, _), sum) in rest {
        let other = others.entry((OTHER.to_owned(), state, String::new())).or_default();
        other.s += sum.s;
        other.moments = other.moments.into_iter().chain(sum.moments).reduce(u64::saturating_add);
    }
    sums.extend(others);
    sums.sort_by(|(a, _), (b, _)| a.cmp(b));
    sums
}

/// Sums the accounting by program, with the resident memory of the last reading.
fn accounting(rusage: &Rusage, memory: Option<&MemoryReport>) -> Vec<(String, AccountingSum)> {
    let mut sums: BTreeMap<String, AccountingSum> = BTreeMap::new();
    for process in &rusage.processes {
        let sum = sums.entry(bounded(&process.comm, LONGEST_NAME)).or_default();
        sum.user_ns = sum.user_ns.saturating_add(process.reported_user_ns);
        sum.system_ns = sum.system_ns.saturating_add(process.reported_system_ns);
    }
    let holders = memory.map_or(&[][..], |memory| memory.holders.as_slice());
    for holder in holders.iter().filter(|holder| holder.kind == MemoryKind::Process) {
        let Some(bytes) = holder.last else { continue };
        let sum = sums.entry(bounded(&holder.name, LONGEST_NAME)).or_default();
        sum.rss_bytes = Some(sum.rss_bytes.unwrap_or(0).saturating_add(bytes));
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    let time = |(_, sum): &(String, AccountingSum)| sum.user_ns.saturating_add(sum.system_ns);
    let rest = split_smallest(&mut sums, MOST_ROWS, time);
    if !rest.is_empty() {
        let other = rest.iter().fold(AccountingSum::default(), |other, (_, sum)| AccountingSum {
            user_ns: other.user_ns.saturating_add(sum.user_ns),
            system_ns: other.system_ns.saturating_add(sum.system_ns),
            rss_bytes: other.rss_bytes.into_iter().chain(sum.rss_bytes).reduce(u64::saturating_add),
        });
        sums.push((OTHER.to_owned(), other));
    }
    sums.sort_by(|(a, _), (b, _)| a.cmp(b));
    sums
}

/// Rounds a time in seconds.
fn nanoseconds(s: f64) -> u64 {
    display::units::rounded(s * 1e9)
}
