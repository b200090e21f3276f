//! A machine behind a stub while it is profiled: one thread ticks all of its vCPUs.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linux::PhysicalMemory;
use vmm::monotonic_ns;

use super::client::{Lost, State};
use super::memory::{Line, Stopped, hold};
use super::stub::Vcpu;
use super::target::{GdbTarget, MOST_STOPPED, Source};
use crate::error::AttachError;
use crate::lock::Lock;
use crate::machine::{End, Ended, News, Shared, Standing};
use crate::memory::ForeignMemory;
use crate::memory::cache::StopMemory;
use crate::observer::{EFER_LMA, Missed, Observer, Tick};
use crate::process::Process;
use crate::vcpu::sleep_until;
use crate::watch::Watcher;

/// How long the thread gets to end: an answer of the stub that is waited for, and a farewell.
const THREAD_LIMIT: Duration = Duration::from_secs(8);
/// Pause between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(5);
/// Stops before their mean is told, and the weight of each after that.
const STOPS: u32 = 16;
const WEIGHT: f64 = 1.0 / 64.0;
/// How long the end of a process may come after that of its connections, ms.
const GONE_MS: i32 = 500;

/// A machine that is being profiled through its stub. Dropping it lets it go.
#[derive(Debug)]
pub struct GdbAttached<O: Observer> {
    ticker: Option<JoinHandle<Vec<O>>>,
    watcher: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    hurry: Arc<AtomicBool>,
    pace: Arc<AtomicU64>,
    memory: Source,
    _lock: Option<Lock>,
}

impl<O: Observer> GdbAttached<O> {
    /// Starts ticking. `make` is called once per vCPU, in the order of the stub's threads.
    ///
    /// # Errors
    /// A thread or a descriptor could not be made; the machine runs on then.
    pub fn start(mut target: GdbTarget, make: impl FnMut(usize) -> O) -> Result<Self, AttachError> {
        let failed = |action| move |source| AttachError::Host { action, source };
        let shared = Arc::new(Shared::new(1).map_err(failed("make an event descriptor"))?);
        let pace = Arc::new(AtomicU64::new(0));
        let memory = target.memory.clone();
        let at_stop = match &memory {
            Source::Process(memory) => AtStop::Process(StopMemory::new(memory.clone())),
            Source::Stub(_) => AtStop::Stub(StopMemory::new(Stopped(Arc::clone(&target.line)))),
        };
        let mut attached = Self {
            ticker: None,
            watcher: None,
            shared: Arc::clone(&shared),
            hurry: Arc::clone(&target.hurry),
            pace: Arc::clone(&pace),
            memory: memory.clone(),
            _lock: target.lock.take(),
        };
        if let (Source::Process(memory), Some(process)) = (&memory, &target.process) {
            let watcher = Watcher::new(Arc::clone(process), memory.clone(), Arc::clone(&shared));
            attached.watcher = Some(watcher.start().map_err(failed("start a thread"))?);
        }
        let observers = (0..target.vcpus()).map(make).collect();
        let ticker = Ticker { target, observers, memory: at_stop, shared, pace, stops: 0, stopped_s: 0.0 };
        let spawned = thread::Builder::new().name("attached".to_owned()).spawn(move || ticker.run());
        attached.ticker = Some(spawned.map_err(failed("start a thread"))?);
        Ok(attached)
    }

    /// Where the guest's memory is read.
    pub fn memory(&self) -> &Source {
        &self.memory
    }

    /// Samples a second and vCPU for which the machine stands still no more than a tenth of the time, by the last stops;
    /// `None` before there were enough.
    pub fn sustainable_hz(&self) -> Option<f64> {
        Some(f64::from_bits(self.pace.load(Ordering::Relaxed))).filter(|hz| *hz > 0.0)
    }

    /// What is new since the last call.
    pub fn news(&self) -> Vec<News> {
        self.shared.news()
    }

    /// Asks for the end; returns at once.
    pub fn stop(&self) {
        self.shared.end(End::Detached);
        self.hurry.store(true, Ordering::Release);
    }

    /// A descriptor (eventfd) that becomes readable at the end. It stays readable; reading it must not be done.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.shared.ended_fd()
    }

    /// True once it is over.
    pub fn has_ended(&self) -> bool {
        self.shared.is_over()
    }

    /// Stops, if it is not over yet, and waits for the farewell.
    ///
    /// # Errors
    /// The thread did not end within eight seconds.
    ///
    /// # Panics
    /// If an observer panicked, with its panic.
    pub fn wait(mut self) -> Result<Ended<O>, AttachError> {
        self.stop();
        let observers = self.join()?;
        Ok(Ended { end: self.shared.how(), observers })
    }

    fn join(&mut self) -> Result<Vec<O>, AttachError> {
        let begin = Instant::now();
        while self.ticker.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if begin.elapsed() > THREAD_LIMIT {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(AttachError::Host { action: "let the virtual machine go", source });
            }
            thread::sleep(PAUSE);
        }
        if let Some(watcher) = self.watcher.take() {
            // A panic in it was reported when it happened.
            drop(watcher.join());
        }
        let Some(ticker) = self.ticker.take() else { return Ok(Vec::new()) };
        Ok(ticker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl<O: Observer> Drop for GdbAttached<O> {
    fn drop(&mut self) {
        self.stop();
        // Whoever wants to know whether it hangs or panicked calls `wait`.
        let _hung = self.join();
    }
}

/// Memory at a stop.
#[derive(Debug)]
enum AtStop {
    Process(StopMemory<ForeignMemory>),
    Stub(StopMemory<Stopped>),
}

/// The thread that ticks.
struct Ticker<O> {
    target: GdbTarget,
    observers: Vec<O>,
    memory: AtStop,
    shared: Arc<Shared>,
    pace: Arc<AtomicU64>,
    /// Stops so far, up to [`STOPS`], and their mean, s.
    stops: u32,
    stopped_s: f64,
}

impl<O: Observer> Ticker<O> {
    fn run(mut self) -> Vec<O> {
        // The first one's clock is that of all.
        let first: Vec<_> = self.observers.iter_mut().map(|observer| observer.started(None)).collect();
        let mut next = first.first().copied().flatten();
        let mut from_ns = monotonic_ns();
        while let Some(after) = next {
            let due_ns = from_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
            if !sleep_until(&self.shared, due_ns) {
                break;
            }
            match self.tick(due_ns) {
                Ok(after) => (next, from_ns) = after,
                Err(lost) => {
                    self.shared.end(self.end_of(lost));
                    break;
                }
            }
        }
        self.observers.iter_mut().for_each(Observer::stopped);
        self.observers
    }

    /// Serves a tick; the time to the next, and from when on.
    fn tick(&mut self, due_ns: u64) -> Result<(Option<Duration>, u64), Lost> {
        let asked_ns = monotonic_ns();
        let passed = all(&mut self.observers, |observer| observer.pass(asked_ns));
        if let Some(after) = passed {
            return Ok((Some(after), asked_ns));
        }
        let line: Line = Arc::clone(&self.target.line);
        let (answers, state) = {
            let mut client = hold(&line);
            (client.stop_and_ask(self.target.stub.commands())?, client.state())
        };
        if let Some(guard) = &mut self.target.guard {
            guard.tell(state);
        }
        let now_ns = monotonic_ns();
        let vcpus = answers.and_then(|answers| self.target.stub.read(&answers));
        let next = match &vcpus {
            Some(vcpus) => self.show(vcpus, due_ns, now_ns),
            None => {
                let why = if state == State::Paused { Missed::Paused } else { Missed::InVmm };
                all(&mut self.observers, |observer| observer.missed(why, due_ns, now_ns))
            }
        };
        self.shared.stands((state == State::Paused).then_some(Standing::Paused));
        hold(&line).go()?;
        if state != State::Stopped {
            return Ok((next, now_ns));
        }
        let end_ns = monotonic_ns();
        self.observers.iter_mut().for_each(|observer| observer.held(asked_ns, end_ns));
        self.note_cost(end_ns.saturating_sub(asked_ns));
        // The clock stands still while the machine does.
        Ok((next, end_ns))
    }

    /// A sample of each vCPU.
    fn show(&mut self, vcpus: &[Vcpu], due_ns: u64, now_ns: u64) -> Option<Duration> {
        vcpus.iter().for_each(|vcpu| self.shared.tables.tell(&vcpu.registers.1));
        match &self.memory {
            AtStop::Process(memory) => {
                let real = vcpus.first().is_some_and(|vcpu| vcpu.registers.1.efer & EFER_LMA == 0);
                if real && memory.source().is_proven() {
                    self.shared.end(End::Reset);
                }
                show(&mut self.observers, vcpus, memory, (due_ns, now_ns))
            }
            AtStop::Stub(memory) => show(&mut self.observers, vcpus, memory, (due_ns, now_ns)),
        }
    }

    fn note_cost(&mut self, ns: u64) {
        let seconds = Duration::from_nanos(ns).as_secs_f64();
        self.stops = self.stops.saturating_add(1);
        let weight = f64::max(WEIGHT, 1.0 / f64::from(self.stops));
        self.stopped_s += (seconds - self.stopped_s) * weight;
        if self.stops >= STOPS {
            self.pace.store((MOST_STOPPED / self.stopped_s.max(1e-6)).to_bits(), Ordering::Relaxed);
        }
    }

    fn end_of(&self, lost: Lost) -> End {
        let ended = |process: &Arc<Process>| process.ended_within(GONE_MS);
        match lost {
            Lost::Closed if self.target.process.as_ref().is_some_and(ended) => End::ProcessEnded,
            Lost::Closed => End::StubClosed,
            Lost::Silent | Lost::NoStub => End::StubSilent,
        }
    }
}

/// Tells every observer; the first one's answer.
fn all<O>(observers: &mut [O], mut tell: impl FnMut(&mut O) -> Option<Duration>) -> Option<Duration> {
    let mut answers = observers.iter_mut().map(&mut tell);
    let first = answers.next().flatten();
    answers.for_each(drop);
    first
}

/// Shows each observer its vCPU; the first one's answer.
fn show<O: Observer, M: PhysicalMemory>(
    observers: &mut [O],
    vcpus: &[Vcpu],
    memory: &StopMemory<M>,
    (due_ns, now_ns): (u64, u64),
) -> Option<Duration> {
    memory.forget();
    let mut vcpus = vcpus.iter();
    all(observers, |observer| {
        let Vcpu { registers: (regs, sregs), halted } = vcpus.next()?;
        observer.ticked(&Tick { due_ns, now_ns, regs, sregs, memory, blocked: false, halted: *halted })
    })
}
