//! Meanings of the columns of each table. A table is in exactly one of the lists.

/// Meaning of a column for a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A value that is the same in all profiles.
    Value,
    /// A time since the start of the run.
    Time,
    /// A row id of another table, or the row's own.
    Id(Space),
    /// The virtual machine, which only a merged profile has.
    Vm,
}

/// Tables whose rows have new ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Vcpu,
    Instance,
    Cgroup,
    File,
    Frame,
    Stack,
    Interrupt,
    HostFrame,
    HostStack,
}

impl Space {
    /// All of them, in the order of their discriminants, with the rows' name in messages.
    pub(super) const ALL: [(Self, &'static str); 9] = [
        (Self::Vcpu, "vCPUs"),
        (Self::Instance, "processes"),
        (Self::Cgroup, "control groups"),
        (Self::File, "files"),
        (Self::Frame, "code addresses"),
        (Self::Stack, "stacks"),
        (Self::Interrupt, "interrupts"),
        (Self::HostFrame, "code addresses of hosts"),
        (Self::HostStack, "stacks of hosts"),
    ];
}

/// Treatment of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// Each is a row of the merged profile.
    Each,
    /// Those with a new key are; the key means the same in all profiles.
    NewKeys,
    /// Those with the same content are one row, if the column with this index has a value.
    Equal(usize),
    /// Those with the same caller and frame are one row.
    Tree,
}

/// A table that is merged.
#[derive(Debug)]
pub(super) struct MergedTable {
    pub name: &'static str,
    pub rows: Rows,
    /// Condition of SQL on its rows; empty for all.
    pub condition: &'static str,
    /// Order in which rows are read.
    pub order: &'static str,
    /// Columns, the row's own id first.
    pub columns: &'static [(&'static str, Meaning)],
}

impl MergedTable {
    /// Returns the space of its rows' own ids, if they have any that others refer to.
    pub(super) fn own_space(&self) -> Option<Space> {
        match self.columns.first() {
            Some(("id", Meaning::Id(space))) => Some(*space),
            _ => None,
        }
    }
}

/// Table of which each row is one of the merged profile, in the order of its ids.
const ALL_ROWS: MergedTable =
    MergedTable { name: "", rows: Rows::Each, condition: "", order: "id", columns: &[] };

use Meaning::{Id, Time, Value, Vm};
use Space::{Cgroup, File, Frame, HostFrame, HostStack, Instance, Interrupt, Stack, Vcpu};

/// Merged tables, in an order in which rows come before those that refer to them.
pub(super) const MERGED_TABLES: [MergedTable; 17] = [
    MergedTable {
        name: "file",
        // Only a build-id identifies a file.
        rows: Rows::Equal(6),
        columns: &[
            ("id", Id(File)),
            ("path", Value),
            ("device", Value),
            ("inode", Value),
            ("filesystem", Value),
            ("deleted", Value),
            ("build_id", Value),
            ("read_from", Value),
            ("named_by", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "cgroup",
        rows: Rows::Equal(0),
        columns: &[("id", Id(Cgroup)), ("path", Value), ("unit", Value), ("container", Value)],
        ..ALL_ROWS
    },
    MergedTable {
        name: "instance",
        columns: &[
            ("id", Id(Instance)),
            ("vm", Vm),
            ("pid", Value),
            ("start_ns", Value),
            ("comm", Value),
            ("number", Value),
            ("kernel_thread", Value),
            ("parent_pid", Value),
            ("command", Value),
            ("exe", Id(File)),
            ("cgroup", Id(Cgroup)),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "thread",
        order: "instance, tid",
        columns: &[("instance", Id(Instance)), ("tid", Value), ("comm", Value)],
        ..ALL_ROWS
    },
    MergedTable {
        name: "mapping",
        order: "instance, start, end, file_offset",
        columns: &[
            ("instance", Id(Instance)),
            ("start", Value),
            ("end", Value),
            ("file", Id(File)),
            ("file_offset", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "frame",
        rows: Rows::Equal(0),
        columns: &[
            ("id", Id(Frame)),
            ("address", Value),
            ("call", Value),
            ("kind", Value),
            ("instance", Id(Instance)),
            ("file", Id(File)),
            ("symbol", Value),
            ("module", Value),
            ("offset", Value),
            ("source", Value),
            ("line", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "stack",
        rows: Rows::Tree,
        columns: &[("id", Id(Stack)), ("parent", Id(Stack)), ("frame", Id(Frame))],
        ..ALL_ROWS
    },
    // Code of a kernel has no file that distinguishes it from another kernel's.
    MergedTable {
        name: "code",
        rows: Rows::NewKeys,
        condition: "file IS NOT NULL",
        order: "rowid",
        columns: &[
            ("start", Value),
            ("file", Id(File)),
            ("module", Value),
            ("bytes", Value),
            ("read", Value),
        ],
    },
    MergedTable {
        name: "interrupt",
        rows: Rows::Equal(0),
        columns: &[("id", Id(Interrupt)), ("kind", Value), ("name", Value)],
        ..ALL_ROWS
    },
    // The numbers are those of x86-64.
    MergedTable {
        name: "syscall",
        rows: Rows::NewKeys,
        order: "number",
        columns: &[("number", Value), ("name", Value)],
        ..ALL_ROWS
    },
    MergedTable {
        name: "vcpu",
        columns: &[
            ("id", Id(Vcpu)),
            ("vm", Vm),
            ("number", Value),
            ("samples", Value),
            ("lost", Value),
            ("exits", Value),
            ("guest_ns", Value),
            ("halted_ns", Value),
            ("waiting_ns", Value),
            ("kvm_ns", Value),
            ("vmm_ns", Value),
            ("sampler_ns", Value),
            ("paused_ns", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "microstate",
        order: "vcpu, time_ns",
        columns: &[
            ("vcpu", Id(Vcpu)),
            ("time_ns", Time),
            ("guest_ns", Value),
            ("halted_ns", Value),
            ("waiting_ns", Value),
            ("kvm_ns", Value),
            ("vmm_ns", Value),
            ("sampler_ns", Value),
            ("paused_ns", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "rate",
        order: "vcpu, time_ns",
        columns: &[("vcpu", Id(Vcpu)), ("time_ns", Time), ("rate_hz", Value)],
        ..ALL_ROWS
    },
    MergedTable {
        name: "host_frame",
        rows: Rows::Equal(0),
        columns: &[
            ("id", Id(HostFrame)),
            ("kind", Value),
            ("address", Value),
            ("call", Value),
            ("symbol", Value),
            ("module", Value),
            ("offset", Value),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "host_stack",
        rows: Rows::Tree,
        columns: &[("id", Id(HostStack)), ("parent", Id(HostStack)), ("frame", Id(HostFrame))],
        ..ALL_ROWS
    },
    MergedTable {
        name: "host_sample",
        order: "vcpu, time_ns",
        columns: &[
            ("vcpu", Id(Vcpu)),
            ("time_ns", Time),
            ("place", Value),
            ("on_cpu", Value),
            ("stack", Id(HostStack)),
        ],
        ..ALL_ROWS
    },
    MergedTable {
        name: "sample",
        columns: &[
            ("vcpu", Id(Vcpu)),
            ("mode", Value),
            ("instance", Id(Instance)),
            ("frame", Id(Frame)),
            ("late_ns", Value),
            ("time_ns", Time),
            ("halted", Value),
            ("cpl", Value),
            ("interrupts_on", Value),
            ("tid", Value),
            ("preempt_count", Value),
            ("rsp", Value),
            ("cr3", Value),
            ("stack", Id(Stack)),
            ("syscall", Value),
            ("interrupt", Id(Interrupt)),
            ("vcpu_state", Value),
            ("fault", Value),
        ],
        ..ALL_ROWS
    },
];

/// Tables that a merge writes itself, or with another.
#[cfg(test)]
pub(super) const OWN_TABLES: [&str; 6] = ["event", "inlined", "meta", "mode", "vm", "vm_meta"];

/// Tables of one virtual machine, which are left out: their numbers are not of the same kind in another
/// machine, or nothing in them names the machine.
#[cfg(test)]
pub(super) const LEFT_OUT: [&str; 27] = [
    "exit",
    "exit_site",
    "kvm_counter",
    "host_wait",
    "injected",
    "rusage",
    "thread_time",
    "cpu_time",
    "task_state",
    "task_run",
    "task_delay",
    "task_life",
    "reaped",
    "wakeup",
    "interrupt_time",
    "interrupt_source",
    "exact_vcpu",
    "trip",
    "trip_argument",
    "trip_text",
    "trip_call",
    "task_scan",
    "task_scan_state",
    "memory_reading",
    "memory_use",
    "console",
    "unit_event",
];
