//! A run in another process, over its control socket.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use control::ControlError;
use control::message::Request;
use control::viewer::{self, Viewer};
use display::clean::escaped;
use display::message::Reason;
use profile::live::View;

use tui::live::control::{RunCommand, RunEvent, WatchedRun};

use crate::errors::Error;

/// Connection to a run.
#[derive(Debug)]
pub struct RemoteRun {
    viewer: Viewer,
    every_ms: u64,
}

impl RemoteRun {
    /// Connects, and requests snapshots, the first one with the vCPUs' history.
    pub async fn new(stream: UnixStream, mut view: View, every: Duration) -> Result<Self, Error> {
        view.history_s = Some(every.as_secs_f64());
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        let mut remote = Self { viewer: Viewer::new(stream)?, every_ms };
        remote.send(RunCommand::View(view)).await?;
        Ok(remote)
    }
}

impl WatchedRun for RemoteRun {
    type Error = Error;

    async fn next(&mut self) -> RunEvent {
        match self.viewer.next().await {
            Ok(viewer::Event::Snapshot(snapshot)) => RunEvent::Snapshot(snapshot),
            Ok(viewer::Event::Refused(sentence)) => RunEvent::Message(escaped(&sentence).into_owned()),
            Ok(viewer::Event::Ended) => RunEvent::Ended("the run has ended".to_owned()),
            Err(ControlError::Talk(error)) => {
                RunEvent::Ended(format!("the connection to the run failed: {}", Reason(&error)))
            }
            Err(error) => RunEvent::Ended(error.to_string()),
        }
    }

    async fn send(&mut self, command: RunCommand) -> Result<(), Error> {
        let request = match command {
            RunCommand::View(view) => Request::Watch { view, every_ms: self.every_ms },
            RunCommand::Start => Request::Start { when: None },
            RunCommand::Stop => Request::Stop { when: None, then: None },
            RunCommand::Rate(hz) => Request::Rate { hz },
            RunCommand::Mark(text) => Request::Mark { text },
            RunCommand::End => Request::End,
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
    async fn snapshots_and_refusals_come_until_the_end() {
        let (own, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut far = tokio::net::UnixStream::from_std(far).unwrap();
        let view = View { span: Span::Run, rows: 3, ..View::default() };
        let mut remote = RemoteRun::new(own, view, Duration::from_millis(250)).await.unwrap();
        remote.send(RunCommand::Mark("here".to_owned())).await.unwrap();
        let (reader, mut writer) = far.split();
        let mut requests = BufReader::new(reader).lines();
        let watch = requests.next_line().await.unwrap().unwrap();
        assert_eq!(watch, r#"{"do":"watch","view":{"span":"run","rows":3,"history_s":0.25},"every_ms":250}"#);
        assert_eq!(requests.next_line().await.unwrap().unwrap(), r#"{"do":"mark","text":"here"}"#);
        let snapshot = Snapshot { time_s: 2.5, ..Snapshot::default() };
        let lines =
            format!("{{\"ok\":{{}}}}\n{}\n{{\"error\":\"bu\\u001bsy\"}}\n", json!({ "snapshot": snapshot }));
        let (first, second) = lines.split_at(30);
        writer.write_all(first.as_bytes()).await.unwrap();
        // Bytes that came before the future was dropped are not lost.
        let waited = tokio::time::timeout(Duration::ZERO, remote.next()).await;
        assert!(waited.is_err());
        writer.write_all(second.as_bytes()).await.unwrap();
        assert_eq!(remote.next().await, RunEvent::Snapshot(Box::new(snapshot)));
        assert_eq!(remote.next().await, RunEvent::Message("bu\\x1bsy".to_owned()));
        writer.write_all(b"{\n").await.unwrap();
        assert!(matches!(remote.next().await, RunEvent::Ended(reason) if reason.contains("not understood")));
        drop(requests);
        drop(far);
        assert_eq!(remote.next().await, RunEvent::Ended("the run has ended".to_owned()));
        remote.send(RunCommand::End).await.unwrap();
    }
}
