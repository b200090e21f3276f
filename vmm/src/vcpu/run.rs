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
//! Serving a tick takes no lock, allocates nothing and makes one system call here, which re-arms the
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
            in_run: false,
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
    /// The tick that is to be served came in KVM_RUN.
    in_run: bool,
    registers_in_page: bool,
    kick: Kick,
    timer: Timer,
}

impl<O: Observer> Running<'_, O> {
    fn until_end(&mut self) -> End {
        if let Some(first) = self.observer.started() {
            self.arm(monotonic_ns(), first);
        }
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
        self.observer.entering(monotonic_ns());
        let withdraw = self.withdraw;
        let ticked_before = self.kick.prepare(|| withdraw || self.control.wants_something());
        let result = self.fd.run();
        let now_ns = monotonic_ns();
        // A signal's handler runs when the ioctl returns. An exit that has another reason is served first, the tick after it.
        if !ticked_before {
            self.in_run = self.kick.has_ticked();
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
        let next = self.with_registers(|vcpu, regs, sregs| {
            vcpu.observer.ticked(&Tick {
                due_ns: vcpu.timer.due_ns(),
                now_ns: now,
                in_run: vcpu.in_run,
                regs,
                sregs,
                memory: vcpu.memory,
                vcpu: vcpu.fd,
            })
        })?;
        // The tick came in KVM_RUN; one that comes before the guest has run again does not.
        self.in_run = false;
        if let Some(next) = next {
            // The clock stands still while a tick is served: its time is not the guest's, and would bring the next tick
            // nearer to the code that was dear to sample.
            self.arm(monotonic_ns(), next);
        }
        Ok(())
    }

    /// Shows a trip, if it is one: nobody answers these ports, so that there is nothing else to serve. KVM completes the
    /// OUT at the next KVM_RUN.
    fn trip(&mut self, port: u16, now_ns: u64) -> State {
        let verdict = self.with_registers(|vcpu, regs, sregs| {
            let Some(kind) = vcpu.table.kind(port, regs.rip) else { return Verdict::Keep };
            vcpu.observer.tripped(&Trip { kind, now_ns, regs, sregs, memory: vcpu.memory })
        });
        match verdict {
            Ok(verdict) => {
                self.withdraw |= verdict == Verdict::Withdraw;
                State::Enter
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
