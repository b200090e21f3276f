//! Owners of samples and sleeps: rows of the page's processes, their threads, and roles.
//!
//! A role is a thread, a mode, and what the thread was called for: a system call or an interrupt. It is all
//! that the page knows of a sample besides its time and its stack.

use std::collections::HashMap;
use std::hash::Hash;

use profile::report::{Owner, Process, ProcessKind, RecordedSample, Recording, Report, Task};
use profile::rows::Mode;
use serde_json::{Value, json};

use super::clean::name;

use super::tree::small;

/// A row's name, process id, instance number and virtual machine, by which it is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    comm: String,
    pid: i32,
    instance: u32,
    /// In a merged profile.
    vm: Option<String>,
}

impl Key {
    /// Returns the key of what is not a process.
    fn other(name: &str) -> Self {
        Self { comm: name.to_owned(), pid: 0, instance: 0, vm: None }
    }
}

/// Kind of a system call among calls.
const SYSCALL: &str = "syscall";

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

/// Owner, activity and mode of a sample, as numbers of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Role {
    /// Number of a thread.
    pub thread: u32,
    /// Number of a mode.
    pub mode: u32,
    /// Number of a call; 0 for none.
    pub call: u32,
}

/// Row of a process, and thread id; `None` for all of the row, as for interrupts.
type ThreadKey = (u32, Option<i32>);

/// Mode of a sample, and the number of its system call or the index of its interrupt.
type CallKey = (Mode, Option<u32>);

/// Things with numbers in the order in which they were first named.
#[derive(Debug)]
struct Numbered<K> {
    list: Vec<K>,
    known: HashMap<K, u32>,
}

impl<K> Default for Numbered<K> {
    fn default() -> Self {
        Self { list: Vec::new(), known: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Numbered<K> {
    fn number(&mut self, key: &K) -> u32 {
        let Self { list, known } = self;
        match known.get(key) {
            Some(&number) => number,
            None => {
                let number = small(list.len());
                list.push(key.clone());
                known.insert(key.clone(), number);
                number
            }
        }
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
    threads: Numbered<ThreadKey>,
    /// Names of threads, by number.
    thread_names: Vec<String>,
    calls: Numbered<CallKey>,
    /// Kinds and names of calls, by number.
    call_names: Vec<(String, String)>,
    roles: Numbered<Role>,
}

impl ProcessRows {
    /// Creates the rows of a report.
    pub(super) fn new(report: &Report) -> Self {
        let mut process_rows = Self {
            rows: Vec::new(),
            places: HashMap::new(),
            names: HashMap::new(),
            others: Vec::new(),
            threads: Numbered::default(),
            thread_names: Vec::new(),
            calls: Numbered::default(),
            call_names: Vec::new(),
            roles: Numbered::default(),
        };
        for Process { comm, pid, instance, vm, .. } in &report.processes {
            process_rows.push(Key { comm: comm.clone(), pid: *pid, instance: *instance, vm: vm.clone() });
        }
        process_rows
    }

    fn push(&mut self, key: Key) -> u32 {
        let place = small(self.rows.len());
        self.names.entry(key.comm.clone()).or_insert(place);
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

    /// Returns the thread of an owner of samples of this profile.
    pub(super) fn of_owner(&mut self, recording: &Recording, owner: &Owner) -> u32 {
        let row = match recording.process_of(owner) {
            Some(process) => {
                let (comm, vm) = (process.comm.clone(), process.vm.clone());
                let key = Key { comm, pid: process.pid, instance: process.number, vm };
                self.row(key, kind(process.kernel_thread))
            }
            None => self.row(Key::other(&owner.name), ProcessKind::Unknown),
        };
        self.thread(row, owner.tid, &owner.name)
    }

    /// Returns the thread for an owner of another profile: all of a row of its name.
    pub(super) fn of_namesake(&mut self, recording: &Recording, owner: &Owner) -> u32 {
        let process = recording.process_of(owner);
        let name = process.map_or(&owner.name, |process| &process.comm);
        let row = match self.names.get(name) {
            Some(&place) => place,
            None => {
                let kind = process.map_or(ProcessKind::Unknown, |process| kind(process.kernel_thread));
                self.row(Key::other(name), kind)
            }
        };
        self.thread(row, None, "")
    }

    /// Returns the thread of a task.
    pub(super) fn of_task(&mut self, task: &Task) -> u32 {
        let key = Key { comm: task.comm.clone(), pid: task.pid, instance: task.instance, vm: None };
        let row = self.row(key, kind(task.kernel_thread));
        self.thread(row, Some(task.tid), task.thread.as_ref().unwrap_or(&task.comm))
    }

    fn thread(&mut self, row: u32, tid: Option<i32>, name: &str) -> u32 {
        let number = self.threads.number(&(row, tid));
        if number as usize == self.thread_names.len() {
            self.thread_names.push(name.to_owned());
        }
        number
    }

    /// Returns the call that a sample was in: its system call, or the interrupt that it served. The names are
    /// those of `vprof report --by syscall` and `--by irq`.
    pub(super) fn call(&mut self, recording: &Recording, sample: &RecordedSample) -> u32 {
        let key = match sample.mode {
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => (sample.mode, sample.interrupt),
            Mode::Kernel if sample.syscall.is_some() => (sample.mode, sample.syscall),
            _ => return 0,
        };
        let number = self.calls.number(&key);
        if number as usize == self.call_names.len() {
            self.call_names.push(call_name(recording, key));
        }
        number + 1
    }

    /// Returns the number of a role.
    pub(super) fn role(&mut self, role: Role) -> u32 {
        self.roles.number(&role)
    }

    /// Returns the lists that roles lead to, for the page.
    pub(super) fn lists(&self) -> [(&'static str, Value); 3] {
        let (mut rows, mut tids, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for ((row, tid), thread) in self.threads.list.iter().zip(&self.thread_names) {
            rows.push(*row);
            tids.push(*tid);
            names.push(name(thread));
        }
        let calls: Vec<_> = self.call_names.iter().map(|(kind, call)| (name(kind), name(call))).collect();
        let roles: Vec<_> = self.roles.list.iter().map(|role| (role.thread, role.mode, role.call)).collect();
        [
            ("threads", json!({ "row": rows, "tid": tids, "name": names })),
            ("calls", json!(calls)),
            ("roles", json!(roles)),
        ]
    }

    /// Returns the rows that are not in the report, as rows without samples.
    pub(super) fn others(&self) -> impl Iterator<Item = Value> + '_ {
        let first = self.rows.len() - self.others.len();
        self.rows[first..].iter().zip(&self.others).map(|(Key { comm, pid, instance, vm }, kind)| {
            json!({
                "comm": comm, "pid": pid, "instance": instance, "vm": vm, "kind": kind, "samples": 0, "share": 0.0,
                "share_low": 0.0, "share_high": 0.0, "time_s": 0.0, "user_share": 0.0, "kernel_share": 0.0,
            })
        })
    }
}

/// Returns kind and name of a call: `syscall`, or the kind of an interrupt.
fn call_name(recording: &Recording, (mode, number): CallKey) -> (String, String) {
    let named = |kind: &str, name: String| (kind.to_owned(), name);
    let interrupt = |kind| {
        let known = number.and_then(|at| recording.interrupts.get(at as usize));
        known.cloned().unwrap_or_else(|| named(kind, "[unknown]".to_owned()))
    };
    match mode {
        Mode::SoftIrq => interrupt("soft"),
        Mode::Nmi => interrupt("nmi"),
        Mode::HardIrq => interrupt("hard"),
        _ => {
            let number = number.unwrap_or_default();
            let name = recording.syscalls.get(&number).cloned();
            named(SYSCALL, name.unwrap_or_else(|| format!("[system call {number}]")))
        }
    }
}

fn kind(kernel_thread: bool) -> ProcessKind {
    if kernel_thread { ProcessKind::KernelThread } else { ProcessKind::Process }
}
