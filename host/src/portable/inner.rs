//! The inner half: `vprof` as the init of the portable host.
//!
//! It mounts the usual file systems, loads KVM's modules, opens the port, starts a guest half as `--host kvm`
//! does ([`crate::half`]), and powers the machine off. Errors go through the port, or to the host's console,
//! which the outer half keeps for its error message.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use disk_images::ImageError;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use crate::half::{Descriptors, HalfJob, HalfProcess, Hypervisor};
use crate::network::{Cable, NetworkError, NetworkKind, NetworkSpec, Plugged};
use crate::protocol::portable::{INITRD_FILE, JOB_FILE, KERNEL_FILE, MODULE_ORDER, PORT};
use crate::protocol::{FromHost, Job, encode};
use crate::stage::Stage;

/// Time limit for a device to appear after its module was loaded.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the outer half to read the last messages.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Number of huge pages that this host's kernel has set aside.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// True in the init process of a portable host.
pub fn is_inner() -> bool {
    std::process::id() == 1 && Path::new(JOB_FILE).exists()
}

/// Runs the job and turns the machine off; never returns.
pub fn main() -> ! {
    match serve() {
        // QEMU drops what the outer half has not read yet when the machine is off. The outer half ends this
        // host as soon as it has the outcome or the error.
        Ok(()) => std::thread::sleep(READ_LIMIT),
        // To the host's console.
        Err(error) => display::stderr_line!("vprof: {error}"),
    }
    nix::unistd::sync();
    let _ = reboot(RebootMode::RB_POWER_OFF);
    // The machine is off by now, or the outer half will see that nothing happens.
    loop {
        std::thread::park();
    }
}

/// Why the job could not be done, for the reader outside.
#[derive(Debug, thiserror::Error)]
enum InnerError {
    /// A file system is missing.
    #[error("can't mount {place}: {source}")]
    Mount { place: &'static str, source: Errno },
    /// A file can't be read, opened or removed.
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// The job is not understood.
    #[error("{JOB_FILE}: {0}")]
    Job(serde_json::Error),
    /// A module needs another one.
    #[error("can't load {}: a module that it needs is not loaded", .0.display())]
    Dependency(PathBuf),
    /// A module is refused.
    #[error("can't load {}: {}", .module.display(), .source.desc())]
    Module { module: PathBuf, source: Errno },
    /// QEMU gave this host no such port.
    #[error("no virtio-serial port named {PORT}")]
    NoPort,
    /// A device is missing.
    #[error("{} did not appear in the portable host", .0.display())]
    Absent(PathBuf),
    /// The network card is missing.
    #[error("{0}: its bundle is an old one: make it again with `cargo xtask image portable-host`")]
    NoCard(Box<InnerError>),
    /// There are no huge pages.
    #[error("can't reserve huge pages: {HUGE_PAGES}: {0}")]
    HugePages(io::Error),
    /// The guest's process cannot be started.
    #[error("cannot start the guest's process: {0}")]
    Spawn(io::Error),
    /// The guest's process has ended without an outcome.
    #[error("the guest's process ended: {}", .0.clone().unwrap_or_else(|| .1.to_string()))]
    Ended(Option<String>, ExitStatus),
    /// The port does not work, or there are no more threads or descriptors.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A disk can't be opened.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The network card can't be used.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

impl InnerError {
    /// A failed operation on a file.
    fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

fn serve() -> Result<(), InnerError> {
    prepare_system()?;
    let mut modules = modules()?;
    // The port first: from then on the outer half hears of everything.
    let port = Port::open(&mut modules)?;
    // The guest half sends the outcome.
    let Err(error) = job(&port, modules) else { return Ok(()) };
    let stage = if let InnerError::Ended(..) = error { Stage::Guest } else { Stage::BeforeGuest };
    Ok(port.send(&FromHost::Error { stage, sentence: error.to_string() })?)
}

/// Prepares this host for the job and has a guest half do it.
fn job(port: &Port, modules: Vec<PathBuf>) -> Result<(), InnerError> {
    port.send(&FromHost::Hello { kernel: kernel_release(), version: env!("CARGO_PKG_VERSION").to_owned() })?;
    let job: Job = serde_json::from_slice(&take(JOB_FILE)?).map_err(InnerError::Job)?;
    let machine = &job.run.machine;
    for module in modules {
        if machine.network.is_some() || !is_for_networks(&module) {
            load(&module)?;
        }
    }
    if machine.huge_pages {
        reserve_huge_pages(machine.memory_bytes)?;
    }
    for device in &job.devices {
        wait_for(device)?;
    }
    let kvm = Path::new("/dev/kvm");
    wait_for(kvm)?;
    let kvm = OpenOptions::new().read(true).write(true).open(kvm).map_err(InnerError::file(kvm))?;
    let kernel = take_file(KERNEL_FILE)?;
    let initrd = job.has_initrd.then(|| take_file(INITRD_FILE)).transpose()?;
    let network = machine.network.as_ref().map(plug_in).transpose()?;
    let cable = network.as_ref().map(Plugged::cable).transpose()?;
    let disks = machine.disks.iter().map(|disk| disk.open()).collect::<Result<Vec<_>, _>>()?;
    let (half, report) = HalfProcess::new()?;
    let job = HalfJob {
        hypervisor: Hypervisor::Kvm(kvm.as_raw_fd()),
        descriptors: Descriptors {
            kernel: kernel.as_raw_fd(),
            initrd: initrd.as_ref().map(AsRawFd::as_raw_fd),
            disks: disks.iter().map(AsRawFd::as_raw_fd).collect(),
            cable: cable.as_ref().map(Cable::number),
            report: report.as_raw_fd(),
        },
        run: job.run,
        // The outer half ends this host as soon as it has the outcome.
        sync_disks: true,
    };
    let (mut command, job_file) = half.command(&job, port.reader()?.into())?;
    let mut child = command.spawn().map_err(InnerError::Spawn)?;
    drop((command, job_file, report, kernel, initrd, disks));
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(InnerError::Ended(half.refused(status), status)) }
}

/// Needed only by guests with a network card.
fn is_for_networks(module: &Path) -> bool {
    const MODULES: &[&str] = &["failover", "net_failover", "virtio_net"];
    module.file_stem().and_then(|name| name.to_str()).is_some_and(|name| MODULES.contains(&name))
}

/// Opens the card through which QEMU passes the guest's frames on.
fn plug_in(network: &NetworkSpec) -> Result<Plugged, InnerError> {
    if let NetworkKind::Interface(name) = &network.kind {
        wait_for(&Path::new("/sys/class/net").join(name))
            .map_err(|absent| InnerError::NoCard(Box::new(absent)))?;
        // The address is the guest's: this host has nothing to say under it. A kernel without IPv6 has no
        // such file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    Ok(Plugged::open(network)?)
}

/// Has this host's kernel reserve huge pages for the guest's memory; the guest's start shows if they suffice.
fn reserve_huge_pages(memory_bytes: u64) -> Result<(), InnerError> {
    let pages = memory_bytes.div_ceil(2 << 20);
    std::fs::write(HUGE_PAGES, pages.to_string()).map_err(InnerError::HugePages)
}

/// The port to the outer half.
#[derive(Debug)]
struct Port(File);

impl Port {
    /// Loads modules until the port is there, and opens it.
    fn open(modules: &mut Vec<PathBuf>) -> Result<Self, InnerError> {
        while find_port().is_none() && !modules.is_empty() {
            load(&modules.remove(0))?;
        }
        let deadline = Instant::now() + DEVICE_LIMIT;
        let device = loop {
            match find_port() {
                Some(device) if device.exists() => break device,
                _ if Instant::now() > deadline => return Err(InnerError::NoPort),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let file =
            OpenOptions::new().read(true).write(true).open(&device).map_err(InnerError::file(device))?;
        Ok(Self(file))
    }

    fn reader(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    fn send(&self, message: &FromHost) -> io::Result<()> {
        let frame = encode(message).map_err(io::Error::other)?;
        (&self.0).write_all(&frame)
    }
}

fn find_port() -> Option<PathBuf> {
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find_map(|port| {
        let name = std::fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim() == PORT).then(|| Path::new("/dev").join(port.file_name()))
    })
}

fn prepare_system() -> Result<(), InnerError> {
    let systems = [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")];
    for (kind, place) in systems {
        // The bundle has the directories; one made here is only a second chance.
        let _ = std::fs::create_dir(place);
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|source| InnerError::Mount { place, source })?;
    }
    // Where the kernel found no console to open for init, messages would go nowhere.
    if let Ok(console) = OpenOptions::new().read(true).write(true).open("/dev/console") {
        let _ = nix::unistd::dup2_stdin(console.as_fd());
        let _ = nix::unistd::dup2_stdout(console.as_fd());
        let _ = nix::unistd::dup2_stderr(console.as_fd());
    }
    // Both only help: a guest's memory is mapped as a whole and touched bit by bit, and large pages spare the
    // emulated processor nested page walks.
    let _ = std::fs::write("/proc/sys/vm/overcommit_memory", "1");
    let _ = std::fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "always");
    Ok(())
}

fn modules() -> Result<Vec<PathBuf>, InnerError> {
    let order = std::fs::read_to_string(MODULE_ORDER).map_err(InnerError::file(MODULE_ORDER))?;
    let directory = Path::new(MODULE_ORDER).parent().unwrap_or(Path::new("/"));
    Ok(order.lines().map(str::trim).filter(|l| !l.is_empty()).map(|line| directory.join(line)).collect())
}

fn load(module: &Path) -> Result<(), InnerError> {
    let file = File::open(module).map_err(InnerError::file(module))?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        // Said of symbols that no loaded module has.
        Err(Errno::ENOENT) => Err(InnerError::Dependency(module.to_owned())),
        Err(source) => Err(InnerError::Module { module: module.to_owned(), source }),
    }
}

fn wait_for(device: &Path) -> Result<(), InnerError> {
    let deadline = Instant::now() + DEVICE_LIMIT;
    while !device.exists() {
        if Instant::now() > deadline {
            return Err(InnerError::Absent(device.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Reads a file and removes it: here files are memory.
/// Opens a file for another process, and removes it.
fn take_file(path: &str) -> Result<File, InnerError> {
    let file = File::open(path).map_err(InnerError::file(path))?;
    std::fs::remove_file(path).map_err(InnerError::file(path))?;
    Ok(file)
}

fn take(path: &str) -> Result<Vec<u8>, InnerError> {
    let bytes = std::fs::read(path).map_err(InnerError::file(path))?;
    std::fs::remove_file(path).map_err(InnerError::file(path))?;
    Ok(bytes)
}

fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |r| r.trim().to_owned())
}
