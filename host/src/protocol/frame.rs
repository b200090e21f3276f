//! Frames of the portable host's wire: messages on a stream of bytes.
//!
//! ```text
//! | length: u32, little endian | message: postcard, `length` bytes |
//! ```

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, bytes. A batch of one second at 64 vCPUs and 5 kHz takes about 20 MB.
const MAX_FRAME: usize = 64 << 20;

/// Memory that is kept for the next message, bytes. A host may have many processes that each keep it.
const KEPT: usize = 4 << 10;

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

/// Returns a message as a frame.
///
/// # Errors
/// It is longer than any that the other end accepts.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; 4])?;
    let length = frame.len() - 4;
    match u32::try_from(length) {
        Ok(prefix) if length <= MAX_FRAME => frame[..4].copy_from_slice(&prefix.to_le_bytes()),
        _ => return Err(FrameError::TooLong(length)),
    }
    Ok(frame)
}

/// Reads one message, and nothing after it; `None` at the end of the stream.
///
/// # Errors
/// The stream cannot be read, or has no message.
pub fn read_message<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut prefix = [0; 4];
    match from.read_exact(&mut prefix) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from(u32::from_le_bytes(prefix));
    let mut frame = prefix.to_vec();
    from.take(length.min(MAX_FRAME as u64)).read_to_end(&mut frame)?;
    let mut decoder = Decoder::default();
    decoder.push(&frame);
    decoder.next_message().map_err(io::Error::other)
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

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// The bytes are not a message. The stream is of no use then.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        if self.start > 0 && self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.start = 0;
        }
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
    use crate::protocol::ToHost;
    use control::SessionChange;

    #[test]
    fn messages_survive_any_fragmentation() {
        let sent = [
            ToHost::Stop,
            ToHost::ConsoleInput(b"ls\r".to_vec()),
            ToHost::ConsoleInput(vec![0; 70_000]),
            ToHost::Control(SessionChange::Rate(1.5)),
            ToHost::Stop,
        ];
        let stream: Vec<u8> = sent.iter().flat_map(|m| encode(m).unwrap()).collect();
        for size in [1, 3, 4, 5, 4096, stream.len()] {
            let mut decoder = Decoder::default();
            let mut received = Vec::new();
            for chunk in stream.chunks(size) {
                decoder.push(chunk);
                while let Some(message) = decoder.next_message::<ToHost>().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent, "in chunks of {size}");
        }
    }

    #[test]
    fn memory_of_a_long_message_is_not_kept() {
        let mut decoder = Decoder::default();
        let long = ToHost::ConsoleInput(vec![7; 100_000]);
        let frames = [encode(&long).unwrap(), encode(&ToHost::Stop).unwrap()].concat();
        let (most, rest) = frames.split_at(frames.len() - 1);
        decoder.push(most);
        assert_eq!(decoder.next_message().unwrap(), Some(long));
        assert_eq!(decoder.next_message::<ToHost>().unwrap(), None, "a part of it has come");
        decoder.push(rest);
        assert_eq!(decoder.next_message().unwrap(), Some(ToHost::Stop));
        assert_eq!(decoder.next_message::<ToHost>().unwrap(), None);
        assert!(decoder.bytes.capacity() <= KEPT, "{}", decoder.bytes.capacity());
    }

    #[test]
    fn one_message_is_read_and_the_next_one_stays() {
        let frames =
            [encode(&ToHost::Stop).unwrap(), encode(&ToHost::ConsoleInput(vec![7])).unwrap()].concat();
        let mut stream = &frames[..];
        assert_eq!(read_message(&mut stream).unwrap(), Some(ToHost::Stop));
        assert_eq!(read_message(&mut stream).unwrap(), Some(ToHost::ConsoleInput(vec![7])));
        assert_eq!(read_message::<ToHost>(&mut stream).unwrap(), None);
        assert_eq!(
            read_message::<ToHost>(&mut &frames[..4]).unwrap(),
            None,
            "the process has ended within it"
        );
        assert!(read_message::<ToHost>(&mut &[255, 255, 255, 255, 0][..]).is_err());
    }

    #[test]
    fn hostile_frames_are_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_message::<ToHost>(), Err(FrameError::TooLong(_))));
        let mut decoder = Decoder::default();
        // A vector that claims 2^63 bytes, in a frame of 10.
        decoder.push(&[11, 0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 127, 0]);
        assert!(matches!(decoder.next_message::<ToHost>(), Err(FrameError::Malformed(_))));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 9]);
        assert!(matches!(decoder.next_message::<ToHost>(), Err(FrameError::Malformed(_))));
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        let long = ToHost::ConsoleInput(vec![0; MAX_FRAME]);
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
