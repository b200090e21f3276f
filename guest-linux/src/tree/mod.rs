//! The kernel's trees, as they are in memory: maple tree and XArray.
//!
//! A running guest changes them, a hostile one ties them into loops: depth and nodes are bounded, and what
//! cannot be read is left out.

mod maple;
mod xarray;

pub(crate) use maple::{MapleLayout, MapleTree};
pub(crate) use xarray::{XArray, XArrayLayout};

/// Both trees mark a pointer to a node by these low bits (`xa_is_internal`, include/linux/xarray.h).
const INTERNAL_MASK: u64 = 3;
/// See [`INTERNAL_MASK`].
const INTERNAL: u64 = 2;
/// Internal entries up to here are marks, not nodes (`xa_is_node`, include/linux/xarray.h).
const LAST_MARK: u64 = 4096;

/// Returns true if `entry` points to a node.
fn is_node(entry: u64) -> bool {
    entry & INTERNAL_MASK == INTERNAL && entry > LAST_MARK
}
