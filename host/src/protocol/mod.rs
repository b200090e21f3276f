//! Messages of the portable host's port, and of the pipes to the processes of a run: frames of postcard
//! ([`frame`]), [`FromHost`] one way, and [`ToHost`] after a [`Job`] the other.
//!
//! Decoding is a pure function of bytes: it reads nothing else, and takes no more memory than a bounded
//! multiple of them, because a guest that has taken over its process may send anything.

pub mod frame;
pub mod portable;

pub use frame::{Decoder, FrameError, encode, read_message};
pub use portable::{BatchMessage, FromHost, Job, OutputStream, ToHost};
