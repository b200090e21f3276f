//! Caches of bounded size.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries of one cache, at most.
const MAX_ENTRIES: usize = 65_536;

/// Values that are remembered until they are too many or too large: then all are forgotten.
#[derive(Debug)]
pub(super) struct BoundedCache<K, V> {
    values: HashMap<K, V>,
    /// Size of the values, and its limit, in units of the caller.
    size: usize,
    limit: usize,
}

impl<K: Eq + Hash, V: Clone> BoundedCache<K, V> {
    /// Returns a cache of values of `limit` units together.
    pub(super) fn new(limit: usize) -> Self {
        Self { values: HashMap::new(), size: 0, limit }
    }

    /// Returns a value.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.values.get(key).cloned()
    }

    /// Adds a value of `size` units.
    pub(super) fn insert(&mut self, key: K, value: V, size: usize) {
        self.size = self.size.saturating_add(size);
        if self.size > self.limit || self.values.len() >= MAX_ENTRIES {
            self.values.clear();
            self.size = size;
        }
        self.values.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_forgets_before_it_is_too_large() {
        let mut cache = BoundedCache::new(100);
        for number in 0..10 {
            cache.insert(number, number, 10);
        }
        assert_eq!((cache.get(&0), cache.get(&9)), (Some(0), Some(9)));
        cache.insert(10, 10, 1);
        assert_eq!((cache.get(&0), cache.get(&10)), (None, Some(10)));
        let mut cache = BoundedCache::new(1);
        for number in 0..=MAX_ENTRIES {
            cache.insert(number, (), 0);
        }
        assert_eq!((cache.get(&0), cache.get(&MAX_ENTRIES)), (None, Some(())));
    }
}
