//! A run in another process, over its control socket.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use host::ControlError;
use host::control::viewer::{self, Viewer};
use host::protocol::Request;
use profile::live::View;
use text::clean::escaped;
use text::message::Reason;

use super::steer::{Command, Event, Run};
use crate::errors::Error;

/// The connection.
#[derive(Debug)]
pub struct Remote {
    viewer: Viewer,
    every_ms: u64,
}

impl Remote {
    /// Begins to look.
    pub async fn new(stream: UnixStream, view: View, every: Duration) -> Result<Self, Error> {
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        let mut remote = Self { viewer: Viewer::new(stream)?, every_ms };
        remote.send(Command::View(view)).await?;
        Ok(remote)
    }
}

impl Run for Remote {
    async fn next(&mut self) -> Event {
        match self.viewer.next().await {
            Ok(viewer::Event::Look(look)) => Event::Look(look),
            Ok(viewer::Event::Refused(sentence)) => Event::Told(escaped(&sentence).into_owned()),
            Ok(viewer::Event::Ended) => Event::Ended("the run has ended".to_owned()),
            Err(ControlError::Talk(error)) => {
                Event::Ended(format!("the run cannot be heard: {}", Reason(&error)))
            }
            Err(error) => Event::Ended(error.to_string()),
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
        Ok(self.viewer.send(&request).await?)
    }
}

#[cfg(test)]
mod tests {
    use profile::live::{Snapshot, Span};
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn looks_and_refusals_come_until_the_end() {
        let (own, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut far = tokio::net::UnixStream::from_std(far).unwrap();
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
