//! What a profiler sees of a vCPU: the seam between the machine and whoever watches it.
//!
//! One observer belongs to one vCPU and lives on that vCPU's thread. It is called by static
//! dispatch, between two KVM_RUNs, so the guest CPU stands still during every call. An
//! observer must not block, allocate or make system calls it can do without.

use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use vm_memory::GuestMemoryMmap;

/// What a vCPU does as KVM's run state (`KVM_GET_MP_STATE`) tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Executes guest code when it is entered.
    Running,
    /// Executed HLT and waits for an interrupt.
    Halted,
    /// An application processor that no INIT/SIPI has started yet.
    NotStarted,
}

/// CR0.PE, protected mode (Intel SDM vol. 3, 2.5).
const CR0_PE: u64 = 1;
/// Instruction pointer after reset and INIT, and the base of CS (Intel SDM vol. 3, 10.1.4).
const RESET: (u64, u64) = (0xfff0, 0xffff_0000);

/// Whether the vCPU stands where reset and INIT put it: it has executed nothing since.
pub fn stands_at_reset(regs: &kvm_regs, sregs: &kvm_sregs) -> bool {
    sregs.cr0 & CR0_PE == 0 && (regs.rip, sregs.cs.base) == RESET
}

/// Why KVM_RUN returned, in the words of `linux/kvm.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A signal (tick or stop request) ended it.
    Interrupted,
    /// KVM_EXIT_IO.
    Io {
        /// The port.
        port: u16,
        /// The guest writes to it.
        write: bool,
    },
    /// KVM_EXIT_MMIO.
    Mmio {
        /// Guest physical address.
        address: u64,
        /// The guest writes to it.
        write: bool,
    },
    /// KVM_EXIT_HLT (only without the in-kernel irqchip).
    Halt,
    /// KVM_EXIT_SHUTDOWN: triple fault.
    Shutdown,
    /// Any other exit reason, by number.
    Other(u32),
}

/// One expiry of the vCPU's timer, at a point where no I/O of the guest is pending.
#[derive(Debug)]
pub struct Tick<'a> {
    /// When the timer was to expire, CLOCK_MONOTONIC nanoseconds.
    pub due_ns: u64,
    /// When KVM_RUN returned for it, CLOCK_MONOTONIC nanoseconds: the same reading that [`Observer::exited`] got.
    pub now_ns: u64,
    /// The timer's signal came in KVM_RUN: between an [`Observer::entering`] and the [`Observer::exited`] after it. Else it came
    /// while an exit was being served.
    pub in_run: bool,
    /// General registers, from the shared run page.
    pub regs: &'a kvm_regs,
    /// Segment and control registers, from the shared run page.
    pub sregs: &'a kvm_sregs,
    /// The guest's physical memory.
    pub memory: &'a GuestMemoryMmap,
    /// The vCPU, for [`Tick::activity`].
    pub(crate) vcpu: &'a kvm_ioctls::VcpuFd,
}

impl Tick<'_> {
    /// Current privilege level, 0 to 3: the DPL of SS, as the processor keeps it (Intel SDM vol. 3, 5.5).
    pub fn cpl(&self) -> u8 {
        self.sregs.ss.dpl
    }

    /// What the vCPU is doing. Costs one ioctl, so ask only where the guest is likely to be halted.
    pub fn activity(&self) -> Option<Activity> {
        use kvm_bindings::{
            KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE,
            KVM_MP_STATE_SIPI_RECEIVED, KVM_MP_STATE_UNINITIALIZED,
        };
        match self.vcpu.get_mp_state().ok()?.mp_state {
            KVM_MP_STATE_RUNNABLE | KVM_MP_STATE_SIPI_RECEIVED => Some(Activity::Running),
            KVM_MP_STATE_HALTED => Some(Activity::Halted),
            KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED => Some(Activity::NotStarted),
            _ => None,
        }
    }
}

/// A call of a function with a tripwire ([`crate::Tripwires`]): registers and stack are as the function was called with.
/// The instruction pointer stands at the tripwire or right behind it, as this host's KVM has it.
#[derive(Debug)]
pub struct Trip<'a> {
    /// The site's [`Site::kind`](crate::Site).
    pub kind: u8,
    /// When KVM_RUN returned, CLOCK_MONOTONIC nanoseconds.
    pub now_ns: u64,
    /// General registers, from the shared run page.
    pub regs: &'a kvm_regs,
    /// Segment and control registers, from the shared run page.
    pub sregs: &'a kvm_sregs,
    /// The guest's physical memory.
    pub memory: &'a GuestMemoryMmap,
}

/// What becomes of the tripwires after a trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They stay.
    Keep,
    /// All are taken away before this vCPU executes another instruction than the tripwire's own.
    Withdraw,
}

/// Watches one vCPU. Every method is called on the vCPU's own thread.
pub trait Observer: Send + 'static {
    /// Called once before the first KVM_RUN. Returns the time to the first tick, `None` for no ticks.
    fn started(&mut self) -> Option<Duration>;

    /// KVM_RUN is about to be called. `now_ns` is CLOCK_MONOTONIC, nanoseconds.
    fn entering(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// KVM_RUN returned; devices have not been served yet. `now_ns` is CLOCK_MONOTONIC, nanoseconds.
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        let _ = (exit, now_ns);
    }

    /// The timer expired. Returns the time to the next tick, counted from the next [`Observer::entering`]; `None` to stop
    /// ticking.
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration>;

    /// The guest called a function with a tripwire.
    fn tripped(&mut self, trip: &Trip<'_>) -> Verdict {
        let _ = trip;
        Verdict::Keep
    }

    /// The vCPU stood still between these times, CLOCK_MONOTONIC nanoseconds, since tripwires were set or taken away.
    fn stood_still(&mut self, from_ns: u64, to_ns: u64) {
        let _ = (from_ns, to_ns);
    }

    /// Called once after the last KVM_RUN.
    fn stopped(&mut self) {}
}

/// An observer that sees nothing: the machine without a profiler.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn started(&mut self) -> Option<Duration> {
        None
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        None
    }
}
