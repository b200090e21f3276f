//! Trees of calls: what those of a report and those of live tables share.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use statistics::part;

/// Branches with a smaller part of the function's samples are left out.
pub const LEAST_PART: f64 = 0.01;

/// Direction in which a tree of calls grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Outwards: callers of the function.
    Callers,
    /// Inwards: callees of the function.
    Callees,
}

/// Cuts a stack, its functions innermost first, at the outermost one that is wanted. Leaves those that a tree
/// of it has, in the order in which the tree grows. Returns the wanted one, if it is on the stack.
pub(crate) fn cut_at(
    path: &mut Vec<u32>,
    is_wanted: impl Fn(u32) -> bool,
    direction: Direction,
) -> Option<u32> {
    let place = path.iter().rposition(|&function| is_wanted(function))?;
    let root = path[place];
    match direction {
        Direction::Callers => drop(path.drain(..=place)),
        Direction::Callees => {
            path.truncate(place);
            path.reverse();
        }
    }
    Some(root)
}

/// A node while the tree grows.
#[derive(Debug)]
struct GrowingNode {
    function: u32,
    /// Index of the node above it; its own index for the root.
    above: u32,
    samples: u64,
    branches: Vec<u32>,
}

/// A node of a tree, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedCall {
    /// Its index.
    pub node: u32,
    /// 0 for the root.
    pub depth: u32,
    /// Its function; `None` for the root.
    pub function: Option<u32>,
    /// Samples that reached it this way.
    pub samples: u64,
}

/// A tree of calls that grows by paths from its root.
#[derive(Debug)]
pub(crate) struct CallGrowth {
    nodes: Vec<GrowingNode>,
    /// By the node above and the function.
    known: HashMap<(u32, u32), u32>,
    depth: u32,
    most_nodes: usize,
}

impl CallGrowth {
    /// Makes a root without samples. Calls deeper than `depth` count for the last one that has a node, as do
    /// those beyond `most_nodes`, which is below 2^32.
    pub fn new(depth: u32, most_nodes: usize) -> Self {
        let root = GrowingNode { function: 0, above: 0, samples: 0, branches: Vec::new() };
        Self { nodes: vec![root], known: HashMap::new(), depth, most_nodes }
    }

    /// Counts samples for the root and the nodes of a path. Returns the index of the last one.
    pub fn add(&mut self, path: &[u32], samples: u64) -> u32 {
        self.nodes[0].samples += samples;
        let mut at = 0;
        for &function in path.iter().take(self.depth as usize) {
            let next = match self.known.get(&(at, function)) {
                Some(&next) => next,
                None if self.nodes.len() >= self.most_nodes => break,
                None => {
                    let Ok(next) = u32::try_from(self.nodes.len()) else { break };
                    self.nodes.push(GrowingNode { function, above: at, samples: 0, branches: Vec::new() });
                    self.nodes[at as usize].branches.push(next);
                    self.known.insert((at, function), next);
                    next
                }
            };
            self.nodes[next as usize].samples += samples;
            at = next;
        }
        at
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node and those above it, up to the root; nothing for an index without a node.
    pub fn upwards(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let above = |at: &u32| {
            let above = self.nodes[*at as usize].above;
            (above != *at).then_some(above)
        };
        std::iter::successors(self.nodes.get(node as usize).map(|_| node), above)
    }

    /// Lists the nodes that are large enough: each before its own branches, the largest branch first, equal
    /// ones by their functions. Without recursion, since the user chooses the depth. Returns also the number
    /// of branches that were left out.
    pub fn list(&self, by_name: impl Fn(u32, u32) -> Ordering) -> (Vec<ListedCall>, u64) {
        let total = self.nodes[0].samples;
        let (mut calls, mut left_out) = (Vec::new(), 0);
        let mut open = vec![(0_u32, 0_u32)];
        while let Some((at, depth)) = open.pop() {
            let node = &self.nodes[at as usize];
            let function = (at != 0).then_some(node.function);
            calls.push(ListedCall { node: at, depth, function, samples: node.samples });
            let mut branches = node.branches.clone();
            branches.retain(|&branch| part(self.nodes[branch as usize].samples, total) >= LEAST_PART);
            left_out += (node.branches.len() - branches.len()) as u64;
            // The last one is taken first.
            branches.sort_by(|&a, &b| {
                let (a, b) = (&self.nodes[a as usize], &self.nodes[b as usize]);
                a.samples.cmp(&b.samples).then_with(|| by_name(b.function, a.function))
            });
            open.extend(branches.into_iter().map(|branch| (branch, depth + 1)));
        }
        (calls, left_out)
    }
}
