//! The panes: what of a look each of them shows.

use profile::live::{ExitRate, FunctionShare, Note, ProcessShare, Snapshot, TaskShare};
use text::clean::escaped;

use super::table::{Column, Order, Table, Value, column};
use crate::render::with_module;

/// One of the tables, or of the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
    Processes,
    Functions,
    Tasks,
    Exits,
    Console,
    Events,
}

impl Pane {
    /// In the order of their keys.
    pub const ALL: [Self; 6] =
        [Self::Processes, Self::Functions, Self::Tasks, Self::Exits, Self::Console, Self::Events];

    /// Its place in [`Pane::ALL`].
    pub fn place(self) -> usize {
        Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0)
    }

    /// The pane so many places on, round and round.
    pub fn after(self, places: usize) -> Self {
        Self::ALL[(self.place() + places) % Self::ALL.len()]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Functions => "functions",
            Self::Tasks => "tasks",
            Self::Exits => "exits",
            Self::Console => "console",
            Self::Events => "events",
        }
    }

    /// Its latest rows are the last ones, and are shown unless somebody looks back.
    pub fn follows(self) -> bool {
        matches!(self, Self::Console | Self::Events)
    }

    /// Its rows, sorted and filtered.
    pub fn table(self, look: &Snapshot, order: Order, filter: &str) -> Table {
        let mut table = match self {
            Self::Processes => processes(&look.processes),
            Self::Functions => functions(&look.functions),
            Self::Tasks => tasks(&look.tasks),
            Self::Exits => exits(&look.exits),
            Self::Console => console(&look.console),
            Self::Events => events(look),
        };
        table.filter(filter);
        if !self.follows() {
            table.sort(order);
        }
        table
    }
}

/// Columns for the name of a process.
const LAST: u16 = 16;
const NOT_SAMPLED: &str = "No samples in this span that were not idle.";

fn text(text: &str) -> Value {
    Value::Text(escaped(text).into_owned())
}

fn processes(rows: &[ProcessShare]) -> Table {
    const COLUMNS: [Column; 7] = [
        column("share", 7, 0),
        column("±", 6, 2),
        column("", 10, 5),
        column("user", 7, 3),
        column("samples", 9, 4),
        column("pid", 7, 1),
        column("process", 0, 0),
    ];
    let row = |process: &ProcessShare| {
        let (share, margin, bar) = Value::of(&process.share);
        let name = match (process.pid, process.instance) {
            (0, _) => escaped(&process.comm).into_owned(),
            (_, instance) => format!("{}#{instance}", escaped(&process.comm)),
        };
        let samples = Value::Count(process.samples);
        let pid = Value::Id(process.pid.into());
        vec![share, margin, bar, Value::Share(process.user), samples, pid, Value::Text(name)]
    };
    Table { columns: COLUMNS.to_vec(), rows: rows.iter().map(row).collect(), last: LAST, empty: NOT_SAMPLED }
}

fn functions(rows: &[FunctionShare]) -> Table {
    const COLUMNS: [Column; 7] = [
        column("self", 7, 0),
        column("±", 6, 3),
        column("", 10, 5),
        column("total", 7, 1),
        column("±", 6, 3),
        column("samples", 9, 4),
        column("function", 0, 0),
    ];
    let row = |function: &FunctionShare| {
        let (own, own_margin, bar) = Value::of(&function.own);
        let (total, total_margin, _) = Value::of(&function.total);
        let name = Value::Text(with_module(&function.symbol, function.module.as_deref()));
        vec![own, own_margin, bar, total, total_margin, Value::Count(function.samples), name]
    };
    Table { columns: COLUMNS.to_vec(), rows: rows.iter().map(row).collect(), last: 32, empty: NOT_SAMPLED }
}

/// States of tasks (`profile::rows::TaskState`), their columns, and when these give way.
const TASK_STATES: [(&str, Column); 8] = [
    ("running", column("running", 8, 0)),
    ("interrupted", column("irq", 7, 5)),
    ("runnable", column("runnable", 8, 1)),
    ("sleep", column("sleep", 7, 2)),
    ("disk", column("disk", 7, 3)),
    ("sampler", column("sampler", 8, 6)),
    ("stopped", column("stopped", 8, 7)),
    ("zombie", column("zombie", 7, 8)),
];

fn tasks(rows: &[TaskShare]) -> Table {
    let states = TASK_STATES.iter().map(|(_, column)| *column);
    let rest = [column("tid", 7, 4), column("pid", 7, 9), column("process", 0, 0)];
    let row = |task: &TaskShare| {
        let part = |name: &str| task.states.iter().find(|(state, _)| state == name).map_or(0.0, |(_, p)| *p);
        let mut row: Vec<_> = TASK_STATES.iter().map(|(name, _)| Value::Share(part(name))).collect();
        row.extend([Value::Id(task.tid.into()), Value::Id(task.pid.into()), text(&task.comm)]);
        row
    };
    Table {
        columns: states.chain(rest).collect(),
        rows: rows.iter().map(row).collect(),
        last: LAST,
        empty: "No task was seen in this span, by a scan or in exact mode.",
    }
}

fn exits(rows: &[ExitRate]) -> Table {
    const COLUMNS: [Column; 5] = [
        column("share", 7, 0),
        column("", 10, 3),
        column("per s", 9, 1),
        column("mean", 7, 2),
        column("reason", 0, 0),
    ];
    let row = |exit: &ExitRate| {
        let reason = match (&exit.device, exit.address) {
            (Some(device), Some(address)) => {
                format!("{}, {}: {address:#x}", escaped(device), escaped(&exit.reason))
            }
            (Some(device), None) => format!("{}, {}", escaped(device), escaped(&exit.reason)),
            (None, Some(address)) => format!("{}: {address:#x}", escaped(&exit.reason)),
            (None, None) => escaped(&exit.reason).into_owned(),
        };
        vec![
            Value::Share(exit.share),
            Value::Bar(exit.share),
            Value::PerSecond(exit.per_s),
            Value::Time(exit.mean_ns),
            Value::Text(reason),
        ]
    };
    Table {
        columns: COLUMNS.to_vec(),
        rows: rows.iter().map(row).collect(),
        last: 24,
        empty: "No exits to vprof in the last second.",
    }
}

fn console(lines: &[String]) -> Table {
    Table {
        columns: vec![column("", 0, 0)],
        rows: lines.iter().map(|line| vec![text(line)]).collect(),
        last: 0,
        empty: "The guest has written nothing to its console.",
    }
}

fn events(look: &Snapshot) -> Table {
    let row = |note: &Note| vec![Value::Moment(note.time_s), text(&note.kind), text(&note.text)];
    Table {
        columns: vec![column("time", 9, 0), column("kind", 10, 1), column("event", 0, 0)],
        rows: look.events.iter().map(row).collect(),
        last: 24,
        empty: "Nothing has happened yet.",
    }
}
