//! Sums over the calls of watched functions.

use std::collections::HashMap;

use rusqlite::{Connection, Row};

use super::{ARGUMENTS, TripCaller, TripFunction, TripOwner, count, part};
use crate::report::Filter;
use crate::report::exact::{DelaySum, Stacks};
use crate::report::filter::{Selection, VCPU_AND_TIME};
use crate::report::tables::Tables;
use crate::rows::Mode;

/// Different values of one argument that are counted, at most; all others count together.
const MAX_VALUES: usize = 65_536;

/// Calls by the values of one argument.
#[derive(Debug, Default)]
pub(super) struct CountedValues {
    pub values: HashMap<Option<i64>, u64>,
    pub other: u64,
}

impl CountedValues {
    fn count(&mut self, value: Option<i64>) {
        if let Some(calls) = self.values.get_mut(&value) {
            *calls += 1;
        } else if self.values.len() < MAX_VALUES {
            self.values.insert(value, 1);
        } else {
            self.other += 1;
        }
    }
}

/// Returns who is charged for a call, without calls yet: a process only for what the kernel does for it.
pub(super) fn owner_of(mode: Mode, instance: Option<u32>, tables: &Tables) -> TripOwner {
    let (calls, share) = (0, 0.0);
    match instance.filter(|_| mode == Mode::Kernel).and_then(|id| tables.instances.get(&id)) {
        Some(known) => TripOwner {
            comm: known.comm.clone(),
            pid: known.pid,
            instance: known.number,
            kernel_thread: known.kernel_thread,
            calls,
            share,
        },
        None => {
            let name = if mode == Mode::Kernel { Mode::Unknown.name() } else { mode.name() };
            TripOwner { comm: format!("[{name}]"), pid: 0, instance: 0, kernel_thread: false, calls, share }
        }
    }
}

/// Weights of the stacks of one place.
#[derive(Debug, Clone, Copy, Default)]
struct StackSum {
    stacks: u64,
    calls: u64,
    /// Estimated variance of the number of calls: the sum of w (w - 1) (Horvitz and Thompson, with calls that
    /// are chosen independently).
    variance: u64,
}

impl StackSum {
    fn add(&mut self, more: &Self) {
        self.stacks = self.stacks.saturating_add(more.stacks);
        self.calls = self.calls.saturating_add(more.calls);
        self.variance = self.variance.saturating_add(more.variance);
    }
}

/// Chosen calls of one function.
#[derive(Debug, Default)]
pub(super) struct CallTally {
    pub calls: u64,
    last_ns: Option<u64>,
    intervals: DelaySum,
    owners: HashMap<(Mode, Option<u32>), u64>,
    stacks: HashMap<i64, StackSum>,
    pub values: [CountedValues; ARGUMENTS],
}

impl CallTally {
    fn add(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let time_ns = count(row, 1)?;
        self.calls += 1;
        if let Some(last_ns) = self.last_ns.replace(time_ns) {
            self.intervals.count(time_ns.saturating_sub(last_ns), last_ns);
        }
        let mode = Mode::from_id(row.get(2)?);
        *self.owners.entry((mode, row.get(3)?)).or_default() += 1;
        if let (Some(stack), weight @ 1..) = (row.get::<_, Option<i64>>(5)?, count(row, 6)?) {
            let variance = weight.saturating_mul(weight - 1);
            self.stacks.entry(stack).or_default().add(&StackSum { stacks: 1, calls: weight, variance });
        }
        for (values, column) in self.values.iter_mut().zip(7..) {
            values.count(row.get(column)?);
        }
        Ok(())
    }

    pub(super) fn describe(&self, function: &mut TripFunction, tables: &Tables, stacks: &Stacks) {
        function.chosen = self.calls;
        function.interval = self.intervals.summary();
        function.processes = self.owners(tables);
        let mut callers: HashMap<Vec<String>, StackSum> = HashMap::new();
        for (stack, sum) in &self.stacks {
            // The innermost function is the watched one. Stacks of different addresses may have the same
            // names.
            let mut names = stacks.functions(*stack);
            names.drain(..names.len().min(1));
            callers.entry(names).or_default().add(sum);
        }
        let mut all = StackSum::default();
        callers.values().for_each(|sum| all.add(sum));
        function.stacks = all.stacks;
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let caller = |(stack, sum): (Vec<String>, StackSum)| TripCaller {
            stack,
            calls: sum.calls as f64,
            error: (sum.variance as f64).sqrt(),
            share: part(sum.calls, all.calls),
        };
        function.callers = callers.into_iter().map(caller).collect();
        function.callers.sort_by(|a, b| b.calls.total_cmp(&a.calls).then_with(|| a.stack.cmp(&b.stack)));
    }

    fn owners(&self, tables: &Tables) -> Vec<TripOwner> {
        let owner = |(&(mode, instance), &calls): (&(Mode, Option<u32>), &u64)| {
            let mut owner = owner_of(mode, instance, tables);
            (owner.calls, owner.share) = (calls, part(calls, self.calls));
            owner
        };
        let mut owners: Vec<TripOwner> = self.owners.iter().map(owner).collect();
        owners.sort_by(|a, b| {
            let order = |owner: &TripOwner| (owner.comm.clone(), owner.pid, owner.instance);
            b.calls.cmp(&a.calls).then_with(|| order(a).cmp(&order(b)))
        });
        owners
    }
}

/// Chosen calls by the row id of the function.
pub(super) struct Tallies(pub HashMap<u32, CallTally>);

impl Tallies {
    pub(super) fn read(
        connection: &Connection,
        filter: (&Filter, &Tables),
        chosen: &Selection,
    ) -> rusqlite::Result<Self> {
        let mut tallies: HashMap<u32, CallTally> = HashMap::new();
        for_each_row(connection, filter, chosen, |row| tallies.entry(row.get(0)?).or_default().add(row))?;
        Ok(Self(tallies))
    }
}

/// Calls `each` with the chosen rows of table `trip_call` in the order of time: function, time, mode,
/// instance, thread id, stack, weight, six arguments, vCPU.
pub(super) fn for_each_row<E: From<rusqlite::Error>>(
    connection: &Connection,
    (filter, tables): (&Filter, &Tables),
    chosen: &Selection,
    mut each: impl FnMut(&Row<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut statement = connection.prepare(&format!(
        "SELECT trip, time_ns, mode, instance, tid, stack, weight, argument_1, argument_2, argument_3, \
         argument_4, argument_5, argument_6, vcpu FROM trip_call \
         WHERE {VCPU_AND_TIME} ORDER BY time_ns, id"
    ))?;
    let mut rows = statement.query(filter.vcpu_and_time(tables))?;
    while let Some(row) = rows.next()? {
        let task = (row.get::<_, Option<u32>>(3)?.unwrap_or(0), row.get::<_, Option<i32>>(4)?.unwrap_or(0));
        // What is charged to no process is not a task's.
        let in_task = Mode::from_id(row.get(2)?) == Mode::Kernel;
        if chosen.has_task(task) && (in_task || chosen.has_all_tasks()) {
            each(row)?;
        }
    }
    Ok(())
}
