//! A vCPU's thread.
//!
//! ```text
//!            ┌──────── Resume ────────┐
//!            v                        │
//!  started ─> enter ── KVM_RUN ─> exit served (or probe hit served)
//!            ^                        │ EINTR
//!            └─── tick served <── kicked ──── stop ──> stopped
//!                                 parks during a pause, removes probes
//! ```
//!
//! A tick is served only after KVM_RUN returned EINTR. By then KVM has completed the I/O of the previous exit
//! (a KVM_RUN with `immediate_exit` set does just that, `kvm_arch_vcpu_ioctl_run` in `arch/x86/kvm/x86.c`,
//! Linux 6.1). So the registers are those between two instructions.
//!
//! The sampling clock is stopped from the exit for a tick to the next entry: the timer is armed at the entry.
//! Otherwise the next tick would be due while this one is served, and hit the same place again.
//!
//! Serving a tick takes no lock, allocates nothing and makes one system call, which re-arms the timer: the
//! registers are in the run page and the time comes from the vDSO.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_run, kvm_sregs};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_memory::GuestMemoryMmap;

use super::dump;
use super::exit::{self, ExitAction};
use super::kick::{Kick, TickTimer};
use super::nested::{NestedQuery, OwnVcpu};
use crate::bus::Bus;
use crate::clock::monotonic_ns;
use crate::control::Control;
use crate::end::MachineEnd;
use crate::observer::{Observer, ProbeHit, ProbeVerdict, Tick, TickContext};
use crate::probe::{ProbeSet, ProbeTable, is_probe_port};

/// Everything that a vCPU's thread owns.
#[derive(Debug)]
pub(crate) struct VcpuThread<O> {
    /// Number of the vCPU, which is its APIC id.
    pub id: u8,
    /// Descriptor of the vCPU.
    pub fd: VcpuFd,
    /// Watcher of the vCPU.
    pub observer: O,
    /// The devices.
    pub bus: Arc<Bus>,
    /// Requests to the vCPU, and the end of the machine.
    pub control: Arc<Control>,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
    /// Probes whose hits are passed to the observer.
    pub probes: ProbeSet,
    /// True if KVM puts the registers into the run page at every exit.
    pub registers_in_page: bool,
    /// Way to find out whether a tick hit a guest of the guest.
    pub nested: NestedQuery,
}

/// Next step of a vCPU.
enum VcpuState {
    Enter,
    /// Serve what the vCPU was kicked for, at this time, CLOCK_MONOTONIC ns.
    Kicked(u64),
    Ended(MachineEnd),
}

impl<O: Observer> VcpuThread<O> {
    /// Runs until the machine ends; returns the observer. `timer` was made on this thread.
    pub(crate) fn run(self, timer: TickTimer) -> O {
        let Self { id, mut fd, mut observer, bus, control, memory, probes, registers_in_page, nested } = self;
        let page = NonNull::from(fd.get_kvm_run());
        // SAFETY: the page is unmapped when `fd` is dropped, which is below the scope of `kick`.
        let kick = unsafe { Kick::connect(page.as_ptr()) };
        let mut running = RunningVcpu {
            id,
            fd: &mut fd,
            observer: &mut observer,
            bus: &bus,
            control: &control,
            memory: &memory,
            page,
            table: &probes.table(),
            probes: &probes,
            withdraw: false,
            origin: TickOrigin::default(),
            next: None,
            registers_in_page,
            nested,
            kick,
            timer,
        };
        let end = running.until_end();
        // Timer and kick are dropped before the run page is unmapped.
        drop(running);
        // The other vCPUs are stopped before the observer does anything that takes time.
        control.finish(end);
        observer.stopped();
        drop(fd);
        observer
    }
}

/// Origin of the tick that is to be served.
#[derive(Debug, Default)]
struct TickOrigin {
    in_run: bool,
}

impl TickOrigin {
    /// Records that the tick came during KVM_RUN. An exit that has another reason is served first, then the
    /// tick.
    fn came_in_run(&mut self) {
        self.in_run = true;
    }

    /// Records that the tick was present before KVM_RUN, which was entered at `entered_ns`. A tick that was
    /// due later has come since, in what counts as time in KVM_RUN. For any other tick the record is
    /// unchanged.
    fn met_before(&mut self, due_ns: u64, entered_ns: u64) {
        self.in_run |= due_ns >= entered_ns;
    }

    /// Returns true if the tick came in KVM_RUN, and resets the record for the next tick.
    fn take(&mut self) -> bool {
        std::mem::take(&mut self.in_run)
    }
}

/// A vCPU between `started` and `stopped`.
struct RunningVcpu<'a, O> {
    id: u8,
    fd: &'a mut VcpuFd,
    observer: &'a mut O,
    bus: &'a Bus,
    control: &'a Control,
    memory: &'a GuestMemoryMmap,
    page: NonNull<kvm_run>,
    table: &'a ProbeTable,
    probes: &'a ProbeSet,
    /// The observer has requested that probes are removed before the guest continues.
    withdraw: bool,
    origin: TickOrigin,
    /// Time from the next entry to the next tick, if the timer is not armed yet.
    next: Option<Duration>,
    registers_in_page: bool,
    nested: NestedQuery,
    kick: Kick,
    timer: TickTimer,
}

impl<O: Observer> RunningVcpu<'_, O> {
    fn until_end(&mut self) -> MachineEnd {
        self.next = self.observer.started();
        let mut state = VcpuState::Enter;
        loop {
            state = match state {
                VcpuState::Enter => self.enter(),
                VcpuState::Kicked(now_ns) => self.serve_kick(now_ns),
                VcpuState::Ended(end) => return end,
            };
        }
    }

    /// Runs the guest until it exits, and serves the exit.
    fn enter(&mut self) -> VcpuState {
        let mut entered_ns = monotonic_ns();
        if let Some(next) = self.next.take() {
            self.arm(entered_ns, next);
            entered_ns = monotonic_ns();
        }
        self.observer.entering(entered_ns);
        let withdraw = self.withdraw;
        let ticked_before = self.kick.prepare(|| withdraw || self.control.has_request());
        let result = self.fd.run();
        let now_ns = monotonic_ns();
        // A signal's handler runs when the ioctl returns. An exit that has another reason is served first,
        // then the tick.
        if ticked_before {
            self.origin.met_before(self.timer.due_ns(), entered_ns);
        } else if self.kick.has_ticked() {
            self.origin.came_in_run();
        }
        self.observer.exited(exit::classify(&result), now_ns);
        if let Ok(VcpuExit::IoOut(port, [_])) = &result
            && is_probe_port(*port)
        {
            let port = *port;
            return self.serve_probe_hit(port, now_ns);
        }
        match exit::handle(self.bus, result) {
            ExitAction::Resume => VcpuState::Enter,
            ExitAction::Kicked => VcpuState::Kicked(now_ns),
            ExitAction::End(end) => VcpuState::Ended(end),
            ExitAction::Fail(reason) => VcpuState::Ended(self.failure(&reason)),
        }
    }

    /// Serves what the vCPU was kicked for. No I/O is pending.
    fn serve_kick(&mut self, now_ns: u64) -> VcpuState {
        let now_ns = self.serve_pause(now_ns);
        if self.control.stopping() {
            return VcpuState::Ended(MachineEnd::Stopped);
        }
        if self.kick.take_tick()
            && let Err(end) = self.serve_tick(now_ns)
        {
            return VcpuState::Ended(end);
        }
        VcpuState::Enter
    }

    fn serve_tick(&mut self, now_ns: u64) -> Result<(), MachineEnd> {
        let in_run = self.origin.take();
        self.next = self.with_registers(|vcpu, regs, sregs| {
            let due_ns = vcpu.timer.due_ns();
            let context = TickContext { due_ns, now_ns, in_run, regs, sregs, memory: vcpu.memory };
            let source = OwnVcpu { fd: &*vcpu.fd, page: vcpu.page, nested: vcpu.nested };
            vcpu.observer.ticked(&Tick { context, blocked: false, source: &source })
        })?;
        Ok(())
    }

    /// Passes a probe hit to the observer, if the OUT is a probe's. No device has these ports, so there is
    /// nothing else to serve. KVM completes the OUT at the next KVM_RUN.
    fn serve_probe_hit(&mut self, port: u16, now_ns: u64) -> VcpuState {
        let served = self.with_registers(|vcpu, regs, sregs| {
            let found = vcpu.table.find(port, regs.rip)?;
            let hit = ProbeHit { kind: found.kind, now_ns, regs, sregs, memory: vcpu.memory };
            let verdict = vcpu.observer.probe_hit(&hit);
            Some((verdict, found.rdi.map(|rdi| kvm_regs { rdi, ..*regs })))
        });
        match served {
            Ok(None) => VcpuState::Enter,
            Ok(Some((verdict, loaded))) => {
                self.withdraw |= verdict == ProbeVerdict::Withdraw;
                // KVM considers RIP unchanged, and completes the OUT all the same.
                let loaded = loaded.map_or(Ok(()), |regs| self.fd.set_regs(&regs));
                let failed = |error| format!("cannot change a register at a probe: {error}");
                loaded
                    .map_err(failed)
                    .map_or_else(|reason| VcpuState::Ended(self.failure(&reason)), |()| VcpuState::Enter)
            }
            Err(end) => VcpuState::Ended(end),
        }
    }

    /// Removes the probes if the observer has requested it, and waits while the machine is paused. Returns
    /// the time after that, CLOCK_MONOTONIC ns.
    fn serve_pause(&mut self, now_ns: u64) -> u64 {
        if !self.withdraw && !self.control.has_request() {
            return now_ns;
        }
        let mut suspended = false;
        if self.withdraw {
            suspended = true;
            // It fails only if the machine is to be stopped. The request stays, and `serve_kick` ends this
            // vCPU.
            self.withdraw = self.probes.withdraw_on_vcpu().is_err();
        }
        suspended |= self.control.park();
        if !suspended {
            return now_ns;
        }
        let after_ns = monotonic_ns();
        self.observer.suspended(now_ns, after_ns);
        after_ns
    }

    /// Calls `serve` with the registers at the exit.
    fn with_registers<T>(
        &mut self,
        serve: impl FnOnce(&mut Self, &kvm_regs, &kvm_sregs) -> T,
    ) -> Result<T, MachineEnd> {
        if self.registers_in_page {
            let page = self.page;
            // SAFETY: the page is mapped as long as `fd`. KVM filled the registers when it returned, and
            // writes them next in KVM_RUN, which `serve` does not call.
            let registers = unsafe { &page.as_ref().s.regs };
            Ok(serve(self, &registers.regs, &registers.sregs))
        } else {
            let unreadable =
                |error| MachineEnd::Failed(format!("vCPU {}: cannot read its registers: {error}", self.id));
            let regs = self.fd.get_regs().map_err(unreadable)?;
            let sregs = self.fd.get_sregs().map_err(unreadable)?;
            Ok(serve(self, &regs, &sregs))
        }
    }

    /// Arms the timer to expire `after` a point in time, CLOCK_MONOTONIC ns.
    fn arm(&mut self, from_ns: u64, after: Duration) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.timer.arm(from_ns.saturating_add(after));
    }

    /// Returns the end of a failed machine: a sentence, and the registers in lines.
    fn failure(&mut self, reason: &str) -> MachineEnd {
        // SAFETY: the page is mapped as long as `fd`, and KVM_RUN has returned.
        let detail = dump::internal_error(unsafe { self.page.as_ref() });
        let registers = match (self.fd.get_regs(), self.fd.get_sregs()) {
            (Ok(regs), Ok(sregs)) => dump::registers(&regs, &sregs),
            (Err(error), _) | (_, Err(error)) => format!("\n  registers unreadable: {error}"),
        };
        MachineEnd::Failed(format!("vCPU {}: {reason}{detail}{registers}", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::TickOrigin;

    #[test]
    fn the_origin_of_a_tick_does_not_depend_on_the_previous_tick() {
        let mut origin = TickOrigin::default();
        origin.came_in_run();
        // Another exit was served first, and KVM_RUN was entered again for the tick.
        origin.met_before(90, 100);
        assert!(origin.take());
        // The next tick came while a port was served.
        origin.met_before(110, 120);
        assert!(!origin.take(), "the previous tick is not evidence");
        // This tick came between the time stamp and the system call.
        origin.met_before(121, 120);
        assert!(origin.take());
        assert!(!origin.take());
    }
}
