//! The other end of the socket: one request, one answer; or look after look.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use profile::live::{Snapshot, View};
use serde_json::Value;

use super::place::Found;
use super::protocol::{About, Reply, Request};
use crate::errors::Error;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer, bytes: 10,000 rows of each table.
const LONGEST: u64 = 64 << 20;

/// Talks to one run.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

fn lost(source: io::Error) -> Error {
    Error::System { action: "talk to the run", source }
}

impl Client {
    /// Over this connection.
    pub fn new(found: Found) -> Result<Self, Error> {
        let writer = found.stream;
        writer
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| writer.set_write_timeout(Some(PATIENCE)))
            .map_err(lost)?;
        let reader = BufReader::new(writer.try_clone().map_err(lost)?);
        Ok(Self { reader, writer })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Value, Error> {
        self.say(request)?;
        loop {
            let reply = self.hear()?;
            match (reply.ok, reply.error) {
                (Some(ok), _) => return Ok(ok),
                (None, Some(sentence)) => {
                    return Err(Error::Control(text::clean::escaped(&sentence).into_owned()));
                }
                // A look that was asked for before.
                (None, None) => {}
            }
        }
    }

    /// Where the run stands.
    pub fn about(&mut self) -> Result<About, Error> {
        read(self.ask(&Request::Status)?)
    }

    /// The tables as they are.
    pub fn tables(&mut self, view: View) -> Result<Snapshot, Error> {
        read(self.ask(&Request::Tables { view })?)
    }

    /// Sends a request without waiting for its answer.
    pub fn say(&mut self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).map_err(|error| lost(error.into()))?;
        line.push(b'\n');
        self.writer.write_all(&line).map_err(lost)
    }

    /// The next line.
    ///
    /// # Errors
    /// The run has ended, which is told apart by [`io::ErrorKind::UnexpectedEof`], or nothing came in time.
    pub fn hear(&mut self) -> Result<Reply, Error> {
        let mut line = Vec::new();
        let count = self.reader.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(lost)?;
        if count == 0 {
            return Err(lost(io::Error::new(io::ErrorKind::UnexpectedEof, "the run has ended")));
        }
        serde_json::from_slice(&line).map_err(|error| lost(error.into()))
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value)
        .map_err(|error| Error::Control(format!("the run's answer is not understood: {error}")))
}
