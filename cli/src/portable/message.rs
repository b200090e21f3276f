//! What the two halves of the portable host say to each other.
//!
//! The `vprof` inside runs the guest; the `vprof` outside writes the profile and faces the user. Between them is a
//! virtio-serial port, a plain stream of bytes, on which each message is a frame:
//!
//! ```text
//! | length: u32, little endian | message: postcard, `length` bytes |
//! ```

use std::path::PathBuf;

use profile::Batch;
use sampler::SessionStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::run::link::Control;
use crate::run::spec::{Outcome, RunSpec};

/// Name of the virtio-serial port.
pub const PORT: &str = "vprof.0";
/// Name of another one, for packets of the guest's virtio-vsock device.
pub const VSOCK_PORT: &str = "vprof.vsock";
/// What is to be run, in the inner host's initial file system.
pub const JOB_FILE: &str = "/vprof/run.json";
/// The guest's kernel, there.
pub const KERNEL_FILE: &str = "/vprof/kernel";
/// The guest's initrd, there.
pub const INITRD_FILE: &str = "/vprof/initrd";
/// Lists the modules to load, one path a line, in order.
pub const MODULE_ORDER: &str = "/lib/modules/load-order";

/// The longest message, bytes. A batch of one second at 64 vCPUs and 5 kHz takes about 20 MB.
const MAX_FRAME: usize = 64 << 20;

/// What the inner `vprof` finds in [`JOB_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The run, with disks as the inner host names them.
    pub run: RunSpec,
    /// [`INITRD_FILE`] exists.
    pub has_initrd: bool,
    /// Device files of the disks that the inner host has to wait for.
    pub devices: Vec<PathBuf>,
}

/// From the inner `vprof` to the outer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromHost {
    /// The inner host is up.
    Hello {
        /// Its kernel's release.
        kernel: String,
        /// Version of the inner `vprof`, which has to be the outer's.
        version: String,
    },
    /// What is being done before the guest runs.
    Preparing(String),
    /// Rows of the profile.
    Batch(Box<Batch>),
    /// Output of the guest's console.
    Console(Vec<u8>),
    /// Output of a command that does not go to the console.
    Output(Vec<u8>),
    /// Where sampling stands; sent about four times a second.
    Status(SessionStatus),
    /// The guest has ended, all batches are sent and all disks are written.
    End(Outcome),
    /// The run failed; one sentence.
    Error(String),
}

/// From the outer `vprof` to the inner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToHost {
    /// End the run.
    Stop,
    /// Bytes for the guest's console.
    ConsoleInput(Vec<u8>),
    /// Change something while the guest runs.
    Control(Control),
}

/// Why a stream of messages can't be understood.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A frame is longer than any message.
    #[error("a message of {0} bytes, more than the {max} that are allowed", max = MAX_FRAME)]
    TooLong(usize),
    /// A frame holds no message of this version.
    #[error("a message that can't be understood: {0}")]
    Malformed(#[from] postcard::Error),
}

/// A message as a frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; 4])?;
    let length = frame.len() - 4;
    match u32::try_from(length) {
        Ok(prefix) if length <= MAX_FRAME => frame[..4].copy_from_slice(&prefix.to_le_bytes()),
        _ => return Err(FrameError::TooLong(length)),
    }
    Ok(frame)
}

/// Collects bytes and gives whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one. After an error the stream is of no more use.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((prefix, body)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let message = postcard::from_bytes(body)?;
        self.start += 4 + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_any_fragmentation() {
        let sent = [
            ToHost::Stop,
            ToHost::ConsoleInput(b"ls\r".to_vec()),
            ToHost::ConsoleInput(vec![0; 70_000]),
            ToHost::Control(Control::Rate(1.5)),
            ToHost::Stop,
        ];
        let stream: Vec<u8> = sent.iter().flat_map(|m| encode(m).unwrap()).collect();
        for size in [1, 3, 4, 5, 4096, stream.len()] {
            let mut decoder = Decoder::default();
            let mut received = Vec::new();
            for chunk in stream.chunks(size) {
                decoder.push(chunk);
                while let Some(message) = decoder.next::<ToHost>().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent, "in chunks of {size}");
        }
    }

    #[test]
    fn hostile_frames_are_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next::<ToHost>(), Err(FrameError::TooLong(_))));
        let mut decoder = Decoder::default();
        // A vector that claims 2^63 bytes, in a frame of 10.
        decoder.push(&[11, 0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 127, 0]);
        assert!(matches!(decoder.next::<ToHost>(), Err(FrameError::Malformed(_))));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 9]);
        assert!(matches!(decoder.next::<ToHost>(), Err(FrameError::Malformed(_))));
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        let long = ToHost::ConsoleInput(vec![0; MAX_FRAME]);
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
