//! The interface between a vCPU and the profiler that watches it.
//!
//! One observer belongs to one vCPU. It is called by static dispatch, in one of two settings:
//!
//! - Own vCPUs, of a [`crate::Machine`]: on the vCPU's thread, between two KVM_RUNs, so the vCPU is paused
//!   during every call. An observer must not block, allocate, or make system calls that it can avoid.
//! - Foreign vCPUs, of another VMM: on a thread that stops the vCPU's thread from outside. [`Observer`] has
//!   methods for this setting alone; their defaults do nothing.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::x86::CR0_PE;

/// Activity of a vCPU, as KVM's run state (`KVM_GET_MP_STATE`) has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Executes guest code when it is entered.
    Running,
    /// Executed HLT and waits for an interrupt.
    Halted,
    /// An application processor that no INIT/SIPI has started yet.
    NotStarted,
}

/// Instruction pointer after reset and INIT, and the base of CS (Intel SDM vol. 3, 10.1.4).
const RESET: (u64, u64) = (0xfff0, 0xffff_0000);

/// Returns true if the registers are those after reset or INIT: the vCPU has executed nothing since.
pub fn is_at_reset(regs: &kvm_regs, sregs: &kvm_sregs) -> bool {
    sregs.cr0 & CR0_PE == 0 && (regs.rip, sregs.cs.base) == RESET
}

/// Reason for the return of KVM_RUN, in the terms of `linux/kvm.h`.
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
        address: GuestAddress,
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

/// Thread of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadId {
    /// Process id.
    pub process: i32,
    /// Thread id.
    pub thread: i32,
}

/// Thread of a vCPU in another process.
#[derive(Debug)]
pub struct AttachedThread {
    /// Its ids.
    pub id: ThreadId,
    /// KVM's number of the vCPU, which is its APIC id (Documentation/virt/kvm/api.rst, 4.7).
    pub cpu: usize,
    /// Its scheduler statistics, if the host has them: the observer's process may be unable to open files.
    pub statistics: Option<Arc<dyn ThreadStatistics>>,
}

/// Times of a thread since its start, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU.
    pub waited_ns: u64,
}

impl ThreadTimes {
    /// Reads the first two numbers of an open file `schedstat`, ns (Documentation/scheduler/sched-stats.rst:
    /// time spent on the CPU, and waiting on a run queue). The first is as of the scheduler's last update.
    /// `None` once the thread has ended. Allocates nothing.
    pub fn read(schedstat: &File) -> Option<Self> {
        let mut text = [0; 96];
        let length = schedstat.read_at(&mut text, 0).ok()?;
        let mut words = str::from_utf8(text.get(..length)?).ok()?.split_ascii_whitespace().map(str::parse);
        Some(Self { run_ns: words.next()?.ok()?, waited_ns: words.next()?.ok()? })
    }
}

/// Scheduler statistics of a thread of another process.
pub trait ThreadStatistics: fmt::Debug + Send + Sync {
    /// Reads the times, as of the last tick of the host's scheduler or the last time that the thread left a
    /// CPU; `None` if the thread has ended and they are lost.
    fn read(&self) -> Option<ThreadTimes>;
}

/// Context of one tick: its times, the vCPU's registers and the guest's memory.
#[derive(Debug)]
pub struct TickContext<'a, M = GuestMemoryMmap> {
    /// Time at which the tick was due, CLOCK_MONOTONIC ns.
    pub due_ns: u64,
    /// Time at which the vCPU was found paused, CLOCK_MONOTONIC ns. For an own vCPU it is the reading that
    /// [`Observer::exited`] got.
    pub now_ns: u64,
    /// The tick came in KVM_RUN: between an [`Observer::entering`] and the [`Observer::exited`] after it.
    /// False if it came while an exit was being served. Always true for a foreign vCPU.
    pub in_run: bool,
    /// General registers. For a foreign vCPU that was blocked in its idle loop they are of an earlier tick
    /// there.
    pub regs: &'a kvm_regs,
    /// Segment and control registers, from the same source.
    pub sregs: &'a kvm_sregs,
    /// The guest's physical memory.
    pub memory: &'a M,
}

// Not derived: a reference to memory is copied, whatever the memory is.
impl<M> Clone for TickContext<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for TickContext<'_, M> {}

impl<M> TickContext<'_, M> {
    /// Returns the current privilege level, 0 to 3: the DPL of SS, as the processor keeps it (Intel SDM vol.
    /// 3, 5.5).
    pub fn cpl(&self) -> u8 {
        self.sregs.ss.dpl
    }
}

/// Registers of a vCPU that are known at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KnownRegisters {
    /// All of them.
    #[default]
    All,
    /// Those that show the code, the privilege level and the current task: RIP, the DPL of SS, CS.L, EFER,
    /// CR4.LA57, and in CR3 the page tables of the current task's process.
    Code,
    /// The same without RIP and the privilege level: what runs is not known, only the current task.
    Task,
}

/// Source of a vCPU's activity at a tick.
pub trait ActivitySource: fmt::Debug {
    /// Returns the activity; `None` if it is unknown.
    fn activity(&self) -> Option<Activity>;

    /// Returns true if the vCPU executed a guest of the guest: its registers are that one's then.
    fn in_nested_guest(&self) -> bool {
        false
    }

    /// Returns the registers that are known.
    fn known_registers(&self) -> KnownRegisters {
        KnownRegisters::All
    }

    /// Returns true if the vCPU's thread has waited for a CPU of the host since before the tick was due;
    /// `None` if the source does not know.
    fn is_waiting(&self) -> Option<bool> {
        None
    }
}

/// An own vCPU: KVM is asked, which costs one ioctl.
impl ActivitySource for VcpuFd {
    fn activity(&self) -> Option<Activity> {
        use kvm_bindings::{
            KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE,
            KVM_MP_STATE_SIPI_RECEIVED, KVM_MP_STATE_UNINITIALIZED,
        };
        match self.get_mp_state().ok()?.mp_state {
            KVM_MP_STATE_RUNNABLE | KVM_MP_STATE_SIPI_RECEIVED => Some(Activity::Running),
            KVM_MP_STATE_HALTED => Some(Activity::Halted),
            KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED => Some(Activity::NotStarted),
            _ => None,
        }
    }
}

/// Tick at which the vCPU's registers are known: no I/O of the guest is pending.
#[derive(Debug)]
pub struct Tick<'a, M = GuestMemoryMmap> {
    /// Times, registers and memory. The fields are also reachable through [`Deref`].
    pub context: TickContext<'a, M>,
    /// The vCPU's thread is blocked in KVM_RUN and was not stopped. Always false for an own vCPU.
    pub blocked: bool,
    /// Source for [`Tick::activity`].
    pub source: &'a dyn ActivitySource,
}

impl<M> Tick<'_, M> {
    /// Returns what the vCPU is doing. May cost an ioctl or reads of guest memory: call it only where the
    /// guest is probably halted.
    pub fn activity(&self) -> Option<Activity> {
        self.source.activity()
    }

    /// Returns true if the vCPU executed a guest of the guest. The registers are that one's then, and its
    /// addresses mean nothing in the guest's memory. May cost an ioctl where guests may be hosts.
    pub fn in_nested_guest(&self) -> bool {
        self.source.in_nested_guest()
    }

    /// Returns the registers that are known.
    pub fn known_registers(&self) -> KnownRegisters {
        self.source.known_registers()
    }
}

impl<'a, M> Deref for Tick<'a, M> {
    type Target = TickContext<'a, M>;

    fn deref(&self) -> &Self::Target {
        &self.context
    }
}

/// Reason why a tick of a foreign vCPU has no registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    /// The thread ran, or waited for a CPU, in the VMM.
    InVmm,
    /// The thread was blocked in the VMM: it serves an exit.
    BlockedInVmm,
    /// The machine is paused: by its VMM, or because a signal stopped the VMM.
    Paused,
    /// The thread has not run since the previous tick: the sample would be the same.
    NotRun,
    /// The thread has another tracer.
    Traced,
}

/// Call of a function with a probe ([`crate::ProbeSet`]): registers and stack are those that the function was
/// called with. The instruction pointer is at the probe or directly after it, which depends on the host's
/// KVM.
#[derive(Debug)]
pub struct ProbeHit<'a> {
    /// The probe's [`ProbePoint::kind`](crate::ProbePoint).
    pub kind: u8,
    /// Time at which KVM_RUN returned, CLOCK_MONOTONIC ns.
    pub now_ns: u64,
    /// General registers, from the shared run page.
    pub regs: &'a kvm_regs,
    /// Segment and control registers, from the shared run page.
    pub sregs: &'a kvm_sregs,
    /// The guest's physical memory.
    pub memory: &'a GuestMemoryMmap,
}

/// Decision about the probes after a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// All probes stay.
    Keep,
    /// All probes are removed before this vCPU executes another instruction than the probe's own.
    Withdraw,
}

/// Watcher of one vCPU of a guest whose memory is read through `M`.
pub trait Observer<M = GuestMemoryMmap>: Send + 'static {
    /// Called once before [`Observer::started`] for a foreign vCPU, with its thread; `None` if it has none,
    /// as behind a GDB stub.
    fn attached(&mut self, thread: Option<AttachedThread>) {
        let _ = thread;
    }

    /// Called once before the first KVM_RUN or stop. Returns the time to the first tick, `None` for no ticks.
    fn started(&mut self) -> Option<Duration>;

    /// Called right before KVM_RUN of an own vCPU. `now_ns` is CLOCK_MONOTONIC, ns.
    fn entering(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Called when KVM_RUN of an own vCPU returned, before devices are served. `now_ns` is CLOCK_MONOTONIC,
    /// ns.
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        let _ = (exit, now_ns);
    }

    /// Returns the mean rate of the ticks, Hz; `None` if it is not known.
    fn rate_hz(&self) -> Option<f64> {
        None
    }

    /// Called when a tick of a foreign vCPU is due. Returns the time to the next tick if this one is not
    /// wanted. `now_ns` is CLOCK_MONOTONIC, ns.
    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        let _ = now_ns;
        None
    }

    /// Called when the thread of a foreign vCPU is about to be stopped for a tick. `now_ns` is
    /// CLOCK_MONOTONIC, ns.
    fn suspending(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Called at a tick. Returns the time to the next tick; `None` to stop ticking.
    ///
    /// The time counts from the next [`Observer::entering`] of an own vCPU. For a foreign vCPU it counts from
    /// the end of the stop, or from [`TickContext::now_ns`] if the thread was not stopped.
    fn ticked(&mut self, tick: &Tick<'_, M>) -> Option<Duration>;

    /// Called when the tick of a foreign vCPU that was due at `due_ns` has no registers. Returns the time to
    /// the next tick, counted from the end of the stop, or from `now_ns`; `None` to stop ticking. Times are
    /// CLOCK_MONOTONIC, ns.
    fn missed(&mut self, reason: MissReason, due_ns: u64, now_ns: u64) -> Option<Duration> {
        let _ = (reason, due_ns, now_ns);
        None
    }

    /// Called when an own vCPU called a function with a probe.
    fn probe_hit(&mut self, hit: &ProbeHit<'_>) -> ProbeVerdict {
        let _ = hit;
        ProbeVerdict::Keep
    }

    /// Called when vprof has kept the vCPU from running between these times, CLOCK_MONOTONIC ns: an own vCPU
    /// because probes were set or removed, a foreign vCPU by the stop of its thread.
    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        let _ = (from_ns, to_ns);
    }

    /// Called once at the end: after the last KVM_RUN or stop.
    fn stopped(&mut self) {}
}

/// Observer that does nothing: the machine runs without a profiler.
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
