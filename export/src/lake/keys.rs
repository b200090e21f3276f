//! Texts of guests in the lake, with bounds.

use display::clean::{cut, escaped};

/// Longest name of a process, a thread, a function and the like, in characters.
pub(super) const LONGEST_NAME: usize = 256;
/// Longest path, in characters.
pub(super) const LONGEST_PATH: usize = 1_024;
/// Longest other text, in characters.
pub(super) const LONGEST_TEXT: usize = 4_096;

/// Returns a text without control characters, of at most `longest` characters.
pub(super) fn bounded(text: &str, longest: usize) -> String {
    cut(&escaped(text), longest)
}

/// Keeps the `most` largest sums and returns the rest. Of equal ones, the earlier are kept; the order of what
/// is kept is not specified.
pub(super) fn split_smallest<T>(sums: &mut Vec<T>, most: usize, size: impl Fn(&T) -> u64) -> Vec<T> {
    if sums.len() <= most {
        return Vec::new();
    }
    // A stable sort: the same profile gives the same rows.
    sums.sort_by_key(|sum| std::cmp::Reverse(size(sum)));
    sums.split_off(most)
}
