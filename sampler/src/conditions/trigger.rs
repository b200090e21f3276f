//! State of one condition.

use profile::conditions::{BadPattern, Condition, compile_pattern};
use regex::Regex;

/// Bytes of a name that the guest keeps (`TASK_COMM_LEN`, include/linux/sched.h, 6.12, less its NUL).
const COMM: usize = 15;

/// An awaited condition.
#[derive(Debug)]
pub(crate) struct ConditionState {
    pub condition: Condition,
    pattern: Option<Regex>,
    /// Time of arming, or the start of the period that the condition counts, ns since the run's start.
    pub since_ns: u64,
    /// The process existed.
    was_there: bool,
    /// Task lists in a row without the process.
    absent: u8,
    met: bool,
}

impl ConditionState {
    pub(crate) fn new(condition: Condition) -> Result<Self, BadPattern> {
        let pattern = match &condition {
            Condition::Console(pattern) => Some(compile_pattern(pattern)?),
            _ => None,
        };
        Ok(Self { condition, pattern, since_ns: 0, was_there: false, absent: 0, met: false })
    }

    /// Returns the condition counted from this time, ns since the run's start.
    pub(crate) fn counting_from(self, since_ns: u64) -> Self {
        Self { since_ns, ..self }
    }

    /// Returns true if the condition is met at `now_ns` since the run's start, or was met before.
    pub(crate) fn is_met(&self, now_ns: u64) -> bool {
        let due = match self.condition {
            Condition::Time(time) => u128::from(now_ns.saturating_sub(self.since_ns)) >= time.as_nanos(),
            _ => false,
        };
        self.met || due
    }

    /// Notes a line of the console, complete or not, without escape sequences.
    pub(crate) fn line(&mut self, line: &str) {
        self.met |= self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(line));
    }

    /// Notes a mark.
    pub(crate) fn mark(&mut self, text: &str) {
        self.met |= matches!(&self.condition, Condition::Mark(wanted) if wanted == text);
    }

    /// Notes that a process with this name exists.
    pub(crate) fn task(&mut self, comm: &[u8; 16]) {
        match &self.condition {
            Condition::Process(name) => self.met |= is_named(comm, name),
            Condition::ProcessEnd(name) if is_named(comm, name) => (self.was_there, self.absent) = (true, 0),
            _ => {}
        }
    }

    /// Notes the end of a task list whose tasks [`Self::task`] got; `there` is true if one has the awaited
    /// name. Tasks are read while the guest runs, so two lists have to agree on an end.
    pub(crate) fn listed(&mut self, there: bool) {
        if self.was_there && matches!(self.condition, Condition::ProcessEnd(_)) {
            self.absent = if there { 0 } else { self.absent.saturating_add(1) };
            self.met |= self.absent >= 2;
        }
    }

    /// Returns true if the condition is about a task of this name.
    pub(crate) fn speaks_of(&self, comm: &[u8; 16]) -> bool {
        matches!(&self.condition, Condition::Process(name) | Condition::ProcessEnd(name) if is_named(comm, name))
    }

    /// Notes that systemd reports the end of the boot.
    pub(crate) fn started(&mut self) {
        self.met |= self.condition == Condition::Started;
    }

    /// Notes a control group that has a process.
    pub(crate) fn cgroup(&mut self, path: &str) {
        if let Condition::Unit(unit) = &self.condition {
            self.met |= path.split('/').any(|part| part == unit);
        }
    }
}

fn is_named(comm: &[u8; 16], name: &str) -> bool {
    let end = comm.iter().position(|&byte| byte == 0).unwrap_or(comm.len());
    let name = name.as_bytes();
    comm.get(..end).is_some_and(|own| own == name.get(..COMM).unwrap_or(name))
}
