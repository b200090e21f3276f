//! The lake: profiles of the machines of a host over a window of time, as one Parquet file for each of five
//! tables, for SQL engines that read thousands of such files together.
//!
//! ```text
//! v1/samples/day=2026-11-23/hour=09/HOST-20261123T09-0.parquet
//! v1/stacks/day=2026-11-23/hour=09/HOST-20261123T09-0.parquet    and vcpus, tasks, vms
//! ```
//!
//! A file's name depends on host and window alone, so that writing it again replaces it. A stack is in one
//! file of each host and day ([`KnownStacks`]). docs/fleet.md has the columns. All engines agree on the four
//! types in use: 64-bit numbers, fractions, texts, times in UTC.
//!
//! Profiles are read one after the other, each in memory as a [`Recording`]. What a hostile guest can make up
//! is bounded: lengths of names and stacks, and rows per machine; what is beyond that is in rows named
//! [`OTHER`].

mod keys;
mod known;
mod rows;
mod samples;
mod stacks;
mod tasks;
#[cfg(test)]
mod tests;
mod window;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use profile::Profile;
use profile::report::{Filter, MemoryReport, Recording, RecordingRequest, ReportError};
use profile::stat::Stat;
use profile::store::Value;
use serde::{Deserialize, Serialize};

use crate::ExportError;
use crate::parquet::table::{TableFacts, TableRow, TableWriter, UnixTime};
use keys::{LONGEST_TEXT, bounded};
use rows::{SampleRow, StackRow, TaskRow, VcpuRow, VmRow};
use samples::SampleSums;
use stacks::StackTexts;
use tasks::TaskSums;

pub use known::KnownStacks;
pub use window::{DAY_NS, HOUR_NS, LakeTable, LakeWindow, identity};

/// Version of the tables' columns and of their meaning.
pub const LAKE_VERSION: u32 = 1;

/// Name of rows with what is beyond a limit.
pub const OTHER: &str = "[other]";

/// Rows of a machine in tables `samples` and `tasks`, each, at most.
const MOST_ROWS: usize = 50_000;

/// A virtual machine in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LakeVm {
    /// Identity: the same in all windows, and of no other start of a machine.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Program of the VMM.
    pub vmm: String,
    /// Labels as `key=value,key=value`.
    pub group: String,
    /// UUID that the VMM was given; empty if none.
    pub uuid: String,
    /// Uid of the Kubernetes pod of the VMM; empty if none.
    pub pod: String,
    /// Id of the container of the VMM; empty if none.
    pub container: String,
    /// CPU time of the processes that have recorded the profile, ns.
    pub agent_cpu_ns: u64,
    /// Largest resident memory of one of these processes, bytes.
    pub agent_memory_bytes: u64,
}

/// Sums of a profile in the lake.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LakeTotals {
    /// Samples in table `samples`.
    pub samples: u64,
    /// Of these, samples in rows named [`OTHER`].
    pub other_samples: u64,
    /// Their time, ns.
    pub weight_ns: f64,
    /// Samples that were lost while recording.
    pub lost: u64,
}

/// Writer of the five files of a window.
pub struct LakeWriter<W: Write + Send> {
    window: LakeWindow,
    samples: TableWriter<W>,
    stacks: TableWriter<W>,
    vcpus: TableWriter<W>,
    tasks: TableWriter<W>,
    vms: TableWriter<W>,
    /// Stacks that are not written.
    known: KnownStacks,
}

impl<W: Write + Send> std::fmt::Debug for LakeWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LakeWriter").field("window", &self.window).finish_non_exhaustive()
    }
}

/// Contents of a profile that its rows are made of.
pub struct LakeProfile {
    /// The samples, with what they refer to.
    pub recording: Recording,
    stat: Stat,
    steal_ns: BTreeMap<u16, u64>,
    memory: Option<MemoryReport>,
    tasks: TaskSums,
}

impl std::fmt::Debug for LakeProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LakeProfile").field("samples", &self.recording.samples.len()).finish_non_exhaustive()
    }
}

impl LakeProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn read(profile: &Profile) -> Result<Self, ExportError> {
        let _snapshot = profile.snapshot()?;
        let recording = Recording::read(profile, &RecordingRequest::default(), &mut |_, _| {})?;
        let memory = match MemoryReport::read(profile, &Filter::default()) {
            Ok(memory) => Some(memory),
            Err(ReportError::NoMemory) => None,
            Err(error) => return Err(error.into()),
        };
        let tasks = TaskSums::read(profile, memory.as_ref())?;
        Ok(Self { recording, stat: Stat::read(profile)?, steal_ns: steal(profile)?, memory, tasks })
    }

    /// Returns the samples that were lost while recording.
    pub fn lost(&self) -> u64 {
        self.stat.vcpus.iter().map(|vcpu| vcpu.lost).sum()
    }

    /// Returns the ticks that were served.
    pub fn ticks(&self) -> u64 {
        self.stat.vcpus.iter().map(|vcpu| vcpu.samples).sum()
    }

    /// Returns ticks per second and vCPU, as they were served.
    fn rate_hz(&self) -> f64 {
        let ticks = self.ticks();
        let wall_ns: u64 = self.stat.vcpus.iter().map(|vcpu| vcpu.wall_ns).sum();
        if wall_ns == 0 { 0.0 } else { ticks as f64 / (wall_ns as f64 / 1e9) }
    }

    /// Returns what could not be read of the guest, as sentences.
    fn missing(&self) -> String {
        let events = self.recording.events.iter().filter(|event| event.kind == "missing");
        let sentences: Vec<&str> = events.map(|event| event.text.as_str()).collect();
        bounded(&sentences.join("; "), LONGEST_TEXT)
    }
}

/// Columns that all rows of a machine have in common.
#[derive(Debug, Clone)]
struct CommonColumns<'a> {
    t: UnixTime,
    window_ns: u64,
    host: &'a str,
    vm: &'a str,
    vm_name: String,
    vmm: String,
    group: &'a str,
    kernel: String,
    inclusion: f64,
    rate_hz: f64,
}

impl LakeWriter<File> {
    /// Begins the files of a window in the directory of a lake under their own names: for a lake that nobody
    /// reads meanwhile.
    ///
    /// # Errors
    /// A file or its directory cannot be made.
    pub fn create(window: LakeWindow, known: KnownStacks, lake: &Path) -> io::Result<Self> {
        let paths = window.clone();
        Self::new(window, known, |table| {
            let path = lake.join(paths.path(table));
            fs::create_dir_all(path.parent().unwrap_or(lake))?;
            File::create(path)
        })
    }
}

impl<W: Write + Send> LakeWriter<W> {
    /// Begins the files of a window, each in what `open` returns for it. Stacks that are `known` are left
    /// out: other files of the day have them.
    ///
    /// # Errors
    /// An output cannot be opened or written to.
    pub fn new(
        window: LakeWindow,
        known: KnownStacks,
        mut open: impl FnMut(LakeTable) -> io::Result<W>,
    ) -> io::Result<Self> {
        let metadata = [
            ("vprof.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("vprof.lake", LAKE_VERSION.to_string()),
            ("vprof.host", window.host.clone()),
            ("vprof.window_start_ns", window.start_unix_ns.to_string()),
            ("vprof.window_ns", window.length_ns.to_string()),
        ];
        let facts = |table: LakeTable, sorted_by| TableFacts {
            name: table.name(),
            metadata: &metadata,
            sorted_by,
            unique: &["stack", "frames"],
        };
        let samples = facts(LakeTable::Samples, &["vm", "process", "function"]);
        Ok(Self {
            samples: begin::<SampleRow<'_>, W>(&mut open, LakeTable::Samples, samples)?,
            stacks: begin::<StackRow<'_>, W>(&mut open, LakeTable::Stacks, facts(LakeTable::Stacks, &[]))?,
            vcpus: begin::<VcpuRow<'_>, W>(&mut open, LakeTable::Vcpus, facts(LakeTable::Vcpus, &["vm"]))?,
            tasks: begin::<TaskRow<'_>, W>(&mut open, LakeTable::Tasks, facts(LakeTable::Tasks, &["vm"]))?,
            vms: begin::<VmRow<'_>, W>(&mut open, LakeTable::Vms, facts(LakeTable::Vms, &["vm"]))?,
            known,
            window,
        })
    }

    /// Adds the profile of a machine. Machines come in the order of their ids; one that was attached to
    /// several times in the window has several profiles.
    ///
    /// # Errors
    /// An output cannot be written to.
    pub fn add(&mut self, vm: &LakeVm, contents: &LakeProfile) -> io::Result<LakeTotals> {
        let window = self.window.clone();
        let about = &contents.recording.about;
        let common = CommonColumns {
            t: UnixTime(window.start_unix_ns),
            window_ns: window.length_ns,
            host: &window.host,
            vm: &vm.id,
            vm_name: bounded(&vm.name, LONGEST_TEXT),
            vmm: bounded(&vm.vmm, LONGEST_TEXT),
            group: &vm.group,
            kernel: bounded(about.kernel.as_deref().unwrap_or_default(), LONGEST_TEXT),
            inclusion: window.inclusion,
            rate_hz: contents.rate_hz(),
        };
        let totals = LakeTotals { lost: contents.lost(), ..self.add_samples(&contents.recording, &common)? };
        self.add_vcpus(contents, &common)?;
        for row in contents.tasks.rows(&common) {
            self.tasks.push(&row)?;
        }
        self.vms.push(&vm_row(vm, &window, contents, (&common, totals)))?;
        Ok(totals)
    }

    fn add_samples(&mut self, recording: &Recording, common: &CommonColumns<'_>) -> io::Result<LakeTotals> {
        let mut texts = StackTexts::new(recording);
        let sums = SampleSums::new(recording, &mut texts, MOST_ROWS);
        let mut totals = LakeTotals::default();
        let mut stacks = Vec::new();
        for sum in &sums.rows {
            self.samples.push(&sums.row(recording, sum, common))?;
            totals.samples += sum.samples;
            totals.weight_ns += sum.weight_ns;
            totals.other_samples += if sum.is_other() { sum.samples } else { 0 };
            if self.known.add(sum.stack) {
                stacks.push(sum.stack);
            }
        }
        // Stacks with the same callers next to each other take a twentieth less.
        stacks.sort_by_cached_key(|number| texts.callers(*number));
        for number in stacks {
            self.stacks.push(&texts.row(number, common))?;
        }
        Ok(totals)
    }

    fn add_vcpus(&mut self, contents: &LakeProfile, common: &CommonColumns<'_>) -> io::Result<()> {
        for vcpu in &contents.stat.vcpus {
            let ns = |state: &str| vcpu.states.get(state).copied().unwrap_or(0);
            self.vcpus.push(&VcpuRow {
                t: common.t,
                window_ns: common.window_ns,
                host: common.host,
                vm: common.vm,
                vm_name: &common.vm_name,
                group_: common.group,
                vcpu: vcpu.number.into(),
                guest_ns: ns("guest"),
                halted_ns: ns("halted"),
                waiting_ns: ns("waiting"),
                kvm_ns: ns("kvm"),
                vmm_ns: ns("vmm"),
                sampler_ns: ns("sampler"),
                paused_ns: ns("paused"),
                samples: vcpu.samples,
                lost: vcpu.lost,
                exits: vcpu.exits,
                steal_ns: contents.steal_ns.get(&vcpu.number).copied(),
                inclusion: common.inclusion,
            })?;
        }
        Ok(())
    }

    /// Ends the files. Returns what they were written to, and the stacks that a lake with them has.
    ///
    /// # Errors
    /// An output cannot be written to.
    pub fn finish(self) -> io::Result<([(LakeTable, W); 5], KnownStacks)> {
        let files = [
            (LakeTable::Samples, self.samples.finish()?),
            (LakeTable::Stacks, self.stacks.finish()?),
            (LakeTable::Vcpus, self.vcpus.finish()?),
            (LakeTable::Tasks, self.tasks.finish()?),
            (LakeTable::Vms, self.vms.finish()?),
        ];
        Ok((files, self.known))
    }
}

fn begin<R: TableRow, W: Write + Send>(
    open: &mut impl FnMut(LakeTable) -> io::Result<W>,
    table: LakeTable,
    facts: TableFacts<'_>,
) -> io::Result<TableWriter<W>> {
    TableWriter::new::<R>(open(table)?, facts)
}

fn vm_row<'a>(
    vm: &'a LakeVm,
    window: &LakeWindow,
    contents: &LakeProfile,
    (common, totals): (&'a CommonColumns<'a>, LakeTotals),
) -> VmRow<'a> {
    let about = &contents.recording.about;
    let meta = |key: &str| bounded(about.meta.get(key).map_or("", String::as_str), LONGEST_TEXT);
    VmRow {
        t: common.t,
        window_ns: common.window_ns,
        host: common.host,
        vm: common.vm,
        vm_name: &common.vm_name,
        vmm: &common.vmm,
        group_: common.group,
        uuid: &vm.uuid,
        pod: &vm.pod,
        container: &vm.container,
        kernel: &common.kernel,
        begin: UnixTime(about.started_unix_ns),
        covered_ns: about.duration_ns,
        complete: about.complete.into(),
        vcpus: contents.stat.vcpus.len() as u64,
        memory_bytes: contents.memory.as_ref().map(|memory| memory.memory.total),
        engine: meta("engine"),
        samples: totals.samples,
        other_samples: totals.other_samples,
        lost: totals.lost,
        missing: contents.missing(),
        unavailable: meta("unavailable"),
        dropped_windows: window.dropped_windows,
        agent_cpu_ns: vm.agent_cpu_ns,
        agent_memory_bytes: vm.agent_memory_bytes,
        version: bounded(&about.version, LONGEST_TEXT),
        inclusion: common.inclusion,
        rate_hz: common.rate_hz,
    }
}

/// Returns the time that each CPU of the guest has counted as stolen, between the first and the last reading.
fn steal(profile: &Profile) -> Result<BTreeMap<u16, u64>, ExportError> {
    let table = profile.query(
        "SELECT cpu, sum(CASE first WHEN 0 THEN steal_ns ELSE -steal_ns END) FROM cpu_time \
         GROUP BY cpu HAVING count(*) = 2",
    )?;
    let pair = |row: &Vec<Value>| match row.as_slice() {
        [Value::Integer(cpu), Value::Integer(ns)] => {
            Some((u16::try_from(*cpu).ok()?, u64::try_from(*ns).ok()?))
        }
        _ => None,
    };
    Ok(table.rows.iter().filter_map(pair).collect())
}
