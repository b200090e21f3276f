//! Limit of the work of a walk.

use super::UserWalkError;

/// Units of work in one walk: bytes of CFI that are read, and [`super::expression::UNITS`] for each
/// expression. An FDE and its CIE have 60 bytes on average in Debian 12's python3.11: 250 frames with no row
/// in the cache are 15,000 units.
pub(super) const WALK: u32 = 1 << 18;

/// Remaining work of a walk.
#[derive(Debug)]
pub(super) struct WorkBudget(u32);

impl WorkBudget {
    pub fn for_walk() -> Self {
        Self(WALK)
    }

    /// Takes `units` from the budget.
    pub fn take(&mut self, units: usize) -> Result<(), UserWalkError> {
        let left = u32::try_from(units).ok().and_then(|units| self.0.checked_sub(units));
        self.0 = left.ok_or(UserWalkError::TooCostly)?;
        Ok(())
    }
}
