//! Owners of samples and sleeps: rows of the page's processes, and roles, which are a row and a mode.

use std::collections::HashMap;

use profile::report::{Owner, Process, ProcessKind, Recording, Report, Task};
use profile::rows::Mode;
use serde_json::{Value, json};

use super::tree::small;

/// Name, process id and instance number, by which a row is found.
type Key = (String, i32, u32);

/// The number of "asleep" among [`mode_number`]'s.
pub(super) const ASLEEP: u32 = 7;

/// Returns the page's number of a mode.
pub(super) fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::User => 0,
        Mode::Kernel => 1,
        Mode::HardIrq => 2,
        Mode::SoftIrq => 3,
        Mode::Nmi => 4,
        Mode::Boot => 5,
        Mode::Idle | Mode::Unknown => 6,
    }
}

/// Rows of processes: those of the report, in its order, and after them those that only other sources name.
#[derive(Debug)]
pub(super) struct ProcessRows {
    rows: Vec<Key>,
    places: HashMap<Key, u32>,
    /// The first row of each name.
    names: HashMap<String, u32>,
    /// Rows that are not in the report, and their kinds.
    others: Vec<ProcessKind>,
    roles: Vec<(u32, u32)>,
    known_roles: HashMap<(u32, u32), u32>,
}

impl ProcessRows {
    /// Creates the rows of a report.
    pub(super) fn new(report: &Report) -> Self {
        let mut process_rows = Self {
            rows: Vec::new(),
            places: HashMap::new(),
            names: HashMap::new(),
            others: Vec::new(),
            roles: Vec::new(),
            known_roles: HashMap::new(),
        };
        for Process { comm, pid, instance, .. } in &report.processes {
            process_rows.push((comm.clone(), *pid, *instance));
        }
        process_rows
    }

    fn push(&mut self, key: Key) -> u32 {
        let place = small(self.rows.len());
        self.names.entry(key.0.clone()).or_insert(place);
        self.places.insert(key.clone(), place);
        self.rows.push(key);
        place
    }

    fn row(&mut self, key: Key, kind: ProcessKind) -> u32 {
        if let Some(&place) = self.places.get(&key) {
            return place;
        }
        self.others.push(kind);
        self.push(key)
    }

    /// Returns the row of an owner of samples of this profile.
    pub(super) fn of_owner(&mut self, recording: &Recording, owner: &Owner) -> u32 {
        match recording.process_of(owner) {
            Some(process) => {
                self.row((process.comm.clone(), process.pid, process.number), kind(process.kernel_thread))
            }
            None => self.row((owner.name.clone(), 0, 0), ProcessKind::Unknown),
        }
    }

    /// Returns the row for an owner of another profile: one of its name.
    pub(super) fn of_namesake(&mut self, recording: &Recording, owner: &Owner) -> u32 {
        let process = recording.process_of(owner);
        let name = process.map_or(&owner.name, |process| &process.comm);
        if let Some(&place) = self.names.get(name) {
            return place;
        }
        let kind = process.map_or(ProcessKind::Unknown, |process| kind(process.kernel_thread));
        self.row((name.clone(), 0, 0), kind)
    }

    /// Returns the row of a task.
    pub(super) fn of_task(&mut self, task: &Task) -> u32 {
        self.row((task.comm.clone(), task.pid, task.instance), kind(task.kernel_thread))
    }

    /// Returns the number of a role.
    pub(super) fn role(&mut self, row: u32, mode: u32) -> u32 {
        let Self { roles, known_roles, .. } = self;
        *known_roles.entry((row, mode)).or_insert_with(|| {
            roles.push((row, mode));
            small(roles.len() - 1)
        })
    }

    /// Returns row and mode of each role.
    pub(super) fn roles(&self) -> &[(u32, u32)] {
        &self.roles
    }

    /// Returns the rows that are not in the report, as rows without samples.
    pub(super) fn others(&self) -> impl Iterator<Item = Value> + '_ {
        let first = self.rows.len() - self.others.len();
        self.rows[first..].iter().zip(&self.others).map(|((comm, pid, instance), kind)| {
            json!({
                "comm": comm, "pid": pid, "instance": instance, "kind": kind, "samples": 0, "share": 0.0,
                "share_low": 0.0, "share_high": 0.0, "time_s": 0.0, "user_share": 0.0, "kernel_share": 0.0,
            })
        })
    }
}

fn kind(kernel_thread: bool) -> ProcessKind {
    if kernel_thread { ProcessKind::KernelThread } else { ProcessKind::Process }
}
