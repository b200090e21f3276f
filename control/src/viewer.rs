//! Client of the socket for a program that takes one snapshot after the other, and waits for other things.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use profile::live::Snapshot;
use serde::de::IgnoredAny;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::ControlError;
use crate::message::{Reply, Request, read_reply};

/// The longest line that is taken, bytes: many times 200 rows of each table.
const LONGEST: usize = 16 << 20;

/// Time limit of a request: it fits into the socket's buffer unless the run has taken nothing for long.
const PATIENCE: Duration = Duration::from_secs(5);

/// News of the run.
#[derive(Debug)]
pub enum Event {
    /// Its tables.
    Snapshot(Box<Snapshot>),
    /// It refused something; its own sentence.
    Refused(String),
    /// It has ended.
    Ended,
}

/// A connection.
#[derive(Debug)]
pub struct Viewer {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// Result of reading the next line.
    line: Vec<u8>,
}

impl Viewer {
    /// Over this connection.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn new(stream: StdStream) -> Result<Self, ControlError> {
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        Ok(Self { reader: BufReader::new(reader), writer, line: Vec::new() })
    }

    /// Waits for news. No line is lost where this is dropped.
    ///
    /// # Errors
    /// The connection failed, or what came is not a reply.
    pub async fn next(&mut self) -> Result<Event, ControlError> {
        loop {
            let line = self.read().await?;
            if line.is_empty() {
                return Ok(Event::Ended);
            }
            match read_reply::<IgnoredAny>(&line).map_err(ControlError::Answer)? {
                Reply { snapshot: Some(snapshot), .. } => return Ok(Event::Snapshot(snapshot)),
                Reply { error: Some(sentence), .. } => return Ok(Event::Refused(sentence)),
                // Done.
                _ => {}
            }
        }
    }

    /// The next line, empty at the end.
    async fn read(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let room = LONGEST.saturating_sub(self.line.len()) as u64;
            let count = (&mut self.reader).take(room).read_until(b'\n', &mut self.line).await?;
            match self.line.last() {
                Some(b'\n') => return Ok(std::mem::take(&mut self.line)),
                _ if self.line.len() >= LONGEST => return Err(io::Error::other("a line is too long")),
                _ if count == 0 => return Ok(Vec::new()),
                _ => {}
            }
        }
    }

    /// Sends a request. That the run has ended is not an error: [`Self::next`] reports it.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn send(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        let Ok(written) = tokio::time::timeout(PATIENCE, self.writer.write_all(&line)).await else {
            return Err(ControlError::Silent(PATIENCE));
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            done => Ok(done?),
        }
    }
}
