//! PHP 8.2, 8.4 and 8.5 without thread safety, with or without its just-in-time compiler.
//!
//! ```text
//! executor_globals ─ current_execute_data ─▶ zend_execute_data ─ prev_execute_data ─▶ ...
//!                                            ─ func ─▶ zend_function: name, class, file, instructions
//!                                            ─ opline ─▶ instruction: line
//! ```
//!
//! The frames of calls from PHP to PHP run in one `execute_ex`. The outermost frame of each one has the flag
//! `ZEND_CALL_TOP`. An internal function has a frame, too, which belongs to the `execute_ex` of its caller.
//!
//! The interpreter keeps the instruction of the innermost function in a register, and stores it only before
//! what may fail: the line of that frame is not known.

mod binary;
mod layout;
mod names;
#[cfg(test)]
mod tests;
mod walk;

pub use binary::{PhpBinary, may_be_php};
pub use layout::{PhpLayout, PhpVersion};
pub use names::PhpNames;
pub use walk::PhpPlan;
