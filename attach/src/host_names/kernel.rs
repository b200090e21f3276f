//! Functions of the host's kernel, by /proc/kallsyms.

use std::fs::File;
use std::io::{self, Read};

use super::NamesRefusal;

/// List of the kernel's symbols.
const PATH: &str = "/proc/kallsyms";
/// Bytes of the list, at most: a kernel with all its symbols has some 15 MiB.
const MOST_BYTES: u64 = 64 << 20;
/// Distance from the start of a function beyond which an address is not taken for its code.
const LONGEST: u64 = 1 << 20;

/// A function: 24 bytes, of which a kernel has 100,000.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: u64,
    /// Its name in [`KernelSymbols::text`].
    at: usize,
    bytes: u16,
    /// Number of its module, plus 1; 0 for the image.
    module: u16,
}

/// Functions by address.
#[derive(Debug, Default)]
pub(super) struct KernelSymbols {
    symbols: Vec<Symbol>,
    text: String,
    modules: Vec<String>,
}

/// A function that covers an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelFunction<'a> {
    pub name: &'a str,
    pub module: Option<&'a str>,
    pub start: u64,
}

impl KernelSymbols {
    /// Reads the functions of the host's kernel.
    pub(super) fn read() -> Result<Self, NamesRefusal> {
        let mut text = String::new();
        let file = File::open(PATH).map_err(NamesRefusal::Unreadable)?;
        let read = file.take(MOST_BYTES).read_to_string(&mut text).map_err(NamesRefusal::Unreadable)?;
        if read == 0 {
            return Err(NamesRefusal::Unreadable(io::ErrorKind::UnexpectedEof.into()));
        }
        Self::parse(&text)
    }

    /// Parses the list (kernel/kallsyms.c, `s_show`): address, type, name, and a module in brackets.
    pub(super) fn parse(text: &str) -> Result<Self, NamesRefusal> {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(start) = u64::from_str_radix(address, 16) else { continue };
            // Text, global and local, weak ones as well; a hidden address is 0.
            if !matches!(kind, "T" | "t" | "W" | "w") || start == 0 {
                continue;
            }
            let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
            let module = module.map_or(0, |module| found.module(module));
            let Ok(bytes) = u16::try_from(name.len()) else { continue };
            found.symbols.push(Symbol { start, at: found.text.len(), bytes, module });
            found.text.push_str(name);
        }
        if found.symbols.is_empty() {
            return Err(NamesRefusal::Hidden);
        }
        // Stable: of several names of one address the first one counts.
        found.symbols.sort_by_key(|symbol| symbol.start);
        found.symbols.dedup_by_key(|symbol| symbol.start);
        Ok(found)
    }

    /// Returns the number of a module, plus 1. The symbols of a module follow each other.
    fn module(&mut self, name: &str) -> u16 {
        if self.modules.last().is_none_or(|last| last != name) && self.modules.len() < usize::from(u16::MAX) {
            self.modules.push(name.to_owned());
        }
        u16::try_from(self.modules.len()).unwrap_or(u16::MAX)
    }

    /// Returns the function that covers an address.
    pub(super) fn find(&self, address: u64) -> Option<KernelFunction<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        if address - symbol.start >= LONGEST {
            return None;
        }
        let name = self.text.get(symbol.at..symbol.at.checked_add(usize::from(symbol.bytes))?)?;
        let module = usize::from(symbol.module).checked_sub(1).and_then(|at| self.modules.get(at));
        Some(KernelFunction { name, module: module.map(String::as_str), start: symbol.start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let text = "\
ffffffff81000100 T second
ffffffff81000000 T first
ffffffff81000000 t first_alias
ffffffff81000050 D data
ffffffffc0000000 t own\t[kvm]
ffffffffc0800000 t other\t[kvm_amd]
nonsense
";
        let symbols = KernelSymbols::parse(text).unwrap();
        let found = |address| symbols.find(address).map(|found| (found.name, found.module, found.start));
        let base = 0xffff_ffff_8100_0000;
        assert_eq!(found(base), Some(("first", None, base)));
        assert_eq!(found(base + 0x60), Some(("first", None, base)), "data are not functions");
        assert_eq!(found(base + 0x100), Some(("second", None, base + 0x100)));
        assert_eq!(found(0xffff_ffff_c000_0004), Some(("own", Some("kvm"), 0xffff_ffff_c000_0000)));
        assert_eq!(found(0xffff_ffff_c080_0000).and_then(|(_, module, _)| module), Some("kvm_amd"));
        assert_eq!((found(base - 1), found(base + 0x10_0100)), (None, None), "too far");
    }

    #[test]
    fn addresses_that_the_kernel_hides_are_no_names() {
        let hidden = "0000000000000000 T first\n0000000000000000 t second\n";
        for text in [hidden, ""] {
            assert!(matches!(KernelSymbols::parse(text), Err(NamesRefusal::Hidden)));
        }
    }
}
