//! A machine with a stub, before it is profiled.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sandbox::Reach;

use super::owner::PortListeners;
use super::stub::Stub;
use crate::attachment::RateLimit;
use crate::capabilities::SearchRight;
use crate::error::AttachError;
use crate::error::GdbError;
use crate::guard::{GuardProcess, GuardedMeans, Heartbeat, StopSlot};
use crate::job_control::JobControl;
use crate::lock::ProcessLock;
use crate::memory::{AttachedMemory, FirstSearch, ForeignMemory, LastTables};
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
    /// CR3 and CR4.LA57 of a vCPU at one of these stops.
    tables: Option<(u64, bool)>,
}

/// Connection to a stub of which no byte has been read yet, with all that is opened of its VMM.
#[derive(Debug)]
pub struct ConnectedStub {
    address: String,
    client: StubClient,
    process: Option<Arc<Process>>,
    /// Memory of the process; `None` if it has to be read through the stub.
    memory: Option<ForeignMemory>,
    lock: Option<ProcessLock>,
    guard: Option<GuardProcess>,
    heartbeat: Arc<Heartbeat>,
    /// The machine waits for its start. It is not paused.
    is_new: bool,
}

impl ConnectedStub {
    /// Connects to the stub at HOST:PORT. `guard` is a program that calls [`crate::keep_guard`] with the
    /// number that is added to its arguments: it resumes the machine if this process is killed or stopped
    /// within a stop.
    ///
    /// # Errors
    /// The stub cannot be reached or serves another debugger; another vprof profiles its machine.
    pub fn connect(address: &str, guard: Option<Command>) -> Result<Self, AttachError> {
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
        // Another process is most likely a tunnel, and forwards the stub's packets.
        let process = process.filter(|process| process.is_qemu() && process.may_be_read()).map(Arc::new);
        let memory = process.as_deref().map(memory_of).transpose()?;
        drop(search);
        let heartbeat = Heartbeat::new().map_err(host_error("share memory with the guard"))?;
        let slot = StopSlot::new(&heartbeat, 0);
        let client = StubClient::connect(address, &to, Arc::default(), slot)?;
        let guard =
            guard.map(|program| GuardProcess::start(program, &heartbeat, GuardedMeans::Stub(&client)));
        let guard = guard.transpose().map_err(host_error("start a process"))?;
        let address = address.to_owned();
        Ok(Self { address, client, process, memory, lock, guard, heartbeat, is_new: false })
    }

    /// Takes the stub of a QEMU that this process has started with its vCPUs stopped (`-S`), at the other end
    /// of a pair of sockets.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn from_pair(stream: UnixStream, pid: i32) -> Result<Self, AttachError> {
        let process = Arc::new(Process::open(pid)?);
        let lock = Some(ProcessLock::take(&process)?);
        let memory = Some(memory_of(&process)?);
        let heartbeat = Heartbeat::new().map_err(host_error("use a socket"))?;
        let slot = StopSlot::new(&heartbeat, 0);
        let client =
            StubClient::from_pair(stream, Arc::default(), slot).map_err(host_error("use a socket"))?;
        let address = format!("QEMU's descriptor (process {pid})");
        // Nobody needs a guard: QEMU ends with the process that has started it.
        let (process, guard, is_new) = (Some(process), None, true);
        Ok(Self { address, client, process, memory, lock, guard, heartbeat, is_new })
    }

    /// Returns what this process reaches of the VMM from here on.
    pub fn reach(&self) -> Reach {
        match self.process.as_deref().map(Process::pid) {
            Some(process) if self.is_new => Reach::Child { process },
            process => Reach::Stub { process },
        }
    }

    /// Asks the stub for all that samples need. The machine of at most `most` vCPUs runs when this returns.
    ///
    /// # Errors
    /// The stub does not answer or lacks a needed feature; the machine is paused or has too many vCPUs. The
    /// machine continues to run then, unless it was paused.
    pub fn describe(self, most: usize) -> Result<GdbTarget, AttachError> {
        let Self { address, mut client, process, memory, lock, mut guard, heartbeat, is_new } = self;
        let ran = client.handshake().map_err(|lost| lost.error(&address))?;
        if !ran && !is_new {
            client.set_paused();
            return Err(GdbError::Paused { address }.into());
        }
        match ask(&mut client, &address, most, memory.is_some(), guard.as_mut()) {
            Ok(stub) => {
                let hurry = client.hurry();
                let client = Arc::new(Mutex::new(client));
                let memory = match memory {
                    Some(memory) => AttachedMemory::Process(memory),
                    None => AttachedMemory::Stub(StubMemory::new(Arc::clone(&client))),
                };
                let (cost, tables) = (None, None);
                Ok(GdbTarget {
                    address,
                    client,
                    hurry,
                    stub,
                    process,
                    memory,
                    lock,
                    guard,
                    heartbeat,
                    cost,
                    tables,
                })
            }
            Err(error) => {
                if client.detach().is_ok()
                    && let Some(guard) = guard
                {
                    guard.dismiss();
                }
                Err(error.into())
            }
        }
    }
}

fn host_error(action: &'static str) -> impl Fn(io::Error) -> AttachError {
    move |source| AttachError::Host { action, source }
}

fn memory_of(process: &Process) -> Result<ForeignMemory, AttachError> {
    ForeignMemory::new(process.pid()).map_err(|error| step_error(process.pid(), "list its mappings", error))
}

impl GdbTarget {
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

    /// Measures the duration of a stop, and searches for the layout of the guest's memory in the process, for
    /// at most `limit`. If it is not found, or page tables show no Linux, the search continues while the
    /// machine is profiled.
    pub fn prove(&mut self, limit: Duration) {
        let begin = Instant::now();
        let tables = LastTables::default();
        let mut search = match &self.memory {
            AttachedMemory::Process(memory) => Some(FirstSearch::new(memory.clone())),
            AttachedMemory::Stub(_) => None,
        };
        let (mut trials, mut spent) = (0, Duration::ZERO);
        while begin.elapsed() < limit && (trials < TRIALS || search.is_some()) {
            let from = Instant::now();
            let Ok(Some(answers)) = self.try_stop() else { break };
            if trials < TRIALS {
                spent += from.elapsed();
                trials += 1;
            }
            self.stub.parse(&answers).iter().flatten().for_each(|vcpu| tables.record(&vcpu.sregs));
            if let (Some(running), Some(last)) = (&mut search, tables.last())
                && running.attempt(last)
            {
                search = None;
            }
            std::thread::sleep(PAUSE);
        }
        self.cost = spent.checked_div(trials);
        self.tables = tables.last();
    }

    /// Returns CR3 and CR4.LA57 of a vCPU at the last stop of [`Self::prove`] that found them.
    pub fn tables(&self) -> Option<(u64, bool)> {
        self.tables
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

/// Queries everything that a profile needs, and resumes the machine. `local` is true if the memory is that of
/// a process of this machine.
fn ask(
    client: &mut StubClient,
    address: &str,
    most: usize,
    local: bool,
    guard: Option<&mut GuardProcess>,
) -> Result<Stub, GdbError> {
    let lost = |lost: ConnectionError| lost.error(address);
    if !local && !client.read_physical_memory().map_err(lost)? {
        return Err(GdbError::Memory { address: address.to_owned() });
    }
    if let Some(guard) = guard {
        guard.arm(client);
    }
    let stub = Stub::ask(client, address, most)?;
    client.resume().map_err(lost)?;
    Ok(stub)
}
