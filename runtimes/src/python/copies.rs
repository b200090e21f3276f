//! The plan of the copies of a thread's frames.
//!
//! ```text
//! 0  the first interpreter
//! 1  its threads
//! 2  a thread: the one that is searched for, or the next one
//! 3  the next interpreter
//! 4  from the thread to its first frame, where another structure is between the two
//!    a frame
//!    its code object
//!    a structure on the native stack, for versions that have these: as many as frames at most
//! ```

use symbols::VirtAddr;

use super::layout::{FrameChain, WalkLayout};
use super::walk::identity_range;
use crate::copies::{CopyPlan, CopyStep, FS_BASE, NextStep, WordLoad};

/// Registers.
const INTERPRETER: u8 = 1;
const THREAD: u8 = 2;
const THREAD_ID: u8 = 3;
const FRAME: u8 = 4;
const CODE: u8 = 5;
const CFRAME: u8 = 6;
/// Steps.
const THREADS: u8 = 1;
const SEARCH: u8 = 2;
const NEXT_INTERPRETER: u8 = 3;
const FOUND: u8 = 4;

/// Parts of a plan that depend on the chain of frames.
struct ChainSteps {
    /// Words of the thread: register and offset.
    of_thread: Vec<(u8, u16)>,
    /// Step to the first frame.
    first: Option<CopyStep>,
    /// Step after each frame.
    each: Option<CopyStep>,
}

impl ChainSteps {
    fn new(chain: FrameChain) -> Self {
        match chain {
            FrameChain::Objects { frame } => {
                Self { of_thread: vec![(FRAME, frame)], first: None, each: None }
            }
            FrameChain::ObjectsWithCframes { frame, cframe, previous } => Self {
                of_thread: vec![(FRAME, frame), (CFRAME, cframe)],
                first: None,
                each: Some(words(CFRAME, &[(CFRAME, previous)], previous, FOUND)),
            },
            FrameChain::Cframes { cframe, current, previous, .. } => {
                let next = FOUND + 1;
                let first = words(CFRAME, &[(FRAME, current), (CFRAME, previous)], current, next);
                Self {
                    of_thread: vec![(CFRAME, cframe)],
                    first: Some(first.or(CopyStep::END)),
                    each: Some(words(CFRAME, &[(CFRAME, previous)], current, next)),
                }
            }
            FrameChain::Shims { cframe: Some(cframe), current, .. } => Self {
                of_thread: vec![(CFRAME, cframe)],
                first: Some(CopyStep::word_of(CFRAME, current.into(), FRAME, FOUND + 1)),
                each: None,
            },
            FrameChain::Shims { cframe: None, current, .. } => {
                Self { of_thread: vec![(FRAME, current)], first: None, each: None }
            }
        }
    }
}

/// Returns the plan for a process with `_PyRuntime` at `runtime`, whose frames are read up to `frame_bytes`.
pub(super) fn copies(runtime: VirtAddr, layout: &WalkLayout, frame_bytes: usize) -> Option<CopyPlan> {
    let ChainSteps { of_thread, first, each } = ChainSteps::new(layout.chain);
    let mut loads = vec![(THREAD_ID, layout.thread_id), (THREAD, layout.next_thread)];
    loads.extend(of_thread);
    let frame = FOUND + u8::from(first.is_some());
    let code = frame + 1;
    let after = if each.is_some() { code + 1 } else { frame };
    let (identity, identity_bytes) = identity_range(&layout.identity);
    let steps = [
        CopyStep::word_at(runtime.0.wrapping_add(layout.interpreters.into()), INTERPRETER, THREADS),
        CopyStep::word_of(INTERPRETER, layout.threads.into(), THREAD, SEARCH).or(NEXT_INTERPRETER),
        CopyStep {
            next: NextStep::Compare { registers: [THREAD_ID, FS_BASE], equal: FOUND, other: SEARCH },
            ..words(THREAD, &loads, layout.previous_thread, SEARCH).or(NEXT_INTERPRETER)
        },
        CopyStep::word_of(INTERPRETER, layout.next_interpreter.into(), INTERPRETER, THREADS),
    ];
    let frames = [
        CopyStep::new(FRAME, (0, frame_bytes), code)
            .load(WordLoad::new(CODE, layout.code))
            .load(WordLoad::new(FRAME, layout.previous))
            .or(CopyStep::END),
        CopyStep::new(CODE, (identity.into(), identity_bytes), after),
    ];
    CopyPlan::new(steps.into_iter().chain(first).chain(frames).chain(each).collect())
}

/// Returns a step that copies the words at these offsets of a structure, and the one at `other`, and loads
/// the former: register and offset of each.
fn words(base: u8, loads: &[(u8, u16)], other: u16, next: u8) -> CopyStep {
    let offsets = || loads.iter().map(|&(_, at)| at).chain([other]);
    let (first, last) = (offsets().min().unwrap_or(other), offsets().max().unwrap_or(other));
    let step = CopyStep::new(base, (first.into(), usize::from(last - first) + 8), next);
    loads.iter().fold(step, |step, &(register, at)| step.load(WordLoad::new(register, at - first)))
}
