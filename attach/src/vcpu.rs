//! The thread that ticks one attached vCPU.

use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{KVM_EXIT_HLT, kvm_regs, kvm_sregs};
use vmm::monotonic_ns;

use crate::machine::{End, Shared, Standing};
use crate::memory::ForeignMemory;
use crate::memory::cache::StopMemory;
use crate::observer::{CR0_PE, EFER_LMA, Missed, Observer, Tick, behind_halt};
use crate::stop::{Refused, Stop};
use crate::target::Vcpu;
use crate::thread::Doing;

/// A thread that has run for less than this since its last stop, and whose guest has the same registers, has not been in
/// the guest: an entry and an exit take longer with all that is around them, ns.
const NOT_RUN_NS: u64 = 4_000;
/// How often a thread that waits for a tick looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// How old the registers of the idle loop may be, ns. A guest may halt elsewhere, too, like in a spinlock of its own.
const IDLE_NS: u64 = 1_000_000_000;
/// Lateness of timers, ns: none is wanted (PR_SET_TIMERSLACK, prctl(2)).
const SLACK_NS: libc::c_ulong = 1;

/// Everything the thread owns.
pub(crate) struct Ticker<O> {
    pub(crate) vcpu: Vcpu,
    /// It is the machine's first, whose mode tells whether the guest has been reset.
    pub(crate) first: bool,
    pub(crate) observer: O,
    pub(crate) memory: StopMemory<ForeignMemory>,
    pub(crate) shared: Arc<Shared>,
    /// The registers in the idle loop, and when it was met there, CLOCK_MONOTONIC ns.
    pub(crate) idle: Option<((kvm_regs, kvm_sregs), u64)>,
    /// The registers at the last stop, and how long the thread had run then.
    pub(crate) last: Option<(kvm_regs, u64)>,
}

impl<O: Observer> Ticker<O> {
    /// Ticks until the machine or the session ends.
    pub(crate) fn run(mut self) -> O {
        // SAFETY: takes a number; changes nothing but this thread's timers.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS);
        }
        let mut next = self.observer.started(Some(self.vcpu.id));
        let mut from_ns = monotonic_ns();
        while let Some(after) = next {
            let due_ns = from_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
            if !sleep_until(&self.shared, due_ns) {
                break;
            }
            (next, from_ns) = self.tick(due_ns);
        }
        self.observer.stopped();
        self.observer
    }

    /// Serves a tick; the time to the next, and from when on.
    fn tick(&mut self, due_ns: u64) -> (Option<Duration>, u64) {
        let asked_ns = monotonic_ns();
        if let Some(after) = self.observer.pass(asked_ns) {
            return (Some(after), asked_ns);
        }
        let standing = self.shared.standing();
        if standing == Some(Standing::Stopped) {
            return (self.observer.missed(Missed::Paused, due_ns, asked_ns), asked_ns);
        }
        let idle = self.idle.filter(|(_, met_ns)| asked_ns.saturating_sub(*met_ns) < IDLE_NS);
        match (self.vcpu.files.doing(), idle) {
            (Ok(Doing::BlockedInRun(fd)), idle) if fd == self.vcpu.fd => match idle {
                Some((registers, _)) => (self.show(&registers, due_ns, asked_ns, true), asked_ns),
                None => self.stop(due_ns, asked_ns, true),
            },
            (Ok(Doing::Running), _) => self.stop(due_ns, asked_ns, false),
            // An interrupt controller in the VMM: the guest's HLT is the VMM's to serve.
            (Ok(_), _) if self.vcpu.page.exit_reason() == KVM_EXIT_HLT && self.idle.is_some() => {
                let next = self.idle.and_then(|(registers, _)| self.show(&registers, due_ns, asked_ns, true));
                (next, asked_ns)
            }
            (Ok(_), _) => {
                let why = standing.map_or(Missed::BlockedInVmm, |_| Missed::Paused);
                (self.observer.missed(why, due_ns, asked_ns), asked_ns)
            }
            (Err(_), _) => (self.gone(), asked_ns),
        }
    }

    /// The thread has ended.
    fn gone(&self) -> Option<Duration> {
        self.shared.vcpu_gone();
        None
    }

    /// Stops the thread, shows what there is, and lets it run on.
    fn stop(&mut self, due_ns: u64, asked_ns: u64, blocked: bool) -> (Option<Duration>, u64) {
        let stopped = {
            // Before the stop: KVM looks for this word when KVM_RUN ends.
            let _wanted = self.vcpu.page.want_registers();
            Stop::thread(self.vcpu.id.thread, || !self.shared.is_over())
        };
        let stop = match stopped {
            Ok(stop) => stop,
            Err(Refused::Gone) => return (self.gone(), asked_ns),
            Err(Refused::Interrupted) => return (None, asked_ns),
            Err(Refused::NotAllowed) => {
                return (self.observer.missed(Missed::Traced, due_ns, asked_ns), asked_ns);
            }
        };
        let now_ns = monotonic_ns();
        let next = match self.stopped_registers(&stop) {
            Ok(registers) => {
                self.note(&registers.1);
                let next = self.show(&registers, due_ns, now_ns, blocked);
                if blocked {
                    self.idle = Some((registers, now_ns)).filter(|_| self.is_halted(&registers));
                }
                Ok(next)
            }
            Err(why) => Err(why),
        };
        drop(stop);
        let end_ns = monotonic_ns();
        self.observer.held(asked_ns, end_ns);
        // The clock stands still while the vCPU does.
        (next.unwrap_or_else(|why| self.observer.missed(why, due_ns, now_ns)), end_ns)
    }

    /// The guest's registers at a stop.
    fn stopped_registers(&mut self, stop: &Stop) -> Result<(kvm_regs, kvm_sregs), Missed> {
        if stop.interrupted_run() != Some(self.vcpu.fd) {
            return Err(Missed::InVmm);
        }
        let registers = self.vcpu.page.registers();
        let run_ns = self.vcpu.files.run_ns().unwrap_or(0);
        if self.has_run(&registers.0, run_ns) { Ok(registers) } else { Err(Missed::NotRun) }
    }

    fn show(
        &mut self,
        registers: &(kvm_regs, kvm_sregs),
        due_ns: u64,
        now_ns: u64,
        blocked: bool,
    ) -> Option<Duration> {
        self.memory.forget();
        let memory = &self.memory;
        self.observer.ticked(&Tick {
            due_ns,
            now_ns,
            regs: &registers.0,
            sregs: &registers.1,
            memory,
            blocked,
            halted: None,
        })
    }

    /// Whether a vCPU that was blocked in KVM_RUN a moment before is so still: behind a HLT, or not started yet.
    fn is_halted(&self, (regs, sregs): &(kvm_regs, kvm_sregs)) -> bool {
        sregs.cr0 & CR0_PE == 0 || behind_halt(regs, sregs, &self.memory)
    }

    /// Whether the guest has run since the last stop.
    fn has_run(&mut self, regs: &kvm_regs, run_ns: u64) -> bool {
        let before = self.last.replace((*regs, run_ns));
        !before.is_some_and(|before| {
            let (last, last_run_ns) = before;
            last == *regs && run_ns.saturating_sub(last_run_ns) < NOT_RUN_NS
        })
    }

    /// What the registers tell of the whole machine.
    fn note(&self, sregs: &kvm_sregs) {
        self.shared.tables.tell(sregs);
        if sregs.efer & EFER_LMA == 0 && self.first && self.memory.source().is_proven() {
            self.shared.end(End::Reset);
        }
    }
}

/// False when the thread is to end.
pub(crate) fn sleep_until(shared: &Shared, due_ns: u64) -> bool {
    while !shared.is_over() {
        let now_ns = monotonic_ns();
        if now_ns >= due_ns {
            return true;
        }
        let look = now_ns.saturating_add(u64::try_from(LOOK.as_nanos()).unwrap_or(u64::MAX));
        let until = due_ns.min(look);
        let part = |value: u64| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
        let until =
            libc::timespec { tv_sec: part(until / 1_000_000_000), tv_nsec: part(until % 1_000_000_000) };
        // SAFETY: the pointer is valid for the call; a wait that a signal ends early is begun again.
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
