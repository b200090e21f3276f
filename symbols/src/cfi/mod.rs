//! Call stacks of user programs, from call frame information (CFI), registers and a copy of the stack.
//!
//! CFI says for each place in a program's code how the caller's registers are found: DWARF 5, section 6.4, and for
//! `.eh_frame` and `.eh_frame_hdr` the Linux Standard Base 5.0, core, chapter 10.6. Register numbers are those of the
//! System V ABI, AMD64 supplement 1.0, figure 3.36.
//!
//! ```text
//! CfiSections -> CfiTable: sorted index of FDEs           once for a file
//!                   |
//!                  Row: the rules of one address           kept by (image, address)
//!                   |
//! Registers -> UserUnwinder::walk -> frames, UserEnd       for a sample
//! ```
//!
//! A frame is pushed only where it is known, or carries a [`Doubt`]; a walk that cannot go on says why ([`Broken`]).
//! CFI is the guest's own data. Its bounds: [`table::MAX_SECTION`] bytes of a section, [`index::MAX_FDES`] functions,
//! [`table::MAX_ENTRY`] bytes of one entry, [`expression::MAX_OPERATIONS`] operations of one expression, and
//! [`work::WALK`] units of work for all of a walk.

mod cache;
mod code;
mod end;
mod expression;
mod frame;
mod guess;
mod images;
mod index;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod walk;
mod work;

pub use cache::CacheUse;
pub use end::{Broken, UserEnd};
pub use frame::{Doubt, Place, UserFrame};
pub use images::{Image, ImageCode, Images};
pub use table::{CfiError, CfiSection, CfiSections, CfiTable};
pub use walk::UserUnwinder;
