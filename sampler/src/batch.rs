//! What the collector hands on: rows of the profile, in batches, to a [`Sink`].
//!
//! A batch is serializable: inside the portable host it travels over a byte stream to the `vprof` outside, which
//! writes the very same rows into the profile file.

use serde::{Deserialize, Serialize};

/// Where a sample hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// CPL 3.
    User,
    /// Kernel code on behalf of a task.
    Kernel,
    /// Hard interrupt handler.
    HardIrq,
    /// Soft interrupt handler.
    SoftIrq,
    /// Non-maskable interrupt handler.
    Nmi,
    /// Halted, or in the idle task outside of interrupts, or not yet started.
    Idle,
    /// Before the kernel has set up its tasks (decompressor, early boot).
    Boot,
    /// In the kernel's address range, but neither task nor interrupt depth could be read.
    Unknown,
}

/// A row of table `instance`: one life of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (exec renamed the process).
    pub id: u32,
    /// Process id (tgid).
    pub pid: i32,
    /// Start since guest boot, ns; with `pid` the identity.
    pub start_ns: u64,
    /// Program name.
    pub comm: String,
    /// SLEEPY's instance number: 0, 1, 2 ... per program name, never reused.
    pub number: u32,
    /// A kernel thread.
    pub kernel_thread: bool,
}

/// A row of table `frame`: one interned code address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it got its name).
    pub id: u32,
    /// Instruction address.
    pub address: u64,
    /// Kernel (true) or user address.
    pub kernel: bool,
    /// Instance whose address space it is in, for user addresses.
    pub instance: Option<u32>,
    /// Symbol's name, once known.
    pub symbol: Option<String>,
    /// Kernel module; `None` for the image and for user addresses.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
}

/// A row of table `sample`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRow {
    /// vCPU.
    pub vcpu: u8,
    /// Time since the run's start, ns, when the tick was served.
    pub time_ns: u64,
    /// How late the tick was served, ns.
    pub late_ns: u64,
    /// Where it hit.
    pub mode: Mode,
    /// HLT (or not started) as KVM's run state says.
    pub halted: bool,
    /// Frame row id.
    pub frame: u32,
    /// Stack pointer.
    pub rsp: u64,
    /// CPL 0 to 3.
    pub cpl: u8,
    /// CR3.
    pub cr3: u64,
    /// RFLAGS.IF.
    pub interrupts_on: bool,
    /// Raw preempt count; `None` when it could not be read.
    pub preempt_count: Option<u32>,
    /// Instance row id.
    pub instance: Option<u32>,
    /// Thread id, when the task could be read.
    pub tid: Option<i32>,
}

/// A row of table `vcpu`; replaces the earlier of the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuRow {
    /// vCPU id.
    pub id: u8,
    /// Samples recorded.
    pub samples: u64,
    /// Samples lost because the ring was full.
    pub lost: u64,
    /// Time spent in the observer's tick path, ns.
    pub sampler_ns: u64,
    /// Time in KVM_RUN, ns.
    pub guest_ns: u64,
    /// Number of exits from KVM_RUN.
    pub exits: u64,
    /// Wall time since the vCPU's start, ns.
    pub wall_ns: u64,
}

/// A row of table `console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Bytes as the guest wrote them.
    pub bytes: Vec<u8>,
}

/// A row of table `event`: something worth telling (kernel found, what is missing, end).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Kind, like `kernel`, `missing`, `end`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}

/// Rows to write in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Table `meta`: key and value; replaces the earlier value.
    pub meta: Vec<(String, String)>,
    /// Table `vcpu`.
    pub vcpus: Vec<VcpuRow>,
    /// Table `instance`.
    pub instances: Vec<InstanceRow>,
    /// Table `frame`.
    pub frames: Vec<FrameRow>,
    /// Table `sample`.
    pub samples: Vec<SampleRow>,
    /// Table `console`.
    pub console: Vec<ConsoleRow>,
    /// Table `event`.
    pub events: Vec<EventRow>,
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
