//! Single calls of watched functions, and their stacks, for exports.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::tally::{for_each_row, owner_of};
use super::values::ValueNames;
use super::{ARGUMENTS, count};
use crate::report::exact::Stacks;
use crate::report::filter::{Selection, no_such};
use crate::report::tables::Tables;
use crate::report::{Filter, ReportError};
use crate::rows::Mode;
use crate::store::Profile;

/// A call of a watched function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TripCall {
    /// Name of the function.
    pub symbol: String,
    /// vCPU.
    pub vcpu: u16,
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Program name, or what is charged in brackets.
    pub comm: String,
    /// Thread id; `None` where no process is charged.
    pub tid: Option<i32>,
    /// Names and values of the arguments.
    pub arguments: Vec<(String, String)>,
}

/// Calls of a function from one place of the code by one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallStack {
    /// Program name, or what is charged in brackets.
    pub comm: String,
    /// Functions, innermost first: the watched one.
    pub stack: Vec<String>,
    /// Number of calls: an estimate where only a part of the calls has a stack.
    pub calls: u64,
}

/// Names of functions, and of their arguments, by row id.
type Functions = HashMap<u32, (String, Vec<String>)>;

fn functions(connection: &Connection) -> rusqlite::Result<Functions> {
    let mut statement = connection.prepare("SELECT id, symbol FROM trip")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, Vec::new()))))?;
    let mut functions: Functions = rows.collect::<Result<_, _>>()?;
    let mut statement = connection.prepare("SELECT trip, name FROM trip_argument ORDER BY trip, number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((_, names)) = functions.get_mut(&row.get(0)?) {
            names.push(row.get(1)?);
        }
    }
    Ok(functions)
}

/// Calls `each` with the calls of all watched functions in the order of time. They are not kept in memory.
///
/// # Errors
/// The profile cannot be read, or `each` fails.
pub fn for_each_call<E: From<ReportError>>(
    profile: &Profile,
    mut each: impl FnMut(TripCall) -> Result<(), E>,
) -> Result<(), E> {
    let sql = |error: rusqlite::Error| ReportError::from(profile.error(&error));
    let connection = profile.connection();
    let _one_state = crate::store::snapshot(connection).map_err(sql)?;
    let (functions, tables) = (functions(connection).map_err(sql)?, Tables::read(connection).map_err(sql)?);
    let names = ValueNames::read(connection).map_err(sql)?;
    let read = for_each_row(connection, (&Filter::default(), &tables), &Selection::default(), |row| {
        let id: u32 = row.get(0)?;
        let Some((symbol, arguments)) = functions.get(&id) else { return Ok(()) };
        let owner = owner_of(Mode::from_id(row.get(2)?), row.get(3)?, &tables);
        let argument = |((name, number), column): ((&String, u8), usize)| {
            let value = names.text((id, number), row.get(column)?);
            let name = if name.is_empty() { format!("argument {number}") } else { name.clone() };
            Ok::<_, rusqlite::Error>((name, value))
        };
        let call = TripCall {
            symbol: symbol.clone(),
            vcpu: row.get(13)?,
            time_ns: count(row, 1)?,
            tid: row.get::<_, Option<i32>>(4)?.filter(|_| owner.pid != 0),
            comm: owner.comm,
            arguments: arguments
                .iter()
                .zip(1..)
                .zip(7..7 + ARGUMENTS)
                .map(argument)
                .collect::<Result<_, _>>()?,
        };
        each(call).map_err(CallFailure::Each)
    });
    read.map_err(|failure| match failure {
        CallFailure::Read(error) => sql(error).into(),
        CallFailure::Each(error) => error,
    })
}

/// Why calls are not passed on.
enum CallFailure<E> {
    Read(rusqlite::Error),
    Each(E),
}

impl<E> From<rusqlite::Error> for CallFailure<E> {
    fn from(error: rusqlite::Error) -> Self {
        Self::Read(error)
    }
}

/// Returns the chosen stacks of a watched function by program, in the order of their names.
///
/// # Errors
/// [`ReportError::NoSuch`] if the function was not watched, or the filter names something that does not
/// exist.
pub fn call_stacks(profile: &Profile, filter: &Filter, symbol: &str) -> Result<Vec<CallStack>, ReportError> {
    let sql = |error: rusqlite::Error| profile.error(&error);
    let connection = profile.connection();
    let _one_state = crate::store::snapshot(connection).map_err(sql)?;
    let tables = Tables::read(connection).map_err(sql)?;
    let chosen = Selection::of_tasks(filter, profile, &tables)?;
    let functions = functions(connection).map_err(sql)?;
    let Some(wanted) = functions.iter().find(|(_, (name, _))| name == symbol).map(|(id, _)| *id) else {
        let names = functions.values().map(|(name, _)| name.as_str()).collect();
        return Err(no_such("watched function", symbol, names, "--trips"));
    };
    let mut sums: HashMap<(String, i64), u64> = HashMap::new();
    for_each_row(connection, (filter, &tables), &chosen, |row| {
        let id: u32 = row.get(0)?;
        if let (true, Some(stack)) = (id == wanted, row.get::<_, Option<i64>>(5)?) {
            let owner = owner_of(Mode::from_id(row.get(2)?), row.get(3)?, &tables);
            *sums.entry((owner.comm, stack)).or_default() += count(row, 6)?;
        }
        Ok::<_, rusqlite::Error>(())
    })
    .map_err(sql)?;
    let stacks = Stacks::read(connection).map_err(sql)?;
    let mut named: BTreeMap<(String, Vec<String>), u64> = BTreeMap::new();
    for ((comm, stack), calls) in sums {
        *named.entry((comm, stacks.functions(stack))).or_default() += calls;
    }
    Ok(named.into_iter().map(|((comm, stack), calls)| CallStack { comm, stack, calls }).collect())
}
