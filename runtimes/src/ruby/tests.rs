//! Walks and names over made memory.

use proptest::prelude::*;
use symbols::VirtAddr;

use super::{RubyNames, RubyPlan};
use crate::fixture::ruby::{FS_BASE, INTERPRETER, NAMES, VERSIONS, binary, ruby};
use crate::fixture::{BASE, FlatMemory, SIZE};
use crate::tests::words;
use crate::{
    EntryPlace, FrameWords, LayoutError, MAX_FRAMES, ManagedFrame, ManagedStep, RuntimeLanguage, RuntimePlan,
    WalkFailure,
};

fn found(version: (u8, u8), memory: &FlatMemory) -> Result<(RubyPlan, RubyNames), LayoutError> {
    binary(version).plan(memory, 0)
}

fn walked(plan: RubyPlan, memory: &FlatMemory) -> Vec<ManagedStep> {
    let plan = RuntimePlan::Ruby(plan);
    let Some(thread) = plan.thread(memory, crate::tests::thread(FS_BASE), None) else { return Vec::new() };
    let mut words = Vec::new();
    plan.walk(memory, thread, |word| {
        words.push(word);
        true
    });
    FrameWords::new(words.into_iter()).collect()
}

fn frames(steps: &[ManagedStep]) -> Vec<ManagedFrame> {
    let frame = |step: &ManagedStep| match step {
        ManagedStep::Frame(frame) => Some(*frame),
        _ => None,
    };
    steps.iter().filter_map(frame).collect()
}

/// Bytes of a control frame.
fn frame_size(version: (u8, u8)) -> u64 {
    if matches!(version, (3, 1 | 2)) { 64 } else { 56 }
}

/// Address of the control frame with this number, innermost first.
fn frame_at(version: (u8, u8), number: u64) -> u64 {
    BASE + 0x2800 - (5 - number) * frame_size(version)
}

#[test]
fn each_version_has_its_frames_names_and_lines() {
    for version in VERSIONS {
        let memory = ruby(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        let steps = walked(plan, &memory);
        let codes = frames(&steps).into_iter().map(|frame| {
            let code = names.read(&memory, &frame).expect("a function");
            let line = code.line(&frame);
            (code.name, code.file, line)
        });
        let of_c = |name: &str| (name.to_owned(), None, None);
        let of_ruby = |name: &str| (name.to_owned(), Some("/directory/of/outer.rb".to_owned()), Some(12));
        let wanted = [of_ruby(NAMES[0]), of_c(NAMES[1]), of_ruby(NAMES[2]), of_c(NAMES[3])];
        assert_eq!(codes.collect::<Vec<_>>(), wanted, "{version:?}");
        let entries: Vec<(usize, EntryPlace)> = steps
            .iter()
            .enumerate()
            .filter_map(|(at, step)| match step {
                ManagedStep::Entry(place) => Some((at, *place)),
                _ => None,
            })
            .collect();
        let wanted = [(1, EntryPlace::Interpreter), (4, EntryPlace::Interpreter), (6, EntryPlace::Outermost)];
        assert_eq!(entries, wanted, "{version:?}");
        let interpreters: Vec<_> =
            frames(&steps).iter().map(|frame| names.interpreter(&memory, frame)).collect();
        assert_eq!(interpreters, [Some(INTERPRETER), None, Some(INTERPRETER), None]);
    }
}

#[test]
fn other_versions_are_refused() {
    for version in [(2, 7), (3, 5), (4, 0)] {
        let memory = FlatMemory { bytes: vec![0; SIZE] };
        let refused = LayoutError::Version(RuntimeLanguage::Ruby, version.0, version.1);
        assert_eq!(found(version, &memory), Err(refused));
    }
}

#[test]
fn a_thread_without_a_context_has_no_frames() {
    let memory = ruby((3, 3));
    let (plan, _) = found((3, 3), &memory).expect("a layout");
    assert_eq!(plan.thread(&memory, FS_BASE + 0x40), None, "another thread");
    assert_eq!(plan.thread(&memory, u64::MAX), None);
}

#[test]
fn code_that_was_replaced_has_no_name() {
    for version in VERSIONS {
        let memory = ruby(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        for frame in frames(&walked(plan, &memory)) {
            for place in [0, 16] {
                let mut replaced = memory.clone();
                replaced.put(frame.code.0 + place, frame.code.0 + 0x10);
                assert_eq!(names.read(&replaced, &frame), None, "{version:?} {place}");
            }
        }
    }
}

#[test]
fn a_symbol_with_another_number_is_no_name() {
    let memory = ruby((3, 1));
    let (plan, names) = found((3, 1), &memory).expect("a layout");
    let frame = frames(&walked(plan, &memory))[1];
    let mut moved = memory.clone();
    // The symbol at the place of `each` is that of another one.
    moved.put(BASE + 0x6148 + 16 * 21, 99 << 12 | 0x0c);
    assert_eq!(names.read(&moved, &frame), None);
    let mut short = memory.clone();
    short.put(BASE + 0x6000, 20);
    assert_eq!(names.read(&short, &frame), None, "a table without this place");
}

#[test]
fn the_line_of_the_innermost_compiled_frame_is_not_known() {
    for version in [(3, 1), (3, 2), (3, 3), (3, 4)] {
        let mut memory = ruby(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        for number in [0, 2] {
            memory.put(frame_at(version, number) + frame_size(version) - 8, 0x7f00_0000_1000);
        }
        let lines = frames(&walked(plan, &memory)).into_iter().map(|frame| {
            let code = names.read(&memory, &frame).expect("a function");
            code.line(&frame)
        });
        assert_eq!(lines.collect::<Vec<_>>(), [None, None, Some(12), None], "{version:?}");
    }
}

#[test]
fn an_instruction_outside_of_its_bytecode_has_no_line() {
    let mut memory = ruby((3, 3));
    let (plan, _) = found((3, 3), &memory).expect("a layout");
    for instruction in [0, 8, u64::MAX, BASE + 0x3800 + 0x200 + 9 * 8] {
        memory.put(frame_at((3, 3), 0), instruction);
        assert_eq!(frames(&walked(plan, &memory))[0].instruction, None, "{instruction:#x}");
    }
}

#[test]
fn stacks_that_contradict_themselves_end_with_the_reason() {
    for version in VERSIONS {
        let memory = ruby(version);
        let (plan, _) = found(version, &memory).expect("a layout");
        let context = BASE + 0x1000;
        for (at, word, why) in [
            (context + 8, u64::MAX, WalkFailure::Inconsistent),
            (context + 16, BASE, WalkFailure::Inconsistent),
            (context + 16, BASE + 0x2801, WalkFailure::Inconsistent),
            (frame_at(version, 0) + 32, 0, WalkFailure::Inconsistent),
            (frame_at(version, 0) + 32, 1 << 40, WalkFailure::NotPresent),
            (frame_at(version, 0) + 16, BASE + 0x3800 + 0x400, WalkFailure::Inconsistent),
        ] {
            let mut other = memory.clone();
            other.put(at, word);
            assert_eq!(walked(plan, &other), [ManagedStep::Failure(why)], "{version:?} {at:#x} {word:#x}");
        }
        // A stack that consists of the frames of no function.
        let mut long = memory.clone();
        let frames = 2 * MAX_FRAMES as u64 + 1;
        long.bytes.resize(SIZE + 0x20_0000, 0);
        long.put(context, BASE + SIZE as u64);
        long.put(context + 8, frames * frame_size(version) / 8);
        long.put(context + 16, BASE + SIZE as u64);
        for number in 0..frames {
            long.put(BASE + SIZE as u64 + number * frame_size(version) + 32, BASE + 0x3000 + 4 * 0x40 + 16);
        }
        assert_eq!(walked(plan, &long), [ManagedStep::Failure(WalkFailure::TooDeep)]);
    }
}

proptest! {
    #[test]
    fn any_memory_ends_every_walk(
        version in prop::sample::select(VERSIONS.to_vec()),
        words in words(SIZE),
    ) {
        let mut memory = ruby(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        for (at, word) in words {
            memory.put(BASE + at * 8, word);
        }
        let steps = walked(plan, &memory);
        prop_assert!(steps.len() <= 2 * MAX_FRAMES + 1);
        for frame in frames(&steps) {
            names.interpreter(&memory, &frame);
            if let Some(code) = names.read(&memory, &frame) {
                prop_assert!(code.name.len() <= 3 * 4096);
                code.line(&frame);
            }
        }
        let _: Option<VirtAddr> = plan.thread(&memory, BASE);
    }
}

#[test]
fn a_thread_with_its_frames_on_its_native_stack_has_first_frames_above_them() {
    let version = VERSIONS[1];
    let memory = ruby(version);
    let (plan, _) = found(version, &memory).expect("a layout");
    let plan = RuntimePlan::Ruby(plan);
    let thread = plan.thread(&memory, crate::tests::thread(FS_BASE), None).expect("a thread");
    let (start, end) = (BASE + 0x2000, BASE + 0x2800);
    assert_eq!(plan.stack_above(&memory, thread, start - 0x400), Some(VirtAddr(end)));
    assert_eq!(plan.stack_above(&memory, thread, end + 0x400), None, "the first thread");
}
