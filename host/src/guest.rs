//! Runs one guest on this machine's KVM and profiles it: the one code path of `vprof run`, here and in the
//! portable host alike.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use disk_images::contents::DiskContents;
use disk_images::{BootPayload, ImageError};
use display::message::{Reason, Shown};
use profile::{Sink, SinkError};
use sampler::{Initrd, Session, SessionConfig};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use vmm::{Console, Disk, Extra, Machine, MachineEnd, Network, OutputPorts, StartError, VmConfig, WaitError};

use crate::link::{ConsoleWriter, Link};
use crate::output;
use crate::protocol::OutputStream;
use crate::resident;
use crate::spec::{DiskSpec, GuestEnd, MachineSpec, Outcome, RunSpec};
use crate::stage::Stage;
use crate::systemd::{Ended, GuestCommand, Progress, Receiver};
use control::{Phase, SessionChange};

/// Interval of the checks of the run.
const TICK: Duration = Duration::from_millis(250);
/// Interval of attempts to fill the guest's full input FIFO.
const INPUT_RETRY: Duration = Duration::from_millis(5);
/// Console input that waits for the guest, bytes; more is left to the sender.
const INPUT_BUFFER: usize = 4 << 10;
/// Time limit for the vCPUs to stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Why a guest could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A disk can't be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The machine could not start.
    #[error("the machine could not start: {0}")]
    Start(#[from] StartError),
    /// A thread of the machine hangs before anything was recorded.
    #[error("the machine did not end: {0}")]
    Hang(#[from] WaitError),
    /// The profile could not be written to its end.
    #[error("{0}; what was written before can be read")]
    Sink(#[from] SinkError),
    /// The guest's end can't be waited for.
    #[error("can't wait for the machine's end: {}", Reason(.0))]
    Wait(io::Error),
    /// The command's output has no way to its reader.
    #[error("can't make the ports for the command's output: {}", Reason(.0))]
    Ports(io::Error),
    /// The disks can't be opened a second time.
    #[error("can't open the guest's disks again: {}", Reason(.0))]
    Reopen(io::Error),
}

impl GuestError {
    /// The stage of the run in which it failed.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Start(StartError::Kvm(_)) => Stage::Hypervisor,
            Self::Image(_) | Self::Start(_) | Self::Ports(_) | Self::Reopen(_) => Stage::BeforeGuest,
            Self::Hang(_) | Self::Sink(_) | Self::Wait(_) => Stage::Guest,
        }
    }
}

/// Descriptors of the machine, and connections of the devices that it has.
#[derive(Debug)]
pub struct Connected {
    /// `/dev/kvm`.
    pub kvm: OwnedFd,
    /// Its network card.
    pub network: Option<Network>,
}

/// Boots the guest, samples it into `sink`, and returns when it has ended. `disks` are the open files of the
/// spec's disks.
///
/// The outcome reports failures after the guest's end: the recording is complete then.
///
/// # Errors
/// The machine does not start, or its profile can't be written.
pub async fn run(
    spec: &RunSpec,
    disks: Vec<File>,
    connected: Connected,
    payload: BootPayload,
    sink: Box<dyn Sink>,
    link: Link,
) -> Result<Outcome, GuestError> {
    let Link { mut stop, mut input, mut control, console, output, read, phase, notes: _ } = link;
    let contents: Vec<DiskContents> = spec
        .machine
        .disks
        .iter()
        .zip(disks)
        .map(|(disk, file)| disk.contents(file, disk.is_written()))
        .collect::<Result<_, _>>()?;
    let disk = |(disk, contents): (&DiskSpec, &DiskContents)| {
        Ok(Disk { file: contents.to_disk()?, mode: disk.mode })
    };
    let disks = spec.machine.disks.iter().zip(&contents).map(disk).collect::<io::Result<_>>();
    let disks = disks.map_err(GuestError::Reopen)?;
    resident::give_back_at_once();
    let (mut session, observers) = Session::new(
        SessionConfig {
            vcpus: spec.machine.vcpus,
            recording: spec.recording.clone(),
            meta: spec.meta.clone(),
        },
        sink,
        disk_images::files::open(contents.clone()),
    );
    // Without room for it names come from the guest's memory alone.
    prepare(&mut session, spec, payload.initrd.as_deref().and_then(|initrd| Initrd::keep(initrd).ok()));
    // A guest that does not use the ports has the serial port.
    let by_serial = output[OutputStream::Output.index()].clone();
    let (receiver, progress) = spec.command.as_ref().map(|command| Receiver::new(command, by_serial)).unzip();
    let console = Shared(Arc::new(Mutex::new(Tee(session.console(), Box::new(console)))));
    let ports = spec.machine.output_ports.then(|| output::ports(output, read)).transpose();
    let devices = GuestDevices { disks, console, receiver, ports: ports.map_err(GuestError::Ports)? };
    let config = machine_config(&spec.machine, connected, payload, devices);
    let mut command =
        spec.command.as_ref().zip(progress).map(|(command, progress)| Command::new(command, progress));
    let mut observers = observers.into_iter();
    let mut machine =
        Machine::start(config, |_| observers.next().expect("the session has one observer per vCPU"))?;
    session.bind(&mut machine);
    if let Err(error) = session.start(machine.memory()) {
        machine.stop();
        machine.wait(Some(STOP_LIMIT))?;
        return Err(error.into());
    }
    let inputs = Inputs::new(&mut stop, &mut input, &mut control);
    watch(&machine, &session, spec.duration, inputs, command.as_mut(), &phase).await?;
    let mut meta = Vec::new();
    // A number for the curious: a host without /proc/self/smaps has a profile without it.
    if let Ok(bytes) = machine.resident_beyond_guest() {
        meta.push(("memory_beyond_guest_bytes".to_owned(), bytes.to_string()));
    }
    let mut trouble = Vec::new();
    let (end, command_ns) = match machine.wait(Some(STOP_LIMIT)) {
        Ok(ended) => {
            // The observers hold the writing ends of the rings that the collector empties.
            drop(ended.observers);
            (ended.end, ended.command_ns)
        }
        Err(hang) => {
            let sentence = GuestError::from(hang).to_string();
            session.event("missing", &sentence);
            trouble.push(sentence);
            (MachineEnd::Stopped, None)
        }
    };
    let command = command.and_then(|command| command.ended());
    meta.extend(command_rows(command, command_ns.map(Duration::from_nanos)));
    let end = GuestEnd::Ran(command.map_or(end, |command| MachineEnd::Exited(command.status.into())));
    session.event("end", &end.sentence());
    let totals = session.finish(meta);
    let written = spec.machine.disks.iter().zip(&contents).filter(|(disk, _)| disk.is_written());
    trouble.extend(unwritten(written.map(|(disk, contents)| (disk.path.as_path(), contents.flush()))));
    Ok(Outcome { end, totals, host_restarts: 0, trouble })
}

/// Other ends of the guest's devices.
struct GuestDevices {
    disks: Vec<Disk>,
    console: Shared,
    /// The other end of the second console, for a command.
    receiver: Option<Receiver<ConsoleWriter>>,
    /// Ports of a command's output.
    ports: Option<OutputPorts>,
}

fn machine_config(
    machine: &MachineSpec,
    connected: Connected,
    payload: BootPayload,
    devices: GuestDevices,
) -> VmConfig {
    let GuestDevices { disks, console, receiver, ports } = devices;
    VmConfig {
        kvm: Some(connected.kvm),
        vcpus: machine.vcpus,
        memory_bytes: machine.memory_bytes,
        huge_pages: machine.huge_pages,
        cpu: machine.cpu,
        payload: vmm::Payload::Linux {
            kernel: payload.kernel,
            initrd: payload.initrd,
            cmdline: machine.cmdline.clone(),
        },
        disks,
        console: Console(Box::new(console.clone())),
        second_console: receiver.map(|receiver| Console(Box::new(receiver))),
        extra: Extra {
            network: connected.network,
            console: machine.virtio_console.then(|| Console(Box::new(console))),
            ports,
        },
    }
}

/// Prepares the session of a guest that boots: the end of its command, the conditions, and the programs of
/// its initrd.
pub(crate) fn prepare(session: &mut Session, spec: &RunSpec, initrd: Option<Initrd>) {
    if spec.meta.iter().any(|(key, _)| key == "command") {
        session.ends_with_kernel();
    }
    session.boots();
    spec.waits.iter().for_each(|wait| session.wait_for(wait.clone()));
    if let Some(initrd) = initrd {
        session.booted_with(initrd);
    }
}

/// Returns the rows of `meta` about a command. `wall` is its duration by the guest itself, for a command that
/// systemd has not run.
pub(crate) fn command_rows(
    command: Option<Ended>,
    wall: Option<Duration>,
) -> impl Iterator<Item = (String, String)> {
    let ran = command.and_then(|command| command.ran);
    let wall = ran.map_or(wall, |(_, wall)| Some(wall));
    let wall = wall.map(|wall| ("command_wall_ns".to_owned(), wall.as_nanos().to_string()));
    let begun = ran.map(|(begun_ns, _)| ("command_begun_ns".to_owned(), begun_ns.to_string()));
    wall.into_iter().chain(begun)
}

/// Says which disks lack what the guest has written.
fn unwritten<'a>(flushed: impl Iterator<Item = (&'a Path, io::Result<()>)>) -> impl Iterator<Item = String> {
    flushed.filter_map(|(path, result)| {
        let source = result.err()?;
        Some(format!("can't write the rest of {}: {}", Shown(path), Reason(&source)))
    })
}

/// A machine that is being profiled, as the server of the run needs it.
pub trait ProfiledVm {
    /// A descriptor that becomes readable when it is over.
    fn ended_fd(&self) -> BorrowedFd<'_>;
    /// True once it is over.
    fn has_ended(&self) -> bool;
    /// Asks for the end; returns at once.
    fn stop(&self);
    /// Bytes for the console; returns how many were taken.
    fn input(&self, bytes: &[u8]) -> usize;
    /// Bytes for the second console, where there is one; returns how many were taken.
    fn second_input(&self, bytes: &[u8]) -> usize {
        bytes.len()
    }
    /// Called a few times a second.
    fn poll(&self, session: &Session) {
        let _ = session;
    }
}

impl<O: vmm::Observer> ProfiledVm for Machine<O> {
    fn ended_fd(&self) -> BorrowedFd<'_> {
        Machine::ended_fd(self)
    }

    fn has_ended(&self) -> bool {
        Machine::has_ended(self)
    }

    fn stop(&self) {
        Machine::stop(self);
    }

    fn input(&self, bytes: &[u8]) -> usize {
        self.console_input(bytes)
    }

    fn second_input(&self, bytes: &[u8]) -> usize {
        Machine::second_input(self, bytes)
    }

    fn poll(&self, session: &Session) {
        if self.take_snapshot_full() {
            session.event(
                "disk",
                "the temporary file of --snapshot has no more room: the guest's writes fail (TMPDIR chooses another \
                 directory)",
            );
        }
    }
}

/// Inputs from the run's watcher.
#[derive(Debug)]
pub struct Inputs<'a> {
    stop: &'a mut tokio::sync::watch::Receiver<bool>,
    input: &'a mut tokio::sync::mpsc::Receiver<Vec<u8>>,
    control: &'a mut tokio::sync::mpsc::Receiver<SessionChange>,
}

impl<'a> Inputs<'a> {
    /// The ends of a link that are listened to.
    pub fn new(
        stop: &'a mut tokio::sync::watch::Receiver<bool>,
        input: &'a mut tokio::sync::mpsc::Receiver<Vec<u8>>,
        control: &'a mut tokio::sync::mpsc::Receiver<SessionChange>,
    ) -> Self {
        Self { stop, input, control }
    }
}

/// A command in a guest with systemd.
#[derive(Debug)]
pub struct Command<'a> {
    command: &'a GuestCommand,
    progress: tokio::sync::watch::Receiver<Progress>,
}

impl<'a> Command<'a> {
    /// Takes a command, and the news of it by its receiver.
    pub fn new(command: &'a GuestCommand, progress: tokio::sync::watch::Receiver<Progress>) -> Self {
        Self { command, progress }
    }

    /// The next change; never, once there is none any more.
    async fn changed(&mut self) -> Progress {
        match self.progress.changed().await {
            Ok(()) => *self.progress.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns the end of the command, once it has ended.
    pub(crate) fn ended(&self) -> Option<Ended> {
        match *self.progress.borrow() {
            Progress::Ended(ended) => Some(ended),
            _ => None,
        }
    }
}

/// Waits for a change of what may not be there.
async fn next(command: Option<&mut Command<'_>>) -> Progress {
    match command {
        Some(command) => command.changed().await,
        None => std::future::pending().await,
    }
}

/// Serves the run until the machine has ended.
///
/// # Errors
/// Its end can't be waited for.
pub async fn watch(
    machine: &impl ProfiledVm,
    session: &Session,
    duration: Option<Duration>,
    Inputs { stop, input, control }: Inputs<'_>,
    mut command: Option<&mut Command<'_>>,
    phase: &tokio::sync::watch::Sender<Phase>,
) -> Result<(), GuestError> {
    // SAFETY: the descriptor belongs to the machine, which outlives this borrow of it, and its number stays
    // the same.
    let ended = unsafe { AsyncFd::register_with_interest(machine.ended_fd(), Interest::READABLE) };
    let ended = ended.map_err(|e| GuestError::Wait(e.into()))?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let far = Duration::from_secs(366 * 86_400);
    let deadline = sleep_until(Instant::now() + duration.unwrap_or(far));
    tokio::pin!(deadline);
    let mut waiting = VecDeque::new();
    // What is left of a command's script.
    let mut script: &[u8] = &[];
    let (mut stopping, mut stop_open, mut input_open, mut control_open) = (false, true, true, true);
    while !machine.has_ended() {
        tokio::select! {
            ready = ended.readable() => ready.map_err(GuestError::Wait)?.clear_ready(),
            changed = stop.changed(), if stop_open && !stopping => match changed {
                Ok(()) if *stop.borrow_and_update() => {
                    stopping = true;
                    machine.stop();
                }
                Ok(()) => {}
                Err(_) => stop_open = false,
            },
            bytes = input.recv(), if input_open && waiting.len() < INPUT_BUFFER => match bytes {
                Some(bytes) => {
                    waiting.extend(bytes);
                    feed(machine, &mut waiting);
                }
                None => input_open = false,
            },
            progress = next(command.as_deref_mut()) => match progress {
                Progress::Booting => {}
                Progress::Taken => {
                    script = command.as_deref().map_or(&[], |command| command.command.script());
                }
                Progress::Running => session.event("command", "the guest is up and the command begins"),
                Progress::Ended(Ended { status, .. }) => {
                    session.event("command", &format!("the command ended with status {status}"));
                    if !stopping && command.as_deref().is_some_and(|command| !command.command.shuts_down) {
                        stopping = true;
                        machine.stop();
                    }
                }
            },
            change = control.recv(), if control_open => match change {
                Some(change) => {
                    apply(session, &change);
                    // The next reader sees it.
                    phase.send_replace(Phase::Running(session.status()));
                }
                None => control_open = false,
            },
            () = tokio::time::sleep(INPUT_RETRY), if !waiting.is_empty() || !script.is_empty() => {
                feed(machine, &mut waiting);
                let taken = machine.second_input(script);
                script = script.get(taken..).unwrap_or_default();
            }
            _ = tick.tick() => {
                machine.poll(session);
                phase.send_replace(Phase::Running(session.status()));
                if (session.failed() || session.precise()) && !stopping {
                    stopping = true;
                    machine.stop();
                }
            }
            () = session.reached(), if !stopping => {
                stopping = true;
                machine.stop();
            }
            () = &mut deadline, if !stopping => {
                stopping = true;
                machine.stop();
            }
        }
    }
    phase.send_replace(Phase::Running(session.status()));
    Ok(())
}

/// Carries out a change.
fn apply(session: &Session, change: &SessionChange) {
    match change {
        SessionChange::Sampling(on) => session.set_sampling(*on),
        SessionChange::Wait(wait) => session.wait_for(wait.clone()),
        SessionChange::Rate(hz) => session.set_rate(*hz),
        SessionChange::Mark(text) => session.event("mark", &text.replace(char::is_control, " ")),
        SessionChange::Write => session.flush(),
    }
}

fn feed(machine: &impl ProfiledVm, waiting: &mut VecDeque<u8>) {
    let taken = machine.input(waiting.make_contiguous());
    waiting.drain(..taken.min(waiting.len()));
}

/// One place for the output of several devices.
#[derive(Clone)]
struct Shared(Arc<Mutex<Tee>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Writer to both the profile and the run's watcher. Neither waits.
struct Tee(Box<dyn Write + Send>, Box<dyn Write + Send>);

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A part that fails must not keep the bytes from the other.
        let _ = self.0.write_all(bytes);
        let _ = self.1.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
