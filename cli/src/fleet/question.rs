//! The questions, and the columns of their answers.

use clap::ValueEnum;

/// A question to the fleet. Its SQL is the same for all engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FleetQuestion {
    /// The functions that take most CPU time, with intervals
    Top,
    /// Functions that take more or less CPU time after a change
    Diff,
    /// The share of code in all CPU time, for each window
    OverTime,
    /// The share of interrupts in the CPU time of each label, or machine without one
    Interrupts,
    /// Hosts whose machines wait for a CPU, and what their guests believe
    Noisy,
    /// The machines, and how well they are covered
    Vms,
    /// The stacks, as a flame graph
    Flame,
}

/// Kind of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    Count,
    /// A part of 1.
    Share,
    /// Lower limit of an interval; the upper one is in the column `high`.
    Interval,
    Seconds,
    Hours,
    /// Mean number of busy CPUs.
    Cpus,
    /// The same with its sign.
    Change,
    Time,
}

/// A column of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerColumn {
    /// Name in the SQL.
    pub key: &'static str,
    pub heading: &'static str,
    pub kind: ColumnKind,
}

const fn column(key: &'static str, heading: &'static str, kind: ColumnKind) -> AnswerColumn {
    AnswerColumn { key, heading, kind }
}

const SHARE: AnswerColumn = column("share", "share", ColumnKind::Share);
const INTERVAL: AnswerColumn = column("low", "95 % interval", ColumnKind::Interval);
const CPU_TIME: AnswerColumn = column("cpu_seconds", "time", ColumnKind::Seconds);
const HOSTS: AnswerColumn = column("hosts", "hosts", ColumnKind::Count);

impl FleetQuestion {
    /// Returns the statement, without its end.
    pub(super) fn sql(self) -> &'static str {
        match self {
            Self::Top => include_str!("../../../fleet/top.sql"),
            Self::Diff => include_str!("../../../fleet/slower.sql"),
            Self::OverTime => include_str!("../../../fleet/over_time.sql"),
            Self::Interrupts => include_str!("../../../fleet/interrupts.sql"),
            Self::Noisy => include_str!("../../../fleet/noisy.sql"),
            Self::Vms => include_str!("../../../fleet/machines.sql"),
            Self::Flame => include_str!("../../../fleet/flame.sql"),
        }
    }

    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the question in words.
    pub(super) fn sentence(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    /// True if the question is of a part of the samples.
    pub(super) fn has_part(self) -> bool {
        matches!(self, Self::Top | Self::OverTime | Self::Flame)
    }

    /// Returns the columns of the answer's table; the last one is cut where lines are too long.
    pub(super) fn columns(self) -> Vec<AnswerColumn> {
        match self {
            Self::Top => vec![
                SHARE,
                INTERVAL,
                CPU_TIME,
                column("sample_count", "samples", ColumnKind::Count),
                column("on_hosts", "on hosts", ColumnKind::Count),
                HOSTS,
                column("module_name", "module", ColumnKind::Text),
                column("function_name", "function", ColumnKind::Text),
            ],
            Self::Diff => vec![
                column("change", "change", ColumnKind::Change),
                column("standard_error", "std. error", ColumnKind::Cpus),
                column("significant", "significant", ColumnKind::Text),
                column("before_cpus", "before", ColumnKind::Cpus),
                column("after_cpus", "after", ColumnKind::Cpus),
                column("process_name", "program", ColumnKind::Text),
                column("function_name", "function", ColumnKind::Text),
            ],
            Self::OverTime => {
                vec![column("t", "from (UTC)", ColumnKind::Time), SHARE, INTERVAL, CPU_TIME, HOSTS]
            }
            Self::Interrupts => {
                vec![
                    SHARE,
                    INTERVAL,
                    CPU_TIME,
                    HOSTS,
                    column("tenant", "labels or machine", ColumnKind::Text),
                ]
            }
            Self::Noisy => vec![
                column("waited", "waited", ColumnKind::Share),
                column("believed", "believed", ColumnKind::Share),
                column("vcpu_hours", "vCPU time", ColumnKind::Hours),
                column("machines", "VMs", ColumnKind::Count),
                column("host", "host", ColumnKind::Text),
            ],
            Self::Vms => vec![
                column("host", "host", ColumnKind::Text),
                column("vcpu_count", "vCPUs", ColumnKind::Count),
                column("windows", "windows", ColumnKind::Count),
                column("hours", "covered", ColumnKind::Hours),
                column("sample_count", "samples", ColumnKind::Count),
                column("lost_count", "lost", ColumnKind::Count),
                column("dropped", "dropped", ColumnKind::Count),
                column("last_kernel", "kernel", ColumnKind::Text),
                column("labels", "labels", ColumnKind::Text),
                column("name", "name", ColumnKind::Text),
            ],
            // Not a table.
            Self::Flame => vec![],
        }
    }
}
