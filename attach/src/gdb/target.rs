//! A machine with a stub, before it is profiled.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use wall::Reach;

use super::owner::PortListeners;
use super::stub::Stub;
use crate::attachment::RateLimit;
use crate::capabilities::SearchRight;
use crate::error::AttachError;
use crate::error::GdbError;
use crate::guard::{GuardProcess, Heartbeat, StopSlot};
use crate::job_control::JobControl;
use crate::lock::ProcessLock;
use crate::memory::{AttachedMemory, ForeignMemory, LastTables, LayoutProver};
use crate::process::{Process, step_error};
use crate::rsp::client::{self, ConnectionError, StubClient};
use crate::rsp::memory::{ClientHandle, StubMemory, lock_client};

/// Number of stops that measure the cost of a stop.
const TRIALS: u32 = 16;
/// Interval between two of these stops.
const PAUSE: Duration = Duration::from_millis(10);
/// Time in which the guard of a vprof that was killed may still hold the connection: it may have to wait for
/// a CPU.
const GUARD_ENDS: Duration = Duration::from_secs(2);
/// Maximum part of the time for which samples stop the machine.
pub(crate) const MOST_STOPPED: f64 = 0.1;

/// Machine with a stub, ready to be profiled. Dropping it detaches, which resumes the machine.
#[derive(Debug)]
pub struct GdbTarget {
    pub(crate) address: String,
    pub(crate) client: ClientHandle,
    pub(crate) hurry: Arc<AtomicBool>,
    pub(crate) stub: Stub,
    pub(crate) process: Option<Arc<Process>>,
    pub(crate) memory: AttachedMemory,
    pub(crate) lock: Option<ProcessLock>,
    pub(crate) guard: Option<GuardProcess>,
    /// Stops in progress.
    heartbeat: Arc<Heartbeat>,
    /// Measured duration of a stop.
    cost: Option<Duration>,
}

impl GdbTarget {
    /// Connects to the stub at HOST:PORT of a machine of at most `most` vCPUs. The machine runs when this
    /// returns. `guard` is a program that calls [`crate::keep_guard`] with the number that is added to its
    /// arguments: it resumes the machine if this process is killed or stopped within a stop.
    ///
    /// # Errors
    /// The stub cannot be reached, serves another debugger, or lacks a needed feature; the machine is paused
    /// or has too many vCPUs; another vprof profiles it. The machine continues to run then, unless it was
    /// paused.
    pub fn connect(address: &str, most: usize, guard: Option<Command>) -> Result<Self, AttachError> {
        let to = client::resolve(address)?;
        let search = SearchRight::raise();
        let (process, taken) = owner(&to);
        // A client that waits for a busy stub is served after the other debugger has gone, and must still be
        // there then.
        // Others may not read it either, and are refused by the stub.
        let readable = process.as_ref().filter(|process| process.may_be_read());
        let lock = readable.map(ProcessLock::take).transpose()?;
        if taken && !becomes_free(&to) {
            return Err(GdbError::InUse { address: address.to_owned() }.into());
        }
        drop(search);
        let process = process.map(Arc::new);
        let shared = |source| AttachError::Host { action: "share memory with the guard", source };
        let heartbeat = Heartbeat::new(0).map_err(shared)?;
        let slot = StopSlot::new(&heartbeat, 0);
        let mut client = StubClient::connect(address, &to, Arc::default(), slot)?;
        let ran = client.handshake().map_err(|lost| lost.error(address))?;
        if !ran {
            client.set_paused();
            return Err(GdbError::Paused { address: address.to_owned() }.into());
        }
        Self::describe((client, heartbeat), (address, most), (process, lock), guard)
    }

    /// Takes the stub of a QEMU that this process has started with its vCPUs stopped (`-S`), at the other
    /// end of a pair of sockets. The machine of at most `most` vCPUs runs when this returns.
    ///
    /// # Errors
    /// The stub does not answer, or lacks a needed feature.
    pub fn start(stream: UnixStream, pid: i32, most: usize) -> Result<Self, AttachError> {
        let address = format!("QEMU's descriptor (process {pid})");
        let process = Arc::new(Process::open(pid)?);
        let lock = ProcessLock::take(&process)?;
        let host = |source| AttachError::Host { action: "use a socket", source };
        let heartbeat = Heartbeat::new(0).map_err(host)?;
        let slot = StopSlot::new(&heartbeat, 0);
        let mut client = StubClient::from_pair(stream, Arc::default(), slot).map_err(host)?;
        client.handshake().map_err(|lost| lost.error(&address))?;
        // Nobody needs a guard: QEMU ends with the process that has started it.
        Self::describe((client, heartbeat), (&address, most), (Some(process), Some(lock)), None)
    }

    /// Queries the stub, and resumes the machine.
    fn describe(
        (mut client, heartbeat): (StubClient, Arc<Heartbeat>),
        (address, most): (&str, usize),
        (process, lock): (Option<Arc<Process>>, Option<ProcessLock>),
        guard: Option<Command>,
    ) -> Result<Self, AttachError> {
        let hurry = client.hurry();
        let mut guarding = None;
        let guard = guard.map(|program| (program, &*heartbeat));
        match ask(&mut client, address, most, process.as_deref(), guard, &mut guarding) {
            Ok((stub, local)) => {
                let client = Arc::new(Mutex::new(client));
                // Any other process forwards the stub's packets, and is not the machine's.
                let process = process.filter(|_| local);
                let memory = match &process {
                    Some(process) => {
                        let memory = ForeignMemory::new(process.pid());
                        let failed = |error| step_error(process.pid(), "list its mappings", error);
                        AttachedMemory::Process(memory.map_err(failed)?)
                    }
                    None => AttachedMemory::Stub(StubMemory::new(Arc::clone(&client))),
                };
                let address = address.to_owned();
                let (guard, cost) = (guarding, None);
                Ok(Self { address, client, hurry, stub, process, memory, lock, guard, heartbeat, cost })
            }
            Err(error) => {
                if client.detach().is_ok()
                    && let Some(guard) = guarding
                {
                    guard.dismiss();
                }
                Err(error)
            }
        }
    }

    /// Returns the handle by which Ctrl-Z waits for the end of stops.
    pub fn job_control(&self) -> JobControl {
        JobControl(Arc::clone(&self.heartbeat))
    }

    /// Returns the stub's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the VMM's process, if it runs on this machine and its memory may be read.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_deref()
    }

    /// Returns the number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.stub.vcpus()
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &AttachedMemory {
        &self.memory
    }

    /// Returns the limit of the sampling rate. `None` before [`Self::prove`].
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.cost.map(|cost| RateLimit::Stub(MOST_STOPPED / cost.as_secs_f64().max(1e-6)))
    }

    /// Returns what this process reaches of the VMM from here on.
    pub fn reach(&self) -> Reach {
        Reach::Stub { process: self.process().map(Process::pid) }
    }

    /// Measures the duration of a stop, and searches for the layout of the guest's memory in the process, for
    /// at most `limit`. If it is not found, the search continues while the machine is profiled.
    pub fn prove(&mut self, limit: Duration) {
        let begin = Instant::now();
        let tables = LastTables::default();
        let prover = match &self.memory {
            AttachedMemory::Process(memory) => Some(LayoutProver::new(memory.clone())),
            AttachedMemory::Stub(_) => None,
        };
        let (mut proven, mut trials, mut spent) = (prover.is_none(), 0, Duration::ZERO);
        while begin.elapsed() < limit && (trials < TRIALS || !proven) {
            let from = Instant::now();
            let Ok(Some(answers)) = self.try_stop() else { break };
            if trials < TRIALS {
                spent += from.elapsed();
                trials += 1;
            }
            self.stub.parse(&answers).iter().flatten().for_each(|vcpu| tables.record(&vcpu.sregs));
            if let (Some(prover), Some(last), false) = (&prover, tables.last(), proven) {
                proven = prover.attempt(last).unwrap_or(false);
            }
            std::thread::sleep(PAUSE);
        }
        self.cost = spent.checked_div(trials);
    }

    /// Makes one stop, as a tick does.
    fn try_stop(&self) -> Result<Option<Vec<Vec<u8>>>, ConnectionError> {
        let mut client = lock_client(&self.client);
        let answers = client.stop_and_ask(self.stub.commands())?;
        client.resume()?;
        Ok(answers)
    }
}

impl Drop for GdbTarget {
    fn drop(&mut self) {
        let left = lock_client(&self.client).detach();
        if left.is_ok()
            && let Some(guard) = self.guard.take()
        {
            guard.dismiss();
        }
    }
}

/// Returns the process of this machine that listens at one of the addresses, if it is visible, and true if a
/// client is connected.
fn owner(to: &[SocketAddr]) -> (Option<Process>, bool) {
    let listeners: Vec<PortListeners> = to.iter().map(PortListeners::find).collect();
    let taken = listeners.iter().any(|listener| listener.taken);
    let found: Vec<Process> = listeners
        .iter()
        .flat_map(PortListeners::processes)
        .filter_map(|pid| Process::open(pid).ok())
        .collect();
    // A process that QEMU has started may have its socket as well.
    let qemu = found.iter().position(Process::is_qemu).unwrap_or(0);
    (found.into_iter().nth(qemu), taken)
}

/// Returns true if the debugger that the stub serves leaves within [`GUARD_ENDS`].
fn becomes_free(to: &[SocketAddr]) -> bool {
    let end = Instant::now() + GUARD_ENDS;
    loop {
        thread::sleep(PAUSE);
        match owner(to).1 {
            false => return true,
            true if Instant::now() >= end => return false,
            true => {}
        }
    }
}

/// Queries everything that a profile needs, and resumes the machine. Returns the stub, and true if the memory
/// is the process's.
fn ask(
    client: &mut StubClient,
    address: &str,
    most: usize,
    process: Option<&Process>,
    guard: Option<(Command, &Heartbeat)>,
    guarding: &mut Option<GuardProcess>,
) -> Result<(Stub, bool), AttachError> {
    let lost = |lost: ConnectionError| lost.error(address);
    // Another process is most likely a tunnel.
    let local = process.is_some_and(|process| process.is_qemu() && process.may_be_read());
    if !local && !client.read_physical_memory().map_err(lost)? {
        return Err(GdbError::Memory { address: address.to_owned() }.into());
    }
    if let Some((program, heartbeat)) = guard {
        let started = GuardProcess::start(program, heartbeat, Some(client));
        *guarding = Some(started.map_err(|source| AttachError::Host { action: "start a process", source })?);
    }
    let stub = Stub::ask(client, address, most)?;
    client.resume().map_err(lost)?;
    Ok((stub, local))
}
