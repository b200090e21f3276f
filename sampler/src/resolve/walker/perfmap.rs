//! Parser of the text in which a program names the code that it makes at run time.
//!
//! ```text
//! START SIZE NAME      hexadecimal addresses without 0x; the name is the rest of the line
//! ```
//!
//! Programs append to the file, and use memory again: of overlapping lines, the last one holds.
//! Source: tools/perf/Documentation/jit-interface.txt of Linux 6.1.

use std::collections::BTreeMap;
use std::sync::Arc;

use display::clean;
use guest_linux::VirtAddr;

/// Functions of one map, at most: the last ones.
const MAX_SYMBOLS: usize = 200_000;
/// Bytes of all their names, at most: the last ones'.
const MAX_NAMES: usize = 16 << 20;
/// Bytes of a function besides its name, about: its range, and the head of the name.
const ENTRY: usize = 64;

/// A function that a program has made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct JitSymbol {
    /// First address.
    pub start: VirtAddr,
    /// First address after it.
    pub end: VirtAddr,
    /// Printable name.
    pub name: Arc<str>,
}

/// The functions of one process, by address.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    symbols: Vec<JitSymbol>,
    names: usize,
}

impl PerfMap {
    /// Parses the well-formed lines of `text`. A line without its end is still being written, and a line with
    /// NUL bytes is in part on a page that could not be read: both are left out.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let whole = text.iter().rposition(|&byte| byte == b'\n').and_then(|end| text.get(..end));
        let (mut symbols, mut later, mut names) = (Vec::new(), TakenRanges::default(), 0);
        for line in whole.unwrap_or_default().rsplit(|&byte| byte == b'\n') {
            let Some(symbol) = symbol(line) else { continue };
            if !later.take(symbol.start.0, symbol.end.0) {
                continue;
            }
            names += symbol.name.len();
            if symbols.len() == MAX_SYMBOLS || names > MAX_NAMES {
                break;
            }
            symbols.push(symbol);
        }
        symbols.sort_unstable_by_key(|symbol| symbol.start);
        Self { symbols, names: names.min(MAX_NAMES) }
    }

    /// Returns the function that covers `address`.
    pub(crate) fn find(&self, address: VirtAddr) -> Option<&JitSymbol> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        self.symbols.get(after.checked_sub(1)?).filter(|symbol| address < symbol.end)
    }

    /// Returns the bytes of the map, about.
    pub(crate) fn memory(&self) -> usize {
        self.symbols.len() * ENTRY + self.names
    }
}

/// Memory that later lines cover: disjoint ranges, by start. There are at most as many as functions.
#[derive(Debug, Default)]
struct TakenRanges(BTreeMap<u64, u64>);

impl TakenRanges {
    /// Adds a range; returns true if no part of it was covered before.
    fn take(&mut self, start: u64, end: u64) -> bool {
        let mut union = (start, end);
        let mut free = true;
        while let Some((&other, &other_end)) =
            self.0.range(..end).next_back().filter(|(_, other)| **other > start)
        {
            self.0.remove(&other);
            union = (union.0.min(other), union.1.max(other_end));
            free = false;
        }
        self.0.insert(union.0, union.1);
        free
    }
}

/// Parses a line; `None` if it is malformed.
fn symbol(line: &[u8]) -> Option<JitSymbol> {
    if line.contains(&0) {
        return None;
    }
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let (start, size, name) = (hex(parts.next()?)?, hex(parts.next()?)?, parts.next()?.trim_ascii());
    if size == 0 || name.is_empty() {
        return None;
    }
    let name = clean::printable(&String::from_utf8_lossy(name)).into();
    let start = VirtAddr(start);
    Some(JitSymbol { start, end: start.checked_add(size)?, name })
}

/// Parses a number of 1 to 16 hexadecimal digits; some programs do write `0x`.
fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str, addresses: &[u64]) -> Vec<Option<(u64, String)>> {
        let map = PerfMap::parse(text.as_bytes());
        let name = |&at: &u64| map.find(VirtAddr(at)).map(|symbol| (symbol.start.0, symbol.name.to_string()));
        addresses.iter().map(name).collect()
    }

    fn is(start: u64, name: &str) -> Option<(u64, String)> {
        Some((start, name.to_owned()))
    }

    #[test]
    fn an_address_has_the_function_that_covers_it() {
        let map = "7f00 10 void Foo::bar(int, char)\n8000 20 LazyCompile:~a /b.js:1\n";
        let found = names(map, &[0x7eff, 0x7f00, 0x7f0f, 0x7f10, 0x801f, 0x8020]);
        let [foo, lazy] = [is(0x7f00, "void Foo::bar(int, char)"), is(0x8000, "LazyCompile:~a /b.js:1")];
        assert_eq!(found, [None, foo.clone(), foo, None, lazy, None]);
    }

    #[test]
    fn the_last_of_lines_that_overlap_holds() {
        let map =
            "1000 100 old\n1080 10 new\n2000 10 first\n2000 10 second\n3000 10 inside\n2ff0 100 around\n";
        let found = names(map, &[0x1000, 0x1080, 0x2008, 0x3008]);
        assert_eq!(found, [None, is(0x1080, "new"), is(0x2000, "second"), is(0x2ff0, "around")]);
        // A function that was overwritten in part has still overwritten the earlier ones.
        let found = names("1000 10 a\n1008 10 b\n1010 10 c\n", &[0x1000, 0x1008, 0x1010]);
        assert_eq!(found, [None, None, is(0x1010, "c")]);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        let map = "\n1000\n1000 10\n1000 10 \n+100 10 plus\n 1000 10 space\n1000 0 empty\nffffffffffffffff 2 end\n\
                   11111111111111111 1 long\n1000 10 n\0l\nx 10 x\n 10 y\n0x2000 0x10 prefixed\r\n1008 8 torn";
        assert_eq!(names(map, &[0x1000, 0x1008, 0x100]), [None, None, None]);
        assert_eq!(names(map, &[0x2000]), [is(0x2000, "prefixed")]);
        assert_eq!(PerfMap::parse(map.as_bytes()).symbols.len(), 1);
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(names("10 10 a\x1b[2Jb\n", &[0x10]), [is(0x10, "a\u{fffd}[2Jb")]);
        let map = PerfMap::parse(b"10 10 \xff\n");
        assert_eq!(map.find(VirtAddr(0x10)).map(|symbol| &*symbol.name), Some("\u{fffd}"));
    }

    #[test]
    fn an_endless_map_is_bounded_and_keeps_its_end() {
        let lines = MAX_SYMBOLS as u64 + 1000;
        let text: String = (0..lines).map(|i| format!("{:x} 8 f{i}\n", i * 8)).collect();
        let map = PerfMap::parse(text.as_bytes());
        assert_eq!(map.symbols.len(), MAX_SYMBOLS);
        assert_eq!(map.find(VirtAddr(0)), None);
        assert_eq!(map.find(VirtAddr((lines - 1) * 8)).map(|s| &*s.name), Some(&*format!("f{}", lines - 1)));
        // Each control character takes three bytes.
        let text: String = (0..100_000).map(|i| format!("{:x} 8 {}\n", i * 8, "\x01".repeat(150))).collect();
        assert!(PerfMap::parse(text.as_bytes()).memory() <= MAX_NAMES + MAX_SYMBOLS * ENTRY);
        assert!(PerfMap::parse(text.as_bytes()).symbols.len() < 50_000);
    }

    /// Lines, some of them overlapping.
    fn lines() -> impl Strategy<Value = Vec<(u64, u64, String)>> {
        prop::collection::vec((0u64..0x400, 1u64..0x40, "[a-z][a-z ]{0,8}[a-z]"), 0..60)
    }

    proptest! {
        #[test]
        fn any_bytes_give_disjoint_printable_functions(text in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b" \n0123456789abcdefx".to_vec())], 0..2000)
        ) {
            let map = PerfMap::parse(&text);
            prop_assert!(map.symbols.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for symbol in &map.symbols {
                prop_assert!(symbol.start < symbol.end && !symbol.name.is_empty());
                prop_assert!(!symbol.name.chars().any(char::is_control));
                prop_assert_eq!(map.find(symbol.start), Some(symbol));
                prop_assert_eq!(map.find(VirtAddr(symbol.end.0 - 1)), Some(symbol));
            }
        }

        #[test]
        fn a_found_function_is_the_last_one_that_covers_the_address(lines in lines()) {
            let text: String = lines.iter().map(|(at, size, name)| format!("{at:x} {size:x} {name}\n")).collect();
            let map = PerfMap::parse(text.as_bytes());
            for address in 0..0x440 {
                let covers = |line: &&(u64, u64, String)| line.0 <= address && address < line.0 + line.1;
                let last = lines.iter().rfind(covers);
                if let Some(found) = map.find(VirtAddr(address)) {
                    prop_assert_eq!(Some((found.start.0, &*found.name)), last.map(|line| (line.0, &*line.2)));
                }
            }
            // A line without overlaps is always found.
            for (i, line) in lines.iter().enumerate() {
                let apart = |other: &(u64, u64, String)| other.0 + other.1 <= line.0 || line.0 + line.1 <= other.0;
                if lines.iter().enumerate().all(|(j, other)| i == j || apart(other)) {
                    prop_assert_eq!(map.find(VirtAddr(line.0)).map(|found| &*found.name), Some(&*line.2));
                }
            }
        }
    }
}
