//! The tables of processes and functions.

use std::collections::HashMap;

use super::code::{EARLY_BOOT, NONE};
use super::sums::{Charge, Charged};
use super::tables::{UNKNOWN, part};
use super::view::View;
use super::{Function, Process, ProcessKind, Thread};
use crate::batch::Mode;
use crate::estimate::share;
use crate::profile::MODES;

/// One row per process, and per thing that samples are charged to instead.
pub(super) fn processes(view: &View<'_>) -> Vec<Process> {
    let mut unknown = Charge::default();
    let mut threads = threads(view);
    let mut list = Vec::new();
    for (&charged, &charge) in &view.sums.charged {
        let (name, kind) = match charged {
            Charged::Instance(id) if view.tables.instances.contains_key(&id) => {
                list.push(process(id, charge, threads.remove(&id).unwrap_or_default(), view));
                continue;
            }
            Charged::Instance(_) | Charged::Unknown => {
                unknown.add(charge);
                continue;
            }
            Charged::HardIrq => ("[hard interrupts]", ProcessKind::Interrupt),
            Charged::SoftIrq => ("[soft interrupts]", ProcessKind::Interrupt),
            Charged::Boot => (EARLY_BOOT, ProcessKind::Boot),
        };
        list.push(row(name, kind, charge, view));
    }
    if unknown.all() > 0 {
        list.push(row(UNKNOWN, ProcessKind::Unknown, unknown, view));
    }
    list
}

fn row(comm: &str, kind: ProcessKind, charge: Charge, view: &View<'_>) -> Process {
    let busy = view.sums.busy;
    let estimate = share(charge.all(), busy);
    Process {
        comm: comm.to_owned(),
        pid: 0,
        instance: 0,
        kind,
        samples: charge.all(),
        share: estimate.share,
        share_low: estimate.low,
        share_high: estimate.high,
        user_share: part(charge.user, busy),
        kernel_share: part(charge.kernel, busy),
        parent_pid: None,
        command: None,
        exe: None,
        cgroup: None,
        unit: None,
        container: None,
        threads: Vec::new(),
    }
}

fn process(id: u32, charge: Charge, threads: Vec<Thread>, view: &View<'_>) -> Process {
    let tables = view.tables;
    let Some(instance) = tables.instances.get(&id) else {
        return row(UNKNOWN, ProcessKind::Unknown, charge, view);
    };
    let kind = if instance.kernel_thread { ProcessKind::KernelThread } else { ProcessKind::Process };
    let group = tables.cgroup_of(id);
    Process {
        pid: instance.pid,
        instance: instance.number,
        parent_pid: instance.parent_pid,
        command: instance.command.clone(),
        exe: instance.exe.and_then(|file| tables.files.get(&file)).map(|file| file.path.clone()),
        cgroup: group.map(|group| group.path.clone()),
        unit: group.and_then(|group| group.unit.clone()),
        container: group.and_then(|group| group.container.clone()),
        threads,
        ..row(&instance.comm, kind, charge, view)
    }
}

/// The threads of each instance, most samples first.
fn threads(view: &View<'_>) -> HashMap<u32, Vec<Thread>> {
    let mut counts: HashMap<(u32, i32), u64> = HashMap::new();
    for (key, samples) in &view.sums.threads {
        if let (Charged::Instance(id), Some(tid)) = (key.charged, key.tid) {
            *counts.entry((id, tid)).or_default() += samples;
        }
    }
    let mut threads: HashMap<u32, Vec<Thread>> = HashMap::new();
    for ((id, tid), samples) in counts {
        let comm = view.tables.threads.get(&(id, tid)).cloned();
        threads.entry(id).or_default().push(Thread { tid, comm, samples });
    }
    for list in threads.values_mut() {
        list.sort_by_key(|thread| (std::cmp::Reverse(thread.samples), thread.tid));
    }
    threads
}

/// One row per innermost function and mode.
pub(super) fn functions(view: &View<'_>) -> Vec<Function> {
    let mut counts: HashMap<(u32, Mode), u64> = HashMap::new();
    for (leaf, samples) in &view.sums.leaves {
        let first = view.code.frames[leaf.frame as usize].slots().start;
        let function = view.code.entries.get(first).map_or(NONE, |entry| entry.function);
        *counts.entry((function, leaf.mode)).or_default() += samples;
    }
    let row = |((function, mode), samples): ((u32, Mode), u64)| {
        let estimate = share(samples, view.sums.busy);
        let name = MODES.iter().find(|(known, _)| *known == mode).map_or("unknown", |(_, name)| name);
        let function = &view.code.functions[function as usize];
        Function {
            symbol: function.symbol.clone(),
            module: function.module.clone(),
            mode: name.to_owned(),
            samples,
            share: estimate.share,
            share_low: estimate.low,
            share_high: estimate.high,
        }
    };
    counts.into_iter().map(row).collect()
}
