//! Ways out of code without CFI that were found before: following one again is far cheaper than finding it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use iced_x86::Instruction;

use super::code_exit::CodeAfterJump;
use crate::address::{AddressKind, VirtAddr};

/// Places in code that are remembered, at most; beyond that all are forgotten.
const REMEMBERED: usize = 4096;
/// Instructions of all ways together, at most: 40 bytes each.
const INSTRUCTIONS: usize = 1 << 16;
/// Instructions of a way that is remembered, at most.
const LONGEST: usize = 256;
/// Times that a place without a way out counts as one before a way is searched for again: the words on the
/// stack may have been the reason.
const TRUSTED: u8 = 16;
/// Bytes of code by which a place is known again.
pub(super) const HEAD: usize = 16;

/// Beginning of a way, and the code that it may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PathStart {
    pub at: VirtAddr,
    pub place: AddressKind,
    pub after_jump: CodeAfterJump,
    pub head: [u8; HEAD],
}

/// Answer for a place.
#[derive(Debug, Clone)]
pub(super) enum RememberedPath {
    Path(Arc<[Instruction]>),
    /// There is no way out.
    Nothing,
    /// The place was not searched before, or long ago.
    Unasked,
}

/// Result of the search from one place.
#[derive(Debug)]
enum SearchResult {
    Path(Arc<[Instruction]>),
    /// Number of times that this still counts.
    Nothing(u8),
}

/// All ways that are remembered.
#[derive(Default)]
pub(super) struct PathMemory {
    found: HashMap<PathStart, SearchResult>,
    instructions: usize,
}

impl fmt::Debug for PathMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ways").field("found", &self.found.len()).finish_non_exhaustive()
    }
}

impl PathMemory {
    /// Returns the remembered answer for `start`.
    pub fn recall(&mut self, start: &PathStart) -> RememberedPath {
        match self.found.get_mut(start) {
            Some(SearchResult::Path(way)) => RememberedPath::Path(Arc::clone(way)),
            Some(SearchResult::Nothing(left)) if *left > 0 => {
                *left -= 1;
                RememberedPath::Nothing
            }
            _ => RememberedPath::Unasked,
        }
    }

    /// Remembers the way that was found, or that there is none.
    pub fn remember(&mut self, start: PathStart, way: Option<Vec<Instruction>>) {
        let found = match way {
            Some(way) if way.len() > LONGEST => return,
            Some(way) => SearchResult::Path(way.into()),
            None => SearchResult::Nothing(TRUSTED),
        };
        let len = |found: &SearchResult| if let SearchResult::Path(way) = found { way.len() } else { 0 };
        if self.found.len() >= REMEMBERED || self.instructions.saturating_add(len(&found)) > INSTRUCTIONS {
            *self = Self::default();
        }
        self.instructions += len(&found);
        if let Some(old) = self.found.insert(start, found) {
            self.instructions = self.instructions.saturating_sub(len(&old));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(at: u64) -> PathStart {
        PathStart {
            at: VirtAddr(at),
            place: AddressKind::Return,
            after_jump: CodeAfterJump::Nothing,
            head: [0x90; HEAD],
        }
    }

    #[test]
    fn a_place_without_a_way_is_asked_again_now_and_then() {
        let mut ways = PathMemory::default();
        assert!(matches!(ways.recall(&start(1)), RememberedPath::Unasked));
        ways.remember(start(1), None);
        let nothing = (0..2 * TRUSTED).filter(|_| matches!(ways.recall(&start(1)), RememberedPath::Nothing));
        assert_eq!(nothing.count(), usize::from(TRUSTED));
        ways.remember(start(1), Some(vec![Instruction::default()]));
        assert!(matches!(ways.recall(&start(1)), RememberedPath::Path(way) if way.len() == 1));
        // Other code at the same place.
        assert!(matches!(
            ways.recall(&PathStart { head: [0xcc; HEAD], ..start(1) }),
            RememberedPath::Unasked
        ));
    }

    #[test]
    fn ways_take_bounded_memory() {
        let mut ways = PathMemory::default();
        for at in 0..20_000 {
            let len = if at % 2 == 0 { LONGEST } else { 2 * LONGEST };
            ways.remember(start(at), Some(vec![Instruction::default(); len]));
            ways.remember(start(at % 5), Some(vec![Instruction::default(); 7]));
            let kept: usize = ways
                .found
                .values()
                .map(|found| if let SearchResult::Path(way) = found { way.len() } else { 0 })
                .sum();
            assert_eq!(kept, ways.instructions);
            assert!(kept <= INSTRUCTIONS && ways.found.len() <= REMEMBERED);
        }
        for at in 0..20_000 {
            ways.remember(start(at), None);
        }
        assert!(ways.found.len() <= REMEMBERED);
    }
}
