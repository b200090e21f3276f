//! Ticks of all vCPUs of a machine with a GDB stub, on one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vmm::x86::EFER_LMA;
use vmm::{MissReason, Observer, Tick, TickContext, monotonic_ns};

use super::stub::StubVcpu;
use super::target::{GdbTarget, MOST_STOPPED};
use crate::activity::InferredActivity;
use crate::memory::{AttachedMemory, StopMemory, StopSource};
use crate::process::Process;
use crate::rsp::client::{ConnectionError, MachineState};
use crate::rsp::memory::{ClientHandle, StoppedStub, lock_client};
use crate::shared::{AttachmentEnd, PauseCause, SharedState};
use crate::ticker::{NextTick, run_ticks};

/// Number of stops before their mean cost is published.
const STOPS: u32 = 16;
/// Weight of each stop after that.
const WEIGHT: f64 = 1.0 / 64.0;
/// Limit for the end of a process after the end of its connections, ms.
const GONE_MS: i32 = 500;

/// Sampling rate that the stub sustains, as measured. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SustainableRate(Arc<AtomicU64>);

impl SustainableRate {
    /// Returns the rate, Hz per vCPU; `None` before there were enough stops.
    pub(crate) fn hz(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Ordering::Relaxed))).filter(|hz| *hz > 0.0)
    }

    fn set(&self, hz: f64) {
        self.0.store(hz.to_bits(), Ordering::Relaxed);
    }
}

/// Everything that the thread owns.
pub(crate) struct GdbTicker<O> {
    target: GdbTarget,
    observers: Vec<O>,
    memory: StopMemory,
    shared: Arc<SharedState>,
    rate: SustainableRate,
    /// Stops so far.
    stops: u32,
    /// Mean duration of a stop, s.
    stopped_s: f64,
}

impl<O: Observer<StopMemory>> GdbTicker<O> {
    pub(crate) fn new(
        target: GdbTarget,
        observers: Vec<O>,
        shared: Arc<SharedState>,
        rate: SustainableRate,
    ) -> Self {
        let memory = StopMemory::new(match &target.memory {
            AttachedMemory::Process(memory) => StopSource::process(memory.clone()),
            AttachedMemory::Stub(_) => StopSource::stub(StoppedStub(Arc::clone(&target.client))),
        });
        Self { target, observers, memory, shared, rate, stops: 0, stopped_s: 0.0 }
    }

    /// Ticks until the machine or the attachment ends; returns the observers.
    pub(crate) fn run(mut self) -> Vec<O> {
        // The first observer's clock is the clock of all.
        let first = for_all(&mut self.observers, |observer| {
            observer.attached(None);
            observer.started()
        });
        let shared = Arc::clone(&self.shared);
        if let Err(error) = run_ticks(&shared, first, |due_ns| self.tick(due_ns)) {
            self.shared.finish(self.end_after(error));
        }
        self.observers.iter_mut().for_each(Observer::stopped);
        self.observers
    }

    /// Serves a tick.
    fn tick(&mut self, due_ns: u64) -> Result<NextTick, ConnectionError> {
        let asked_ns = monotonic_ns();
        let passed = for_all(&mut self.observers, |observer| observer.pass(asked_ns));
        if let Some(after) = passed {
            return Ok((Some(after), asked_ns));
        }
        let handle: ClientHandle = Arc::clone(&self.target.client);
        let (answers, state) = {
            let mut client = lock_client(&handle);
            (client.stop_and_ask(self.target.stub.commands())?, client.state())
        };
        if let Some(guard) = &mut self.target.guard {
            guard.set_state(state);
        }
        let now_ns = monotonic_ns();
        let vcpus = answers.and_then(|answers| self.target.stub.parse(&answers));
        let next = match &vcpus {
            Some(vcpus) => self.observe(vcpus, due_ns, now_ns),
            None => {
                let reason =
                    if state == MachineState::Paused { MissReason::Paused } else { MissReason::InVmm };
                for_all(&mut self.observers, |observer| observer.missed(reason, due_ns, now_ns))
            }
        };
        self.shared.set_pause((state == MachineState::Paused).then_some(PauseCause::Vmm));
        lock_client(&handle).resume()?;
        if state != MachineState::Stopped {
            return Ok((next, now_ns));
        }
        let end_ns = monotonic_ns();
        self.observers.iter_mut().for_each(|observer| observer.suspended(asked_ns, end_ns));
        self.record_cost(end_ns.saturating_sub(asked_ns));
        // The sampling clock is stopped while the machine is.
        Ok((next, end_ns))
    }

    /// Passes each vCPU's registers to its observer.
    fn observe(&mut self, vcpus: &[StubVcpu], due_ns: u64, now_ns: u64) -> Option<Duration> {
        vcpus.iter().for_each(|vcpu| self.shared.tables.record(&vcpu.sregs));
        let real_mode = vcpus.first().is_some_and(|vcpu| vcpu.sregs.efer & EFER_LMA == 0);
        if real_mode && self.memory.source().is_proven() {
            self.shared.finish(AttachmentEnd::Reset);
        }
        let memory = &self.memory;
        memory.forget();
        let mut vcpus = vcpus.iter();
        for_all(&mut self.observers, |observer| {
            let StubVcpu { regs, sregs, halted } = vcpus.next()?;
            let context = TickContext { due_ns, now_ns, in_run: true, regs, sregs, memory };
            let source = InferredActivity { context, blocked: false, halted: *halted, nested: false };
            observer.ticked(&Tick { context, blocked: false, source: &source })
        })
    }

    /// Records the duration of a stop, and publishes the sustainable rate.
    fn record_cost(&mut self, ns: u64) {
        let seconds = Duration::from_nanos(ns).as_secs_f64();
        self.stops = self.stops.saturating_add(1);
        let weight = f64::max(WEIGHT, 1.0 / f64::from(self.stops));
        self.stopped_s += (seconds - self.stopped_s) * weight;
        if self.stops >= STOPS {
            self.rate.set(MOST_STOPPED / self.stopped_s.max(1e-6));
        }
    }

    fn end_after(&self, error: ConnectionError) -> AttachmentEnd {
        let has_ended = |process: &Arc<Process>| process.ended_within(GONE_MS);
        match error {
            ConnectionError::Closed if self.target.process.as_ref().is_some_and(has_ended) => {
                AttachmentEnd::ProcessEnded
            }
            ConnectionError::Closed => AttachmentEnd::StubClosed,
            ConnectionError::Silent | ConnectionError::NoStub => AttachmentEnd::StubSilent,
        }
    }
}

/// Calls `call` with every observer; returns the first one's answer.
fn for_all<O>(observers: &mut [O], call: impl FnMut(&mut O) -> Option<Duration>) -> Option<Duration> {
    let mut answers = observers.iter_mut().map(call);
    let first = answers.next().flatten();
    answers.for_each(drop);
    first
}
