//! The walk from a frame to its callers.

use super::cache::RowCache;
use super::code_exit::SearchContext;
use super::frame::{FrameDoubt, FrameState, UserFrame, missing};
use super::guess::{CallerGuess, caller};
use super::images::{CodeMapping, CodeMappings, GeneratedCaller, ImageCode};
use super::path_memory::PathMemory;
use super::row::{CfiRow, RowContext};
use super::work_budget::WorkBudget;
use super::{UserEnd, UserWalkError};
use crate::address::{AddressKind, CodeAddr, VirtAddr};
use crate::registers::{Registers, StackMemory};

/// Signal frames in one walk whose stack may be anywhere; elsewhere a caller is above its callee.
const SIGNAL_FRAMES: u32 = 8;

/// Walks user stacks. One is enough for all processes: what it keeps is rows of [`super::CfiTable`]s, by
/// [`CodeMapping::id`].
#[derive(Debug)]
pub struct UserUnwinder {
    cache: RowCache,
    paths: PathMemory,
    context: Box<RowContext>,
}

impl Default for UserUnwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl UserUnwinder {
    /// Returns an unwinder, which takes less than 1 MB of memory. It grows, by rows that are not the usual
    /// ones and by paths through code without CFI, to 10 MB at most.
    pub fn new() -> Self {
        Self { cache: RowCache::new(), paths: PathMemory::default(), context: Box::new(RowContext::new_in()) }
    }

    /// Passes the frame of `registers` and then its callers to `push`, at most `limit` frames in all, and
    /// returns the end of the walk.
    pub fn walk(
        &mut self,
        registers: &Registers,
        stack: &impl StackMemory,
        images: &impl CodeMappings,
        limit: usize,
        mut push: impl FnMut(UserFrame),
    ) -> UserEnd {
        let mut state = FrameState::new(registers);
        let mut frame =
            UserFrame { at: CodeAddr::exact(VirtAddr(registers.rip)), stack: registers.rsp(), doubt: None };
        let mut bounds = WalkBounds { work: WorkBudget::for_walk(), signal_frames: 0 };
        for _ in 0..limit {
            let image = images.find(frame.at.lookup());
            if image.is_none() && frame.at.is_return() {
                return UserWalkError::NotMapped.into();
            }
            push(frame);
            frame = match self.step(&mut state, frame, image, stack, images, &mut bounds) {
                Ok(caller) => caller,
                Err(end) => return end,
            };
        }
        UserWalkError::TooDeep.into()
    }

    /// Moves `state` to the caller of `frame`.
    fn step(
        &mut self,
        state: &mut FrameState,
        frame: UserFrame,
        image: Option<CodeMapping<'_>>,
        stack: &impl StackMemory,
        images: &impl CodeMappings,
        bounds: &mut WalkBounds,
    ) -> Result<UserFrame, UserEnd> {
        let rsp = state.rsp();
        let (place, doubt) = match self.by_cfi(state, frame, image, stack, bounds)? {
            Some(place) => (place, None),
            None if by_maker(state, frame, image, stack, images)? => (AddressKind::Return, None),
            None => match self.guess_caller(state, frame.at.kind, stack, images, bounds) {
                CallerGuess::Caller(doubt) => (AddressKind::Return, Some(doubt)),
                CallerGuess::Interrupted => (AddressKind::Exact, None),
                // Never to a lower place on the stack; the number of frames bounds how often.
                CallerGuess::Jumped if state.rsp() >= rsp => {
                    return Ok(UserFrame {
                        at: CodeAddr::exact(state.rip()),
                        stack: state.rsp(),
                        doubt: Some(FrameDoubt::Code),
                    });
                }
                CallerGuess::Jumped => return Err(UserWalkError::CfaBackwards.into()),
                CallerGuess::Outermost => return Err(UserEnd::Complete),
                CallerGuess::Nothing => return Err(uncovered(image).into()),
            },
        };
        match place {
            AddressKind::Exact => {
                bounds.signal_frames += 1;
                if bounds.signal_frames > SIGNAL_FRAMES {
                    return Err(UserWalkError::SignalStacks.into());
                }
            }
            // Nothing calls address 0's neighbour: it is the return address where a thread was started by
            // hand.
            AddressKind::Return if state.rip() == VirtAddr(0) => return Err(UserEnd::Complete),
            AddressKind::Return if state.rsp() <= rsp => return Err(UserWalkError::CfaBackwards.into()),
            AddressKind::Return => (),
        }
        Ok(UserFrame { at: CodeAddr { address: state.rip(), kind: place }, stack: state.rsp(), doubt })
    }

    fn guess_caller(
        &mut self,
        state: &mut FrameState,
        place: AddressKind,
        stack: &impl StackMemory,
        images: &impl CodeMappings,
        bounds: &mut WalkBounds,
    ) -> CallerGuess {
        let mut context = SearchContext { work: &mut bounds.work, paths: &mut self.paths };
        caller(state, place, stack, images, &mut context)
    }

    /// Moves `state` to the caller by CFI; `None`, with nothing done, where no CFI covers the frame.
    fn by_cfi(
        &mut self,
        state: &mut FrameState,
        frame: UserFrame,
        image: Option<CodeMapping<'_>>,
        stack: &impl StackMemory,
        bounds: &mut WalkBounds,
    ) -> Result<Option<AddressKind>, UserEnd> {
        let Some(CodeMapping { id, bias, code: ImageCode::Cfi(table) }) = image else { return Ok(None) };
        let address = frame.at.lookup().linked(bias);
        let compute = || table.row(address, &mut self.context, &mut bounds.work);
        match self.cache.row(id, address, compute)? {
            CfiRow::NoCfi => return Ok(None),
            CfiRow::Bad => return Err(UserWalkError::BadCfi.into()),
            CfiRow::Outermost => return Err(UserEnd::Complete),
            CfiRow::Usual(row) => state.step_usual(row, stack)?,
            CfiRow::General(row) => {
                state.step_general(row, table, stack, &mut bounds.work)?;
                if row.signal {
                    return Ok(Some(AddressKind::Exact));
                }
            }
        }
        Ok(Some(AddressKind::Return))
    }
}

/// Moves `state` to the caller of code of a runtime that no CFI covers, by the runtime's rules; false, with
/// nothing done, where these do not cover the frame.
fn by_maker(
    state: &mut FrameState,
    frame: UserFrame,
    image: Option<CodeMapping<'_>>,
    stack: &impl StackMemory,
    images: &impl CodeMappings,
) -> Result<bool, UserEnd> {
    let Some(image) = image else { return Ok(false) };
    match images.generated_caller(&image, frame.at, &state.registers(), stack) {
        GeneratedCaller::Unknown => Ok(false),
        GeneratedCaller::Found(registers) => Ok(state.set_registers(&registers).is_some()),
        GeneratedCaller::Missing(at) => Err(missing(stack, at).into()),
    }
}

/// Bounds of one walk, besides its number of frames.
#[derive(Debug)]
struct WalkBounds {
    work: WorkBudget,
    signal_frames: u32,
}

/// Returns the reason why code without CFI has none.
fn uncovered(image: Option<CodeMapping<'_>>) -> UserWalkError {
    match image.map(|image| image.code) {
        None => UserWalkError::NotMapped,
        Some(ImageCode::Cfi(_) | ImageCode::NoCfi) => UserWalkError::NoCfi,
        Some(ImageCode::Anonymous) => UserWalkError::AnonymousCode,
        Some(ImageCode::NotRead) => UserWalkError::NoFile,
    }
}
