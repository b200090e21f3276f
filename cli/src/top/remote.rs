//! A run in another process, over its control socket.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use profile::live::View;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::steer::{Command, Event, Run};
use crate::control::protocol::{Reply, Request};
use crate::errors::Error;
use text::clean::escaped;
use text::message::Reason;

/// The longest line that is taken, bytes: many times 200 rows of each table.
const LONGEST: usize = 16 << 20;

/// The connection.
#[derive(Debug)]
pub struct Remote {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// What has come of the next line.
    line: Vec<u8>,
    every_ms: u64,
}

fn lost(source: io::Error) -> Error {
    Error::System { action: "talk to the run", source }
}

impl Remote {
    /// Begins to look.
    pub async fn new(stream: StdStream, view: View, every: Duration) -> Result<Self, Error> {
        stream.set_nonblocking(true).map_err(lost)?;
        let (reader, writer) = UnixStream::from_std(stream).map_err(lost)?.into_split();
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        let mut remote = Self { reader: BufReader::new(reader), writer, line: Vec::new(), every_ms };
        remote.send(Command::View(view)).await?;
        Ok(remote)
    }

    /// The next line, without a copy of it being lost where this is dropped; empty at the end.
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

    async fn say(&mut self, request: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.writer.write_all(&line).await
    }
}

impl Run for Remote {
    async fn next(&mut self) -> Event {
        loop {
            let line = match self.read().await {
                Ok(line) if line.is_empty() => return Event::Ended("the run has ended".to_owned()),
                Ok(line) => line,
                Err(error) => return Event::Ended(format!("the run cannot be heard: {}", Reason(&error))),
            };
            match serde_json::from_slice(&line) {
                Ok(Reply { snapshot: Some(look), .. }) => return Event::Look(look),
                Ok(Reply { error: Some(sentence), .. }) => {
                    return Event::Told(escaped(&sentence).into_owned());
                }
                // Done.
                Ok(_) => {}
                Err(error) => return Event::Ended(format!("the run's answer is not understood: {error}")),
            }
        }
    }

    async fn send(&mut self, command: Command) -> Result<(), Error> {
        let request = match command {
            Command::View(view) => Request::Watch { view, every_ms: self.every_ms },
            Command::Start => Request::Start { when: None },
            Command::Stop => Request::Stop { when: None, then: None },
            Command::Rate(hz) => Request::Rate { hz },
            Command::Mark(text) => Request::Mark { text },
            Command::End => Request::End,
        };
        match self.say(&request).await {
            // That it has ended is what it tells next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use profile::live::{Snapshot, Span};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn looks_and_refusals_come_until_the_end() {
        let (own, far) = StdStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut far = UnixStream::from_std(far).unwrap();
        let view = View { span: Span::Run, rows: 3 };
        let mut remote = Remote::new(own, view, Duration::from_millis(250)).await.unwrap();
        remote.send(Command::Mark("here".to_owned())).await.unwrap();
        let (reader, mut writer) = far.split();
        let mut asked = BufReader::new(reader).lines();
        let watch = asked.next_line().await.unwrap().unwrap();
        assert_eq!(watch, r#"{"do":"watch","view":{"span":"run","rows":3},"every_ms":250}"#);
        assert_eq!(asked.next_line().await.unwrap().unwrap(), r#"{"do":"mark","text":"here"}"#);
        let look = Snapshot { time_s: 2.5, ..Snapshot::default() };
        let lines =
            format!("{{\"ok\":{{}}}}\n{}\n{{\"error\":\"bu\\u001bsy\"}}\n", json!({ "snapshot": look }));
        let (first, second) = lines.split_at(30);
        writer.write_all(first.as_bytes()).await.unwrap();
        // What came before it was dropped is not lost.
        let waited = tokio::time::timeout(Duration::ZERO, remote.next()).await;
        assert!(waited.is_err());
        writer.write_all(second.as_bytes()).await.unwrap();
        assert_eq!(remote.next().await, Event::Look(Box::new(look)));
        assert_eq!(remote.next().await, Event::Told("bu\\x1bsy".to_owned()));
        writer.write_all(b"{\n").await.unwrap();
        assert!(matches!(remote.next().await, Event::Ended(why) if why.contains("not understood")));
        drop(asked);
        drop(far);
        assert_eq!(remote.next().await, Event::Ended("the run has ended".to_owned()));
        remote.send(Command::End).await.unwrap();
    }
}
