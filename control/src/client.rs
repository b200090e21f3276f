//! The other end of the socket: one request, one answer; or look after look.
//!
//! The answers are those of another program, and not trusted: each has a longest time and a longest size.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use profile::live::{Snapshot, View};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ControlError;
use crate::message::{About, Reply, Request, read_reply};
use crate::place::Found;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer with tables, bytes: 10,000 rows of each table.
const LONGEST_TABLES: usize = 64 << 20;
/// The longest of other answers, bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// Talks to one run.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    patience: Duration,
    /// Received bytes that belong to no line yet that was returned.
    received: Vec<u8>,
    chunk: Box<[u8]>,
}

impl Client {
    /// Over this connection.
    ///
    /// # Errors
    /// The socket takes no time limit.
    pub fn new(found: Found) -> Result<Self, ControlError> {
        let stream = found.stream;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, patience: PATIENCE, received: Vec::new(), chunk: vec![0; CHUNK].into() })
    }

    /// Waits longer for each answer.
    #[must_use]
    pub fn with_more_patience(self, more: Duration) -> Self {
        Self { patience: PATIENCE.saturating_add(more), ..self }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The run refuses, has ended, or does not answer in time.
    pub fn ask(&mut self, request: &Request) -> Result<Value, ControlError> {
        self.ask_for(request, LONGEST_ANSWER)
    }

    /// Asks for the status.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn about(&mut self) -> Result<About, ControlError> {
        self.ask_for(&Request::Status, LONGEST_ANSWER)
    }

    /// Asks for the tables as they are.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn tables(&mut self, view: View) -> Result<Snapshot, ControlError> {
        self.ask_for(&Request::Tables { view }, LONGEST_TABLES)
    }

    fn ask_for<T: DeserializeOwned>(&mut self, request: &Request, longest: usize) -> Result<T, ControlError> {
        self.send(request)?;
        let deadline = Instant::now() + self.patience;
        loop {
            let reply: Reply<T> = self.receive_until(deadline, longest)?;
            match (reply.ok, reply.error) {
                (Some(ok), _) => return Ok(ok),
                (None, Some(sentence)) => return Err(ControlError::Refused(sentence)),
                // A look that was asked for before.
                (None, None) => {}
            }
        }
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// The run has ended, or takes nothing for too long.
    pub fn send(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        match self.stream.write_all(&line) {
            Err(error) if is_timeout(&error) => Err(ControlError::Silent(PATIENCE)),
            written => Ok(written?),
        }
    }

    /// Receives the next line.
    ///
    /// # Errors
    /// The run has ended ([`ControlError::Ended`]), or nothing came in time.
    pub fn receive(&mut self) -> Result<Reply, ControlError> {
        self.receive_until(Instant::now() + self.patience, LONGEST_TABLES)
    }

    fn receive_until<T: DeserializeOwned>(
        &mut self,
        deadline: Instant,
        longest: usize,
    ) -> Result<Reply<T>, ControlError> {
        let mut searched = 0;
        loop {
            let new = self.received.get(searched..).unwrap_or_default();
            if let Some(end) = new.iter().position(|byte| *byte == b'\n').map(|at| searched + at) {
                if end > longest {
                    return Err(ControlError::LongAnswer(longest));
                }
                let reply = read_reply(self.received.get(..end).unwrap_or_default());
                self.received.drain(..=end);
                return reply.map_err(ControlError::Answer);
            }
            searched = self.received.len();
            if searched > longest {
                return Err(ControlError::LongAnswer(longest));
            }
            if self.fill(deadline)? == 0 {
                return Err(ControlError::Ended);
            }
        }
    }

    /// Receives some bytes; returns their number, 0 at the end.
    fn fill(&mut self, deadline: Instant) -> Result<usize, ControlError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ControlError::Silent(self.patience));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut self.chunk) {
                Ok(count) => {
                    self.received.extend_from_slice(self.chunk.get(..count).unwrap_or_default());
                    return Ok(count);
                }
                Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                // It has closed the connection with a request unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns true for the error of a time limit of a socket (socket(7), SO_RCVTIMEO).
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use super::*;

    /// A client of a server that writes these bytes again and again, with pauses, until the client is gone.
    fn client_of(bytes: &'static [u8], pause: Duration) -> (Client, JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut asked = [0; 1_000];
            assert!(theirs.read(&mut asked).unwrap() > 0);
            while theirs.write_all(bytes).is_ok() {
                std::thread::sleep(pause);
            }
        });
        let client = Client::new(Found { socket: PathBuf::new(), stream: ours }).unwrap();
        (Client { patience: Duration::from_millis(300), ..client }, server)
    }

    #[test]
    fn an_answer_without_an_end_is_given_up() {
        // A server that never stops, one that sends a byte now and then, and one that says something else.
        for (bytes, pause) in [(&b" "[..], Duration::from_millis(10)), (b"", Duration::from_millis(10))] {
            let (mut client, server) = client_of(bytes, pause);
            let begun = Instant::now();
            assert!(matches!(client.about(), Err(ControlError::Silent(_))));
            assert!(begun.elapsed() < PATIENCE);
            drop(client);
            if !bytes.is_empty() {
                server.join().unwrap();
            }
        }
        let (mut client, server) = client_of(b"{}\n", Duration::from_millis(1));
        assert!(matches!(client.ask(&Request::End), Err(ControlError::Silent(_))));
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory() {
        let (client, server) = client_of(&[b'['; CHUNK], Duration::ZERO);
        let mut client = client.with_more_patience(Duration::ZERO);
        assert!(matches!(client.about(), Err(ControlError::LongAnswer(LONGEST_ANSWER))));
        assert!(client.received.len() <= LONGEST_ANSWER + CHUNK);
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn other_types_are_a_sentence_on_one_line() {
        let long = format!("{{\"ok\":{{\"version\":[\"{}\"]}}}}\n", "x".repeat(10_000));
        let long: &'static [u8] = Box::leak(long.into_bytes().into());
        for bytes in [
            &b"nonsense\n"[..],
            b"[1,2]\n",
            b"{\"ok\":{\"pid\":\"\x1b[2J\"}}\n",
            b"{\"ok\":7}\n",
            b"{\"error\":7}\n",
            b"{\"ok\":{\"version\":\"\xff\"}}\n",
            long,
        ] {
            let (mut client, server) = client_of(bytes, Duration::from_millis(1));
            let error = client.about().unwrap_err();
            assert!(matches!(error, ControlError::Answer(_)), "{error}");
            let sentence = error.to_string();
            assert!(sentence.len() < 400 && !sentence.chars().any(char::is_control), "{sentence}");
            drop(client);
            server.join().unwrap();
        }
    }

    #[test]
    fn lines_that_come_together_are_taken_one_by_one() {
        let (mut client, server) = client_of(b"{\"snapshot\":null}\n{\"ok\":{\"a\":1}}\n{\"err", PATIENCE);
        assert_eq!(client.ask(&Request::Write).unwrap()["a"], 1);
        assert_eq!(client.received, b"{\"err");
        drop((client, server));
    }
}
