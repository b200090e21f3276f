//! A guest directly on QEMU's software emulation (TCG), without KVM and without SVM, sampled through QEMU's
//! GDB stub.
//!
//! ```text
//!   vprof guest-half                               QEMU, TCG
//!   +--------------------------+  pairs of sockets  +------------------+
//!   | session, samples         | <----------------> | GDB stub         |
//!   | console, command         | <----------------> | COM1, COM2       |
//!   | reason of the end        | <----------------> | QMP              |
//!   +--------------------------+                    +------------------+
//! ```
//!
//! The guest half starts QEMU, opens what it reads of QEMU's process, and enters its sandbox. QEMU has its
//! ends of the sockets from its start on, so nobody else reaches the stub. It starts with its vCPUs stopped;
//! the first command of the stub's client, inside the sandbox, lets them run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use attach::gdb::ConnectedStub;
use attach::{AttachError, Attachment};
use disk_images::ImageError;
use display::message::Reason;
use profile::Sink;
use sampler::{AttachedSampler, Initrd, Session, SessionConfig};
use sandbox::{Reach, SandboxError, ThreadKind};
use statistics::estimate::ONE_CLOCK;
use symbols::names::OpenFiles;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};
use vmm::{EXIT_PORT, MachineEnd};

use crate::guest::{Command, GuestError, Inputs, ProfiledVm, command_rows, prepare, watch};
use crate::link::{ConsoleWriter, Link};
use crate::network::Cable;
use crate::portable::log::Log;
use crate::portable::qemu::{self, Board, Card, PassedDisk, Qemu};
use crate::process::read_all;
use crate::resident;
use crate::spec::{GuestEnd, Outcome, RunSpec};
use crate::stage::Stage;
use crate::systemd::Receiver;

/// Data that such a guest does not have, as a sentence of the profile.
const UNAVAILABLE: &str = "the guest runs in QEMU without KVM, and a GDB stub stops all vCPUs together: how a vCPU's time divides \
                       into guest, halted and vmm is estimated by samples; exits, KVM's counters and interrupts that \
                       devices raise are not known";

/// Time in which a QEMU ends that has closed its stub.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The same for a QEMU whose stub cannot be used; it may still run.
const UNSTARTED_LIMIT: Duration = Duration::from_secs(1);
/// Interval of checks for QEMU's end.
const END_CHECK: Duration = Duration::from_millis(2);

/// Why a guest can't be run in QEMU.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TcgError {
    /// QEMU could not be started.
    #[error("QEMU can't be started: can't {action}: {}", Reason(.source))]
    Start {
        /// Like "make a socket".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// QEMU's rights can't be limited.
    #[error("QEMU can't be started: {0}")]
    Sandbox(#[from] SandboxError),
    /// QEMU has ended before its guest ran.
    #[error("QEMU ended before the guest ran ({status}): {log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// Its last words.
        log: String,
    },
    /// The stub can't be used.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A disk can't be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The guest could not be run to its end.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl TcgError {
    /// The stage of the run in which it failed.
    pub(crate) fn stage(&self) -> Stage {
        match self {
            Self::Start { .. } | Self::Sandbox(_) | Self::Ended { .. } => Stage::Hypervisor,
            Self::Attach(_) | Self::Image(_) => Stage::BeforeGuest,
            Self::Guest(error) => error.stage(),
        }
    }
}

fn start_error(action: &'static str) -> impl Fn(io::Error) -> TcgError {
    move |source| TcgError::Start { action, source }
}

/// Both ends of what QEMU's character devices are connected to.
#[derive(Debug)]
struct Wire {
    ours: UnixStream,
    theirs: OwnedFd,
}

impl Wire {
    fn new() -> Result<Self, TcgError> {
        let (ours, theirs) = UnixStream::pair().map_err(start_error("make a socket"))?;
        Ok(Self { ours, theirs: theirs.into() })
    }
}

/// Open files of a guest in QEMU.
#[derive(Debug)]
pub(crate) struct EmulatedFiles {
    /// Its kernel.
    pub(crate) kernel: File,
    /// Its initrd.
    pub(crate) initrd: Option<File>,
    /// The disks of the run, in order.
    pub(crate) disks: Vec<File>,
    /// The cable of its card.
    pub(crate) cable: Option<Cable>,
}

/// Everything that QEMU is started with.
#[derive(Debug)]
struct Machine<'a> {
    spec: &'a RunSpec,
    files: &'a EmulatedFiles,
    /// Second openings of the disks, for reading.
    readable: &'a [File],
    stub: Wire,
    monitor: Wire,
    console: Wire,
    command: Option<Wire>,
}

impl Machine<'_> {
    fn card(&self) -> Option<Card<'_>> {
        let (cable, network) = self.files.cable.as_ref().zip(self.spec.machine.network.as_ref())?;
        Some(Card { cable, mac: network.mac })
    }

    fn disks(&self) -> Vec<PassedDisk<'_>> {
        let files = self.files.disks.iter().zip(self.readable);
        let disk = |(spec, (file, readable))| PassedDisk::new(spec, file, readable);
        self.spec.machine.disks.iter().zip(files).map(disk).collect()
    }

    fn arguments(&self) -> Vec<OsString> {
        let machine = &self.spec.machine;
        let mut devices = Vec::new();
        for (name, wire) in self.wires() {
            devices.extend(qemu::wire(name, wire.theirs.as_raw_fd()));
        }
        let mut add = |words: &[&str]| devices.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["-S", "-gdb", "chardev:stub", "-mon", "chardev=monitor,mode=control"]);
        add(&["-serial", "chardev:com1"]);
        if self.command.is_some() {
            add(&["-serial", "chardev:com2"]);
        }
        add(&["-device", "virtio-rng-pci"]);
        add(&["-device", &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=4")]);
        let board = Board {
            properties: "q35,smm=off,vmport=off,sata=off,smbus=off,usb=off",
            kernel: self.files.kernel.as_raw_fd(),
            initrd: self.files.initrd.as_ref().map(AsRawFd::as_raw_fd),
            cmdline: &machine.cmdline,
            cpus: usize::from(machine.vcpus),
            memory_bytes: machine.memory_bytes,
            disks: &self.disks(),
            card: self.card(),
        };
        board.arguments(&devices)
    }

    /// Returns the sockets, and the names of the character devices at them.
    fn wires(&self) -> impl Iterator<Item = (&'static str, &Wire)> {
        let wires = [("stub", &self.stub), ("monitor", &self.monitor), ("com1", &self.console)];
        wires.into_iter().chain(self.command.as_ref().map(|wire| ("com2", wire)))
    }

    fn inherited(&self) -> Vec<RawFd> {
        let wires = self.wires().map(|(_, wire)| wire.theirs.as_raw_fd());
        let boot = [Some(&self.files.kernel), self.files.initrd.as_ref()];
        let boot = boot.into_iter().flatten().map(AsRawFd::as_raw_fd);
        let disks = self.disks().into_iter().flat_map(PassedDisk::into_numbers);
        wires.chain(boot).chain(disks).chain(self.files.cable.as_ref().map(AsRawFd::as_raw_fd)).collect()
    }

    fn start(&self, qemu: &Qemu, directory: &Path) -> Result<Child, TcgError> {
        let mut command = qemu::command(qemu, self.arguments(), self.inherited(), directory, None)?;
        command.spawn().map_err(start_error("start it"))
    }
}

/// QEMU whose vCPUs are stopped. No byte of its stub, its devices and its memory has been read.
///
/// QEMU ends with the thread that has started it.
#[derive(Debug)]
pub(crate) struct StartedQemu {
    version: String,
    process: QemuProcess,
    stub: ConnectedStub,
    monitor: UnixStream,
    com1: UnixStream,
    com2: Option<UnixStream>,
    /// The disks, for reading.
    disks: Vec<File>,
    initrd: Option<Initrd>,
}

impl StartedQemu {
    /// Starts QEMU with the run's machine, and opens all that is read of its process and of its guest's files
    /// later. QEMU has its temporary files in `directory`.
    ///
    /// # Errors
    /// QEMU does not start.
    pub(crate) async fn start(
        qemu: &Qemu,
        spec: &RunSpec,
        files: EmulatedFiles,
        directory: &Path,
    ) -> Result<Self, TcgError> {
        let disks = spec.machine.disks.iter().zip(&files.disks);
        let readable = disks.map(|(disk, file)| disk.read_only(file)).collect::<Result<Vec<_>, _>>()?;
        let machine = Machine {
            spec,
            files: &files,
            readable: &readable,
            stub: Wire::new()?,
            monitor: Wire::new()?,
            console: Wire::new()?,
            command: spec.command.as_ref().map(|_| Wire::new()).transpose()?,
        };
        let mut process = QemuProcess::new(machine.start(qemu, directory)?)?;
        // QEMU has its own ends; ours would keep the readers from seeing their end.
        let Machine { stub, monitor, console, command, .. } = machine;
        let [stub, monitor, com1] = [stub, monitor, console].map(|wire| wire.ours);
        let com2 = command.map(|wire| wire.ours);
        let stub = match ConnectedStub::from_pair(stub, process.child.id().cast_signed()) {
            Ok(stub) => stub,
            Err(error) => return Err(process.explain(error).await),
        };
        // Without room for it names come from the guest's memory alone.
        let initrd = files.initrd.and_then(|file| Initrd::keep(&read_all(file).ok()?).ok());
        let version = qemu.version.clone();
        Ok(Self { version, process, stub, monitor, com1, com2, disks: readable, initrd })
    }

    /// Returns what this process reaches of QEMU from here on.
    pub(crate) fn reach(&self) -> Reach {
        self.stub.reach()
    }

    /// Boots the guest, samples it into `sink`, and returns when it has ended.
    ///
    /// # Errors
    /// The guest does not start, or its profile can't be written.
    pub(crate) async fn run(
        self,
        spec: &RunSpec,
        sink: Box<dyn Sink>,
        link: Link,
    ) -> Result<Outcome, TcgError> {
        let Self { version, mut process, stub, monitor, com1, com2, disks, initrd } = self;
        let Link { mut stop, mut input, mut control, console, output, read: _, phase, notes: _ } = link;
        let [output, _] = output;
        let vcpus = spec.machine.vcpus;
        let own = [("unavailable", UNAVAILABLE), (ONE_CLOCK, "1"), ("qemu", version.as_str())];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let meta = spec.meta.iter().cloned().chain(own).collect();
        resident::give_back_at_once();
        let config = SessionConfig { vcpus, recording: spec.recording.clone(), meta };
        let (mut session, samplers) = Session::new(config, sink, open_disks(spec, disks)?);
        prepare(&mut session, spec, initrd);
        let reason = Arc::new(Mutex::new(None));
        let mut readers = vec![follow_monitor(monitor, Arc::clone(&reason))?];
        readers.push(pump(&com1, Tee(session.console(), console))?);
        let (receiver, progress) =
            spec.command.as_ref().map(|command| Receiver::new(command, output)).unzip();
        if let Some((com2, receiver)) = com2.as_ref().zip(receiver) {
            readers.push(pump(com2, receiver)?);
        }
        let mut command =
            spec.command.as_ref().zip(progress).map(|(command, progress)| Command::new(command, progress));
        // QEMU may take long to answer.
        let described = tokio::task::spawn_blocking(move || stub.describe(usize::from(vcpus))).await;
        let target = match described.map_err(|error| start_error("wait for it")(io::Error::other(error)))? {
            Ok(target) => target,
            Err(error) => return Err(process.explain(error).await),
        };
        let mut samplers = samplers.into_iter();
        let attachment = Attachment::start_by_gdb(target, |_| -> AttachedSampler {
            samplers.next().expect("the session has one observer per vCPU").into()
        })?;
        session.start(attachment.memory().clone()).map_err(GuestError::Sink)?;
        let machine = EmulatedVm { attachment, com1, com2 };
        let inputs = Inputs::new(&mut stop, &mut input, &mut control);
        watch(&machine, &session, spec.duration, inputs, command.as_mut(), &phase).await?;
        let EmulatedVm { attachment, com1, com2 } = machine;
        let ended = attachment.wait()?;
        // The observers hold the writing ends of the rings that the collector empties.
        drop(ended.observers);
        // A guest that was stopped runs until its lists have been read once more.
        let stopped = ended.end == attach::AttachmentEnd::Detached;
        let mut end = MachineEnd::Stopped;
        if !stopped {
            let status = process.end_within(END_LIMIT).await?;
            readers.drain(..).for_each(join);
            let reason = reason.lock().unwrap_or_else(PoisonError::into_inner).take();
            end = ended_by(status, reason.as_deref(), &process.log.last_words().await);
        }
        let command = command.and_then(|command| command.ended());
        let meta = command_rows(command, None).collect();
        if let Some(command) = command {
            end = MachineEnd::Exited(command.status.into());
        }
        let end = GuestEnd::Ran(end);
        session.event("end", &end.sentence());
        let totals = session.finish(meta);
        process.end_within(Duration::ZERO).await?;
        drop((com1, com2));
        readers.into_iter().for_each(join);
        Ok(Outcome { end, totals, host_restarts: 0, trouble: Vec::new() })
    }
}

/// A QEMU that was started, and its output.
#[derive(Debug)]
struct QemuProcess {
    child: Child,
    log: Log,
}

impl QemuProcess {
    /// Reads the output of a QEMU from now on.
    fn new(mut child: Child) -> Result<Self, TcgError> {
        let streams = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        let streams = streams.into_iter().flatten().map(pipe::Receiver::from_owned_fd);
        let streams = streams.collect::<io::Result<Vec<_>>>().map_err(start_error("read its messages"))?;
        Ok(Self { child, log: Log::follow(streams) })
    }

    /// Returns the error of a QEMU whose stub can't be used: its own words, if it has ended.
    async fn explain(&mut self, error: AttachError) -> TcgError {
        // A QEMU that has not ended by then ends with this process.
        match timeout(UNSTARTED_LIMIT, self.end_within(2 * UNSTARTED_LIMIT)).await {
            Ok(Ok(status)) => {
                TcgError::Ended { status: status.to_string(), log: self.log.last_words().await }
            }
            _ => error.into(),
        }
    }

    /// Waits for the end of QEMU, and ends it after this time.
    async fn end_within(&mut self, limit: Duration) -> Result<ExitStatus, TcgError> {
        let failed = start_error("wait for it");
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().map_err(&failed)? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                self.child.kill().map_err(&failed)?;
            }
            sleep(END_CHECK).await;
        }
    }
}

/// Returns the files on the guest's disks.
fn open_disks(spec: &RunSpec, disks: Vec<File>) -> Result<OpenFiles, ImageError> {
    let contents = spec.machine.disks.iter().zip(disks).map(|(disk, file)| disk.contents(file, false));
    Ok(disk_images::files::open(contents.collect::<Result<_, _>>()?))
}

/// Waits for a thread that reads from a QEMU that has ended.
fn join(reader: JoinHandle<()>) {
    // A panic in it was printed when it happened.
    let _ = reader.join();
}

/// Returns the end of a guest whose QEMU ended by itself. `reason` is that of QMP's event SHUTDOWN
/// (qapi/run-state.json, `ShutdownCause`, QEMU 7.2).
fn ended_by(status: ExitStatus, reason: Option<&str>, log: &str) -> MachineEnd {
    match (reason, status.code()) {
        (Some("guest-shutdown"), _) => MachineEnd::PowerOff,
        (Some("guest-reset"), _) => MachineEnd::Reset,
        (Some(reason), _) => MachineEnd::Failed(format!("QEMU has ended it: {reason}")),
        // The exit port: QEMU's exit code is twice the value, and one more (hw/misc/debugexit.c).
        (None, Some(code)) if code & 1 == 1 && log.is_empty() => {
            MachineEnd::Exited(u32::try_from(code >> 1).unwrap_or(0))
        }
        (None, _) => MachineEnd::Failed(format!("QEMU ended ({status}): {log}")),
    }
}

/// Reads QMP until QEMU ends, and keeps the reason of the guest's end.
fn follow_monitor(
    monitor: UnixStream,
    reason: Arc<Mutex<Option<String>>>,
) -> Result<JoinHandle<()>, TcgError> {
    let follow = move || {
        // Events are sent only after this. It fails if QEMU has ended, which the stub shows as well.
        if (&monitor).write_all(b"{\"execute\":\"qmp_capabilities\"}\n").is_err() {
            return;
        }
        for line in BufReader::new(monitor).lines().map_while(Result::ok) {
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if event["event"] == "SHUTDOWN" {
                let cause = event["data"]["reason"].as_str().unwrap_or("unknown").to_owned();
                reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
            }
        }
    };
    spawn("vprof-monitor", follow)
}

/// Passes on what a serial port sends, until QEMU ends.
fn pump(port: &UnixStream, mut to: impl Write + Send + 'static) -> Result<JoinHandle<()>, TcgError> {
    let mut port = port.try_clone().map_err(start_error("use a serial port"))?;
    spawn("vprof-serial", move || {
        let mut buffer = [0; 4096];
        loop {
            match port.read(&mut buffer) {
                Ok(count @ 1..) => {
                    // A part that fails must not keep the guest from sending.
                    let _ = to.write_all(&buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, TcgError> {
    let run = move || {
        sandbox::enter_thread(ThreadKind::Device);
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(start_error("start a thread"))
}

/// Writer to both the profile and the run's watcher. Neither waits.
struct Tee(Box<dyn Write + Send>, ConsoleWriter);

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

/// A guest in QEMU that is being profiled.
#[derive(Debug)]
struct EmulatedVm {
    attachment: Attachment<AttachedSampler>,
    com1: UnixStream,
    com2: Option<UnixStream>,
}

/// Sends as many bytes as QEMU takes at once.
fn send(port: &UnixStream, bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` is readable for its length, and the descriptor is open through the call.
    let sent = unsafe { libc::send(port.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).unwrap_or(0)
}

impl ProfiledVm for EmulatedVm {
    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.attachment.ended_fd()
    }

    fn has_ended(&self) -> bool {
        self.attachment.has_ended()
    }

    fn stop(&self) {
        self.attachment.stop();
    }

    fn input(&self, bytes: &[u8]) -> usize {
        send(&self.com1, bytes)
    }

    fn second_input(&self, bytes: &[u8]) -> usize {
        self.com2.as_ref().map_or(bytes.len(), |port| send(port, bytes))
    }

    fn poll(&self, session: &Session) {
        self.attachment.poll(session);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn ends_are_told_by_the_monitor_then_by_the_exit_code() {
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(ended_by(code(0), Some("guest-shutdown"), ""), MachineEnd::PowerOff);
        assert_eq!(ended_by(code(0), Some("guest-reset"), ""), MachineEnd::Reset);
        assert_eq!(ended_by(code(1), None, ""), MachineEnd::Exited(0));
        assert_eq!(ended_by(code(15), None, ""), MachineEnd::Exited(7));
        let failed = |end| matches!(end, MachineEnd::Failed(reason) if reason.starts_with("QEMU "));
        assert!(failed(ended_by(code(1), None, "qemu: no memory")));
        assert!(failed(ended_by(ExitStatus::from_raw(9), None, "")));
        assert!(failed(ended_by(code(0), Some("host-qmp-quit"), "")));
    }

    #[test]
    fn the_monitors_reason_is_kept() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reason = Arc::new(Mutex::new(None));
        let reader = follow_monitor(ours, Arc::clone(&reason)).unwrap();
        let mut asked = String::new();
        BufReader::new(&theirs).read_line(&mut asked).unwrap();
        assert!(asked.contains("qmp_capabilities"));
        let shutdown = |why: &str| format!("{{\"event\":\"SHUTDOWN\",\"data\":{{\"reason\":\"{why}\"}}}}\n");
        let text =
            format!("{{\"event\":\"STOP\"}}\nno JSON\n{}{}", shutdown("guest-reset"), shutdown("other"));
        (&theirs).write_all(text.as_bytes()).unwrap();
        drop(theirs);
        reader.join().unwrap();
        assert_eq!(reason.lock().unwrap().as_deref(), Some("guest-reset"));
    }

    #[test]
    fn input_that_nobody_takes_is_left_to_the_caller() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let bytes = vec![b'x'; 16 << 20];
        let sent = send(&ours, &bytes);
        assert!(sent > 0 && sent < bytes.len());
        assert_eq!(send(&ours, &bytes), 0);
    }
}
