//! Sums of the samples of a machine.

use std::collections::HashMap;

use profile::naming::is_nameless;
use profile::report::{Owner, RecordedSample, Recording};
use profile::rows::{FrameKind, Mode};

use super::keys::{LONGEST_NAME, LONGEST_PATH, bounded, split_smallest};
use super::rows::SampleRow;
use super::stacks::{self, StackTexts};
use super::{CommonColumns, OTHER};
use crate::names::symbol;

/// Names of a program and of one of its threads; all texts are bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ProgramNames {
    process: String,
    thread: String,
    exe: String,
    unit: String,
    container: String,
}

impl ProgramNames {
    fn new(recording: &Recording, owner: &Owner) -> Self {
        let Some(process) = recording.process_of(owner) else {
            return Self { process: bounded(&owner.name, LONGEST_NAME), ..Self::default() };
        };
        let text = |text: &Option<String>, longest| bounded(text.as_deref().unwrap_or_default(), longest);
        Self {
            process: bounded(&process.comm, LONGEST_NAME),
            thread: bounded(&owner.name, LONGEST_NAME),
            exe: text(&process.exe, LONGEST_PATH),
            unit: text(&process.unit, LONGEST_NAME),
            container: text(&process.container, LONGEST_NAME),
        }
    }
}

/// The place of the innermost frame, by indexes of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct InnermostPlace {
    function: u32,
    file: Option<u32>,
    line: Option<u32>,
    /// Of code without a name, which can be looked up later.
    address: Option<u64>,
}

/// Content that the samples of a row have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SampleKey {
    /// Index of the names.
    program: u32,
    mode: Mode,
    syscall: Option<u32>,
    interrupt: Option<u32>,
    place: Option<InnermostPlace>,
    stack: i64,
}

/// Samples with the same key.
#[derive(Debug, Clone)]
pub(super) struct SampleSum {
    /// `None`: samples beyond the limit of rows.
    key: Option<SampleKey>,
    mode: Mode,
    pub stack: i64,
    pub samples: u64,
    pub weight_ns: f64,
}

impl SampleSum {
    /// True for samples beyond the limit of rows.
    pub(super) fn is_other(&self) -> bool {
        self.key.is_none()
    }
}

/// Sums of a recording.
pub(super) struct SampleSums {
    programs: Vec<ProgramNames>,
    /// In the order of process and function.
    pub rows: Vec<SampleSum>,
}

impl SampleSums {
    /// Sums all samples in at most `most` rows, and one for each mode of what is beyond them.
    pub(super) fn new(recording: &Recording, texts: &mut StackTexts<'_>, most: usize) -> Self {
        let mut programs: Vec<ProgramNames> = Vec::new();
        let mut known: HashMap<ProgramNames, u32> = HashMap::new();
        let owners: Vec<u32> = recording
            .owners
            .iter()
            .map(|owner| {
                *known.entry(ProgramNames::new(recording, owner)).or_insert_with_key(|names| {
                    programs.push(names.clone());
                    u32::try_from(programs.len() - 1).unwrap_or(u32::MAX)
                })
            })
            .collect();
        let mut places: HashMap<SampleKey, usize> = HashMap::new();
        let mut rows: Vec<SampleSum> = Vec::new();
        for sample in &recording.samples {
            let key = SampleKey {
                program: owners.get(sample.owner as usize).copied().unwrap_or(u32::MAX),
                mode: sample.mode,
                syscall: sample.syscall,
                interrupt: sample.interrupt,
                place: place(recording, sample),
                stack: texts.number(sample.stack),
            };
            let place = *places.entry(key).or_insert_with(|| {
                let (mode, stack) = (key.mode, key.stack);
                rows.push(SampleSum { key: Some(key), mode, stack, samples: 0, weight_ns: 0.0 });
                rows.len() - 1
            });
            if let Some(sum) = rows.get_mut(place) {
                sum.samples += 1;
                sum.weight_ns += sample.weight_ns;
            }
        }
        let rest = split_smallest(&mut rows, most, |sum| sum.samples);
        rows.extend(others(&rest));
        let mut sums = Self { programs, rows: Vec::new() };
        // Each key is different, so the order is that of the content, and the same for each attempt.
        rows.sort_by(|a, b| sums.order(recording, a).cmp(&sums.order(recording, b)));
        round_times(&mut rows);
        sums.rows = rows;
        sums
    }

    fn order<'a>(&'a self, recording: &'a Recording, sum: &SampleSum) -> impl Ord + use<'a> {
        let key = sum.key;
        let program = key.and_then(|key| self.programs.get(key.program as usize));
        let function = key.and_then(|key| recording.functions.get(key.place?.function as usize));
        let names = (
            program.map_or(OTHER, |names| names.process.as_str()),
            function.map_or("", symbol),
            program.map_or("", |names| names.thread.as_str()),
        );
        let interrupted = key.map(|key| (key.syscall, key.interrupt, key.place));
        // Equal numbers next to each other take few bytes.
        (names, program, sum.mode.name(), interrupted, sum.samples, sum.stack)
    }

    /// Returns the row of a sum.
    pub(super) fn row<'a>(
        &'a self,
        recording: &Recording,
        sum: &SampleSum,
        common: &'a CommonColumns<'a>,
    ) -> SampleRow<'a> {
        let mut row = SampleRow {
            t: common.t,
            window_ns: common.window_ns,
            host: common.host,
            vm: common.vm,
            vm_name: &common.vm_name,
            vmm: &common.vmm,
            group_: common.group,
            kernel: &common.kernel,
            process: OTHER,
            exe: "",
            unit: "",
            container: "",
            thread: "",
            mode: sum.mode.name(),
            syscall: String::new(),
            interrupt: String::new(),
            function: OTHER.to_owned(),
            module: String::new(),
            build_id: String::new(),
            address: None,
            source: String::new(),
            line: None,
            stack: sum.stack,
            samples: sum.samples,
            weight_ns: sum.weight_ns,
            inclusion: common.inclusion,
            rate_hz: common.rate_hz,
        };
        let Some(key) = sum.key else { return row };
        if let Some(program) = self.programs.get(key.program as usize) {
            row.process = &program.process;
            row.thread = &program.thread;
            row.exe = &program.exe;
            row.unit = &program.unit;
            row.container = &program.container;
        }
        let syscall = key.syscall.and_then(|number| recording.syscalls.get(&number));
        row.syscall = syscall.map_or_else(String::new, |name| bounded(name, LONGEST_NAME));
        let interrupt = key.interrupt.and_then(|place| recording.interrupts.get(place as usize));
        row.interrupt = interrupt.map_or_else(String::new, |(_, name)| bounded(name, LONGEST_NAME));
        let Some(place) = key.place else { return row };
        if let Some(function) = recording.functions.get(place.function as usize) {
            row.function = bounded(symbol(function), LONGEST_NAME);
            row.module = bounded(function.module.as_deref().unwrap_or_default(), LONGEST_NAME);
        }
        let file = place.file.and_then(|file| recording.files.get(file as usize));
        let build_id = file.and_then(|file| file.build_id.as_deref());
        row.build_id = bounded(build_id.unwrap_or_default(), LONGEST_NAME);
        row.address = place.address.map(u64::cast_signed);
        if let Some(line) = place.line.and_then(|line| recording.lines.get(line as usize)) {
            row.source = bounded(&line.source, LONGEST_PATH);
            row.line = line.line.map(i64::from);
        }
        row
    }
}

/// Rounds times to multiples of 2^n ns, of which a sample's mean time has 32 to 64: exact times would be
/// a quarter of a file's bytes. What is rounded off is in the next row's time, so that sums of consecutive
/// rows, as of a program or of a function in it, are wrong by one multiple at most.
fn round_times(rows: &mut [SampleSum]) {
    let (samples, sum_ns) =
        rows.iter().fold((0, 0.0), |(samples, ns), row| (samples + row.samples, ns + row.weight_ns));
    let multiple_ns = (sum_ns / samples as f64 / 32.0).log2().floor().exp2();
    if !multiple_ns.is_normal() {
        return;
    }
    let mut rest_ns = 0.0;
    for row in rows {
        let exact_ns = row.weight_ns + rest_ns;
        row.weight_ns = ((exact_ns / multiple_ns).round() * multiple_ns).max(0.0);
        rest_ns = exact_ns - row.weight_ns;
    }
}

/// Returns one sum for each mode.
fn others(rest: &[SampleSum]) -> Vec<SampleSum> {
    let mut others: Vec<SampleSum> = Vec::new();
    for sum in rest {
        match others.iter_mut().find(|other| other.mode == sum.mode) {
            Some(other) => {
                other.samples += sum.samples;
                other.weight_ns += sum.weight_ns;
            }
            None => others.push(SampleSum { key: None, stack: stacks::other(), ..sum.clone() }),
        }
    }
    others
}

fn place(recording: &Recording, sample: &RecordedSample) -> Option<InnermostPlace> {
    let number = recording.frames_of(sample.stack).next()?;
    let frame = recording.frames.get(number as usize)?;
    let entry = recording.entries_of(number).first()?;
    let function = recording.functions.get(entry.function as usize)?;
    let module = function.module.as_deref();
    let name = Some(function.symbol.as_str()).filter(|name| !name.is_empty());
    let nameless = frame.kind != FrameKind::Reason
        && (name.is_none_or(|name| name.starts_with('[') || name.starts_with("0x"))
            || is_nameless(name, module, frame.address, frame.offset));
    Some(InnermostPlace {
        function: entry.function,
        file: frame.file,
        line: entry.line,
        address: nameless.then_some(frame.address),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(times_ns: &[f64]) -> Vec<SampleSum> {
        let row = |weight_ns: &f64| SampleSum {
            key: None,
            mode: Mode::User,
            stack: 0,
            samples: 1,
            weight_ns: *weight_ns,
        };
        times_ns.iter().map(row).collect()
    }

    #[test]
    fn rounded_times_are_few_and_sums_of_consecutive_rows_are_right() {
        // 19 Hz; vCPUs are in the guest for a part of their time that changes.
        let exact: Vec<f64> =
            (0..1_000).map(|n| 52_631_579.0 * (0.9 + f64::from(n * 7 % 101) / 1_000.0)).collect();
        let mut rounded = rows(&exact);
        round_times(&mut rounded);
        let multiple_ns = f64::from(1 << 20);
        let values: std::collections::BTreeSet<u64> =
            rounded.iter().map(|row| row.weight_ns.to_bits()).collect();
        assert!(
            values.len() < 8 && rounded.iter().all(|row| row.weight_ns % multiple_ns == 0.0),
            "{values:?}"
        );
        for (from, to) in [(0, 1_000), (0, 1), (17, 19), (400, 777)] {
            let sum: f64 = rounded[from..to].iter().map(|row| row.weight_ns).sum();
            let right: f64 = exact[from..to].iter().sum();
            assert!((sum - right).abs() <= multiple_ns, "{from}..{to}: {sum} {right}");
        }
    }

    #[test]
    fn rows_without_time_stay_without() {
        for times in [&[][..], &[0.0, 0.0], &[f64::NAN]] {
            let mut rounded = rows(times);
            round_times(&mut rounded);
            assert!(rounded.iter().zip(times).all(|(row, time)| row.weight_ns.to_bits() == time.to_bits()));
        }
        let mut rounded = rows(&[0.4, 0.0, 0.0, 100.0]);
        round_times(&mut rounded);
        assert!(rounded.iter().all(|row| row.weight_ns >= 0.0));
    }
}
