//! Calls of watched functions: `vprof report --trips`. Serializes to the object that docs/json.md describes.

mod calls;
mod tally;
mod values;

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use statistics::estimate::sampled;
use statistics::part;

use super::exact::{DurationSummary, Stacks, count};
use super::filter::Selection;
use super::tables::Tables;
use super::{Filter, ReportError};
use crate::numbers::seconds;
use crate::store::Profile;
pub use calls::{CallStack, TripCall, call_stacks, for_each_call};
use tally::Tallies;
use values::ValueNames;

/// Arguments that a call has, at most.
const ARGUMENTS: usize = 6;

/// Cost of the calls of a function, in time of the vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TripCost {
    /// Both parts, s.
    pub whole_s: f64,
    /// From the calls' exits to the next entries, s: measured.
    pub served_s: f64,
    /// Switches from the guest to the host and back, s: estimated by the samples at the function's first
    /// instruction.
    pub switching_s: f64,
    /// Lower end of its 95 % interval, s.
    pub switching_low_s: f64,
    /// Upper end, s.
    pub switching_high_s: f64,
    /// Number of those samples.
    pub switching_samples: u64,
}

impl TripCost {
    fn new(served_ns: u64, switching_ns: u64, samples: u64) -> Self {
        let (served_s, switching_s) = (seconds(served_ns), seconds(switching_ns));
        let (switching_low_s, switching_high_s) = sampled(switching_s, samples);
        Self {
            whole_s: served_s + switching_s,
            served_s,
            switching_s,
            switching_low_s,
            switching_high_s,
            switching_samples: samples,
        }
    }
}

/// Calls by one process, or in interrupts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripOwner {
    /// Program name; `[softirq]`, `[hardirq]`, `[nmi]`, `[idle]` or `[unknown]` where no process is charged.
    pub comm: String,
    /// Process id; 0 where no process is charged.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// Number of calls.
    pub calls: u64,
    /// Its part of the chosen calls.
    pub share: f64,
}

/// Calls from one place of the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripCaller {
    /// Functions, the direct caller first; those of the kernel and then of the program.
    pub stack: Vec<String>,
    /// Number of calls: exact if each call has a stack, else an estimate.
    pub calls: f64,
    /// Standard error; 0 for an exact number.
    pub error: f64,
    /// Part of the calls of all stacks.
    pub share: f64,
}

/// A value of an argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripValue {
    /// The value as text: a number, an address in hexadecimal, the name of an enumeration's value, a text in
    /// quotation marks, `NULL`, or `[unreadable]` for a text that could not be read or kept.
    pub value: String,
    /// Number of calls.
    pub calls: u64,
    /// Its part of the chosen calls.
    pub share: f64,
}

/// An argument of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripArgument {
    /// Name; empty if it has none.
    pub name: String,
    /// Type as in C.
    pub type_name: String,
    /// Different values. Values after the first 65,536 of them are counted together, as `[other]`.
    pub different: usize,
    /// Values, most calls first.
    pub values: Vec<TripValue>,
}

/// A watched function and its calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripFunction {
    /// Name in the guest's kernel.
    pub symbol: String,
    /// Calls of the whole guest: exact.
    pub calls: u64,
    /// Calls per second of the time for which it was watched.
    pub rate_hz: f64,
    /// Calls whose record was lost, as a vCPU's ring was full.
    pub lost: u64,
    /// Later calls that the profile leaves out for its size.
    pub left_out: u64,
    /// Stacks that were chosen, but not read, as all buffers were in use.
    pub stacks_missed: u64,
    /// Cost of its calls.
    pub cost: TripCost,
    /// Recorded calls that the filter chooses. All that follows is about these.
    pub chosen: u64,
    /// Times from one call to the next, on any vCPU; `None` with fewer than two calls.
    pub interval: Option<DurationSummary>,
    /// Processes, most calls first.
    pub processes: Vec<TripOwner>,
    /// Number of stacks.
    pub stacks: u64,
    /// Callers, most calls first.
    pub callers: Vec<TripCaller>,
    /// Arguments that registers hold, in their order; `None` if the kernel's types do not describe the
    /// function.
    pub arguments: Option<Vec<TripArgument>>,
}

/// Calls of all watched functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripReport {
    /// Start, s since the run's start.
    pub from_s: f64,
    /// End, s since the run's start; the end of the run if nothing ended it before.
    pub to_s: f64,
    /// Reason of the end; `None` in a run that was cut short or is in progress.
    pub end: Option<String>,
    /// Time of an exit to vprof and back on the host, measured before the run, s; `None` if it was not.
    pub exit_s: Option<f64>,
    /// The functions, in the order in which they were given.
    pub functions: Vec<TripFunction>,
}

impl TripReport {
    /// Reads the calls that the filter's processes, tasks, vCPU and time choose. Modes and functions choose
    /// no calls.
    ///
    /// # Errors
    /// [`ReportError::NoTrips`] if no function was watched; the filter names something that does not exist.
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        profile.has_one_vm("watched functions")?;
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let _one_state = crate::store::snapshot(connection).map_err(sql)?;
        let meta = |key: &str| super::exact::meta(connection, key).map_err(sql);
        let number = |key: &str| Ok::<_, ReportError>(meta(key)?.and_then(|text| text.parse::<u64>().ok()));
        let Some(from_ns) = number("trip_from_ns")? else {
            let reason = match meta("trips")? {
                Some(names) => format!("the run ended before {names} could be watched"),
                None => "it was made without `vprof run --trip FUNCTION`".to_owned(),
            };
            return Err(ReportError::NoTrips(reason));
        };
        let to_ns = number("trip_to_ns")?.or(number("duration_ns")?).unwrap_or(from_ns);
        let tables = Tables::read(connection).map_err(sql)?;
        let chosen = Selection::of_tasks(filter, profile, &tables)?;
        let watched_s = seconds(to_ns.saturating_sub(from_ns));
        let mut functions = functions(connection, watched_s).map_err(sql)?;
        let mut tallies = Tallies::read(connection, (filter, &tables), &chosen).map_err(sql)?;
        let names = ValueNames::read(connection).map_err(sql)?;
        let stacks = Stacks::read(connection).map_err(sql)?;
        for (id, function) in &mut functions {
            let tally = tallies.0.remove(id).unwrap_or_default();
            tally.describe(function, &tables, &stacks);
            if let Some(arguments) = &mut function.arguments {
                for ((argument, number), counted) in arguments.iter_mut().zip(1..).zip(&tally.values) {
                    argument.different = counted.values.len();
                    argument.values = names.describe((*id, number), counted, tally.calls);
                }
            }
        }
        Ok(Self {
            from_s: seconds(from_ns),
            to_s: seconds(to_ns),
            end: meta("trip_end")?,
            exit_s: number("trip_exit_ns")?.map(seconds),
            functions: functions.into_values().collect(),
        })
    }
}

/// Reads the functions with their totals, by row id.
fn functions(connection: &Connection, watched_s: f64) -> rusqlite::Result<BTreeMap<u32, TripFunction>> {
    let mut statement = connection.prepare(
        "SELECT t.id, symbol, typed, calls, lost, stacks_missed, cost_ns, switching_ns, switching_samples, \
         (SELECT count(*) FROM trip_call c WHERE c.trip = t.id) FROM trip t",
    )?;
    let rows = statement.query_map([], |row| {
        let (calls, lost) = (count(row, 3)?, count(row, 4)?);
        #[expect(clippy::cast_precision_loss, reason = "a count below 2^53")]
        let rate_hz = if watched_s > 0.0 { calls as f64 / watched_s } else { 0.0 };
        let function = TripFunction {
            symbol: row.get(1)?,
            calls,
            rate_hz,
            lost,
            left_out: calls.saturating_sub(lost).saturating_sub(count(row, 9)?),
            stacks_missed: count(row, 5)?,
            cost: TripCost::new(count(row, 6)?, count(row, 7)?, count(row, 8)?),
            chosen: 0,
            interval: None,
            processes: Vec::new(),
            stacks: 0,
            callers: Vec::new(),
            arguments: row.get::<_, bool>(2)?.then(Vec::new),
        };
        Ok((row.get(0)?, function))
    })?;
    let mut functions: BTreeMap<u32, TripFunction> = rows.collect::<Result<_, _>>()?;
    let mut statement =
        connection.prepare("SELECT trip, name, type_name FROM trip_argument ORDER BY trip, number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let function = functions.get_mut(&row.get::<_, u32>(0)?);
        if let Some(arguments) = function.and_then(|function| function.arguments.as_mut()) {
            let (name, type_name) = (row.get(1)?, row.get(2)?);
            arguments.push(TripArgument { name, type_name, different: 0, values: Vec::new() });
        }
    }
    Ok(functions)
}
