//! The panes: the part of a snapshot that each shows.

use display::clean::escaped;
use profile::live::{
    CallShare, ExitRate, FunctionShare, MemoryShare, Note, ProcessShare, ProgramShare, SamplePart, Snapshot,
    TaskShare,
};
use statistics::estimate::Share;

use crate::table::{CellValue, ScreenTable, SortOrder, TableColumn, TableRow, column};
use crate::widgets::calls::{CALLS, CALLS_LAST, call_cells};
use render::memory::holder_name;
use render::summary::program_name;
use render::with_module;

/// Thing that a row shows: the same in the next snapshot, wherever the row is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LiveTarget {
    /// A line of the console, an event, or a holder of memory.
    #[default]
    Line,
    /// An exit, by its reason.
    Exit(String),
    /// A program, a process or another owner of samples.
    Part(SamplePart),
    /// A thread of a process.
    Thread(SamplePart, i32),
    /// A function.
    Function(LiveFunction),
    /// A function in a tree of calls, with the functions on the way to it.
    Call(LiveFunction, Vec<LiveFunction>),
}

/// A function by its name and module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFunction {
    /// Name.
    pub symbol: String,
    /// Module; `None` for the kernel image.
    pub module: Option<String>,
}

/// Table of a pane.
pub type PaneTable = ScreenTable<LiveTarget>;

/// A pane with a table or text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaneKind {
    /// Programs, or their instances.
    Programs,
    Functions,
    Tasks,
    Exits,
    Console,
    Events,
    Memory,
}

impl PaneKind {
    /// Panes in the order of their keys.
    pub const ALL: [Self; 7] = [
        Self::Programs,
        Self::Functions,
        Self::Tasks,
        Self::Exits,
        Self::Console,
        Self::Events,
        Self::Memory,
    ];

    /// Returns the position in [`PaneKind::ALL`].
    pub fn place(self) -> usize {
        Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0)
    }

    /// Returns the pane this many positions further, from the last to the first.
    pub fn after(self, places: usize) -> Self {
        Self::ALL[(self.place() + places) % Self::ALL.len()]
    }

    /// Returns the pane's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Functions => "functions",
            Self::Tasks => "tasks",
            Self::Exits => "exits",
            Self::Console => "console",
            Self::Events => "events",
            Self::Memory => "memory",
        }
    }

    /// Returns true if the latest rows are the last ones, which are shown unless the user scrolls up.
    pub fn follows(self) -> bool {
        matches!(self, Self::Console | Self::Events)
    }

    /// Returns the rows, sorted and filtered; `instances` instead of programs.
    pub fn table(self, snapshot: &Snapshot, instances: bool, order: SortOrder, filter: &str) -> PaneTable {
        let mut table = match self {
            Self::Programs if instances => processes(&snapshot.processes),
            Self::Programs => programs(&snapshot.programs),
            Self::Functions => functions(&snapshot.functions),
            Self::Tasks => tasks(&snapshot.tasks),
            Self::Exits => exits(&snapshot.exits),
            Self::Console => console(&snapshot.console),
            Self::Events => events(snapshot),
            Self::Memory => memory(&snapshot.memory),
        };
        table.filter(filter);
        table.sort(order);
        table
    }
}

/// Columns for the name of a process.
const LAST: u16 = 16;
const NOT_SAMPLED: &str = "No samples in this span that were not idle.";

fn text(text: &str) -> CellValue {
    CellValue::Text(escaped(text).into_owned())
}

/// Columns of programs and of processes; the last one is the name.
const fn owner_columns(name: &'static str) -> [TableColumn; 7] {
    [
        column("share", 7, 0),
        column("±", 6, 2),
        column("", 10, 5),
        column("user", 7, 3),
        column("samples", 9, 4),
        column("pid", 7, 1),
        column(name, 0, 0),
    ]
}

/// Returns the cells of a program or a process.
fn owner_cells(share: &Share, user: f64, samples: u64, pid: i32, name: String) -> Vec<CellValue> {
    let (share, margin, bar) = CellValue::from_share(share);
    let (user, samples) = (CellValue::Share(user), CellValue::Count(samples));
    vec![share, margin, bar, user, samples, CellValue::Id(pid.into()), CellValue::Text(name)]
}

/// Returns a table of programs or processes.
fn owners(name: &'static str, rows: impl Iterator<Item = TableRow<LiveTarget>>) -> PaneTable {
    PaneTable {
        columns: owner_columns(name).to_vec(),
        rows: rows.collect(),
        last: LAST,
        empty: NOT_SAMPLED,
        sorts: true,
    }
}

fn programs(rows: &[ProgramShare]) -> PaneTable {
    let row = |program: &ProgramShare| {
        let ProgramShare { comm, kernel_thread, .. } = program;
        let name = program_name(comm, *kernel_thread, program.instances);
        let part = SamplePart::Program { comm: comm.clone(), kernel_thread: *kernel_thread };
        let pid = program.pid.unwrap_or(0);
        let cells = owner_cells(&program.share, program.user, program.samples, pid, name);
        TableRow { cells, target: LiveTarget::Part(part) }
    };
    owners("program", rows.iter().map(row))
}

fn processes(rows: &[ProcessShare]) -> PaneTable {
    let row = |process: &ProcessShare| {
        let (comm, instance) = (process.comm.clone(), process.instance);
        let (name, part) = match process.pid {
            0 => (escaped(&comm).into_owned(), SamplePart::Program { comm, kernel_thread: false }),
            _ => (format!("{}#{instance}", escaped(&comm)), SamplePart::Process { comm, instance }),
        };
        let cells = owner_cells(&process.share, process.user, process.samples, process.pid, name);
        TableRow { cells, target: LiveTarget::Part(part) }
    };
    owners("process", rows.iter().map(row))
}

/// Makes a table of functions.
pub fn functions(rows: &[FunctionShare]) -> PaneTable {
    const COLUMNS: [TableColumn; 7] = [
        column("self", 7, 0),
        column("±", 6, 3),
        column("", 10, 5),
        column("total", 7, 1),
        column("±", 6, 3),
        column("samples", 9, 4),
        column("function", 0, 0),
    ];
    let row = |function: &FunctionShare| {
        let (own, own_margin, bar) = CellValue::from_share(&function.own);
        let (total, total_margin, _) = CellValue::from_share(&function.total);
        let (symbol, module) = (function.symbol.clone(), function.module.clone());
        let name = CellValue::Text(with_module(&symbol, module.as_deref()));
        let cells = vec![own, own_margin, bar, total, total_margin, CellValue::Count(function.samples), name];
        TableRow { cells, target: LiveTarget::Function(LiveFunction { symbol, module }) }
    };
    PaneTable {
        columns: COLUMNS.to_vec(),
        rows: rows.iter().map(row).collect(),
        last: 32,
        empty: NOT_SAMPLED,
        sorts: true,
    }
}

/// Makes a table of the callers or callees of a function.
pub fn calls(nodes: &[CallShare]) -> PaneTable {
    let mut way: Vec<LiveFunction> = Vec::new();
    let mut row = |node: &CallShare| {
        let name = with_module(&node.symbol, node.module.as_deref());
        let cells = call_cells(node.depth, &name, (node.share.share, node.part), node.samples);
        let function = LiveFunction { symbol: node.symbol.clone(), module: node.module.clone() };
        way.truncate(usize::try_from(node.depth).unwrap_or(0));
        let target = LiveTarget::Call(function.clone(), way.clone());
        way.push(function);
        TableRow { cells, target }
    };
    PaneTable {
        columns: CALLS.to_vec(),
        rows: nodes.iter().map(&mut row).collect(),
        last: CALLS_LAST,
        empty: "No stack of this span has the function.",
        sorts: false,
    }
}

/// States of tasks (`profile::rows::TaskState`), their columns, and the ranks of these.
const TASK_STATES: [(&str, TableColumn); 8] = [
    ("running", column("running", 8, 0)),
    ("interrupted", column("irq", 7, 5)),
    ("runnable", column("runnable", 8, 1)),
    ("sleep", column("sleep", 7, 2)),
    ("disk", column("disk", 7, 3)),
    ("sampler", column("sampler", 8, 6)),
    ("stopped", column("stopped", 8, 7)),
    ("zombie", column("zombie", 7, 8)),
];

fn tasks(rows: &[TaskShare]) -> PaneTable {
    let states = TASK_STATES.iter().map(|(_, column)| *column);
    let rest = [column("tid", 7, 4), column("pid", 7, 9), column("process", 0, 0)];
    let row = |task: &TaskShare| {
        let part = |name: &str| task.states.iter().find(|(state, _)| state == name).map_or(0.0, |(_, p)| *p);
        let mut row: Vec<_> = TASK_STATES.iter().map(|(name, _)| CellValue::Share(part(name))).collect();
        row.extend([CellValue::Id(task.tid.into()), CellValue::Id(task.pid.into()), text(&task.comm)]);
        let process = SamplePart::Process { comm: task.comm.clone(), instance: task.instance };
        TableRow { cells: row, target: LiveTarget::Thread(process, task.tid) }
    };
    PaneTable {
        columns: states.chain(rest).collect(),
        rows: rows.iter().map(row).collect(),
        last: LAST,
        empty: "No task was seen in this span, by a scan or in exact mode.",
        sorts: true,
    }
}

fn exits(rows: &[ExitRate]) -> PaneTable {
    const COLUMNS: [TableColumn; 5] = [
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
        let cells = vec![
            CellValue::Share(exit.share),
            CellValue::Bar(exit.share),
            CellValue::PerSecond(exit.per_s),
            CellValue::Time(exit.mean_ns),
            CellValue::Text(reason.clone()),
        ];
        TableRow { cells, target: LiveTarget::Exit(reason) }
    };
    PaneTable {
        columns: COLUMNS.to_vec(),
        rows: rows.iter().map(row).collect(),
        last: 24,
        empty: "No exits to vprof in the last second.",
        sorts: true,
    }
}

fn memory(rows: &[MemoryShare]) -> PaneTable {
    const COLUMNS: [TableColumn; 6] = [
        column("memory", 9, 0),
        column("share", 7, 3),
        column("", 10, 4),
        column("growth", 10, 2),
        column("kind", 10, 1),
        column("holder", 0, 0),
    ];
    let row = |holder: &MemoryShare| {
        let pid = (holder.pid != 0).then_some(holder.pid);
        let cells = vec![
            CellValue::Bytes(holder.bytes),
            CellValue::Share(holder.share),
            CellValue::Bar(holder.share),
            CellValue::Growth(holder.growth),
            CellValue::Text(holder.kind.name().to_owned()),
            CellValue::Text(holder_name(holder.kind, &holder.name, pid)),
        ];
        TableRow { cells, target: LiveTarget::Line }
    };
    PaneTable {
        columns: COLUMNS.to_vec(),
        rows: rows.iter().map(row).collect(),
        last: LAST,
        empty: "The guest's memory is not read: --memory-use of `vprof run` and `vprof attach` turns it on.",
        sorts: false,
    }
}

fn console(lines: &[String]) -> PaneTable {
    PaneTable {
        columns: vec![column("", 0, 0)],
        rows: lines
            .iter()
            .map(|line| TableRow { cells: vec![text(line)], target: LiveTarget::Line })
            .collect(),
        last: 0,
        empty: "The guest has written nothing to its console.",
        sorts: false,
    }
}

fn events(snapshot: &Snapshot) -> PaneTable {
    let row = |note: &Note| {
        let cells = vec![CellValue::Moment(note.time_s), text(&note.kind), text(&note.text)];
        TableRow { cells, target: LiveTarget::Line }
    };
    PaneTable {
        columns: vec![column("time", 9, 0), column("kind", 10, 1), column("event", 0, 0)],
        rows: snapshot.events.iter().map(row).collect(),
        last: 24,
        empty: "Nothing has happened yet.",
        sorts: false,
    }
}
