//! Who calls a function, and what it calls.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::code::{Function, small};
use super::filter::no_such_symbol;
use super::sums::Leaf;
use super::tables::part;
use super::view::{View, frames};
use super::{Estimate, ReportError};
use crate::batch::FrameKind;

/// Branches with a smaller part of the function's samples are left out.
pub const LEAST_PART: f64 = 0.01;
/// A tree grows no more nodes than this: deeper callers then count for the last one that has a node.
const MOST_NODES: usize = 1 << 20;

/// Which way a tree of calls grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Outwards: who calls the function.
    Callers,
    /// Inwards: what the function calls.
    Callees,
}

/// A question for a tree of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeRequest {
    /// The function.
    pub symbol: String,
    /// Which way.
    pub direction: Direction,
    /// How many calls deep.
    pub depth: u32,
}

/// The callers or callees of a function. Each sample counts once: from the outermost place of the function on its
/// stack, so that recursion shows up among the callees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallTree {
    /// The function that was asked for.
    pub symbol: String,
    /// Which way the tree grows.
    pub direction: Direction,
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
    /// The function; in brackets why the stack ends here.
    pub symbol: String,
    /// Kernel module, or file name of user code.
    pub module: Option<String>,
    /// `user`, `kernel`, or `reason` for the end of a stack.
    pub kind: String,
    /// Samples that reached it this way.
    pub samples: u64,
    /// Part of all non-idle samples.
    pub share: f64,
    /// Part of the samples of the function that was asked for.
    pub part: f64,
}

/// A node while the tree grows.
struct Growing {
    function: u32,
    samples: u64,
    branches: Vec<u32>,
}

impl CallTree {
    pub(super) fn new(request: &TreeRequest, view: &View<'_>) -> Result<Self, ReportError> {
        let wanted = view.code.named(&request.symbol);
        let Some(first) = wanted.iter().position(|&is| is) else {
            return Err(no_such_symbol(&request.symbol, view.code));
        };
        let mut nodes = vec![Growing { function: small(first), samples: 0, branches: Vec::new() }];
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut path = Vec::new();
        for (leaf, &samples) in &view.sums.leaves {
            if !path_from(view, leaf, &wanted, request.direction, &mut path) {
                continue;
            }
            nodes[0].samples += samples;
            let mut at = 0;
            for &function in path.iter().take(request.depth as usize) {
                let next = match known.get(&(at, function)) {
                    Some(&next) => next,
                    None if nodes.len() >= MOST_NODES => break,
                    None => {
                        let next = small(nodes.len());
                        nodes.push(Growing { function, samples: 0, branches: Vec::new() });
                        nodes[at as usize].branches.push(next);
                        known.insert((at, function), next);
                        next
                    }
                };
                nodes[next as usize].samples += samples;
                at = next;
            }
        }
        let total = nodes[0].samples;
        let mut tree = Self {
            symbol: request.symbol.clone(),
            direction: request.direction,
            total: Estimate::of(total, view.sums.busy),
            nodes: Vec::new(),
            left_out: 0,
        };
        tree.flatten(&mut nodes, view);
        Ok(tree)
    }

    /// Lists the nodes that are large enough, without recursion: depth is what somebody asked for.
    fn flatten(&mut self, nodes: &mut [Growing], view: &View<'_>) {
        let total = self.total.samples;
        let name = |function: u32| {
            let Function { symbol, module, kind } = &view.code.functions[function as usize];
            (symbol, module, *kind)
        };
        let mut open = vec![(0_u32, 0_u32)];
        while let Some((at, depth)) = open.pop() {
            let mut branches = std::mem::take(&mut nodes[at as usize].branches);
            let node = &nodes[at as usize];
            let (symbol, module, kind) = name(node.function);
            self.nodes.push(TreeNode {
                depth,
                symbol: if kind == FrameKind::Reason { format!("[{symbol}]") } else { symbol.clone() },
                module: module.clone().filter(|_| kind != FrameKind::Reason),
                kind: kind.name().to_owned(),
                samples: node.samples,
                share: part(node.samples, view.sums.busy),
                part: part(node.samples, total),
            });
            let before = branches.len();
            branches.retain(|&branch| part(nodes[branch as usize].samples, total) >= LEAST_PART);
            self.left_out += (before - branches.len()) as u64;
            // The last is taken first.
            branches.sort_by(|&a, &b| {
                let (a, b) = (&nodes[a as usize], &nodes[b as usize]);
                a.samples.cmp(&b.samples).then_with(|| {
                    let ((name_a, module_a, _), (name_b, module_b, _)) = (name(a.function), name(b.function));
                    (name_b, module_b).cmp(&(name_a, module_a))
                })
            });
            open.extend(branches.into_iter().map(|branch| (branch, depth + 1)));
        }
    }
}

/// Puts into `path` the functions from the outermost wanted one on, in the order in which the tree grows. False where
/// none is on the stack.
fn path_from(
    view: &View<'_>,
    leaf: &Leaf,
    wanted: &[bool],
    direction: Direction,
    path: &mut Vec<u32>,
) -> bool {
    path.clear();
    for frame in frames(view.stacks, leaf) {
        let slots = view.code.frames[frame as usize].slots();
        path.extend(view.code.entries[slots].iter().map(|entry| entry.function));
    }
    let Some(place) = path.iter().rposition(|&function| wanted[function as usize]) else { return false };
    match direction {
        Direction::Callers => drop(path.drain(..=place)),
        Direction::Callees => {
            path.truncate(place);
            path.reverse();
        }
    }
    true
}
