//! Small tables of a profile for reports.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension, Row};
use statistics::clock::{ClockKind, mean_ns};
use statistics::estimate::{self, Ticks, VcpuClock};
use statistics::{RateHistory, part, scaled};

use super::{Event, Filter};
use crate::numbers::{seconds, unsigned};
use crate::rows::HARDIRQ_BITS;
use crate::rows::Microstates;
use crate::rows::is_ksoftirqd;

/// Name of a thing whose name is not known.
pub(super) const UNKNOWN: &str = "[unknown]";

/// A virtual machine of a merged profile.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    pub name: String,
    /// Name of its host, if it is known.
    pub host: Option<String>,
    /// Start and end of its run, ns since the start of the first run.
    run: (u64, u64),
    clock: VcpuClock,
}

impl Vm {
    /// Returns the name of its host, `[unknown]` if it is not known.
    pub(super) fn host(&self) -> &str {
        self.host.as_deref().unwrap_or(UNKNOWN)
    }
}

/// A row of table `vcpu`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VcpuTotals {
    /// Number in the profile.
    pub id: u16,
    /// Virtual machine, in a merged profile.
    pub vm: Option<u32>,
    /// Number in its virtual machine.
    pub number: u16,
    pub samples: u64,
    pub lost: u64,
    pub exits: u64,
    pub states: Microstates,
}

/// A row of table `instance`.
#[derive(Debug)]
pub(super) struct Instance {
    /// Virtual machine, in a merged profile.
    pub vm: Option<u32>,
    pub pid: i32,
    pub comm: String,
    pub number: u32,
    pub kernel_thread: bool,
    /// Since guest boot, ns.
    pub start_ns: u64,
    pub parent_pid: Option<i32>,
    pub command: Option<String>,
    pub exe: Option<u32>,
    pub cgroup: Option<u32>,
}

/// A row of table `cgroup`.
#[derive(Debug)]
pub(super) struct Cgroup {
    pub path: String,
    pub unit: Option<String>,
    pub container: Option<String>,
}

/// A row of table `file`.
#[derive(Debug)]
pub(super) struct FileNames {
    pub path: String,
    pub build_id: Option<String>,
    pub read_from: Option<String>,
    pub named_by: Option<String>,
}

/// All small tables.
#[derive(Debug)]
pub(super) struct Tables {
    pub meta: BTreeMap<String, String>,
    /// Virtual machines of a merged profile by row id.
    pub vms: BTreeMap<u32, Vm>,
    pub vcpus: Vec<VcpuTotals>,
    pub instances: HashMap<u32, Instance>,
    pub threads: HashMap<(u32, i32), String>,
    pub cgroups: HashMap<u32, Cgroup>,
    pub files: HashMap<u32, FileNames>,
    /// Kind and name.
    pub interrupts: HashMap<u32, (String, String)>,
    pub syscalls: HashMap<u32, String>,
    pub events: Vec<Event>,
}

impl Tables {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let instance = |row: &Row<'_>| {
            let instance = Instance {
                pid: row.get(1)?,
                comm: row.get(2)?,
                number: row.get(3)?,
                kernel_thread: row.get(4)?,
                parent_pid: row.get(5)?,
                command: row.get(6)?,
                exe: row.get(7)?,
                cgroup: row.get(8)?,
                start_ns: unsigned(row, 9)?,
                vm: row.get(10)?,
            };
            Ok((row.get(0)?, instance))
        };
        let cgroup = |row: &Row<'_>| {
            Ok((row.get(0)?, Cgroup { path: row.get(1)?, unit: row.get(2)?, container: row.get(3)? }))
        };
        let file = |row: &Row<'_>| {
            let (path, build_id) = (row.get(1)?, row.get(2)?);
            Ok((row.get(0)?, FileNames { path, build_id, read_from: row.get(3)?, named_by: row.get(4)? }))
        };
        let instances = "SELECT id, pid, comm, number, kernel_thread, parent_pid, command, exe, cgroup, start_ns, vm FROM instance";
        let files = "SELECT id, path, build_id, read_from, named_by FROM file";
        Ok(Self {
            meta: map(connection, "SELECT key, value FROM meta", |row| Ok((row.get(0)?, row.get(1)?)))?,
            vms: vms(connection)?,
            vcpus: vcpus(connection)?,
            instances: map(connection, instances, instance)?,
            threads: map(connection, "SELECT instance, tid, comm FROM thread", |row| {
                Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
            })?,
            cgroups: map(connection, "SELECT id, path, unit, container FROM cgroup", cgroup)?,
            files: map(connection, files, file)?,
            interrupts: map(connection, "SELECT id, kind, name FROM interrupt", |row| {
                Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
            })?,
            syscalls: map(connection, "SELECT number, name FROM syscall", |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?,
            events: events(connection)?,
        })
    }

    /// Returns a value of table `meta`, or its type's default.
    pub(super) fn parsed<T: std::str::FromStr + Default>(&self, key: &str) -> T {
        self.meta.get(key).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Returns the sampling clock.
    pub(super) fn clock(&self) -> ClockKind {
        ClockKind::from_meta(self.meta.get("clock").map(String::as_str))
    }

    /// True if intervals are valid: no vCPU is sampled by a fixed clock.
    pub(super) fn intervals_valid(&self) -> bool {
        match self.vms.is_empty() {
            true => estimate::trustworthy(self.clock()),
            false => self.vms.values().all(|vm| estimate::trustworthy(vm.clock.kind)),
        }
    }

    /// Returns an empty sequence of ticks by the clock of each vCPU.
    pub(super) fn ticks(&self) -> Ticks {
        let mut ticks = Ticks::new(self.clock(), mean_ns(self.parsed("rate_hz")));
        for vcpu in &self.vcpus {
            if let Some(vm) = vcpu.vm.and_then(|id| self.vms.get(&id)) {
                ticks.tick_by(vcpu.id, vm.clock);
            }
        }
        ticks
    }

    /// Returns the virtual machine of a vCPU, in a merged profile.
    pub(super) fn vm_of(&self, vcpu: u16) -> Option<u32> {
        let place = self.vcpus.binary_search_by_key(&vcpu, |known| known.id).ok()?;
        self.vcpus.get(place)?.vm
    }

    /// Returns the name of a virtual machine, in a merged profile.
    pub(super) fn vm_name(&self, vm: Option<u32>) -> Option<String> {
        Some(self.vms.get(&vm?)?.name.clone())
    }

    /// Returns `name#number` of a process, after the name of its virtual machine and a slash in a merged
    /// profile.
    pub(super) fn instance_name(&self, instance: &Instance) -> String {
        let Instance { vm, comm, number, .. } = instance;
        match vm.and_then(|id| self.vms.get(&id)) {
            Some(vm) => format!("{}/{comm}#{number}", vm.name),
            None => format!("{comm}#{number}"),
        }
    }

    /// Returns start and end of the run in which a vCPU was sampled, ns since the start of the first run.
    pub(super) fn run_of(&self, vcpu: &VcpuTotals) -> (u64, u64) {
        let vm = vcpu.vm.and_then(|id| self.vms.get(&id));
        vm.map_or_else(|| (0, self.parsed("duration_ns")), |vm| vm.run)
    }

    /// Returns the length of the run, s.
    pub(super) fn duration_s(&self) -> f64 {
        seconds(self.parsed("duration_ns"))
    }

    /// True if an instance serves soft interrupts.
    pub(super) fn is_ksoftirqd(&self, instance: u32) -> bool {
        self.instances.get(&instance).is_some_and(|own| is_ksoftirqd(&own.comm, own.kernel_thread))
    }

    /// Returns the control group of an instance.
    pub(super) fn cgroup_of(&self, instance: u32) -> Option<&Cgroup> {
        self.cgroups.get(&self.instances.get(&instance)?.cgroup?)
    }

    /// Returns the keys of `meta` that have no field in a report.
    pub(super) fn other_meta(&self) -> BTreeMap<String, String> {
        const OWN: [&str; 10] = [
            "version",
            "host",
            "kernel",
            "complete",
            "started_unix_ns",
            "duration_ns",
            "rate_hz",
            "clock",
            "seed",
            "vcpus",
        ];
        let other = self.meta.iter().filter(|(key, _)| !OWN.contains(&key.as_str()));
        other.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Times of one vCPU in the chosen time, by the clocks of states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Span {
    pub vcpu: u16,
    pub guest_ns: u64,
    pub halted_ns: u64,
    pub waiting_ns: u64,
    pub vmm_ns: u64,
    /// All time but that in which it was paused, and its division over the run as `segments`.
    pub run_ns: u64,
    pub run_segments: Vec<(u64, u64)>,
    /// Division of the time in the guest over the run: the ends of segments, ns since its start, and their
    /// parts.
    pub segments: Vec<(u64, u64)>,
    /// Changes of the mean interval: start, ns since the run's start, and mean, ns.
    pub means: Vec<(u64, f64)>,
    /// Time of the run in which it was not sampled, ns.
    pub unsampled_ns: u64,
    /// Least and largest value of `guest_ns`: the division of time inside of a segment is not known.
    pub guest_bounds: (u64, u64),
}

impl Span {
    /// Reads the spans of the chosen vCPUs. A part of the run consists of the segments of table `microstate`,
    /// the first and the last in proportion; without segments, of the whole run in proportion.
    pub(super) fn read(
        connection: &Connection,
        rates: &RateHistory,
        tables: &Tables,
        filter: &Filter,
    ) -> rusqlite::Result<Vec<Self>> {
        let (from, to) = (filter.from_ns.unwrap_or(0), filter.to_ns.unwrap_or(u64::MAX));
        let whole = filter.from_ns.is_none() && filter.to_ns.is_none();
        let part = |begin: u64, end: u64| {
            part(end.min(to).saturating_sub(begin.max(from)), end.saturating_sub(begin))
        };
        let mut segments = Segment::read(connection)?;
        let chosen = tables.vcpus.iter().filter(|row| filter.chooses_vcpu(row, tables));
        let span = |row: &VcpuTotals| {
            let run = tables.run_of(row);
            let own = segments.remove(&row.id).unwrap_or_default();
            let changes = rates.changes(row.id);
            let means = changes.iter().map(|(since, rate_hz)| (*since, mean_ns(*rate_hz))).collect();
            // The sampled time of the segments within the chosen time.
            let divide = |of: fn(&Microstates) -> u64| {
                let within = |own: &Segment| {
                    let (begin, end) = (own.begin.max(from), own.end.min(to));
                    ((begin, end.max(begin)), scaled(of(&own.states), part(own.begin, own.end)))
                };
                let parts = own.iter().map(within);
                parts.flat_map(|(segment, ns)| rates.divide(row.id, segment, ns)).collect::<Vec<_>>()
            };
            let sum =
                |parts: &[(u64, u64)]| parts.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
            let times = |of: fn(&Microstates) -> u64| {
                let segments = divide(of);
                let ns = match own.is_empty() {
                    _ if whole && changes.is_empty() => of(&row.states),
                    true => scaled(of(&row.states), part(run.0, run.1)),
                    false => sum(&segments),
                };
                (ns, segments)
            };
            let (guest_ns, guest) = times(|states| states.guest);
            let (run_ns, run_segments) = times(|states| states.wall().saturating_sub(states.paused));
            let [halted_ns, waiting_ns, vmm_ns] =
                [times(|states| states.halted), times(|states| states.waiting), times(|states| states.vmm)]
                    .map(|(ns, _)| ns);
            let unsampled_ns = rates.unsampled_ns(row.id, run);
            let cut = own
                .iter()
                .filter(|own| (own.begin < from && from < own.end) || (own.begin < to && to < own.end));
            let guest_bounds = cut.fold((guest_ns, guest_ns), |(low, high), own| {
                let (all, length) = (own.states.guest, own.end.saturating_sub(own.begin));
                let inside = own.end.min(to).saturating_sub(own.begin.max(from));
                let taken = scaled(all, part(own.begin, own.end));
                let least = all.saturating_sub(length - inside);
                (low.saturating_sub(taken - least.min(taken)), high + (all.min(inside).max(taken) - taken))
            });
            Self {
                vcpu: row.id,
                guest_ns,
                halted_ns,
                waiting_ns,
                vmm_ns,
                run_ns,
                run_segments,
                segments: guest,
                means,
                unsampled_ns,
                guest_bounds,
            }
        };
        Ok(chosen.map(span).collect())
    }
}

/// A row of table `microstate`: times of one vCPU from `begin` to `end`, ns since the run's start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub begin: u64,
    pub end: u64,
    pub states: Microstates,
}

impl Segment {
    /// Reads all segments by vCPU, in the order of time.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<HashMap<u16, Vec<Self>>> {
        let sql = "SELECT vcpu, time_ns, guest_ns, halted_ns, waiting_ns, kvm_ns, vmm_ns, sampler_ns, paused_ns \
                   FROM microstate ORDER BY time_ns";
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut segments: HashMap<u16, Vec<Self>> = HashMap::new();
        while let Some(row) = rows.next()? {
            let (end, states) = (unsigned(row, 1)?, states(row, 2)?);
            let begin = end.saturating_sub(states.wall());
            segments.entry(row.get(0)?).or_default().push(Self { begin, end, states });
        }
        Ok(segments)
    }
}

/// Reads the changes of the sampling rate.
pub(crate) fn read_rates(connection: &Connection) -> rusqlite::Result<RateHistory> {
    let mut statement = connection.prepare("SELECT vcpu, time_ns, rate_hz FROM rate ORDER BY time_ns")?;
    let mut rows = statement.query([])?;
    let mut rates = RateHistory::default();
    while let Some(row) = rows.next()? {
        rates.push(row.get(0)?, unsigned(row, 1)?, row.get(2)?);
    }
    Ok(rates)
}

fn map<M: FromIterator<(K, V)>, K, V>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<(K, V)>,
) -> rusqlite::Result<M> {
    connection.prepare(sql)?.query_map([], read)?.collect()
}

/// Returns the bits of a preempt count that count hard interrupts. Returns all bits if they are not known: a
/// profile without them has no samples that are in an interrupt by their functions alone.
pub(crate) fn hardirq_bits(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?";
    let bits = connection.query_row(sql, [HARDIRQ_BITS], |row| row.get(0)).optional()?;
    Ok(bits.unwrap_or(i64::from(u32::MAX)))
}

/// Reads the seven states, from `column` on.
fn states(row: &Row<'_>, column: usize) -> rusqlite::Result<Microstates> {
    Ok(Microstates {
        guest: unsigned(row, column)?,
        halted: unsigned(row, column + 1)?,
        waiting: unsigned(row, column + 2)?,
        kvm: unsigned(row, column + 3)?,
        vmm: unsigned(row, column + 4)?,
        sampler: unsigned(row, column + 5)?,
        paused: unsigned(row, column + 6)?,
    })
}

pub(crate) fn vcpus(connection: &Connection) -> rusqlite::Result<Vec<VcpuTotals>> {
    let sql = "SELECT id, samples, lost, exits, guest_ns, halted_ns, waiting_ns, kvm_ns, vmm_ns, sampler_ns, \
               paused_ns, vm, number \
               FROM vcpu ORDER BY id";
    let vcpu = |row: &Row<'_>| {
        Ok(VcpuTotals {
            id: row.get(0)?,
            samples: unsigned(row, 1)?,
            lost: unsigned(row, 2)?,
            exits: unsigned(row, 3)?,
            states: states(row, 4)?,
            vm: row.get(11)?,
            number: row.get(12)?,
        })
    };
    connection.prepare(sql)?.query_map([], vcpu)?.collect()
}

fn vms(connection: &Connection) -> rusqlite::Result<BTreeMap<u32, Vm>> {
    map(connection, "SELECT id, name, host, from_ns, to_ns, rate_hz, clock, one_clock FROM vm", |row| {
        let id: u32 = row.get(0)?;
        let clock = VcpuClock {
            kind: ClockKind::from_meta(Some(&row.get::<_, String>(6)?)),
            mean_ns: mean_ns(row.get(5)?),
            shared: row.get::<_, bool>(7)?.then_some(id),
        };
        let run = (unsigned(row, 3)?, unsigned(row, 4)?);
        Ok((id, Vm { name: row.get(1)?, host: row.get(2)?, run, clock }))
    })
}

fn events(connection: &Connection) -> rusqlite::Result<Vec<Event>> {
    let sql = "SELECT time_ns, kind, text FROM event ORDER BY time_ns, id";
    let event = |row: &Row<'_>| {
        Ok(Event { time_s: seconds(unsigned(row, 0)?), kind: row.get(1)?, text: row.get(2)? })
    };
    connection.prepare(sql)?.query_map([], event)?.collect()
}
