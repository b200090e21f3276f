//! Frames over a stream socket, each after its length in four bytes, the highest first: the protocol of
//! QEMU's `stream` netdev and passt (passt(1), `--fd`).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::Backend;

/// Longer than any frame: lengths beyond it mean that the other end speaks something else.
const LONGEST: usize = 64 << 10;
/// Bytes before a frame.
const LENGTH: usize = 4;
/// Time limit for the other end to read the rest of a frame of which it has read a part.
const PATIENCE: Duration = Duration::from_secs(1);

/// End of a stream socket.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    /// Received bytes that are not a whole frame, or not yet taken: `start..end` of the buffer.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    outgoing: Vec<u8>,
}

impl Stream {
    /// Takes the socket over.
    ///
    /// # Errors
    /// It can't be made non-blocking.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let buffer = vec![0; LENGTH + LONGEST];
        Ok(Self { socket, buffer, start: 0, end: 0, outgoing: Vec::new() })
    }

    /// Takes a whole frame out of the buffer.
    fn take(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let waiting = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((length, rest)) = waiting.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        for (to, from) in into.iter_mut().zip(frame) {
            *to = *from;
        }
        self.start += LENGTH + length;
        Ok(Some(length))
    }

    /// Waits until the socket takes more.
    fn wait_for_room(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut socket = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        let left = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the pointer is valid for the one entry.
        match unsafe { libc::poll(&raw mut socket, 1, left) } {
            0 => Err(io::ErrorKind::TimedOut.into()),
            // A failed poll is tried again until the deadline.
            _ => Ok(()),
        }
    }
}

impl Backend for Stream {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if let Some(length) = self.take(into)? {
                return Ok(Some(length));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            // There is room: a whole frame would have been taken.
            match self.socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        self.outgoing.clear();
        self.outgoing.extend(length.to_be_bytes());
        self.outgoing.extend(frame);
        let deadline = Instant::now() + PATIENCE;
        let mut sent = 0;
        while let Some(rest) = self.outgoing.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing of it is on its way: it is lost as a whole.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent == 0 => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(deadline)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::new(ours).unwrap(), theirs)
    }

    fn framed(frame: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(frame);
        bytes
    }

    #[test]
    fn frames_leave_behind_their_length() {
        let (mut stream, mut other) = pair();
        stream.send(b"abc").unwrap();
        stream.send(b"").unwrap();
        let mut bytes = [0; 11];
        other.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0\x03abc\0\0\0\0");
    }

    #[test]
    fn an_end_that_does_not_read_costs_frames_and_nothing_else() {
        let (mut stream, mut other) = pair();
        let frame = [7; 1500];
        (0..10_000).for_each(|_| stream.send(&frame).unwrap());
        other.set_nonblocking(true).unwrap();
        let mut bytes = Vec::new();
        let ended = other.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::WouldBlock);
        assert!(bytes.len() < 10_000 * 1504, "some were lost");
        assert!(bytes.len().is_multiple_of(1504), "none in part");
        stream.send(&frame).unwrap();
    }

    #[test]
    fn an_end_that_is_gone_or_speaks_something_else_is_an_error() {
        let (mut stream, other) = pair();
        drop(other);
        assert!(stream.receive(&mut [0; 64]).is_err());
        assert!(stream.send(b"abc").is_err());
        let (mut stream, mut other) = pair();
        other.write_all(b"HTTP/1.1 400").unwrap();
        assert!(stream.receive(&mut [0; 64]).is_err());
    }

    proptest! {
        #[test]
        fn frames_arrive_whole_however_they_are_cut(
            lengths in proptest::collection::vec(0..3000usize, 1..20),
            cuts in proptest::collection::vec(1..4000usize, 1..20),
        ) {
            let (mut stream, mut other) = pair();
            let frames: Vec<Vec<u8>> = lengths.iter().map(|n| (0..*n).map(|i| i.to_le_bytes()[0]).collect()).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
            let mut seen = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                other.write_all(now).unwrap();
                rest = later;
                let mut frame = [0; 4096];
                while let Some(length) = stream.receive(&mut frame).unwrap() {
                    seen.push(frame[..length].to_vec());
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, frames);
        }
    }
}
