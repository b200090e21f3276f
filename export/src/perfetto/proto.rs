//! The messages of a Perfetto trace that vprof writes.
//!
//! Field numbers and types: `protos/perfetto/trace` of the Perfetto project (perfetto.dev), as in its package
//! `perfetto` 0.59.1 on PyPI. `iid` is the number of an interned text, frame or stack, from 1.

use prost::{Enumeration, Message, Oneof};

/// Flag of the first packet of a sequence: interned data begins here.
pub(super) const CLEARED: u32 = 1;
/// Flag of a packet that refers to interned data or defaults.
pub(super) const NEEDS_STATE: u32 = 2;

/// A packet, in `Trace` as field 1.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<PacketDefaults>,
    #[prost(oneof = "PacketData", tags = "6, 11, 45, 60, 66")]
    pub data: Option<PacketData>,
}

/// Content of a packet.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum PacketData {
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "45")]
    SystemInfo(SystemInfo),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
    #[prost(message, tag = "66")]
    PerfSample(PerfSample),
}

/// Numbered texts, frames and stacks.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedString>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedString>,
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
}

/// A numbered text.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedString {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// A file in memory.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub build_id: u64,
    /// Parts of the path; readers put a `/` before each.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// A function at an address.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Frame {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "4")]
    pub rel_pc: u64,
    #[prost(uint64, tag = "5")]
    pub source_path_iid: u64,
    #[prost(uint32, tag = "6")]
    pub line_number: u32,
}

/// A stack.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Callstack {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// Defaults of the packets that follow.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PacketDefaults {
    #[prost(message, optional, tag = "12")]
    pub perf_sample_defaults: Option<SampleDefaults>,
}

/// Properties of all samples.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SampleDefaults {
    #[prost(message, optional, tag = "1")]
    pub timebase: Option<Timebase>,
}

/// The clock of samples.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timebase {
    #[prost(oneof = "TimebaseInterval", tags = "1, 2")]
    pub interval: Option<TimebaseInterval>,
    #[prost(oneof = "TimebaseEvent", tags = "4")]
    pub event: Option<TimebaseEvent>,
    #[prost(string, tag = "10")]
    pub name: String,
}

/// Interval of the clock.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TimebaseInterval {
    #[prost(uint64, tag = "1")]
    Period(u64),
    #[prost(uint64, tag = "2")]
    Frequency(u64),
}

/// Kind of event that the clock counts.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TimebaseEvent {
    #[prost(enumeration = "TimebaseCounter", tag = "4")]
    Counter(i32),
}

/// Counters of the kernel's software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum TimebaseCounter {
    Unknown = 0,
    CpuClock = 1,
}

/// A sample.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PerfSample {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub tid: Option<u32>,
    #[prost(uint64, optional, tag = "4")]
    pub callstack_iid: Option<u64>,
    #[prost(enumeration = "CpuMode", optional, tag = "5")]
    pub cpu_mode: Option<i32>,
    /// Value of the clock: ns that this sample and those of the vCPU before it stand for.
    #[prost(uint64, optional, tag = "6")]
    pub timebase_count: Option<u64>,
}

/// Kind of code that a sample hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum CpuMode {
    Unknown = 0,
    Kernel = 1,
    User = 2,
    /// The host, as seen by its guest.
    Hypervisor = 3,
}

/// Readings of several clocks at one time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<ClockReading>,
}

/// Reading of one clock.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockReading {
    /// `BUILTIN_CLOCK_REALTIME` is 1, `BUILTIN_CLOCK_BOOTTIME`, the clock of all packets, 6.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// The machine.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<KernelNames>,
}

/// Names of a kernel, `Utsname` of Perfetto.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KernelNames {
    #[prost(string, tag = "1")]
    pub sysname: String,
    #[prost(string, tag = "3")]
    pub release: String,
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    #[prost(string, tag = "6")]
    pub process_name: String,
}

/// A thread.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

/// A track of numbers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(string, tag = "6")]
    pub unit_name: String,
}

/// An event on a track.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<Annotation>,
    #[prost(enumeration = "EventType", tag = "9")]
    pub r#type: i32,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// A named value of an event, or several.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(string, tag = "10")]
    pub name: String,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(message, repeated, tag = "11")]
    pub dict_entries: Vec<Annotation>,
}

impl Annotation {
    pub(super) fn number(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), uint_value: Some(value), ..Self::default() }
    }

    pub(super) fn text(name: String, value: String) -> Self {
        Self { name, string_value: Some(value), ..Self::default() }
    }

    pub(super) fn of_several(name: String, dict_entries: Vec<Self>) -> Self {
        Self { name, dict_entries, ..Self::default() }
    }
}
