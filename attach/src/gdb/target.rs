//! A machine behind a stub, found and asked, before it is profiled.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::rsp::client::{self, Client, ConnectionError};
use crate::error::GdbError;
use super::guard::ResumeGuard;
use crate::rsp::memory::{ClientHandle, StubMemory, lock_client};
use super::owner::PortListeners;
use super::stub::Stub;
use crate::error::AttachError;
use crate::lock::ProcessLock;
use crate::memory::{AttachedMemory, ForeignMemory, LastTables, Prover};
use crate::process::Process;

/// Stops that tell what a stop costs.
const TRIALS: u32 = 16;
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(10);
/// The part of the time in which the machine may stand still for samples.
pub(crate) const MOST_STOPPED: f64 = 0.1;

/// A machine behind a stub, ready to be profiled. Dropping it lets the machine run on.
#[derive(Debug)]
pub struct GdbTarget {
    pub(crate) address: String,
    pub(crate) client: ClientHandle,
    pub(crate) hurry: Arc<AtomicBool>,
    pub(crate) stub: Stub,
    pub(crate) process: Option<Arc<Process>>,
    pub(crate) memory: AttachedMemory,
    pub(crate) lock: Option<ProcessLock>,
    pub(crate) guard: Option<ResumeGuard>,
    /// What a stop takes, as far as it was tried.
    cost: Option<Duration>,
}

impl GdbTarget {
    /// Connects to the stub at HOST:PORT of a machine of at most `most` vCPUs, which runs on when this
    /// returns. `guard` is a program that calls [`super::keep_guard`]: it lets the machine run on if this
    /// process is killed within a stop.
    ///
    /// # Errors
    /// Everything that keeps vprof from profiling it; the machine runs on then.
    pub fn connect(address: &str, most: usize, guard: Option<Command>) -> Result<Self, AttachError> {
        let to = client::resolve(address)?;
        let (process, lock) = match owner(&to) {
            (Some(process), taken) => {
                // Whoever waits for a stub that has a debugger is served after it, and must not be gone then.
                let lock = ProcessLock::take(&process)?;
                if taken {
                    return Err(GdbError::InUse { address: address.to_owned() }.into());
                }
                (Some(Arc::new(process)), Some(lock))
            }
            (None, true) => return Err(GdbError::InUse { address: address.to_owned() }.into()),
            (None, false) => (None, None),
        };
        let hurry = Arc::new(AtomicBool::new(false));
        let mut client = Client::connect(address, &to, Arc::clone(&hurry))?;
        let ran = client.handshake().map_err(|lost| lost.error(address))?;
        if !ran {
            client.set_paused();
            return Err(GdbError::Paused { address: address.to_owned() }.into());
        }
        let mut guarding = None;
        match ask(&mut client, address, (most, process.as_deref()), guard, &mut guarding) {
            Ok((stub, local)) => {
                let client = Arc::new(Mutex::new(client));
                // Any other process passes on what the stub says, and is not the machine's.
                let process = process.filter(|_| local);
                let memory = match &process {
                    Some(process) => AttachedMemory::Process(ForeignMemory::new(process.pid())),
                    None => AttachedMemory::Stub(StubMemory::new(Arc::clone(&client))),
                };
                let address = address.to_owned();
                Ok(Self { address, client, hurry, stub, process, memory, lock, guard: guarding, cost: None })
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

    /// The stub's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The VMM's process, where it runs on this machine and its memory may be read.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_deref()
    }

    /// How many vCPUs there are.
    pub fn vcpus(&self) -> usize {
        self.stub.vcpus()
    }

    /// Where the guest's memory is read.
    pub fn memory(&self) -> &AttachedMemory {
        &self.memory
    }

    /// Samples a second and vCPU for which the machine stands still no more than a tenth of the time, as far
    /// as is known.
    pub fn sustainable_hz(&self) -> Option<f64> {
        self.cost.map(|cost| MOST_STOPPED / cost.as_secs_f64().max(1e-6))
    }

    /// Tries what a stop takes, and looks for the place of the guest's memory in the process, at most that
    /// long. What is not found now is looked for on while the machine is profiled.
    pub fn prove(&mut self, limit: Duration) {
        let begin = Instant::now();
        let tables = LastTables::default();
        let prover = match &self.memory {
            AttachedMemory::Process(memory) => Some(Prover::new(memory.clone())),
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

    /// One stop, as a tick makes it.
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

/// The process of this machine that listens at one of the addresses, if it may be seen, and whether somebody
/// is connected.
fn owner(to: &[SocketAddr]) -> (Option<Process>, bool) {
    let listeners: Vec<PortListeners> = to.iter().map(PortListeners::find).collect();
    let taken = listeners.iter().any(|listener| listener.taken);
    let found: Vec<Process> =
        listeners.iter().flat_map(PortListeners::processes).filter_map(|pid| Process::open(pid).ok()).collect();
    // A process that was started by QEMU may have its socket as well.
    let qemu = found.iter().position(Process::is_qemu).unwrap_or(0);
    (found.into_iter().nth(qemu), taken)
}

/// Asks for everything that a profile needs, and lets the machine run on; whether its memory is the process'.
fn ask(
    client: &mut Client,
    address: &str,
    (most, process): (usize, Option<&Process>),
    guard: Option<Command>,
    guarding: &mut Option<ResumeGuard>,
) -> Result<(Stub, bool), AttachError> {
    let lost = |lost: ConnectionError| lost.error(address);
    // Another process is a tunnel, most likely.
    let local = process.is_some_and(|process| process.is_qemu() && process.may_be_read());
    if !local && !client.read_physical_memory().map_err(lost)? {
        return Err(GdbError::Memory { address: address.to_owned() }.into());
    }
    if let Some(guard) = guard {
        let started = ResumeGuard::start(guard, client);
        *guarding = Some(started.map_err(|source| AttachError::Host { action: "start a process", source })?);
    }
    let stub = Stub::ask(client, address, most)?;
    client.resume().map_err(lost)?;
    Ok((stub, local))
}
