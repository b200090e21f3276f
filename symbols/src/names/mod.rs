//! Names of user code: functions, source lines and inlined frames of one ELF file, and the separate debug
//! files that know more of them.
//!
//! ```text
//! address of the file -> FunctionTable (.symtab, .dynsym, .gnu_debugdata, PLT) -> name, start
//!                     -> SourceLines   (DWARF)                                 -> frames with file and line
//! build-id, link      -> DebugFiles    (guest, host directories, DebugSource)  -> the file to read both of
//! ```
//!
//! Everything here is the guest's and may be hostile: sizes, counts and work are bounded where they are read.

mod debug_files;
mod demangle;
mod functions;
mod lines;
mod meter;
mod mini;
mod plt;
mod resolvers;
mod symbolizer;
mod symbols;
#[cfg(test)]
mod tests;

pub use debug_files::{
    DebugFile, DebugFileOrigin, DebugFiles, DebugQuery, DebugSource, DebugSourceError, GuestFiles, OpenFiles,
    no_files,
};
pub use demangle::readable;
pub use functions::{Function, FunctionKind, FunctionStarts, FunctionTable, unnamed};
pub use lines::{DebugInfoLimit, SourceFrame, SourceLines};
pub use symbolizer::Symbolizer;
pub use symbols::{defined, exported, exported_with_prefix};
