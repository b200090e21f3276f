//! QEMU as the machine under the portable host.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use disk_images::contents::ImageFormat;
use sandbox::{ProgramSandbox, SandboxError};
use serde::{Deserialize, Serialize};
use vmm::DiskMode;

use crate::network::{Cable, mac_text};
use crate::process::{checked, prepare_child};
use crate::protocol::portable::PORT;
use crate::spec::{DiskSpec, is_block_device};

/// The program.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qemu {
    /// Its path.
    pub path: PathBuf,
    /// Like `7.2.22`.
    pub version: String,
    /// True if it can filter its own system calls (`-sandbox`).
    pub has_sandbox: bool,
}

/// Directories of installed programs and their libraries: of Linux in general, of Nix and of Guix.
const INSTALLED: [&str; 6] = ["/usr", "/lib", "/lib64", "/opt", "/nix/store", "/gnu/store"];
/// Other files that QEMU and its libraries read at their start: libraries' places, CPUs and nodes, time zone,
/// random numbers.
const READ_AT_START: [&str; 4] =
    ["/etc/ld.so.cache", "/sys/devices/system", "/etc/localtime", "/dev/urandom"];
/// Directories next to that of QEMU's program, of an installation in another prefix.
const OF_PREFIX: [&str; 5] = [".", "../share", "../lib", "../lib64", "../libexec"];

/// QEMU's filter of system calls: no other programs, no more rights, no other priorities (qemu(1)).
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Searches QEMU in PATH and reads its version from its help.
pub fn find() -> Option<Qemu> {
    let path = std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(PROGRAM))
        .find(|path| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok() && path.is_file())?;
    // It is started in another directory.
    let path = std::path::absolute(path).ok()?;
    let output = Command::new(&path).arg("-help").stdin(Stdio::null()).output().ok()?;
    // "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split("version ").nth(1)?.split([' ', '\n']).next()?.to_owned();
    let has_sandbox = text.contains("\n-sandbox on");
    Some(Qemu { path, version, has_sandbox })
}

/// A network card of the inner host.
#[derive(Debug, Clone, Copy)]
pub struct Card<'a> {
    /// Its backend.
    pub cable: &'a Cable,
    /// Its address, which is that of the guest's own card.
    pub mac: [u8; 6],
}

/// A machine as QEMU emulates it, whatever it is for: a board without devices, what it boots, and the guest's
/// disks and card.
#[derive(Debug)]
pub struct Board<'a> {
    /// Properties of the board.
    pub properties: &'a str,
    /// The kernel.
    pub kernel: RawFd,
    /// Its initial file system.
    pub initrd: Option<RawFd>,
    /// Its command line.
    pub cmdline: &'a str,
    /// CPUs.
    pub cpus: usize,
    /// Memory, bytes; rounded up to MiB.
    pub memory_bytes: u64,
    /// The guest's disks.
    pub disks: &'a [PassedDisk<'a>],
    /// The guest's network card.
    pub card: Option<Card<'a>>,
}

impl Board<'_> {
    /// Returns the arguments of QEMU, with those of other devices, which come before disks and card: the
    /// order gives their places on the PCI bus.
    pub fn arguments(&self, devices: &[String]) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        add(&["-machine", self.properties, "-accel", "tcg,thread=multi", "-cpu", "max"]);
        add(&["-smp", &self.cpus.to_string()]);
        add(&["-m", &format!("{}M", self.memory_bytes.div_ceil(1 << 20))]);
        add(&["-kernel", &inherited(self.kernel), "-append", self.cmdline]);
        if let Some(initrd) = self.initrd {
            add(&["-initrd", &inherited(initrd)]);
        }
        arguments.extend(devices.iter().map(OsString::from));
        arguments.extend(disk_arguments(self.disks));
        arguments.extend(self.card.iter().flat_map(Card::arguments));
        arguments
    }
}

/// Returns the path of a descriptor that QEMU inherits.
fn inherited(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}

/// Returns the arguments of a character device at one end of a socket pair.
pub fn wire(name: &str, socket: RawFd) -> [String; 2] {
    ["-chardev".to_owned(), format!("socket,id={name},fd={socket}")]
}

/// Parts of the inner host's machine.
#[derive(Debug)]
pub struct Machine<'a> {
    /// QEMU.
    pub qemu: &'a Qemu,
    /// Kernel of the inner host.
    pub kernel: &'a OwnedFd,
    /// Its initial file system.
    pub initrd: &'a OwnedFd,
    /// One end of a socket pair: the port.
    pub port: &'a OwnedFd,
    /// The guest's disks.
    pub disks: &'a [PassedDisk<'a>],
    /// The guest's network card, seen from outside.
    pub card: Option<Card<'a>>,
    /// Memory of the inner host, bytes.
    pub memory_bytes: u64,
    /// CPUs of the inner host.
    pub cpus: usize,
    /// CPU time after which the kernel kills QEMU.
    pub cpu_limit: Option<Duration>,
    /// Directory of QEMU's temporary files.
    pub directory: &'a Path,
}

/// Command line of the inner host's kernel. Its work is to start quickly: no console but for trouble, no
/// mitigations (there is nobody to be protected in it), a TSC and a timer that need no calibration, no
/// watchdog that an overloaded machine would set off.
const CMDLINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off tsc=reliable no_timer_check nokaslr \
     nowatchdog nmi_watchdog=0 audit=0 apparmor=0 selinux=0 rcupdate.rcu_expedited=1 random.trust_cpu=on \
     cryptomgr.notests i8042.noaux i8042.nokbd i8042.nopnp pci=lastbus=0 noresume";

/// Board of the inner host.
const PROPERTIES: &str = "q35,smm=off,vmport=off,hpet=off,graphics=off,sata=off,smbus=off,i8042=off,usb=off";

impl Machine<'_> {
    fn arguments(&self) -> Vec<OsString> {
        // The inner host's own messages, kept for errors. The first port of the serial device is for a
        // console.
        let log = ["-chardev", "stdio,id=log,signal=off", "-serial", "chardev:log"];
        let mut devices: Vec<String> = log.map(str::to_owned).into();
        devices.extend(wire("port", self.port.as_raw_fd()));
        let mut device = |options: String| devices.extend(["-device".to_owned(), options]);
        device("virtio-serial-pci,max_ports=2".to_owned());
        device(format!("virtserialport,chardev=port,name={PORT}"));
        let board = Board {
            properties: PROPERTIES,
            kernel: self.kernel.as_raw_fd(),
            initrd: Some(self.initrd.as_raw_fd()),
            cmdline: CMDLINE,
            cpus: self.cpus,
            memory_bytes: self.memory_bytes,
            disks: self.disks,
            card: self.card,
        };
        board.arguments(&devices)
    }

    /// The command that starts it.
    ///
    /// # Errors
    /// Landlock refuses.
    pub fn command(&self) -> Result<Command, SandboxError> {
        let cable = self.card.map(|card| card.cable.as_raw_fd());
        let inherited = [self.kernel, self.initrd, self.port].map(AsRawFd::as_raw_fd).into_iter();
        let disks = self.disks.iter().cloned().flat_map(PassedDisk::into_numbers);
        let inherited = inherited.chain(disks).chain(cable);
        command(self.qemu, self.arguments(), inherited.collect(), self.directory, self.cpu_limit)
    }
}

/// The command that starts QEMU with these descriptors, inside a sandbox, with its temporary files in
/// `directory`. QEMU dies with the thread that starts it, and gets neither this process's signals from the
/// terminal nor more CPU time than its limit.
///
/// # Errors
/// Landlock refuses.
pub fn command(
    qemu: &Qemu,
    arguments: Vec<OsString>,
    inherited: Vec<RawFd>,
    directory: &Path,
    cpu_limit: Option<Duration>,
) -> Result<Command, SandboxError> {
    let sandbox = sandbox_around(qemu, directory)?;
    let mut command = Command::new(&qemu.path);
    command.args(arguments);
    if qemu.has_sandbox {
        command.args(["-sandbox", SANDBOX]);
    }
    // QEMU searches firmware in its current directory first.
    command.current_dir(directory).env_clear().env("TMPDIR", directory);
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let parent = std::process::id();
    let cpu_seconds = cpu_limit.map(|limit| limit.as_secs().max(1));
    // SAFETY: between fork and exec only system calls that are async-signal-safe are made, on values that the
    // closure owns; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            prepare_child(parent, &inherited)?;
            cpu_seconds.map_or(Ok(()), limit_cpu)?;
            sandbox.enter()
        });
    }
    Ok(command)
}

/// Returns the sandbox around QEMU: no capabilities, and no files but its own program's, those in
/// `directory`, which are temporary, and the descriptors that it inherits.
fn sandbox_around(qemu: &Qemu, directory: &Path) -> Result<ProgramSandbox, SandboxError> {
    // Its links lead there, and QEMU searches its firmware from there.
    let program = fs::canonicalize(&qemu.path).unwrap_or_else(|_| qemu.path.clone());
    let prefix = program.parent().unwrap_or(Path::new("/"));
    let of_prefix: Vec<PathBuf> = OF_PREFIX.iter().map(|place| prefix.join(place)).collect();
    let installed = INSTALLED.iter().chain(&READ_AT_START).map(Path::new);
    let readable: Vec<&Path> = installed.chain(of_prefix.iter().map(PathBuf::as_path)).collect();
    ProgramSandbox::new(&readable, directory)
}

/// Limits the CPU time of the calling process, between fork and exec.
fn limit_cpu(seconds: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: seconds, rlim_max: seconds.saturating_add(1) };
    // SAFETY: setrlimit reads one rlimit through a pointer that is valid for the call.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) })
}

/// Disk of the guest, with the descriptors by which QEMU opens its file.
#[derive(Debug, Clone)]
pub struct PassedDisk<'a> {
    spec: &'a DiskSpec,
    file: &'a File,
    /// QEMU opens a file for reading before it writes it.
    readable: Option<&'a File>,
}

impl<'a> PassedDisk<'a> {
    /// Passes a disk on: its file, as its mode needs it, and a second opening for reading.
    pub fn new(spec: &'a DiskSpec, file: &'a File, readable: &'a File) -> Self {
        Self { spec, file, readable: spec.is_written().then_some(readable) }
    }

    /// Returns the numbers of the descriptors, which QEMU inherits.
    pub fn into_numbers(self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.file).chain(self.readable).map(AsRawFd::as_raw_fd)
    }
}

/// The guest's disks, in its order. vprof holds QEMU's locks on each file (`disk_images::lock`), which last
/// until QEMU has closed it, too.
fn disk_arguments(disks: &[PassedDisk<'_>]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.into(), value.into()]);
    for (i, disk) in disks.iter().enumerate() {
        let PassedDisk { spec, file, .. } = disk;
        for number in disk.clone().into_numbers() {
            add("-add-fd", format!("fd={number},set={i}"));
        }
        let format = format_name(spec.format);
        let mode = match spec.mode {
            DiskMode::ReadWrite => "snapshot=off",
            DiskMode::Snapshot => "snapshot=on",
            DiskMode::ReadOnly => "snapshot=off,readonly=on",
        };
        let driver = if is_block_device(file.metadata()) { "host_device" } else { "file" };
        let file = format!("file.driver={driver},file.locking=off,file.filename=/dev/fdset/{i}");
        add("-drive", format!("if=none,id=disk{i},format={format},{mode},{file}"));
        // A full disk under a snapshot is an I/O error for the guest; by default QEMU would stop the guest.
        add("-device", format!("virtio-blk-pci,drive=disk{i},werror=report,rerror=report"));
    }
    arguments
}

impl Card<'_> {
    /// The card and what it is plugged into.
    fn arguments(&self) -> [OsString; 4] {
        let netdev = match self.cable {
            Cable::Tap(fd) => format!("tap,id=net,fd={}", fd.as_raw_fd()),
            Cable::Stream(fd) | Cable::Interface(fd) => format!("socket,id=net,fd={}", fd.as_raw_fd()),
        };
        // Frames as they are on the wire, whole and with their checksums.
        let plain = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,\
             host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";
        let device = format!("virtio-net-pci,netdev=net,romfile=,mac={},{plain}", mac_text(self.mac));
        ["-netdev".into(), netdev.into(), "-device".into(), device.into()]
    }
}

/// As QEMU calls it. A format is never guessed by QEMU, which would follow the names in one.
fn format_name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Raw => "raw",
        ImageFormat::Qcow2 => "qcow2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_filters_its_system_calls_and_sees_no_environment() {
        let qemu = Qemu { path: "/usr/bin/qemu".into(), version: "1".to_owned(), has_sandbox: true };
        let directory = tempfile::tempdir().unwrap();
        let start = |qemu| command(qemu, Vec::new(), Vec::new(), directory.path(), None).unwrap();
        let started = start(&qemu);
        let arguments: Vec<_> = started.get_args().collect();
        assert_eq!(arguments, ["-sandbox", SANDBOX]);
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert!(started.get_envs().all(|(name, _)| name == "PATH" || name == "TMPDIR"));
        let other = Qemu { has_sandbox: false, ..qemu.clone() };
        assert_eq!(start(&other).get_args().count(), 0);
    }

    #[test]
    fn disks_and_limits_are_on_the_command_line() {
        let (a, b) = nix::unistd::pipe().unwrap();
        let qemu = Qemu { path: "/usr/bin/qemu".into(), version: "1".to_owned(), has_sandbox: true };
        let file = tempfile::tempfile().unwrap();
        let specs = [
            DiskSpec { path: "/x,y.img".into(), format: ImageFormat::Raw, mode: DiskMode::Snapshot },
            DiskSpec { path: "/z.img".into(), format: ImageFormat::Qcow2, mode: DiskMode::ReadWrite },
        ];
        let disks = specs.each_ref().map(|spec| PassedDisk::new(spec, &file, &file));
        let machine = Machine {
            qemu: &qemu,
            kernel: &b,
            initrd: &a,
            port: &b,
            disks: &disks,
            card: None,
            memory_bytes: (1 << 30) + 1,
            cpus: 2,
            cpu_limit: None,
            directory: Path::new("/t"),
        };
        let words: Vec<_> = machine.arguments().iter().map(|w| w.to_string_lossy().into_owned()).collect();
        assert!(words.contains(&"1025M".to_owned()));
        assert!(words.iter().any(|w| w.contains("snapshot=on") && w.ends_with("/dev/fdset/0")), "{words:?}");
        let written = "format=qcow2,snapshot=off";
        assert!(words.iter().any(|w| w.contains(written) && w.ends_with("/dev/fdset/1")), "{words:?}");
        assert_eq!(words.iter().filter(|w| w.contains("file.locking=off")).count(), 2, "{words:?}");
        let passed = |set: &str| words.iter().filter(|w| w.starts_with("fd=") && w.ends_with(set)).count();
        assert_eq!((passed("set=0"), passed("set=1")), (1, 2), "{words:?}");
        // No path of a disk: QEMU may not open it.
        assert!(!words.iter().any(|w| w.contains(".img")), "{words:?}");
    }
}
