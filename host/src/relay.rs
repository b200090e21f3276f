//! The watcher's end of a run in another process: it writes the rows that the process sends, shows the
//! guest's console, and passes on what the user asks for.

use std::io::Write;
use std::time::Duration;

use profile::{Batch, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};

use crate::link::{Link, Phase};
use crate::protocol::{Decoder, FrameError, FromHost, ToHost, encode};
use crate::spec::Outcome;
use crate::stage::Stage;

/// Stage of a run in another process, by the messages so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RunStage {
    /// No message has come yet.
    Silent,
    /// The process prepares the guest.
    Preparing,
    /// The guest runs.
    Guest,
}

/// Longest silence after which the process counts as frozen, by stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SilenceLimits {
    /// Until the first message.
    pub first: Duration,
    /// Until the first sign of the guest.
    pub preparing: Duration,
    /// While the guest runs.
    pub guest: Duration,
}

/// End of a conversation without an outcome.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// Nothing came for this long.
    Silent(Duration),
    /// The process has closed the connection.
    Closed,
    /// It sent an invalid message.
    Protocol(FrameError),
    /// The process is of this other version.
    Version(String),
    /// The run failed in the process.
    Failed(Stage, String),
    /// The run was ended before the guest ran.
    Stopped,
}

/// State of the conversation.
pub(crate) struct Relay {
    pub stage: RunStage,
    /// True once the guest's kernel was found: the guest is past its early boot.
    pub kernel_up: bool,
    sink: Box<dyn Sink>,
    sink_error: Option<String>,
    /// Rows of `meta` that are written with the first message.
    meta: Vec<(String, String)>,
    limits: Option<SilenceLimits>,
    heard: Instant,
}

impl Relay {
    pub(crate) fn new(
        sink: Box<dyn Sink>,
        meta: Vec<(String, String)>,
        limits: Option<SilenceLimits>,
    ) -> Self {
        Self {
            stage: RunStage::Silent,
            kernel_up: false,
            sink,
            sink_error: None,
            meta,
            limits,
            heard: Instant::now(),
        }
    }

    /// Passes messages on in both directions until the process sends the outcome.
    pub(crate) async fn talk(&mut self, mut port: UnixStream, link: &mut Link) -> Result<Outcome, RelayEnd> {
        let (mut reader, mut writer) = port.split();
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; 256 << 10];
        let mut outgoing: Vec<u8> = Vec::new();
        let (mut stopping, mut input_open, mut control_open) = (*link.stop.borrow(), true, true);
        if stopping {
            return Err(RelayEnd::Stopped);
        }
        loop {
            let deadline = self.deadline();
            tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(count) if count > 0 => {
                        self.heard = Instant::now();
                        decoder.push(&buffer[..count]);
                        while let Some(message) = decoder.next_message().map_err(RelayEnd::Protocol)? {
                            if let Some(outcome) = self.handle(message, link)? {
                                return Ok(outcome);
                            }
                        }
                        if self.sink_error.is_some() && !stopping {
                            stopping = true;
                            queue(&mut outgoing, &ToHost::Stop);
                        }
                    }
                    _ => return Err(RelayEnd::Closed),
                },
                written = writer.write(&outgoing), if !outgoing.is_empty() => match written {
                    Ok(count) => drop(outgoing.drain(..count)),
                    Err(_) => outgoing.clear(),
                },
                _ = link.stop.changed(), if !stopping => {
                    stopping = true;
                    if self.stage < RunStage::Guest {
                        return Err(RelayEnd::Stopped);
                    }
                    queue(&mut outgoing, &ToHost::Stop);
                }
                bytes = link.input.recv(), if input_open && outgoing.is_empty() => match bytes {
                    Some(bytes) => queue(&mut outgoing, &ToHost::ConsoleInput(bytes)),
                    None => input_open = false,
                },
                change = link.control.recv(), if control_open => match change {
                    Some(change) => queue(&mut outgoing, &ToHost::Control(change)),
                    None => control_open = false,
                },
                () = until(deadline) => return Err(RelayEnd::Silent(self.heard.elapsed())),
            }
        }
    }

    /// Time at which the process counts as frozen.
    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits?;
        let limit = match self.stage {
            RunStage::Silent => limits.first,
            RunStage::Preparing => limits.preparing,
            RunStage::Guest => limits.guest,
        };
        Some(self.heard + limit)
    }

    /// Handles one message; the last one gives the outcome.
    fn handle(&mut self, message: FromHost, link: &mut Link) -> Result<Option<Outcome>, RelayEnd> {
        match message {
            FromHost::Hello { version, .. } if version != env!("CARGO_PKG_VERSION") => {
                return Err(RelayEnd::Version(version));
            }
            FromHost::Hello { kernel, .. } => {
                self.stage = self.stage.max(RunStage::Preparing);
                link.phase.send_replace(Phase::Preparing("the portable host is up, loading KVM".to_owned()));
                let mut meta = std::mem::take(&mut self.meta);
                meta.push(("host_kernel".to_owned(), kernel));
                self.write(&Batch { meta, ..Batch::default() });
            }
            FromHost::Preparing(what) => {
                self.stage = self.stage.max(RunStage::Preparing);
                link.phase.send_replace(Phase::Preparing(what));
            }
            FromHost::Batch(batch) => self.write(&batch),
            FromHost::Console(bytes) => {
                self.stage = RunStage::Guest;
                // Never fails: the writer drops what does not fit.
                let _written = link.console.write_all(&bytes);
            }
            FromHost::Output(bytes) => {
                // Never fails: the writer drops what does not fit.
                let _written = link.output.write_all(&bytes);
            }
            FromHost::Status(status) => {
                self.stage = RunStage::Guest;
                self.kernel_up |= status.kernel.is_some();
                link.phase.send_replace(Phase::Running(status));
            }
            FromHost::End(outcome) => return Ok(Some(outcome)),
            FromHost::Error { stage, sentence } => return Err(RelayEnd::Failed(stage, sentence)),
        }
        Ok(None)
    }

    /// Writes rows; after an error it writes nothing more.
    pub(crate) fn write(&mut self, batch: &Batch) {
        if self.sink_error.is_none()
            && let Err(error) = self.sink.write(batch)
        {
            self.sink_error = Some(error.to_string());
        }
    }

    /// Ends the profile. Returns the first error of writing it.
    pub(crate) fn finish(mut self) -> Option<String> {
        let finished = self.sink.finish().err().map(|error| error.to_string());
        self.sink_error.or(finished)
    }
}

/// Waits until `deadline`; forever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn queue(outgoing: &mut Vec<u8>, message: &ToHost) {
    // Messages of this direction have a few hundred bytes; none is too long.
    if let Ok(frame) = encode(message) {
        outgoing.extend_from_slice(&frame);
    }
}

#[cfg(test)]
mod tests {
    use profile::SinkError;

    use super::*;

    struct FullDisk;

    impl Sink for FullDisk {
        fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
            Err(SinkError("the disk is full".to_owned()))
        }
    }

    fn relay() -> Relay {
        Relay::new(Box::new(FullDisk), Vec::new(), None)
    }

    #[tokio::test]
    async fn the_first_failure_of_the_sink_is_kept_and_no_more_is_written() {
        let mut relay = relay();
        relay.write(&Batch::default());
        assert_eq!(relay.sink_error.as_deref(), Some("the disk is full"));
        relay.sink_error = Some("first".to_owned());
        relay.write(&Batch::default());
        assert_eq!(relay.finish().as_deref(), Some("first"));
    }

    #[tokio::test]
    async fn another_version_is_refused() {
        let (mut link, _watcher) = crate::link::link();
        let hello = FromHost::Hello { kernel: "6.1".to_owned(), version: "0.0.0-other".to_owned() };
        let refused = relay().handle(hello, &mut link);
        assert!(matches!(refused, Err(RelayEnd::Version(version)) if version == "0.0.0-other"));
    }

    #[tokio::test]
    async fn a_process_that_closes_the_connection_has_ended() {
        let (mut link, _watcher) = crate::link::link();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(matches!(relay().talk(ours, &mut link).await, Err(RelayEnd::Closed)));
    }
}
