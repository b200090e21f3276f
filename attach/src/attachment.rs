//! Attachment to a machine of another VMM, by samples of the host's kernel, by ptrace, or through a GDB stub.
//!
//! All engines have threads that tick vCPUs, and a [`Watcher`] that detects the end, pauses and the memory's
//! layout:
//!
//! ```text
//! kernel     one ticker for each vCPU, one watcher
//! ptrace     the same
//! GDB stub   one ticker for all vCPUs; a watcher if the VMM's process is on this machine
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sandbox::ThreadKind;
use vmm::{Observer, ThreadId, monotonic_ns};

use crate::bpf::{MixedStops, ProcessCopies, SampledTicker, SampledVm, VcpuCourse};
use crate::capabilities::{self, SearchRight};
use crate::error::AttachError;
use crate::gdb::{GdbTarget, GdbTicker, SustainableRate};
use crate::guard::{GuardProcess, StopSlot};
use crate::lock::ProcessLock;
use crate::memory::{AttachedMemory, ForeignMemory, StopMemory, StopSource};
use crate::shared::{AttachEvent, AttachmentEnd, PluggedVcpu, SharedState};
use crate::target::{Target, VcpuCounts};
use crate::ticker::{VcpuStops, VcpuTicker};
use crate::watch::{WatchedVcpu, Watcher};

/// Maximum number of stops per second of all vCPUs together. Each of them takes a lock of the host's kernel
/// that every fork and exit needs (`tasklist_lock`, kernel/ptrace.c), twice.
const MOST_STOPS_HZ: f64 = 8_000.0;
/// Time within which threads of the ptrace engine must end: each waits at most once.
const PTRACE_LIMIT: Duration = Duration::from_secs(5);
/// Time within which the thread of the stub's engine must end: it may wait for an answer, and has to detach.
const STUB_LIMIT: Duration = Duration::from_secs(8);
/// Interval at which a thread that has not ended is woken and checked again.
const WAKE_INTERVAL: Duration = Duration::from_millis(5);

/// Attachment that is in progress. Dropping it detaches from the machine.
#[derive(Debug)]
pub struct Attachment<O> {
    /// Each returns the observers that it has called, in the order of vCPUs.
    tickers: Mutex<Vec<JoinHandle<Vec<O>>>>,
    watcher: Option<JoinHandle<()>>,
    shared: Arc<SharedState>,
    engine: Engine,
    memory: AttachedMemory,
    /// Keeps other vprofs away while there are tickers.
    lock: Option<ProcessLock>,
    /// Ends after the tickers.
    _guard: Option<GuardProcess>,
}

/// Limit of the sampling rate, Hz per vCPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RateLimit {
    /// Rate at which stops through the GDB stub, as measured, take a tenth of the time.
    Stub(f64),
    /// Rate at which the stops of all vCPUs together, which are stopped one by one, are as many as they may
    /// be.
    Stops(f64),
}

impl RateLimit {
    /// Makes the limit of a machine with that many vCPUs, which are stopped one by one.
    pub(crate) fn of_vcpus(vcpus: usize) -> Self {
        Self::Stops(MOST_STOPS_HZ / f64::from(u32::try_from(vcpus.max(1)).unwrap_or(u32::MAX)))
    }

    /// Returns the highest rate, Hz per vCPU.
    pub fn hz(self) -> f64 {
        match self {
            Self::Stub(hz) | Self::Stops(hz) => hz,
        }
    }
}

/// Means by which vCPUs are stopped.
#[derive(Debug)]
enum Engine {
    Ptrace(RateLimit),
    /// The host's kernel samples them, without stops; it copies this memory.
    Sampled(Arc<SampledVm>, ForeignMemory),
    Stub {
        /// Ends waits for the stub.
        hurry: Arc<AtomicBool>,
        rate: SustainableRate,
    },
}

impl Engine {
    /// Returns true if a signal ends what a ticker may wait for: the next tick, or the stop of a thread.
    fn is_woken(&self) -> bool {
        !matches!(self, Self::Stub { .. })
    }
}

/// Attachment that has ended.
#[derive(Debug)]
pub struct EndedAttachment<O> {
    /// Reason of the end.
    pub end: AttachmentEnd,
    /// The observers, in the order of vCPUs.
    pub observers: Vec<O>,
    /// Number of samples of the host's kernel that lack a part of the guest's memory: the host had it swapped
    /// out.
    pub swapped_out: u64,
}

/// Returns the signal that ends a thread's wait for a stop.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 6
}

extern "C" fn on_wake_signal(_: libc::c_int) {}

/// Installs a handler for the wake signal, without SA_RESTART so that the signal ends a wait.
fn install_handler() -> io::Result<()> {
    // SAFETY: sigaction is plain data for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_wake_signal as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, and `action` lives through the call.
    match unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the name of the thread that ticks the vCPU with this index.
fn ticker_name(index: usize) -> String {
    format!("attached {index}")
}

/// Makes the error of a step that normally succeeds.
fn host_error(action: &'static str) -> impl Fn(io::Error) -> AttachError {
    move |source| AttachError::Host { action, source }
}

impl<O: Observer<StopMemory>> Attachment<O> {
    /// Starts ticking by the means that the target was found for. `make` is called once per vCPU, in the
    /// order of the vCPUs' numbers.
    ///
    /// # Errors
    /// Another vprof profiles the machine ([`Target::reserve`]). A thread or a descriptor could not be made.
    /// All that was started until then is ended.
    pub fn start(target: Target, mut make: impl FnMut(usize) -> O) -> Result<Self, AttachError> {
        install_handler().map_err(host_error("install a signal handler"))?;
        if !target.lock.is_held() {
            return Err(target.lock.in_use());
        }
        let Target { process, mut vcpus, known, lock, memory, heartbeat, guard, sampled, .. } = target;
        let search = SearchRight::raise();
        let take = |(index, vcpu)| WatchedVcpu::take(index, vcpu, sampled.as_ref());
        let watched: Vec<_> = vcpus.iter_mut().enumerate().filter_map(take).collect();
        let descriptors: Vec<_> = vcpus.iter().map(|vcpu| vcpu.fd).collect();
        if !process.holds_vcpu(&descriptors) {
            return Err(if process.ended_within(0) || process.is_ending() {
                AttachError::NoProcess { pid: process.pid() }
            } else {
                AttachError::Ended { pid: process.pid(), name: process.name().to_owned() }
            });
        }
        let source = AttachedMemory::Process(memory.clone());
        let engine = match &sampled {
            Some(vm) => Engine::Sampled(Arc::clone(vm), memory.clone()),
            None => Engine::Ptrace(RateLimit::of_vcpus(vcpus.len())),
        };
        let attachment = Self::new(vcpus.len(), engine, source, Some(lock), guard)?;
        let limit_hz = RateLimit::of_vcpus(vcpus.len()).hz();
        for (index, vcpu) in vcpus.into_iter().enumerate() {
            let id = vcpu.id;
            let stops = || {
                let memory = StopMemory::new(StopSource::process(memory.clone()));
                let slot = StopSlot::new(&heartbeat, index.saturating_add(1));
                VcpuStops::new(vcpu, slot, index == 0, memory, Arc::clone(&attachment.shared))
            };
            match &sampled {
                None => {
                    let ticker = VcpuTicker::new(stops(), make(index));
                    attachment.spawn(ticker_name(index), move || vec![ticker.run()])?;
                }
                Some(vm) => {
                    let seed = monotonic_ns().rotate_left(32) ^ u64::try_from(index).unwrap_or(0);
                    let mixed = vm.is_partial().then(|| MixedStops::new(stops(), limit_hz, seed));
                    attachment.sample(index, id, make(index), mixed)?;
                }
            }
        }
        let watcher = Watcher::new(Arc::new(process), memory, Arc::clone(&attachment.shared))
            .with_vcpus(watched, descriptors, known)
            .with_samples(sampled);
        // Its thread lists the descriptors of the VMM, and so keeps that right.
        let attachment = attachment.watch(watcher)?;
        drop(search);
        capabilities::drop_search();
        Ok(attachment)
    }

    /// Starts the ticks of a vCPU that the host's kernel samples, and returns true, if it samples vCPUs. Some
    /// of the ticks are `stops`, if it has any.
    fn sample(
        &self,
        index: usize,
        id: ThreadId,
        observer: O,
        stops: Option<MixedStops>,
    ) -> Result<bool, AttachError> {
        let Engine::Sampled(vm, memory) = &self.engine else { return Ok(false) };
        let (vm, memory, shared) = (Arc::clone(vm), memory.clone(), Arc::clone(&self.shared));
        let ticker = SampledTicker::new(vm, index, id, observer, memory, shared);
        let ticker = match stops {
            Some(stops) => ticker.with_stops(stops),
            None => ticker,
        };
        self.spawn(ticker_name(index), move || vec![ticker.run()])?;
        Ok(true)
    }

    /// Starts ticking a vCPU that was plugged in ([`AttachEvent::Plugged`]). Call this once for each, in the
    /// order of the events, before the next events are taken.
    ///
    /// # Errors
    /// A thread could not be made, or the kernel does not count what it could of the vCPU.
    pub fn adopt(&self, plugged: PluggedVcpu, observer: O) -> Result<(), AttachError> {
        if let Engine::Sampled(vm, _) = &self.engine {
            let refused = |refusal| AttachError::Bpf { pid: plugged.id.process, refusal };
            vm.follow(plugged.index).map_err(refused)?;
        }
        self.shared.vcpu_added();
        let started = self.sample(plugged.index, plugged.id, observer, None);
        if !matches!(started, Ok(true)) {
            self.shared.vcpu_ended();
        }
        started.map(drop)
    }

    /// Starts ticking through a GDB stub. `make` is called once per vCPU, in the order of the stub's threads.
    ///
    /// # Errors
    /// A thread or a descriptor could not be made. The machine continues to run then.
    pub fn start_by_gdb(mut target: GdbTarget, make: impl FnMut(usize) -> O) -> Result<Self, AttachError> {
        let rate = SustainableRate::default();
        let engine = Engine::Stub { hurry: Arc::clone(&target.hurry), rate: rate.clone() };
        let lock = target.lock.take();
        // One thread has all vCPUs.
        let mut attachment = Self::new(1, engine, target.memory.clone(), lock, None)?;
        if let (AttachedMemory::Process(memory), Some(process)) = (&target.memory, &target.process) {
            let shared = Arc::clone(&attachment.shared);
            attachment = attachment.watch(Watcher::new(Arc::clone(process), memory.clone(), shared))?;
        }
        capabilities::drop_search();
        let observers = (0..target.vcpus()).map(make).collect();
        let ticker = GdbTicker::new(target, observers, Arc::clone(&attachment.shared), rate);
        attachment.spawn("attached".to_owned(), move || ticker.run())?;
        Ok(attachment)
    }
}

impl<O> Attachment<O> {
    fn new(
        vcpus: usize,
        engine: Engine,
        memory: AttachedMemory,
        lock: Option<ProcessLock>,
        guard: Option<GuardProcess>,
    ) -> Result<Self, AttachError> {
        let shared = Arc::new(SharedState::new(vcpus).map_err(host_error("make an event descriptor"))?);
        let tickers = Mutex::new(Vec::new());
        Ok(Self { tickers, watcher: None, shared, engine, memory, lock, _guard: guard })
    }

    fn watch(mut self, watcher: Watcher) -> Result<Self, AttachError> {
        self.watcher = Some(watcher.start().map_err(host_error("start a thread"))?);
        Ok(self)
    }

    /// Returns what is counted of a vCPU that was plugged in.
    pub fn counts(&self, plugged: PluggedVcpu) -> VcpuCounts {
        let course = match &self.engine {
            Engine::Sampled(vm, _) => Some(VcpuCourse::new(Arc::clone(vm), plugged.index)),
            Engine::Ptrace(_) | Engine::Stub { .. } => None,
        };
        VcpuCounts { opened: None, course }
    }

    /// Returns the handle by which samples copy more of processes' memory than stacks; `None` if the vCPU is
    /// stopped, so that all memory can be read at a sample.
    pub fn copies(&self) -> Option<ProcessCopies> {
        match &self.engine {
            Engine::Sampled(vm, _) => Some(vm.copies()),
            Engine::Ptrace(_) | Engine::Stub { .. } => None,
        }
    }

    /// Returns the guest's memory. Memory in the VMM's process cannot be read before its layout is proven.
    pub fn memory(&self) -> &AttachedMemory {
        &self.memory
    }

    /// Returns the limit of the sampling rate. `None` with a stub before there were enough stops.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        match &self.engine {
            Engine::Ptrace(limit) => Some(*limit),
            Engine::Sampled(..) => None,
            Engine::Stub { rate, .. } => rate.hz().map(RateLimit::Stub),
        }
    }

    /// Takes the events since the previous call.
    pub fn take_events(&self) -> Vec<AttachEvent> {
        self.shared.take_events()
    }

    /// Requests the end; returns at once.
    pub fn stop(&self) {
        self.shared.finish(AttachmentEnd::Detached);
        if let Engine::Stub { hurry, .. } = &self.engine {
            hurry.store(true, Ordering::Release);
        }
    }

    /// Returns a descriptor (eventfd) that becomes readable at the end. It stays readable and must not be
    /// read.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.shared.ended_fd()
    }

    /// Returns true once the attachment has ended or is to end.
    pub fn has_ended(&self) -> bool {
        self.shared.is_over()
    }

    /// Ends the attachment if it has not ended yet, and waits for all threads.
    ///
    /// # Errors
    /// A thread did not end within five seconds, eight with a stub.
    ///
    /// # Panics
    /// If an observer panicked, with its panic.
    pub fn wait(mut self) -> Result<EndedAttachment<O>, AttachError> {
        self.stop();
        let observers = self.join()?;
        let swapped_out = self.shared.swapped_out.load(Ordering::Relaxed);
        Ok(EndedAttachment { end: self.shared.end(), observers, swapped_out })
    }

    fn join(&mut self) -> Result<Vec<O>, AttachError> {
        let (limit, action) = match &self.engine {
            Engine::Ptrace(_) | Engine::Sampled(..) => (PTRACE_LIMIT, "detach from a vCPU"),
            Engine::Stub { .. } => (STUB_LIMIT, "detach from the virtual machine"),
        };
        let deadline = Instant::now() + limit;
        let mut observers = Vec::new();
        let tickers = std::mem::take(self.tickers.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in tickers {
            while !thread.is_finished() {
                if Instant::now() > deadline {
                    return Err(host_error(action)(io::ErrorKind::TimedOut.into()));
                }
                if self.engine.is_woken() {
                    // SAFETY: the thread was not joined, so its id is still its own.
                    unsafe {
                        libc::pthread_kill(thread.as_pthread_t(), wake_signal());
                    }
                }
                thread::sleep(WAKE_INTERVAL);
            }
            observers.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        // The next vprof need not wait for the watcher.
        drop(self.lock.take());
        if let Some(watcher) = self.watcher.take() {
            // A panic in it was printed when it happened.
            drop(watcher.join());
        }
        Ok(observers)
    }
}

impl<O: Send + 'static> Attachment<O> {
    fn spawn(&self, name: String, run: impl FnOnce() -> Vec<O> + Send + 'static) -> Result<(), AttachError> {
        let behind_wall = move || {
            capabilities::drop_search();
            sandbox::enter_thread(ThreadKind::Ticker);
            run()
        };
        let spawned = thread::Builder::new().name(name).spawn(behind_wall);
        let thread = spawned.map_err(host_error("start a thread"))?;
        self.tickers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

impl<O> Drop for Attachment<O> {
    fn drop(&mut self) {
        self.stop();
        // `wait` reports a thread that hangs or has panicked.
        let _hung = self.join();
    }
}
