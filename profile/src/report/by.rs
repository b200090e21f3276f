//! Samples grouped by functions, lines, threads and so on.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use text::message::UnknownName;

use super::view::View;
use super::{Estimate, Sort};

/// Kind of the rows of a [`Breakdown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Functions, inlined ones included.
    Function,
    /// Addresses.
    Instruction,
    /// Source lines.
    Line,
    /// Programs: all instances of a name together.
    Process,
    /// Instances of processes.
    Instance,
    /// Threads.
    Thread,
    /// Control groups.
    Cgroup,
    /// The kernel, its modules, and files of user code.
    Module,
    /// Interrupts.
    Irq,
    /// System calls.
    Syscall,
}

impl By {
    /// All kinds with their names on the command line.
    pub const ALL: [(&'static str, By); 10] = [
        ("function", By::Function),
        ("instruction", By::Instruction),
        ("line", By::Line),
        ("process", By::Process),
        ("instance", By::Instance),
        ("thread", By::Thread),
        ("cgroup", By::Cgroup),
        ("module", By::Module),
        ("irq", By::Irq),
        ("syscall", By::Syscall),
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, by)| *by == self).map_or("", |(name, _)| name)
    }

    /// True if rows are code, so that a sample counts for its callers as well.
    pub fn is_code(self) -> bool {
        matches!(self, Self::Function | Self::Instruction | Self::Line | Self::Module)
    }
}

impl FromStr for By {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        UnknownName::find(name, Self::ALL)
    }
}

/// The chosen samples, grouped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Kind of the rows.
    pub by: By,
    /// One row for each. Their own estimates and `outside` add up to all chosen samples.
    pub rows: Vec<Row>,
    /// Chosen samples that belong to no row, such as those outside of interrupts under [`By::Irq`].
    pub outside: Estimate,
}

/// One function, line, thread or the like. A field that does not apply is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name; in brackets for samples without one.
    pub name: String,
    /// `user` or `kernel` for code; `process`, `kernel_thread`, `interrupt`, `boot` or `unknown` for the
    /// owner of time; `hard`, `soft` or `nmi` for an interrupt.
    pub kind: Option<String>,
    /// Kernel module, or file name of user code.
    pub module: Option<String>,
    /// Address as `0x...`, of the ELF file for user code of a file.
    pub address: Option<String>,
    /// The process as `name#number`.
    pub process: Option<String>,
    /// Process id.
    pub pid: Option<i32>,
    /// Thread id.
    pub tid: Option<i32>,
    /// Command line of a process, as it was last read.
    pub command: Option<String>,
    /// systemd unit of a control group.
    pub unit: Option<String>,
    /// Container of a control group.
    pub container: Option<String>,
    /// Samples in it.
    #[serde(rename = "self")]
    pub own: Estimate,
    /// Samples in it and in its callees, each counted once.
    pub total: Estimate,
}

impl Breakdown {
    pub(super) fn new(by: By, view: &View<'_>) -> Self {
        let (rows, outside) = match by {
            By::Function | By::Instruction | By::Line | By::Module => view.code_rows(by),
            By::Process | By::Instance | By::Cgroup => view.charged_rows(by),
            By::Thread => view.thread_rows(),
            By::Irq => view.interrupt_rows(),
            By::Syscall => view.syscall_rows(),
        };
        let mut breakdown = Self { by, rows, outside };
        breakdown.sort(Sort::Samples);
        breakdown
    }

    /// Orders the rows. By samples means by the share that the samples represent. Rows that tie are ordered
    /// by their own estimates, then by totals, then by names.
    pub fn sort(&mut self, by: Sort) {
        let is = |row: &Row, kind: &str| row.kind.as_deref() == Some(kind);
        let most = |a: &Estimate, b: &Estimate| b.share.total_cmp(&a.share).then(b.samples.cmp(&a.samples));
        self.rows.sort_by(|a, b| {
            let main = match by {
                Sort::Samples => most(&a.own, &b.own),
                Sort::Total => most(&a.total, &b.total),
                Sort::Name => a.name.cmp(&b.name),
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::User => is(b, "user").cmp(&is(a, "user")),
                Sort::Kernel => is(b, "kernel").cmp(&is(a, "kernel")),
            };
            let names =
                |row: &Row| (row.name.clone(), row.module.clone(), row.address.clone(), row.pid, row.tid);
            main.then(most(&a.own, &b.own))
                .then(most(&a.total, &b.total))
                .then_with(|| names(a).cmp(&names(b)))
        });
    }
}
