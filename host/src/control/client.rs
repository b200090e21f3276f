//! The other end of the socket: one request, one answer; or look after look.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use profile::live::{Snapshot, View};
use serde_json::Value;

use super::ControlError;
use super::place::Found;
use crate::protocol::{About, Reply, Request, read_reply};

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer, bytes: 10,000 rows of each table.
const LONGEST: u64 = 64 << 20;

/// Talks to one run.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Client {
    /// Over this connection.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(found: Found) -> Result<Self, ControlError> {
        let writer = found.stream;
        writer.set_read_timeout(Some(PATIENCE))?;
        writer.set_write_timeout(Some(PATIENCE))?;
        let reader = BufReader::new(writer.try_clone()?);
        Ok(Self { reader, writer })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The run refuses, has ended, or does not answer in time.
    pub fn ask(&mut self, request: &Request) -> Result<Value, ControlError> {
        self.send(request)?;
        loop {
            let reply = self.receive()?;
            match (reply.ok, reply.error) {
                (Some(ok), _) => return Ok(ok),
                (None, Some(sentence)) => return Err(ControlError::Refused(sentence)),
                // A look that was asked for before.
                (None, None) => {}
            }
        }
    }

    /// Asks for the status.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn about(&mut self) -> Result<About, ControlError> {
        read(self.ask(&Request::Status)?)
    }

    /// Asks for the tables as they are.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn tables(&mut self, view: View) -> Result<Snapshot, ControlError> {
        read(self.ask(&Request::Tables { view })?)
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// The run has ended, or takes nothing for too long.
    pub fn send(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        Ok(self.writer.write_all(&line)?)
    }

    /// Receives the next line.
    ///
    /// # Errors
    /// The run has ended ([`ControlError::Ended`]), or nothing came in time.
    pub fn receive(&mut self) -> Result<Reply, ControlError> {
        let mut line = Vec::new();
        let count = self.reader.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Err(ControlError::Ended);
        }
        read_reply(&line).map_err(ControlError::Answer)
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ControlError> {
    serde_json::from_value(value).map_err(ControlError::Answer)
}
