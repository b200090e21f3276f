//! Expands the compressed names of kallsyms.

use crate::kallsyms::MAX_NAME;
use crate::kallsyms::locate::{KallsymsArrays, name_length};
use display::clean::ascii;
use symbols::shared_table::SharedTable;

/// Expanded names, at most: hostile tokens are as long as their table, and names repeat them.
const MAX_EXPANDED: usize = 32 << 20;

/// Names of symbols, one after the other.
#[derive(Debug, Default)]
pub(crate) struct SymbolNames {
    /// UTF-8.
    text: SharedTable<u8>,
    /// End of name `i`; it starts at the end of `i - 1`.
    ends: SharedTable<u32>,
}

impl SymbolNames {
    /// Returns the name `i`; empty when there is none.
    pub(crate) fn get(&self, i: u32) -> &str {
        let i = i as usize;
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&e| e as usize);
        let end = self.ends.get(i).map_or(0, |&e| e as usize);
        std::str::from_utf8(self.text.get(start..end).unwrap_or_default()).unwrap_or("")
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// Names that are being collected.
#[derive(Debug, Default)]
pub(crate) struct NameList {
    text: String,
    ends: Vec<u32>,
}

impl NameList {
    /// Appends a name.
    pub(crate) fn push(&mut self, name: &str) {
        self.text.push_str(name);
        // The text is bounded by its makers to far below 4 GiB.
        self.ends.push(u32::try_from(self.text.len()).unwrap_or(u32::MAX));
    }

    /// Returns the names, in memory that processes share.
    pub(crate) fn finish(self) -> SymbolNames {
        let (text, ends) = (SharedTable::from(self.text.into_bytes()), SharedTable::from(self.ends));
        SymbolNames { text: text.shared(), ends: ends.shared() }
    }
}

/// Returns the names of all symbols and the letter of each one's type.
pub(crate) fn decode(arrays: &KallsymsArrays) -> (SymbolNames, Vec<u8>) {
    // Names of printable tokens are printable: cleaning the 256 tokens is enough.
    let tokens: Vec<String> = (0..=255).map(|token| ascii(arrays.tokens.get(token))).collect();
    let mut names = NameList::default();
    let mut types = Vec::with_capacity(arrays.addresses.len());
    let mut name = String::with_capacity(MAX_NAME);
    let mut rest = arrays.names.as_slice();
    for _ in 0..arrays.addresses.len() {
        let Some((field, count)) = name_length(rest) else {
            break;
        };
        let Some(compressed) = rest.get(field..field + count) else {
            break;
        };
        rest = &rest[field + count..];
        name.clear();
        for &token in compressed {
            name.push_str(&tokens[usize::from(token)]);
            if name.len() > MAX_NAME {
                name.truncate(MAX_NAME);
                break;
            }
        }
        if names.text.len() + name.len() > MAX_EXPANDED {
            break;
        }
        types.push(name.bytes().next().unwrap_or(b'?'));
        names.push(name.get(1..).unwrap_or(""));
    }
    (names.finish(), types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kallsyms::locate::{SymbolAddresses, TokenTable};
    use proptest::prelude::*;

    /// Returns a token table for tests: every byte is its own token, but those given.
    fn identity_tokens(others: &[(u8, &str)]) -> TokenTable {
        TokenTable::for_test(|code| {
            others
                .iter()
                .find(|(c, _)| *c == code)
                .map_or_else(|| vec![code], |(_, text)| text.as_bytes().to_vec())
        })
    }

    fn arrays(names: Vec<u8>, count: usize, tokens: TokenTable) -> KallsymsArrays {
        KallsymsArrays { tokens, names, addresses: SymbolAddresses::of_zeroes(count) }
    }

    #[test]
    fn names_are_expanded_and_cleaned() {
        let tokens = identity_tokens(&[(200, "sys_"), (201, "\x1b[1m")]);
        let raw = b"\x06Tdo_\xc8x\x03t\xc9y\x80\x01".to_vec();
        let (names, types) = decode(&arrays(raw, 3, tokens));
        assert_eq!(names.len(), 2);
        assert_eq!(names.get(0), "do_sys_x");
        assert_eq!(names.get(1), "?[1my");
        assert_eq!(names.get(2), "");
        assert_eq!(types, b"Tt");
    }

    #[test]
    fn a_token_bomb_stays_small() {
        let long = "x".repeat(200);
        let tokens = identity_tokens(&[(1, &long)]);
        let mut raw = vec![0xff, 0x7f];
        raw.extend(std::iter::repeat_n(1, 0x3fff));
        let raw = raw.repeat(100);
        let (names, _) = decode(&arrays(raw, 100, tokens));
        assert_eq!(names.get(7).len(), MAX_NAME - 1);
    }

    proptest! {
        #[test]
        fn arbitrary_names_never_panic(raw in prop::collection::vec(any::<u8>(), 0..600)) {
            let (names, types) = decode(&arrays(raw, 50, identity_tokens(&[(7, "seven")])));
            prop_assert_eq!(names.len(), types.len());
            for i in 0..50 {
                prop_assert!(names.get(i).len() <= MAX_NAME);
            }
        }
    }
}
