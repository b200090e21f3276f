//! What the collector hands on: rows of the profile, in batches, to a [`Sink`].
//!
//! A batch is serializable: inside the portable host it travels over a byte stream to the `vprof` outside, which
//! writes the very same rows into the profile file.

mod books;
mod charged;
mod code;
mod exact;
mod microstates;
mod page_fault;
mod run;
mod sample;
mod task_scan;
mod task_state;
mod vcpu;
mod wait_reason;
mod who;

use serde::{Deserialize, Serialize};

pub use books::*;
pub use charged::{Charged, is_ksoftirqd};
pub use code::*;
pub use exact::*;
pub use microstates::Microstates;
pub use page_fault::PageFaultKind;
pub use run::*;
pub use sample::*;
pub use task_scan::*;
pub use task_state::TaskState;
pub use vcpu::*;
pub use wait_reason::WaitReason;
pub use who::*;

/// Rows to write in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Table `meta`: key and value; replaces the earlier value.
    pub meta: Vec<(String, String)>,
    /// Table `vcpu`.
    pub vcpus: Vec<VcpuRow>,
    /// Table `microstate`.
    pub microstates: Vec<MicrostateRow>,
    /// Table `rate`.
    pub rates: Vec<RateRow>,
    /// Table `exit`.
    pub exits: Vec<ExitRow>,
    /// Table `kvm_counter`.
    pub kvm_counters: Vec<KvmCounterRow>,
    /// Table `injected`.
    pub injected: Vec<InjectedRow>,
    /// Table `rusage`.
    pub rusage: Vec<RusageRow>,
    /// Table `thread_time`.
    pub thread_times: Vec<ThreadTimeRow>,
    /// Table `cpu_time`.
    pub cpu_times: Vec<CpuTimeRow>,
    /// Table `instance`.
    pub instances: Vec<InstanceRow>,
    /// Table `thread`.
    pub threads: Vec<ThreadRow>,
    /// Table `cgroup`.
    pub cgroups: Vec<CgroupRow>,
    /// Table `file`.
    pub files: Vec<FileRow>,
    /// Table `mapping`.
    pub mappings: Vec<MappingRow>,
    /// Table `frame`.
    pub frames: Vec<FrameRow>,
    /// Table `inlined`.
    pub inlined: Vec<InlinedRow>,
    /// Table `stack`.
    pub stacks: Vec<StackRow>,
    /// Table `code`.
    pub code: Vec<CodeRow>,
    /// Table `interrupt`.
    pub interrupts: Vec<InterruptRow>,
    /// Table `syscall`: number and name.
    pub syscalls: Vec<(u32, String)>,
    /// Table `sample`.
    pub samples: Vec<SampleRow>,
    /// Table `task_state`.
    pub task_states: Vec<TaskStateRow>,
    /// Table `task_life`.
    pub task_lives: Vec<TaskLifeRow>,
    /// Table `reaped`.
    pub reaped: Vec<ReapedRow>,
    /// Table `wakeup`.
    pub wakeups: Vec<WakeupRow>,
    /// Table `interrupt_time`.
    pub interrupt_times: Vec<InterruptTimeRow>,
    /// Table `interrupt_source`.
    pub interrupt_sources: Vec<InterruptSourceRow>,
    /// Table `exact_vcpu`.
    pub exact_vcpus: Vec<ExactVcpuRow>,
    /// Table `task_scan`.
    pub task_scans: Vec<TaskScanRow>,
    /// Table `task_scan_state`.
    pub task_scan_states: Vec<TaskScanStateRow>,
    /// Table `console`.
    pub console: Vec<ConsoleRow>,
    /// Table `unit_event`.
    pub unit_events: Vec<UnitEventRow>,
    /// Table `event`.
    pub events: Vec<EventRow>,
}

impl Batch {
    /// Forgets all rows, and keeps their room for the next ones.
    pub fn clear(&mut self) {
        let Self {
            meta,
            vcpus,
            microstates,
            rates,
            exits,
            kvm_counters,
            injected,
            rusage,
            thread_times,
            cpu_times,
            instances,
            threads,
            cgroups,
            files,
            mappings,
            frames,
            inlined,
            stacks,
            interrupts,
            syscalls,
            samples,
            task_states,
            task_lives,
            reaped,
            wakeups,
            interrupt_times,
            interrupt_sources,
            exact_vcpus,
            task_scans,
            task_scan_states,
            console,
            unit_events,
            events,
            code,
        } = self;
        meta.clear();
        vcpus.clear();
        microstates.clear();
        rates.clear();
        exits.clear();
        kvm_counters.clear();
        injected.clear();
        rusage.clear();
        thread_times.clear();
        cpu_times.clear();
        instances.clear();
        threads.clear();
        cgroups.clear();
        files.clear();
        mappings.clear();
        frames.clear();
        inlined.clear();
        stacks.clear();
        interrupts.clear();
        syscalls.clear();
        samples.clear();
        task_states.clear();
        task_lives.clear();
        reaped.clear();
        wakeups.clear();
        interrupt_times.clear();
        interrupt_sources.clear();
        exact_vcpus.clear();
        task_scans.clear();
        task_scan_states.clear();
        console.clear();
        unit_events.clear();
        events.clear();
        code.clear();
    }
}

/// Why a batch could not be written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(pub String);

/// Takes batches: the profile file, or a stream to the `vprof` outside of the portable host.
pub trait Sink: Send + 'static {
    /// Writes all rows or none.
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;
    /// Called once after the last batch.
    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}
