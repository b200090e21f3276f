//! The samples of a profile one by one, for exports.
//!
//! Everything has a small number, which is its index in one of the lists of a [`Recording`]: a sample refers
//! to its owner and its stack, a stack to its frame and its callers, a frame to its functions. So an export
//! touches text once per function and not once per sample.

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use super::stacks::MOST_FRAMES;
use super::{Event, Filter, ThreadPlace};
use crate::rows::{FrameKind, Mode};

/// Request for a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingRequest {
    /// Part of the profile.
    pub filter: Filter,
    /// True to include the samples of an idle or halted vCPU. They belong to no process, so only the filter's
    /// vCPU and time choose among them.
    pub idle: bool,
    /// True to include the stacks of the host, but those of a halted guest. They replace the guest's stack at
    /// ticks in KVM. Only the filter's vCPU and time choose among those outside of the guest.
    pub host: bool,
}

/// The chosen samples of a profile, and everything that they refer to.
#[derive(Debug, Clone)]
pub struct Recording {
    /// Facts about the run.
    pub about: About,
    /// The chosen vCPUs, rising.
    pub vcpus: Vec<RecordedVcpu>,
    /// Samples in the order of time.
    pub samples: Vec<RecordedSample>,
    /// Processes and threads that samples belong to.
    pub owners: Vec<Owner>,
    /// All processes of the profile; owners refer to them by index.
    pub processes: Vec<RecordedProcess>,
    /// Stacks; a caller precedes its callees.
    pub stacks: Vec<StackNode>,
    /// Code addresses.
    pub frames: Vec<RecordedFrame>,
    /// Entries of frames, see [`RecordedFrame::entries`].
    pub entries: Vec<FrameEntry>,
    /// Functions.
    pub functions: Vec<RecordedFunction>,
    /// Source lines.
    pub lines: Vec<SourceLine>,
    /// Files of user code.
    pub files: Vec<RecordedFile>,
    /// Executable memory of processes.
    pub mappings: Vec<RecordedMapping>,
    /// Kind (`hard`, `soft`, `nmi`) and name of interrupts.
    pub interrupts: Vec<(String, String)>,
    /// Names of system calls by number.
    pub syscalls: BTreeMap<u32, String>,
    /// Events of the run, in the order of time.
    pub events: Vec<Event>,
}

/// A vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedVcpu {
    /// Number in the profile.
    pub id: u16,
    /// Number in its virtual machine.
    pub number: u16,
    /// Name of its virtual machine in a merged profile.
    pub vm: Option<String>,
    /// Name of the host of that, if it is known.
    pub host: Option<String>,
    /// Start and end of its run, ns since the profile's start.
    pub run_ns: (u64, u64),
}

impl RecordedVcpu {
    /// Returns `vCPU` and its number, after the name of its virtual machine in a merged profile.
    pub fn name(&self) -> String {
        match &self.vm {
            Some(vm) => format!("{vm} vCPU {}", self.number),
            None => format!("vCPU {}", self.id),
        }
    }
}

/// Facts about a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct About {
    /// vprof's version that wrote the profile.
    pub version: String,
    /// `kvm`, `portable` or `unknown`.
    pub host: String,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// False if the run was cut short, or is in progress.
    pub complete: bool,
    /// Start of the run, ns since 1970.
    pub started_unix_ns: u64,
    /// Length of the run, ns.
    pub duration_ns: u64,
    /// Mean rate of the clock per vCPU.
    pub rate_hz: f64,
    /// All keys of table `meta`.
    pub meta: BTreeMap<String, String>,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedSample {
    /// Time when its tick was served, ns since the run's start.
    pub time_ns: u64,
    /// Time that it represents, ns: the exact time of its vCPU in the guest, divided among the ticks in the
    /// guest as estimates do; for a halted vCPU, the exact time halted. For a stack of the host in the VMM,
    /// or of a thread that waits for a CPU, that exact time.
    pub weight_ns: f64,
    /// Index in [`Recording::owners`].
    pub owner: u32,
    /// Index in [`Recording::stacks`].
    pub stack: u32,
    /// Index there of the stack of the host with which the thread entered the guest, if it is known.
    pub host_stack: Option<u32>,
    /// System call that the task was in.
    pub syscall: Option<u32>,
    /// Index in [`Recording::interrupts`] of the interrupt that was served.
    pub interrupt: Option<u32>,
    /// Activity of the vCPU.
    pub mode: Mode,
    /// The vCPU.
    pub vcpu: u16,
}

/// A thread, or another owner of samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Index in [`Recording::processes`]; `None` for interrupts, early boot, idle time and unknown tasks.
    pub process: Option<u32>,
    /// Thread id.
    pub tid: Option<i32>,
    /// The thread's own name, or that of its process; like `[hard interrupts]` without a process.
    pub name: String,
    /// Place of the vCPU's thread, for a stack of the host.
    pub place: Option<ThreadPlace>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProcess {
    /// Program name.
    pub comm: String,
    /// Instance number, counted by program name from 0.
    pub number: u32,
    /// Name of its virtual machine in a merged profile.
    pub vm: Option<String>,
    /// Process id.
    pub pid: i32,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// The parent's process id.
    pub parent_pid: Option<i32>,
    /// Command line.
    pub command: Option<String>,
    /// Path of its program.
    pub exe: Option<String>,
    /// Path of its control group.
    pub cgroup: Option<String>,
    /// systemd unit of the control group.
    pub unit: Option<String>,
    /// Container of the control group.
    pub container: Option<String>,
}

impl RecordedProcess {
    /// Returns `name#number`, after the name of its virtual machine and a slash in a merged profile.
    pub fn instance(&self) -> String {
        match &self.vm {
            Some(vm) => format!("{vm}/{}#{}", self.comm, self.number),
            None => format!("{}#{}", self.comm, self.number),
        }
    }
}

/// A frame and its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackNode {
    /// The caller's index in [`Recording::stacks`], always a smaller one.
    pub parent: Option<u32>,
    /// Index in [`Recording::frames`].
    pub frame: u32,
}

/// A code address, or the reason why frames are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Kernel code, user code, or a reason.
    pub kind: FrameKind,
    /// Virtual address, or the ELF file's own if `file` is set.
    pub address: u64,
    /// A return address: the call is right before it.
    pub call: bool,
    /// Index in [`Recording::files`].
    pub file: Option<u32>,
    /// Index in [`Recording::processes`] of the address space, for user code without a file.
    pub process: Option<u32>,
    /// Bytes from the start of its function, if that is known.
    pub offset: u64,
    /// First index in [`Recording::entries`]; there is at least one entry.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A function at a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameEntry {
    /// Index in [`Recording::functions`].
    pub function: u32,
    /// Index in [`Recording::lines`].
    pub line: Option<u32>,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordedFunction {
    /// Name; in brackets for code without one, as `[no frame: page not present]` for a reason.
    pub symbol: String,
    /// Kernel module, or file name of user code; `None` for the kernel's image and for reasons.
    pub module: Option<String>,
    /// Kernel code, user code, or a reason.
    pub kind: FrameKind,
}

/// A source line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// Path of the source file, as the compiler wrote it.
    pub source: String,
    /// Line number, from 1.
    pub line: Option<u32>,
}

/// A file of user code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFile {
    /// Path in the guest.
    pub path: String,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
}

/// Executable memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedMapping {
    /// Index in [`Recording::processes`].
    pub process: u32,
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Index in [`Recording::files`].
    pub file: Option<u32>,
    /// Offset in the file, bytes.
    pub file_offset: u64,
}

impl RecordedFrame {
    /// Returns the indexes of its functions in [`Recording::entries`]: the innermost inlined one first, its
    /// own last.
    pub fn entries(&self) -> Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.count as usize)
    }
}

impl Recording {
    /// Returns the functions of a frame: the innermost inlined one first, its own last.
    pub fn entries_of(&self, frame: u32) -> &[FrameEntry] {
        let places = self.frames.get(frame as usize).map(RecordedFrame::entries);
        places.and_then(|places| self.entries.get(places)).unwrap_or_default()
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames_of(&self, stack: u32) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.stacks.get(stack as usize);
        std::iter::from_fn(move || {
            let node = next?;
            next = node.parent.and_then(|parent| self.stacks.get(parent as usize));
            Some(node.frame)
        })
        .take(MOST_FRAMES)
    }

    /// Returns the functions of a stack, outermost first.
    pub fn functions_of(&self, stack: u32) -> impl Iterator<Item = &FrameEntry> {
        let mut frames: Vec<u32> = self.frames_of(stack).collect();
        frames.reverse();
        frames.into_iter().flat_map(|frame| self.entries_of(frame).iter().rev())
    }

    /// Returns a chosen vCPU by its number in the profile.
    pub fn vcpu(&self, id: u16) -> Option<&RecordedVcpu> {
        self.vcpus.get(self.vcpus.binary_search_by_key(&id, |vcpu| vcpu.id).ok()?)
    }

    /// Returns the process of an owner.
    pub fn process_of(&self, owner: &Owner) -> Option<&RecordedProcess> {
        self.processes.get(owner.process? as usize)
    }

    /// Returns the time of all samples, ns.
    pub fn weight_ns(&self) -> f64 {
        self.samples.iter().map(|sample| sample.weight_ns).sum()
    }
}
