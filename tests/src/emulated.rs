//! A guest under QEMU without KVM, to which vprof attaches by QEMU's GDB stub.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::events::EmulationFailure;
use testkit::eventually;

use crate::kernel::kernel_of;
use crate::{ActiveRun, GuestTurn, Run, Sharing, images, unless_emulation_fails, vprof};

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// Command line of the guest's kernel. Without the first word some boots end, because the kernel finds its
/// timer broken when the emulator is late (docs/hosts.md).
const APPEND: &str = "no_timer_check root=/dev/vda console=ttyS0 quiet panic=-1";
/// Limit for the guest's console output and for the monitor's answer.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two checks of the guest.
const PAUSE: Duration = Duration::from_millis(50);
/// Limit of `vprof attach`.
const ATTACH_LIMIT: Duration = Duration::from_secs(120);
/// Limit for a guest to run again after its profiler was killed: the guard has to notice that first.
const RESUME_LIMIT: Duration = Duration::from_secs(5);
/// Consecutive checks, [`PAUSE`] apart, that must find a guest paused: several ticks pass meanwhile.
const STILL: u32 = 10;
/// Prompt of QEMU's monitor.
const PROMPT: &str = "(qemu) ";

/// A guest under QEMU's emulation; killed when dropped.
#[derive(Debug)]
pub struct EmulatedGuest {
    qemu: Child,
    monitor: UnixStream,
    stub: String,
    directory: tempfile::TempDir,
    _turn: Option<GuestTurn>,
}

impl EmulatedGuest {
    /// Boots the demo image, which runs `script`, with more options for QEMU; returns when the guest has
    /// printed `ready`.
    ///
    /// # Panics
    /// QEMU is not installed, or the guest does not come up.
    pub fn start(options: &[&str], script: &str) -> Self {
        Self::start_image("demo.img", options, script)
    }

    /// Boots another demo image in the same way. Repeats, and reports, a boot that does not come to an end:
    /// nothing of vprof has touched the guest by then.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_image(image: &str, options: &[&str], script: &str) -> Self {
        let turn = GuestTurn::take(Sharing::NextToOthers, ATTACH_LIMIT);
        let boot = || Self::boot(image, options, script).map_err(|state| (EmulationFailure::Frozen, state));
        let mut guest = unless_emulation_fails(boot).expect("a guest that comes up");
        guest._turn = Some(turn);
        guest
    }

    /// Boots a demo image. The error is the console's output, without the line `ready`.
    fn boot(image: &str, options: &[&str], script: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = images().join(image);
        let (kernel, initrd) = kernel_of(&image, directory.path());
        add_command(&initrd, &["sh", "-c", script]);
        let monitor = directory.path().join("monitor");
        let serial = format!("file:{}", directory.path().join("console").display());
        let mut qemu = Command::new(QEMU);
        qemu.args([
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
        ])
        .args(["-append", APPEND, "-gdb", "tcp:127.0.0.1:0"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .arg("-drive")
        .arg(format!("file={},if=virtio,format=raw,snapshot=on", image.display()))
        .arg("-serial")
        .arg(serial)
        .arg("-monitor")
        .arg(format!("unix:{},server=on,wait=off", monitor.display()))
        .args(options)
        .stdin(Stdio::null());
        let mut qemu = qemu.spawn().expect("QEMU is installed");
        let monitor = connected(&mut qemu, &monitor);
        let mut guest = Self { qemu, monitor, stub: String::new(), directory, _turn: None };
        guest.answer();
        guest.stub = guest.stub_address();
        let begin = Instant::now();
        while !guest.has_lines(1, "ready") {
            if begin.elapsed() > LIMIT {
                return Err(guest.console());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(guest)
    }

    /// Returns HOST:PORT of the stub.
    pub fn stub(&self) -> &str {
        &self.stub
    }

    /// Returns the id of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Returns the answer of QEMU's monitor to a command.
    ///
    /// # Panics
    /// The monitor does not answer.
    pub fn monitor(&mut self, command: &str) -> String {
        self.monitor.write_all(format!("{command}\n").as_bytes()).expect("the monitor listens");
        self.answer()
    }

    /// True if QEMU lets the guest run.
    pub fn runs(&mut self) -> bool {
        self.monitor("info status").contains("running")
    }

    /// Pauses the guest, for good: while a debugger has stopped it, `stop` does nothing, and the debugger
    /// resumes the guest.
    pub fn pause(&mut self) {
        let mut still = 0;
        while still < STILL {
            if self.runs() {
                still = 0;
                self.monitor("stop");
            }
            std::thread::sleep(PAUSE);
            still += 1;
        }
    }

    /// Returns the console's output so far.
    pub fn console(&self) -> String {
        std::fs::read(self.directory.path().join("console"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits until that many lines of the console contain `what`.
    ///
    /// # Panics
    /// The lines do not come, or QEMU ends.
    pub fn wait_for_console(&mut self, lines: usize, what: &str) {
        let line = format!("line with {what} on the console");
        eventually(&line, LIMIT, || self.has_lines(lines, what).then_some(()));
    }

    /// True if that many lines of the console contain `what`.
    fn has_lines(&mut self, lines: usize, what: &str) -> bool {
        let console = self.console();
        // A line is whole when the next has begun.
        let whole = console.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let ended = self.qemu.try_wait().expect("QEMU is our child");
        assert!(ended.is_none(), "no {what} ({ended:?}): {console}");
        whole.lines().filter(|line| line.contains(what)).count() >= lines
    }

    /// Ends QEMU.
    pub fn kill(&mut self) {
        self.qemu.kill().expect("it runs");
    }

    /// Waits until QEMU lets the guest run.
    ///
    /// # Panics
    /// The guest stays paused.
    pub fn wait_until_it_runs(&mut self, when: &str) {
        eventually(&format!("guest that runs again: {when}"), RESUME_LIMIT, || self.runs().then_some(()));
    }

    /// Returns another address of the stub, at which this process forwards the bytes of one client.
    pub fn tunnel(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let stub = self.stub.clone();
        std::thread::spawn(move || {
            let (client, _) = listener.accept()?;
            let server = TcpStream::connect(stub)?;
            let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
            client.set_nodelay(true).and_then(|()| server.set_nodelay(true))?;
            std::thread::spawn(move || {
                let copied = std::io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Write).and(copied)
            });
            let (mut from, mut to) = (server, client);
            std::io::copy(&mut from, &mut to)
        });
        address
    }

    /// Returns the object that `vprof mem --json` prints of the guest with the stub at this address.
    ///
    /// # Panics
    /// The memory is not read, or the output is not JSON.
    pub fn memory(&self, stub: &str) -> serde_json::Value {
        let output = Command::new(vprof())
            .args(["mem", "--json", "--gdb", stub])
            .stdin(Stdio::null())
            .output()
            .expect("vprof starts");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "vprof mem: {}: {words}", output.status);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Starts `vprof attach --gdb` with more options.
    pub fn attach(&self, options: &[&str]) -> ActiveRun {
        self.attach_at(&self.stub, options)
    }

    /// Starts `vprof attach --gdb` with another address of the stub.
    pub fn attach_at(&self, stub: &str, options: &[&str]) -> ActiveRun {
        self.attach_with(&[&["--gdb", stub], options].concat())
    }

    /// Starts `vprof attach` with these arguments.
    pub fn attach_with(&self, arguments: &[&str]) -> ActiveRun {
        self.attach_within(ATTACH_LIMIT, arguments)
    }

    /// Starts `vprof attach` with these arguments, which has to end within `limit`.
    pub fn attach_within(&self, limit: Duration, arguments: &[&str]) -> ActiveRun {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let profile = directory.path().join("out.vprof");
        let mut command = Command::new(vprof());
        command.args(["attach", "-o"]).arg(&profile);
        command.arg("--control").arg(profile.with_extension("sock")).args(arguments).stdin(Stdio::null());
        ActiveRun::in_turn(command, directory, profile, limit)
    }

    /// Runs `vprof attach --gdb` to its end.
    pub fn attached(&self, options: &[&str]) -> Run {
        self.attach(options).finish()
    }

    /// Reads the monitor's output up to its next prompt.
    fn answer(&mut self) -> String {
        let mut answer = Vec::new();
        let mut some = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&answer);
            if text.ends_with(PROMPT) {
                return text.into_owned();
            }
            let count = self.monitor.read(&mut some).expect("the monitor answers");
            assert!(count > 0, "QEMU's monitor has ended: {text}");
            answer.extend_from_slice(&some[..count]);
        }
    }

    fn stub_address(&mut self) -> String {
        let devices = self.monitor("info chardev");
        let line = devices.lines().find(|line| line.starts_with("gdb:")).expect("the stub's device");
        let (_, address) = line.split_once("tcp:").expect("an address");
        address.split(',').next().expect("a part").trim().to_owned()
    }
}

impl Drop for EmulatedGuest {
    fn drop(&mut self) {
        // Both fail only if QEMU is gone already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Appends an archive with the guest's command.
pub(crate) fn add_command(initrd: &Path, words: &[&str]) {
    let mut bytes = std::fs::read(initrd).expect("the initrd just written");
    bytes.resize(bytes.len().next_multiple_of(guest_images::ALIGNMENT), 0);
    bytes.extend(guest_images::command_archive(words).expect("a short command"));
    std::fs::write(initrd, bytes).expect("room for an initrd");
}

/// Connects to the socket at which QEMU listens.
pub(crate) fn connected(qemu: &mut Child, path: &Path) -> UnixStream {
    let stream = eventually("connection with QEMU", LIMIT, || {
        let ended = qemu.try_wait().expect("QEMU is our child");
        assert!(ended.is_none(), "QEMU does not listen ({ended:?})");
        UnixStream::connect(path).ok()
    });
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}
