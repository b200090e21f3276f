//! Order of managed frames among the native ones.
//!
//! ```text
//! native                      managed                 stack
//! sorted_key                                          sorted_key
//! eval    [0x7ff0, 0x80f0)    c, b | entry 0x8010     c, b, eval
//! call    [0x80f0, 0x8120)                            call
//! eval    [0x8120, 0x8220)    a    | entry 0x8140     a, eval
//! main    [0x8220, ...                                main
//! ```
//!
//! Entries without an address ([`EntryPlace::Interpreter`]) belong to the frames of the interpreter's
//! function in the same order.

use crate::frames::{EntryPlace, ManagedFrame, ManagedStep, WalkFailure};

/// A native frame that managed frames may run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeFrame {
    /// Stack pointer in the frame: its part of the stack ends at that of the next one.
    pub stack: u64,
    /// Code that the frame is in.
    pub code: NativeCode,
}

/// Code that a native frame is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeCode {
    /// The runtime's interpreter.
    Interpreter,
    /// Other code of the runtime's file.
    Runtime,
    /// Code made at run time, which the runtime may run instead of its interpreter.
    Made,
    /// Any other code.
    Other,
}

/// The native frames of a thread, innermost first.
#[derive(Debug, Clone, Copy)]
pub struct NativeStack<'a> {
    /// The frames.
    pub frames: &'a [NativeFrame],
    /// They reach to the thread's start.
    pub is_whole: bool,
    /// The innermost managed frame may have no interpreter yet
    /// ([`crate::RuntimePlan::pushes_before_native`]).
    pub may_begin: bool,
}

/// Managed frames with the index of the native frame that each is put before, in order; and the reason if
/// outer ones are missing.
pub type PlacedFrames = (Vec<(usize, ManagedFrame)>, Option<WalkFailure>);

/// Returns the places of managed frames among the native ones. If these end early, managed frames of further
/// ones follow them all. [`WalkFailure::Inconsistent`] if the two do not fit.
pub fn place(
    steps: impl Iterator<Item = ManagedStep>,
    natives: NativeStack<'_>,
) -> Result<PlacedFrames, WalkFailure> {
    let (frames, is_whole) = (natives.frames, natives.is_whole);
    let (mut placed, mut groups, mut open, mut failure) = (Vec::new(), Vec::new(), Vec::new(), None);
    let (mut from, mut outermost) = (0, Vec::new());
    for step in steps {
        match step {
            ManagedStep::Frame(frame) => open.push(frame),
            ManagedStep::Entry(EntryPlace::Address(entry)) => {
                let around = |at: &usize| {
                    let begins = frames.get(*at).is_some_and(|native| native.stack <= entry);
                    begins && frames.get(at + 1).map_or(is_whole, |next| entry < next.stack)
                };
                from = match (from..frames.len()).find(around) {
                    Some(at) => at,
                    None if is_whole => return Err(WalkFailure::Inconsistent),
                    None => frames.len(),
                };
                placed.extend(open.drain(..).map(|frame| (from, frame)));
            }
            ManagedStep::Entry(EntryPlace::Interpreter) => groups.push(std::mem::take(&mut open)),
            ManagedStep::Entry(EntryPlace::Outermost) => outermost = std::mem::take(&mut open),
            ManagedStep::Failure(why) => failure = Some(why),
            ManagedStep::Thread(_) => {}
        }
    }
    // Without an entry only after a failure: their native frames are not known.
    if !open.is_empty() && failure.is_none() {
        return Err(WalkFailure::Inconsistent);
    }
    if groups.is_empty() {
        outermost.append(&mut open);
    } else if !open.is_empty() {
        groups.push(open);
    }
    for (place, group) in places(natives, groups.len(), failure.is_some())?.into_iter().zip(groups) {
        placed.extend(group.into_iter().map(|frame| (place, frame)));
    }
    placed.extend(outermost.into_iter().map(|frame| (frames.len(), frame)));
    Ok((placed, failure))
}

/// Returns the places of `groups` groups of frames, each of which runs in one interpreter; `has_failed` if
/// outer groups are missing.
fn places(natives: NativeStack<'_>, groups: usize, has_failed: bool) -> Result<Vec<usize>, WalkFailure> {
    if groups == 0 {
        return Ok(Vec::new());
    }
    let frames = natives.frames;
    let runs = |at: &usize| match frames[*at].code {
        NativeCode::Interpreter => true,
        // The interpreter calls made code within the same managed frames.
        NativeCode::Made => match frames.get(at + 1) {
            Some(caller) => caller.code == NativeCode::Runtime,
            None => !natives.is_whole,
        },
        NativeCode::Runtime | NativeCode::Other => false,
    };
    let interpreters: Vec<usize> = (0..frames.len()).filter(runs).collect();
    let is_whole = natives.is_whole && !has_failed;
    let (begun, skip) = match interpreters.len().checked_sub(groups) {
        Some(0) => (false, 0),
        // One that has just begun, or is about to end, has no frame.
        Some(1) if is_whole => (false, 1),
        // A frame that has just begun has no interpreter.
        None if is_whole && natives.may_begin && interpreters.len() + 1 == groups => (true, 0),
        // The outer frames of one of the two are missing.
        Some(_) if has_failed => (false, 0),
        None if !natives.is_whole => (false, 0),
        _ => return Err(WalkFailure::Inconsistent),
    };
    let known = interpreters.into_iter().skip(skip).chain(std::iter::repeat(frames.len()));
    Ok(begun.then_some(0).into_iter().chain(known).take(groups).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symbols::VirtAddr;

    fn native(stack: u64) -> NativeFrame {
        NativeFrame { stack, code: NativeCode::Other }
    }

    fn frame(number: u64) -> ManagedStep {
        ManagedStep::Frame(ManagedFrame { code: VirtAddr(number), instruction: None, identity: 0 })
    }

    fn at(address: u64) -> ManagedStep {
        ManagedStep::Entry(EntryPlace::Address(address))
    }

    const INTERPRETER: ManagedStep = ManagedStep::Entry(EntryPlace::Interpreter);

    /// Places of frames by their numbers, and the reason for missing ones.
    type Placed = Result<(Vec<(usize, u64)>, Option<WalkFailure>), WalkFailure>;

    /// Returns the places of frames.
    fn placed(steps: &[ManagedStep], frames: &[NativeFrame], is_whole: bool, may_begin: bool) -> Placed {
        let natives = NativeStack { frames, is_whole, may_begin };
        let (placed, failure) = place(steps.iter().copied(), natives)?;
        Ok((placed.into_iter().map(|(at, frame)| (at, frame.code.0)).collect(), failure))
    }

    #[test]
    fn frames_precede_the_native_frame_around_their_entry() {
        let natives = [0x7fe0, 0x7ff0, 0x80f0, 0x8120, 0x8220].map(native);
        let steps = [frame(3), frame(2), at(0x8010), frame(1), at(0x8140)];
        let wanted = (vec![(1, 3), (1, 2), (3, 1)], None);
        assert_eq!(placed(&steps, &natives, true, false), Ok(wanted.clone()));
        assert_eq!(placed(&steps, &natives, false, false), Ok(wanted));
        // A walk that ended early does not know the outer native frame, nor where its last one ends.
        for known in [3, 4] {
            let found = placed(&steps, &natives[..known], false, false);
            assert_eq!(found, Ok((vec![(1, 3), (1, 2), (known, 1)], None)), "{known}");
        }
    }

    #[test]
    fn entries_that_are_on_no_frame_are_a_contradiction() {
        let natives = [0x7fe0, 0x7ff0, 0x80f0].map(native);
        let steps = |entries: [u64; 2]| [frame(2), at(entries[0]), frame(1), at(entries[1])];
        let contradiction = Err(WalkFailure::Inconsistent);
        assert_eq!(placed(&steps([0x7fd0, 0x8000]), &natives, true, false), contradiction, "below the stack");
        assert_eq!(
            placed(&steps([0x8100, 0x7ff8]), &natives, true, false),
            contradiction,
            "in another order"
        );
        assert_eq!(placed(&[frame(1)], &natives, true, true), contradiction, "no entry at all");
    }

    #[test]
    fn what_precedes_a_failure_is_kept() {
        let natives = [0x7ff0, 0x80f0].map(native);
        let why = WalkFailure::NotPresent;
        let steps = [frame(3), at(0x8000), frame(2), ManagedStep::Failure(why)];
        assert_eq!(placed(&steps, &natives, true, false), Ok((vec![(0, 3), (2, 2)], Some(why))));
    }

    /// Returns native frames, of which these are the interpreter's.
    fn marked(marks: &[bool]) -> Vec<NativeFrame> {
        let code = |&mark: &bool| if mark { NativeCode::Interpreter } else { NativeCode::Runtime };
        marks.iter().map(|mark| NativeFrame { stack: 0x1000, code: code(mark) }).collect()
    }

    #[test]
    fn made_code_is_an_interpreter_unless_the_interpreter_calls_it() {
        use NativeCode::{Interpreter, Made, Other, Runtime};
        let steps = [frame(3), INTERPRETER, frame(2), frame(1), INTERPRETER];
        let natives = |code: &[NativeCode]| -> Vec<NativeFrame> {
            code.iter().map(|&code| NativeFrame { stack: 0x1000, code }).collect()
        };
        // The last one is that of a library, which calls back into the runtime through code that it has made.
        let whole = natives(&[Made, Runtime, Made, Interpreter, Runtime, Made, Other]);
        assert_eq!(placed(&steps, &whole, true, true), Ok((vec![(0, 3), (3, 2), (3, 1)], None)));
        let cut = natives(&[Made, Runtime, Made]);
        assert_eq!(placed(&steps, &cut, false, true), Ok((vec![(0, 3), (2, 2), (2, 1)], None)));
    }

    #[test]
    fn without_addresses_each_group_has_its_interpreter() {
        let steps = [frame(3), frame(2), INTERPRETER, frame(1), INTERPRETER];
        let whole = marked(&[false, true, false, true, false]);
        let wanted = Ok((vec![(1, 3), (1, 2), (3, 1)], None));
        assert_eq!(placed(&steps, &whole, true, false), wanted);
        // One that has just begun has no frame; one that was not reached has.
        assert_eq!(placed(&steps, &marked(&[true, true, false, true]), true, false), wanted);
        assert_eq!(placed(&steps, &marked(&[false, true, false]), false, false), wanted);
        for marks in [&[true][..], &[true; 4]] {
            let found = placed(&steps, &marked(marks), true, false);
            assert_eq!(found, Err(WalkFailure::Inconsistent), "{marks:?}");
        }
    }

    #[test]
    fn a_frame_that_has_just_begun_may_have_no_interpreter() {
        let steps = [frame(2), INTERPRETER, frame(1), INTERPRETER];
        let natives = marked(&[false, true, false]);
        assert_eq!(placed(&steps, &natives, true, true), Ok((vec![(0, 2), (1, 1)], None)));
        let none = marked(&[false, false]);
        assert_eq!(placed(&steps, &none, true, true), Err(WalkFailure::Inconsistent), "two of them");
    }

    #[test]
    fn frames_outside_of_all_interpreters_come_last() {
        let outermost = ManagedStep::Entry(EntryPlace::Outermost);
        let steps = [frame(2), INTERPRETER, frame(1), outermost];
        let natives = marked(&[false, true, false]);
        assert_eq!(placed(&steps, &natives, true, true), Ok((vec![(1, 2), (3, 1)], None)));
        assert_eq!(placed(&[frame(1), outermost], &natives, true, true), Ok((vec![(3, 1)], None)));
    }

    #[test]
    fn a_group_without_its_end_is_in_the_next_interpreter() {
        let why = WalkFailure::TooDeep;
        let steps = [frame(3), INTERPRETER, frame(2), ManagedStep::Failure(why)];
        let natives = marked(&[true, false, true, false, true]);
        assert_eq!(placed(&steps, &natives, true, true), Ok((vec![(0, 3), (2, 2)], Some(why))));
    }
}
