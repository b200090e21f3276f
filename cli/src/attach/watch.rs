//! Output of `vprof attach --watch`: each report as text, and with `--json` as a line (docs/json.md).

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use display::clean::escaped;
use display::units;
use profile::live::{SharedTables, StackFunction, Tables};
use profile::rows::{Batch, Charged, SampleRow};
use profile::watch::{
    Alert, AlertStep, BlockedTask, WatchCondition, WatchReport, WatchedTask, unjudged_sentence,
};
use profile::{Sink, SinkError};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

/// Functions of a stack in the text, at most.
const SHOWN_FUNCTIONS: usize = 30;

/// Form of the output.
#[derive(Debug, Clone, Copy)]
pub struct WatchOutput {
    /// Lines of JSON on standard output; stacks are in these alone.
    pub json: bool,
    /// No sentences besides the lines of JSON.
    pub quiet: bool,
}

/// Sink that shows reports of the watch, and passes rows on.
pub struct WatchSink {
    to: Box<dyn Sink>,
    vm: String,
    tables: SharedTables,
    notes: UnboundedSender<String>,
    output: WatchOutput,
}

impl WatchSink {
    /// Creates a sink. `vm` is the machine's name, escaped. `tables` have the rows that reports refer to;
    /// `notes` takes text for the terminal.
    pub fn new(
        to: Box<dyn Sink>,
        vm: String,
        tables: SharedTables,
        notes: UnboundedSender<String>,
        output: WatchOutput,
    ) -> Self {
        Self { to, vm, tables, notes, output }
    }
}

impl Sink for WatchSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.to.write(batch)
    }

    fn report(&mut self, report: &WatchReport) -> Result<(), SinkError> {
        if !(self.output.json && self.output.quiet) {
            let text = text(report, &self.tables.lock(), !self.output.json);
            // Fails once nobody listens.
            let _ended = self.notes.send(text);
        }
        if self.output.json {
            let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
            let line = serde_json::to_string(&line(report, &self.tables.lock(), &self.vm, unix_s));
            let line = line.map_err(|error| SinkError(format!("cannot write a line of --watch: {error}")))?;
            // Whole and at once: a reader acts on it.
            let mut stdout = io::stdout().lock();
            let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
            written.map_err(|error| SinkError(format!("cannot write a line of --watch: {error}")))?;
        }
        self.to.report(report)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.to.finish()
    }
}

/// A line of `--watch --json`.
#[derive(Debug, Serialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: LineKind,
    vm: &'a str,
    unix_s: f64,
    conditions: Vec<WatchCondition>,
    sentence: String,
    alert: Option<AlertJson>,
}

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum LineKind {
    Begin,
    End,
    Unjudged,
}

#[derive(Debug, Serialize)]
struct AlertJson {
    number: u32,
    time_s: f64,
    since_s: f64,
    vcpu: Option<u8>,
    task: Option<TaskJson>,
    vcpus: Vec<VcpuJson>,
    blocked: Vec<BlockedJson>,
}

#[derive(Debug, Serialize)]
struct VcpuJson {
    vcpu: u8,
    time_s: f64,
    mode: &'static str,
    interrupts: Option<bool>,
    task: Option<TaskJson>,
    stack: Vec<StackFunction>,
}

#[derive(Debug, Serialize)]
struct BlockedJson {
    task: TaskJson,
    blocked_s: f64,
    wait: &'static str,
    stack: Vec<StackFunction>,
}

/// A task of the guest, by the rows so far.
#[derive(Debug, Serialize)]
struct TaskJson {
    comm: String,
    pid: i32,
    instance: u32,
    tid: i32,
    kernel_thread: bool,
}

impl TaskJson {
    fn new(WatchedTask { instance, tid }: WatchedTask, tables: &Tables) -> Self {
        match tables.instance_row(instance) {
            Some(row) => Self {
                comm: row.comm.clone(),
                pid: row.pid,
                instance: row.number,
                tid,
                kernel_thread: row.kernel_thread,
            },
            None => {
                let comm = Charged::Unknown.name().to_owned();
                Self { comm, pid: 0, instance: 0, tid, kernel_thread: false }
            }
        }
    }

    fn of_sample(sample: &SampleRow, tables: &Tables) -> Option<Self> {
        let (instance, tid) = sample.instance.zip(sample.tid)?;
        Some(Self::new(WatchedTask { instance, tid }, tables))
    }
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

/// Returns the line of a report.
fn line<'a>(report: &WatchReport, tables: &Tables, vm: &'a str, unix_s: f64) -> WatchLine<'a> {
    let alert = match report {
        WatchReport::Alert(alert) => alert,
        WatchReport::Unjudged(conditions, reason) => {
            let (conditions, sentence) = (conditions.clone(), unjudged_sentence(conditions, reason));
            return WatchLine { kind: LineKind::Unjudged, vm, unix_s, conditions, sentence, alert: None };
        }
    };
    let vcpu = |sample: &SampleRow| VcpuJson {
        vcpu: sample.vcpu,
        time_s: seconds(sample.time_ns),
        mode: sample.mode.name(),
        interrupts: sample.interrupts_on,
        task: TaskJson::of_sample(sample, tables),
        stack: tables.stack(sample.frame, sample.stack.unwrap_or(0)),
    };
    let blocked = |blocked: &BlockedTask| BlockedJson {
        task: TaskJson::new(blocked.task, tables),
        blocked_s: seconds(blocked.blocked_ns),
        wait: blocked.wait_reason.name(),
        stack: tables.stack(0, blocked.stack),
    };
    let kind = match alert.step {
        AlertStep::Begin => LineKind::Begin,
        AlertStep::End => LineKind::End,
    };
    let found = AlertJson {
        number: alert.number,
        time_s: seconds(alert.time_ns),
        since_s: seconds(alert.since_ns),
        vcpu: alert.vcpu,
        task: alert.task.map(|task| TaskJson::new(task, tables)),
        vcpus: alert.vcpus.iter().map(vcpu).collect(),
        blocked: alert.blocked.iter().map(blocked).collect(),
    };
    let (conditions, sentence) = (vec![alert.condition], alert.sentence.clone());
    WatchLine { kind, vm, unix_s, conditions, sentence, alert: Some(found) }
}

/// Returns the text of a report: a sentence, and on request the stacks.
fn text(report: &WatchReport, tables: &Tables, stacks: bool) -> String {
    let alert = match report {
        WatchReport::Alert(alert) => alert,
        WatchReport::Unjudged(conditions, reason) => {
            return escaped(&unjudged_sentence(conditions, reason)).into_owned();
        }
    };
    let sentence = escaped(&alert.sentence);
    let mut text = match alert.step {
        AlertStep::Begin => format!("{}: {sentence}", alert.condition),
        AlertStep::End => sentence.into_owned(),
    };
    if stacks {
        add_stacks(&mut text, alert, tables);
    }
    text
}

fn add_stacks(text: &mut String, alert: &Alert, tables: &Tables) {
    let name = |task: &TaskJson| format!("{} ({})", escaped(&task.comm), task.tid);
    for sample in &alert.vcpus {
        let task =
            TaskJson::of_sample(sample, tables).map_or_else(String::new, |task| format!(", {}", name(&task)));
        let interrupts = if sample.interrupts_on == Some(false) { ", interrupts off" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "\n  vCPU {}: {}{interrupts}{task}", sample.vcpu, sample.mode.name());
        add_functions(text, &tables.stack(sample.frame, sample.stack.unwrap_or(0)));
    }
    for blocked in &alert.blocked {
        let task = name(&TaskJson::new(blocked.task, tables));
        let slept = units::seconds(seconds(blocked.blocked_ns));
        let _ = write!(text, "\n  blocked for {slept}: {task}");
        add_functions(text, &tables.stack(0, blocked.stack));
    }
}

fn add_functions(text: &mut String, stack: &[StackFunction]) {
    for StackFunction { symbol, module } in stack.iter().take(SHOWN_FUNCTIONS) {
        let module = module.as_deref().map_or_else(String::new, |module| format!(" [{}]", escaped(module)));
        let _ = write!(text, "\n    {}{module}", escaped(symbol));
    }
    if stack.len() > SHOWN_FUNCTIONS {
        let _ = write!(text, "\n    {} more", units::count((stack.len() - SHOWN_FUNCTIONS) as u64));
    }
}

#[cfg(test)]
mod tests {
    use profile::rows::{FrameKind, FrameRow, InstanceRow, Mode, StackRow, WaitReason};

    use super::*;

    /// Tables with a process `dd` in `spin` called by `write`.
    fn tables() -> Tables {
        let frame = |id, symbol: &str, module: Option<&str>| FrameRow {
            id,
            kind: FrameKind::Kernel,
            symbol: Some(symbol.to_owned()),
            module: module.map(str::to_owned),
            ..FrameRow::default()
        };
        let batch = Batch {
            frames: vec![frame(1, "spin", Some("evil\x1b")), frame(2, "write", None)],
            stacks: vec![
                StackRow { id: 1, parent: None, frame: 2 },
                StackRow { id: 2, parent: Some(1), frame: 1 },
            ],
            instances: vec![InstanceRow { id: 3, pid: 40, comm: "dd".to_owned(), ..InstanceRow::default() }],
            ..Batch::default()
        };
        let mut tables = Tables::default();
        tables.add(&batch);
        tables
    }

    fn alert(step: AlertStep) -> WatchReport {
        let sample = SampleRow {
            vcpu: 1,
            mode: Mode::Kernel,
            frame: 1,
            stack: Some(2),
            instance: Some(3),
            tid: Some(41),
            interrupts_on: Some(false),
            ..SampleRow::default()
        };
        let task = WatchedTask { instance: 3, tid: 42 };
        let blocked =
            BlockedTask { task, blocked_ns: 2_500_000_000, wait_reason: WaitReason::None, stack: 1 };
        let begins = step == AlertStep::Begin;
        WatchReport::Alert(Box::new(Alert {
            number: 7,
            step,
            condition: WatchCondition::IrqsOff,
            since_ns: 1_000_000_000,
            time_ns: 6_000_000_000,
            vcpu: Some(1),
            task: None,
            sentence: "vCPU 1 has had interrupts off for 5.00 s".to_owned(),
            vcpus: if begins { vec![sample] } else { Vec::new() },
            blocked: if begins { vec![blocked] } else { Vec::new() },
        }))
    }

    #[test]
    fn a_stall_is_a_sentence_and_stacks() {
        let tables = tables();
        assert_eq!(
            text(&alert(AlertStep::Begin), &tables, true),
            "irqs-off: vCPU 1 has had interrupts off for 5.00 s\n  vCPU 1: kernel, interrupts off, dd (41)\n    \
             spin [evil\\x1b]\n    write\n  blocked for 2.50 s: dd (42)\n    write"
        );
        assert_eq!(text(&alert(AlertStep::End), &tables, true), "vCPU 1 has had interrupts off for 5.00 s");
        let unjudged = WatchReport::Unjudged(vec![WatchCondition::Oom], "no BTF".to_owned());
        assert_eq!(text(&unjudged, &tables, true), "the watch cannot judge oom: no BTF");
    }

    /// Names of all members of an object, and of those in it.
    fn members(value: &serde_json::Value) -> Vec<String> {
        match value {
            serde_json::Value::Array(list) => list.iter().flat_map(members).collect(),
            serde_json::Value::Object(object) => {
                object.iter().flat_map(|(key, value)| [vec![key.clone()], members(value)].concat()).collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_member_of_a_line_is_documented() {
        let tables = tables();
        let object = serde_json::to_value(line(&alert(AlertStep::Begin), &tables, "vm", 2.0)).unwrap();
        assert_eq!((&object["type"], &object["conditions"][0]), (&"begin".into(), &"irqs-off".into()));
        assert_eq!(object["alert"]["vcpus"][0]["stack"][0]["symbol"], "spin");
        assert_eq!(object["alert"]["blocked"][0]["task"]["pid"], 40);
        let end = serde_json::to_value(line(&alert(AlertStep::End), &tables, "vm", 2.0)).unwrap();
        assert_eq!((&end["type"], &end["alert"]["number"]), (&"end".into(), &7.into()));
        let document = include_str!("../../../docs/json.md");
        let (_, after) = document.split_once("## `vprof attach --watch --json`").expect("a section");
        let section = after.split_once("\n## ").map_or(after, |(section, _)| section);
        for key in members(&object) {
            assert!(section.contains(&format!("{key}: ")), "{key}");
        }
    }
}
