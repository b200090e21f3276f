//! Rows by address: of many samples in the same code, only the first computes them.

use super::row::CfiRow;
use crate::address::LinkAddr;

/// Rows that are kept; 60 stops of a Python interpreter and 30 steps from each use 1,200.
const ROWS: usize = 1 << 14;

/// Places for one address: with one place, two rows of the same stack that share it would oust each other in
/// every walk.
const WAYS: usize = 4;

/// A row and whose it is.
#[derive(Debug)]
struct CacheSlot {
    image: u32,
    address: LinkAddr,
    row: CfiRow,
}

/// Rows by image and address inside it. Every address has [`WAYS`] places, the last used one first: a new row
/// ousts the one that was not used for longest.
#[derive(Debug)]
pub(super) struct RowCache {
    /// Places of one address after those of another, made when they are used: few are for most programs.
    sets: Box<[Option<Box<[CacheSlot; WAYS]>>]>,
}

impl RowCache {
    pub fn new() -> Self {
        Self { sets: (0..ROWS / WAYS).map(|_| None).collect() }
    }

    /// Returns the row of `address` in `image`: kept, or made by `compute`. What `compute` fails at is not
    /// kept.
    pub fn row<E>(
        &mut self,
        image: u32,
        address: LinkAddr,
        compute: impl FnOnce() -> Result<CfiRow, E>,
    ) -> Result<&CfiRow, E> {
        // An empty slot is right by itself: it answers for an address that is never asked of the cache.
        let empty = || CacheSlot { image: 0, address: NEVER, row: CfiRow::NoCfi };
        let set = &mut self.sets[set(image, address)];
        let ways = set.get_or_insert_with(|| Box::new(std::array::from_fn(|_| empty())));
        let known = ways.iter().position(|slot| slot.address == address && slot.image == image);
        match known.filter(|_| address != NEVER) {
            Some(way) => ways[..=way].rotate_right(1),
            None => {
                let row = compute()?;
                ways.rotate_right(1);
                ways[0] = CacheSlot { image, address, row };
            }
        }
        Ok(&ways[0].row)
    }
}

/// The address of empty slots: the last byte of the address space, which no user program has.
const NEVER: LinkAddr = LinkAddr(u64::MAX);

/// Returns the number of the places where a row is kept.
fn set(image: u32, LinkAddr(address): LinkAddr) -> usize {
    // Fibonacci hashing: the multiplier is 2^64 over the golden ratio, the product's upper half is well
    // mixed.
    let mixed = (address ^ u64::from(image) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    crate::bytes::index(mixed >> 32) % (ROWS / WAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_computed_once_for_an_image_and_an_address() {
        let mut cache = RowCache::new();
        let mut row = |image, address, row: CfiRow| {
            cache.row(image, LinkAddr(address), || Ok::<_, ()>(row)).unwrap().clone()
        };
        assert_eq!(row(1, 0x1000, CfiRow::Bad), CfiRow::Bad);
        assert_eq!(row(1, 0x1000, CfiRow::Outermost), CfiRow::Bad);
        assert_eq!(row(2, 0x1000, CfiRow::Outermost), CfiRow::Outermost);
        assert_eq!(row(0, u64::MAX, CfiRow::Bad), CfiRow::Bad);
    }

    #[test]
    fn more_rows_than_places_oust_one_another() {
        let mut cache = RowCache::new();
        for address in 0..4 * ROWS as u64 {
            cache.row(0, LinkAddr(address), || Ok::<_, ()>(CfiRow::Bad)).unwrap();
        }
        assert_eq!(cache.sets.iter().flatten().count() * WAYS, ROWS);
        assert_eq!(cache.row(0, LinkAddr(7), || Err(())), Err(()));
    }
}
