//! Ticks of one attached vCPU by samples of the host's kernel, on a thread per vCPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use guest_linux::PhysAddr;
use kvm_bindings::{
    KVM_EXIT_HLT, KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED,
};
use vmm::x86::EFER_LMA;
use vmm::{
    Activity, ActivitySource, AttachedThread, KnownRegisters, MissReason, Observer, ThreadId, Tick,
    TickContext, is_at_reset, monotonic_ns,
};

use super::host_stack::HostState;
use super::mixed::{MixedStops, TickMeans};
use super::partial::CompletedRegisters;
use super::shared::{RawState, ThreadFinding};
use super::vm::{FoundPlace, KernelStatistics, SampleOutcome, SampledVm};
use crate::memory::{CopiedMemory, ForeignMemory, StopMemory, StopSource};
use crate::shared::{AttachEvent, AttachmentEnd, SharedState};
use crate::ticker::{NextTick, before_tick, run_vcpu};

/// Everything that the thread owns.
pub(crate) struct SampledTicker<O> {
    vm: Arc<SampledVm>,
    index: usize,
    id: ThreadId,
    observer: O,
    memory: StopMemory,
    shared: Arc<SharedState>,
    /// Stops of the vCPU, where samples of the kernel have no stacks.
    stops: Option<MixedStops>,
}

/// Activity that the kernel shows of a vCPU at a sample.
#[derive(Debug, Clone, Copy)]
struct SampledActivity {
    activity: Activity,
    waiting: bool,
    nested: bool,
    known: KnownRegisters,
}

impl ActivitySource for SampledActivity {
    fn activity(&self) -> Option<Activity> {
        Some(self.activity)
    }

    fn in_nested_guest(&self) -> bool {
        self.nested
    }

    fn known_registers(&self) -> KnownRegisters {
        self.known
    }

    fn is_waiting(&self) -> Option<bool> {
        Some(self.waiting)
    }
}

/// Meaning of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TickMeaning {
    /// A sample with registers.
    Sample {
        activity: Activity,
        /// The thread is blocked.
        blocked: bool,
        /// The thread has waited for a CPU since before the tick was due.
        waiting: bool,
        /// The vCPU may have continued to run: its memory is what the program has copied.
        runs: bool,
    },
    Miss(MissReason),
    /// The thread has ended.
    Gone,
}

impl TickMeaning {
    /// `paused` is true if the machine is paused.
    fn new(finding: ThreadFinding, state: &RawState, paused: bool) -> Self {
        let activity = match state.mp_state {
            KVM_MP_STATE_HALTED => Activity::Halted,
            KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED => Activity::NotStarted,
            _ => Activity::Running,
        };
        let in_run = state.in_run != 0;
        let sample = |activity, blocked, waiting, runs| Self::Sample { activity, blocked, waiting, runs };
        match finding {
            ThreadFinding::Guest => sample(Activity::Running, false, false, true),
            // Between two stays in the guest, also while it polls for a wake-up of a halted guest.
            ThreadFinding::Kvm => sample(activity, false, false, true),
            ThreadFinding::Queued if in_run => sample(activity, false, state.preempted == 0, false),
            ThreadFinding::Vmm | ThreadFinding::Queued => Self::Miss(MissReason::InVmm),
            ThreadFinding::Blocked if in_run && activity != Activity::Running => {
                sample(activity, true, false, false)
            }
            // The host has to get a page of the guest's memory first.
            ThreadFinding::Blocked if in_run => Self::Miss(MissReason::BlockedInVmm),
            // With an interrupt controller in the VMM, the VMM serves the guest's HLT.
            ThreadFinding::Blocked if state.exit_reason == KVM_EXIT_HLT => {
                sample(Activity::Halted, true, false, false)
            }
            ThreadFinding::Blocked if paused => Self::Miss(MissReason::Paused),
            ThreadFinding::Blocked => Self::Miss(MissReason::BlockedInVmm),
            ThreadFinding::Elsewhere | ThreadFinding::Busy => Self::Miss(MissReason::NotRun),
            ThreadFinding::Gone => Self::Gone,
        }
    }
}

impl TickMeaning {
    /// Returns the place of the thread; `None` for a tick that no time is counted by, and for one in the
    /// guest that cannot show the way into it. `preempted` is true if vprof has taken the thread's CPU.
    fn place(self, finding: ThreadFinding, preempted: bool) -> Option<FoundPlace> {
        let on_cpu = matches!(finding, ThreadFinding::Guest | ThreadFinding::Kvm | ThreadFinding::Vmm);
        let state = match self {
            Self::Sample { activity: Activity::Halted | Activity::NotStarted, .. } => HostState::Halted,
            Self::Sample { waiting: true, .. } => HostState::Waiting,
            Self::Sample { .. } if finding == ThreadFinding::Kvm => HostState::Kvm,
            Self::Sample { .. } if finding == ThreadFinding::Guest => HostState::Guest,
            // A vCPU whose CPU vprof has taken was in the guest, and has left it since.
            Self::Sample { .. } => return None,
            Self::Miss(MissReason::InVmm) if finding == ThreadFinding::Queued && !preempted => {
                HostState::Waiting
            }
            Self::Miss(MissReason::InVmm | MissReason::BlockedInVmm) => HostState::Vmm,
            Self::Miss(MissReason::Paused | MissReason::NotRun | MissReason::Traced) | Self::Gone => {
                return None;
            }
        };
        Some(FoundPlace { state, on_cpu })
    }
}

impl<O: Observer<StopMemory>> SampledTicker<O> {
    pub(crate) fn new(
        vm: Arc<SampledVm>,
        index: usize,
        id: ThreadId,
        observer: O,
        memory: ForeignMemory,
        shared: Arc<SharedState>,
    ) -> Self {
        let copied = SampleCopy { vm: Arc::clone(&vm), index };
        let memory = StopMemory::new(StopSource::sampled(memory, Box::new(copied)));
        Self { vm, index, id, observer, memory, shared, stops: None }
    }

    /// Lets some of the ticks be stops.
    pub(crate) fn with_stops(self, stops: MixedStops) -> Self {
        Self { stops: Some(stops), ..self }
    }

    /// Ticks until the machine or the attachment ends; returns the observer.
    pub(crate) fn run(mut self) -> O {
        let statistics = KernelStatistics { vm: Arc::clone(&self.vm), index: self.index };
        let cpu = self.vm.apic_id(self.index);
        let thread = AttachedThread { id: self.id, cpu, statistics: Some(Arc::new(statistics)) };
        let shared = Arc::clone(&self.shared);
        run_vcpu(&mut self, (thread, &shared), |ticker| &mut ticker.observer, Self::tick);
        self.observer
    }

    /// Serves a tick.
    fn tick(&mut self, due_ns: u64) -> NextTick {
        let asked_ns = monotonic_ns();
        let pause = match before_tick(&mut self.observer, &self.shared, due_ns, asked_ns) {
            Ok(pause) => pause,
            Err(next) => return next,
        };
        if let Some(mixed) = &mut self.stops {
            let rate_hz = self.observer.rate_hz();
            match mixed.draw(rate_hz, self.vm.completes(self.index)) {
                TickMeans::Stop => {
                    let next = mixed.stops.serve(&mut self.observer, (due_ns, asked_ns), pause);
                    if next.0.is_none() {
                        self.unfollow();
                    }
                    return next;
                }
                TickMeans::Nothing => {
                    return (self.observer.missed(MissReason::NotRun, due_ns, asked_ns), asked_ns);
                }
                TickMeans::Kernel => {}
            }
        }
        let Some(SampleOutcome { finding, state }) = self.vm.sample(self.index) else {
            return (self.observer.missed(MissReason::NotRun, due_ns, asked_ns), asked_ns);
        };
        if state.in_run != 0 {
            self.shared.found_in_run();
        }
        let now_ns = state.time_ns.max(due_ns);
        let meaning = TickMeaning::new(finding, &state, pause.is_some());
        if let Some(found) = meaning.place(finding, state.preempted != 0) {
            self.vm.add_host_tick(self.index, (now_ns, state.time_ns), found);
        }
        match meaning {
            TickMeaning::Sample { activity, blocked, waiting, runs } => {
                self.memory.source().set_copied(runs);
                if runs && state.missing > 0 {
                    self.shared.swapped_out.fetch_add(1, Ordering::Relaxed);
                }
                let (nested, known) = (state.nested != 0, KnownRegisters::All);
                let source = SampledActivity { activity, waiting, nested, known };
                (self.observe(&state, (due_ns, now_ns), blocked, source), now_ns)
            }
            TickMeaning::Miss(reason) => (self.observer.missed(reason, due_ns, now_ns), now_ns),
            TickMeaning::Gone => {
                self.unfollow();
                self.shared.vcpu_ended();
                (None, now_ns)
            }
        }
    }

    /// Ends the counts of the thread, which has ended.
    fn unfollow(&self) {
        if let Err(refusal) = self.vm.unfollow(self.index) {
            let text = "waits of a later thread may count for a vCPU that was taken out";
            self.shared.report(AttachEvent::Missing(format!("{text}: {refusal}")));
        }
    }

    fn observe(
        &mut self,
        state: &RawState,
        (due_ns, now_ns): (u64, u64),
        blocked: bool,
        mut source: SampledActivity,
    ) -> Option<Duration> {
        self.memory.forget();
        let CompletedRegisters { regs, sregs, known } = self.vm.complete(self.index, state, &self.memory);
        source.known = known;
        if known == KnownRegisters::All && is_at_reset(&regs, &sregs) {
            source.activity = Activity::NotStarted;
        }
        // Registers of a guest of the guest show nothing of this one.
        if !source.nested && known == KnownRegisters::All {
            self.shared.tables.record(&sregs);
        }
        if !source.nested && sregs.efer & EFER_LMA == 0 && self.index == 0 && self.memory.source().is_proven()
        {
            self.shared.finish(AttachmentEnd::Reset);
        }
        let context =
            TickContext { due_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &self.memory };
        self.observer.ticked(&Tick { context, blocked, source: &source })
    }
}

/// Memory that the last sample of a vCPU has copied.
#[derive(Debug)]
struct SampleCopy {
    vm: Arc<SampledVm>,
    index: usize,
}

impl CopiedMemory for SampleCopy {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        self.vm.read(self.index, at, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(finding: ThreadFinding, in_run: bool, mp_state: u32) -> TickMeaning {
        let state = RawState { in_run: u32::from(in_run), mp_state, ..RawState::default() };
        TickMeaning::new(finding, &state, false)
    }

    #[test]
    fn a_thread_is_where_the_kernel_shows_it() {
        let sample =
            |activity, blocked, waiting, runs| TickMeaning::Sample { activity, blocked, waiting, runs };
        let (running, halted) = (Activity::Running, Activity::Halted);
        use ThreadFinding::{Blocked, Elsewhere, Gone, Guest, Kvm, Queued, Vmm};
        assert_eq!(meaning(Guest, true, KVM_MP_STATE_HALTED), sample(running, false, false, true));
        assert_eq!(meaning(Kvm, true, 0), sample(running, false, false, true));
        assert_eq!(meaning(Kvm, true, KVM_MP_STATE_HALTED), sample(halted, false, false, true));
        assert_eq!(meaning(Vmm, false, 0), TickMeaning::Miss(MissReason::InVmm));
        assert_eq!(meaning(Queued, true, 0), sample(running, false, true, false));
        assert_eq!(meaning(Queued, false, 0), TickMeaning::Miss(MissReason::InVmm));
        assert_eq!(meaning(Blocked, true, KVM_MP_STATE_HALTED), sample(halted, true, false, false));
        let not_started = sample(Activity::NotStarted, true, false, false);
        assert_eq!(meaning(Blocked, true, KVM_MP_STATE_UNINITIALIZED), not_started);
        assert_eq!(meaning(Blocked, true, 0), TickMeaning::Miss(MissReason::BlockedInVmm), "on a page");
        assert_eq!(meaning(Blocked, false, KVM_MP_STATE_HALTED), TickMeaning::Miss(MissReason::BlockedInVmm));
        assert_eq!(meaning(Elsewhere, true, 0), TickMeaning::Miss(MissReason::NotRun));
        assert_eq!(meaning(Gone, true, 0), TickMeaning::Gone);
    }

    #[test]
    fn a_thread_is_in_the_place_that_its_clock_counts_the_time_for() {
        let place = |finding, in_run, mp_state| {
            let found = meaning(finding, in_run, mp_state).place(finding, false);
            found.map(|found| (found.state, found.on_cpu))
        };
        use ThreadFinding::{Blocked, Elsewhere, Gone, Guest, Kvm, Queued, Vmm};
        assert_eq!(place(Guest, true, 0), Some((HostState::Guest, true)));
        assert_eq!(place(Kvm, true, 0), Some((HostState::Kvm, true)));
        assert_eq!(place(Kvm, true, KVM_MP_STATE_HALTED), Some((HostState::Halted, true)));
        assert_eq!(place(Vmm, false, 0), Some((HostState::Vmm, true)));
        assert_eq!(place(Queued, true, 0), Some((HostState::Waiting, false)));
        assert_eq!(place(Queued, false, 0), Some((HostState::Waiting, false)));
        assert_eq!(place(Blocked, true, KVM_MP_STATE_HALTED), Some((HostState::Halted, false)));
        assert_eq!(place(Blocked, true, 0), Some((HostState::Vmm, false)), "on a page");
        assert_eq!([place(Elsewhere, true, 0), place(Gone, true, 0)], [None; 2]);
        let taken = RawState { in_run: 1, preempted: 1, ..RawState::default() };
        let by_vprof = |state| TickMeaning::new(Queued, &state, false).place(Queued, true);
        let found = |state| Some(FoundPlace { state, on_cpu: false });
        assert_eq!(by_vprof(taken), None, "vprof took its CPU");
        assert_eq!(by_vprof(RawState { in_run: 0, ..taken }), found(HostState::Vmm));
        let paused = TickMeaning::new(Blocked, &RawState::default(), true);
        assert_eq!(paused.place(Blocked, false), None);
    }

    #[test]
    fn a_vcpu_whose_cpu_vprof_has_taken_was_in_the_guest() {
        let state = RawState { in_run: 1, preempted: 1, ..RawState::default() };
        let meaning = TickMeaning::new(ThreadFinding::Queued, &state, false);
        assert!(matches!(meaning, TickMeaning::Sample { waiting: false, runs: false, .. }), "{meaning:?}");
        let in_vmm = RawState::default();
        let after_halt = RawState { exit_reason: KVM_EXIT_HLT, ..in_vmm };
        let halt = TickMeaning::new(ThreadFinding::Blocked, &after_halt, false);
        assert!(matches!(halt, TickMeaning::Sample { activity: Activity::Halted, blocked: true, .. }));
        let paused = TickMeaning::new(ThreadFinding::Blocked, &in_vmm, true);
        assert_eq!(paused, TickMeaning::Miss(MissReason::Paused));
    }
}
