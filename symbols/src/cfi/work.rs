//! What a walk may cost.

use super::Broken;

/// Units of work in one walk. A unit is a byte of CFI or an operation of an expression that may be run; a unit takes
/// up to 40 ns where CFI is made to be slow, 1 ns where it is a compiler's.
pub(super) const WALK: u32 = 1 << 18;

/// What is left of a walk's work.
#[derive(Debug)]
pub(super) struct Work(u32);

impl Work {
    pub fn of_walk() -> Self {
        Self(WALK)
    }

    /// Takes `units` away.
    pub fn take(&mut self, units: usize) -> Result<(), Broken> {
        let left = u32::try_from(units).ok().and_then(|units| self.0.checked_sub(units));
        self.0 = left.ok_or(Broken::TooCostly)?;
        Ok(())
    }
}
