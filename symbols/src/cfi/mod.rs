//! Call stacks of user programs, from call frame information (CFI), registers and a copy of the stack.
//!
//! CFI says for each place in a program's code how the caller's registers are found: DWARF 5, section 6.4,
//! and for `.eh_frame` and `.eh_frame_hdr` the Linux Standard Base 5.0, core, chapter 10.6. Register numbers
//! are those of the System V ABI, AMD64 supplement 1.0, figure 3.36.
//!
//! ```text
//! CfiSections -> CfiTable: sorted index of FDEs           once for a file
//!                   |
//!                  Row: the rules of one address           kept by (image, address)
//!                   |
//! Registers -> UserUnwinder::walk -> frames, UserEnd       for a sample
//! ```
//!
//! A frame is pushed only where it is known, or carries a [`FrameDoubt`]; a walk that cannot continue says
//! why ([`UserWalkError`]). CFI is the guest's own data. Its bounds: 64 MiB of a section, 2^21 functions in
//! it, 16 KiB of one CIE or FDE, 40 columns and 6 kept states of a row, 1,000 operations and 64 values of one
//! expression, 2^18 units of work and 8 signal frames in one walk, 2^14 rows in the cache; of code without
//! CFI 1,024 instructions for a frame, and 4,096 ways of 2^16 instructions in all that are remembered.

mod cache;
mod code;
mod code_entry;
mod code_exit;
mod end;
mod expression;
mod frame;
mod guess;
mod images;
mod index;
mod path_memory;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod walk;
mod work_budget;

pub use end::{UserEnd, UserWalkError};
pub use frame::{FrameDoubt, UserFrame};
pub use images::{CodeMapping, CodeMappings, GeneratedCaller, ImageCode, KnownRegisters};
pub use table::{CfiError, CfiSection, CfiSections, CfiTable};
pub use walk::UserUnwinder;
