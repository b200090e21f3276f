//! Callers and callees of a function.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::code::{Function, NONE, small};
use super::filter::functions;
use super::sums::Leaf;
use super::view::{RowLists, View, frames};
use super::{Estimate, ReportError};
use crate::numbers::part;
use crate::rows::FrameKind;

/// Branches with a smaller part of the function's samples are left out.
pub const LEAST_PART: f64 = 0.01;
/// Limit of modules that are listed.
pub const MOST_MODULES: usize = 16;
/// Limit of nodes in a tree: deeper callers then count for the last one that has a node.
const MOST_NODES: usize = 1 << 20;

/// Direction in which a tree of calls grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Outwards: callers of the function.
    Callers,
    /// Inwards: callees of the function.
    Callees,
}

/// Request for a tree of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeRequest {
    /// The function.
    pub symbol: String,
    /// Only the function of this module, as in [`super::Filter::module`]; `None` for all of that name.
    pub module: Option<String>,
    /// Direction.
    pub direction: Direction,
    /// Depth in calls.
    pub depth: u32,
}

/// The callers or callees of a function. Each sample counts once: from the outermost frame of the function on
/// its stack, so that recursion shows up among the callees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallTree {
    /// The requested function.
    pub symbol: String,
    /// Direction in which the tree grows.
    pub direction: Direction,
    /// Modules of the functions of this name that are on the stacks, `kernel` for the kernel itself: the tree
    /// is of all of them together. At most [`MOST_MODULES`].
    pub modules: Vec<String>,
    /// Samples with the function on their stack.
    pub total: Estimate,
    /// The function itself and then each node before its own branches, the largest branch first.
    pub nodes: Vec<TreeNode>,
    /// Branches that were left out, each with less than one in a hundred of the function's samples.
    pub left_out: u64,
}

/// A function in a tree of calls, reached by the nodes above it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreeNode {
    /// 0 for the function itself.
    pub depth: u32,
    /// The function; in brackets the reason why the stack ends here.
    pub symbol: String,
    /// Kernel module, or file name of user code.
    pub module: Option<String>,
    /// `user`, `kernel`, or `reason` for the end of a stack.
    pub kind: String,
    /// Samples that reached it this way.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Part of the samples of the requested function.
    pub part: f64,
}

/// A node while the tree grows.
struct GrowingNode {
    function: u32,
    /// Index of the node above it; its own index for the function itself.
    above: u32,
    samples: u64,
    branches: Vec<u32>,
}

impl CallTree {
    pub(super) fn new(request: &TreeRequest, view: &View<'_>) -> Result<Self, ReportError> {
        let wanted = functions(view.code, &request.symbol, request.module.as_deref())?;
        let first = wanted.iter().position(|&is| is).unwrap_or(0);
        let mut nodes =
            vec![GrowingNode { function: small(first), above: 0, samples: 0, branches: Vec::new() }];
        // Index of the last node of each leaf's path.
        let mut ends = Vec::with_capacity(view.sums.leaves.list.len());
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut path = Vec::new();
        let mut roots = BTreeSet::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            let Some(root) = path_from(view, &leaf, &wanted, request.direction, &mut path) else {
                ends.push(NONE);
                continue;
            };
            roots.insert(root);
            nodes[0].samples += samples;
            let mut at = 0;
            for &function in path.iter().take(request.depth as usize) {
                let next = match known.get(&(at, function)) {
                    Some(&next) => next,
                    // The sample still counts for the last node on its way.
                    None if nodes.len() >= MOST_NODES => break,
                    None => {
                        let next = small(nodes.len());
                        nodes.push(GrowingNode { function, above: at, samples: 0, branches: Vec::new() });
                        nodes[at as usize].branches.push(next);
                        known.insert((at, function), next);
                        next
                    }
                };
                nodes[next as usize].samples += samples;
                at = next;
            }
            ends.push(at);
        }
        let mut tree = Self {
            symbol: request.symbol.clone(),
            direction: request.direction,
            modules: modules(view, &roots),
            total: Estimate::default(),
            nodes: Vec::new(),
            left_out: 0,
        };
        // The root is a function that is there, and no single one if they are several.
        nodes[0].function = roots.first().copied().unwrap_or(nodes[0].function);
        let places = tree.flatten(&mut nodes, view);
        if tree.modules.len() > 1
            && let Some(root) = tree.nodes.first_mut()
        {
            (root.symbol, root.module) = (request.symbol.clone(), None);
        }
        tree.estimate(&nodes, &ends, &places, view);
        Ok(tree)
    }

    /// Estimates the listed nodes: each leaf counts for the nodes from its path's end up.
    fn estimate(&mut self, nodes: &[GrowingNode], ends: &[u32], places: &[u32], view: &View<'_>) {
        let mut rows = RowLists::default();
        for &end in ends {
            let mut next = nodes.get(end as usize).map(|_| end);
            while let Some(at) = next {
                let place = places[at as usize];
                if place != NONE {
                    rows.push(place);
                }
                next = Some(nodes[at as usize].above).filter(|&above| above != at);
            }
            rows.end();
        }
        let found = view.sums.tick_log.estimates(self.nodes.len(), |hit| rows.get(hit.leaf));
        for (node, estimate) in self.nodes.iter_mut().zip(found) {
            node.estimate = estimate;
        }
        self.total = self.nodes.first().map(|node| node.estimate).unwrap_or_default();
    }

    /// Lists the nodes that are large enough, without recursion, since the user chooses the depth. Returns
    /// the index of each node in the list, [`NONE`] for nodes that are not listed.
    fn flatten(&mut self, nodes: &mut [GrowingNode], view: &View<'_>) -> Vec<u32> {
        let mut places = vec![NONE; nodes.len()];
        let total = nodes[0].samples;
        let name = |function: u32| {
            let Function { symbol, module, kind } = &view.code.functions[function as usize];
            (symbol, module, *kind)
        };
        let mut open = vec![(0_u32, 0_u32)];
        while let Some((at, depth)) = open.pop() {
            let mut branches = std::mem::take(&mut nodes[at as usize].branches);
            let node = &nodes[at as usize];
            let (symbol, module, kind) = name(node.function);
            places[at as usize] = small(self.nodes.len());
            self.nodes.push(TreeNode {
                depth,
                symbol: if kind == FrameKind::Reason { format!("[{symbol}]") } else { symbol.clone() },
                module: module.clone().filter(|_| kind != FrameKind::Reason),
                kind: kind.name().to_owned(),
                estimate: Estimate::default(),
                part: part(node.samples, total),
            });
            let before = branches.len();
            branches.retain(|&branch| part(nodes[branch as usize].samples, total) >= LEAST_PART);
            self.left_out += (before - branches.len()) as u64;
            // The last one is taken first.
            branches.sort_by(|&a, &b| {
                let (a, b) = (&nodes[a as usize], &nodes[b as usize]);
                a.samples.cmp(&b.samples).then_with(|| {
                    let ((name_a, module_a, _), (name_b, module_b, _)) = (name(a.function), name(b.function));
                    (name_b, module_b).cmp(&(name_a, module_a))
                })
            });
            open.extend(branches.into_iter().map(|branch| (branch, depth + 1)));
        }
        places
    }
}

/// Returns the modules of functions.
fn modules(view: &View<'_>, functions: &BTreeSet<u32>) -> Vec<String> {
    let module = |function: &u32| {
        let function = &view.code.functions[*function as usize];
        function.module.clone().unwrap_or_else(|| "kernel".to_owned())
    };
    let names: BTreeSet<String> = functions.iter().map(module).collect();
    names.into_iter().take(MOST_MODULES).collect()
}

/// Puts the functions from the outermost wanted one on into `path`, in the order in which the tree grows.
/// Returns the wanted one, if it is on the stack.
fn path_from(
    view: &View<'_>,
    leaf: &Leaf,
    wanted: &[bool],
    direction: Direction,
    path: &mut Vec<u32>,
) -> Option<u32> {
    path.clear();
    for frame in frames(view.stacks, leaf) {
        let slots = view.code.frames[frame as usize].slots();
        path.extend(view.code.entries[slots].iter().map(|entry| entry.function));
    }
    let place = path.iter().rposition(|&function| wanted[function as usize])?;
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
