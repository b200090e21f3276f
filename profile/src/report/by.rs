//! Samples grouped by functions, lines, threads and so on.

use std::str::FromStr;

use display::message::UnknownName;
use serde::{Deserialize, Serialize};

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
    /// Virtual machines of a merged profile.
    Vm,
    /// Hosts of a merged profile.
    Host,
}

impl By {
    /// All kinds with their names on the command line.
    pub const ALL: [(&'static str, By); 12] = [
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
        ("vm", By::Vm),
        ("host", By::Host),
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, by)| *by == self).map_or("", |(name, _)| name)
    }

    /// True if only stacks show the row of a sample.
    pub(super) fn needs_stacks(self) -> bool {
        matches!(self, Self::Irq | Self::Syscall)
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
    /// Kind of the rows; the first key if the rows have several.
    pub by: By,
    /// The other keys, in their order.
    pub further: Vec<By>,
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
    /// Virtual machine in a merged profile, of a row that is of one.
    pub vm: Option<String>,
    /// Its host.
    pub host: Option<String>,
    /// Command line of a process, as it was last read.
    pub command: Option<String>,
    /// systemd unit of a control group.
    pub unit: Option<String>,
    /// Container of a control group.
    pub container: Option<String>,
    /// Names by the other keys, in the order of [`Breakdown::further`]. The members above are then those of
    /// all keys together, `name` and `kind` those of the first.
    pub further: Vec<KeyName>,
    /// Samples in it.
    #[serde(rename = "self")]
    pub own: Estimate,
    /// Samples in it and in its callees, each counted once.
    pub total: Estimate,
}

/// Name of a row by one of several keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyName {
    /// As [`Row::name`].
    pub name: String,
    /// As [`Row::kind`].
    pub kind: Option<String>,
}

impl Row {
    /// Joins the rows of one item by each of several keys. Their estimates are left out.
    pub(super) fn joined<'a>(mut keys: impl Iterator<Item = &'a Self>) -> Self {
        let mut joined = keys.next().cloned().unwrap_or_default();
        for key in keys {
            let Self { module, address, process, pid, tid, vm, host, command, unit, container, .. } =
                key.clone();
            joined.module = joined.module.or(module);
            joined.address = joined.address.or(address);
            joined.process = joined.process.or(process);
            joined.pid = joined.pid.or(pid);
            joined.tid = joined.tid.or(tid);
            joined.vm = joined.vm.or(vm);
            joined.host = joined.host.or(host);
            joined.command = joined.command.or(command);
            joined.unit = joined.unit.or(unit);
            joined.container = joined.container.or(container);
            joined.further.push(KeyName { name: key.name.clone(), kind: key.kind.clone() });
        }
        joined
    }

    /// Returns the row with the name and kind of its key at this position, 0 for the first.
    #[must_use]
    pub fn by_key(&self, position: usize) -> Self {
        let further = position.checked_sub(1).and_then(|position| self.further.get(position));
        let mut row = self.clone();
        if let Some(KeyName { name, kind }) = further {
            row.name.clone_from(name);
            row.kind.clone_from(kind);
        }
        row
    }
}

impl Breakdown {
    pub(super) fn new(keys: &[By], view: &View<'_>) -> Self {
        let (rows, outside) = view.rows(keys);
        let (by, further) = keys.split_first().map_or((By::Function, &[][..]), |(by, rest)| (*by, rest));
        let mut breakdown = Self { by, further: further.to_vec(), rows, outside };
        breakdown.sort(Sort::Samples);
        breakdown
    }

    /// Returns all keys, the first one first.
    pub fn keys(&self) -> impl Iterator<Item = By> {
        std::iter::once(self.by).chain(self.further.iter().copied())
    }

    /// True if some row by source line has a line: not only a module in brackets.
    pub fn has_lines(&self) -> bool {
        let Some(position) = self.keys().position(|by| by == By::Line) else { return false };
        self.rows.iter().any(|row| !row.by_key(position).name.starts_with('['))
    }

    /// True if a key is code, so that a sample counts for its callers as well.
    pub fn is_code(&self) -> bool {
        self.keys().any(By::is_code)
    }

    /// Orders the rows. By samples means by the share that the samples represent. Rows that tie are ordered
    /// by their own estimates, then by totals, then by names.
    pub fn sort(&mut self, by: Sort) {
        let is = |row: &Row, kinds: &[&str]| {
            let further = row.further.iter().map(|key| key.kind.as_deref());
            let mut own = std::iter::once(row.kind.as_deref()).chain(further).flatten();
            own.any(|own| kinds.contains(&own))
        };
        let most = |a: &Estimate, b: &Estimate| b.share.total_cmp(&a.share).then(b.samples.cmp(&a.samples));
        self.rows.sort_by(|a, b| {
            let main = match by {
                Sort::Samples => most(&a.own, &b.own),
                Sort::Total => most(&a.total, &b.total),
                Sort::Name => a.name.cmp(&b.name),
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::User => is(b, &["user", "managed"]).cmp(&is(a, &["user", "managed"])),
                Sort::Kernel => is(b, &["kernel"]).cmp(&is(a, &["kernel"])),
            };
            let names = |row: &Row| {
                let owner = (row.pid, row.tid, row.host.clone(), row.vm.clone());
                (row.name.clone(), row.module.clone(), row.address.clone(), owner)
            };
            let further = |row: &Row| row.further.iter().map(|key| key.name.clone()).collect::<Vec<_>>();
            main.then(most(&a.own, &b.own))
                .then(most(&a.total, &b.total))
                .then_with(|| names(a).cmp(&names(b)))
                .then_with(|| further(a).cmp(&further(b)))
        });
    }
}
