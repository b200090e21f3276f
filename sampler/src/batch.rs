//! What the collector hands on: rows of the profile, in batches, to a [`Sink`].
//!
//! A batch is serializable: inside the portable host it travels over a byte stream to the `vprof` outside, which
//! writes the very same rows into the profile file.

use serde::{Deserialize, Serialize};

use crate::exact::{Cause, State};
use crate::microstate::States;

/// Where a sample hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
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
    #[default]
    Unknown,
}

/// A row of table `instance`: one life of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Process id of the parent, once read.
    pub parent_pid: Option<i32>,
    /// Command line as the process sees it, arguments separated by blanks, once read.
    pub command: Option<String>,
    /// File row id of the program, once read.
    pub exe: Option<u32>,
    /// Control group row id, once read.
    pub cgroup: Option<u32>,
}

/// A row of table `thread`. A row with a known instance and tid replaces the earlier (the thread was renamed).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// The thread's own name.
    pub comm: String,
}

/// A row of table `cgroup`: a control group that processes belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// Path from the root of the hierarchy, `/` for the root.
    pub path: String,
    /// The systemd unit that the path names.
    pub unit: Option<String>,
    /// The container that the path names: its id, or its name.
    pub container: Option<String>,
}

/// A row of table `file`: a file of the guest that code was mapped from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it was read).
    pub id: u32,
    /// Path in the guest; `[vdso]` for the kernel's own.
    pub path: String,
    /// Device number, as `major << 20 | minor` (include/linux/kdev_t.h).
    pub device: u32,
    /// Inode number.
    pub inode: u64,
    /// Type of the file system, like `ext4`.
    pub filesystem: String,
    /// No name leads to it any more.
    pub deleted: bool,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Where its bytes were read from, like `image` or `page cache`; or why they could not be read.
    pub read_from: Option<String>,
    /// What names its functions, like `.symtab` or a debug file's path.
    pub named_by: Option<String>,
}

/// A row of table `mapping`: executable memory of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingRow {
    /// Instance row id.
    pub instance: u32,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// File row id; `None` for memory without a file.
    pub file: Option<u32>,
    /// Bytes from the file's start to the mapping's.
    pub file_offset: u64,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum FrameKind {
    /// Code of the kernel.
    #[default]
    Kernel,
    /// Code of a process.
    User,
    /// No code: the symbol says why the frames beyond are not known.
    Reason,
}

impl FrameKind {
    /// As in table `frame`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Reason => "reason",
        }
    }
}

/// A row of table `frame`: one interned code address, or a reason in place of frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier (it got its name).
    pub id: u32,
    /// Instruction address: virtual for the kernel and for memory without a file, else the ELF file's own.
    pub address: u64,
    /// A return address: the call lies right before it.
    pub call: bool,
    /// What it is.
    pub kind: FrameKind,
    /// Instance whose address space it is in, for user code without a file.
    pub instance: Option<u32>,
    /// File row id, for user code of a file.
    pub file: Option<u32>,
    /// Symbol's name, once known.
    pub symbol: Option<String>,
    /// Kernel module; for user code the file name, `anonymous`, or `[jit]` where the program names code of its own making;
    /// `None` for the kernel image.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
    /// Source file, where the binary tells it.
    pub source: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

/// The address to look a name up by: a call may be the last instruction of its function, so a return address may belong to
/// another one.
pub(crate) fn lookup(address: u64, call: bool) -> u64 {
    if call { address.wrapping_sub(1) } else { address }
}

impl FrameRow {
    /// The address to look its name up by.
    pub fn lookup(&self) -> u64 {
        lookup(self.address, self.call)
    }
}

/// A row of table `inlined`: a function that the compiler has copied into a frame's function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlinedRow {
    /// Frame row id.
    pub frame: u32,
    /// 0 for the innermost.
    pub depth: u32,
    /// Function.
    pub symbol: String,
    /// Source file of the instruction (innermost) or of the inlined call.
    pub source: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

/// A row of table `stack`: a frame with the stack of its callers, so that equal beginnings are stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// The caller's row; `None` for the outermost frame.
    pub parent: Option<u32>,
    /// Frame row id.
    pub frame: u32,
}

/// Where machine code was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeSource {
    /// As it stood in the guest's memory, patches included.
    Memory,
    /// In a file.
    File,
}

impl CodeSource {
    /// As in table `code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "guest memory",
            Self::File => "file",
        }
    }
}

/// A row of table `code`: the machine code of one function. A row with a known file, module and start replaces the
/// earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRow {
    /// Address of the first byte, counted as in [`FrameRow::address`].
    pub start: u64,
    /// File row id, for user code.
    pub file: Option<u32>,
    /// Kernel module; `None` for the kernel image and for user code.
    pub module: Option<String>,
    /// Up to the function's end.
    pub bytes: Vec<u8>,
    /// Where they were read.
    pub read: CodeSource,
}

/// A row of table `interrupt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// `hard`, `soft` or `nmi`.
    pub kind: String,
    /// Name, like `virtio0-req.0`, `sysvec_apic_timer_interrupt` or `NET_RX`.
    pub name: String,
}

/// A row of table `sample`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What the vCPU was in when the tick was due.
    pub fell: Fell,
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
    /// Stack row id of the innermost frame; `None` when no stack was taken.
    pub stack: Option<u32>,
    /// Number of the system call that the task was in.
    pub syscall: Option<u32>,
    /// Interrupt row id of the interrupt that was served.
    pub interrupt: Option<u32>,
}

/// A row of table `vcpu`: the whole run up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuRow {
    /// 0 and up.
    pub id: u8,
    /// Samples recorded.
    pub samples: u64,
    /// Ticks whose sample was lost because the ring was full.
    pub lost: u64,
    /// Returns of KVM_RUN.
    pub exits: u64,
    /// Where its time went.
    pub states: States,
}

/// A row of table `microstate`: where a vCPU's time went in one stretch of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicrostateRow {
    /// vCPU id.
    pub vcpu: u8,
    /// End of the stretch, ns since the run's start.
    pub time_ns: u64,
    /// Its parts, which add up to its length.
    pub states: States,
}

/// A row of table `exit`: exits of one vCPU for one reason, up to now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier.
    pub id: u32,
    /// vCPU id.
    pub vcpu: u8,
    /// Like `port write`.
    pub reason: String,
    /// Port, guest physical address, or the number of another reason.
    pub address: Option<u64>,
    /// The device that answers there.
    pub device: Option<String>,
    /// How many.
    pub count: u64,
    /// From the exits to the next entries, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Shortest time of a bucket in ns, and how many fell into it, in rising order.
    pub times: Vec<(u64, u64)>,
}

/// A row of table `kvm_counter`: one of KVM's own counters of a vCPU, as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounterRow {
    /// vCPU id.
    pub vcpu: u8,
    /// KVM's name.
    pub name: String,
    /// Value; ns where the name ends in `_ns`.
    pub value: u64,
    /// Only grows, so that differences have a meaning.
    pub grows: bool,
}

/// A row of table `injected`: interrupts that a device has raised, up to now. A batch with any has them all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedRow {
    /// The device.
    pub device: String,
    /// The guest's interrupt vector; `None` for a line of the I/O APIC.
    pub vector: Option<u8>,
    /// How many.
    pub count: u64,
}

/// A row of table `rusage`: what the guest's kernel kept of a process when it was last read. A row with a known instance
/// replaces the earlier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RusageRow {
    /// Instance row id.
    pub instance: u32,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// User time as getrusage and `/proc/PID/stat` tell it, ns.
    pub user_ns: u64,
    /// System time as they tell it, ns.
    pub system_ns: u64,
    /// `utime` of all threads, before the kernel scales it.
    pub tick_user_ns: u64,
    /// `stime` of all threads.
    pub tick_system_ns: u64,
    /// `sum_exec_runtime` of all threads.
    pub runtime_ns: u64,
    /// Time of the living threads on the guest's run queues.
    pub run_delay_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
}

/// A row of table `thread_time`: what the guest's kernel kept of a thread of a process with several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// `utime`, ns.
    pub tick_user_ns: u64,
    /// `stime`, ns.
    pub tick_system_ns: u64,
    /// `sum_exec_runtime`, ns.
    pub runtime_ns: u64,
}

/// A row of table `cpu_time`: what the guest's kernel kept of a CPU when it was last read, as in `/proc/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimeRow {
    /// The CPU's number in the guest.
    pub cpu: u32,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// User code, ns.
    pub user_ns: u64,
    /// User code of niced processes, ns.
    pub nice_ns: u64,
    /// Kernel code, ns.
    pub system_ns: u64,
    /// Soft interrupts, ns.
    pub softirq_ns: u64,
    /// Hard interrupts, ns.
    pub irq_ns: u64,
    /// Idle, ns.
    pub idle_ns: u64,
    /// Idle while I/O was waited for, ns.
    pub iowait_ns: u64,
    /// Taken by the host, as far as the guest knows, ns.
    pub steal_ns: u64,
}

/// What a vCPU was in when a tick was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Fell {
    /// Executing the guest: such samples, and only they, tell how its time divides.
    #[default]
    Guest,
    /// Halted, or not yet started.
    Halted,
    /// Out of KVM_RUN.
    Vmm,
    /// Most likely without a CPU of the host: the tick was served more than 1 ms late.
    Waiting,
}

impl Fell {
    /// The name in column `sample.fell`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Halted => "halted",
            Self::Vmm => "vmm",
            Self::Waiting => "waiting",
        }
    }
}

/// A row of table `task_state`: time that a task has spent in a state since the row before; rows of one key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStateRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// What it did.
    pub state: State,
    /// What it slept for.
    pub cause: Cause,
    /// Stack row id of what it slept in; 0 for none.
    pub stack: u32,
    /// Time, ns.
    pub ns: u64,
    /// How often the state began.
    pub count: u64,
}

/// A row of table `task_life`: from when to when a task was followed. Rows of one task are joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLifeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Since the run's start, ns.
    pub from_ns: u64,
    /// Since the run's start, ns.
    pub to_ns: u64,
    /// Nothing is left of it.
    pub ended: bool,
}

/// A row of table `wakeup`: how often somebody has woken somebody since the row before; rows of one key add up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeupRow {
    /// `task`, `hard` or `soft` (interrupt).
    pub by: String,
    /// Instance row id of the waker; 0 for an idle task or an interrupt.
    pub waker: u32,
    /// Its thread id.
    pub waker_tid: i32,
    /// Instance row id of the woken.
    pub woken: u32,
    /// Its thread id.
    pub woken_tid: i32,
    /// How often.
    pub count: u64,
}

/// A row of table `interrupt_time`: time in hard interrupts since the row before; rows of one key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptTimeRow {
    /// vCPU.
    pub vcpu: u8,
    /// Instance row id of the interrupted task; 0 for an idle task.
    pub instance: u32,
    /// Its thread id.
    pub tid: i32,
    /// Time, ns.
    pub ns: u64,
    /// How many interrupts.
    pub count: u64,
}

/// A row of table `exact_vcpu`; replaces the earlier of the same vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactVcpuRow {
    /// vCPU.
    pub vcpu: u8,
    /// Exits for events.
    pub trips: u64,
    /// Events that were lost because the ring was full.
    pub lost: u64,
    /// Switches among the events.
    pub switches: u64,
    /// Switches by the kernel's own count, once the tripwires were taken away.
    pub guest_switches: Option<u64>,
    /// Time in which the CPU had nothing to run, ns.
    pub idle_ns: u64,
    /// Sleeps whose stack was not copied: all boxes were under way.
    pub stacks_missed: u64,
    /// Time from the events' exits to the next entries, ns.
    pub cost_ns: u64,
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
    /// Table `microstate`.
    pub microstates: Vec<MicrostateRow>,
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
    /// Table `wakeup`.
    pub wakeups: Vec<WakeupRow>,
    /// Table `interrupt_time`.
    pub interrupt_times: Vec<InterruptTimeRow>,
    /// Table `exact_vcpu`.
    pub exact_vcpus: Vec<ExactVcpuRow>,
    /// Table `console`.
    pub console: Vec<ConsoleRow>,
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
            wakeups,
            interrupt_times,
            exact_vcpus,
            console,
            events,
            code,
        } = self;
        meta.clear();
        vcpus.clear();
        microstates.clear();
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
        wakeups.clear();
        interrupt_times.clear();
        exact_vcpus.clear();
        console.clear();
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
