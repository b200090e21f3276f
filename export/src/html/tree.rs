//! The tree of functions that samples, sleeps and the base's samples share: stacks without their addresses.

use std::collections::HashMap;

use profile::report::Recording;
use profile::rows::FrameKind;

use super::block::Numbers;

/// Kind of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FunctionKind {
    User,
    Kernel,
    /// The reason why frames are missing.
    Reason,
    /// Not a function: the wait reason of a sleep; a vCPU, program or place in a stack from the host.
    State,
}

impl From<FrameKind> for FunctionKind {
    fn from(kind: FrameKind) -> Self {
        match kind {
            FrameKind::User | FrameKind::Managed => Self::User,
            FrameKind::Kernel => Self::Kernel,
            FrameKind::Reason => Self::Reason,
        }
    }
}

/// Symbol, module and kind.
pub(super) type Function = (String, Option<String>, FunctionKind);

/// Functions of all sources, each once.
#[derive(Debug, Default)]
pub(super) struct Functions {
    pub list: Vec<Function>,
    known: HashMap<Function, u32>,
}

impl Functions {
    /// Returns the number of a function.
    pub(super) fn number(&mut self, function: Function) -> u32 {
        let Self { list, known } = self;
        *known.entry(function).or_insert_with_key(|function| {
            list.push(function.clone());
            small(list.len() - 1)
        })
    }
}

/// Converts an index; there are fewer than 2^32 of anything here, since each has a row in the profile.
pub(super) fn small(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// Nodes from 1; 0 is the root. A caller has a smaller number than its callees.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Caller and function of the nodes from 1.
    nodes: Vec<(u32, u32)>,
    known: HashMap<(u32, u32), u32>,
}

impl Tree {
    /// Returns the node of `function` called by `parent`.
    pub(super) fn node(&mut self, parent: u32, function: u32) -> u32 {
        let Self { nodes, known } = self;
        *known.entry((parent, function)).or_insert_with(|| {
            nodes.push((parent, function));
            small(nodes.len())
        })
    }

    /// Returns the node of a stack below another node.
    pub(super) fn below(
        &mut self,
        mut node: u32,
        recording: &Recording,
        stack: u32,
        functions: &mut Functions,
    ) -> u32 {
        for entry in recording.functions_of(stack) {
            if let Some(function) = recording.functions.get(entry.function as usize) {
                let key = (function.symbol.clone(), function.module.clone(), function.kind.into());
                node = self.node(node, functions.number(key));
            }
        }
        node
    }

    /// Adds the stacks that samples of a recording have. Returns the node of each stack; 0 for those without
    /// samples.
    pub(super) fn add(&mut self, recording: &Recording, functions: &mut Functions) -> Vec<u32> {
        let numbers: Vec<u32> = recording
            .functions
            .iter()
            .map(|function| {
                functions.number((function.symbol.clone(), function.module.clone(), function.kind.into()))
            })
            .collect();
        let used = used(recording);
        let mut nodes = vec![0_u32; recording.stacks.len()];
        for (place, stack) in recording.stacks.iter().enumerate().filter(|(place, _)| used[*place]) {
            let caller = stack.parent.and_then(|parent| nodes.get(parent as usize)).copied();
            let entries = recording.entries_of(stack.frame).iter().rev();
            nodes[place] = entries.fold(caller.unwrap_or(0), |node, entry| {
                numbers.get(entry.function as usize).map_or(node, |&function| self.node(node, function))
            });
        }
        nodes
    }

    /// Returns new numbers by old ones, in the order of a depth-first walk: neighbours are alike, which packs
    /// well.
    pub(super) fn order(&self) -> Vec<u32> {
        let size = self.nodes.len() + 1;
        // Branches of a node as a chain: the first, and the next one of each.
        let (mut first, mut next) = (vec![0_u32; size], vec![0_u32; size]);
        for (node, (parent, _)) in self.nodes.iter().enumerate().rev() {
            let node = small(node + 1);
            next[node as usize] = first[*parent as usize];
            first[*parent as usize] = node;
        }
        let mut order = vec![0_u32; size];
        let mut open = vec![first[0]];
        let mut number = 0;
        while let Some(node) = open.pop() {
            if node != 0 {
                number += 1;
                order[node as usize] = number;
                open.push(next[node as usize]);
                open.push(first[node as usize]);
            }
        }
        order
    }

    /// Returns by new number: the distance to the caller, and the function.
    pub(super) fn written(&self, order: &[u32]) -> Numbers {
        let mut renumbered = vec![(0_u32, 0_u32); self.nodes.len()];
        for ((parent, function), number) in self.nodes.iter().zip(order.iter().skip(1)) {
            if let Some(slot) = (*number as usize).checked_sub(1).and_then(|at| renumbered.get_mut(at)) {
                *slot = (order[*parent as usize], *function);
            }
        }
        let mut numbers = Numbers::default();
        for (number, (parent, function)) in (1_u64..).zip(renumbered) {
            numbers.push(number - u64::from(parent));
            numbers.push(function.into());
        }
        numbers
    }
}

/// Returns which stacks have samples, or callees with samples.
fn used(recording: &Recording) -> Vec<bool> {
    let mut used = vec![false; recording.stacks.len()];
    for sample in &recording.samples {
        if let Some(slot) = used.get_mut(sample.stack as usize) {
            *slot = true;
        }
    }
    for place in (0..used.len()).rev() {
        let parent = recording.stacks[place].parent.map(|parent| parent as usize);
        if let Some(parent) = parent.filter(|&parent| used[place] && parent < place) {
            used[parent] = true;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_in_the_order_of_a_walk_in_depth() {
        let mut tree = Tree::default();
        let a = tree.node(0, 7);
        let b = tree.node(0, 8);
        let a_a = tree.node(a, 7);
        let b_a = tree.node(b, 7);
        let a_b = tree.node(a, 8);
        let a_a_a = tree.node(a_a, 7);
        assert_eq!(tree.node(0, 7), a, "the same node again");
        let order = tree.order();
        let new = [a, a_a, a_a_a, a_b, b, b_a].map(|node| order[node as usize]);
        assert_eq!(new, [1, 2, 3, 4, 5, 6]);
        let mut expected = Numbers::default();
        for number in [1, 7, 1, 7, 1, 7, 3, 8, 5, 8, 1, 7] {
            expected.push(number);
        }
        assert_eq!(tree.written(&order), expected);
    }

    #[test]
    fn an_empty_tree_has_only_its_root() {
        let tree = Tree::default();
        assert_eq!(tree.order(), [0]);
        assert_eq!(tree.written(&tree.order()), Numbers::default());
    }

    #[test]
    fn a_function_has_one_number() {
        let mut functions = Functions::default();
        let of = |symbol: &str, kind| (symbol.to_owned(), None, kind);
        assert_eq!(functions.number(of("a", FunctionKind::User)), 0);
        assert_eq!(functions.number(of("a", FunctionKind::Kernel)), 1);
        assert_eq!(functions.number(of("a", FunctionKind::User)), 0);
    }
}
