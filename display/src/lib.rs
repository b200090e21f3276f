//! Text for people and tools: cleaning of text that comes from a guest, numbers with units, both ways, CSV,
//! and suggestions for mistyped names.
//!
//! A leaf: depends on no other crate of vprof.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod clean;
pub mod csv;
pub mod message;
pub mod parse;
pub mod suggest;
pub mod units;
