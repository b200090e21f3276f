//! The outer half: starts the portable host, writes what it sends, and ends it.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use profile::rows::EventRow;
use profile::store::CreateError;
use profile::{Batch, Sink};
use sampler::STANDSTILL;
use text::units;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::time::{Instant, sleep_until};

use images::BootPayload;
use vmm::{MachineEnd, TRIPLE_FAULT};

use super::bundle::Bundle;
use super::initrd::{self, Initrd};
use super::log::Log;
use super::qemu::{Card, Machine, Qemu};
use super::{KNOWN, PortableError, ProtocolError, start_error};
use crate::link::{Link, Phase};
use crate::network::{Passt, Plugged};
use crate::protocol::{Decoder, FromHost, ToHost, encode};
use crate::spec::{GuestEnd, Outcome, RunSpec};
use crate::vsock::{Listening, Serving};

/// Memory of the inner host beyond the guest's, its kernel and initial file system, bytes.
const OVERHEAD: u64 = 320 << 20;
/// More CPUs than this do not help: QEMU's threads wait for each other.
const MAX_CPUS: usize = 4;
/// Restarts after faults of the emulation that came before anything was measured, at most.
const MAX_RESTARTS: u32 = 2;
/// Lead of the host's clock over this machine's that shows that it has jumped: more than rows are ever delayed.
const CLOCK_LEAD: Duration = Duration::from_secs(10);
/// Kind of the profile's events that report faults of the emulation.
const EMULATION: &str = "emulation";
/// CPU seconds per CPU that QEMU may use beyond the run's own duration.
const CPU_SLACK: Duration = Duration::from_secs(300);

/// Parts of the portable host on this machine.
#[derive(Debug, Clone)]
pub struct Setup {
    /// QEMU.
    pub qemu: Qemu,
    /// Kernel and modules.
    pub bundle: Bundle,
    /// Silence after which the host counts as frozen.
    pub silence: Duration,
}

/// Restarts so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Restarts {
    /// Before anything was measured.
    early: u32,
    /// After that, as `--retry` allows.
    late: u32,
    /// The fault before each of them, as a sentence.
    faults: Vec<String>,
}

impl Restarts {
    /// Number of restarts.
    fn count(&self) -> u32 {
        self.early + self.late
    }

    /// Counts one more restart after a fault at this point of the run, if one is left.
    fn take(&mut self, measured: bool, retries: u32) -> bool {
        if !measured && self.early < MAX_RESTARTS {
            self.early += 1;
        } else if self.late < retries {
            self.late += 1;
        } else {
            return false;
        }
        true
    }
}

/// A start of the host that came to its end.
#[derive(Debug)]
enum Attempted {
    /// The guest has ended.
    Ended(Outcome),
    /// The host's emulation has failed.
    Faulty(Fault),
}

/// Fault of the host's emulation.
#[derive(Debug)]
struct Fault {
    /// One sentence.
    sentence: String,
    /// The run's result, if it is not restarted.
    result: Result<Outcome, PortableError>,
    /// A restart would lose something: something was measured, or the guest may have written to a disk.
    measured: bool,
}

/// Runs the guest in the portable host. `open_sink` is called for each start of the host, with the number of
/// starts before it; what an earlier one wrote is then to be forgotten.
///
/// # Errors
/// The host does not start, ends before the guest, or is silent for too long; or the run failed in it.
pub async fn run(
    setup: &Setup,
    spec: &RunSpec,
    payload: BootPayload,
    mut link: Link,
    vsock: Option<&Listening>,
    mut open_sink: impl FnMut(u32) -> Result<Box<dyn Sink>, CreateError>,
) -> Result<Outcome, PortableError> {
    let initrd = initrd::make(&setup.bundle, spec, &payload)?;
    let payload_bytes = (payload.kernel.len() + payload.initrd.as_ref().map_or(0, Vec::len)) as u64;
    // The rest of the run needs neither.
    drop(payload);
    let mut restarts = Restarts::default();
    loop {
        let attempt =
            Attempt { setup, spec, initrd: &initrd, payload_bytes, vsock, restarts: restarts.clone() };
        // A network that can't be used leaves no profile.
        let network = spec.machine.network.as_ref().map(Plugged::open).transpose()?;
        let fault = match attempt.run(&mut link, network, open_sink(restarts.count())?).await? {
            Attempted::Ended(outcome) => return Ok(outcome),
            Attempted::Faulty(fault) => fault,
        };
        if *link.stop.borrow() || !restarts.take(fault.measured, spec.retries) {
            if fault.result.is_ok() {
                // Fails only if nobody watches any more.
                let _ = link.notes.send(format!("{}, which `--retry` answers by a new run", fault.sentence));
            }
            return fault.result;
        }
        // Fails only if nobody watches any more.
        let _ = link.notes.send(format!("{}; the run begins again", fault.sentence));
        restarts.faults.push(fault.sentence);
    }
}

struct Attempt<'a> {
    setup: &'a Setup,
    spec: &'a RunSpec,
    initrd: &'a Initrd,
    payload_bytes: u64,
    vsock: Option<&'a Listening>,
    restarts: Restarts,
}

/// State of the host, by its messages so far.
struct HostState {
    stage: HostStage,
    /// The guest's kernel was found: the guest is past its early boot.
    kernel_up: bool,
    /// A sample was written after that.
    measured: bool,
    /// Length of the run by the host's clock, ns.
    run_ns: u64,
    /// The first batch: its time, and the length of the run then, ns.
    begun: Option<(Instant, u64)>,
    /// Sign of a standstill.
    standstill: Option<String>,
    /// Time of the last bytes.
    heard: Instant,
    /// Time of the last message that shows progress. A host may answer for ever whose recorder is stuck.
    progressed: Instant,
    sink: Box<dyn Sink>,
    sink_error: Option<String>,
}

/// Stage of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostStage {
    Booting,
    Up,
    Guest,
}

impl HostStage {
    fn when(self) -> &'static str {
        match self {
            Self::Booting => "while it booted",
            Self::Up => "before the guest started",
            Self::Guest => "while the guest ran",
        }
    }
}

impl Attempt<'_> {
    async fn run(
        &self,
        link: &mut Link,
        network: Option<Plugged>,
        sink: Box<dyn Sink>,
    ) -> Result<Attempted, PortableError> {
        let restarted = match self.restarts.count() {
            0 => String::new(),
            n => format!(" again, {}", units::counted(n.into(), "time")),
        };
        link.phase.send_replace(Phase::Preparing(format!(
            "starting the portable host{restarted} (QEMU {})",
            self.setup.qemu.version
        )));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(start_error("make its port"))?;
        ours.set_nonblocking(true).map_err(start_error("make its port"))?;
        let port = UnixStream::from_std(ours).map_err(start_error("make its port"))?;
        let (vsock, vsock_port) = self.vsock.map(Listening::serve).transpose()?.unzip();
        let mut child = self.spawn(theirs.into(), vsock_port, network.as_ref())?;
        let log = Log::keep(&mut child);
        let mut state = HostState {
            stage: HostStage::Booting,
            kernel_up: false,
            measured: false,
            run_ns: 0,
            begun: None,
            standstill: None,
            heard: Instant::now(),
            progressed: Instant::now(),
            sink,
            sink_error: None,
        };
        let result = self.talk(port, &mut child, link, &mut state).await;
        // The disks are written when the inner half says that it is done; there is nothing to wait for.
        let _ = child.start_kill();
        let _ = child.wait().await;
        let failures = [
            ("network_failure", network.and_then(Plugged::into_passt).and_then(Passt::failure)),
            ("vsock_failure", vsock.and_then(Serving::end)),
        ];
        for (key, failure) in failures {
            if let Some(text) = failure {
                state.write(&Batch { meta: vec![(key.to_owned(), text)], ..Batch::default() });
            }
        }
        let mut attempted = match result {
            Ok(outcome) => Ok(self.judge(outcome, &state)),
            Err(ended) => self.explain(ended, &state, log.last_words().await),
        };
        if let Ok(Attempted::Faulty(fault)) = &attempted {
            let text = fault.sentence.clone();
            let event = EventRow { time_ns: state.run_ns, kind: EMULATION.to_owned(), text };
            state.write(&Batch { events: vec![event], ..Batch::default() });
        }
        let finished = state.sink.finish().err().map(|e| e.to_string());
        if let Ok(Attempted::Ended(outcome) | Attempted::Faulty(Fault { result: Ok(outcome), .. })) =
            &mut attempted
        {
            outcome.host_restarts = self.restarts.count();
            let own = outcome.totals.sink_error.take();
            outcome.totals.sink_error = state.sink_error.or(finished).or(own);
        }
        attempted
    }

    fn spawn(
        &self,
        port: OwnedFd,
        vsock: Option<OwnedFd>,
        network: Option<&Plugged>,
    ) -> Result<Child, PortableError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_CPUS);
        let cpu_limit = self.spec.duration.map(|duration| {
            duration.saturating_add(CPU_SLACK).saturating_mul(u32::try_from(cpus).unwrap_or(1) + 1)
        });
        // Each archive is there twice, packed and unpacked; the kernel and initrd once more as bytes and in
        // the guest, and the initrd and its programs in temporary files. Linux keeps 64 bytes for each page
        // of 4 KiB, and the nested page tables take as much at most.
        let memory_bytes = OVERHEAD
            .saturating_add(self.spec.machine.memory_bytes)
            .saturating_add(self.spec.machine.memory_bytes / 32)
            .saturating_add(2 * self.initrd.bytes)
            .saturating_add(5 * self.payload_bytes);
        let card = match (network, &self.spec.machine.network) {
            (Some(network), Some(spec)) => {
                Some((network.cable().map_err(start_error("pass its network on"))?, spec.mac))
            }
            _ => None,
        };
        let card = card.as_ref().map(|(cable, mac)| Card { cable, mac: *mac });
        let machine = Machine {
            qemu: &self.setup.qemu,
            kernel: &self.setup.bundle.kernel,
            initrd: &self.initrd.fd,
            port: &port,
            vsock: vsock.as_ref(),
            disks: &self.spec.machine.disks,
            card,
            memory_bytes,
            cpus,
            cpu_limit,
        };
        tokio::process::Command::from(machine.command())
            .kill_on_drop(true)
            .spawn()
            .map_err(start_error("start QEMU"))
    }

    async fn talk(
        &self,
        mut port: UnixStream,
        child: &mut Child,
        link: &mut Link,
        state: &mut HostState,
    ) -> Result<Outcome, Ended> {
        let (mut reader, mut writer) = port.split();
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; 256 << 10];
        let mut outgoing: Vec<u8> = Vec::new();
        let (mut stopping, mut input_open, mut control_open) = (*link.stop.borrow(), true, true);
        if stopping {
            return Err(Ended::Stopped);
        }
        loop {
            let limit = match state.stage {
                // A whole kernel boots without a word.
                HostStage::Booting => self.setup.silence.saturating_mul(2),
                // Next to nothing is left to do before the first sign of the guest.
                HostStage::Up => self.setup.silence / 2,
                HostStage::Guest => self.setup.silence,
            };
            tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(count) if count > 0 => {
                        state.heard = Instant::now();
                        decoder.push(&buffer[..count]);
                        while let Some(message) = decoder.next_message().map_err(|e| Ended::Protocol(e.into()))? {
                            if let Some(outcome) = self.handle(message, link, state)? {
                                return Ok(outcome);
                            }
                            if let Some(sign) = state.standstill.take() {
                                return Err(Ended::Stalled(sign));
                            }
                        }
                        if state.sink_error.is_some() && !stopping {
                            stopping = true;
                            queue(&mut outgoing, &ToHost::Stop);
                        }
                    }
                    _ => return Err(Ended::Died(child.wait().await.ok())),
                },
                written = writer.write(&outgoing), if !outgoing.is_empty() => match written {
                    Ok(count) => drop(outgoing.drain(..count)),
                    Err(_) => outgoing.clear(),
                },
                _ = link.stop.changed(), if !stopping => {
                    stopping = true;
                    if state.stage < HostStage::Guest {
                        return Err(Ended::Stopped);
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
                () = sleep_until(state.progressed + limit) => return Err(state.stuck()),
            }
        }
    }

    /// Deals with one message; the last one gives the outcome.
    fn handle(
        &self,
        message: FromHost,
        link: &mut Link,
        state: &mut HostState,
    ) -> Result<Option<Outcome>, Ended> {
        // The recorder sends rows several times a second, whatever the guest does; answers come from another
        // thread.
        if !matches!(message, FromHost::Status(_) | FromHost::Console(_) | FromHost::Output(_)) {
            state.progressed = Instant::now();
        }
        match message {
            FromHost::Hello { version, .. } if version != env!("CARGO_PKG_VERSION") => {
                return Err(Ended::Protocol(ProtocolError::Version(version)));
            }
            FromHost::Hello { kernel, .. } => {
                state.stage = state.stage.max(HostStage::Up);
                link.phase.send_replace(Phase::Preparing("the portable host is up, loading KVM".to_owned()));
                let meta = [
                    ("host_kernel", kernel),
                    ("qemu", self.setup.qemu.version.clone()),
                    ("host_restarts", self.restarts.count().to_string()),
                ];
                let meta = meta.map(|(key, value)| (key.to_owned(), value)).to_vec();
                let event = |fault: &String| EventRow {
                    time_ns: 0,
                    kind: EMULATION.to_owned(),
                    text: format!("{fault}; the run began again"),
                };
                let events = self.restarts.faults.iter().map(event).collect();
                state.write(&Batch { meta, events, ..Batch::default() });
            }
            FromHost::Preparing(what) => {
                state.stage = state.stage.max(HostStage::Up);
                link.phase.send_replace(Phase::Preparing(what));
            }
            FromHost::Batch(batch) => {
                state.note(&batch);
                state.write(&batch);
            }
            FromHost::Console(bytes) => {
                state.stage = HostStage::Guest;
                // Never fails: it has no place to fail at.
                let _ = link.console.write_all(&bytes);
            }
            FromHost::Output(bytes) => {
                // Never fails: it has no place to fail at.
                let _ = link.output.write_all(&bytes);
            }
            FromHost::Status(status) => {
                state.stage = HostStage::Guest;
                state.kernel_up |= status.kernel.is_some();
                link.phase.send_replace(Phase::Running(status));
            }
            FromHost::End(outcome) => return Ok(Some(outcome)),
            FromHost::Error(sentence) => return Err(Ended::Inside(sentence)),
        }
        Ok(None)
    }

    /// Returns the end of a guest, or the fault of the emulation that it is.
    fn judge(&self, outcome: Outcome, state: &HostState) -> Attempted {
        let triple_fault = match &outcome.end {
            GuestEnd::Ran(MachineEnd::Failed(reason)) => reason.contains(TRIPLE_FAULT),
            _ => false,
        };
        if !triple_fault {
            return Attempted::Ended(outcome);
        }
        let after = units::duration(state.ran());
        let sentence = format!("the guest in the emulated host had a triple fault after {after}: {KNOWN}");
        Attempted::Faulty(Fault { sentence, result: Ok(outcome), measured: self.measured(state) })
    }

    /// Returns the fault of the emulation by which a host has ended.
    ///
    /// # Errors
    /// The host has ended otherwise.
    fn explain(&self, ended: Ended, state: &HostState, log: String) -> Result<Attempted, PortableError> {
        let when = state.stage.when();
        let before_guest = state.stage < HostStage::Guest;
        let error = match ended {
            Ended::Silent(silent) => {
                PortableError::Frozen { when, silent, restarts: self.restarts.count(), before_guest, log }
            }
            Ended::Stalled(sign) => PortableError::Stalled { after: state.ran(), sign },
            Ended::Died(status) => {
                let status = status.map_or_else(|| "unknown status".to_owned(), |s| s.to_string());
                PortableError::Died { when, before_guest, status, log }
            }
            Ended::Protocol(error) => PortableError::Protocol(error),
            Ended::Inside(sentence) => PortableError::Inside(sentence),
            Ended::Stopped => PortableError::Stopped,
        };
        match error.fault() {
            Some(sentence) => {
                Ok(Attempted::Faulty(Fault { sentence, result: Err(error), measured: self.measured(state) }))
            }
            None => Err(error),
        }
    }

    /// Returns true if a restart would lose or repeat something: a sample was written after the guest's
    /// kernel was found, or the guest may have written to a disk.
    fn measured(&self, state: &HostState) -> bool {
        let writes = self.spec.machine.disks.iter().any(|disk| disk.is_written());
        state.stage >= HostStage::Guest && (writes || state.measured)
    }
}

/// End of a conversation without an outcome.
#[derive(Debug)]
enum Ended {
    Silent(Duration),
    /// With the sign of the standstill.
    Stalled(String),
    Died(Option<ExitStatus>),
    Protocol(ProtocolError),
    Inside(String),
    Stopped,
}

impl HostState {
    /// Notes the facts of a batch about the run.
    fn note(&mut self, batch: &Batch) {
        // A batch that has the kernel may have samples from before.
        self.measured |= self.kernel_up && !batch.samples.is_empty();
        self.kernel_up |= batch.meta.iter().any(|(key, _)| key == "kernel");
        let run_ns = batch.meta.iter().filter(|(key, _)| key == "duration_ns");
        self.run_ns = run_ns.filter_map(|(_, ns)| ns.parse().ok()).fold(self.run_ns, u64::max);
        let standstill = batch.events.iter().find(|event| event.kind == STANDSTILL);
        self.standstill =
            standstill.map(|event| event.text.clone()).or_else(|| self.clock_jump(Instant::now()));
    }

    /// Returns a sentence if the host's clock has jumped since the first batch.
    fn clock_jump(&mut self, now: Instant) -> Option<String> {
        let (begun, before_ns) = *self.begun.get_or_insert((now, self.run_ns));
        let by_host = Duration::from_nanos(self.run_ns.saturating_sub(before_ns));
        let lead = by_host.saturating_sub(now.saturating_duration_since(begun));
        (lead >= CLOCK_LEAD).then(|| format!("its clock has jumped by {}", units::duration(lead)))
    }

    /// Returns the end of a host that made no progress for too long.
    fn stuck(&self) -> Ended {
        let stuck = self.progressed.elapsed();
        if self.heard.elapsed() > stuck / 2 {
            return Ended::Silent(stuck);
        }
        Ended::Stalled(format!("it answers, but has recorded nothing for {}", units::duration(stuck)))
    }

    /// Returns the run time of the guest.
    fn ran(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    fn write(&mut self, batch: &Batch) {
        if self.sink_error.is_none()
            && let Err(error) = self.sink.write(batch)
        {
            self.sink_error = Some(error.to_string());
        }
    }
}

fn queue(outgoing: &mut Vec<u8>, message: &ToHost) {
    // Messages of this direction are a few hundred bytes; none is too long.
    if let Ok(frame) = encode(message) {
        outgoing.extend_from_slice(&frame);
    }
}

#[cfg(test)]
mod tests;
