//! CRuby 3.0 to 3.4, with or without its just-in-time compilers.
//!
//! ```text
//! variable of the thread ─▶ rb_execution_context_t ─ cfp ─▶ rb_control_frame_t, the next one after it
//!                                                            ... up to the end of vm_stack
//! control frame ─ ep ─▶ ep[0]: kind and flags, ep[-2]: method of a C function
//!               ─ iseq ─▶ rb_iseq_t ─ body ─▶ bytecode, label, path, lines
//! ```
//!
//! The frames of calls from Ruby to Ruby run in one `vm_exec`. The outermost frame of each `vm_exec` has the
//! flag FINISH. The interpreter's function has no symbol in a stripped library; bytecode consists of
//! addresses in it. A C function that Ruby calls has a frame, too, which belongs to the `vm_exec` of its
//! caller.
//!
//! YJIT's code keeps the same frames. It stores the instruction of a frame only before calls that may need
//! it, so the line of the innermost one is not known.
//!
//! Names of methods of C are in the runtime's table of symbols, which only code leads to. Each entry is
//! checked by the number in its own symbol.

mod binary;
mod layout;
mod names;
mod objects;
#[cfg(test)]
mod tests;
mod walk;

pub use binary::{RubyBinary, may_be_ruby};
pub use layout::{EmbeddedString, RubyLayout, RubyVersion};
pub use names::RubyNames;
pub use walk::RubyPlan;
