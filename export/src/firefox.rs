//! The Firefox Profiler's processed profile format (profiler.firefox.com), as JSON.
//!
//! There is a track per vCPU, which shows its work and its idle time, and one per thread of each process. A
//! sample of a thread is on both. Events of the run are markers of the first vCPU's track.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use display::clean::escaped;
use display::units::rounded;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameInfo,
    MarkerFieldFlags, MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, SamplingInterval, StackHandle,
    StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use profile::report::{RecordedSample, Recording};
use profile::rows::{FrameKind, Mode};

use crate::names::symbol;
use crate::sums::StackParts;
use crate::{ExportError, Request};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut writer = Writer::new(recording, &request.title);
    for sample in &recording.samples {
        writer.sample(sample);
    }
    writer.events();
    serde_json::to_writer(out, &writer.profile).map_err(|error| ExportError::Write(error.into()))
}

/// Colours of frames by category.
struct Categories {
    user: CategoryHandle,
    kernel: CategoryHandle,
    hard: CategoryHandle,
    soft: CategoryHandle,
    host: CategoryHandle,
    idle: CategoryHandle,
}

impl Categories {
    fn new(profile: &mut Profile) -> Self {
        Self {
            user: profile.add_category("User", CategoryColor::Yellow),
            kernel: profile.add_category("Kernel", CategoryColor::Orange),
            hard: profile.add_category("Hard interrupt", CategoryColor::Red),
            soft: profile.add_category("Soft interrupt", CategoryColor::Purple),
            host: profile.add_category("Host", CategoryColor::Blue),
            idle: profile.add_category("Idle", CategoryColor::Transparent),
        }
    }

    /// Returns the category of a frame on the stack of a sample in this mode: for code of the kernel it
    /// depends on the mode.
    fn category(&self, kind: FrameKind, mode: Mode) -> CategoryHandle {
        match (kind, mode) {
            (_, Mode::Idle) => self.idle,
            (FrameKind::User | FrameKind::Managed, _) => self.user,
            (FrameKind::Reason, _) => CategoryHandle::OTHER,
            (FrameKind::Kernel, Mode::HardIrq | Mode::Nmi) => self.hard,
            (FrameKind::Kernel, Mode::SoftIrq) => self.soft,
            (FrameKind::Kernel, _) => self.kernel,
        }
    }
}

/// Thread, owner and stack of the host if they are in the stack, stack, mode.
type StackKey = (ThreadHandle, Option<(u32, Option<u32>)>, u32, Mode);

struct Writer<'a> {
    recording: &'a Recording,
    profile: Profile,
    categories: Categories,
    vcpus: HashMap<u16, ThreadHandle>,
    first_vcpu: Option<ThreadHandle>,
    /// By the process's index.
    processes: HashMap<u32, ProcessHandle>,
    /// By owner.
    threads: HashMap<u32, ThreadHandle>,
    stacks: HashMap<StackKey, Option<StackHandle>>,
    /// By function.
    labels: Vec<StringHandle>,
}

impl<'a> Writer<'a> {
    fn new(recording: &'a Recording, title: &str) -> Self {
        let about = &recording.about;
        let start = SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_nanos(about.started_unix_ns))
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let mut profile = Profile::new(
            &escaped(title),
            start.into(),
            SamplingInterval::from_nanos(interval_ns(about.rate_hz)),
        );
        profile.set_os_name(&escaped(&format!("Linux {}", about.kernel.as_deref().unwrap_or(""))));
        // All names are in the profile.
        profile.set_symbolicated(true);
        let categories = Categories::new(&mut profile);
        let machine = profile.add_process("vCPUs", 0, timestamp(0));
        let (mut vcpus, mut first_vcpu) = (HashMap::new(), None);
        for vcpu in &recording.vcpus {
            // No thread is the main thread, which would be shown under the name of its process.
            let thread = profile.add_thread(machine, vcpu.id.into(), timestamp(0), false);
            profile.set_thread_name(thread, &escaped(&vcpu.name()));
            profile.set_thread_show_markers_in_timeline(thread, true);
            profile.add_initial_visible_thread(thread);
            first_vcpu = first_vcpu.or(Some(thread));
            vcpus.insert(vcpu.id, thread);
        }
        if let Some(thread) = first_vcpu {
            profile.add_initial_selected_thread(thread);
        }
        let label = |function| {
            let function: &profile::report::RecordedFunction = function;
            let name = escaped(symbol(function));
            match &function.module {
                Some(module) if !name.starts_with('[') => format!("{name} [{}]", escaped(module)),
                _ => name.into_owned(),
            }
        };
        let labels = recording.functions.iter().map(|f| profile.intern_string(&label(f))).collect();
        Self {
            recording,
            profile,
            categories,
            vcpus,
            first_vcpu,
            processes: HashMap::new(),
            threads: HashMap::new(),
            stacks: HashMap::new(),
            labels,
        }
    }

    fn sample(&mut self, sample: &RecordedSample) {
        let busy = if sample.mode == Mode::Idle { 0.0 } else { sample.weight_ns };
        let cpu = CpuDelta::from_nanos(rounded(busy));
        let time = timestamp(sample.time_ns);
        if let Some(&thread) = self.vcpus.get(&sample.vcpu) {
            let stack = self.stack(thread, Some((sample.owner, sample.host_stack)), sample);
            self.profile.add_sample(thread, time, stack, cpu, 1);
        }
        if let Some(thread) = self.thread(sample.owner) {
            let stack = self.stack(thread, None, sample);
            self.profile.add_sample(thread, time, stack, cpu, 1);
        }
    }

    /// Returns the track of an owner; none for an owner that is not a process.
    fn thread(&mut self, owner: u32) -> Option<ThreadHandle> {
        if let Some(&known) = self.threads.get(&owner) {
            return Some(known);
        }
        let of = self.recording.owners.get(owner as usize)?;
        let process = self.recording.process_of(of)?;
        let pid = u32::try_from(process.pid).unwrap_or(0);
        let profile = &mut self.profile;
        let handle = *self
            .processes
            .entry(of.process?)
            .or_insert_with(|| profile.add_process(&escaped(&process.instance()), pid, timestamp(0)));
        let tid = of.tid.and_then(|tid| u32::try_from(tid).ok()).unwrap_or(pid);
        let thread = profile.add_thread(handle, tid, timestamp(0), tid == pid);
        profile.set_thread_name(thread, &escaped(&of.name));
        self.threads.insert(owner, thread);
        Some(thread)
    }

    /// Returns the stack of a sample. On a vCPU's track, `outer` is the owner and the stack of the host,
    /// which are in the stack, since the track has many owners.
    fn stack(
        &mut self,
        thread: ThreadHandle,
        outer: Option<(u32, Option<u32>)>,
        sample: &RecordedSample,
    ) -> Option<StackHandle> {
        let key = (thread, outer, sample.stack, sample.mode);
        if let Some(&known) = self.stacks.get(&key) {
            return known;
        }
        let recording = self.recording;
        let StackParts { host, guest } = match outer {
            Some(_) => StackParts::new(recording, sample),
            None => StackParts::only(sample.stack),
        };
        let mut frames = Vec::new();
        if let Some(stack) = host {
            self.append(stack, |_| self.categories.host, &mut frames);
        }
        if let Some(owner) = outer.and_then(|(owner, _)| recording.owners.get(owner as usize)) {
            let name = match recording.process_of(owner) {
                Some(process) => process.instance(),
                None => owner.name.clone(),
            };
            let category = match (owner.place, sample.mode) {
                (Some(_), _) => self.categories.host,
                (None, Mode::Idle) => self.categories.idle,
                (None, _) => CategoryHandle::OTHER,
            };
            frames.push(info(self.profile.intern_string(&escaped(&name)), category));
        }
        if let Some(stack) = guest {
            self.append(stack, |kind| self.categories.category(kind, sample.mode), &mut frames);
        }
        let stack = self.profile.intern_stack_frames(thread, frames.into_iter());
        self.stacks.insert(key, stack);
        stack
    }

    /// Appends the frames of a stack, outermost first.
    fn append(
        &self,
        stack: u32,
        category: impl Fn(FrameKind) -> CategoryHandle,
        frames: &mut Vec<FrameInfo>,
    ) {
        for entry in self.recording.functions_of(stack) {
            let function = entry.function as usize;
            let kind = self.recording.functions.get(function).map(|function| function.kind);
            if let Some((&label, kind)) = self.labels.get(function).zip(kind) {
                frames.push(info(label, category(kind)));
            }
        }
    }

    fn events(&mut self) {
        let Some(thread) = self.first_vcpu else { return };
        for event in &self.recording.events {
            let name = self.profile.intern_string(&escaped(&event.kind));
            let text = self.profile.intern_string(&escaped(&event.text));
            let time = MarkerTiming::Instant(timestamp(rounded(event.time_s * 1e9)));
            self.profile.add_marker(thread, time, EventMarker { name, text });
        }
    }
}

fn info(label: StringHandle, category: CategoryHandle) -> FrameInfo {
    FrameInfo {
        frame: Frame::Label(label),
        category_pair: CategoryPairHandle::from(category),
        flags: FrameFlags::empty(),
    }
}

/// An event of the run.
#[derive(Debug, Clone)]
struct EventMarker {
    name: StringHandle,
    text: StringHandle,
}

impl StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "vprof event";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}: {marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "What happened",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _field: u32) -> StringHandle {
        self.text
    }

    /// The schema has no such field.
    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

fn timestamp(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

/// Returns the mean time between two samples, ns.
fn interval_ns(rate_hz: f64) -> u64 {
    if rate_hz > 0.0 { rounded(1e9 / rate_hz) } else { 1_000_000 }
}
