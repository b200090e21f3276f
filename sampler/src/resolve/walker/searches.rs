//! Searches for the runtimes of processes, and their results.

use std::collections::HashMap;

/// Processes that are remembered, at most; beyond that all are forgotten and searched again.
const REMEMBERED: usize = 4096;

/// Result of the search in one process.
#[derive(Debug)]
struct ProcessSearch<T> {
    /// Page tables, and the time when the mappings were read that were searched, ns.
    searched: (u64, u64),
    found: Option<T>,
}

/// Results of the searches in all processes, by row id of their instances.
#[derive(Debug)]
pub(super) struct ProcessSearches<T>(HashMap<u32, ProcessSearch<T>>);

impl<T> Default for ProcessSearches<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> ProcessSearches<T> {
    /// Returns what `search` has found in the process `instance`. What was found stays until the page tables
    /// in `version` are others: a runtime stays where it is until the process executes another program. What
    /// was not found is searched again when the mappings were read `again_ns` later, or more.
    pub(super) fn get(
        &mut self,
        instance: u32,
        version: (u64, u64),
        again_ns: u64,
        search: impl FnOnce() -> Option<T>,
    ) -> Option<&mut T> {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&instance) {
            self.0.clear();
        }
        let is_current = self.0.get(&instance).is_some_and(|known| {
            let waits = version.1.saturating_sub(known.searched.1) < again_ns;
            known.searched.0 == version.0 && (known.found.is_some() || waits)
        });
        if !is_current {
            self.0.insert(instance, ProcessSearch { searched: version, found: search() });
        }
        self.0.get_mut(&instance)?.found.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_searched_until_something_is_found_and_again_after_exec() {
        let mut searches = ProcessSearches::default();
        let mut get = |version, result: Option<u32>| {
            let mut searched = false;
            let found = searches.get(7, version, 100, || {
                searched = true;
                result
            });
            (found.copied(), searched)
        };
        assert_eq!(get((1, 1000), None), (None, true));
        assert_eq!(get((1, 1099), Some(5)), (None, false), "too early");
        assert_eq!(get((1, 1100), Some(5)), (Some(5), true));
        assert_eq!(get((1, 9000), Some(6)), (Some(5), false), "it stays where it is");
        assert_eq!(get((2, 9000), None), (None, true), "another program");
    }

    #[test]
    fn processes_beyond_the_limit_are_forgotten() {
        let mut searches = ProcessSearches::default();
        for instance in 0..10_000 {
            assert_eq!(searches.get(instance, (1, 1), 1, || Some(instance)), Some(&mut { instance }));
            assert!(searches.0.len() <= REMEMBERED);
        }
    }
}
