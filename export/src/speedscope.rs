//! speedscope's own file format (speedscope.app), as JSON.
//!
//! There is a profile per vCPU with its samples in the order of time. Layout: `FileFormat` in
//! src/lib/file-format-spec.ts of speedscope 1.25, and its JSON schema at the address [`SCHEMA`].

use std::collections::HashMap;
use std::io::Write;

use display::clean::escaped;
use profile::report::{RecordedSample, Recording};
use serde::Serialize;

use crate::names::{self, symbol};
use crate::sums::StackParts;
use crate::{Count, ExportError, Request, Root};

/// Address that the format's readers expect.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// The whole file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: u32,
    shared: Shared,
    profiles: Vec<SampledProfile>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

/// A function. Its lines are left out: speedscope takes those with another line for another function.
#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Samples of a vCPU.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampledProfile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: f64,
    /// Sum of the weights.
    end_value: f64,
    /// Indexes of the frames, outermost first.
    samples: Vec<Vec<usize>>,
    weights: Vec<f64>,
}

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut stacks = Stacks::new(recording, request.root);
    let mut of_vcpu: HashMap<u16, Vec<&RecordedSample>> = HashMap::new();
    for sample in &recording.samples {
        of_vcpu.entry(sample.vcpu).or_default().push(sample);
    }
    let mut profiles = Vec::new();
    for vcpu in &recording.vcpus {
        let mut samples = of_vcpu.remove(&vcpu.id).unwrap_or_default();
        samples.sort_by_key(|sample| sample.time_ns);
        profiles.push(sampled(vcpu.name(), &samples, request.count, &mut stacks));
    }
    let file = File {
        schema: SCHEMA,
        exporter: escaped(&format!("vprof {}", recording.about.version)).into_owned(),
        name: escaped(&request.title).into_owned(),
        active_profile_index: 0,
        shared: Shared { frames: stacks.frames },
        profiles,
    };
    serde_json::to_writer(out, &file).map_err(|error| ExportError::Write(error.into()))
}

/// Returns the profile of a vCPU from its samples in the order of time. Neighbours with equal stacks are one.
fn sampled(name: String, of: &[&RecordedSample], count: Count, stacks: &mut Stacks<'_>) -> SampledProfile {
    let (mut samples, mut weights): (Vec<Vec<usize>>, Vec<f64>) = (Vec::new(), Vec::new());
    for sample in of {
        let weight = match count {
            Count::Time => sample.weight_ns,
            Count::Samples => 1.0,
        };
        let stack = stacks.stack(sample);
        match (samples.last(), weights.last_mut()) {
            (Some(last), Some(sum)) if *last == stack => *sum += weight,
            _ => {
                samples.push(stack);
                weights.push(weight);
            }
        }
    }
    let unit = match count {
        Count::Time => "nanoseconds",
        Count::Samples => "none",
    };
    SampledProfile {
        r#type: "sampled",
        name: escaped(&name).into_owned(),
        unit,
        start_value: 0.0,
        end_value: weights.iter().sum(),
        samples,
        weights,
    }
}

/// The frames of all stacks.
struct Stacks<'a> {
    recording: &'a Recording,
    root: Root,
    frames: Vec<Frame>,
    /// Their indexes, by function.
    functions: HashMap<u32, usize>,
    /// By name.
    roots: HashMap<String, usize>,
}

impl<'a> Stacks<'a> {
    fn new(recording: &'a Recording, root: Root) -> Self {
        Self { recording, root, frames: Vec::new(), functions: HashMap::new(), roots: HashMap::new() }
    }

    /// Returns the stack of a sample, outermost first.
    fn stack(&mut self, sample: &RecordedSample) -> Vec<usize> {
        let recording = self.recording;
        let parts = match self.root {
            Root::Vcpu => StackParts::new(recording, sample),
            Root::Process | Root::Thread | Root::None => StackParts::only(sample.stack),
        };
        let owner = recording.owners.get(sample.owner as usize);
        let roots = owner.map(|owner| names::roots(recording, owner, sample.vcpu, self.root));
        // The profile has the vCPU's name.
        let roots = roots.into_iter().flatten().skip(usize::from(self.root == Root::Vcpu));
        let mut stack = Vec::new();
        self.append(parts.host, &mut stack);
        stack.extend(roots.map(|name| self.root_frame(name)));
        self.append(parts.guest, &mut stack);
        stack
    }

    /// Returns the index of the frame with the name of a root.
    fn root_frame(&mut self, name: String) -> usize {
        let Self { frames, roots, .. } = self;
        *roots.entry(name).or_insert_with_key(|name| {
            frames.push(Frame { name: escaped(name).into_owned(), file: None });
            frames.len() - 1
        })
    }

    /// Returns the index of the frame of a function.
    fn function_frame(&mut self, function: u32) -> Option<usize> {
        let Self { recording, frames, functions, .. } = self;
        let named = recording.functions.get(function as usize)?;
        Some(*functions.entry(function).or_insert_with(|| {
            let file = named.module.as_deref().map(|module| escaped(module).into_owned());
            frames.push(Frame { name: escaped(symbol(named)).into_owned(), file });
            frames.len() - 1
        }))
    }

    /// Appends the functions of a stack, outermost first.
    fn append(&mut self, stack: Option<u32>, into: &mut Vec<usize>) {
        let recording = self.recording;
        for entry in stack.into_iter().flat_map(|stack| recording.functions_of(stack)) {
            into.extend(self.function_frame(entry.function));
        }
    }
}
