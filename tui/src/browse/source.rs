//! The tables of a profile, and what is below each of their rows.

use std::path::{Path, PathBuf};

use display::clean::escaped;
use display::units;
use profile::report::{
    Annotation, By, CallTree, Direction, ModeGroup, Process, ProcessKind, Report, Request, Row, Target,
    TreeNode, TreeRequest,
};
use profile::{Filter, Profile};

use super::rows::{Below, BrowseTable, RowTarget, call_row, code_table, key_row};
use crate::ViewError;
use render::annotate::annotated_listing;
use render::summary;

/// Depth of a tree of calls: that of `vprof report --callers`.
const DEPTH: u32 = 8;

/// Kinds of tables, in the order of their keys 1 to 9 and 0.
pub const KINDS: [By; 10] = [
    By::Process,
    By::Instance,
    By::Thread,
    By::Function,
    By::Module,
    By::Line,
    By::Instruction,
    By::Cgroup,
    By::Irq,
    By::Syscall,
];

/// Kind of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// Samples, grouped: `--by`.
    By(By),
    /// Callers or callees of a function: `--callers`, `--callees`.
    Calls(Call, Direction),
    /// Machine code of a function: `vprof annotate`.
    Code(Target),
}

/// A function by its name and module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name.
    pub symbol: String,
    /// Module; `kernel` for the kernel image.
    pub module: String,
}

impl Call {
    /// Returns the function as one to annotate.
    pub fn target(&self) -> Target {
        Target { symbol: self.symbol.clone(), module: Some(self.module.clone()) }
    }
}

/// A table that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name in the path at the top of the screen; escaped.
    pub name: String,
    /// Part of the profile.
    pub filter: Filter,
    /// Kind of the table.
    pub view: View,
}

impl Place {
    /// Returns the table of programs of a part of the profile.
    pub fn of_programs(filter: Filter) -> Self {
        let name = summary::part(&filter)
            .map_or_else(|| "all".to_owned(), |part| part.trim_end_matches('.').to_owned());
        Self { name, filter, view: View::By(By::Process) }
    }
}

/// A profile whose tables are shown.
#[derive(Debug)]
pub struct ReportSource {
    profile: Profile,
    path: PathBuf,
}

impl ReportSource {
    /// Opens the profile.
    pub fn open(path: &Path) -> Result<Self, ViewError> {
        Ok(Self { profile: Profile::open(path)?, path: path.to_owned() })
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The profile cannot be read, or has no such function.
    pub fn table(&self, place: &Place) -> Result<BrowseTable, ViewError> {
        let request = match &place.view {
            View::By(by) => Request::By(vec![*by]),
            View::Calls(Call { symbol, module }, direction) => Request::Tree(TreeRequest {
                symbol: symbol.clone(),
                module: Some(module.clone()),
                direction: *direction,
                depth: DEPTH,
            }),
            View::Code(target) => {
                let annotation = Annotation::read(&self.profile, &place.filter, target)?;
                return Ok(code_table(&annotated_listing(&annotation, false)));
            }
        };
        let report = Report::read_with(&self.profile, &place.filter, &request)?;
        if report.is_empty() {
            return Err(ViewError::NoData(self.path.clone()));
        }
        let samples = format!(
            "{} of {}",
            units::count(report.chosen_samples),
            units::counted(report.busy_samples, "sample")
        );
        let title = heading(&report);
        let mut table = match (&report.by, &report.tree) {
            (_, Some(tree)) => calls(tree),
            (Some(breakdown), None) => {
                let row = |row: &Row| key_row(breakdown.by, row, below(row, breakdown.by, &report, place));
                BrowseTable::of_keys(breakdown.by, breakdown.rows.iter().map(row).collect())
            }
            (None, None) => BrowseTable::default(),
        };
        (table.title, table.samples) = (title, samples);
        Ok(table)
    }
}

/// Formats the guest and its run.
fn heading(report: &Report) -> String {
    let kernel = report.kernel.as_deref().unwrap_or("unknown kernel");
    let vcpus = units::counted(report.vcpus.len() as u64, "vCPU");
    format!(
        "Linux {}, {vcpus}, host {}, {}",
        escaped(kernel),
        escaped(&report.host),
        units::seconds(report.duration_s)
    )
}

fn calls(tree: &CallTree) -> BrowseTable {
    let row = |node: &TreeNode| {
        let call = (node.kind != "reason").then(|| Call {
            symbol: node.symbol.clone(),
            module: node.module.clone().unwrap_or_else(|| "kernel".to_owned()),
        });
        let below = call.as_ref().map_or(Below::Nothing("the stack has no more frames here"), |call| {
            Below::Place(View::Code(call.target()), name_of(call))
        });
        call_row(node, RowTarget { below, call })
    };
    BrowseTable::of_calls(tree.nodes.iter().map(row).collect())
}

fn name_of(call: &Call) -> String {
    escaped(&call.symbol).into_owned()
}

/// Returns what is below a row, and the function of a row of code.
fn below(row: &Row, by: By, report: &Report, place: &Place) -> RowTarget {
    let part = |name: &str, filter: Filter| {
        let place = Place { name: escaped(name).into_owned(), filter, view: View::By(By::Function) };
        RowTarget { below: Below::Part(Box::new(place)), ..RowTarget::default() }
    };
    let nothing = |why| RowTarget { below: Below::Nothing(why), ..RowTarget::default() };
    let filter = place.filter.clone();
    match by {
        By::Process if row.name == "[hard interrupts]" => {
            part(&row.name, Filter { modes: vec![ModeGroup::HardIrq], ..filter })
        }
        By::Process if is_task(row) => {
            let is_its = |process: &&Process| {
                process.comm == row.name && kind_name(process.kind) == row.kind.as_deref()
            };
            part(&row.name, Filter { process: instances(report, is_its), ..filter })
        }
        By::Instance if is_task(row) => {
            part(&row.name, Filter { instance: Some(row.name.clone()), ..filter })
        }
        By::Thread if is_task(row) && row.tid.is_some() => {
            let (instance, thread) = (row.process.clone(), row.tid.map(|tid| tid.to_string()));
            let name = format!(
                "thread {} of {}",
                thread.as_deref().unwrap_or_default(),
                instance.as_deref().unwrap_or_default()
            );
            part(&name, Filter { instance, thread, ..filter })
        }
        By::Cgroup => {
            let of_group = instances(report, |process| process.cgroup.as_deref() == Some(row.name.as_str()));
            match of_group.is_empty() {
                true => nothing("the tasks of this row have no control group"),
                false => part(&row.name, Filter { process: of_group, ..filter }),
            }
        }
        By::Process | By::Instance | By::Thread => nothing("this is not a process; 9 shows interrupts"),
        By::Vm => part(&row.name, Filter { vm: Some(row.name.clone()), ..filter }),
        By::Host => part(&row.name, Filter { host: Some(row.name.clone()), ..filter }),
        By::Module => part(&row.name, Filter { module: Some(row.name.clone()), ..filter }),
        By::Function => {
            let module = row.module.clone().unwrap_or_else(|| "kernel".to_owned());
            let call = Call { symbol: row.name.clone(), module };
            let view = View::Calls(call.clone(), Direction::Callees);
            RowTarget { below: Below::Place(view, name_of(&call)), call: Some(call) }
        }
        By::Instruction => match &row.address {
            Some(address) => {
                let module = row.module.clone().unwrap_or_else(|| "kernel".to_owned());
                let target = Target { symbol: address.clone(), module: Some(module) };
                let below = Below::Place(View::Code(target), escaped(&row.name).into_owned());
                RowTarget { below, ..RowTarget::default() }
            }
            None => nothing("the instruction has no address"),
        },
        By::Line => nothing("nothing is below a source line; 4 shows its functions"),
        By::Irq => nothing("nothing is below an interrupt; 4 shows the functions of all"),
        By::Syscall => nothing("nothing is below a system call; 4 shows the functions of all"),
    }
}

fn is_task(row: &Row) -> bool {
    matches!(row.kind.as_deref(), Some("process" | "kernel_thread"))
}

/// Returns the name of a task's kind as in [`Row::kind`].
fn kind_name(kind: ProcessKind) -> Option<&'static str> {
    match kind {
        ProcessKind::Process => Some("process"),
        ProcessKind::KernelThread => Some("kernel_thread"),
        ProcessKind::Interrupt | ProcessKind::Boot | ProcessKind::Unknown => None,
    }
}

/// Returns the instances among the rows of processes that `is_its` accepts, as `name#number`, or
/// `machine/name#number` in a merged profile: two kinds of tasks can have one name.
fn instances(report: &Report, is_its: impl Fn(&&Process) -> bool) -> Vec<String> {
    let tasks = report.processes.iter().filter(|process| kind_name(process.kind).is_some());
    let name = |Process { vm, comm, instance, .. }: &Process| match vm {
        Some(vm) => format!("{vm}/{comm}#{instance}"),
        None => format!("{comm}#{instance}"),
    };
    tasks.filter(is_its).map(name).collect()
}
