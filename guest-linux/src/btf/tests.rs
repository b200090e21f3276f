//! BTF written by the fixture, broken BTF, and another parser as a witness.

use super::{ArgumentKind, Btf};
use crate::fixture::BtfWriter;
use proptest::prelude::*;

const STRUCT: u32 = 4 << 24;
/// Members hold a bit-field's size.
const KIND_FLAG: u32 = 1 << 31;

fn offset(bytes: &[u8], structure: &str, path: &str) -> Option<usize> {
    Some(Btf::parse(bytes)?.member(structure, path)?.offset)
}

/// Returns a structure with all that real ones have.
fn nested() -> Vec<u8> {
    let mut w = BtfWriter::new();
    let int = w.int("int", 4);
    let pointer = w.pointer(int);
    let inner = w.structure("inner", &[("x", int, 0), ("y", int, 4)]);
    let deep = w.structure("", &[("z", pointer, 8)]);
    let union = w.union("", &[("u", int, 0), ("", deep, 16)]);
    let alias = w.typedef("inner_t", inner);
    let array = w.array(alias, 5);
    w.structure("outer", &[("first", int, 0), ("named", alias, 8), ("", union, 32), ("list", array, 64)]);
    w.variable("counter", int);
    w.bytes()
}

#[test]
fn members_are_found_through_unions_typedefs_and_arrays() {
    let bytes = nested();
    assert_eq!(offset(&bytes, "outer", "first"), Some(0));
    assert_eq!(offset(&bytes, "outer", "named.y"), Some(12));
    assert_eq!(offset(&bytes, "outer", "u"), Some(32));
    assert_eq!(offset(&bytes, "outer", "z"), Some(56));
    assert_eq!(offset(&bytes, "outer", "list.y"), Some(68));
    assert_eq!(offset(&bytes, "outer", "nothing"), None);
    assert_eq!(offset(&bytes, "outer", "first.x"), None);
    assert_eq!(offset(&bytes, "oute", "first"), None);
    assert_eq!(offset(&bytes, "outer", ""), None);
    let btf = Btf::parse(&bytes).unwrap();
    let list = btf.member("outer", "list").unwrap();
    assert_eq!(btf.elements(list), Some(5));
    let first = btf.member("outer", "first").unwrap();
    assert_eq!(btf.elements(first), None);
    assert_eq!(btf.variable_size("counter"), Some(4));
    assert_eq!(btf.variable_size("other"), None);
}

#[test]
fn another_parser_agrees() {
    let bytes = nested();
    let readable = Bytes(&bytes);
    let other = btfparse::TypeInformation::new(&readable).unwrap();
    let outer = other.id_of("outer").unwrap();
    for path in ["first", "named.y", "u", "z", "list"] {
        let (_, theirs) = other.offset_of(outer, path).unwrap();
        let btfparse::Offset::ByteOffset(theirs) = theirs else { panic!("{path} is not a bit field") };
        assert_eq!(offset(&bytes, "outer", path), usize::try_from(theirs).ok());
    }
}

/// Bytes as the other parser wants them.
struct Bytes<'a>(&'a [u8]);

impl btfparse::Readable for Bytes<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> btfparse::Result<()> {
        let at = symbols::bytes::index(offset);
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }
}

#[test]
fn bit_fields_are_told_by_the_flag() {
    let mut w = BtfWriter::new();
    let int = w.int("int", 4);
    // The strings are "", "int", "a", "b", "c", "names": each name's offset in them.
    w.structure("names", &[("a", int, 0), ("b", int, 4), ("c", int, 8)]);
    let [a, b, c] = [5, 7, 9];
    // Members: name, type, bit-field size << 24 | offset in bits.
    let members = [a, int, 32, b, int, 3 << 24 | 65, c, int, 8 << 24 | 96];
    w.raw("flags", STRUCT | KIND_FLAG | 3, 12, &members);
    let bytes = w.bytes();
    assert_eq!(offset(&bytes, "flags", "a"), Some(4));
    assert_eq!(offset(&bytes, "flags", "b"), None);
    assert_eq!(offset(&bytes, "flags", "c"), Some(12));
}

#[test]
fn the_second_type_of_a_name_serves_when_it_has_the_member() {
    let mut w = BtfWriter::new();
    let int = w.int("int", 4);
    w.structure("same", &[("a", int, 0)]);
    w.structure("same", &[("b", int, 8)]);
    let bytes = w.bytes();
    assert_eq!(offset(&bytes, "same", "a"), Some(0));
    assert_eq!(offset(&bytes, "same", "b"), Some(8));
}

#[test]
fn types_that_hold_each_other_end() {
    let mut w = BtfWriter::new();
    // A typedef of itself, and one that a member has.
    w.typedef("loop", 1);
    w.structure("s", &[("m", 1, 0), ("", 1, 8)]);
    // A structure of a thousand anonymous selves.
    let own = 3;
    w.structure("bomb", &vec![("", own, 0); 1000]);
    w.variable("v", 1);
    let bytes = w.bytes();
    assert_eq!(offset(&bytes, "s", "m.x"), None);
    assert_eq!(offset(&bytes, "s", "n"), None);
    assert_eq!(offset(&bytes, "bomb", "n"), None);
    assert_eq!(Btf::parse(&bytes).unwrap().variable_size("v"), None);
}

#[test]
fn what_is_before_an_unknown_kind_is_kept() {
    let mut w = BtfWriter::new();
    let int = w.int("int", 4);
    w.structure("before", &[("a", int, 0)]);
    w.raw("unknown", 31 << 24, 0, &[]);
    w.structure("after", &[("a", int, 0)]);
    let bytes = w.bytes();
    assert_eq!(offset(&bytes, "before", "a"), Some(0));
    assert_eq!(offset(&bytes, "after", "a"), None);
}

#[test]
fn what_is_no_btf_is_refused() {
    let good = nested();
    assert!(Btf::parse(&good).is_some());
    assert!(Btf::parse(&[]).is_none());
    assert!(Btf::parse(&good[..20]).is_none());
    assert!(Btf::parse(&good[..good.len() - 1]).is_none());
    for (at, value) in [(0, 0u8), (2, 2), (7, 0xff), (15, 0xff), (23, 0xff)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(Btf::parse(&bad).is_none(), "byte {at}");
    }
}

proptest! {
    #[test]
    fn corrupt_btf_never_panics(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = nested();
        for (pick, value) in hits {
            let at = pick.index(bytes.len());
            bytes[at] = value;
        }
        for path in ["first", "named.y", "u", "z", "list.y"] {
            let _ = offset(&bytes, "outer", path);
        }
        if let Some(btf) = Btf::parse(&bytes) {
            let _ = btf.variable_size("counter");
            let _ = btf.member("outer", "list").and_then(|m| btf.elements(m));
        }
    }

    #[test]
    fn arbitrary_types_never_panic(words in prop::collection::vec(any::<u32>(), 0..200)) {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let len = u32::try_from(words.len() * 4).unwrap();
        for word in [24, 0, len, 0, len] {
            bytes.extend(word.to_le_bytes());
        }
        // Small kinds and numbers, so that many are types.
        bytes.extend(words.iter().flat_map(|w| (w & 0x0f00_001f).to_le_bytes()));
        if let Some(btf) = Btf::parse(&bytes) {
            let _ = btf.arguments(&[""]);
            let _ = btf.member("", "");
            let _ = btf.member("\u{1}", "a.b");
        }
    }
}

#[test]
fn bit_fields_are_had_by_bits() {
    /// The bit of `info` that says that members hold the sizes of bit-fields.
    const FLAG: u32 = 1 << 31;
    const STRUCT: u32 = 4 << 24;
    for flag in [true, false] {
        let mut w = BtfWriter::new();
        let short = w.int("short", 2);
        // Without the flag, an integer of four bits from bit 8 on has the size.
        let four = w.raw("four", 1 << 24, 4, &[8 << 16 | 4]);
        let name = w.structure("", &[("sp_offset", short, 0), ("type", four, 4)]);
        let place = if flag { 4 << 24 | 40 } else { 32 };
        let info = STRUCT | 2 | if flag { FLAG } else { 0 };
        // Strings: a NUL, "short", "four", "sp_offset", "type".
        assert_eq!(w.raw("entry", info, 6, &[12, short, 0, 22, four, place]), name + 1);
        let bytes = w.bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.bits("entry", "type"), Some((40, 4)));
        assert_eq!(btf.bits("entry", "sp_offset"), Some((0, 16)));
        assert_eq!((btf.bits("entry", "none"), btf.size_of("entry")), (None, Some(6)));
    }
}

#[test]
fn arguments_have_the_meaning_of_their_types() {
    let mut w = BtfWriter::new();
    w.structure("s", &[]);
    let [int, unsigned] = [("int", 1), ("unsigned int", 0)].map(|(name, how)| w.encoded(name, 4, how));
    let letter = w.encoded("char", 1, 1);
    let constant = w.constant(letter);
    let text = w.pointer(constant);
    let texts = w.pointer(text);
    let texts = w.constant(texts);
    let nothing = w.pointer(0);
    let alias = w.typedef("pid_t", int);
    let signed = w.raw("mode", 1 << 31 | 6 << 24, 4, &[]);
    let by_value = w.sized("pair", 16, &[]);
    w.function(
        "f",
        &[("a", alias), ("b", unsigned), ("c", text), ("d", texts), ("e", nothing), ("g", signed)],
    );
    w.function("by_value", &[("a", int), ("b", by_value), ("c", int)]);
    w.function("seven", &[("x", int); 7]);
    w.function("variadic", &[("format", text), ("", 0)]);
    let bytes = w.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    let types = |name| {
        let arguments = btf.arguments(&[name]).remove(0).unwrap();
        arguments
            .iter()
            .map(|argument| (argument.type_name.clone(), argument.kind.clone()))
            .collect::<Vec<_>>()
    };
    use ArgumentKind::{Enum, Pointer, Signed, Text, Unsigned};
    let all = [
        ("pid_t", Signed(4)),
        ("unsigned int", Unsigned(4)),
        ("const char *", Text),
        ("const char ** const", Pointer),
        ("void *", Pointer),
        ("enum mode", Enum(4, Vec::new())),
    ];
    assert_eq!(types("f"), all.map(|(name, kind)| (name.to_owned(), kind)));
    // Which register has an argument after a structure is not known.
    assert_eq!((types("by_value").len(), types("seven").len(), types("variadic").len()), (1, 6, 1));
    assert_eq!(btf.arguments(&["nothing"]), [None]);
}

#[test]
fn registers_have_the_values_of_their_types() {
    let garbage = 0xdead_beef_0000_0000;
    assert_eq!(ArgumentKind::Signed(4).value(garbage | 0xffff_fffe), -2);
    assert_eq!(ArgumentKind::Unsigned(4).value(garbage | 0xffff_fffe), 0xffff_fffe);
    assert_eq!(ArgumentKind::Unsigned(8).value(u64::MAX), -1, "all bits");
    assert_eq!(ArgumentKind::Signed(1).value(0x1ff), -1);
    assert_eq!((ArgumentKind::Bool.value(0x100), ArgumentKind::Bool.value(2)), (0, 1));
    assert_eq!(ArgumentKind::Enum(4, Vec::new()).value(garbage | 7), 7);
    assert_eq!(ArgumentKind::Pointer.value(garbage).cast_unsigned(), garbage);
}
