//! Callers and callees of a function.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statistics::part;

use super::code::{Function, NONE, small};
use super::filter::functions;
use super::sums::Leaf;
use super::view::{RowLists, View, frames};
use super::{Estimate, ReportError};
use crate::calls::{CallGrowth, Direction, ListedCall, cut_at};
use crate::rows::FrameKind;

/// Limit of modules that are listed.
pub const MOST_MODULES: usize = 16;
/// Limit of nodes in a tree: deeper callers then count for the last one that has a node.
const MOST_NODES: usize = 1 << 20;

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

impl CallTree {
    pub(super) fn new(request: &TreeRequest, view: &View<'_>) -> Result<Self, ReportError> {
        let wanted = functions(view.code, &request.symbol, request.module.as_deref())?;
        let first = wanted.iter().position(|&is| is).unwrap_or(0);
        let mut growth = CallGrowth::new(request.depth, MOST_NODES);
        // Index of the last node of each leaf's path.
        let mut ends = Vec::with_capacity(view.sums.leaves.list.len());
        let mut path = Vec::new();
        let mut roots = BTreeSet::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            path.clear();
            if !leaf.flat {
                stack(view, &leaf, &mut path);
            }
            let Some(root) = cut_at(&mut path, |function| wanted[function as usize], request.direction)
            else {
                ends.push(NONE);
                continue;
            };
            roots.insert(root);
            ends.push(growth.add(&path, samples));
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
        let root = roots.first().copied().unwrap_or(small(first));
        let places = tree.list(&growth, root, view);
        if tree.modules.len() > 1
            && let Some(root) = tree.nodes.first_mut()
        {
            (root.symbol, root.module) = (request.symbol.clone(), None);
        }
        tree.estimate(&growth, &ends, &places, view);
        Ok(tree)
    }

    /// Estimates the listed nodes: each leaf counts for the nodes from its path's end up.
    fn estimate(&mut self, growth: &CallGrowth, ends: &[u32], places: &[u32], view: &View<'_>) {
        let mut rows = RowLists::default();
        for &end in ends {
            for at in growth.upwards(end) {
                let place = places[at as usize];
                if place != NONE {
                    rows.push(place);
                }
            }
            rows.end();
        }
        let found = view.sums.stack_log().estimates(self.nodes.len(), |hit| rows.get(hit.leaf));
        for (node, estimate) in self.nodes.iter_mut().zip(found) {
            node.estimate = estimate;
        }
        self.total = self.nodes.first().map(|node| node.estimate).unwrap_or_default();
    }

    /// Lists the nodes that are large enough. Returns the index of each node in the list, [`NONE`] for nodes
    /// that are not listed.
    fn list(&mut self, growth: &CallGrowth, root: u32, view: &View<'_>) -> Vec<u32> {
        let mut places = vec![NONE; growth.count()];
        let name = |function: u32| {
            let Function { symbol, module, kind } = &view.code.functions[function as usize];
            (symbol, module, *kind)
        };
        let by_name = |a: u32, b: u32| {
            let ((symbol_a, module_a, _), (symbol_b, module_b, _)) = (name(a), name(b));
            (symbol_a, module_a).cmp(&(symbol_b, module_b))
        };
        let (calls, left_out) = growth.list(by_name);
        let total = calls.first().map_or(0, |call| call.samples);
        for (place, ListedCall { node, depth, function, samples }) in calls.into_iter().enumerate() {
            places[node as usize] = small(place);
            let (symbol, module, kind) = name(function.unwrap_or(root));
            self.nodes.push(TreeNode {
                depth,
                symbol: if kind == FrameKind::Reason { format!("[{symbol}]") } else { symbol.clone() },
                module: module.clone().filter(|_| kind != FrameKind::Reason),
                kind: kind.name().to_owned(),
                estimate: Estimate::default(),
                part: part(samples, total),
            });
        }
        self.left_out = left_out;
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

/// Puts the functions of a stack into `path`, innermost first.
fn stack(view: &View<'_>, leaf: &Leaf, path: &mut Vec<u32>) {
    path.clear();
    for frame in frames(view.stacks, leaf) {
        let slots = view.code.frames[frame as usize].slots();
        path.extend(view.code.entries[slots].iter().map(|entry| entry.function));
    }
}
