//! A process with all its descendants.

use std::collections::{HashMap, HashSet};

use super::filter::is_process;
use super::tables::{Instance, Tables};

/// Name of the run's own command in a filter (`vprof run IMAGE -- CMD`).
pub const COMMAND: &str = "command";
/// systemd's unit for a command of the kernel's command line (systemd-run-generator(8)).
const COMMAND_UNIT: &str = "kernel-command-line.service";
/// Limit of generations: a profile may be damaged.
const DEEPEST: usize = 1_000;

/// Returns the processes that `wanted` names, and their descendants, by instance row id. A process whose
/// parent ended before it was read is its reaper's child.
pub(super) fn subtree(tables: &Tables, wanted: &str) -> HashSet<u32> {
    let mut found: HashSet<u32> = match tables.meta.get("command") {
        Some(_) if wanted == COMMAND => roots(tables),
        _ => {
            let named = |i: &Instance| {
                is_process((&i.comm, i.pid, i.number), wanted) || tables.instance_name(i) == wanted
            };
            tables.instances.iter().filter(|(_, instance)| named(instance)).map(|(&id, _)| id).collect()
        }
    };
    let births: Vec<Birth> = tables.instances.iter().map(|(&id, instance)| birth(id, instance)).collect();
    let parents = parents(&births);
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

/// Returns the processes that the run's command began with; none if they cannot be known. Command lines do
/// not identify them: a shell replaces itself by its last command, and a child that does not exec keeps its
/// command line.
///
/// Under systemd the command has its own unit, whose shell does nothing else from the command's start to its
/// end. The init of the images that are made for a command starts only the command, and gets its orphans.
fn roots(tables: &Tables) -> HashSet<u32> {
    let of = |is: &dyn Fn(u32, &Instance) -> bool| {
        let fits =
            tables.instances.iter().filter(|(id, instance)| !instance.kernel_thread && is(**id, instance));
        fits.map(|(&id, _)| id).collect::<HashSet<u32>>()
    };
    let in_unit = |id: u32| {
        tables.cgroup_of(id).is_some_and(|group| group.path.split('/').any(|part| part == COMMAND_UNIT))
    };
    let unit = of(&|id, _| in_unit(id));
    if !unit.is_empty() {
        let ns = |key: &str| tables.meta.get(key)?.parse::<u64>().ok();
        let Some((begun, took)) = ns("command_begun_ns").zip(ns("command_wall_ns")) else { return unit };
        let during = begun..=begun.saturating_add(took);
        let its = of(&|id, instance| in_unit(id) && during.contains(&instance.start_ns));
        // A guest that was suspended counts starts by another clock.
        return if its.is_empty() { unit } else { its };
    }
    let systemd = tables.cgroups.values().any(|group| group.unit.is_some())
        || tables.instances.values().any(|instance| instance.pid == 1 && instance.comm == "systemd");
    if systemd { HashSet::new() } else { of(&|_, instance| instance.parent_pid == Some(1)) }
}

fn birth(id: u32, instance: &Instance) -> Birth {
    let Instance { vm, pid, parent_pid, start_ns, .. } = *instance;
    Birth { id, vm, pid, parent_pid, start_ns }
}

/// Start and parent of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    /// Instance row id.
    pub id: u32,
    /// Virtual machine, in a merged profile: process ids are its own.
    pub vm: Option<u32>,
    pub pid: i32,
    /// `None` if it was not read.
    pub parent_pid: Option<i32>,
    /// By the guest's clock, ns.
    pub start_ns: u64,
}

/// Returns the parent of each instance: among the instances with the parent's id, the last that had begun
/// before it.
pub(crate) fn parents(births: &[Birth]) -> HashMap<u32, u32> {
    let mut by_pid: HashMap<_, Vec<(u64, u32)>> = HashMap::new();
    for birth in births {
        by_pid.entry((birth.vm, birth.pid)).or_default().push((birth.start_ns, birth.id));
    }
    let parent = |child: &Birth| {
        let lives = by_pid.get(&(child.vm, child.parent_pid?))?;
        lives.iter().filter(|(start, _)| *start <= child.start_ns).max().map(|(_, id)| *id)
    };
    births.iter().filter_map(|child| Some((child.id, parent(child)?))).collect()
}
