//! Stacks of a whole run with their weights: sleeps of tasks, samples of another profile, and stacks that
//! lead from the host into the guest.

use std::collections::{BTreeMap, HashMap};

use display::units::rounded;
use profile::report::{ExactReport, OffCpu, RecordedVcpu, Recording};

use super::block::Numbers;
use super::tree::{Function, FunctionKind, Functions, Tree};
use super::who::{ASLEEP, ProcessRows, Role, mode_number};
use crate::sums::StackParts;

/// Number and time, ns, by node and role.
#[derive(Debug, Clone, Default)]
pub(super) struct Leaves(BTreeMap<(u32, u32), (u64, f64)>);

impl Leaves {
    fn add(&mut self, node: u32, role: u32, count: u64, ns: f64) {
        let sum = self.0.entry((node, role)).or_default();
        sum.0 = sum.0.saturating_add(count);
        sum.1 += ns;
    }

    /// Returns the number of leaves.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the sums of numbers and of times, s.
    pub(super) fn sum(&self) -> (u64, f64) {
        let add = |sum: (u64, f64), leaf: &(u64, f64)| (sum.0.saturating_add(leaf.0), sum.1 + leaf.1 / 1e9);
        self.0.values().fold((0, 0.0), add)
    }

    /// Returns the leaves in the order of new numbers of nodes: distance from the node before, role, number,
    /// time in ns.
    pub(super) fn written(&self, order: &[u32]) -> Numbers {
        let mut list: Vec<(u32, u32, u64, f64)> = self
            .0
            .iter()
            .map(|(&(node, role), &(count, ns))| (order[node as usize], role, count, ns))
            .collect();
        list.sort_unstable_by_key(|(node, role, ..)| (*node, *role));
        let mut numbers = Numbers::default();
        let mut last = 0;
        for (node, role, count, ns) in list {
            numbers.push((node - last).into());
            numbers.push(role.into());
            numbers.push(count);
            numbers.push(rounded(ns));
            last = node;
        }
        numbers
    }
}

/// Returns the sleeps of tasks: the kernel functions below the wait reason. Kernel threads are left out: most
/// sleep through the run, and would leave no room.
pub(super) fn asleep(
    exact: &ExactReport,
    functions: &mut Functions,
    tree: &mut Tree,
    process_rows: &mut ProcessRows,
) -> Leaves {
    let mut leaves = Leaves::default();
    for OffCpu { task, state, wait_reason, s, count, stack } in
        exact.off_cpu.iter().filter(|sleep| !sleep.task.kernel_thread)
    {
        let what =
            if wait_reason.is_empty() { format!("[{state}]") } else { format!("[{state}: {wait_reason}]") };
        let mut node = tree.node(0, functions.number((what, None, FunctionKind::State)));
        for function in stack.iter().rev() {
            node = tree.node(node, functions.number((function.clone(), None, FunctionKind::Kernel)));
        }
        let thread = process_rows.of_task(task);
        leaves.add(node, process_rows.role(Role { thread, mode: ASLEEP, call: 0 }), *count, s * 1e9);
    }
    leaves
}

/// Returns the samples of a recording with stacks of the host: below each vCPU the functions of the host,
/// then the program or the place in the host, then the functions of the guest.
pub(super) fn under_vcpus(
    recording: &Recording,
    functions: &mut Functions,
    tree: &mut Tree,
    process_rows: &mut ProcessRows,
) -> Leaves {
    let mut leaves = Leaves::default();
    // Many samples have the same stacks.
    let mut known: HashMap<(u16, u32, StackParts), (u32, u32)> = HashMap::new();
    for sample in &recording.samples {
        let Some(owner) = recording.owners.get(sample.owner as usize) else { continue };
        let parts = StackParts::new(recording, sample);
        let (node, thread) = *known.entry((sample.vcpu, sample.owner, parts)).or_insert_with(|| {
            let name = recording.process_of(owner).map_or(&owner.name, |process| &process.comm);
            let vcpu = recording.vcpu(sample.vcpu).map_or_else(String::new, RecordedVcpu::name);
            let mut node = tree.node(0, functions.number(state(vcpu)));
            if let Some(stack) = parts.host {
                node = tree.below(node, recording, stack, functions);
            }
            node = tree.node(node, functions.number(state(name.clone())));
            if let Some(stack) = parts.guest {
                node = tree.below(node, recording, stack, functions);
            }
            (node, process_rows.of_owner(recording, owner))
        });
        let role = process_rows.role(Role { thread, mode: mode_number(sample.mode), call: 0 });
        leaves.add(node, role, 1, sample.weight_ns);
    }
    leaves
}

fn state(name: String) -> Function {
    (name, None, FunctionKind::State)
}

/// Returns the samples of another profile.
pub(super) fn of_recording(
    recording: &Recording,
    functions: &mut Functions,
    tree: &mut Tree,
    process_rows: &mut ProcessRows,
) -> Leaves {
    let nodes = tree.add(recording, functions);
    let threads: Vec<u32> =
        recording.owners.iter().map(|owner| process_rows.of_namesake(recording, owner)).collect();
    let mut leaves = Leaves::default();
    for sample in &recording.samples {
        let (node, thread) = (nodes.get(sample.stack as usize), threads.get(sample.owner as usize));
        if let (Some(&node), Some(&thread)) = (node, thread) {
            let role = Role { thread, mode: mode_number(sample.mode), call: 0 };
            leaves.add(node, process_rows.role(role), 1, sample.weight_ns);
        }
    }
    leaves
}
