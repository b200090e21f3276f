//! A run on this machine's KVM or in QEMU, in a guest half.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitStatus;

use display::message::Reason;
use profile::{Batch, Sink};
use tokio::net::UnixStream;
use vmm::KvmError;

use super::process::HalfProcess;
use super::{Descriptors, HalfJob, Hypervisor};
use crate::link::Link;
use crate::network::{Cable, NetworkError, Passt, Plugged};
use crate::portable::qemu::Qemu;
use crate::process::{Foreign, continued};
use crate::protocol::FrameError;
use crate::reader::BootMemory;
use crate::relay::{Relay, RelayEnd, RunStage};
use crate::spec::{Outcome, RunSpec};
use crate::stage::Stage;
use control::Phase;

/// Reason why a guest half could not run its guest to the end.
#[derive(Debug, thiserror::Error)]
pub enum HalfError {
    /// KVM cannot be used.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The process cannot be started.
    #[error("cannot {action}: {}", Reason(.source))]
    Start {
        /// Like "start the guest's process".
        action: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The guest has no network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The run was ended before there was anything to profile.
    #[error("stopped before the guest ran: there is no profile")]
    Stopped,
    /// The process has ended without an outcome.
    #[error("the guest's process ended: {reason}")]
    Ended {
        /// The reason.
        reason: String,
        /// True if the guest had not started.
        before_guest: bool,
    },
    /// The process sent an invalid message.
    #[error("the guest's process sent {0}; the guest may have taken it over")]
    Protocol(FrameError),
    /// The run failed in the process.
    #[error("{}", Foreign(.sentence))]
    Inside {
        /// The stage of the run in which it failed.
        stage: Stage,
        /// The reason.
        sentence: String,
    },
}

impl HalfError {
    /// Returns the stage of the run in which it failed.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Kvm(_) => Stage::Hypervisor,
            Self::Start { .. } | Self::Stopped => Stage::BeforeGuest,
            Self::Ended { before_guest: true, .. } => Stage::BeforeGuest,
            Self::Inside { stage, .. } => *stage,
            Self::Network(_) | Self::Ended { .. } | Self::Protocol(_) => Stage::Guest,
        }
    }
}

fn start(action: &'static str) -> impl Fn(io::Error) -> HalfError {
    move |source| HalfError::Start { action, source }
}

/// Parts of a run that its spec does not have.
#[derive(Debug)]
pub struct Wishes {
    /// Open files of the spec's disks.
    pub disks: Vec<File>,
    /// Kernel and initrd.
    pub payload: BootMemory,
}

/// Runs the guest in a separate process, and writes its rows to what `open_sink` returns. With `qemu` its
/// software emulation runs the guest, and else KVM.
///
/// # Errors
/// KVM cannot be used, the process cannot be started, or it ends without an outcome.
pub async fn run<E: From<HalfError>>(
    qemu: Option<&Qemu>,
    spec: &RunSpec,
    wishes: Wishes,
    mut link: Link,
    open_sink: impl FnOnce() -> Result<Box<dyn Sink>, E>,
) -> Result<Outcome, E> {
    let Wishes { disks, payload } = wishes;
    let hypervisor = match qemu {
        Some(qemu) => OpenHypervisor::Qemu(qemu.clone()),
        None => OpenHypervisor::Kvm(vmm::kvm_check::open_descriptor().map_err(HalfError::from)?),
    };
    let network = spec.machine.network.as_ref().map(Plugged::open).transpose().map_err(HalfError::from)?;
    let sink = open_sink()?;
    link.phase.send_replace(Phase::Preparing("starting the guest's process".to_owned()));
    let parts = Parts { hypervisor, network, payload, disks };
    Ok(talk(spec, parts, &mut link, sink).await?)
}

enum OpenHypervisor {
    Kvm(OwnedFd),
    Qemu(Qemu),
}

struct Parts {
    hypervisor: OpenHypervisor,
    network: Option<Plugged>,
    payload: BootMemory,
    disks: Vec<File>,
}

async fn talk(
    spec: &RunSpec,
    parts: Parts,
    link: &mut Link,
    sink: Box<dyn Sink>,
) -> Result<Outcome, HalfError> {
    let Parts { hypervisor, network, payload, disks } = parts;
    let failed = start("start the guest's process");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(&failed)?;
    ours.set_nonblocking(true).map_err(&failed)?;
    let connection = UnixStream::from_std(ours).map_err(&failed)?;
    let (half, report) = HalfProcess::new().map_err(&failed)?;
    let BootMemory { kernel, initrd } = payload;
    let cable = network.as_ref().map(Plugged::cable).transpose().map_err(start("pass the network on"))?;
    let job = HalfJob {
        run: spec.clone(),
        hypervisor: match &hypervisor {
            OpenHypervisor::Kvm(kvm) => Hypervisor::Kvm(kvm.as_raw_fd()),
            OpenHypervisor::Qemu(qemu) => Hypervisor::Qemu(qemu.clone()),
        },
        descriptors: Descriptors {
            kernel: kernel.as_raw_fd(),
            initrd: initrd.as_ref().map(AsRawFd::as_raw_fd),
            disks: disks.iter().map(AsRawFd::as_raw_fd).collect(),
            cable: cable.as_ref().map(Cable::number),
            report: report.as_raw_fd(),
        },
        sync_disks: false,
    };
    let (command, job_file) = half.command(&job, theirs.into()).map_err(&failed)?;
    let mut command = tokio::process::Command::from(command);
    let mut child = command.kill_on_drop(true).spawn().map_err(&failed)?;
    // The process has its own copies. Its end is noticed by the closed connection and pipe.
    drop((command, job_file, report, hypervisor, kernel, initrd, cable));
    let mut relay = Relay::new(sink, Batch::default(), None);
    let (process, stop) = (child.id(), link.stop.clone());
    let result = continued(process, stop, relay.talk(connection, link)).await;
    if !matches!(result, Ok(_) | Err(RelayEnd::Closed)) {
        // Fails if it has ended.
        let _ended = child.start_kill();
    }
    let status = child.wait().await.map_err(start("wait for the guest's process"))?;
    // The disks are locked until the process has ended.
    drop(disks);
    if let Some(text) = network.and_then(Plugged::into_passt).and_then(Passt::failure) {
        relay.write(&Batch { meta: vec![("network_failure".to_owned(), text)], ..Batch::default() });
    }
    let before_guest = relay.facts().stage < RunStage::Guest;
    let sink_error = relay.finish();
    match result {
        Ok(mut outcome) => {
            outcome.totals.sink_error = sink_error.or(outcome.totals.sink_error);
            Ok(outcome)
        }
        Err(RelayEnd::Failed(stage, sentence)) => Err(HalfError::Inside { stage, sentence }),
        Err(RelayEnd::Stopped) => Err(HalfError::Stopped),
        Err(RelayEnd::Protocol(error)) => Err(HalfError::Protocol(error)),
        Err(RelayEnd::Closed | RelayEnd::Silent(_) | RelayEnd::Stalled(_) | RelayEnd::Version(_)) => {
            Err(HalfError::Ended { reason: reason(half, status), before_guest })
        }
    }
}

/// Returns the reason of the process's end.
fn reason(half: HalfProcess, status: ExitStatus) -> String {
    half.refused(status).unwrap_or_else(|| status.to_string())
}
