//! The watcher's end of a run in another process: it writes the rows that the process sends, shows the
//! guest's console, and passes on what the user asks for.

use std::io::Write;
use std::time::Duration;

use display::units;
use profile::{Batch, Sink};
use sampler::STANDSTILL;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};

use crate::link::Link;
use crate::protocol::{Decoder, FrameError, FromHost, ToHost, encode};
use crate::spec::Outcome;
use crate::stage::Stage;
use control::Phase;

/// Lead of the process's clock over this one's that shows that it has jumped: more than rows are ever
/// delayed.
const CLOCK_LEAD: Duration = Duration::from_secs(10);
/// Bytes that are read at once. A host may have many processes that each keep such a buffer.
const READ: usize = 4 << 10;

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

/// Facts about a run, by the messages so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunFacts {
    pub stage: RunStage,
    /// True once a sample was written after the guest's kernel was found.
    pub measured: bool,
    /// Length of the run by the clock of its process, ns.
    pub run_ns: u64,
}

impl RunFacts {
    /// Returns the length of the run.
    pub(crate) fn ran(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }
}

/// Longest time without progress after which the process counts as frozen, by stage. A process with limits
/// runs in an emulated host, whose faults end the conversation.
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
    /// The guest or its recorder makes no progress, with the sign of it.
    Stalled(String),
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
    facts: RunFacts,
    /// True once the guest's kernel was found: the guest is past its early boot.
    kernel_up: bool,
    /// The first batch: its time, and the length of the run then, ns.
    begun: Option<(Instant, u64)>,
    /// Sign of a standstill.
    standstill: Option<String>,
    sink: Box<dyn Sink>,
    sink_error: Option<String>,
    /// Rows that are written with the first message.
    first: Batch,
    limits: Option<SilenceLimits>,
    /// Time of the last bytes.
    heard: Instant,
    /// Time of the last message that shows progress. A process may answer for ever whose recorder is stuck.
    progressed: Instant,
}

impl Relay {
    pub(crate) fn new(sink: Box<dyn Sink>, first: Batch, limits: Option<SilenceLimits>) -> Self {
        Self {
            facts: RunFacts { stage: RunStage::Silent, measured: false, run_ns: 0 },
            kernel_up: false,
            begun: None,
            standstill: None,
            sink,
            sink_error: None,
            first,
            limits,
            heard: Instant::now(),
            progressed: Instant::now(),
        }
    }

    /// Returns the facts so far.
    pub(crate) fn facts(&self) -> RunFacts {
        self.facts
    }

    /// Passes messages on in both directions until the process sends the outcome.
    pub(crate) async fn talk(&mut self, mut port: UnixStream, link: &mut Link) -> Result<Outcome, RelayEnd> {
        let (mut reader, mut writer) = port.split();
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; READ];
        let mut outgoing: Vec<u8> = Vec::new();
        let (mut stopping, mut input_open, mut control_open) = (*link.stop.borrow(), true, true);
        if stopping {
            return Err(RelayEnd::Stopped);
        }
        // Output of another process, before the host began again.
        let before = [0, 1].map(|stream: usize| link.output[stream].written());
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
                            if let Some(sign) = self.standstill.take() {
                                return Err(RelayEnd::Stalled(sign));
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
                    if self.facts.stage < RunStage::Guest {
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
                Ok(()) = link.read.changed(), if outgoing.is_empty() => {
                    let read = *link.read.borrow_and_update();
                    let read = [0, 1].map(|stream: usize| read[stream].saturating_sub(before[stream]));
                    queue(&mut outgoing, &ToHost::OutputRead(read));
                }
                () = until(deadline) => return Err(self.stuck()),
            }
        }
    }

    /// Time at which the process counts as frozen.
    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits?;
        let limit = match self.facts.stage {
            RunStage::Silent => limits.first,
            RunStage::Preparing => limits.preparing,
            RunStage::Guest => limits.guest,
        };
        Some(self.progressed + limit)
    }

    /// Returns the end of a process that made no progress for too long.
    fn stuck(&self) -> RelayEnd {
        let stuck = self.progressed.elapsed();
        if self.heard.elapsed() > stuck / 2 {
            return RelayEnd::Silent(stuck);
        }
        RelayEnd::Stalled(format!("it answers, but has recorded nothing for {}", units::duration(stuck)))
    }

    /// Notes the facts of a batch about the run.
    fn note(&mut self, batch: &Batch) {
        // A batch that has the kernel may have samples from before.
        self.facts.measured |= self.kernel_up && !batch.samples.is_empty();
        self.kernel_up |= batch.meta.iter().any(|(key, _)| key == "kernel");
        let run_ns = batch.meta.iter().filter(|(key, _)| key == "duration_ns");
        self.facts.run_ns = run_ns.filter_map(|(_, ns)| ns.parse().ok()).fold(self.facts.run_ns, u64::max);
        let standstill = batch.events.iter().find(|event| event.kind == STANDSTILL);
        let sign = standstill.map(|event| event.text.clone()).or_else(|| self.clock_jump(Instant::now()));
        self.standstill = sign.filter(|_| self.limits.is_some());
    }

    /// Returns a sentence if the clock of the process has jumped since the first batch.
    fn clock_jump(&mut self, now: Instant) -> Option<String> {
        let (begun, before_ns) = *self.begun.get_or_insert((now, self.facts.run_ns));
        let by_process = Duration::from_nanos(self.facts.run_ns.saturating_sub(before_ns));
        let lead = by_process.saturating_sub(now.saturating_duration_since(begun));
        (lead >= CLOCK_LEAD).then(|| format!("its clock has jumped by {}", units::duration(lead)))
    }

    /// Handles one message; the last one gives the outcome.
    fn handle(&mut self, message: FromHost, link: &mut Link) -> Result<Option<Outcome>, RelayEnd> {
        // The recorder sends rows several times a second, whatever the guest does; answers come from another
        // thread.
        if !matches!(message, FromHost::Status(_) | FromHost::Console(_) | FromHost::Output(..)) {
            self.progressed = Instant::now();
        }
        match message {
            FromHost::Hello { version, .. } if version != env!("CARGO_PKG_VERSION") => {
                return Err(RelayEnd::Version(version));
            }
            FromHost::Hello { kernel, .. } => {
                self.facts.stage = self.facts.stage.max(RunStage::Preparing);
                link.phase.send_replace(Phase::Preparing("the portable host is up, loading KVM".to_owned()));
                let mut first = std::mem::take(&mut self.first);
                first.meta.push(("host_kernel".to_owned(), kernel));
                self.write(&first);
            }
            FromHost::Preparing(what) => {
                self.facts.stage = self.facts.stage.max(RunStage::Preparing);
                link.phase.send_replace(Phase::Preparing(what));
            }
            FromHost::Batch(batch) => {
                self.note(&batch);
                self.write(&batch);
            }
            FromHost::Console(bytes) => {
                self.facts.stage = RunStage::Guest;
                // Never fails: the writer drops what does not fit.
                let _written = link.console.write_all(&bytes);
            }
            FromHost::Output(stream, bytes) => {
                // Never fails: the writer drops what does not fit.
                let _written = link.output[stream.index()].write_all(&bytes);
            }
            FromHost::Status(status) => {
                self.facts.stage = RunStage::Guest;
                self.kernel_up |= status.kernel.is_some();
                link.phase.send_replace(Phase::Running(status));
            }
            FromHost::Note(sentence) => {
                // Fails once nobody listens.
                let _ended = link.notes.send(display::clean::escaped(&sentence).into_owned());
            }
            FromHost::Report(report) => {
                if self.sink_error.is_none() {
                    self.sink_error = self.sink.report(&report).err().map(|error| error.to_string());
                }
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
    use crate::protocol::OutputStream;

    struct FullDisk;

    impl Sink for FullDisk {
        fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
            Err(SinkError("the disk is full".to_owned()))
        }
    }

    fn relay() -> Relay {
        Relay::new(Box::new(FullDisk), Batch::default(), None)
    }

    /// The relay of an emulated host whose guest runs.
    fn emulated(silence: Duration) -> Relay {
        let limits = SilenceLimits { first: silence, preparing: silence, guest: silence };
        let mut relay = Relay::new(Box::new(FullDisk), Batch::default(), Some(limits));
        relay.facts.stage = RunStage::Guest;
        relay
    }

    /// A batch of a run that is this long, with samples or without.
    fn batch(seconds: u64, samples: usize, kernel: bool) -> Batch {
        let mut batch = Batch::default();
        batch.meta.push(("duration_ns".to_owned(), (seconds * 1_000_000_000).to_string()));
        if kernel {
            batch.meta.push(("kernel".to_owned(), "6.1".to_owned()));
        }
        batch.samples = (0..samples).map(|_| profile::rows::SampleRow::default()).collect();
        batch
    }

    #[test]
    fn samples_are_measured_once_the_kernel_is_known() {
        let mut relay = relay();
        relay.note(&batch(1, 5, false));
        relay.note(&batch(2, 5, true));
        assert!(!relay.facts().measured, "the early boot is the same each time");
        // Before --start-when is met there are none.
        relay.note(&batch(3, 0, false));
        assert!(!relay.facts().measured);
        relay.note(&batch(4, 1, false));
        assert!(relay.facts().measured);
        assert_eq!(relay.facts().ran(), Duration::from_secs(4));
    }

    #[test]
    fn a_clock_that_jumps_is_a_fault() {
        let mut relay = relay();
        let begun = Instant::now();
        let mut jump = |after: u64, run: u64| {
            relay.facts.run_ns = run * 1_000_000_000;
            relay.clock_jump(begun + Duration::from_secs(after))
        };
        assert_eq!(jump(0, 2), None);
        assert_eq!(jump(30, 32), None);
        // Rows may be late, and come all at once.
        assert_eq!(jump(60, 40), None);
        assert_eq!(jump(62, 64), None);
        assert_eq!(jump(95, 735).as_deref(), Some("its clock has jumped by 10 min 38 s"));
    }

    #[tokio::test]
    async fn a_host_that_answers_and_records_nothing_is_stalled() {
        let (mut link, _watcher) = crate::link::link();
        let (ours, mut inner) = UnixStream::pair().unwrap();
        let answers = tokio::spawn(async move {
            loop {
                let status = FromHost::Status(profile::session::SessionStatus::default());
                if inner.write_all(&encode(&status).unwrap()).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let mut relay = emulated(Duration::from_millis(300));
        let talk = relay.talk(ours, &mut link);
        let ended = tokio::time::timeout(Duration::from_secs(20), talk).await.expect("an end");
        assert!(
            matches!(&ended, Err(RelayEnd::Stalled(sign)) if sign.starts_with("it answers")),
            "{ended:?}"
        );
        answers.abort();
    }

    #[tokio::test]
    async fn a_standstill_in_the_rows_ends_the_conversation_of_an_emulated_host() {
        let text = "vCPU 0 had no ticks for 10 s".to_owned();
        let mut stalled = batch(12, 3, false);
        let kind = STANDSTILL.to_owned();
        stalled.events.push(profile::rows::EventRow { time_ns: 1, kind, text: text.clone() });
        for (mut relay, ends) in [(emulated(Duration::from_secs(30)), true), (relay(), false)] {
            let (mut link, _watcher) = crate::link::link();
            let (ours, mut inner) = UnixStream::pair().unwrap();
            for batch in [batch(9, 3, true), stalled.clone()] {
                inner.write_all(&encode(&FromHost::Batch(Box::new(batch))).unwrap()).await.unwrap();
            }
            drop(inner);
            let ended = relay.talk(ours, &mut link).await;
            match ended {
                Err(RelayEnd::Stalled(sign)) => assert!(ends && sign == text),
                Err(RelayEnd::Closed) => assert!(!ends),
                other => panic!("{other:?}"),
            }
            assert!(relay.facts().measured);
        }
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
    async fn output_goes_to_its_stream_and_what_was_read_of_it_is_reported() {
        let (mut link, watcher) = crate::link::link();
        let (ours, mut inner) = UnixStream::pair().unwrap();
        // By a process that was started before.
        link.output[1].write_all(b"more ").unwrap();
        let reported = tokio::spawn(async move {
            let output = [(OutputStream::Output, "out"), (OutputStream::Errors, "errors")];
            for (stream, text) in output {
                let message = FromHost::Output(stream, text.into());
                inner.write_all(&encode(&message).unwrap()).await.unwrap();
            }
            let (mut decoder, mut buffer) = (Decoder::default(), [0; 64]);
            loop {
                let count = inner.read(&mut buffer).await.unwrap();
                decoder.push(&buffer[..count]);
                if let Some(message) = decoder.next_message::<ToHost>().unwrap() {
                    return message;
                }
            }
        });
        watcher.read.send_replace([3, 11]);
        assert!(matches!(relay().talk(ours, &mut link).await, Err(RelayEnd::Closed)));
        assert_eq!(reported.await.unwrap(), ToHost::OutputRead([3, 6]));
        drop(link);
        for (reader, expected) in watcher.output.into_iter().zip(["out", "more errors"]) {
            let (sender, received) = std::sync::mpsc::channel();
            let pump = reader.pump(move |bytes| sender.send(bytes.to_vec()).unwrap()).unwrap();
            assert_eq!(pump.finish(Duration::from_secs(10)), 0);
            assert_eq!(received.iter().flatten().collect::<Vec<u8>>(), expected.as_bytes());
        }
    }

    #[tokio::test]
    async fn a_process_that_closes_the_connection_has_ended() {
        let (mut link, _watcher) = crate::link::link();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(matches!(relay().talk(ours, &mut link).await, Err(RelayEnd::Closed)));
    }
}
