//! Stacks, each stored once: a tree whose branches are callers.

use std::collections::HashMap;

use profile::rows::StackRow;

/// Stacks that are remembered at once. Beyond that all are forgotten and get new rows.
const REMEMBERED: usize = 1 << 20;

/// All stacks that are remembered.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    known: HashMap<(u32, u32), u32>,
    given: u32,
}

impl StackTable {
    /// Returns the row id of the stack of these frames, outermost first; `None` without frames.
    pub(crate) fn intern(
        &mut self,
        frames: impl Iterator<Item = u32>,
        rows: &mut Vec<StackRow>,
    ) -> Option<u32> {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let mut parent = None;
        for frame in frames {
            let given = &mut self.given;
            // Row ids start at 1.
            let id = *self.known.entry((parent.unwrap_or(0), frame)).or_insert_with(|| {
                *given = given.saturating_add(1);
                rows.push(StackRow { id: *given, parent, frame });
                *given
            });
            parent = Some(id);
        }
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_are_stored_once() {
        let (mut stacks, mut rows) = (StackTable::default(), Vec::new());
        let mut intern = |frames: &[u32]| stacks.intern(frames.iter().copied(), &mut rows);
        assert_eq!(intern(&[]), None);
        let (first, second) = (intern(&[5, 6, 7]), intern(&[5, 6, 8]));
        assert_eq!((first, second), (Some(3), Some(4)));
        assert_eq!(intern(&[5, 6, 7]), first);
        assert_eq!(intern(&[6, 7]), Some(6), "the same frames under another caller are another stack");
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[3], StackRow { id: 4, parent: Some(2), frame: 8 });
        assert!(rows.iter().all(|row| row.parent.is_none_or(|parent| parent < row.id)));
    }
}
