//! A vCPU's thread.
//!
//! ```text
//!            ┌──────── Resume ────────┐
//!            v                        │
//!  started ─> enter ── KVM_RUN ─> exit served (or trip shown)
//!            ^                        │ EINTR
//!            └─── tick served <── kicked ──── stop ──> stopped
//!                                 parks while others hold, withdraws
//! ```
//!
//! A tick is served only after KVM_RUN returned EINTR. By then KVM has completed the I/O of the
//! exit before (a KVM_RUN with `immediate_exit` set does just that, `kvm_arch_vcpu_ioctl_run` in
//! `arch/x86/kvm/x86.c`, Linux 6.1), so that the registers are those between two instructions.
//!
//! The sampling clock stands still from the exit for a tick to the entry after it: the timer is armed at the entry. Otherwise
//! the next tick would be due while this one is served, and hit the same place again.
//!
//! IrqContext a tick takes no lock, allocates nothing and makes one system call, which re-arms the
//! timer: the registers are in the run page and the time comes from the vDSO.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_run, kvm_sregs};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_memory::GuestMemoryMmap;

use super::dump;
use super::exit::{self, Action};
use super::kick::{Kick, Timer};
use crate::End;
use crate::bus::Bus;
use crate::clock::monotonic_ns;
use crate::control::Control;
use crate::observer::{Observer, Tick, Trip, Verdict};
use crate::tripwire::{Table, Tripwires, is_trip_port};

/// Everything a vCPU's thread owns.
#[derive(Debug)]
pub(crate) struct Vcpu<O> {
    /// Its number, which is its APIC id.
    pub id: u8,
    /// Its descriptor.
    pub fd: VcpuFd,
    /// Who watches it.
    pub observer: O,
    /// The devices.
    pub bus: Arc<Bus>,
    /// How the machine ends.
    pub control: Arc<Control>,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
    /// Functions whose calls it shows to the observer.
    pub tripwires: Tripwires,
    /// True if KVM puts the registers into the run page at every exit.
    pub registers_in_page: bool,
}

/// What a vCPU does next.
enum State {
    Enter,
    /// Since this time, CLOCK_MONOTONIC nanoseconds.
    Kicked(u64),
    Ended(End),
}

impl<O: Observer> Vcpu<O> {
    /// Runs until the machine ends; gives the observer back. `timer` was made on this thread.
    pub(crate) fn run(self, timer: Timer) -> O {
        let Self { id, mut fd, mut observer, bus, control, memory, tripwires, registers_in_page } = self;
        let page = NonNull::from(fd.get_kvm_run());
        // SAFETY: the page is unmapped when `fd` is dropped, which is below the scope of `kick`.
        let kick = unsafe { Kick::connect(page.as_ptr()) };
        let mut running = Running {
            id,
            fd: &mut fd,
            observer: &mut observer,
            bus: &bus,
            control: &control,
            memory: &memory,
            page,
            table: &tripwires.table(),
            tripwires: &tripwires,
            withdraw: false,
            origin: TickOrigin::default(),
            next: None,
            registers_in_page,
            kick,
            timer,
        };
        let end = running.until_end();
        // Timer and kick go before the run page does.
        drop(running);
        // First of all the other vCPUs are told.
        control.finish(end);
        observer.stopped();
        drop(fd);
        observer
    }
}

/// Where the tick that is to be served came.
#[derive(Debug, Default)]
struct TickOrigin {
    in_run: bool,
}

impl TickOrigin {
    /// It came while KVM_RUN was under way. An exit that has another reason is served first, the tick after it.
    fn came_in_run(&mut self) {
        self.in_run = true;
    }

    /// It was there before KVM_RUN, which was entered at `entered_ns`. One that was due later than that has come since, in
    /// what is told as time in KVM_RUN; what is known of any other stays.
    fn met_before(&mut self, due_ns: u64, entered_ns: u64) {
        self.in_run |= due_ns >= entered_ns;
    }

    /// Whether it came in KVM_RUN. Nothing is known of the tick after it.
    fn take(&mut self) -> bool {
        std::mem::take(&mut self.in_run)
    }
}

/// A vCPU between `started` and `stopped`.
struct Running<'a, O> {
    id: u8,
    fd: &'a mut VcpuFd,
    observer: &'a mut O,
    bus: &'a Bus,
    control: &'a Control,
    memory: &'a GuestMemoryMmap,
    page: NonNull<kvm_run>,
    table: &'a Table,
    tripwires: &'a Tripwires,
    /// The observer wants the tripwires gone before the guest runs on.
    withdraw: bool,
    origin: TickOrigin,
    /// Time from the next entry to the next tick, where that is not armed yet.
    next: Option<Duration>,
    registers_in_page: bool,
    kick: Kick,
    timer: Timer,
}

impl<O: Observer> Running<'_, O> {
    fn until_end(&mut self) -> End {
        self.next = self.observer.started();
        let mut state = State::Enter;
        loop {
            state = match state {
                State::Enter => self.enter(),
                State::Kicked(now_ns) => self.kicked(now_ns),
                State::Ended(end) => return end,
            };
        }
    }

    /// Runs the guest until it exits, and serves the exit.
    fn enter(&mut self) -> State {
        let mut entered_ns = monotonic_ns();
        if let Some(next) = self.next.take() {
            self.arm(entered_ns, next);
            entered_ns = monotonic_ns();
        }
        self.observer.entering(entered_ns);
        let withdraw = self.withdraw;
        let ticked_before = self.kick.prepare(|| withdraw || self.control.wants_something());
        let result = self.fd.run();
        let now_ns = monotonic_ns();
        // A signal's handler runs when the ioctl returns. An exit that has another reason is served first, the tick after it.
        if ticked_before {
            self.origin.met_before(self.timer.due_ns(), entered_ns);
        } else if self.kick.has_ticked() {
            self.origin.came_in_run();
        }
        self.observer.exited(exit::classify(&result), now_ns);
        if let Ok(VcpuExit::IoOut(port, [_])) = &result
            && is_trip_port(*port)
        {
            let port = *port;
            return self.trip(port, now_ns);
        }
        match exit::handle(self.bus, result) {
            Action::Resume => State::Enter,
            Action::Kicked => State::Kicked(now_ns),
            Action::End(end) => State::Ended(end),
            Action::Fail(reason) => State::Ended(self.failure(&reason)),
        }
    }

    /// Serves what the vCPU was kicked for. No I/O is pending.
    fn kicked(&mut self, now_ns: u64) -> State {
        let now_ns = self.stand_still(now_ns);
        if self.control.stopping() {
            return State::Ended(End::Stopped);
        }
        if self.kick.take_tick()
            && let Err(end) = self.tick(now_ns)
        {
            return State::Ended(end);
        }
        State::Enter
    }

    fn tick(&mut self, now: u64) -> Result<(), End> {
        let in_run = self.origin.take();
        self.next = self.with_registers(|vcpu, regs, sregs| {
            vcpu.observer.ticked(&Tick {
                due_ns: vcpu.timer.due_ns(),
                now_ns: now,
                in_run,
                regs,
                sregs,
                memory: vcpu.memory,
                vcpu: vcpu.fd,
            })
        })?;
        Ok(())
    }

    /// Shows a trip, if it is one: nobody answers these ports, so that there is nothing else to serve. KVM completes the
    /// OUT at the next KVM_RUN.
    fn trip(&mut self, port: u16, now_ns: u64) -> State {
        let shown = self.with_registers(|vcpu, regs, sregs| {
            let met = vcpu.table.met(port, regs.rip)?;
            let trip = Trip { kind: met.kind, now_ns, regs, sregs, memory: vcpu.memory };
            let verdict = vcpu.observer.tripped(&trip);
            Some((verdict, met.rdi.map(|rdi| kvm_regs { rdi, ..*regs })))
        });
        match shown {
            Ok(None) => State::Enter,
            Ok(Some((verdict, loaded))) => {
                self.withdraw |= verdict == Verdict::Withdraw;
                // KVM takes RIP for unchanged, and completes the OUT all the same.
                let loaded = loaded.map_or(Ok(()), |regs| self.fd.set_regs(&regs));
                let failed = |error| format!("cannot change a register at a tripwire: {error}");
                loaded
                    .map_err(failed)
                    .map_or_else(|reason| State::Ended(self.failure(&reason)), |()| State::Enter)
            }
            Err(end) => State::Ended(end),
        }
    }

    /// Takes the tripwires away if the observer has said so, and waits while somebody else holds the vCPUs. Returns what
    /// time it is then.
    fn stand_still(&mut self, now_ns: u64) -> u64 {
        if !self.withdraw && !self.control.wants_something() {
            return now_ns;
        }
        let mut stood = false;
        if std::mem::take(&mut self.withdraw) {
            stood = true;
            // Where another vCPU hangs they stay set: whoever set them finds that out by looking at them.
            let _still_set = self.tripwires.withdraw_on_vcpu();
        }
        stood |= self.control.park();
        if !stood {
            return now_ns;
        }
        let after_ns = monotonic_ns();
        self.observer.stood_still(now_ns, after_ns);
        after_ns
    }

    /// Calls `show` with the registers at the exit.
    fn with_registers<T>(
        &mut self,
        show: impl FnOnce(&mut Self, &kvm_regs, &kvm_sregs) -> T,
    ) -> Result<T, End> {
        if self.registers_in_page {
            let page = self.page;
            // SAFETY: the page is mapped as long as `fd`. KVM filled the registers when it
            // returned, and writes them next in KVM_RUN, which `show` does not call.
            let registers = unsafe { &page.as_ref().s.regs };
            Ok(show(self, &registers.regs, &registers.sregs))
        } else {
            let unreadable =
                |error| End::Failed(format!("vCPU {}: cannot read its registers: {error}", self.id));
            let regs = self.fd.get_regs().map_err(unreadable)?;
            let sregs = self.fd.get_sregs().map_err(unreadable)?;
            Ok(show(self, &regs, &sregs))
        }
    }

    /// Lets the timer expire `after` a point in time.
    fn arm(&mut self, from_ns: u64, after: Duration) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.timer.arm(from_ns.saturating_add(after));
    }

    /// A sentence, and the registers in lines.
    fn failure(&mut self, reason: &str) -> End {
        // SAFETY: the page is mapped as long as `fd`, and KVM_RUN is over.
        let detail = dump::internal_error(unsafe { self.page.as_ref() });
        let registers = match (self.fd.get_regs(), self.fd.get_sregs()) {
            (Ok(regs), Ok(sregs)) => dump::registers(&regs, &sregs),
            (Err(error), _) | (_, Err(error)) => format!("\n  registers unreadable: {error}"),
        };
        End::Failed(format!("vCPU {}: {reason}{detail}{registers}", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::TickOrigin;

    #[test]
    fn a_tick_is_placed_by_where_it_came_and_not_by_the_one_before() {
        let mut origin = TickOrigin::default();
        origin.came_in_run();
        // Another exit was served first, and KVM_RUN entered again for the tick.
        origin.met_before(90, 100);
        assert!(origin.take());
        // The next has come while a port was served.
        origin.met_before(110, 120);
        assert!(!origin.take(), "the tick before is no evidence");
        // This one between the stamp and the system call.
        origin.met_before(121, 120);
        assert!(origin.take());
        assert!(!origin.take());
    }
}
