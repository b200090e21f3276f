//! A bounded stream that can be read before it is taken.

use std::io::{self, BufRead, Read};

/// Bytes that are read at once.
const BLOCK: usize = 64 << 10;

/// A stream of at most so many bytes.
pub(super) struct StreamInput<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    taken: u64,
    left: u64,
}

impl<R: Read> StreamInput<R> {
    /// Returns a stream of which at most `most` bytes are read.
    pub(super) fn new(reader: R, most: u64) -> Self {
        Self { reader, buffer: vec![0; BLOCK].into(), start: 0, end: 0, taken: 0, left: most }
    }

    /// Returns the bytes taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// True when all bytes that may be read were read.
    pub(super) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Returns the next `count` bytes without taking them; fewer at the end. `count` is at most 64 KiB.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < count && self.fill()? > 0 {}
        let end = self.end.min(self.start.saturating_add(count));
        Ok(self.buffer.get(self.start..end).unwrap_or_default())
    }

    /// Reads more after the present bytes; returns 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let most = room.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let room = room.get_mut(..most).unwrap_or_default();
        loop {
            match self.reader.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    let count = count.min(most);
                    self.end += count;
                    self.left -= count as u64;
                    return Ok(count);
                }
            }
        }
    }

    /// Takes `count` bytes and passes them to `each`, part by part; returns their number.
    pub(super) fn take_each(
        &mut self,
        count: u64,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut done = 0;
        while done < count {
            let part = self.fill_buf()?;
            let part = part.get(..usize::try_from(count - done).unwrap_or(usize::MAX)).unwrap_or(part);
            if part.is_empty() {
                break;
            }
            each(part)?;
            let len = part.len();
            self.consume(len);
            done += len as u64;
        }
        Ok(done)
    }
}

impl<R: Read> Read for StreamInput<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(into.len());
        if let (Some(from), Some(into)) = (from.get(..count), into.get_mut(..count)) {
            into.copy_from_slice(from);
        }
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for StreamInput<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)?;
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        let amount = amount.min(self.end - self.start);
        self.start += amount;
        self.taken += amount as u64;
    }
}
