//! The process of a guest half.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use images::BootPayload;
use vmm::Vsock;
use vmm::net::{Interface, Stream, Tap};
use vmm::vsock::Relay;
use wall::WallConfig;

use super::{CableFd, Descriptors, HalfJob};
use crate::connection::{
    ChildError, Connection, ConnectionSink, forward, inherited, leave_signals_to_parent, obey,
};
use crate::guest::{self, Connected};
use crate::link::{Watcher, link};
use crate::network::CardEnd;
use crate::protocol::{FromHost, OutputStream};
use crate::spec::Outcome;

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
    let HalfJob { mut run, descriptors, sync_disks } = serde_json::from_slice(&text)?;
    let taken = Taken::new(&descriptors)?;
    let directory = std::env::var_os("TMPDIR").map(PathBuf::from).unwrap_or_default();
    let standing = wall::enter(WallConfig { policy: run.policy, directory, report: taken.report })?;
    run.meta.push(("wall".to_owned(), standing.words()));

    let payload =
        BootPayload { kernel: read_all(taken.kernel)?, initrd: taken.initrd.map(read_all).transpose()? };
    let network = run.machine.network.as_ref().zip(taken.cable).map(|(spec, end)| spec.card(end));
    let vsock = match (run.machine.vsock_cid, taken.vsock) {
        (Some(cid), Some(stream)) => Some(Vsock { cid, backend: Box::new(Relay::new(stream)?) }),
        _ => None,
    };
    let connected = Connected { kvm: taken.kvm, network, vsock };
    let written = taken.disks.iter().map(File::try_clone).collect::<Result<Vec<_>, _>>()?;
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
    let reader = connection.reader()?;
    std::thread::Builder::new()
        .name("vprof-port".to_owned())
        .spawn(move || obey(reader, &stop, &input, &control, &read))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sink = Box::new(ConnectionSink(connection.clone()));
    let run = guest::run(&run, taken.disks, connected, payload, sink, guest_side);
    let outcome = runtime.block_on(forward(run, phase, connection));
    let lost: u64 = pumps.into_iter().map(|pump| pump.finish(FLUSH_LIMIT)).sum();
    let written = if sync_disks { write_back(connection, &written) } else { Ok(()) };
    let mut outcome = outcome?;
    if lost > 0 {
        let lost = text::units::bytes(lost);
        outcome.trouble.push(format!("{lost} of the guest's output are missing: their reader was too slow"));
    }
    // The profile is whole by now.
    outcome.trouble.extend(written.err().map(|error| error.to_string()));
    Ok(outcome)
}

/// The descriptors of a job, owned.
struct Taken {
    kvm: OwnedFd,
    kernel: File,
    initrd: Option<File>,
    disks: Vec<File>,
    cable: Option<CardEnd>,
    vsock: Option<File>,
    report: OwnedFd,
}

impl Taken {
    fn new(numbers: &Descriptors) -> io::Result<Self> {
        // SAFETY: each number is that of a descriptor that the parent has passed on for this process alone,
        // and occurs once in the job.
        let own = |number: RawFd| unsafe { OwnedFd::from_raw_fd(number) };
        let file = |number| File::from(own(number));
        let cable = |cable| {
            Ok::<_, io::Error>(match cable {
                CableFd::Tap(fd) => CardEnd::Tap(Tap::from(own(fd))),
                CableFd::Stream(fd) => CardEnd::Stream(Stream::new(own(fd).into())?),
                CableFd::Interface(fd) => CardEnd::Interface(Interface::from(own(fd))),
            })
        };
        Ok(Self {
            kvm: own(numbers.kvm),
            kernel: file(numbers.kernel),
            initrd: numbers.initrd.map(file),
            disks: numbers.disks.iter().map(|number| file(*number)).collect(),
            cable: numbers.cable.map(cable).transpose()?,
            vsock: numbers.vsock.map(file),
            report: own(numbers.report),
        })
    }
}

fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
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
