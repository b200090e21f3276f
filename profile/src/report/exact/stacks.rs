//! Stacks of a profile as text.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

/// Limit of frames per stack: a profile may be damaged.
const MOST_FRAMES: usize = 1024;
/// Prefixes of the functions that the processor's exceptions enter, in assembler and in C
/// (arch/x86/include/asm/idtentry.h, since 5.8).
const EXCEPTION_ENTRIES: [&str; 2] = ["asm_exc_", "exc_"];

/// Tree of stacks, with the names of their frames.
pub(in crate::report) struct Stacks(HashMap<i64, (Option<i64>, String)>);

impl Stacks {
    pub(in crate::report) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(
            "SELECT s.id, s.parent, CASE f.kind WHEN 'reason' THEN '[' || f.symbol || ']' \
             ELSE coalesce(f.symbol, '[' || f.module || ']', printf('0x%x', f.address)) END \
             FROM stack s JOIN frame f ON f.id = s.frame",
        )?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
        Ok(Self(rows.collect::<Result<_, _>>()?))
    }

    /// Returns the functions, innermost first; empty if there is no stack.
    pub(in crate::report) fn functions(&self, stack: i64) -> Vec<String> {
        let mut list = Vec::new();
        let mut at = self.0.get(&stack);
        while let Some((parent, name)) = at.filter(|_| list.len() < MOST_FRAMES) {
            list.push(name.clone());
            at = parent.and_then(|parent| self.0.get(&parent));
        }
        list
    }

    /// Returns the stacks that lead through the handler of an exception of the processor, like a page fault.
    pub(super) fn in_exceptions(&self) -> HashSet<i64> {
        let enters = |name: &str| EXCEPTION_ENTRIES.iter().any(|entry| name.starts_with(entry));
        let within = |id: &i64| {
            let mut at = self.0.get(id);
            for _ in 0..MOST_FRAMES {
                match at {
                    Some((_, name)) if enters(name) => return true,
                    Some((Some(parent), _)) => at = self.0.get(parent),
                    _ => return false,
                }
            }
            false
        };
        self.0.keys().copied().filter(within).collect()
    }
}
