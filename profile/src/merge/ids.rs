//! New row ids, and equal rows of several sources.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use rusqlite::types::ValueRef;

use super::MergeError;

/// Rows of one table that can be found again: what is beyond is stored once for each source. They fill maps
/// of 2^21 places of 25 bytes and of 2^22 places of 13 bytes, 55 MB each.
const MOST_KNOWN: usize = 7 << 18;
const MOST_STACKS: usize = 7 << 19;

/// New row ids of one table.
#[derive(Debug)]
pub(super) struct IdSpace {
    /// Rows in the plural, for the error of too many.
    what: &'static str,
    /// Largest new id.
    most: u32,
    next: u32,
    /// New ids of the present source's rows.
    new: HashMap<i64, u32>,
}

impl IdSpace {
    /// Creates a space of ids from `first` to `most`.
    pub(super) fn new(what: &'static str, first: u32, most: u32) -> Self {
        Self { what, most, next: first, new: HashMap::new() }
    }

    /// Begins the next source.
    pub(super) fn forget(&mut self) {
        self.new.clear();
    }

    /// Returns the new id of a row. A reference to a row that the source does not have gets one that no row
    /// has.
    pub(super) fn get(&mut self, old: i64) -> Result<u32, MergeError> {
        match self.new.get(&old) {
            Some(&known) => Ok(known),
            None => {
                let id = self.take()?;
                self.new.insert(old, id);
                Ok(id)
            }
        }
    }

    /// Returns the new id of a row if it has one.
    pub(super) fn known(&self, old: i64) -> Option<u32> {
        self.new.get(&old).copied()
    }

    /// Makes `id` the new id of a row.
    pub(super) fn set(&mut self, old: i64, id: u32) {
        self.new.insert(old, id);
    }

    fn take(&mut self) -> Result<u32, MergeError> {
        let Self { what, most, next, .. } = *self;
        if next > most {
            return Err(MergeError::TooMany { what, most });
        }
        self.next += 1;
        Ok(next)
    }

    /// Returns old and new ids of the present source, in the order of the new ones.
    pub(super) fn all(&self) -> Vec<(i64, u32)> {
        let mut all: Vec<(i64, u32)> = self.new.iter().map(|(&old, &new)| (old, new)).collect();
        all.sort_unstable_by_key(|(_, new)| *new);
        all
    }
}

/// 128 bits of a row's content under secret keys: no source can make two rows with the same ones.
pub(super) type Digest = [u64; 2];

/// Rows by their content.
#[derive(Debug, Default)]
pub(super) struct Known {
    keys: [RandomState; 2],
    ids: HashMap<Digest, u32>,
}

impl Known {
    /// Returns the digest of a row's values; `more` is that of other tables' rows which belong to it.
    pub(super) fn digest(&self, values: &[ValueRef<'_>], more: Option<Digest>) -> Digest {
        [0, 1].map(|at| {
            let mut hasher = self.keys[at].build_hasher();
            for value in values {
                put(&mut hasher, *value);
            }
            hasher.write_u64(more.map_or(0, |digest| digest[at]));
            hasher.finish()
        })
    }

    /// Returns the row with this content.
    pub(super) fn find(&self, digest: Digest) -> Option<u32> {
        self.ids.get(&digest).copied()
    }

    /// Notes a row.
    pub(super) fn insert(&mut self, digest: Digest, id: u32) {
        if self.ids.len() < MOST_KNOWN {
            self.ids.insert(digest, id);
        }
    }
}

fn put(hasher: &mut impl Hasher, value: ValueRef<'_>) {
    let bytes = match value {
        ValueRef::Null => return hasher.write_u8(0),
        ValueRef::Integer(number) => {
            hasher.write_u8(1);
            return hasher.write_i64(number);
        }
        ValueRef::Real(number) => {
            hasher.write_u8(2);
            return hasher.write_u64(number.to_bits());
        }
        ValueRef::Text(bytes) => {
            hasher.write_u8(3);
            bytes
        }
        ValueRef::Blob(bytes) => {
            hasher.write_u8(4);
            bytes
        }
    };
    hasher.write_usize(bytes.len());
    hasher.write(bytes);
}

/// Stacks by the new ids of their callers and frames; 0 for no caller.
#[derive(Debug, Default)]
pub(super) struct KnownStacks(HashMap<(u32, u32), u32>);

impl KnownStacks {
    /// Returns the stack with this caller and frame.
    pub(super) fn find(&self, parent: u32, frame: u32) -> Option<u32> {
        self.0.get(&(parent, frame)).copied()
    }

    /// Notes a stack.
    pub(super) fn insert(&mut self, parent: u32, frame: u32, id: u32) {
        if self.0.len() < MOST_STACKS {
            self.0.insert((parent, frame), id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_end_with_an_error() {
        let mut ids = IdSpace::new("vCPUs", 0, 1);
        assert_eq!((ids.get(70).ok(), ids.get(-5).ok(), ids.get(70).ok()), (Some(0), Some(1), Some(0)));
        assert_eq!(ids.all(), [(70, 0), (-5, 1)]);
        ids.forget();
        let error = ids.get(70).expect_err("no more");
        assert_eq!(error.to_string(), "the profiles have too many vCPUs, more than 1: merge fewer profiles");
    }

    #[test]
    fn contents_differ_by_type_and_by_boundary() {
        let known = Known::default();
        let text = |text: &'static str| ValueRef::Text(text.as_bytes());
        let rows: [&[ValueRef<'_>]; 7] = [
            &[ValueRef::Null, text("ab")],
            &[text("a"), text("b")],
            &[text("ab"), text("")],
            &[ValueRef::Blob(b"ab"), text("")],
            &[ValueRef::Integer(1), ValueRef::Null],
            &[ValueRef::Real(1.0), ValueRef::Null],
            &[ValueRef::Null, ValueRef::Integer(1)],
        ];
        let digests: std::collections::HashSet<Digest> = rows
            .iter()
            .map(|row| known.digest(row, None))
            .chain([known.digest(rows[0], Some([1, 1]))])
            .collect();
        assert_eq!(digests.len(), rows.len() + 1);
    }
}
