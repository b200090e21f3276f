//! Names as their source has them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

use display::clean::ascii;

/// Bytes of a mangled name that is demangled, at most. Work grows with this length.
const MAX_MANGLED: usize = 8 << 10;
/// Bytes of a name that is kept, at most; back-references let few bytes stand for very many.
pub(crate) const MAX_NAME: usize = 4 << 10;
/// Levels of C++ names, at most.
const MAX_DEPTH: u32 = 96;

/// Returns the readable form of a symbol's name: Rust (v0 and legacy, without its hash) and C++ demangled, a
/// version (`@GLIBC_2.2.5`) cut off, printable ASCII, at most 4 KiB.
pub fn readable(name: &[u8]) -> String {
    let name = match name.iter().position(|&b| b == b'@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    };
    demangle(name).unwrap_or_else(|| ascii(name.get(..MAX_NAME).unwrap_or(name)))
}

fn demangle(name: &[u8]) -> Option<String> {
    let is_mangled = [&b"_Z"[..], b"__Z", b"_R", b"__R", b"_GLOBAL_"].iter().any(|p| name.starts_with(p));
    if !is_mangled || name.len() > MAX_MANGLED {
        return None;
    }
    let text = std::str::from_utf8(name).ok()?;
    let mut out = BoundedText(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(text) {
        // The alternate form leaves out the hash.
        write!(out, "{rust:#}").ok()?;
        return Some(out.0);
    }
    let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(text, &options).ok()?;
    let options = DemangleOptions::new().recursion_limit(MAX_DEPTH);
    symbol.structured_demangle(&mut out, &options).ok()?;
    Some(out.0)
}

/// Takes [`MAX_NAME`] printable characters, then ends the writing.
struct BoundedText(String);

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.extend(text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }));
        Ok(())
    }
}

/// Bytes of names that are remembered, at most.
const MAX_REMEMBERED: usize = 16 << 20;

/// Remembers readable names: long C++ names take 30 us each, and the same few are asked for again and again.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: RefCell<HashMap<Box<[u8]>, String>>,
    bytes: Cell<usize>,
}

impl Names {
    /// [`readable`], remembered while there is room.
    pub fn readable(&self, name: &[u8]) -> String {
        if let Some(known) = self.known.borrow().get(name) {
            return known.clone();
        }
        let text = readable(name);
        let bytes = self.bytes.get() + name.len() + text.len();
        if bytes <= MAX_REMEMBERED {
            self.bytes.set(bytes);
            self.known.borrow_mut().insert(name.into(), text.clone());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_read_as_in_the_source() {
        for (mangled, name) in [
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("main", "main"),
            ("_Znot a name", "_Znot a name"),
            ("@plt", "@plt"),
            ("a\x1b[2J", "a?[2J"),
        ] {
            assert_eq!(readable(mangled.as_bytes()), name);
        }
        assert_eq!(readable("é".as_bytes()), "??");
    }

    #[test]
    fn remembered_names_are_the_same_and_bounded() {
        let names = Names::default();
        for number in 0..3000 {
            let name = format!("{number}{}", "x".repeat(MAX_NAME));
            assert_eq!(names.readable(name.as_bytes()), readable(name.as_bytes()));
            assert_eq!(names.readable(name.as_bytes()), readable(name.as_bytes()));
        }
        assert!(names.bytes.get() <= MAX_REMEMBERED && names.known.borrow().len() < 3000);
    }

    /// Each `S_` names what came before: the output doubles with every level.
    #[test]
    fn a_name_that_explodes_is_left_mangled() {
        let mut bomb = String::from("_Z1fI1a");
        for level in 0..64 {
            let back = char::from_digit(level % 36, 36).unwrap().to_ascii_uppercase();
            bomb.push_str(&format!("1xIS{back}_S{back}_E"));
        }
        bomb.push_str("Evv");
        let start = Instant::now();
        assert!(readable(bomb.as_bytes()).len() <= MAX_NAME);
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn any_mangled_name_ends(
            start in prop::sample::select(vec!["_ZN", "_Z1f", "_R", "_RNvC", "_RINvC1a1b", "_GLOBAL__I_"]),
            rest in prop::collection::vec(
                prop::sample::select(b"INESTt_0123456789abcdilmnorsvxzACDFGHKLMPRSTXYZ".to_vec()), 0..400),
        ) {
            let mut name = start.as_bytes().to_vec();
            name.extend(rest);
            let begin = Instant::now();
            let text = readable(&name);
            prop_assert!(text.len() <= MAX_NAME && text.bytes().all(|b| matches!(b, b' '..=b'~')));
            prop_assert!(begin.elapsed() < Duration::from_secs(2), "{}", String::from_utf8_lossy(&name));
        }
    }
}
