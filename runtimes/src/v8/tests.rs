//! Frames and names over made memory.

use proptest::prelude::*;
use symbols::cfi::{UserEnd, UserWalkError};

use super::layout::V8Layout;
use super::*;
use crate::ManagedFrame;
use crate::fixture::v8::{self as fixture, FILE, FRAMES, SIZE, VERSIONS, Version};
use crate::fixture::{BASE, FlatMemory};
use crate::tests::words;

/// Returns the names and lines of frames.
fn described(
    v8: &mut V8Process,
    memory: &FlatMemory,
    frames: &[ManagedFrame],
) -> Vec<Option<(String, Option<u32>)>> {
    let describe = |frame| {
        let function = v8.function(memory, frame)?;
        assert_eq!(function.file().is_some(), function.name != "map", "{function:?}");
        assert!(function.file().is_none_or(|file| file == FILE));
        Some((function.name.clone(), function.line(frame)))
    };
    frames.iter().map(describe).collect()
}

fn wanted() -> Vec<Option<(String, Option<u32>)>> {
    FRAMES.map(|(name, line)| Some((name.to_owned(), line))).to_vec()
}

#[test]
fn frames_of_all_kinds_of_code_have_names_and_lines() {
    for version in VERSIONS {
        let memory = fixture::javascript(version);
        let mut v8 = fixture::process(version, &memory);
        let (frames, end) = fixture::walk(&mut v8, version, &memory);
        assert_eq!(described(&mut v8, &memory, &frames), wanted(), "{version:?}");
        // The native caller of the entry is in no mapping.
        assert_eq!(end, UserEnd::Broken(UserWalkError::NotMapped), "{version:?}");
    }
}

/// Address of the closure, and of the words of the function, of the frame with this number.
fn closure(number: u64) -> u64 {
    BASE + 0x1000 + number * 0x400
}

#[test]
fn a_closure_that_was_moved_has_its_name_by_its_bytecode() {
    for version in VERSIONS {
        let mut memory = fixture::javascript(version);
        // The new address of the closure, without a tag.
        for number in [2, 4] {
            memory.put(closure(number), 0x7f00_0000_1000);
        }
        let mut v8 = fixture::process(version, &memory);
        let (frames, _) = fixture::walk(&mut v8, version, &memory);
        let found = described(&mut v8, &memory, &frames);
        assert_eq!((&found[2], &found[4]), (&None, &None), "{version:?}: never seen before");
        assert_eq!([&found[..2], &found[3..4]], [&wanted()[..2], &wanted()[3..4]], "{version:?}");
        let before = fixture::javascript(version);
        fixture::walk(&mut v8, version, &before);
        let (frames, _) = fixture::walk(&mut v8, version, &memory);
        assert_eq!(described(&mut v8, &memory, &frames), wanted(), "{version:?}");
    }
}

#[test]
fn another_function_at_the_same_address_is_not_the_frames() {
    for version in VERSIONS {
        let mut memory = fixture::javascript(version);
        let mut v8 = fixture::process(version, &memory);
        let (frames, _) = fixture::walk(&mut v8, version, &memory);
        // The closure that now is where that of the interpreted frame was is of another function.
        let shared = if version == Version::Node18 { 24 } else { 32 };
        memory.put(closure(4) + shared, (closure(1) + 0x80) | 1);
        let mut fresh = fixture::process(version, &memory);
        let (other, _) = fixture::walk(&mut fresh, version, &memory);
        assert_eq!(other[4].identity, 0, "{version:?}");
        // And a function whose name was replaced is no longer the frame's.
        let name = if version == Version::Node18 { 16 } else { 24 };
        memory.put(closure(1) + 0x80 + name, BASE + 0x4101);
        assert_eq!(v8.function(&memory, &frames[1]), None, "{version:?}");
    }
}

#[test]
fn code_is_not_believed_where_its_functions_have_no_positions() {
    for version in VERSIONS {
        let mut memory = fixture::javascript(version);
        let positions = if version == Version::Node18 { 32 } else { 24 };
        // Of the inlined function.
        memory.put(closure(0) + 0x180 + positions, 0);
        let mut v8 = fixture::process(version, &memory);
        let (frames, _) = fixture::walk(&mut v8, version, &memory);
        let found = described(&mut v8, &memory, &frames);
        let mut wanted = wanted();
        wanted.remove(0);
        wanted[0] = Some(("middle".to_owned(), None));
        assert_eq!(found, wanted, "{version:?}");
    }
}

#[test]
fn builds_that_are_not_supported_are_refused() {
    let variables = fixture::variables(Version::Node24);
    let error = |name: &str, value: Option<i32>| {
        let mut variables = variables.clone();
        match value {
            Some(value) => variables.insert(name.to_owned(), value),
            None => variables.remove(name),
        };
        V8Layout::new(&variables).map(|_| ()).err()
    };
    assert_eq!(error("TaggedSize", Some(4)), Some(V8Error::Compressed));
    assert_eq!(error("off_fp_function", Some(8)), Some(V8Error::Missing("off_fp_function")));
    assert_eq!(error("type_Map__MAP_TYPE", None), Some(V8Error::Missing("type_Map__MAP_TYPE")));
    let sliced = "class_SlicedString__parent__String";
    assert_eq!(error(sliced, Some(32)), Some(V8Error::Missing(sliced)));
    assert_eq!(error("", None), None);
}

proptest! {
    #[test]
    fn any_memory_ends_every_walk(
        version in prop::sample::select(VERSIONS.to_vec()),
        words in words(SIZE),
    ) {
        let mut memory = fixture::javascript(version);
        let mut before = fixture::process(version, &memory);
        // What was remembered then is not believed afterwards.
        fixture::walk(&mut before, version, &memory);
        for (at, word) in words {
            memory.put(BASE + at * 8, word);
        }
        for mut v8 in [before, fixture::process(version, &memory)] {
            let (frames, _) = fixture::walk(&mut v8, version, &memory);
            prop_assert!(frames.len() <= 100 * 65);
            for frame in frames {
                if let Some(function) = v8.function(&memory, &frame) {
                    prop_assert!(function.name.chars().count() <= 1024);
                    function.line(&frame);
                }
            }
        }
    }
}
