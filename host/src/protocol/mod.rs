//! Messages of both wires: that of the portable host, and that of the control socket.
//!
//! | wire | form | from the run | to the run |
//! |---|---|---|---|
//! | port of the portable host | frames of postcard ([`frame`]) | [`FromHost`] | [`ToHost`], after a [`Job`] |
//! | control socket | a JSON object a line ([`control`]) | [`Reply`] | [`Request`] |
//!
//! Decoding is a pure function of bytes: it reads nothing else, and takes no more memory than a bounded
//! multiple of them.

pub mod control;
pub mod frame;
pub mod portable;

use sampler::conditions::RunTrigger;
use serde::{Deserialize, Serialize};

pub use control::{About, Reply, Request, RequestError, Then, read_reply, read_request};
pub use frame::{Decoder, FrameError, encode, read_message};
pub use portable::{BatchMessage, FromHost, Job, OutputStream, ToHost};

/// Change of a running session; both wires end in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Sample, or do not.
    Sampling(bool),
    /// Wait for something.
    Wait(RunTrigger),
    /// Mean ticks per second and vCPU.
    Rate(f64),
    /// A row of table `event`.
    Mark(String),
    /// Write what was recorded.
    Write,
}
