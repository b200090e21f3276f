//! Text for people: cleaning of text that comes from a guest, numbers with units, both ways, and suggestions for mistyped names.
//!
//! A leaf: depends on no other crate.

pub mod clean;
pub mod message;
pub mod parse;
pub mod suggest;
pub mod units;
