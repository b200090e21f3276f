//! The outer half: starts the portable host, writes what it sends, and ends it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use disk_images::BootPayload;
use display::units;
use profile::rows::EventRow;
use profile::store::CreateError;
use profile::{Batch, Sink};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::Child;

use vmm::{MachineEnd, TRIPLE_FAULT};

use super::bundle::Bundle;
use super::initrd::{self, Initrd};
use super::log::Log;
use super::qemu::{Card, Machine, PassedDisk, Qemu};
use super::{KNOWN, PortableError, ProtocolError, start_error};
use crate::half::Wishes;
use crate::link::Link;
use crate::network::{Passt, Plugged};
use crate::process::memory_file;
use crate::relay::{Relay, RelayEnd, RunFacts, RunStage, SilenceLimits};
use crate::spec::{GuestEnd, Outcome, RunSpec};
use control::Phase;

/// Memory of the inner host beyond the guest's, its kernel and initial file system, bytes.
const OVERHEAD: u64 = 320 << 20;
/// More CPUs than this do not help: QEMU's threads wait for each other.
const MAX_CPUS: usize = 4;
/// Restarts after faults of the emulation that came before anything was measured, at most.
const MAX_RESTARTS: u32 = 2;
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
    wishes: Wishes,
    mut link: Link,
    mut open_sink: impl FnMut(u32) -> Result<Box<dyn Sink>, CreateError>,
) -> Result<Outcome, PortableError> {
    let Wishes { disks, payload } = wishes;
    let payload = payload.into_bytes().map_err(start_error("read the guest's kernel"))?;
    let parts = HostParts::new(setup, spec, disks, &payload)?;
    let payload_bytes = (payload.kernel.len() + payload.initrd.as_ref().map_or(0, Vec::len)) as u64;
    // The rest of the run needs neither.
    drop(payload);
    let mut restarts = Restarts::default();
    loop {
        let attempt = Attempt { setup, spec, parts: &parts, payload_bytes, restarts: restarts.clone() };
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
    parts: &'a HostParts,
    payload_bytes: u64,
    restarts: Restarts,
}

/// Files of the host, for each of its starts.
#[derive(Debug)]
struct HostParts {
    kernel: OwnedFd,
    initrd: Initrd,
    /// The guest's disks, in order.
    disks: Vec<File>,
    /// A second opening of each disk, for reading.
    readable: Vec<File>,
    /// Directory of QEMU's temporary files.
    directory: TempDir,
}

impl HostParts {
    fn new(
        setup: &Setup,
        spec: &RunSpec,
        disks: Vec<File>,
        payload: &BootPayload,
    ) -> Result<Self, PortableError> {
        let Bundle { kernel, .. } = &setup.bundle;
        let kernel =
            std::fs::read(kernel).map_err(|source| PortableError::Bundle { path: kernel.clone(), source })?;
        let kernel = memory_file(c"vprof-kernel", &kernel).map_err(start_error("keep its kernel"))?;
        let initrd = initrd::make(&setup.bundle, spec, payload)?;
        let readable = spec.machine.disks.iter().zip(&disks).map(|(disk, file)| disk.read_only(file));
        let readable = readable.collect::<Result<_, _>>()?;
        let directory = tempfile::Builder::new().prefix("vprof-").tempdir();
        let directory = directory.map_err(start_error("make a directory for temporary files"))?;
        Ok(Self { kernel, initrd, disks, readable, directory })
    }
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
        let mut child = self.spawn(theirs.into(), network.as_ref())?;
        let mut log = Log::keep(&mut child);
        let silence = self.setup.silence;
        let limits = SilenceLimits {
            // A whole kernel boots before the first message.
            first: silence.saturating_mul(2),
            // Little is left to do before the first sign of the guest.
            preparing: silence / 2,
            guest: silence,
        };
        let meta =
            [("qemu", self.setup.qemu.version.clone()), ("host_restarts", self.restarts.count().to_string())];
        let event = |fault: &String| EventRow {
            time_ns: 0,
            kind: EMULATION.to_owned(),
            text: format!("{fault}; the run began again"),
        };
        let first = Batch {
            meta: meta.map(|(key, value)| (key.to_owned(), value)).to_vec(),
            events: self.restarts.faults.iter().map(event).collect(),
            ..Batch::default()
        };
        let mut relay = Relay::new(sink, first, Some(limits));
        let result = relay.talk(port, link).await;
        let status = match result {
            Err(RelayEnd::Closed) => child.wait().await.ok(),
            _ => None,
        };
        // The inner half sends its outcome when the disks are written; there is nothing to wait for. Fails if
        // QEMU has ended.
        let _ended = child.start_kill();
        let _status = child.wait().await;
        if let Some(text) = network.and_then(Plugged::into_passt).and_then(Passt::failure) {
            relay.write(&Batch { meta: vec![("network_failure".to_owned(), text)], ..Batch::default() });
        }
        let facts = relay.facts();
        let mut attempted = match result {
            Ok(outcome) => Ok(self.judge(outcome, &facts)),
            Err(ended) => self.explain(ended, &facts, status, log.last_words().await),
        };
        if let Ok(Attempted::Faulty(fault)) = &attempted {
            let text = fault.sentence.clone();
            let event = EventRow { time_ns: facts.run_ns, kind: EMULATION.to_owned(), text };
            relay.write(&Batch { events: vec![event], ..Batch::default() });
        }
        let sink_error = relay.finish();
        if let Ok(Attempted::Ended(outcome) | Attempted::Faulty(Fault { result: Ok(outcome), .. })) =
            &mut attempted
        {
            outcome.host_restarts = self.restarts.count();
            let own = outcome.totals.sink_error.take();
            outcome.totals.sink_error = sink_error.or(own);
        }
        attempted
    }

    fn spawn(&self, port: OwnedFd, network: Option<&Plugged>) -> Result<Child, PortableError> {
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
            .saturating_add(2 * self.parts.initrd.bytes)
            .saturating_add(5 * self.payload_bytes);
        let card = match (network, &self.spec.machine.network) {
            (Some(network), Some(spec)) => {
                Some((network.cable().map_err(start_error("pass its network on"))?, spec.mac))
            }
            _ => None,
        };
        let card = card.as_ref().map(|(cable, mac)| Card { cable, mac: *mac });
        let HostParts { kernel, initrd, disks, readable, directory } = self.parts;
        let disks = self.spec.machine.disks.iter().zip(disks.iter().zip(readable));
        let disks: Vec<_> =
            disks.map(|(spec, (file, readable))| PassedDisk::new(spec, file, readable)).collect();
        let machine = Machine {
            qemu: &self.setup.qemu,
            kernel,
            initrd: &initrd.fd,
            port: &port,
            disks: &disks,
            card,
            memory_bytes,
            cpus,
            cpu_limit,
            directory: directory.path(),
        };
        tokio::process::Command::from(machine.command()?)
            .kill_on_drop(true)
            .spawn()
            .map_err(start_error("start QEMU"))
    }

    /// Returns the end of a guest, or the fault of the emulation that it is.
    fn judge(&self, outcome: Outcome, facts: &RunFacts) -> Attempted {
        let triple_fault = match &outcome.end {
            GuestEnd::Ran(MachineEnd::Failed(reason)) => reason.contains(TRIPLE_FAULT),
            _ => false,
        };
        if !triple_fault {
            return Attempted::Ended(outcome);
        }
        let after = units::duration(facts.ran());
        let sentence = format!("the guest in the emulated host had a triple fault after {after}: {KNOWN}");
        Attempted::Faulty(Fault { sentence, result: Ok(outcome), measured: self.measured(facts) })
    }

    /// Returns the fault of the emulation by which a host has ended. `status` is QEMU's, if it has ended by
    /// itself.
    ///
    /// # Errors
    /// The host has ended otherwise.
    fn explain(
        &self,
        ended: RelayEnd,
        facts: &RunFacts,
        status: Option<ExitStatus>,
        log: String,
    ) -> Result<Attempted, PortableError> {
        let (when, before_guest) = (when(facts.stage), facts.stage < RunStage::Guest);
        let error = match ended {
            RelayEnd::Silent(silent) => {
                PortableError::Frozen { when, silent, restarts: self.restarts.count(), before_guest, log }
            }
            RelayEnd::Stalled(sign) => PortableError::Stalled { after: facts.ran(), sign },
            RelayEnd::Closed => {
                let status = status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
                PortableError::Died { when, before_guest, status, log }
            }
            RelayEnd::Protocol(error) => PortableError::Protocol(ProtocolError::Frame(error)),
            RelayEnd::Version(version) => PortableError::Protocol(ProtocolError::Version(version)),
            RelayEnd::Failed(stage, sentence) => PortableError::Inside { stage, sentence },
            RelayEnd::Stopped => PortableError::Stopped,
        };
        match error.fault() {
            Some(sentence) => {
                Ok(Attempted::Faulty(Fault { sentence, result: Err(error), measured: self.measured(facts) }))
            }
            None => Err(error),
        }
    }

    /// Returns true if a restart would lose or repeat something: a sample was written after the guest's
    /// kernel was found, or the guest may have written to a disk.
    fn measured(&self, facts: &RunFacts) -> bool {
        let writes = self.spec.machine.disks.iter().any(|disk| disk.is_written());
        facts.stage >= RunStage::Guest && (writes || facts.measured)
    }
}

#[cfg(test)]
mod tests;
