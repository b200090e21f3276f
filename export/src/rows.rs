//! A sample as a row of a table.

use profile::report::{RecordedSample, Recording};
use profile::rows::FrameKind;

use crate::names::symbol;

/// Names of the columns.
pub(crate) const COLUMNS: [&str; 20] = [
    "time_ns",
    "weight_ns",
    "vcpu",
    "mode",
    "process",
    "instance",
    "pid",
    "tid",
    "thread",
    "function",
    "module",
    "kind",
    "address",
    "source",
    "line",
    "syscall",
    "interrupt",
    "vm",
    "host",
    "stack",
];

/// Columns of a sample, except the last. Texts that do not apply are empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub time_ns: u64,
    pub weight_ns: f64,
    /// Number in its virtual machine.
    pub vcpu: u16,
    pub mode: &'static str,
    pub process: &'a str,
    pub instance: Option<i64>,
    pub pid: Option<i64>,
    pub tid: Option<i64>,
    pub thread: &'a str,
    pub function: &'a str,
    pub module: &'a str,
    pub kind: Option<FrameKind>,
    pub address: Option<u64>,
    pub source: &'a str,
    pub line: Option<i64>,
    pub syscall: &'a str,
    pub interrupt: &'a str,
    /// Virtual machine and host, in a merged profile.
    pub vm: &'a str,
    pub host: &'a str,
}

impl<'a> Row<'a> {
    pub(crate) fn new(recording: &'a Recording, sample: &RecordedSample) -> Self {
        let vcpu = recording.vcpu(sample.vcpu);
        let owner = recording.owners.get(sample.owner as usize);
        let process = owner.and_then(|owner| recording.process_of(owner));
        let place = recording.frames_of(sample.stack).next();
        let frame = place.and_then(|place| recording.frames.get(place as usize));
        let entry = place.and_then(|place| recording.entries_of(place).first());
        let function = entry.and_then(|entry| recording.functions.get(entry.function as usize));
        let at = entry.and_then(|entry| recording.lines.get(entry.line? as usize));
        let interrupt = sample.interrupt.and_then(|place| recording.interrupts.get(place as usize));
        let name = owner.map_or("", |owner| owner.name.as_str());
        Self {
            time_ns: sample.time_ns,
            weight_ns: sample.weight_ns,
            vcpu: vcpu.map_or(sample.vcpu, |vcpu| vcpu.number),
            mode: sample.mode.name(),
            process: process.map_or(name, |process| process.comm.as_str()),
            instance: process.map(|process| process.number.into()),
            pid: process.map(|process| process.pid.into()),
            tid: owner.and_then(|owner| owner.tid).map(i64::from),
            thread: process.map_or("", |_| name),
            function: function.map_or("", symbol),
            module: function.and_then(|function| function.module.as_deref()).unwrap_or(""),
            kind: function.map(|function| function.kind),
            address: frame.map(|frame| frame.address),
            source: at.map_or("", |at| at.source.as_str()),
            line: at.and_then(|at| at.line).map(i64::from),
            syscall: sample
                .syscall
                .and_then(|number| recording.syscalls.get(&number))
                .map_or("", String::as_str),
            interrupt: interrupt.map_or("", |(_, name)| name.as_str()),
            vm: vcpu.and_then(|vcpu| vcpu.vm.as_deref()).unwrap_or(""),
            host: vcpu.and_then(|vcpu| vcpu.host.as_deref()).unwrap_or(""),
        }
    }
}
