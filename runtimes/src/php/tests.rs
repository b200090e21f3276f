//! Walks and names over made memory.

use proptest::prelude::*;
use symbols::LinkAddr;

use super::{PhpBinary, PhpNames, PhpPlan};
use crate::fixture::php::{NAMES, STACK, VERSIONS, binary, frame_at, php};
use crate::fixture::{BASE, FlatMemory, SIZE};
use crate::tests::words;
use crate::{
    EntryPlace, FrameWords, LayoutError, MAX_FRAMES, ManagedFrame, ManagedStep, RuntimeLanguage, RuntimePlan,
    ThreadRegisters, WalkFailure,
};

fn found(memory: &FlatMemory) -> Result<(PhpPlan, PhpNames), LayoutError> {
    binary().plan(memory, 0)
}

fn walked_by(plan: PhpPlan, memory: &FlatMemory, stack_pointer: u64) -> Option<Vec<ManagedStep>> {
    let plan = RuntimePlan::Php(plan);
    let thread = plan.thread(memory, ThreadRegisters { fs_base: 0, stack_pointer }, None)?;
    let mut words = Vec::new();
    plan.walk(memory, thread, |word| {
        words.push(word);
        true
    });
    Some(FrameWords::new(words.into_iter()).collect())
}

fn walked(plan: PhpPlan, memory: &FlatMemory) -> Vec<ManagedStep> {
    walked_by(plan, memory, STACK).expect("a thread")
}

fn frames(steps: &[ManagedStep]) -> Vec<ManagedFrame> {
    let frame = |step: &ManagedStep| match step {
        ManagedStep::Frame(frame) => Some(*frame),
        _ => None,
    };
    steps.iter().filter_map(frame).collect()
}

#[test]
fn each_version_has_its_frames_names_and_lines() {
    for version in VERSIONS {
        let memory = php(version);
        let (plan, names) = found(&memory).expect("a layout");
        let steps = walked(plan, &memory);
        let codes: Vec<_> = frames(&steps)
            .into_iter()
            .map(|frame| {
                let code = names.read(&memory, &frame).expect("a function");
                let line = code.line(&frame);
                (code.name, code.file, line)
            })
            .collect();
        let of_php = |name: &str, line| (name.to_owned(), Some("/srv/task.php".to_owned()), line);
        let wanted = [
            of_php(NAMES[0], None),
            (NAMES[1].to_owned(), None, None),
            of_php(NAMES[2], Some(12)),
            of_php(NAMES[3], Some(12)),
        ];
        assert_eq!(codes, wanted, "{version:?}");
        let entry = ManagedStep::Entry(EntryPlace::Interpreter);
        assert_eq!((steps.len(), steps[1], steps[5]), (6, entry, entry), "{version:?}");
    }
}

#[test]
fn other_versions_and_builds_are_refused() {
    for version in [(7, 4), (8, 1), (8, 3), (8, 6)] {
        let mut memory = php((8, 2));
        memory.write(
            BASE + 0x110,
            format!("Zend Engine v{}.{}.0, Copyright", version.0 - 4, version.1).as_bytes(),
        );
        assert_eq!(found(&memory), Err(LayoutError::Version(RuntimeLanguage::Php, version.0, version.1)));
    }
    let mut memory = php((8, 2));
    let with_threads = PhpBinary::new(LinkAddr(BASE + 0x100), None);
    assert_eq!(with_threads.plan(&memory, 0), Err(LayoutError::ThreadSafe));
    memory.put(BASE + 0x110, 0);
    assert_eq!(found(&memory), Err(LayoutError::Invalid));
    memory.put(BASE + 0x100, 0);
    assert_eq!(found(&memory), Err(LayoutError::NotPresent), "before it has started");
}

#[test]
fn only_the_thread_that_runs_php_has_frames() {
    let memory = php((8, 4));
    let (plan, _) = found(&memory).expect("a layout");
    assert_eq!(walked_by(plan, &memory, STACK + 0x801), None, "a stack above");
    let mut far = memory.clone();
    far.put(BASE + 0x200 + 416, STACK + (64 << 20));
    assert_eq!(walked_by(plan, &far, STACK), None, "a stack far below");
    far.put(BASE + 0x200 + 416, 0);
    assert_eq!(walked_by(plan, &far, STACK), None, "PHP does not run");
}

#[test]
fn a_function_that_was_replaced_has_no_name() {
    for version in VERSIONS {
        let memory = php(version);
        let (plan, names) = found(&memory).expect("a layout");
        for frame in frames(&walked(plan, &memory)) {
            let mut replaced = memory.clone();
            replaced.put(frame.code.0 + 8, BASE + 0x5020);
            assert_eq!(names.read(&replaced, &frame), None, "{version:?}");
        }
    }
}

#[test]
fn frames_of_the_caller_of_a_fiber_have_no_interpreter_on_its_stack() {
    let mut memory = php((8, 2));
    let (plan, _) = found(&memory).expect("a layout");
    // The first frame of a fiber is that of a function without a name.
    memory.put(BASE + 0x2000 + 0x400 + 8, 0);
    let steps = walked(plan, &memory);
    let entries = steps.iter().filter_map(|step| match step {
        ManagedStep::Entry(place) => Some(*place),
        _ => None,
    });
    assert_eq!(entries.collect::<Vec<_>>(), [EntryPlace::Interpreter, EntryPlace::Outermost]);
    assert_eq!(frames(&steps).len(), 3);
}

#[test]
fn stacks_that_contradict_themselves_end_with_the_reason() {
    for version in VERSIONS {
        let memory = php(version);
        let (plan, _) = found(&memory).expect("a layout");
        let mut circle = memory.clone();
        circle.put(frame_at(4).0 + 48, frame_at(1).0);
        assert_eq!(walked(plan, &circle).last(), Some(&ManagedStep::Failure(WalkFailure::TooDeep)));
        let mut other = memory.clone();
        other.put(frame_at(0).0 + 24, BASE + 0x5000);
        assert_eq!(walked(plan, &other), [ManagedStep::Failure(WalkFailure::Inconsistent)]);
        other.put(frame_at(0).0 + 24, 1 << 40);
        assert_eq!(walked(plan, &other), [ManagedStep::Failure(WalkFailure::NotPresent)]);
    }
}

proptest! {
    #[test]
    fn any_memory_ends_every_walk(
        version in prop::sample::select(VERSIONS.to_vec()),
        words in words(SIZE),
    ) {
        let mut memory = php(version);
        let before = found(&memory).expect("a layout");
        for (at, word) in words {
            memory.put(BASE + at * 8, word);
        }
        for (plan, names) in [Some(before), found(&memory).ok()].into_iter().flatten() {
            let steps = walked_by(plan, &memory, STACK).unwrap_or_default();
            prop_assert!(steps.len() <= 2 * MAX_FRAMES + 1);
            for frame in frames(&steps) {
                if let Some(code) = names.read(&memory, &frame) {
                    prop_assert!(code.name.len() <= 3 * 2 * 4096 + 2);
                    code.line(&frame);
                }
            }
        }
    }
}
