//! The outer half: starts the portable host, writes what it sends, and ends it.

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use profile::store::CreateError;
use profile::{Batch, Sink};
use tokio::net::UnixStream;
use tokio::process::Child;

use images::BootPayload;

use super::bundle::Bundle;
use super::initrd::{self, Initrd};
use super::log::Log;
use super::qemu::{Card, Machine, Qemu};
use super::{PortableError, ProtocolError, start_error};
use crate::link::{Link, Phase};
use crate::network::{Passt, Plugged};
use crate::relay::{Relay, RelayEnd, RunStage, SilenceLimits};
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

/// Words for the stage in which the host failed.
fn when(stage: RunStage) -> &'static str {
    match stage {
        RunStage::Silent => "while it booted",
        RunStage::Preparing => "before the guest started",
        RunStage::Guest => "while the guest ran",
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
        let silence = self.setup.silence;
        let limits = SilenceLimits {
            // A whole kernel boots before the first message.
            first: silence.saturating_mul(2),
            // Little is left to do before the first sign of the guest.
            preparing: silence / 2,
            guest: silence,
        };
        let meta = [("qemu", self.setup.qemu.version.clone()), ("host_restarts", self.restarts.to_string())];
        let meta = meta.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let mut relay = Relay::new(sink, meta, Some(limits));
        let result = relay.talk(port, link).await;
        let status = match result {
            Err(RelayEnd::Closed) => child.wait().await.ok(),
            _ => None,
        };
        // The inner half sends its outcome when the disks are written; there is nothing to wait for. Fails if
        // QEMU has ended.
        let _ended = child.start_kill();
        let _status = child.wait().await;
        let failures = [
            ("network_failure", network.and_then(Plugged::into_passt).and_then(Passt::failure)),
            ("vsock_failure", vsock.and_then(Serving::end)),
        ];
        for (key, failure) in failures {
            if let Some(text) = failure {
                relay.write(&Batch { meta: vec![(key.to_owned(), text)], ..Batch::default() });
            }
        }
        let (stage, kernel_up) = (relay.stage, relay.kernel_up);
        let sink_error = relay.finish();
        match result {
            Ok(mut outcome) => {
                outcome.host_restarts = self.restarts;
                outcome.totals.sink_error = sink_error.or(outcome.totals.sink_error);
                Ok(outcome)
            }
            Err(ended) => Err(self.explain(ended, (stage, kernel_up), status, log.last_words().await)),
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

    /// Decides what follows from the end of a conversation in this stage.
    fn explain(
        &self,
        ended: RelayEnd,
        (stage, kernel_up): (RunStage, bool),
        status: Option<ExitStatus>,
        log: String,
    ) -> Broken {
        let (when, before_guest) = (when(stage), stage < RunStage::Guest);
        Broken::Final(match ended {
            RelayEnd::Silent(silent) => {
                let error =
                    PortableError::Frozen { when, silent, restarts: self.restarts, before_guest, log };
                // A guest that runs may have written to a disk, and done what can't be done twice.
                let writes = self.spec.machine.disks.iter().any(|disk| disk.is_written());
                if before_guest || !writes && !kernel_up {
                    return Broken::Again(error);
                }
                error
            }
            RelayEnd::Closed => {
                let status = status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
                PortableError::Died { when, before_guest, status, log }
            }
            RelayEnd::Protocol(error) => PortableError::Protocol(ProtocolError::Frame(error)),
            RelayEnd::Version(version) => PortableError::Protocol(ProtocolError::Version(version)),
            RelayEnd::Failed(stage, sentence) => PortableError::Inside { stage, sentence },
            RelayEnd::Stopped => PortableError::Stopped,
        })
    }
}

#[cfg(test)]
mod tests;
