//! A trace for Perfetto (ui.perfetto.dev), a protocol buffer.
//!
//! ```text
//! vCPU 0               a slice of the whole run: exits and interrupts of the vCPU as its arguments
//!   guest, halted ...  counters: part of each segment of time that the vCPU was in the state
//!   tasks              slices of the tasks that it ran, by exact mode, with the waits before as arguments
//!   calls              instants: calls of watched functions, with their arguments
//! Memory of the guest  counters: bytes of each part, and of the largest processes and control groups
//! Events               instants
//! PROCESS
//!   THREAD             samples with their stacks; slices of the states that scans of the tasks found
//!     Exact totals     a slice of the time for which exact mode followed it: its states and wakers
//! [host]
//!   vCPU 0             stacks of the vCPU's thread in the host, each below the place of the thread
//! ```

mod calls;
mod code;
mod memory;
mod proto;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::assert_sound;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use display::units::rounded;

use display::clean::escaped;
use profile::Profile;
use profile::report::{Filter, RecordedVcpu, Recording, RecordingRequest, ReportError, Timehist};
use profile::rows::Mode;
use prost::Message as _;

use crate::{ExportError, Request};
use code::Code;
use proto::{
    Annotation, ClockReading, ClockSnapshot, CounterDescriptor, CpuMode, EventType, KernelNames, PacketData,
    PacketDefaults, PerfSample, SampleDefaults, SystemInfo, Timebase, TimebaseCounter, TimebaseEvent,
    TimebaseInterval, TracePacket, TrackDescriptor, TrackEvent,
};
use tables::{NamedNumbers, ThreadName};
use tasks::{TaskIds, Tasks};

/// Ranges of numbers of tracks.
mod uuid {
    pub(super) const EVENTS: u64 = 1;
    /// One for each vCPU, then one for each state of each vCPU.
    pub(super) const VCPUS: u64 = 1 << 32;
    pub(super) const STATES: u64 = 2 << 32;
    pub(super) const PROCESSES: u64 = 3 << 32;
    pub(super) const THREADS: u64 = 4 << 32;
    pub(super) const TOTALS: u64 = 5 << 32;
    pub(super) const RUNS: u64 = 6 << 32;
    pub(super) const MEMORY: u64 = 7 << 32;
    pub(super) const CALLS: u64 = 8 << 32;
}

/// Number of the only sequence of packets.
const SEQUENCE: u32 = 1;
/// Key of a packet in `Trace`: field 1, with a length (protobuf.dev, "Message Structure").
const PACKET: u8 = 1 << 3 | 2;
/// Clocks of Perfetto (`BuiltinClock`).
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;
/// States of a vCPU: columns of table `microstate`, with `_ns` after each.
const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];

/// Writes the format.
pub(crate) fn write(
    profile: &Profile,
    request: &Request,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ExportError> {
    let wanted = RecordingRequest { filter: request.filter.clone(), idle: false, host: request.host };
    let recording = Recording::read(profile, &wanted, progress)?;
    let mut trace = TraceWriter { out, flags: proto::CLEARED };
    trace.head(&recording)?;
    let mut tasks = Tasks::new(&recording);
    let mut new = Vec::new();
    trace.samples(&recording, &mut tasks, &mut new)?;
    trace.events(&recording)?;
    // What has no samples cannot be chosen by them.
    if request.filter == Filter::default() {
        for vcpu in &recording.vcpus {
            trace.vcpu(profile, vcpu)?;
        }
        trace.memory(profile)?;
        trace.runs(profile)?;
        trace.calls(profile)?;
        let mut threads = ThreadTracks::new(&recording, tasks);
        trace.scanned_states(profile, &mut threads)?;
        trace.thread_totals(profile, &mut threads)?;
    }
    Ok(())
}

/// Writer of packets.
struct TraceWriter<'a> {
    out: &'a mut dyn Write,
    /// Flags of the next packet.
    flags: u32,
}

impl TraceWriter<'_> {
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let flags = std::mem::replace(&mut self.flags, proto::NEEDS_STATE);
        let packet = TracePacket { trusted_packet_sequence_id: SEQUENCE, sequence_flags: flags, ..packet };
        self.out.write_all(&[PACKET])?;
        self.out.write_all(&packet.encode_length_delimited_to_vec())
    }

    fn data(&mut self, timestamp: Option<u64>, data: PacketData) -> io::Result<()> {
        self.packet(TracePacket { timestamp, data: Some(data), ..TracePacket::default() })
    }

    fn describe(&mut self, new: &mut Vec<PacketData>) -> io::Result<()> {
        new.drain(..).try_for_each(|data| self.data(None, data))
    }

    fn track(&mut self, uuid: u64, name: String, parent: Option<u64>) -> io::Result<()> {
        let track = TrackDescriptor { uuid, name, parent_uuid: parent, ..TrackDescriptor::default() };
        self.data(None, PacketData::TrackDescriptor(track))
    }

    fn event(&mut self, time_ns: u64, kind: EventType, event: TrackEvent) -> io::Result<()> {
        let event = TrackEvent { r#type: kind.into(), ..event };
        self.data(Some(time_ns), PacketData::TrackEvent(event))
    }

    fn slice(&mut self, track: u64, span: (u64, u64), event: TrackEvent) -> io::Result<()> {
        self.event(span.0, EventType::SliceBegin, TrackEvent { track_uuid: track, ..event })?;
        let end = TrackEvent { track_uuid: track, ..TrackEvent::default() };
        self.event(span.1.max(span.0), EventType::SliceEnd, end)
    }

    /// Writes the clock of samples, the time of day at the run's start, and the guest's kernel.
    fn head(&mut self, recording: &Recording) -> io::Result<()> {
        let about = &recording.about;
        let interval = rounded(about.rate_hz).max(1);
        let timebase = Timebase {
            interval: Some(TimebaseInterval::Frequency(interval)),
            event: Some(TimebaseEvent::Counter(TimebaseCounter::CpuClock.into())),
            name: "cpu-clock".to_owned(),
        };
        let defaults = SampleDefaults { timebase: Some(timebase) };
        let clock = |id, timestamp| ClockReading { clock_id: Some(id), timestamp: Some(timestamp) };
        let clocks = vec![clock(BOOTTIME, 0), clock(REALTIME, about.started_unix_ns)];
        self.packet(TracePacket {
            timestamp: Some(0),
            trace_packet_defaults: Some(PacketDefaults { perf_sample_defaults: Some(defaults) }),
            data: Some(PacketData::ClockSnapshot(ClockSnapshot { clocks })),
            ..TracePacket::default()
        })?;
        let release = escaped(about.kernel.as_deref().unwrap_or_default()).into_owned();
        let utsname = Some(KernelNames { sysname: "Linux".to_owned(), release });
        self.data(None, PacketData::SystemInfo(SystemInfo { utsname }))
    }

    fn samples<'a>(
        &mut self,
        recording: &'a Recording,
        tasks: &mut Tasks<'a>,
        new: &mut Vec<PacketData>,
    ) -> io::Result<()> {
        let mut code = Code::new(recording);
        let mut counts: HashMap<u16, f64> = HashMap::new();
        for sample in &recording.samples {
            let place = recording.owners.get(sample.owner as usize).and_then(|owner| owner.place);
            let stack = code.stack(sample.stack, place);
            let TaskIds { pid, tid, .. } = match place {
                Some(_) => tasks.host_thread(sample.vcpu, new),
                None => tasks.owner(sample.owner, new),
            };
            self.describe(new)?;
            if let Some(interned) = code.take() {
                self.packet(TracePacket { interned_data: Some(interned), ..TracePacket::default() })?;
            }
            let count = counts.entry(sample.vcpu).or_default();
            *count += sample.weight_ns;
            let mode = match (place, sample.mode) {
                (Some(_), _) => CpuMode::Hypervisor,
                (None, Mode::User) => CpuMode::User,
                (None, _) => CpuMode::Kernel,
            };
            let data = PerfSample {
                cpu: Some(sample.vcpu.into()),
                pid: Some(pid.unsigned_abs()),
                tid: Some(tid.unsigned_abs()),
                callstack_iid: Some(stack),
                cpu_mode: Some(mode.into()),
                timebase_count: Some(rounded(*count)),
            };
            self.data(Some(sample.time_ns), PacketData::PerfSample(data))?;
        }
        Ok(())
    }

    fn events(&mut self, recording: &Recording) -> io::Result<()> {
        if recording.events.is_empty() {
            return Ok(());
        }
        self.track(uuid::EVENTS, "Events".to_owned(), None)?;
        for event in &recording.events {
            let name = format!("{}: {}", escaped(&event.kind), escaped(&event.text));
            self.event(
                rounded(event.time_s * 1e9),
                EventType::Instant,
                TrackEvent { track_uuid: uuid::EVENTS, ..named("event", name) },
            )?;
        }
        Ok(())
    }

    fn vcpu(&mut self, profile: &Profile, recorded: &RecordedVcpu) -> Result<(), ExportError> {
        let (vcpu, name) = (recorded.id, escaped(&recorded.name()).into_owned());
        let track = uuid::VCPUS + u64::from(vcpu);
        self.track(track, name.clone(), None)?;
        let debug_annotations = vec![
            annotation("exits", tables::exits(profile, vcpu)?),
            annotation("interrupts", tables::interrupts(profile, vcpu)?),
        ];
        let run = TrackEvent { debug_annotations, ..named("vcpu", "run".to_owned()) };
        self.slice(track, recorded.run_ns, run)?;
        let state_track = |place: usize| {
            uuid::STATES + u64::from(vcpu) * STATES.len() as u64 + u64::try_from(place).unwrap_or(0)
        };
        for (place, state) in STATES.iter().enumerate() {
            let counter = Some(CounterDescriptor { unit_name: "%".to_owned() });
            let descriptor = TrackDescriptor {
                uuid: state_track(place),
                name: format!("{name} {state}"),
                parent_uuid: Some(track),
                counter,
                ..TrackDescriptor::default()
            };
            self.data(None, PacketData::TrackDescriptor(descriptor))?;
        }
        let columns = STATES.map(|state| format!("{state}_ns")).join(", ");
        let sql = format!("SELECT time_ns, {columns} FROM microstate WHERE vcpu = {vcpu} ORDER BY time_ns");
        let segments = tables::rows(profile, &sql, |row| {
            let states: [u64; STATES.len()] = std::array::from_fn(|place| tables::number(row, place + 1));
            (tables::number(row, 0), states)
        })?;
        let mut from = recorded.run_ns.0;
        for (to, states) in segments {
            let all = states.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns)).max(1);
            for (place, ns) in states.iter().enumerate() {
                let percent = *ns as f64 * 100.0 / all as f64;
                let event = TrackEvent {
                    track_uuid: state_track(place),
                    double_counter_value: Some(percent),
                    ..TrackEvent::default()
                };
                self.event(from, EventType::Counter, event)?;
            }
            from = to;
        }
        Ok(())
    }

    /// Writes the runs of tasks, if exact mode has recorded them.
    fn runs(&mut self, profile: &Profile) -> Result<(), ExportError> {
        let history = match Timehist::new(profile, &Filter::default()) {
            Err(ReportError::NoExact(_)) => return Ok(()),
            history => history?,
        };
        let ns = |s: f64| rounded(s * 1e9);
        let mut ends: BTreeMap<u16, u64> = BTreeMap::new();
        history.for_each(usize::MAX, |run| {
            let vcpu = u64::from(run.vcpu);
            let track = uuid::RUNS + vcpu;
            if !ends.contains_key(&run.vcpu) {
                self.track(track, format!("vCPU {vcpu} tasks"), Some(uuid::VCPUS + vcpu))?;
            }
            let last = ends.entry(run.vcpu).or_default();
            // Slices of a track do not overlap, also where events were lost.
            let begin = ns(run.time_s).max(*last);
            let end = ns(run.time_s + run.running_s + run.interrupted_s + run.sampler_s).max(begin);
            *last = end;
            let task = &run.task;
            let name = task.thread.as_deref().unwrap_or(&task.comm);
            let name = format!("{} {}", escaped(name), task.tid);
            let debug_annotations = vec![
                Annotation::number("wait_ns", ns(run.wait_s)),
                Annotation::number("delay_ns", ns(run.delay_s)),
                Annotation::number("interrupted_ns", ns(run.interrupted_s)),
            ];
            let event = TrackEvent { debug_annotations, ..named("task run", name) };
            Ok(self.slice(track, (begin, end), event)?)
        })
    }

    fn scanned_states(
        &mut self,
        profile: &Profile,
        threads: &mut ThreadTracks<'_>,
    ) -> Result<(), ExportError> {
        let last = "SELECT coalesce(max(time_ns), 0) FROM task_scan";
        let end = tables::rows(profile, last, |row| tables::number(row, 0))?.first().copied().unwrap_or(0);
        let rows = tables::scanned_states(profile)?;
        let mut rows = rows.iter().peekable();
        while let Some(row) = rows.next() {
            let next = rows.peek().filter(|next| next.thread == row.thread);
            let (Some(state), Some(track)) = (&row.state, threads.track(&row.thread)) else { continue };
            self.describe(&mut threads.new)?;
            let to = next.map_or(end, |next| next.from_ns);
            let name = escaped(state).into_owned();
            self.slice(track, (row.from_ns, to), named("sampled state", name))?;
        }
        Ok(())
    }

    fn thread_totals(
        &mut self,
        profile: &Profile,
        threads: &mut ThreadTracks<'_>,
    ) -> Result<(), ExportError> {
        for totals in tables::thread_totals(profile)? {
            let Some(parent) = threads.track(&totals.thread) else { continue };
            self.describe(&mut threads.new)?;
            let track = parent - uuid::THREADS + uuid::TOTALS;
            self.track(track, "Exact totals".to_owned(), Some(parent))?;
            let debug_annotations =
                vec![annotation("states", totals.states), annotation("woken by", totals.woken_by)];
            let event = TrackEvent { debug_annotations, ..named("exact", "followed".to_owned()) };
            self.slice(track, (totals.from_ns, totals.to_ns), event)?;
        }
        Ok(())
    }
}

/// Tracks of threads that queries name.
struct ThreadTracks<'a> {
    tasks: Tasks<'a>,
    /// Indexes of processes by name and number.
    processes: HashMap<(&'a str, u32), u32>,
    /// Descriptions that no packet has yet.
    new: Vec<PacketData>,
}

impl<'a> ThreadTracks<'a> {
    fn new(recording: &'a Recording, tasks: Tasks<'a>) -> Self {
        let processes = (0..)
            .zip(&recording.processes)
            .map(|(place, process)| ((process.comm.as_str(), process.number), place))
            .collect();
        Self { tasks, processes, new: Vec::new() }
    }

    /// Returns the track of a thread; `None` for a process that the recording does not have.
    fn track(&mut self, thread: &ThreadName) -> Option<u64> {
        let process = *self.processes.get(&(thread.comm.as_str(), thread.number))?;
        Some(self.tasks.thread(process, thread.tid, &thread.name, &mut self.new).track)
    }
}

fn named(category: &str, name: String) -> TrackEvent {
    TrackEvent { categories: vec![category.to_owned()], name: Some(name), ..TrackEvent::default() }
}

/// Makes an argument of several names, each with its numbers.
fn annotation(name: &str, rows: Vec<NamedNumbers>) -> Annotation {
    let entries = rows.into_iter().map(|row| {
        let numbers = row.numbers.iter().map(|(name, value)| Annotation::number(name, *value)).collect();
        Annotation::of_several(escaped(&row.name).into_owned(), numbers)
    });
    Annotation::of_several(name.to_owned(), entries.collect())
}
