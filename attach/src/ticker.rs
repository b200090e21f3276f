//! Ticks of one attached vCPU by ptrace, on a thread per vCPU.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{KVM_EXIT_HLT, kvm_regs, kvm_sregs};
use vmm::x86::{CR0_PE, EFER_LMA};
use vmm::{AttachedThread, MissReason, Observer, Tick, TickContext, monotonic_ns};

use crate::activity::{InferredActivity, is_after_halt};
use crate::guard::StopSlot;
use crate::memory::StopMemory;
use crate::shared::{AttachmentEnd, PauseCause, SharedState};
use crate::stop::{StopError, ThreadStop};
use crate::target::TargetVcpu;
use crate::thread::ThreadActivity;

/// Time that an entry and an exit take at least, ns. A thread that has run for less than this since its last
/// stop, and whose guest has the same registers, has not been in the guest.
const NOT_RUN_NS: u64 = 4_000;
/// Interval at which a thread that waits for a tick checks whether it is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum age of the registers of the idle loop, ns. A guest may also halt elsewhere, as in a paravirtual
/// spinlock.
const IDLE_NS: u64 = 1_000_000_000;
/// Slack of the thread's timers, ns: as little as possible (PR_SET_TIMERSLACK, prctl(2)).
const SLACK_NS: libc::c_ulong = 1;

/// General registers, and segment and control registers.
type Registers = (kvm_regs, kvm_sregs);

/// Everything that the thread owns.
pub(crate) struct VcpuTicker<O> {
    stops: VcpuStops,
    observer: O,
}

/// Ticks of one vCPU by stops of its thread.
pub(crate) struct VcpuStops {
    vcpu: TargetVcpu,
    slot: StopSlot,
    /// The vCPU is the machine's first, whose mode shows whether the guest has been reset.
    first: bool,
    memory: StopMemory,
    shared: Arc<SharedState>,
    /// Registers in the idle loop, and the time of that stop, CLOCK_MONOTONIC ns.
    idle: Option<(Registers, u64)>,
    /// Registers at the previous stop, and the thread's CPU time then, ns.
    last: Option<(kvm_regs, u64)>,
}

/// Time to the next tick, `None` for no more ticks, and the time from which it counts, CLOCK_MONOTONIC ns.
pub(crate) type NextTick = (Option<Duration>, u64);

/// Calls `tick` with each due time, CLOCK_MONOTONIC ns, until there is no next tick or the attachment ends.
///
/// # Errors
/// The error of `tick`.
pub(crate) fn run_ticks<E>(
    shared: &SharedState,
    first: Option<Duration>,
    mut tick: impl FnMut(u64) -> Result<NextTick, E>,
) -> Result<(), E> {
    let (mut next, mut from_ns) = (first, monotonic_ns());
    while let Some(after) = next {
        let due_ns = from_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        if !sleep_until(shared, due_ns) {
            break;
        }
        (next, from_ns) = tick(due_ns)?;
    }
    Ok(())
}

/// Calls `tick` of the ticker of one vCPU, whose thread this is, until the attachment ends.
pub(crate) fn run_vcpu<T, O: Observer<StopMemory>>(
    ticker: &mut T,
    (thread, shared): (AttachedThread, &SharedState),
    observer: impl Fn(&mut T) -> &mut O,
    tick: impl Fn(&mut T, u64) -> NextTick,
) {
    set_timer_slack();
    observer(ticker).attached(Some(thread));
    let first = observer(ticker).started();
    let Ok(()) = run_ticks(shared, first, |due_ns| Ok::<_, Infallible>(tick(ticker, due_ns)));
    observer(ticker).stopped();
}

/// Returns the pause that the machine is in.
///
/// # Errors
/// The next tick, if this one is not served: the observer passes it, or a signal has stopped the VMM.
pub(crate) fn before_tick<O: Observer<StopMemory>>(
    observer: &mut O,
    shared: &SharedState,
    due_ns: u64,
    asked_ns: u64,
) -> Result<Option<PauseCause>, NextTick> {
    if let Some(after) = observer.pass(asked_ns) {
        return Err((Some(after), asked_ns));
    }
    match shared.pause() {
        Some(PauseCause::Signal) => Err((observer.missed(MissReason::Paused, due_ns, asked_ns), asked_ns)),
        pause => Ok(pause),
    }
}

impl<O: Observer<StopMemory>> VcpuTicker<O> {
    pub(crate) fn new(stops: VcpuStops, observer: O) -> Self {
        Self { stops, observer }
    }

    /// Ticks until the machine or the attachment ends; returns the observer.
    pub(crate) fn run(mut self) -> O {
        let vcpu = &self.stops.vcpu;
        let thread = vcpu.files.attached(vcpu.id, vcpu.number);
        let shared = Arc::clone(&self.stops.shared);
        run_vcpu(&mut self, (thread, &shared), |ticker| &mut ticker.observer, Self::tick);
        self.observer
    }

    /// Serves a tick.
    fn tick(&mut self, due_ns: u64) -> NextTick {
        let asked_ns = monotonic_ns();
        match before_tick(&mut self.observer, &self.stops.shared, due_ns, asked_ns) {
            Ok(pause) => self.stops.serve(&mut self.observer, (due_ns, asked_ns), pause),
            Err(next) => next,
        }
    }
}

impl VcpuStops {
    pub(crate) fn new(
        vcpu: TargetVcpu,
        slot: StopSlot,
        first: bool,
        memory: StopMemory,
        shared: Arc<SharedState>,
    ) -> Self {
        Self { vcpu, slot, first, memory, shared, idle: None, last: None }
    }

    /// Serves a tick that was due at the first of these times, CLOCK_MONOTONIC ns, and is wanted at the
    /// second one. The machine is in this pause.
    pub(crate) fn serve<O: Observer<StopMemory>>(
        &mut self,
        observer: &mut O,
        (due_ns, asked_ns): (u64, u64),
        pause: Option<PauseCause>,
    ) -> NextTick {
        let idle = self.idle.filter(|(_, met_ns)| asked_ns.saturating_sub(*met_ns) < IDLE_NS);
        match (self.vcpu.files.activity(), idle) {
            // Halted: the registers are those of the idle loop, and the thread is not stopped to read them
            // again.
            (Ok(ThreadActivity::BlockedInRun(fd)), idle) if fd == self.vcpu.fd => match idle {
                Some((registers, _)) => {
                    (self.observe(observer, &registers, (due_ns, asked_ns), (true, false)), asked_ns)
                }
                None => self.stop(observer, (due_ns, asked_ns), true),
            },
            (Ok(ThreadActivity::Running), _) => self.stop(observer, (due_ns, asked_ns), false),
            (Ok(ThreadActivity::BlockedOnPage(_)), _) => {
                (observer.missed(MissReason::BlockedInVmm, due_ns, asked_ns), asked_ns)
            }
            // With an interrupt controller in the VMM, the VMM serves the guest's HLT.
            (Ok(_), _) if self.vcpu.page.exit_reason() == KVM_EXIT_HLT && self.idle.is_some() => {
                let next = self.idle.and_then(|(registers, _)| {
                    self.observe(observer, &registers, (due_ns, asked_ns), (true, false))
                });
                (next, asked_ns)
            }
            (Ok(_), _) => {
                let reason = pause.map_or(MissReason::BlockedInVmm, |_| MissReason::Paused);
                (observer.missed(reason, due_ns, asked_ns), asked_ns)
            }
            (Err(_), _) => (self.thread_ended(), asked_ns),
        }
    }

    fn thread_ended(&self) -> Option<Duration> {
        self.shared.vcpu_ended();
        None
    }

    /// Stops the thread, passes the registers to the observer, and resumes the thread.
    fn stop<O: Observer<StopMemory>>(
        &mut self,
        observer: &mut O,
        (due_ns, asked_ns): (u64, u64),
        blocked: bool,
    ) -> NextTick {
        observer.suspending(asked_ns);
        let stopped = {
            // Before the stop: KVM checks the request when KVM_RUN returns.
            let _request = self.vcpu.page.request_registers();
            ThreadStop::new(self.vcpu.id.thread, &self.slot, || !self.shared.is_over())
        };
        let stop = match stopped {
            Ok(stop) => stop,
            Err(StopError::Gone) => return (self.thread_ended(), asked_ns),
            Err(StopError::Interrupted) => return (None, asked_ns),
            Err(StopError::Suspended) => {
                self.slot.wait(|| !self.shared.is_over());
                let now_ns = monotonic_ns();
                return (observer.missed(MissReason::NotRun, now_ns, now_ns), now_ns);
            }
            Err(StopError::NotAllowed) => {
                return (observer.missed(MissReason::Traced, due_ns, asked_ns), asked_ns);
            }
        };
        let now_ns = monotonic_ns();
        let next = match self.stopped_registers(&stop) {
            Ok(registers) => {
                let nested = self.vcpu.page.in_nested_guest();
                if !nested {
                    self.update_machine(&registers.1);
                }
                let next = self.observe(observer, &registers, (due_ns, now_ns), (blocked, nested));
                // The idle loop of a guest of the guest is not the guest's.
                if blocked && !nested {
                    self.idle = Some((registers, now_ns)).filter(|_| self.is_halted(&registers));
                }
                Ok(next)
            }
            Err(reason) => Err(reason),
        };
        drop(stop);
        let end_ns = monotonic_ns();
        observer.suspended(asked_ns, end_ns);
        // The sampling clock is stopped while the vCPU is.
        (next.unwrap_or_else(|reason| observer.missed(reason, due_ns, now_ns)), end_ns)
    }

    /// Returns the guest's registers at a stop.
    fn stopped_registers(&mut self, stop: &ThreadStop) -> Result<Registers, MissReason> {
        if stop.interrupted_run() != Some(self.vcpu.fd) {
            return Err(MissReason::InVmm);
        }
        // Without them KVM_RUN has returned before the request, for a signal of the VMM.
        let registers = self.vcpu.page.registers().ok_or(MissReason::NotRun)?;
        self.vcpu.page.mark_old();
        let run_ns = self.vcpu.files.run_ns().unwrap_or(0);
        if self.has_run(&registers.0, run_ns) { Ok(registers) } else { Err(MissReason::NotRun) }
    }

    fn observe<O: Observer<StopMemory>>(
        &mut self,
        observer: &mut O,
        (regs, sregs): &Registers,
        (due_ns, now_ns): (u64, u64),
        (blocked, nested): (bool, bool),
    ) -> Option<Duration> {
        self.memory.forget();
        let context = TickContext { due_ns, now_ns, in_run: true, regs, sregs, memory: &self.memory };
        let source = InferredActivity { context, blocked, halted: None, nested };
        observer.ticked(&Tick { context, blocked, source: &source })
    }

    /// Returns true if a vCPU that was blocked in KVM_RUN before its stop is halted (it is after a HLT) or
    /// not started.
    fn is_halted(&self, (regs, sregs): &Registers) -> bool {
        sregs.cr0 & CR0_PE == 0 || is_after_halt(regs, sregs, &self.memory)
    }

    /// Returns true if the guest has run since the previous stop.
    fn has_run(&mut self, regs: &kvm_regs, run_ns: u64) -> bool {
        let previous = self.last.replace((*regs, run_ns));
        !previous.is_some_and(|(last, last_run_ns)| {
            last == *regs && run_ns.saturating_sub(last_run_ns) < NOT_RUN_NS
        })
    }

    /// Records what the registers show of the whole machine: its page tables, and a reset.
    fn update_machine(&self, sregs: &kvm_sregs) {
        self.shared.tables.record(sregs);
        if sregs.efer & EFER_LMA == 0 && self.first && self.memory.source().is_proven() {
            self.shared.finish(AttachmentEnd::Reset);
        }
    }
}

/// Lets this thread's timers be as exact as they can.
pub(crate) fn set_timer_slack() {
    // SAFETY: takes a number; changes nothing but this thread's timers.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS);
    }
}

/// Sleeps until a time, CLOCK_MONOTONIC ns. Returns false if the thread is to end.
fn sleep_until(shared: &SharedState, due_ns: u64) -> bool {
    while !shared.is_over() {
        let now_ns = monotonic_ns();
        if now_ns >= due_ns {
            return true;
        }
        let check_ns = now_ns.saturating_add(u64::try_from(CHECK_INTERVAL.as_nanos()).unwrap_or(u64::MAX));
        let until = due_ns.min(check_ns);
        let part = |value: u64| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
        let until =
            libc::timespec { tv_sec: part(until / 1_000_000_000), tv_nsec: part(until % 1_000_000_000) };
        // SAFETY: the pointer is valid for the call. A wait that a signal ends early is started again.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const until,
                std::ptr::null_mut(),
            );
        }
    }
    false
}
