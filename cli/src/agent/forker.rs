//! The process of which recorders are copies. It waits for orders, and reads nothing of a guest.
//!
//! ```text
//!  vprof agent ── Start, Stop ──▶ vprof agent-recorders ──fork──▶ recorder ──fork──▶ its half
//!              ◀── Started, Ended ──      │                 (each as `vprof attach` and `vprof attach-half`)
//!                                         └──fork──▶ recorder of another machine ...
//! ```
//!
//! A copy shares the memory that neither has written since: above all the relocated data of the program,
//! which a program that is started again has for itself. The environment has no secret.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use host::attached::HalfStart;
use host::protocol::{Decoder, encode};
use host::{ForkedChild, fork_child};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::Pid;
use sandbox::SyscallPolicy;
use serde::{Deserialize, Serialize};

use super::recorder::{RecorderPlan, end_with_parent, wait_for};
use crate::args::{AttachArgs, Cli, CliCommand, Engine, VmChoice};
use crate::attach;
use crate::errors::{Error, ExitCode};

/// Name of the hidden command.
pub const COMMAND: &str = "agent-recorders";
/// Longest message of a recorder that is read, bytes.
const WORDS: u64 = 4 << 10;
/// Variables of the environment that recorders have.
const VARIABLES: [&str; 5] = ["PATH", "TMPDIR", "XDG_RUNTIME_DIR", "LANG", "RUST_BACKTRACE"];
/// Setting of glibc's heap: no thread keeps free memory for itself, which would add up over all recorders'
/// threads. The C library has no other way to set it, and programs with another one ignore it.
const HEAP: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
/// Options of all recorders. A reading of the guest's memory by holder takes some ms of CPU, a scan of all
/// tasks a millisecond or so where there are a thousand; reasons of exits are in no table of a lake.
const OPTIONS: [&str; 7] =
    ["--quiet", "--present-vcpus", "--no-exits", "--rare-writes", "--memory-use=60s", "--task-rate", "1"];

/// Recorder to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecorderOrder {
    pid: i32,
    rate_hz: f64,
    seed: u64,
    duration: Duration,
    max_size: u64,
    engine: Engine,
    seccomp: SyscallPolicy,
    takes_over: bool,
    profile: Vec<u8>,
    tables: Vec<u8>,
}

impl RecorderOrder {
    /// Makes the order of a plan, with the seed of the sampling clock: copies of one process would draw the
    /// same one. The recording ends by itself after `duration`.
    pub fn new(plan: &RecorderPlan, duration: Duration, seed: u64) -> Self {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        Self {
            pid: plan.pid,
            rate_hz: plan.rate_hz,
            seed,
            duration,
            max_size: plan.max_size,
            engine: plan.engine,
            seccomp: plan.seccomp,
            takes_over: plan.takes_over,
            profile: bytes(&plan.profile),
            tables: bytes(&plan.tables),
        }
    }
}

/// End of a recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderEnd {
    status: i32,
    /// Last words on standard error.
    pub words: String,
    /// CPU time of all its processes, ns.
    pub cpu_ns: u64,
    /// Largest resident memory of one of them, bytes.
    pub memory_bytes: u64,
}

impl RecorderEnd {
    /// Returns its exit status.
    pub fn status(&self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }
}

/// Message to the process.
#[derive(Debug, Serialize, Deserialize)]
enum ForkerRequest {
    /// Start a recorder with this number.
    Start(u64, RecorderOrder),
    /// Have it end its recording.
    Stop(u64),
}

/// Message of the process.
#[derive(Debug, Serialize, Deserialize)]
enum ForkerReply {
    /// The recorder is this process.
    Started(u64, u32),
    /// It has ended, or could not be started.
    Ended(u64, RecorderEnd),
}

/// Handle of the process; clones are of the same one. It ends with the last of them, and its recorders do
/// then.
#[derive(Debug, Clone)]
pub struct RecorderForker(Rc<RefCell<ForkerState>>);

#[derive(Debug)]
struct ForkerState {
    process: Child,
    stream: UnixStream,
    decoder: Decoder,
    next: u64,
    pids: HashMap<u64, u32>,
    ends: HashMap<u64, RecorderEnd>,
}

impl Drop for ForkerState {
    fn drop(&mut self) {
        // It ends when the connection does. Both fail only if it has ended already.
        let _closed = self.stream.shutdown(std::net::Shutdown::Both);
        let _status = self.process.wait();
    }
}

impl RecorderForker {
    /// Starts the process. It ends with this one.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start() -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        // Defaults of `vprof attach` in a configuration are not for the agent's windows.
        command.arg(COMMAND).env_clear().env("VPROF_CONFIG", "");
        command.envs(VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.env(HEAP.0, HEAP.1);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        // Ctrl-C is for the agent, which then ends its recorders.
        command.process_group(0);
        let process = command.spawn()?;
        let (decoder, next) = (Decoder::default(), 0);
        let (pids, ends) = (HashMap::new(), HashMap::new());
        Ok(Self(Rc::new(RefCell::new(ForkerState { process, stream, decoder, next, pids, ends }))))
    }

    /// Returns the status of the process, once it has ended: all its recorders end with it.
    ///
    /// # Errors
    /// The process cannot be waited for.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        self.0.borrow_mut().process.try_wait()
    }

    /// Has a recorder started. Returns its number.
    ///
    /// # Errors
    /// The process has ended.
    pub fn order(&self, order: RecorderOrder) -> io::Result<u64> {
        let state = &mut *self.0.borrow_mut();
        let number = state.next;
        state.next += 1;
        state.send(&ForkerRequest::Start(number, order))?;
        Ok(number)
    }

    /// Has a recorder end its recording.
    ///
    /// # Errors
    /// The process has ended, and its recorders end as well.
    pub fn stop(&self, number: u64) -> io::Result<()> {
        self.0.borrow_mut().send(&ForkerRequest::Stop(number))
    }

    /// Returns the process of a recorder, once it is known.
    ///
    /// # Errors
    /// As [`Self::take_end`].
    pub fn pid(&self, number: u64) -> io::Result<Option<u32>> {
        let state = &mut *self.0.borrow_mut();
        state.receive()?;
        Ok(state.pids.get(&number).copied())
    }

    /// Returns the end of a recorder, once it has ended: once only.
    ///
    /// # Errors
    /// The process has ended.
    pub fn take_end(&self, number: u64) -> io::Result<Option<RecorderEnd>> {
        let state = &mut *self.0.borrow_mut();
        state.receive()?;
        let end = state.ends.remove(&number);
        if end.is_some() {
            state.pids.remove(&number);
        }
        Ok(end)
    }
}

impl ForkerState {
    fn send(&mut self, request: &ForkerRequest) -> io::Result<()> {
        self.stream.write_all(&encode(request).map_err(io::Error::other)?)
    }

    /// Takes the messages that have come.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match recv(self.stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            }
            while let Some(reply) = self.decoder.next_message().map_err(io::Error::other)? {
                match reply {
                    ForkerReply::Started(number, pid) => drop(self.pids.insert(number, pid)),
                    ForkerReply::Ended(number, end) => drop(self.ends.insert(number, end)),
                }
            }
        }
    }
}

/// Runs the command `agent-recorders`.
pub fn command() -> Result<ExitCode, Error> {
    serve().map_err(|source| Error::System { action: "start recorders", source })?;
    Ok(ExitCode::Done)
}

/// Serves orders until the agent has ended.
fn serve() -> io::Result<()> {
    let options = attach_options()?;
    // SAFETY: descriptor 0 is the connection, and nothing else here uses it.
    let mut stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGCHLD);
    // A service manager may send signals to all processes of the agent, which waits for its recorders: this
    // process ends with the connection alone.
    let mut blocked = ends;
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| blocked.add(signal));
    blocked.thread_block()?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    host::resident::share_one_arena();
    host::resident::give_back_free();
    let mut recorders: HashMap<u64, ForkedChild> = HashMap::new();
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    loop {
        host::resident::give_back_program();
        let [has_orders, has_ends] = readable([stream.as_fd(), signals.as_fd()])?;
        if has_orders {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => decoder.push(buffer.get(..count).unwrap_or_default()),
            }
        }
        while let Some(request) = decoder.next_message().map_err(io::Error::other)? {
            match request {
                ForkerRequest::Start(number, order) => {
                    let reply = match start(&options, &order) {
                        Ok(recorder) => {
                            let reply = ForkerReply::Started(number, recorder.id);
                            recorders.insert(number, recorder);
                            reply
                        }
                        Err(error) => ForkerReply::Ended(number, not_started(&error)),
                    };
                    reply.send(&mut stream)?;
                }
                ForkerRequest::Stop(number) => {
                    if let Some(recorder) = recorders.get(&number) {
                        // A process that was not waited for keeps its id; it may have ended.
                        let _ended = kill(Pid::from_raw(recorder.id.cast_signed()), Signal::SIGTERM);
                    }
                }
            }
        }
        if has_ends {
            while signals.read_signal()?.is_some() {}
        }
        let mut ended = Vec::new();
        for (number, recorder) in &recorders {
            if let Some((status, usage)) = wait_for(recorder.id)? {
                ended.push((*number, status, usage));
            }
        }
        for (number, status, usage) in ended {
            if let Some(recorder) = recorders.remove(&number) {
                ForkerReply::Ended(number, recorder_end(recorder, status, &usage)?).send(&mut stream)?;
            }
        }
    }
}

/// Waits until one of the descriptors can be read, or has ended.
fn readable(descriptors: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
    let mut waited = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
    loop {
        match poll(&mut waited, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(waited.each_ref().map(|waited| waited.any() == Some(true))),
        }
    }
}

impl ForkerReply {
    fn send(&self, stream: &mut UnixStream) -> io::Result<()> {
        stream.write_all(&encode(self).map_err(io::Error::other)?)
    }
}

/// Returns the options of all recorders.
fn attach_options() -> io::Result<AttachArgs> {
    let words = ["vprof", "attach"].into_iter().chain(OPTIONS);
    match Cli::try_parse_from(words).map_err(io::Error::other)?.command {
        CliCommand::Attach(options) => Ok(*options),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Starts a recorder.
fn start(options: &AttachArgs, order: &RecorderOrder) -> io::Result<ForkedChild> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let mut args = options.clone();
    args.vm.vm = Some(VmChoice::Pid(order.pid));
    args.vm.engine = order.engine;
    args.seccomp = order.seccomp;
    args.takes_over = order.takes_over;
    args.tables = Some(path(&order.tables));
    args.half = HalfStart::Copy;
    args.recording.rate = order.rate_hz;
    args.recording.seed = Some(order.seed);
    args.recording.duration = Some(order.duration);
    args.recording.max_size = Some(order.max_size);
    args.recording.output = path(&order.profile);
    if order.engine != Engine::Ptrace {
        // The copy has it then. If it fails here, the copy tries it again, and says so.
        let _refused = ::attach::look_up_host_kernel();
    }
    let parent = std::process::id();
    fork_child(None, &[], || match begin(parent).map(|()| attach::command(&args)) {
        Ok(Ok(code)) => code.number(),
        Ok(Err(error)) => {
            display::stderr_line!("{error}");
            error.exit_code().number()
        }
        Err(error) => {
            display::stderr_line!("cannot start: {error}");
            ExitCode::Failed.number()
        }
    })
}

/// Prepares a copy to be a recorder. A signal that it has been sent meanwhile arrives now.
fn begin(parent: u32) -> io::Result<()> {
    end_with_parent(parent)?;
    nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Returns the end of a recorder that could not be started.
fn not_started(error: &io::Error) -> RecorderEnd {
    let words = format!("cannot start: {}", display::message::Reason(error));
    RecorderEnd { status: 1 << 8, words, cpu_ns: 0, memory_bytes: 0 }
}

fn recorder_end(recorder: ForkedChild, status: ExitStatus, usage: &libc::rusage) -> io::Result<RecorderEnd> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    // A process that it has left behind may hold the other end: what is there is read.
    fcntl(&recorder.stderr, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut words = Vec::new();
    let _rest = recorder.stderr.take(WORDS).read_to_end(&mut words);
    let words = String::from_utf8_lossy(&words).trim().trim_start_matches("vprof: ").to_owned();
    let time = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(time.tv_usec).unwrap_or(0) * 1_000
    };
    Ok(RecorderEnd {
        status: status.into_raw(),
        words,
        cpu_ns: time(usage.ru_utime) + time(usage.ru_stime),
        memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_recorders_are_understood() {
        let options = attach_options().unwrap();
        assert!(
            options.recording.quiet
                && options.present_vcpus
                && options.no_exits
                && options.recording.rare_writes
        );
        assert_eq!(options.recording.memory_use, Some(Duration::from_secs(60)));
        assert_eq!(options.half, HalfStart::Program);
    }

    #[test]
    fn an_order_keeps_any_path() {
        let profile = Path::new(OsStr::from_bytes(b"/spool/\xff/a.vprof"));
        let plan = RecorderPlan {
            pid: 7,
            vm: export::lake::LakeVm::default(),
            window: PathBuf::from("/spool"),
            profile: profile.to_owned(),
            tables: PathBuf::from("/tables"),
            rate_hz: 19.0,
            rest: Duration::from_secs(5),
            max_size: 1 << 20,
            engine: Engine::Bpf,
            seccomp: SyscallPolicy::Off,
            takes_over: true,
        };
        let order = RecorderOrder::new(&plan, Duration::from_secs(9), 5);
        let mut decoder = Decoder::default();
        decoder.push(&encode(&ForkerRequest::Start(3, order.clone())).unwrap());
        match decoder.next_message().unwrap() {
            Some(ForkerRequest::Start(3, found)) => assert_eq!(found, order),
            other => panic!("{other:?}"),
        }
    }
}
