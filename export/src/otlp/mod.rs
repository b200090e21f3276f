//! OpenTelemetry profiles: messages of `opentelemetry/proto/profiles/v1development` (opentelemetry-proto
//! 1.10.0). Other versions number the fields of a sample otherwise.
//!
//! A message has one resource for each virtual machine, and in it two profiles of the same samples: their
//! time, and their number. Samples with the same stack and attributes are one. What stacks refer to is in
//! tables, as in `pprof`, whose indexes count from 1: here the first row of each table is empty.

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::decoded;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use display::clean::escaped;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesData, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use profile::report::Recording;
use profile::rows::FrameKind;
use prost::Message as _;
use sha2::{Digest, Sha256};

use crate::lake::{LakeProfile, LakeTotals, LakeVm, LakeWindow};
use crate::pprof::tables::{Code, Strings};
use crate::pprof::{signed, whole};
use crate::sums::{SampleKey, Sum, keyed};
use crate::{ExportError, Format, Request};

/// Size above which a message of the agent ends, bytes, by an estimate that is rather too large: a collector
/// may pass it on by gRPC, whose receivers take 4 MiB (grpc's `MaxRecvMsgSize`).
const MESSAGE_BYTES: usize = 3 << 20;
/// Largest message, bytes (protobuf.dev, "Total Size": 2 GiB).
const MOST_BYTES: usize = i32::MAX as usize;
/// Unit of times.
const NANOSECONDS: &str = "nanoseconds";

/// Attributes of a resource, by their keys.
type Attributes = BTreeMap<String, Value>;

/// Writes the format.
pub(crate) fn write(recording: &Recording, _: &Request, out: &mut dyn Write) -> Result<(), ExportError> {
    let machine = |vm: Option<&str>| {
        let vcpu = recording.vcpus.iter().find(|vcpu| vm.is_some() && vcpu.vm.as_deref() == vm);
        let own = recording.about.meta.get("hostname").cloned();
        let host = vcpu.map_or(own, |vcpu| vcpu.host.clone()).unwrap_or_default();
        let mut attributes = Attributes::new();
        put(&mut attributes, "service.name", vm.unwrap_or("vprof"));
        put(&mut attributes, "host.name", &host);
        if let Some(vm) = vm {
            put(&mut attributes, "vm.name", vm);
        }
        attributes
    };
    let mut message = MessageBuilder::new(recording, 0);
    for (key, sum) in keyed(recording) {
        message.add(key, sum);
    }
    let message = message.finish(&machine);
    if message.encoded_len() > MOST_BYTES {
        let reason = "it would be longer than 2 GiB; choose a part of it".to_owned();
        return Err(ExportError::TooMuch { format: Format::Otlp, reason });
    }
    Ok(out.write_all(&message.encode_to_vec())?)
}

/// Passes the profile of a machine to `send` as encoded messages of at most about 3 MiB each, which are
/// bodies of requests as well. Returns its sums.
///
/// # Errors
/// Those of `send`.
pub fn write_messages(
    profile: &LakeProfile,
    (window, vm): (&LakeWindow, &LakeVm),
    send: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<LakeTotals> {
    let recording = &profile.recording;
    let attributes = machine_attributes(recording, window, vm);
    let machine = |_: Option<&str>| attributes.clone();
    let mut totals = LakeTotals { lost: profile.lost(), ..LakeTotals::default() };
    let mut message = MessageBuilder::new(recording, 0);
    for (key, sum) in keyed(recording) {
        if message.bytes() > MESSAGE_BYTES {
            let part = message.part + 1;
            let full = std::mem::replace(&mut message, MessageBuilder::new(recording, part));
            send(&full.finish(&machine).encode_to_vec())?;
        }
        message.add(key, sum);
        totals.samples += sum.samples;
        totals.weight_ns += sum.ns;
    }
    if totals.samples > 0 {
        send(&message.finish(&machine).encode_to_vec())?;
    }
    Ok(totals)
}

/// Returns the attributes of a machine of the agent. Labels have the last word.
fn machine_attributes(recording: &Recording, window: &LakeWindow, vm: &LakeVm) -> Attributes {
    let mut attributes = Attributes::new();
    let kernel = recording.about.kernel.as_deref().unwrap_or_default();
    for (key, text) in [
        ("service.name", vm.name.as_str()),
        ("host.name", &window.host),
        ("vm.id", &vm.id),
        ("vm.name", &vm.name),
        ("vm.vmm", &vm.vmm),
        ("vm.uuid", &vm.uuid),
        ("k8s.pod.uid", &vm.pod),
        ("container.id", &vm.container),
        ("os.type", "linux"),
        ("os.version", kernel),
    ] {
        put(&mut attributes, key, text);
    }
    attributes.insert("vprof.inclusion".to_owned(), Value::DoubleValue(window.inclusion));
    for label in vm.group.split(',') {
        if let Some((key, value)) = label.split_once('=') {
            put(&mut attributes, key, value);
        }
    }
    attributes
}

/// Adds an attribute, unless it is empty.
fn put(attributes: &mut Attributes, key: &str, text: &str) {
    if !text.is_empty() {
        attributes.insert(escaped(key).into_owned(), Value::StringValue(escaped(text).into_owned()));
    }
}

/// Value of an attribute of a sample, a location or a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TableValue {
    Text(String),
    Number(i64),
}

/// A message in the making.
struct MessageBuilder<'a> {
    recording: &'a Recording,
    /// Number of the message among those of the recording.
    part: u32,
    strings: Strings,
    code: Code<'a>,
    /// Kinds of the locations' frames, without the first, empty row.
    kinds: Vec<FrameKind>,
    attributes: Vec<KeyValueAndUnit>,
    known_attributes: HashMap<(i64, TableValue), i32>,
    stacks: Vec<Stack>,
    known_stacks: HashMap<(u32, Option<u32>), i32>,
    /// By the name of the machine: samples with their sums.
    samples: BTreeMap<Option<&'a str>, Vec<(Sample, Sum)>>,
    /// Size of stacks, attributes and samples, bytes.
    bytes: usize,
}

impl<'a> MessageBuilder<'a> {
    fn new(recording: &'a Recording, part: u32) -> Self {
        Self {
            recording,
            part,
            strings: Strings::default(),
            code: Code::new(recording),
            kinds: Vec::new(),
            attributes: vec![KeyValueAndUnit::default()],
            known_attributes: HashMap::new(),
            stacks: vec![Stack::default()],
            known_stacks: HashMap::new(),
            samples: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Returns the estimated size: a number of a table takes 4 bytes, an address 10, a message 4 more.
    fn bytes(&self) -> usize {
        self.bytes + self.strings.bytes + 8 * self.strings.list.len() + 64 * self.kinds.len()
    }

    fn add(&mut self, key: SampleKey, sum: Sum) {
        let stack_index = self.stack(key);
        let attribute_indices = self.sample_attributes(key);
        // In both profiles.
        self.bytes += 2 * (24 + 4 * attribute_indices.len());
        let vm = self.recording.vcpu(key.vcpu).and_then(|vcpu| vcpu.vm.as_deref());
        let sample = Sample { stack_index, attribute_indices, ..Sample::default() };
        self.samples.entry(vm).or_default().push((sample, sum));
    }

    fn stack(&mut self, key: SampleKey) -> i32 {
        if let Some(&known) = self.known_stacks.get(&(key.stack, key.host_stack)) {
            return known;
        }
        let mut locations = Vec::new();
        for place in key.frames(self.recording) {
            let id = self.code.location(place, &mut self.strings);
            if id > self.kinds.len() as u64 {
                let kind =
                    self.recording.frames.get(place as usize).map_or(FrameKind::Reason, |frame| frame.kind);
                self.kinds.push(kind);
            }
            locations.push(index(id));
        }
        self.bytes += 8 + 4 * locations.len();
        let place = index(self.stacks.len() as u64);
        self.stacks.push(Stack { location_indices: locations });
        self.known_stacks.insert((key.stack, key.host_stack), place);
        place
    }

    fn attribute(&mut self, key: &str, value: TableValue) -> i32 {
        let key = self.strings.place(key);
        if let Some(&known) = self.known_attributes.get(&(key, value.clone())) {
            return known;
        }
        let any = match &value {
            TableValue::Text(text) => Value::StringValue(text.clone()),
            TableValue::Number(number) => Value::IntValue(*number),
        };
        self.bytes += 24 + if let TableValue::Text(text) = &value { text.len() } else { 0 };
        let place = index(self.attributes.len() as u64);
        let value_of = Some(AnyValue { value: Some(any) });
        self.attributes.push(KeyValueAndUnit {
            key_strindex: index(key.cast_unsigned()),
            value: value_of,
            unit_strindex: 0,
        });
        self.known_attributes.insert((key, value), place);
        place
    }

    fn sample_attributes(&mut self, key: SampleKey) -> Vec<i32> {
        let recording = self.recording;
        let vcpu = recording.vcpu(key.vcpu).map_or(key.vcpu, |vcpu| vcpu.number);
        let mut numbers = vec![("cpu.logical_number", i64::from(vcpu))];
        let mut texts = vec![("cpu.mode", key.mode.to_owned())];
        if let Some(owner) = recording.owners.get(key.owner as usize) {
            match recording.process_of(owner) {
                Some(process) => {
                    numbers.push(("process.pid", process.pid.into()));
                    texts.push(("process.executable.name", process.comm.clone()));
                    texts.push(("thread.name", owner.name.clone()));
                    for (key, text) in [
                        ("process.executable.path", &process.exe),
                        ("container.id", &process.container),
                        ("vprof.unit", &process.unit),
                    ] {
                        texts.extend(text.clone().map(|text| (key, text)));
                    }
                }
                None => texts.push(("process.executable.name", owner.name.clone())),
            }
            numbers.extend(owner.tid.map(|tid| ("thread.id", tid.into())));
        }
        if let Some(number) = key.syscall {
            let name = recording.syscalls.get(&number).cloned();
            texts.push(("vprof.syscall", name.unwrap_or_else(|| number.to_string())));
        }
        if let Some((_, name)) = key.interrupt.and_then(|place| recording.interrupts.get(place as usize)) {
            texts.push(("vprof.interrupt", name.clone()));
        }
        let mut places = Vec::with_capacity(texts.len() + numbers.len());
        for (key, text) in texts {
            places.push(self.attribute(key, TableValue::Text(escaped(&text).into_owned())));
        }
        for (key, number) in numbers {
            places.push(self.attribute(key, TableValue::Number(number)));
        }
        places
    }

    /// Ends the message. `machine` returns the attributes of a machine by its name.
    fn finish(mut self, machine: &dyn Fn(Option<&str>) -> Attributes) -> ProfilesData {
        let kernel = self.attribute("profile.frame.type", TableValue::Text("kernel".to_owned()));
        let native = self.attribute("profile.frame.type", TableValue::Text("native".to_owned()));
        let cpu = ValueType {
            type_strindex: index(self.strings.place("cpu").cast_unsigned()),
            unit_strindex: index(self.strings.place(NANOSECONDS).cast_unsigned()),
        };
        let count = ValueType {
            type_strindex: index(self.strings.place("samples").cast_unsigned()),
            unit_strindex: index(self.strings.place("count").cast_unsigned()),
        };
        let resource_profiles = self
            .samples
            .iter()
            .map(|(vm, samples)| self.machine(*vm, samples, [cpu, count], machine(*vm)))
            .collect();
        let code = std::mem::replace(&mut self.code, Code::new(self.recording));
        let (mappings, locations, functions) = code.finish(&mut self.strings);
        let mut mapping_table = vec![Mapping::default()];
        for mapping in mappings {
            let build_id =
                usize::try_from(mapping.build_id).ok().and_then(|place| self.strings.list.get(place));
            let build_id = build_id.filter(|text| !text.is_empty()).cloned();
            let build_id = build_id
                .map(|text| self.attribute("process.executable.build_id.gnu", TableValue::Text(text)));
            mapping_table.push(Mapping {
                memory_start: mapping.memory_start,
                memory_limit: mapping.memory_limit,
                file_offset: 0,
                filename_strindex: index(mapping.filename.cast_unsigned()),
                attribute_indices: build_id.into_iter().collect(),
            });
        }
        let mut location_table = vec![Location::default()];
        for (location, kind) in locations.into_iter().zip(&self.kinds) {
            let lines = location.line.iter().map(|line| Line {
                function_index: index(line.function_id),
                line: line.line,
                column: 0,
            });
            let attribute_indices = match kind {
                FrameKind::Kernel => vec![kernel],
                FrameKind::User => vec![native],
                // Its language is not recorded.
                FrameKind::Managed | FrameKind::Reason => Vec::new(),
            };
            location_table.push(Location {
                mapping_index: index(location.mapping_id),
                address: location.address,
                lines: lines.collect(),
                attribute_indices,
            });
        }
        let functions = functions.into_iter().map(|function| Function {
            name_strindex: index(function.name.cast_unsigned()),
            system_name_strindex: index(function.system_name.cast_unsigned()),
            filename_strindex: index(function.filename.cast_unsigned()),
            start_line: 0,
        });
        let dictionary = ProfilesDictionary {
            mapping_table,
            location_table,
            function_table: std::iter::once(Function::default()).chain(functions).collect(),
            link_table: vec![Link::default()],
            string_table: self.strings.list,
            attribute_table: self.attributes,
            stack_table: self.stacks,
        };
        ProfilesData { resource_profiles, dictionary: Some(dictionary) }
    }

    /// Returns the two profiles of a machine.
    fn machine(
        &self,
        vm: Option<&str>,
        samples: &[(Sample, Sum)],
        [cpu, count]: [ValueType; 2],
        attributes: Attributes,
    ) -> ResourceProfiles {
        let about = &self.recording.about;
        let profile = |kind: &str, sample_type: ValueType, value: fn(&Sum) -> i64| Profile {
            sample_type: Some(sample_type),
            samples: samples
                .iter()
                .map(|(sample, sum)| Sample { values: vec![value(sum)], ..sample.clone() })
                .collect(),
            time_unix_nano: about.started_unix_ns,
            duration_nano: about.duration_ns,
            period_type: Some(cpu),
            period: if about.rate_hz > 0.0 { whole(1e9 / about.rate_hz) } else { 0 },
            profile_id: self.profile_id(vm, kind),
            ..Profile::default()
        };
        let profiles = vec![
            profile("cpu", cpu, |sum| whole(sum.ns)),
            profile("samples", count, |sum| signed(sum.samples)),
        ];
        let scope = InstrumentationScope {
            name: "vprof".to_owned(),
            version: escaped(&about.version).into_owned(),
            ..InstrumentationScope::default()
        };
        let attributes = attributes.into_iter().map(|(key, value)| KeyValue {
            key,
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        });
        ResourceProfiles {
            resource: Some(Resource { attributes: attributes.collect(), ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    }

    /// Returns an id that is the same whenever this part of the recording is sent, so that a receiver can
    /// know a repetition.
    fn profile_id(&self, vm: Option<&str>, kind: &str) -> Vec<u8> {
        let about = &self.recording.about;
        let meta = |key: &str| about.meta.get(key).map_or("", String::as_str);
        let (start, part) = (about.started_unix_ns.to_string(), self.part.to_string());
        let mut digest = Sha256::new();
        for text in [meta("hostname"), meta("seed"), &start, vm.unwrap_or_default(), &part, kind] {
            digest.update(text.as_bytes());
            digest.update([0]);
        }
        digest.finalize().iter().take(16).copied().collect()
    }
}

/// Returns a number as an index of a table. A message has at most 2 GiB, and so fewer rows.
fn index(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(0)
}
