//! The walk from a frame to its callers.

use super::cache::RowCache;
use super::frame::{Doubt, Place, State, UserFrame};
use super::guess::{Guess, caller};
use super::images::{Image, ImageCode, Images};
use super::row::{Row, RowContext};
use super::ways::Ways;
use super::work::Work;
use super::{CacheUse, UserEnd, UserWalkError};
use crate::registers::{Registers, StackMemory};

/// Signal frames in one walk whose stack may be anywhere; elsewhere a caller is above its callee.
const SIGNAL_FRAMES: u32 = 8;

/// Walks user stacks. One is enough for all processes: what it keeps is rows of [`super::CfiTable`]s, by
/// [`Image::id`].
#[derive(Debug)]
pub struct UserUnwinder {
    cache: RowCache,
    ways: Ways,
    context: Box<RowContext>,
}

impl Default for UserUnwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl UserUnwinder {
    /// Takes less than 1 MB of memory. Grows, by rows that are not the usual ones and by ways through code
    /// without CFI, to 10 MB at most.
    pub fn new() -> Self {
        Self { cache: RowCache::new(), ways: Ways::default(), context: Box::new(RowContext::new_in()) }
    }

    /// Returns the hits and misses of the cache of rows.
    pub fn cache_use(&self) -> CacheUse {
        self.cache.used
    }

    /// Gives `push` the frame of `registers` and then its callers, at most `limit` frames in all, and says
    /// how it ended.
    pub fn walk(
        &mut self,
        registers: &Registers,
        stack: &impl StackMemory,
        images: &impl Images,
        limit: usize,
        mut push: impl FnMut(UserFrame),
    ) -> UserEnd {
        let mut state = State::new(registers);
        let mut frame = UserFrame { address: registers.rip, place: Place::Exact, doubt: None };
        let mut bounds = Bounds { work: Work::of_walk(), signal_frames: 0 };
        for _ in 0..limit {
            let image = images.find(frame.lookup_address());
            if image.is_none() && frame.place == Place::Return {
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
        state: &mut State,
        frame: UserFrame,
        image: Option<Image<'_>>,
        stack: &impl StackMemory,
        images: &impl Images,
        bounds: &mut Bounds,
    ) -> Result<UserFrame, UserEnd> {
        let rsp = state.rsp();
        let (place, doubt) = match self.by_cfi(state, frame, image, stack, bounds)? {
            Some(place) => (place, None),
            None => match caller(state, frame.place, stack, images, (&mut bounds.work, &mut self.ways)) {
                Guess::Caller(doubt) => (Place::Return, Some(doubt)),
                Guess::Interrupted => (Place::Exact, None),
                // Never to a lower place on the stack; the number of frames bounds how often.
                Guess::Jumped if state.rsp() >= rsp => {
                    return Ok(UserFrame {
                        address: state.rip(),
                        place: Place::Exact,
                        doubt: Some(Doubt::Code),
                    });
                }
                Guess::Jumped => return Err(UserWalkError::CfaBackwards.into()),
                Guess::Outermost => return Err(UserEnd::Complete),
                Guess::Nothing => return Err(uncovered(image).into()),
            },
        };
        match place {
            Place::Exact => {
                bounds.signal_frames += 1;
                if bounds.signal_frames > SIGNAL_FRAMES {
                    return Err(UserWalkError::SignalStacks.into());
                }
            }
            // Nothing calls address 0's neighbour: it is the return address where a thread was started by
            // hand.
            Place::Return if state.rip() == 0 => return Err(UserEnd::Complete),
            Place::Return if state.rsp() <= rsp => return Err(UserWalkError::CfaBackwards.into()),
            Place::Return => (),
        }
        Ok(UserFrame { address: state.rip(), place, doubt })
    }

    /// Moves `state` to the caller by CFI; `None`, with nothing done, where no CFI covers the frame.
    fn by_cfi(
        &mut self,
        state: &mut State,
        frame: UserFrame,
        image: Option<Image<'_>>,
        stack: &impl StackMemory,
        bounds: &mut Bounds,
    ) -> Result<Option<Place>, UserEnd> {
        let Some(Image { id, bias, code: ImageCode::Cfi(table) }) = image else { return Ok(None) };
        let address = frame.lookup_address().wrapping_sub(bias);
        let compute = || table.row(address, &mut self.context, &mut bounds.work);
        match self.cache.row(id, address, compute)? {
            Row::NoCfi => return Ok(None),
            Row::Bad => return Err(UserWalkError::BadCfi.into()),
            Row::Outermost => return Err(UserEnd::Complete),
            Row::Usual(row) => state.step_usual(row, stack)?,
            Row::General(row) => {
                state.step_general(row, table, stack, &mut bounds.work)?;
                if row.signal {
                    return Ok(Some(Place::Exact));
                }
            }
        }
        Ok(Some(Place::Return))
    }
}

/// Bounds of one walk, besides its number of frames.
#[derive(Debug)]
struct Bounds {
    work: Work,
    signal_frames: u32,
}

/// Why code without CFI has none.
fn uncovered(image: Option<Image<'_>>) -> UserWalkError {
    match image.map(|image| image.code) {
        None => UserWalkError::NotMapped,
        Some(ImageCode::Cfi(_) | ImageCode::NoCfi) => UserWalkError::NoCfi,
        Some(ImageCode::Anonymous) => UserWalkError::AnonymousCode,
        Some(ImageCode::NotRead) => UserWalkError::NoFile,
    }
}
