//! Functions by address: what a profile asks a symbol table.

use std::cmp::Reverse;

use symbols::shared_table::SharedTable;

/// One function: its start and end, relative to the index's base, and its name's number.
type KernelFunction = [u32; 3];

/// Functions, sorted by address, one for each.
#[derive(Debug, Default)]
pub(crate) struct FunctionTable {
    base: u64,
    sorted: SharedTable<KernelFunction>,
}

/// A symbol as the index is made from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KallsymsSymbol<'a> {
    pub(crate) address: u64,
    /// The letter that `nm` shows.
    pub(crate) kind: u8,
    pub(crate) name: &'a str,
}

impl KallsymsSymbol<'_> {
    /// Returns true if it names code that runs: not data, and not a mark that a linker script or a compiler
    /// sets into the text. Such marks share an address with a function or are in padding.
    fn is_function(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W') && !is_mark(self.name)
    }

    /// Returns the rank of a name among several names of one address, as perf chooses (symbol.c,
    /// `choose_best_symbol`): global before local before weak, then fewer leading underscores, then the
    /// longer name; but a 32-bit system call's name only when there is no other.
    fn rank(&self) -> impl Ord + use<> {
        let binding = match self.kind {
            b'T' => 2u8,
            b't' => 1,
            _ => 0,
        };
        let underscores = self.name.bytes().take_while(|&b| b == b'_').count();
        let foreign = self.name.starts_with("__ia32_");
        (!foreign, binding, Reverse(underscores), self.name.len())
    }
}

/// Returns true for the name of a place in the text that is not a function (arch/x86/kernel/vmlinux.lds.S,
/// include/asm-generic/vmlinux.lds.h; `__pfx_` and `__cfi_` are paddings before a function).
fn is_mark(name: &str) -> bool {
    const MARKS: [&str; 5] = ["_text", "_stext", "_etext", "_sinittext", "_einittext"];
    name.is_empty()
        || MARKS.contains(&name)
        || name.starts_with("__pfx_")
        || name.starts_with("__cfi_")
        || name.starts_with("__")
            && ["_text_start", "_text_end", "_text_begin"].iter().any(|suffix| name.ends_with(suffix))
}

impl FunctionTable {
    /// Returns the functions among `count` symbols within `start..end` (4 GiB at most: what is further is
    /// left out). A function ends where the next symbol starts.
    pub(crate) fn new<'a>(
        (start, end): (u64, u64),
        count: usize,
        symbol: impl Fn(u32) -> KallsymsSymbol<'a>,
    ) -> Self {
        let relative = |address: u64| {
            (start..end).contains(&address).then(|| u32::try_from(address - start).ok()).flatten()
        };
        let mut order: Vec<(u32, u32)> =
            (0..).take(count).filter_map(|i| Some((relative(symbol(i).address)?, i))).collect();
        order.sort_unstable();
        let limit = u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX);
        let mut sorted: Vec<KernelFunction> = Vec::new();
        let mut rest = order.as_slice();
        while let Some(&(start, _)) = rest.first() {
            let count = rest.iter().take_while(|(a, _)| *a == start).count();
            let (same, after) = rest.split_at(count);
            let end = after.first().map_or(limit, |(a, _)| *a);
            let best = same
                .iter()
                .map(|&(_, i)| i)
                .filter(|&i| symbol(i).is_function())
                // The first of equals, not the last, which max_by_key would return.
                .rev()
                .max_by_key(|&i| symbol(i).rank());
            if let Some(name) = best {
                sorted.push([start, end, name]);
            }
            rest = after;
        }
        Self { base: start, sorted: SharedTable::from(sorted).shared() }
    }

    /// Returns the number of the name that covers `at`, and the distance from its start.
    pub(crate) fn find(&self, at: u64) -> Option<(u32, u64)> {
        let relative = u32::try_from(at.checked_sub(self.base)?).ok()?;
        let after = self.sorted.partition_point(|[start, ..]| *start <= relative);
        let [start, end, name] = *self.sorted.get(after.checked_sub(1)?)?;
        (relative < end).then(|| (name, u64::from(relative - start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn build(symbols: &[(u64, u8, &'static str)]) -> impl Fn(u64) -> Option<(&'static str, u64)> {
        let owned: Vec<_> = symbols.to_vec();
        let functions = FunctionTable::new((BASE, BASE + 0x1000), owned.len(), |i| {
            let (offset, kind, name) = owned[i as usize];
            KallsymsSymbol { address: BASE.wrapping_add(offset), kind, name }
        });
        move |offset| {
            let (i, distance) = functions.find(BASE.wrapping_add(offset))?;
            Some((owned[i as usize].2, distance))
        }
    }

    #[test]
    fn the_name_that_people_look_for_wins() {
        let at = build(&[
            (0x000, b'T', "_text"),
            (0x000, b'T', "startup_64"),
            (0x100, b'T', "__sched_text_start"),
            (0x100, b't', "__schedule"),
            (0x200, b't', "__do_sys_getpid"),
            (0x200, b'T', "__ia32_sys_getpid"),
            (0x200, b'T', "__x64_sys_getpid"),
            (0x300, b'W', "weak_alias_of_it"),
            (0x300, b't', "it"),
            (0x400, b'T', "same_a"),
            (0x400, b'T', "same_b"),
        ]);
        assert_eq!(at(0x10), Some(("startup_64", 0x10)));
        assert_eq!(at(0x100), Some(("__schedule", 0)));
        assert_eq!(at(0x2ff), Some(("__x64_sys_getpid", 0xff)));
        assert_eq!(at(0x300), Some(("it", 0)));
        assert_eq!(at(0x400), Some(("same_a", 0)));
    }

    #[test]
    fn data_padding_and_the_outside_are_no_functions() {
        let at = build(&[
            (0x100, b'T', "f"),
            (0x1f0, b't', "__pfx_g"),
            (0x200, b't', "g"),
            (0x300, b'T', "_etext"),
            (0x400, b'D', "data"),
            (0x2000, b'T', "beyond"),
            (u64::MAX, b'T', "below"),
        ]);
        assert_eq!(at(0xff), None);
        assert_eq!(at(0x1ef), Some(("f", 0xef)));
        assert_eq!(at(0x1f8), None);
        assert_eq!(at(0x2ff), Some(("g", 0xff)));
        assert_eq!(at(0x300), None);
        assert_eq!(at(0x480), None);
        assert_eq!(at(0x2000), None);
        assert_eq!(at(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn every_address_belongs_to_the_nearest_symbol_before_it(
            addresses in prop::collection::vec(0u64..0x1100, 1..40),
            at in 0u64..0x1200,
        ) {
            let symbol = |i: u32| KallsymsSymbol {
                address: BASE + addresses[i as usize],
                kind: if i.is_multiple_of(3) { b'd' } else { b't' },
                name: "f",
            };
            let functions = FunctionTable::new((BASE, BASE + 0x1000), addresses.len(), symbol);
            let nearest = addresses.iter().filter(|&&a| a < 0x1000 && a <= at).max();
            let expected = nearest.filter(|_| at < 0x1000).filter(|&&n| {
                addresses.iter().enumerate().any(|(i, &a)| a == n && i % 3 != 0)
            });
            let found = functions.find(BASE + at).map(|(_, distance)| at - distance);
            prop_assert_eq!(found, expected.copied());
        }
    }
}
