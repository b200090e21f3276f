//! V8, the JavaScript engine of Node.js: 18 to 24 on x86-64.
//!
//! All frames of a thread are on its native stack, and have frame pointers. Below the saved RBP is the
//! context of a function of JavaScript, or the marker of another kind of frame:
//!
//! ```text
//! RBP + 8   return address
//! RBP       caller's RBP
//! RBP - 8   context, or marker of the kind
//! RBP - 16  JSFunction ──▶ SharedFunctionInfo ──▶ name; Script ──▶ file, source
//! RBP - 32  BytecodeArray ──▶ table of source positions        interpreted and baseline code
//! RBP - 40  bytecode                                           interpreted code
//!
//! address ──▶ InstructionStream ──▶ Code ──▶ kind, source positions, inlined functions
//! ```
//!
//! The collector of V8 moves objects. So a function is believed only if what runs in the frame is its code:
//! its bytecode for interpreted and baseline code, the code's own function for optimised code.
//!
//! Offsets and numbers of types are variables of the binary for debuggers (`v8dbg_*`:
//! tools/gen-postmortem-metadata.py in V8).

mod cache;
mod code;
mod frames;
mod functions;
mod layout;
mod objects;
mod positions;
mod recognise;
mod scripts;
mod stages;
#[cfg(test)]
mod tests;

pub use frames::V8Process;
pub use functions::JsFunction;
pub use layout::V8Error;
pub use recognise::{V8Binary, may_be_v8};
