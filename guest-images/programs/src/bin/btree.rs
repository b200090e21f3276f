//! `btree`: the third program of section 3.1 and figure 8 of M. Moravan and M. Richey, *SLEEPY* (2005): three
//! million operations on a B-tree, 20 % inserts of random keys and 80 % look-ups.
//!
//! The functions are those of the paper: look-ups go down in a loop, inserts recursively, nodes do not know
//! their parents, `find_index` serves both, `find_child` and `get_parent_key` serve inserts alone. The paper
//! saw about 50 % of the time in `find_index`, 20 % in `lookup`, 15 % in `find_child` and `get_parent_key`
//! together, 10 % in `main`, and none in `insert` and `insert_recursive`.

use std::hint::black_box;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot, thread_cpu};

const USAGE: &str = "btree [--operations N] [--seconds N]
does N operations (3000000) on a B-tree once, or again and again for N seconds; prints their numbers, the tree's depth
and the CPU time";

/// Number of operations in the paper.
const OPERATIONS: u32 = 3_000_000;
/// Operations per insert: 20 % are inserts.
const INSERT_EVERY: u64 = 5;
/// Keys of a full node; with one more it is split. There are few, so that look-ups spend some time between
/// nodes.
const FULL: usize = 6;

#[derive(Default)]
#[allow(clippy::vec_box, reason = "children keep their addresses, by which find_child knows them")]
struct TreeNode {
    keys: Vec<u64>,
    /// Children: none in a leaf, else one more than keys.
    children: Vec<Box<TreeNode>>,
}

#[derive(Default)]
struct SearchTree {
    root: Box<TreeNode>,
    keys: u64,
}

/// Returns the index of the first key that is not less than `key`, by a linear search.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_index(node: &TreeNode, key: u64) -> usize {
    let mut index = 0;
    while index < node.keys.len() && node.keys[index] < key {
        index += 1;
    }
    index
}

/// Returns the index of `child` in `parent`, which nodes do not store.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_child(parent: &TreeNode, child: usize) -> usize {
    let mut index = 0;
    while index < parent.children.len() && black_box(&raw const *parent.children[index]).addr() != child {
        index += 1;
    }
    index
}

/// Returns the key of `parent` before its child `index`; 0 for the first child.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn get_parent_key(parent: &TreeNode, index: usize) -> u64 {
    let mut key = 0;
    for known in parent.keys.iter().take(index) {
        key = black_box(*known);
    }
    key
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lookup(tree: &SearchTree, key: u64) -> bool {
    let mut node = &*tree.root;
    loop {
        let index = find_index(node, key);
        if node.keys.get(index) == Some(&key) {
            return true;
        }
        match node.children.get(index) {
            Some(child) => node = child,
            None => return false,
        }
    }
}

/// Adds the key below `node`. Returns the key and the node that the caller has to add if `node` was split.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn insert_recursive(
    node: &mut TreeNode,
    key: u64,
    added: &mut bool,
) -> Option<Box<(u64, Box<TreeNode>)>> {
    let index = find_index(node, key);
    if node.keys.get(index) == Some(&key) {
        return None;
    }
    let Some(child) = node.children.get_mut(index) else {
        node.keys.insert(index, key);
        *added = true;
        return split(node);
    };
    let address = (&raw const **child).addr();
    let risen = insert_recursive(child, key, added);
    // The paper's program searches the place among the children again after every insert, and so does this
    // one.
    let place = find_child(node, address);
    assert!(get_parent_key(node, place) <= key, "the tree is in order");
    if let Some(risen) = risen {
        let (middle, right) = *risen;
        node.keys.insert(place, middle);
        node.children.insert(place + 1, right);
        return split(node);
    }
    None
}

/// Splits a node with too many keys. Returns the middle key, and a new node with the keys above it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn split(node: &mut TreeNode) -> Option<Box<(u64, Box<TreeNode>)>> {
    if node.keys.len() <= FULL {
        return None;
    }
    let keys = node.keys.split_off(FULL / 2 + 1);
    let middle = node.keys.pop()?;
    let children = if node.children.is_empty() { Vec::new() } else { node.children.split_off(FULL / 2 + 1) };
    Some(Box::new((middle, Box::new(TreeNode { keys, children }))))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn insert(tree: &mut SearchTree, key: u64) {
    let mut added = false;
    if let Some(risen) = insert_recursive(&mut tree.root, key, &mut added) {
        let (middle, right) = *risen;
        let left = std::mem::take(&mut tree.root);
        *tree.root = TreeNode { keys: vec![middle], children: vec![left, right] };
    }
    tree.keys += u64::from(added);
}

/// Counts of operations.
#[derive(Default)]
struct OperationCounts {
    inserts: u64,
    lookups: u64,
    found: u64,
}

/// Does the work of the paper's `main`: chooses the operations and makes the random input.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn operate(tree: &mut SearchTree, operations: u32, counts: &mut OperationCounts) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..operations {
        // xorshift64 (G. Marsaglia, 2003), repeated to take as long as a C library's generator.
        for _ in 0..12 {
            state ^= state << 13;
            state ^= state >> 7;
            state = black_box(state ^ state << 17);
        }
        let key = state >> 44;
        if state.is_multiple_of(INSERT_EVERY) {
            insert(tree, key);
            counts.inserts += 1;
        } else {
            counts.found += u64::from(lookup(tree, key));
            counts.lookups += 1;
        }
    }
}

fn depth(tree: &SearchTree) -> u32 {
    let mut node = &*tree.root;
    let mut depth = 1;
    while let Some(child) = node.children.first() {
        node = child;
        depth += 1;
    }
    depth
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let operations = args.number("operations")?.unwrap_or(OPERATIONS);
    let limit = match args.text("seconds") {
        Some(_) => Some(since_boot() + seconds(args, 0.0)?),
        None => None,
    };
    let mut counts = OperationCounts::default();
    let tree = loop {
        let mut tree = SearchTree::default();
        operate(&mut tree, operations, &mut counts);
        if limit.is_none_or(|limit| since_boot() >= limit) {
            break tree;
        }
    };
    let OperationCounts { inserts, lookups, found } = counts;
    println!(
        "{inserts} inserts, {lookups} lookups, {found} found, {} keys, depth {}, used {:.6} s",
        tree.keys,
        depth(&tree),
        thread_cpu().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["operations", "seconds"], run)
}
