//! Frames and names over made memory.

use proptest::prelude::*;
use symbols::cfi::{GeneratedCaller, UserEnd, UserWalkError};
use symbols::{CodeAddr, Registers, VirtAddr};

use super::*;
use crate::GeneratedRules as _;
use crate::fixture::hotspot::{self as fixture, FRAMES, NATIVE, SIZE, VERSIONS, Version};
use crate::fixture::{BASE, FlatMemory};
use crate::tests::words;

fn process(memory: &FlatMemory) -> Result<JavaProcess, HotspotError> {
    JavaProcess::new(&fixture::binary(), memory, 0)
}

#[test]
fn compiled_inlined_and_interpreted_frames_have_names_and_lines() {
    for version in VERSIONS {
        let memory = fixture::java(version);
        let mut java = process(&memory).expect("a layout");
        let (frames, end) = fixture::walk(&mut java, &memory);
        let mut found = Vec::new();
        for frame in &frames {
            let method = java.method(&memory, frame).expect("a method");
            assert_eq!(method.file.as_deref(), Some("A.java"));
            found.push((method.name.clone(), method.line(frame).expect("a line")));
        }
        assert_eq!(found, FRAMES.map(|(name, line)| (name.to_owned(), line)), "{version:?}");
        // The native caller of the call stub is in no mapping.
        assert_eq!(end, UserEnd::Broken(UserWalkError::NotMapped), "{version:?}");
    }
}

#[test]
fn the_native_caller_gets_its_registers_back() {
    let memory = fixture::java(Version::Jdk17);
    let mut java = process(&memory).expect("a layout");
    let stub = BASE + 0x1_8300;
    let mut registers = [None; 17];
    registers[Registers::RSP] = Some(stub - 0x60);
    registers[Registers::RBP] = Some(stub);
    let at = CodeAddr::returning(VirtAddr(BASE + 0xb020));
    let found = java.frames(&memory, &fixture::GENERATED, at, &registers, &memory).expect("HotSpot's code");
    let GeneratedCaller::Found(caller) = found.caller else { panic!("{found:?}") };
    assert!(found.frames.is_empty());
    assert_eq!((caller[16], caller[Registers::RSP]), (Some(NATIVE), Some(stub + 16)));
    assert_eq!((caller[3], caller[Registers::RBP]), (Some(0xb), Some(BASE + 0x1_8400)));
}

#[test]
fn a_method_that_was_replaced_has_no_name() {
    for version in VERSIONS {
        let mut memory = fixture::java(version);
        let mut java = process(&memory).expect("a layout");
        let (frames, _) = fixture::walk(&mut java, &memory);
        // Another name for the first method, which is at the start of the methods.
        let pool = BASE + 0x1_0200;
        memory.put(pool + 72 + 8, BASE + 0x1_0500);
        assert_eq!(java.method(&memory, &frames[0]), None, "{version:?}");
        // A method whose class has other constants is not one.
        memory.put(BASE + 0x1_0300 + 224, pool + 8);
        let (frames, _) = fixture::walk(&mut java, &memory);
        assert_eq!(frames[0].identity, 0, "{version:?}");
        assert_eq!(java.method(&memory, &frames[0]), None, "{version:?}");
    }
}

#[test]
fn a_stack_that_was_not_copied_is_the_reason() {
    let memory = fixture::java(Version::Jdk25);
    let mut java = process(&memory).expect("a layout");
    let (at, mut registers) = fixture::registers();
    registers[Registers::RSP] = Some(BASE + SIZE as u64);
    let found = java.frames(&memory, &fixture::GENERATED, at, &registers, &memory).expect("HotSpot's code");
    assert_eq!(found.caller, GeneratedCaller::Missing(BASE + SIZE as u64 + 56));
    assert_eq!(found.frames.len(), 2, "the methods are known");
}

#[test]
fn a_runtime_that_has_not_started_or_is_of_another_version_has_no_layout() {
    let memory = fixture::java(Version::Jdk17);
    for (place, value, wanted) in [
        (0x9008, 0, HotspotError::NotReady),
        (56, 0, HotspotError::NotReady),
        (0x9018, 8, HotspotError::Version(8)),
        (56, 1 << 40, HotspotError::Invalid),
        (0, 8, HotspotError::NotPresent),
    ] {
        let mut memory = memory.clone();
        memory.put(BASE + place, value);
        assert_eq!(process(&memory).map(|_| ()), Err(wanted), "{place:#x}");
    }
    let mut lacking = memory;
    // The name of the first structure's member.
    lacking.put(BASE + 0x1008, BASE + 0x6000);
    let missing = HotspotError::Missing("VirtualSpace._low".to_owned());
    assert_eq!(process(&lacking).map(|_| ()), Err(missing));
}

proptest! {
    #[test]
    fn any_memory_ends_every_walk(
        version in prop::sample::select(VERSIONS.to_vec()),
        words in words(SIZE),
    ) {
        let mut memory = fixture::java(version);
        let before = process(&memory).expect("a layout");
        for (at, word) in words {
            memory.put(BASE + at * 8, word);
        }
        // The layout of before, as when memory changes afterwards, and that of this memory.
        for mut java in [Some(before), process(&memory).ok()].into_iter().flatten() {
            let (frames, _) = fixture::walk(&mut java, &memory);
            prop_assert!(frames.len() <= 100 * 256);
            for frame in frames {
                if let Some(method) = java.method(&memory, &frame) {
                    prop_assert!(method.name.len() <= 3 * 8200);
                    method.line(&frame);
                }
            }
        }
    }
}
