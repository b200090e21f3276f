//! Which part of a profile is reported, and in what order.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which part of a profile is reported. An absent part means no restriction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Only this process: a program name (all its instances), a pid, or `name#number`. Restricts the rows of
    /// processes, functions and addresses; their shares still refer to all non-idle samples.
    pub process: Option<String>,
    /// Only this vCPU.
    pub vcpu: Option<u8>,
    /// Only samples at or after this time since the run's start, ns.
    pub from_ns: Option<u64>,
    /// Only samples before this time since the run's start, ns.
    pub to_ns: Option<u64>,
}

/// A row of table `instance`, as far as a report needs it.
#[derive(Debug)]
pub(super) struct Instance {
    pub pid: i32,
    pub comm: String,
    pub number: u32,
    pub kernel_thread: bool,
}

impl Filter {
    /// The ids of the chosen process' instances; `None` without a process filter.
    pub(super) fn chosen(&self, instances: &HashMap<u32, Instance>) -> Option<HashSet<u32>> {
        let wanted = self.process.as_deref()?;
        let pid: Option<i32> = wanted.parse().ok();
        let numbered =
            wanted.rsplit_once('#').and_then(|(comm, number)| Some((comm, number.parse::<u32>().ok()?)));
        let matches = |instance: &Instance| {
            instance.comm == wanted
                || pid == Some(instance.pid)
                || numbered.is_some_and(|(comm, number)| instance.comm == comm && instance.number == number)
        };
        Some(instances.iter().filter(|(_, instance)| matches(instance)).map(|(&id, _)| id).collect())
    }
}

/// What rows of a report are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Most samples first.
    #[default]
    Samples,
    /// Name of the process or function.
    Name,
    /// Process id; functions stay in the order of samples.
    Pid,
    /// Most user time first; among functions, user code first.
    User,
    /// Most kernel time first; among functions, kernel code first.
    Kernel,
}

impl Sort {
    /// All keys with their names on the command line.
    pub const ALL: [(&'static str, Sort); 5] = [
        ("samples", Sort::Samples),
        ("name", Sort::Name),
        ("pid", Sort::Pid),
        ("user", Sort::User),
        ("kernel", Sort::Kernel),
    ];
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, sort)| *sort);
        found.ok_or_else(|| format!("{name} is none of samples, name, pid, user, kernel"))
    }
}
