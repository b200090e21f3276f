//! An attached machine: one thread for each vCPU, and one that looks for the layout of the memory and for the end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::AttachError;
use crate::lock::Lock;
use crate::memory::cache::StopMemory;
use crate::memory::{ForeignMemory, Table};
use crate::observer::Observer;
use crate::target::Target;
use crate::vcpu::Ticker;
use crate::watch::{Watched, Watcher};

/// How long threads get to end: each at most one wait of its own.
const THREAD_LIMIT: Duration = Duration::from_secs(5);
/// How often a thread that does not end is woken.
const WAKE: Duration = Duration::from_millis(10);

/// How an attached machine came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// [`Attached::stop`] was called. The machine runs on.
    Detached,
    /// The VMM's process has ended.
    ProcessEnded,
    /// The threads of all vCPUs have ended, or its descriptors of them are closed, and the process goes on: it executes
    /// another program, or has closed the machine.
    VcpusEnded,
    /// The guest was reset: what was known of its kernel is so no more.
    Reset,
    /// The GDB stub has closed the connection, and the VMM's process goes on, or can't be seen.
    StubClosed,
    /// The GDB stub does not answer any more.
    StubSilent,
}

/// What is told while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The layout of the memory was proven.
    Memory(String),
    /// It was not, for a while; it is looked for on.
    NoMemory(String),
    /// The machine stands still.
    Stands(Standing),
    /// It runs on.
    Moves,
    /// A vCPU with this number of KVM's was plugged in; it is not profiled.
    Plugged(u32),
    /// The thread of the vCPU with this number of KVM's has ended, and the machine has not.
    Unplugged(u32),
}

/// Why a machine stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its VMM keeps every vCPU out of the guest.
    Paused,
    /// Its VMM's process was stopped by a signal.
    Stopped,
}

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    over: AtomicBool,
    end: Mutex<Option<End>>,
    /// vCPUs whose threads have not ended.
    left: AtomicUsize,
    standing: Mutex<Option<Standing>>,
    /// Page tables that a vCPU has used.
    pub(crate) tables: Table,
    news: Mutex<Vec<News>>,
    ended: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(vcpus: usize) -> io::Result<Self> {
        // SAFETY: takes no pointers; gives a new descriptor or an error.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let ended = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            over: AtomicBool::new(false),
            end: Mutex::new(None),
            left: AtomicUsize::new(vcpus),
            standing: Mutex::default(),
            tables: Table::default(),
            news: Mutex::default(),
            ended,
        })
    }

    /// Every thread is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// It is over; the first end counts.
    pub(crate) fn end(&self, end: End) {
        lock(&self.end).get_or_insert(end);
        self.over.store(true, Ordering::Release);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that live through the call. The counter cannot overflow, and a full one is readable as well.
        unsafe {
            libc::write(self.ended.as_raw_fd(), one.as_ptr().cast(), one.len());
        }
    }

    /// How it has ended.
    pub(crate) fn how(&self) -> End {
        lock(&self.end).unwrap_or(End::Detached)
    }

    /// Why the machine stands still, if it does.
    pub(crate) fn standing(&self) -> Option<Standing> {
        *lock(&self.standing)
    }

    /// The machine stands still, or runs on; a change is told.
    pub(crate) fn stands(&self, standing: Option<Standing>) {
        if std::mem::replace(&mut *lock(&self.standing), standing) != standing {
            self.tell(standing.map_or(News::Moves, News::Stands));
        }
    }

    /// Somebody is to hear this.
    pub(crate) fn tell(&self, news: News) {
        lock(&self.news).push(news);
    }

    /// All vCPUs' threads have ended.
    pub(crate) fn is_deserted(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Takes what is new.
    pub(crate) fn news(&self) -> Vec<News> {
        std::mem::take(&mut lock(&self.news))
    }

    /// Becomes readable at the end.
    pub(crate) fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// The thread of a vCPU has ended. Whether its process has, too, is told by whoever looks at that.
    pub(crate) fn vcpu_gone(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A machine that is being profiled. Dropping it lets it go.
#[derive(Debug)]
pub struct Attached<O: Observer> {
    vcpus: Vec<JoinHandle<O>>,
    watcher: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    memory: ForeignMemory,
    _lock: Lock,
}

/// A machine that was let go.
#[derive(Debug)]
pub struct Ended<O> {
    /// Why.
    pub end: End,
    /// The observers, in the order of vCPUs.
    pub observers: Vec<O>,
}

/// The signal that gets a thread out of its wait for a stop.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 6
}

extern "C" fn woken(_: libc::c_int) {}

/// Without SA_RESTART, so that a wait ends.
fn install_handler() -> io::Result<()> {
    // SAFETY: sigaction is plain data for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = woken as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, and `action` lives through the call.
    match unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl<O: Observer> Attached<O> {
    /// Starts ticking. `make` is called once per vCPU, in the order of their numbers.
    ///
    /// # Errors
    /// A thread or a descriptor could not be made; nothing is left behind then.
    pub fn start(target: Target, mut make: impl FnMut(usize) -> O) -> Result<Self, AttachError> {
        let failed = |action| move |source| AttachError::Host { action, source };
        install_handler().map_err(failed("install a signal handler"))?;
        let Target { process, vcpus, known, lock, memory } = target;
        let shared = Arc::new(Shared::new(vcpus.len()).map_err(failed("make an event descriptor"))?);
        let watched = vcpus.iter().map(|vcpu| Watched::of(&process, vcpu)).collect::<io::Result<_>>();
        let watched = watched.map_err(|error| AttachError::of(process.pid(), "look at its vCPUs", error))?;
        let mut attached = Self { vcpus: Vec::new(), watcher: None, shared, memory, _lock: lock };
        for (index, vcpu) in vcpus.into_iter().enumerate() {
            let ticker = Ticker {
                vcpu,
                first: index == 0,
                observer: make(index),
                memory: StopMemory::new(attached.memory.clone()),
                shared: Arc::clone(&attached.shared),
                idle: None,
                last: None,
            };
            let name = format!("attached {index}");
            let spawned = thread::Builder::new().name(name).spawn(move || ticker.run());
            attached.vcpus.push(spawned.map_err(failed("start a thread"))?);
        }
        let watcher = Watcher::new(Arc::new(process), attached.memory.clone(), Arc::clone(&attached.shared))
            .with_vcpus(watched, known);
        attached.watcher = Some(watcher.start().map_err(failed("start a thread"))?);
        Ok(attached)
    }

    /// The guest's memory; nothing of it can be read before its layout is proven.
    pub fn memory(&self) -> ForeignMemory {
        self.memory.clone()
    }

    /// What is new since the last call.
    pub fn news(&self) -> Vec<News> {
        self.shared.news()
    }

    /// Asks every thread to let its vCPU go; returns at once.
    pub fn stop(&self) {
        self.shared.end(End::Detached);
    }

    /// A descriptor (eventfd) that becomes readable at the end. It stays readable; reading it must not be done.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.shared.ended_fd()
    }

    /// True once it is over.
    pub fn has_ended(&self) -> bool {
        self.shared.is_over()
    }

    /// Stops, if it is not over yet, and waits for all threads.
    ///
    /// # Errors
    /// A thread did not end within five seconds.
    ///
    /// # Panics
    /// If an observer panicked, with its panic.
    pub fn wait(mut self) -> Result<Ended<O>, AttachError> {
        self.stop();
        let observers = self.join()?;
        Ok(Ended { end: self.shared.how(), observers })
    }

    fn join(&mut self) -> Result<Vec<O>, AttachError> {
        let deadline = Instant::now() + THREAD_LIMIT;
        let late = || AttachError::Host {
            action: "let a vCPU go",
            source: io::Error::from(io::ErrorKind::TimedOut),
        };
        let mut observers = Vec::new();
        for thread in self.vcpus.drain(..) {
            while !thread.is_finished() {
                if Instant::now() > deadline {
                    return Err(late());
                }
                // SAFETY: the thread was not joined, so that its id is its own.
                unsafe {
                    libc::pthread_kill(thread.as_pthread_t(), wake_signal());
                }
                thread::sleep(WAKE);
            }
            observers.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        if let Some(watcher) = self.watcher.take() {
            // A panic in it was reported when it happened.
            drop(watcher.join());
        }
        Ok(observers)
    }
}

impl<O: Observer> Drop for Attached<O> {
    fn drop(&mut self) {
        self.stop();
        // Whoever wants to know which thread hangs or panicked calls `wait`.
        let _hung = self.join();
    }
}
