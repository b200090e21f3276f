//! The process of a guest half.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use disk_images::BootPayload;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use profile::Sink;
use sandbox::{AttachedSandbox, SandboxConfig};

use super::{CableFd, Descriptors, HalfJob, Hypervisor};
use crate::connection::{
    ChildError, Connection, ConnectionSink, Steering, forward, inherited, leave_signals_to_parent,
    obeyed_while,
};
use crate::guest::{self, Connected};
use crate::link::{Link, Watcher, link};
use crate::network::{Cable, CardEnd};
use crate::portable::qemu::Qemu;
use crate::process::read_all;
use crate::protocol::{FromHost, OutputStream};
use crate::spec::{Outcome, RunSpec};
use crate::tcg::{EmulatedFiles, StartedQemu};

/// Interval of messages during work that takes long.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Longest time in which the last console output is sent.
const FLUSH_LIMIT: Duration = Duration::from_secs(20);

/// Runs the job in the descriptor of this number, and sends its outcome through standard input. Called once,
/// by a process with one thread that was started by [`super::HalfProcess::command`].
///
/// # Errors
/// The connection is closed.
pub fn main(job: RawFd) -> io::Result<()> {
    leave_signals_to_parent();
    let connection = Connection::of_stdin();
    let message = match serve(&connection, job) {
        Ok(outcome) => FromHost::End(outcome),
        Err(error) => error.message(),
    };
    connection.send(&message)
}

fn serve(connection: &Connection, job: RawFd) -> Result<Outcome, ChildError> {
    let mut text = Vec::new();
    // SAFETY: the descriptors of the job are this process's own.
    unsafe { inherited(job) }.read_to_end(&mut text)?;
    let HalfJob { mut run, hypervisor, descriptors, sync_disks } = serde_json::from_slice(&text)?;
    let files = InheritedFiles::take(&descriptors)?;
    let written: &[File] = if sync_disks { &files.disks } else { &[] };
    let written = written.iter().map(File::try_clone).collect::<Result<Vec<_>, _>>()?;
    let directory = std::env::var_os("TMPDIR").map(PathBuf::from).unwrap_or_default();
    // Made before the sandbox: it takes descriptors that are not available inside of each.
    let runtime = control::runtime()?;
    let guest = match hypervisor {
        Hypervisor::Kvm(kvm) => {
            // SAFETY: as above.
            let kvm = unsafe { inherited(kvm) }.into();
            SandboxedGuest::on_kvm(kvm, files, &mut run, directory)?
        }
        Hypervisor::Qemu(qemu) => {
            runtime.block_on(SandboxedGuest::in_qemu(&qemu, files, &mut run, &directory))?
        }
    };
    connection.send(&FromHost::Preparing("starting the guest".to_owned()))?;

    let (guest_side, watcher) = link();
    let Watcher { stop, input, control, console, output, read, phase, notes: _ } = watcher;
    let sender = connection.clone();
    let pump = console.pump(move |bytes| {
        // A connection that fails ends the run through the sink.
        let _failed = sender.send(&FromHost::Console(bytes.to_vec()));
    })?;
    let mut pumps = vec![pump];
    for (stream, output) in OutputStream::ALL.into_iter().zip(output) {
        let sender = connection.clone();
        pumps.push(output.pump(move |bytes| {
            let _failed = sender.send(&FromHost::Output(stream, bytes.to_vec()));
        })?);
    }
    let sink = Box::new(ConnectionSink(connection.clone()));
    let steering = Steering { stop, input, control, read };
    let run = forward(guest.run(&run, sink, guest_side), phase, connection);
    let outcome = runtime.block_on(obeyed_while(run, steering, connection))?;
    let lost: u64 = pumps.into_iter().map(|pump| pump.finish(FLUSH_LIMIT)).sum();
    let written = if sync_disks { write_back(connection, &written) } else { Ok(()) };
    let mut outcome = outcome?;
    if lost > 0 {
        let lost = display::units::bytes(lost);
        outcome.trouble.push(format!("{lost} of the guest's output are missing: their reader was too slow"));
    }
    // The profile is whole by now.
    outcome.trouble.extend(written.err().map(|error| error.to_string()));
    Ok(outcome)
}

/// Guest that does not run yet, in a process inside its sandbox.
enum SandboxedGuest {
    Kvm { disks: Vec<File>, connected: Connected, payload: BootPayload },
    Qemu(Box<StartedQemu>),
}

impl SandboxedGuest {
    /// Enters the sandbox of a process that runs a guest on KVM.
    fn on_kvm(
        kvm: OwnedFd,
        files: InheritedFiles,
        run: &mut RunSpec,
        directory: PathBuf,
    ) -> Result<Self, ChildError> {
        let InheritedFiles { kernel, initrd, disks, cable, report } = files;
        let standing = sandbox::enter(SandboxConfig { policy: run.policy, directory, report })?;
        run.meta.push(("sandbox".to_owned(), standing.words()));
        let payload = BootPayload { kernel: read_all(kernel)?, initrd: initrd.map(read_all).transpose()? };
        let end = cable.map(CardEnd::try_from).transpose()?;
        let network = run.machine.network.as_ref().zip(end).map(|(spec, end)| spec.card(end));
        Ok(Self::Kvm { disks, connected: Connected { kvm, network }, payload })
    }

    /// Starts QEMU, and enters the sandbox of a process that reads it.
    async fn in_qemu(
        qemu: &Qemu,
        files: InheritedFiles,
        run: &mut RunSpec,
        directory: &Path,
    ) -> Result<Self, ChildError> {
        let InheritedFiles { kernel, initrd, disks, cable, report } = files;
        let started =
            StartedQemu::start(qemu, run, EmulatedFiles { kernel, initrd, disks, cable }, directory).await?;
        let (policy, reach) = (run.policy, started.reach());
        let standing = sandbox::enter_attached(AttachedSandbox { policy, reach, capabilities: 0, report })?;
        run.meta.push(("sandbox".to_owned(), standing.words()));
        Ok(Self::Qemu(Box::new(started)))
    }

    async fn run(self, run: &RunSpec, sink: Box<dyn Sink>, link: Link) -> Result<Outcome, ChildError> {
        Ok(match self {
            Self::Kvm { disks, connected, payload } => {
                guest::run(run, disks, connected, payload, sink, link).await?
            }
            Self::Qemu(started) => started.run(run, sink, link).await?,
        })
    }
}

/// Descriptors of a job, owned.
struct InheritedFiles {
    kernel: File,
    initrd: Option<File>,
    disks: Vec<File>,
    cable: Option<Cable>,
    report: OwnedFd,
}

impl InheritedFiles {
    /// Takes the descriptors. A program that this process starts does not get them.
    fn take(numbers: &Descriptors) -> io::Result<Self> {
        let own = |number: RawFd| {
            // SAFETY: each number is that of a descriptor that the parent has passed on for this process
            // alone, and occurs once in the job.
            let file = unsafe { inherited(number) };
            fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
            Ok::<_, io::Error>(file)
        };
        let cable = |cable| {
            Ok::<_, io::Error>(match cable {
                CableFd::Tap(fd) => Cable::Tap(own(fd)?.into()),
                CableFd::Stream(fd) => Cable::Stream(own(fd)?.into()),
                CableFd::Interface(fd) => Cable::Interface(own(fd)?.into()),
            })
        };
        Ok(Self {
            kernel: own(numbers.kernel)?,
            initrd: numbers.initrd.map(own).transpose()?,
            disks: numbers.disks.iter().map(|number| own(*number)).collect::<Result<_, _>>()?,
            cable: numbers.cable.map(cable).transpose()?,
            report: own(numbers.report)?.into(),
        })
    }
}

/// Waits until all that the guest has written is on its disks. Sends a message from time to time: this can
/// take longer than a process may be silent.
fn write_back(connection: &Connection, disks: &[File]) -> Result<(), ChildError> {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(ALIVE_EVERY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // A connection that fails is noticed at the last message.
                let _failed = connection.send(&FromHost::Preparing("writing the disks".to_owned()));
            }
        });
        let result = disks.iter().try_for_each(File::sync_all);
        drop(done);
        result.map_err(ChildError::WriteBack)
    })
}
