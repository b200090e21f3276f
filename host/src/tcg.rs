//! A guest directly on QEMU's software emulation (TCG), without KVM and without SVM, sampled through QEMU's
//! GDB stub.
//!
//! ```text
//!   vprof run                                      QEMU, TCG
//!   +--------------------------+  pairs of sockets  +------------------+
//!   | session, samples         | <----------------> | GDB stub         |
//!   | console, command         | <----------------> | COM1, COM2       |
//!   | reason of the end        | <----------------> | QMP              |
//!   +--------------------------+                    +------------------+
//! ```
//!
//! QEMU has its ends from its start on, so nobody else reaches the stub. It starts with its vCPUs stopped;
//! the first command of the stub's client lets them run.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use attach::gdb::ConnectedStub;
use attach::{AttachError, Attachment};
use images::ImageError;
use profile::Sink;
use profile::estimate::ONE_CLOCK;
use sampler::{AttachedSampler, Session, SessionConfig};
use text::message::Reason;
use vmm::{EXIT_PORT, MachineEnd};

use crate::guest::{Command, GuestError, Inputs, ProfiledVm, command_rows, prepare, watch};
use crate::heap;
use crate::link::{ConsoleWriter, Link, Phase};
use crate::network::{Passt, Plugged};
use crate::portable::log::Log;
use crate::portable::qemu::{self, Card, Qemu};
use crate::reader::BootMemory;
use crate::spec::{GuestEnd, Outcome, RunSpec};
use crate::stage::Stage;
use crate::systemd::Receiver;

/// Data that such a guest does not have, as a sentence of the profile.
const NOT_HAD: &str = "the guest runs in QEMU without KVM, and a GDB stub stops all vCPUs together: how a vCPU's time divides \
                       into guest, halted and vmm is estimated by samples; exits, KVM's counters and interrupts that \
                       devices raise are not known";

/// Why a guest can't be run in QEMU.
#[derive(Debug, thiserror::Error)]
pub enum TcgError {
    /// QEMU could not be started.
    #[error("QEMU can't be started: can't {action}: {}", Reason(.source))]
    Start {
        /// Like "make a socket".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
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
    pub fn stage(&self) -> Stage {
        match self {
            Self::Start { .. } | Self::Ended { .. } => Stage::Hypervisor,
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

/// Everything that QEMU is started with.
#[derive(Debug)]
struct Machine<'a> {
    spec: &'a RunSpec,
    kernel: OwnedFd,
    initrd: Option<OwnedFd>,
    stub: Wire,
    monitor: Wire,
    console: Wire,
    command: Option<Wire>,
    card: Option<Card<'a>>,
}

impl Machine<'_> {
    fn arguments(&self) -> Vec<OsString> {
        let machine = &self.spec.machine;
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-S"]);
        add(&["-machine", "q35,smm=off,vmport=off,sata=off,smbus=off,usb=off"]);
        add(&["-accel", "tcg,thread=multi", "-cpu", "max"]);
        add(&["-smp", &machine.vcpus.to_string()]);
        add(&["-m", &format!("{}M", machine.memory_bytes.div_ceil(1 << 20))]);
        add(&["-kernel", &format!("/proc/self/fd/{}", self.kernel.as_raw_fd())]);
        add(&["-append", &machine.cmdline]);
        if let Some(initrd) = &self.initrd {
            add(&["-initrd", &format!("/proc/self/fd/{}", initrd.as_raw_fd())]);
        }
        let wires =
            [("stub", Some(&self.stub)), ("monitor", Some(&self.monitor)), ("com1", Some(&self.console))];
        for (name, wire) in wires.into_iter().chain([("com2", self.command.as_ref())]) {
            if let Some(wire) = wire {
                add(&["-chardev", &format!("socket,id={name},fd={}", wire.theirs.as_raw_fd())]);
            }
        }
        add(&["-gdb", "chardev:stub", "-mon", "chardev=monitor,mode=control", "-serial", "chardev:com1"]);
        if self.command.is_some() {
            add(&["-serial", "chardev:com2"]);
        }
        add(&["-device", "virtio-rng-pci"]);
        add(&["-device", &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=4")]);
        arguments.extend(qemu::disk_arguments(&machine.disks));
        arguments.extend(self.card.iter().flat_map(Card::arguments));
        arguments
    }

    fn start(&self, qemu: &Qemu) -> Result<tokio::process::Child, TcgError> {
        let wires = [Some(&self.stub), Some(&self.monitor), Some(&self.console), self.command.as_ref()];
        let wires = wires.into_iter().flatten().map(|wire| wire.theirs.as_raw_fd());
        let files = [Some(&self.kernel), self.initrd.as_ref()].into_iter().flatten().map(AsRawFd::as_raw_fd);
        let cable = self.card.map(|card| card.cable.as_raw_fd());
        let inherited = wires.chain(files).chain(cable).collect();
        tokio::process::Command::from(qemu::command(qemu, self.arguments(), inherited, None))
            .kill_on_drop(true)
            .spawn()
            .map_err(start_error("start it"))
    }
}

/// Boots the guest in QEMU, samples it into `sink`, and returns when it has ended.
///
/// # Errors
/// QEMU does not start, or its profile can't be written.
pub async fn run(
    qemu: &Qemu,
    spec: &RunSpec,
    network: Option<Plugged>,
    payload: BootMemory,
    sink: Box<dyn Sink>,
    link: Link,
) -> Result<Outcome, TcgError> {
    let Link { mut stop, mut input, mut control, console, output, read: _, phase, notes: _ } = link;
    let [output, _] = output;
    let initrd = payload.initrd_bytes().map_err(start_error("read the initrd"))?;
    phase.send_replace(Phase::Preparing(format!("starting the guest (QEMU {})", qemu.version)));
    let cable =
        network.as_ref().map(Plugged::cable).transpose().map_err(start_error("pass its network on"))?;
    let card = cable.as_ref().zip(spec.machine.network.as_ref());
    let machine = Machine {
        spec,
        kernel: payload.kernel.into(),
        initrd: payload.initrd.map(Into::into),
        stub: Wire::new()?,
        monitor: Wire::new()?,
        console: Wire::new()?,
        command: spec.command.as_ref().map(|_| Wire::new()).transpose()?,
        card: card.map(|(cable, network)| Card { cable, mac: network.mac }),
    };
    let files = spec.machine.disks.iter().map(|disk| disk.contents(disk.open()?, false));
    let files = images::files::open(files.collect::<Result<_, ImageError>>()?);
    let vcpus = spec.machine.vcpus;
    let own = [("not_had", NOT_HAD), (ONE_CLOCK, "1"), ("qemu", qemu.version.as_str())];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let meta = spec.meta.iter().cloned().chain(own).collect();
    heap::give_back_at_once();
    let config = SessionConfig { vcpus, recording: spec.recording.clone(), meta };
    let (mut session, samplers) = Session::new(config, sink, files);
    prepare(&mut session, spec, initrd.as_deref());
    drop(initrd);
    let mut child = machine.start(qemu)?;
    let log = Log::keep(&mut child);
    let Machine { stub, monitor, console: com1, command: com2, .. } = machine;
    // QEMU has its own; ours would keep the readers from seeing their end.
    let [stub, monitor, com1] = [stub, monitor, com1].map(|wire| wire.ours);
    let com2 = com2.map(|wire| wire.ours);
    let reason = Arc::new(Mutex::new(None));
    let mut readers = vec![follow_monitor(monitor, Arc::clone(&reason))?];
    readers.push(pump(&com1, Tee(session.console(), console))?);
    let (receiver, progress) = spec.command.as_ref().map(|command| Receiver::new(command, output)).unzip();
    if let Some((com2, receiver)) = com2.as_ref().zip(receiver) {
        readers.push(pump(com2, receiver)?);
    }
    let mut command =
        spec.command.as_ref().zip(progress).map(|(command, progress)| Command::new(command, progress));
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
    // It waits for QEMU, which may take long to start.
    let describe = move || ConnectedStub::from_pair(stub, pid)?.describe(usize::from(vcpus));
    let target = tokio::task::spawn_blocking(describe);
    let target = match target.await.map_err(|error| start_error("wait for it")(io::Error::other(error)))? {
        Ok(target) => target,
        Err(error) => return Err(unstarted(child, log, error).await),
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
        let status = child.wait().await.map_err(start_error("wait for it"))?;
        readers.drain(..).for_each(join);
        let reason = reason.lock().unwrap_or_else(PoisonError::into_inner).take();
        end = ended_by(status, reason.as_deref(), &log.last_words().await);
    }
    let command = command.and_then(|command| command.ended());
    let meta = command_rows(command, None).collect();
    if let Some(command) = command {
        end = MachineEnd::Exited(command.status.into());
    }
    if let Some(sentence) = network.and_then(Plugged::into_passt).and_then(Passt::failure) {
        session.event("network", &sentence);
    }
    let end = GuestEnd::Ran(end);
    session.event("end", &end.sentence());
    let totals = session.finish(meta);
    // Fails only if it has ended already.
    let _ = child.start_kill();
    child.wait().await.map_err(start_error("wait for it"))?;
    drop((com1, com2));
    readers.into_iter().for_each(join);
    Ok(Outcome { end, totals, host_restarts: 0, trouble: Vec::new() })
}

/// Waits for a thread that reads from a QEMU that has ended.
fn join(reader: JoinHandle<()>) {
    // A panic in it was printed when it happened.
    let _ = reader.join();
}

/// Returns the error of a QEMU whose stub can't be used: its own words, if it has ended.
async fn unstarted(mut child: tokio::process::Child, log: Log, error: AttachError) -> TcgError {
    match tokio::time::timeout(std::time::Duration::from_secs(1), child.wait()).await {
        Ok(Ok(status)) => TcgError::Ended { status: status.to_string(), log: log.last_words().await },
        _ => error.into(),
    }
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
    // Events are sent only after this.
    (&monitor).write_all(b"{\"execute\":\"qmp_capabilities\"}\n").map_err(start_error("use its monitor"))?;
    let follow = move || {
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

    fn look(&self, session: &Session) {
        self.attachment.look(session);
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
