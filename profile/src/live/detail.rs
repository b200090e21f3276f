//! Tables of a part of the samples: its functions, or callers and callees of a function.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use statistics::estimate::{Share, share};
use statistics::part;

use super::code::{Code, Function, NONE};
use super::counts::SampleKind;
use super::snapshot::FunctionShare;
use crate::calls::{CallGrowth, Direction, ListedCall, cut_at};

/// Depth of a tree of calls: that of `vprof report --callers`.
const DEPTH: u32 = 8;
/// Limit of nodes in a tree; 4 MiB.
const MOST_NODES: usize = 1 << 16;

/// Part of the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SamplePart {
    /// All of the guest.
    #[default]
    All,
    /// All instances of a program, or another owner of samples.
    Program {
        /// Program's name, or a name in brackets.
        comm: String,
        /// A kernel thread.
        #[serde(default)]
        kernel_thread: bool,
    },
    /// A process.
    Process {
        /// Program's name.
        comm: String,
        /// Instance number.
        instance: u32,
    },
}

/// Selection of the callers or callees of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallsView {
    /// Name of the function.
    pub symbol: String,
    /// Its module; `None` for the kernel image.
    #[serde(default)]
    pub module: Option<String>,
    /// Direction in which the tree grows.
    pub direction: Direction,
}

/// Selection of a table of a part of the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DetailView {
    /// The part.
    pub part: SamplePart,
    /// A tree of calls instead of functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallsView>,
}

/// A table of a part of the samples. Shares are of all samples of the span that were not idle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// Selection of the table.
    pub view: DetailView,
    /// Samples of the part that were not idle.
    pub samples: u64,
    /// Functions, those with most own samples first; none for a tree.
    pub functions: Vec<FunctionShare>,
    /// The function, if a stack has it, and then each node before its own branches, the largest branch first.
    pub calls: Vec<CallShare>,
}

/// A function in a tree of calls, reached by the nodes above it. Each sample counts once: from the outermost
/// frame of the tree's function on its stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallShare {
    /// 0 for the function itself.
    pub depth: u32,
    /// Name.
    pub symbol: String,
    /// Kernel module, or the program or library; `None` for the kernel image.
    pub module: Option<String>,
    /// Samples that reached it this way.
    pub samples: u64,
    /// Their part of all samples that were not idle.
    pub share: Share,
    /// Their part of the samples of the tree's function.
    pub part: f64,
}

impl Detail {
    /// Makes the table of these samples, with at most `rows` rows; `busy`: all samples that were not idle.
    pub(super) fn new(
        code: &Code,
        kinds: &[(SampleKind, u64)],
        (busy, rows): (BusySamples, usize),
        view: &DetailView,
    ) -> Self {
        let samples = kinds.iter().map(|(_, count)| count).sum();
        let (mut of_functions, mut of_calls) = (Vec::new(), Vec::new());
        match &view.calls {
            None => of_functions = functions(code, kinds, busy, rows),
            Some(wanted) => of_calls = calls(code, kinds, (busy, rows), wanted),
        }
        Self { view: view.clone(), samples, functions: of_functions, calls: of_calls }
    }
}

/// Numbers of samples that were not idle.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusySamples {
    pub all: u64,
    /// Those whose stacks are known, or are missing for a reason of the guest's code.
    pub with_stacks: u64,
}

impl BusySamples {
    /// Counts samples, none of which are idle.
    pub(super) fn new(code: &Code, kinds: &[(SampleKind, u64)]) -> Self {
        let all = kinds.iter().map(|(_, count)| count).sum();
        let with_stacks = kinds.iter().filter(|(kind, _)| !code.is_flat(kind.stack));
        Self { all, with_stacks: with_stacks.map(|(_, count)| count).sum() }
    }
}

/// Returns the functions of samples, at most `rows`, those with most own samples first.
pub(super) fn functions(
    code: &Code,
    kinds: &[(SampleKind, u64)],
    busy: BusySamples,
    rows: usize,
) -> Vec<FunctionShare> {
    let numbers = code.count() + 1;
    let (mut own, mut total) = (vec![0_u64; numbers], vec![0_u64; numbers]);
    // Index of the last stack that counted for a function, so that recursion counts once.
    let mut last = vec![0_usize; numbers];
    for (place, (kind, count)) in (1..).zip(kinds) {
        own[code.innermost(kind.frame) as usize] += count;
        if code.is_flat(kind.stack) {
            continue;
        }
        code.functions(kind.frame, kind.stack, |function| {
            let function = function as usize;
            if std::mem::replace(&mut last[function], place) != place {
                total[function] += count;
            }
        });
    }
    let mut sums: Vec<_> = (NONE + 1..).zip(own.into_iter().zip(total).skip(1)).collect();
    sums.retain(|(_, (own, total))| *own > 0 || *total > 0);
    sums.sort_unstable_by_key(|(function, (own, total))| (Reverse(*own), Reverse(*total), *function));
    sums.truncate(rows);
    let row = |(function, (own, total))| {
        let function = code.function(function)?;
        Some(FunctionShare {
            symbol: function.symbol.clone(),
            module: function.module.clone(),
            samples: own,
            own: share(own, busy.all),
            total: share(total, busy.with_stacks),
        })
    };
    sums.into_iter().filter_map(row).collect()
}

/// Returns the callers or callees of a function, at most `rows` nodes.
fn calls(
    code: &Code,
    kinds: &[(SampleKind, u64)],
    (busy, rows): (BusySamples, usize),
    view: &CallsView,
) -> Vec<CallShare> {
    let root = Function { symbol: view.symbol.clone(), module: view.module.clone() };
    let wanted = code.find(&root);
    let mut growth = CallGrowth::new(DEPTH, MOST_NODES);
    let mut path = Vec::new();
    let with_stacks = kinds.iter().filter(|(kind, _)| wanted != NONE && !code.is_flat(kind.stack));
    for (kind, count) in with_stacks {
        path.clear();
        // A reason why a stack ends is not a function.
        code.functions(kind.frame, kind.stack, |function| {
            path.extend((function != NONE).then_some(function))
        });
        if cut_at(&mut path, |function| function == wanted, view.direction).is_some() {
            growth.add(&path, *count);
        }
    }
    let (mut nodes, _) = growth.list(|a, b| a.cmp(&b));
    nodes.truncate(rows);
    let total = nodes.first().map_or(0, |node| node.samples);
    let row = |ListedCall { depth, function, samples, .. }: ListedCall| {
        let function = function.map_or(Some(&root), |function| code.function(function))?;
        Some(CallShare {
            depth,
            symbol: function.symbol.clone(),
            module: function.module.clone(),
            samples,
            share: share(samples, busy.with_stacks),
            part: part(samples, total),
        })
    };
    nodes.into_iter().filter(|node| node.samples > 0).filter_map(row).collect()
}
