//! A process with all that came of it.

use std::collections::{HashMap, HashSet};

use super::filter::is_process;
use super::tables::{Instance, Tables};

/// What stands for the run's own command (`vprof run IMAGE -- CMD`).
pub const COMMAND: &str = "command";
/// systemd's unit for a command of the kernel's command line (systemd-run-generator(8)).
const COMMAND_UNIT: &str = "kernel-command-line.service";
/// Bytes of a command line that was cut by whoever read it, at least.
const LONG_COMMAND: usize = 256;
/// Generations that are looked at.
const DEEPEST: usize = 1_000;

/// The processes that `wanted` names, and their descendants, by instance row id. A process whose parent ended before it was
/// read is its reaper's child.
pub(super) fn family(tables: &Tables, wanted: &str) -> HashSet<u32> {
    let mut found: HashSet<u32> = match tables.meta.get("command") {
        Some(command) if wanted == COMMAND => roots(tables, command),
        _ => {
            let named = |i: &Instance| is_process((&i.comm, i.pid, i.number), wanted);
            tables.instances.iter().filter(|(_, instance)| named(instance)).map(|(&id, _)| id).collect()
        }
    };
    let parents = parents(tables);
    for _ in 0..DEEPEST {
        let children: Vec<u32> = parents
            .iter()
            .filter(|(child, parent)| found.contains(parent) && !found.contains(child))
            .map(|(&child, _)| child)
            .collect();
        if children.is_empty() {
            break;
        }
        found.extend(children);
    }
    found
}

/// Where the run's command began: the first process with its command line; else the first of its systemd unit with its
/// program's name, or all of that unit; else the first with its name.
fn roots(tables: &Tables, command: &str) -> HashSet<u32> {
    let first = |is: &dyn Fn(u32, &Instance) -> bool| {
        let fits =
            tables.instances.iter().filter(|(id, instance)| !instance.kernel_thread && is(**id, instance));
        fits.min_by_key(|(id, instance)| (instance.start_ns, **id)).map(|(&id, _)| id)
    };
    // As command lines of processes are kept.
    let command: String = command.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let is_command = |line: &str| {
        command.strip_prefix(line).is_some_and(|rest| rest.is_empty() || line.len() >= LONG_COMMAND)
    };
    if let Some(id) = first(&|_, instance| instance.command.as_deref().is_some_and(is_command)) {
        return HashSet::from([id]);
    }
    let in_unit = |id: u32| {
        tables.cgroup_of(id).is_some_and(|group| group.path.split('/').any(|part| part == COMMAND_UNIT))
    };
    let program = command.split(' ').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    // `comm` holds 15 bytes.
    let comm = program.get(..15).unwrap_or(program);
    if let Some(id) = first(&|id, instance| instance.comm == comm && in_unit(id)) {
        return HashSet::from([id]);
    }
    let unit: HashSet<u32> = tables.instances.keys().copied().filter(|id| in_unit(*id)).collect();
    if !unit.is_empty() {
        return unit;
    }
    first(&|_, instance| instance.comm == comm && instance.pid > 1).into_iter().collect()
}

/// The parent of each instance: of those with its parent's id the last that had begun before it.
fn parents(tables: &Tables) -> HashMap<u32, u32> {
    let mut by_pid: HashMap<i32, Vec<(u64, u32)>> = HashMap::new();
    for (&id, instance) in &tables.instances {
        by_pid.entry(instance.pid).or_default().push((instance.start_ns, id));
    }
    let parent = |child: &Instance| {
        let lives = by_pid.get(&child.parent_pid?)?;
        lives.iter().filter(|(start, _)| *start <= child.start_ns).max().map(|(_, id)| *id)
    };
    tables.instances.iter().filter_map(|(&id, child)| Some((id, parent(child)?))).collect()
}
