//! Walks and names over made memory.

use proptest::prelude::*;
use symbols::VirtAddr;

use crate::fixture::{self, BASE, CODE_TYPE, ENTRIES, FS_BASE, FlatMemory, NAMES, RUNTIME, SIZE, VERSIONS};
use crate::python::PythonNames;
use crate::{
    EntryPlace, FrameWords, LayoutError, MAX_FRAMES, ManagedStep, RuntimeLanguage, RuntimePlan,
    ThreadRegisters, WalkFailure,
};

fn found(version: (u8, u8), memory: &FlatMemory) -> Result<(RuntimePlan, PythonNames), LayoutError> {
    let (plan, names) = fixture::binary(version).plan(memory, 0)?;
    Ok((RuntimePlan::Python(plan), names))
}

/// Returns the registers of the thread with this FS base.
pub(crate) fn thread(fs_base: u64) -> ThreadRegisters {
    ThreadRegisters { fs_base, stack_pointer: BASE }
}

fn walked(plan: &RuntimePlan, memory: &FlatMemory) -> Option<Vec<ManagedStep>> {
    let state = plan.thread(memory, thread(FS_BASE), None)?;
    let mut words = Vec::new();
    plan.walk(memory, state, |word| {
        words.push(word);
        true
    });
    Some(FrameWords::new(words.into_iter()).collect())
}

#[test]
fn each_version_has_its_frames_names_and_lines() {
    for version in VERSIONS {
        let memory = fixture::python(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        let steps = walked(&plan, &memory).expect("a thread");
        let (mut functions, mut entries) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                ManagedStep::Frame(frame) => {
                    let code = names.read(&memory, &frame).expect("a code object");
                    assert_eq!(code.file, Some(format!("/{}.py", code.name)));
                    assert_eq!(code.line(&frame), Some(12), "{version:?}");
                    functions.push(code.name);
                }
                ManagedStep::Entry(at) => entries.push((functions.len(), at)),
                ManagedStep::Failure(why) => panic!("{version:?}: {why}"),
                ManagedStep::Thread(_) => panic!("a walk does not add the thread"),
            }
        }
        assert_eq!(functions, NAMES);
        match version {
            (3, 9) => {
                let wanted: Vec<_> = (1..=3).map(|frames| (frames, EntryPlace::Interpreter)).collect();
                assert_eq!(entries, wanted);
            }
            (3, 10) => assert_eq!(entries.len(), 3),
            _ => assert_eq!(
                entries,
                [(2, EntryPlace::Address(ENTRIES[0])), (3, EntryPlace::Address(ENTRIES[1]))],
                "{version:?}"
            ),
        }
        assert_eq!(plan.thread(&memory, thread(FS_BASE + 1), None), None);
    }
}

#[test]
fn other_versions_and_tables_that_lie_are_refused() {
    for version in [(2, 7), (3, 8), (3, 15), (4, 11)] {
        let memory = FlatMemory { bytes: vec![0; SIZE] };
        assert_eq!(
            found(version, &memory),
            Err(LayoutError::Version(RuntimeLanguage::Python, version.0, version.1))
        );
    }
    let memory = fixture::python((3, 13));
    assert_eq!(found((3, 14), &memory), Err(LayoutError::Invalid), "the table is that of another version");
    let mut lying = memory.clone();
    lying.bytes[0] ^= 1;
    assert_eq!(found((3, 13), &lying), Err(LayoutError::Invalid));
    let mut threads = memory.clone();
    threads.put(RUNTIME.0 + 16, 1);
    assert_eq!(found((3, 13), &threads), Err(LayoutError::FreeThreaded));
    for position in [5, 8, 9, 20, 23, 29, 30, 31, 33, 35, 36, 37, 38, 39, 43] {
        let mut large = memory.clone();
        large.put(RUNTIME.0 + position * 8, u64::MAX);
        assert_eq!(found((3, 13), &large), Err(LayoutError::Invalid), "{position}");
    }
    let cut = FlatMemory { bytes: memory.bytes[..100].to_vec() };
    assert_eq!(found((3, 13), &cut), Err(LayoutError::NotPresent));
}

#[test]
fn a_thread_that_has_ended_is_not_taken_for_one_that_runs() {
    for version in VERSIONS {
        let mut memory = fixture::python(version);
        let (plan, _) = found(version, &memory).expect("a layout");
        let state = plan.thread(&memory, thread(FS_BASE), None).expect("a thread");
        // Its memory is as it was, but the thread before it leads past it.
        memory.put(BASE + 0x3000 + 8, 0);
        assert_eq!(plan.thread(&memory, thread(FS_BASE), Some(state)), None, "{version:?}");
    }
}

#[test]
fn a_code_object_that_was_replaced_has_no_name() {
    for version in VERSIONS {
        let memory = fixture::python(version);
        let (plan, names) = found(version, &memory).expect("a layout");
        let steps = walked(&plan, &memory).expect("a thread");
        let Some(ManagedStep::Frame(frame)) = steps.first().copied() else { panic!("no frame") };
        let line_at = if version >= (3, 12) {
            68
        } else if version == (3, 11) {
            72
        } else {
            40
        };
        let mut replaced = memory.clone();
        replaced.put(frame.code.0 + line_at, 11);
        assert_eq!(names.read(&replaced, &frame), None, "{version:?}: another first line");
        let mut freed = memory.clone();
        freed.put(frame.code.0 + 8, CODE_TYPE.0 + 8);
        assert_eq!(names.read(&freed, &frame), None, "{version:?}: another type");
    }
}

#[test]
fn loops_end() {
    for version in VERSIONS {
        let mut memory = fixture::python(version);
        let (plan, _) = found(version, &memory).expect("a layout");
        // The outermost frame leads back to itself.
        let previous = match version {
            (3, 9 | 10) => 24,
            (3, 11) => 48,
            _ => 8,
        };
        memory.put(BASE + 0x4200 + previous, BASE + 0x4200);
        let steps = walked(&plan, &memory).expect("a thread");
        assert!(steps.len() <= 2 * MAX_FRAMES + 1);
        assert!(matches!(
            steps.last(),
            Some(ManagedStep::Failure(
                WalkFailure::TooDeep | WalkFailure::Inconsistent | WalkFailure::NotPresent
            ))
        ));
        // Threads that lead in a circle do not have this one.
        memory.put(BASE + 0x3400 + 8, BASE + 0x3000);
        assert_eq!(plan.thread(&memory, thread(0x55), Some(VirtAddr(BASE))), None);
    }
}

/// Returns places of words in memory of `size` bytes, and values for them: any, addresses in it, and small
/// ones.
pub(crate) fn words(size: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let size = size as u64;
    let value = prop_oneof![any::<u64>(), (BASE..BASE + size).prop_map(|at| at & !7), 0_u64..16];
    prop::collection::vec((0..size / 8, value), 0..40)
}

proptest! {
    #[test]
    fn any_memory_ends_every_walk(
        version in prop::sample::select(VERSIONS.to_vec()),
        words in words(SIZE),
    ) {
        let mut memory = fixture::python(version);
        let before = found(version, &memory).expect("a layout");
        for (at, word) in words {
            memory.put(BASE + at * 8, word);
        }
        // The plan of before, as when memory changes afterwards, and that of this memory.
        for (plan, names) in [Some(before), found(version, &memory).ok()].into_iter().flatten() {
            for step in walked(&plan, &memory).unwrap_or_default() {
                if let ManagedStep::Frame(frame) = step
                    && let Some(code) = names.read(&memory, &frame)
                {
                    prop_assert!(code.name.chars().count() <= 1024);
                    code.line(&frame);
                }
            }
        }
    }
}
