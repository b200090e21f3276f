//! Tables of processes and functions.

use std::collections::{BTreeSet, HashMap};

use super::tables::Instance;
use super::view::View;
use super::{Estimate, Function, Process, ProcessKind, Program, Thread};
use crate::rows::Charged;
use crate::rows::Mode;

/// Returns one row per process, and per other owner of samples.
pub(super) fn processes(view: &View<'_>) -> Vec<Process> {
    let known = |charged| match charged {
        Charged::Instance(id) if !view.tables.instances.contains_key(&id) => Charged::Unknown,
        charged => charged,
    };
    let (all, _) = view.by_context(|context| Some(known(context.thread.charged)));
    let user =
        view.by_context(|context| (context.mode == Mode::User).then(|| known(context.thread.charged))).0;
    let user: HashMap<Charged, Estimate> = user.into_iter().collect();
    let mut threads = threads(view);
    let mut of = |(charged, estimate): (Charged, Estimate)| {
        let user = user.get(&charged).map_or(0.0, |user| user.share);
        let row = row((charged.name(), kind_of_other(charged)), estimate, user);
        match charged {
            Charged::Instance(id) => process(id, row, threads.remove(&id).unwrap_or_default(), view),
            _ => row,
        }
    };
    all.into_iter().map(&mut of).collect()
}

/// Returns one row per program, and per other owner of samples.
pub(super) fn programs(view: &View<'_>) -> Vec<Program> {
    // A program is a name; a kernel thread may have the name of a process.
    type Key<'a> = (&'a str, ProcessKind);
    let key = |charged: Charged| match charged {
        Charged::Instance(id) => match view.tables.instances.get(&id) {
            Some(instance) => (instance.comm.as_str(), kind_of(instance)),
            None => (Charged::Unknown.name(), ProcessKind::Unknown),
        },
        other => (other.name(), kind_of_other(other)),
    };
    let mut instances: HashMap<Key<'_>, BTreeSet<u32>> = HashMap::new();
    for (context, _) in &view.sums.contexts.list {
        let charged = context.thread.charged;
        if let Charged::Instance(id) = charged
            && view.tables.instances.contains_key(&id)
        {
            instances.entry(key(charged)).or_default().insert(id);
        }
    }
    let (all, _) = view.by_context(|context| Some(key(context.thread.charged)));
    let (user, _) =
        view.by_context(|context| (context.mode == Mode::User).then(|| key(context.thread.charged)));
    let user: HashMap<Key<'_>, Estimate> = user.into_iter().collect();
    let row = |(key, estimate): (Key<'_>, Estimate)| {
        let user_share = user.get(&key).map_or(0.0, |user| user.share);
        let instances = instances.get(&key);
        let only = instances.filter(|instances| instances.len() == 1).and_then(BTreeSet::first);
        Program {
            comm: key.0.to_owned(),
            kind: key.1,
            instances: instances.map_or(0, |instances| instances.len() as u64),
            pid: only.and_then(|id| view.tables.instances.get(id)).map(|instance| instance.pid),
            estimate,
            user_share,
            kernel_share: (estimate.share - user_share).max(0.0),
        }
    };
    all.into_iter().map(row).collect()
}

fn kind_of(instance: &Instance) -> ProcessKind {
    if instance.kernel_thread { ProcessKind::KernelThread } else { ProcessKind::Process }
}

/// Returns the kind of an owner that is not a process.
fn kind_of_other(charged: Charged) -> ProcessKind {
    match charged {
        Charged::HardIrq | Charged::SoftIrq => ProcessKind::Interrupt,
        Charged::Boot => ProcessKind::Boot,
        Charged::Unknown | Charged::Instance(_) => ProcessKind::Unknown,
    }
}

fn row((comm, kind): (&str, ProcessKind), estimate: Estimate, user_share: f64) -> Process {
    Process {
        comm: comm.to_owned(),
        pid: 0,
        instance: 0,
        vm: None,
        kind,
        estimate,
        user_share,
        kernel_share: (estimate.share - user_share).max(0.0),
        parent_pid: None,
        command: None,
        exe: None,
        cgroup: None,
        unit: None,
        container: None,
        threads: Vec::new(),
    }
}

/// Completes the row of an instance.
fn process(id: u32, row: Process, threads: Vec<Thread>, view: &View<'_>) -> Process {
    let tables = view.tables;
    let Some(instance) = tables.instances.get(&id) else { return row };
    let group = tables.cgroup_of(id);
    Process {
        comm: instance.comm.clone(),
        kind: kind_of(instance),
        pid: instance.pid,
        instance: instance.number,
        vm: tables.vm_name(instance.vm),
        parent_pid: instance.parent_pid,
        command: instance.command.clone(),
        exe: instance.exe.and_then(|file| tables.files.get(&file)).map(|file| file.path.clone()),
        cgroup: group.map(|group| group.path.clone()),
        unit: group.and_then(|group| group.unit.clone()),
        container: group.and_then(|group| group.container.clone()),
        threads,
        ..row
    }
}

/// Returns the threads of each instance, most samples first.
fn threads(view: &View<'_>) -> HashMap<u32, Vec<Thread>> {
    let (found, _) = view.by_context(|context| match context.thread.charged {
        Charged::Instance(id) => Some((id, context.thread.tid?)),
        _ => None,
    });
    let mut threads: HashMap<u32, Vec<Thread>> = HashMap::new();
    for ((id, tid), estimate) in found {
        let comm = view.tables.threads.get(&(id, tid)).cloned();
        threads.entry(id).or_default().push(Thread { tid, comm, estimate });
    }
    for list in threads.values_mut() {
        list.sort_by_key(|thread| (std::cmp::Reverse(thread.estimate.samples), thread.tid));
    }
    threads
}

/// Returns one row per innermost function and mode.
pub(super) fn functions(view: &View<'_>) -> Vec<Function> {
    let (found, _) = view.by_leaf(|leaf| {
        let first = view.code.frames[leaf.frame as usize].slots().start;
        Some((view.code.entries.get(first)?.function, leaf.mode))
    });
    let row = |((function, mode), estimate): ((u32, Mode), Estimate)| {
        let function = &view.code.functions[function as usize];
        Function {
            symbol: function.symbol.clone(),
            module: function.module.clone(),
            mode: mode.name().to_owned(),
            estimate,
        }
    };
    found.into_iter().map(row).collect()
}
