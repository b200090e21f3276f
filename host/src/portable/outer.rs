//! The outer half: starts the portable host, writes what it sends, and ends it.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use profile::store::CreateError;
use profile::{Batch, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::time::{Instant, sleep_until};

use images::BootPayload;

use super::bundle::Bundle;
use super::initrd::{self, Initrd};
use super::log::Log;
use super::qemu::{Card, Machine, Qemu};
use super::{PortableError, ProtocolError, start_error};
use crate::link::{Link, Phase};
use crate::network::{Passt, Plugged};
use crate::protocol::{Decoder, FromHost, ToHost, encode};
use crate::spec::{Outcome, RunSpec};
use crate::vsock::{Listening, Serving};

/// Memory of the inner host beyond the guest's, its kernel and initial file system, bytes.
const OVERHEAD: u64 = 320 << 20;
/// More CPUs than this do not help: QEMU's threads wait for each other.
const MAX_CPUS: usize = 4;
/// How often a host that froze before the guest could leave a trace is started anew.
const MAX_RESTARTS: u32 = 2;
/// CPU seconds per CPU that QEMU may use beyond the run's own duration.
const CPU_SLACK: Duration = Duration::from_secs(300);

/// What the portable host is made of here.
#[derive(Debug, Clone)]
pub struct Setup {
    /// QEMU.
    pub qemu: Qemu,
    /// Kernel and modules.
    pub bundle: Bundle,
    /// Silence after which the host counts as frozen.
    pub silence: Duration,
}

/// Why one start of the host came to nothing.
#[derive(Debug)]
enum Broken {
    /// It may be tried again: nothing outside of it has changed.
    Again(PortableError),
    /// It may not.
    Final(PortableError),
}

impl<E: Into<PortableError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

/// Runs the guest in the portable host. `open_sink` is called for each start of the host, with the number of starts
/// before it; what an earlier one wrote is then to be forgotten.
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
    let mut restarts = 0;
    loop {
        let attempt = Attempt { setup, spec, initrd: &initrd, payload_bytes, vsock, restarts };
        // A network that can't be had leaves no profile behind.
        let network = spec.machine.network.as_ref().map(Plugged::open).transpose()?;
        match attempt.run(&mut link, network, open_sink(restarts)?).await {
            Ok(outcome) => return Ok(outcome),
            Err(Broken::Again(_)) if restarts < MAX_RESTARTS && !*link.stop.borrow() => restarts += 1,
            Err(Broken::Again(error) | Broken::Final(error)) => return Err(error),
        }
    }
}

struct Attempt<'a> {
    setup: &'a Setup,
    spec: &'a RunSpec,
    initrd: &'a Initrd,
    payload_bytes: u64,
    vsock: Option<&'a Listening>,
    restarts: u32,
}

/// State of the host, by its messages so far.
struct HostState {
    stage: HostStage,
    /// The guest's kernel was found: the guest is past its early boot.
    kernel_up: bool,
    at: Instant,
    sink: Box<dyn Sink>,
    sink_error: Option<String>,
}

/// How far it has come.
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
    ) -> Result<Outcome, Broken> {
        let restarted = match self.restarts {
            0 => String::new(),
            n => format!(" again ({n} of {MAX_RESTARTS}): it had frozen"),
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
            at: Instant::now(),
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
        let finished = state.sink.finish().err().map(|e| e.to_string());
        match result {
            Ok(mut outcome) => {
                outcome.host_restarts = self.restarts;
                outcome.totals.sink_error = state.sink_error.or(finished).or(outcome.totals.sink_error);
                Ok(outcome)
            }
            Err(ended) => Err(self.explain(ended, &state, log.last_words().await)),
        }
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
        // Each archive is there twice, packed and unpacked; the kernel and initrd once more as bytes and in the guest,
        // and the initrd and its programs in temporary files.
        // Linux keeps 64 bytes for each page of 4 KiB, and the nested page tables take as much at most.
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
                        state.at = Instant::now();
                        decoder.push(&buffer[..count]);
                        while let Some(message) = decoder.next_message().map_err(|e| Ended::Protocol(e.into()))? {
                            if let Some(outcome) = self.handle(message, link, state)? {
                                return Ok(outcome);
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
                () = sleep_until(state.at + limit) => return Err(Ended::Silent(state.at.elapsed())),
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
                    ("host_restarts", self.restarts.to_string()),
                ];
                let meta = meta.map(|(key, value)| (key.to_owned(), value)).to_vec();
                state.write(&Batch { meta, ..Batch::default() });
            }
            FromHost::Preparing(what) => {
                state.stage = state.stage.max(HostStage::Up);
                link.phase.send_replace(Phase::Preparing(what));
            }
            FromHost::Batch(batch) => state.write(&batch),
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

    fn explain(&self, ended: Ended, state: &HostState, log: String) -> Broken {
        let when = state.stage.when();
        match ended {
            Ended::Silent(silent) => {
                let error = PortableError::Frozen {
                    when,
                    silent,
                    restarts: self.restarts,
                    before_guest: state.stage < HostStage::Guest,
                    log,
                };
                // A guest that runs may have written to a disk, and done what can't be done twice.
                let writes = self.spec.machine.disks.iter().any(|disk| disk.is_written());
                if state.stage < HostStage::Guest || !writes && !state.kernel_up {
                    Broken::Again(error)
                } else {
                    Broken::Final(error)
                }
            }
            Ended::Died(status) => Broken::Final(PortableError::Died {
                when,
                before_guest: state.stage < HostStage::Guest,
                status: status.map_or_else(|| "unknown status".to_owned(), |s| s.to_string()),
                log,
            }),
            Ended::Protocol(error) => Broken::Final(PortableError::Protocol(error)),
            Ended::Inside(sentence) => Broken::Final(PortableError::Inside(sentence)),
            Ended::Stopped => Broken::Final(PortableError::Stopped),
        }
    }
}

/// How a conversation ended without an outcome.
#[derive(Debug)]
enum Ended {
    Silent(Duration),
    Died(Option<ExitStatus>),
    Protocol(ProtocolError),
    Inside(String),
    Stopped,
}

impl HostState {
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
