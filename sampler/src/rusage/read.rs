//! Compares the books in a profile with its samples and clocks.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, Row};

use super::{CpuRusage, CpuTimes, ProcessRusage, Rusage, ThreadRusage, is_outside};
use crate::batch::{Fell, Mode, RusageRow, VcpuRow};
use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Tallies, Ticks, Time, trustworthy};
use crate::profile::{MODES, Profile, ProfileError, snapshot};
use crate::report::paces::Paces;
use crate::report::tables::{Stretch, seconds, unsigned, vcpus};

impl Rusage {
    /// Reads the books and the truth of a profile.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        let connection = profile.connection();
        let read = || {
            // One transaction, so that all parts are of the same moment of a run that goes on.
            let _snapshot = snapshot(connection)?;
            let books = Books::read(connection)?;
            let seen = Seen::read(connection, &books)?;
            Ok(books.compare(&seen))
        };
        read().map_err(|error| profile.error(&error))
    }
}

/// Who an instance is: name, pid, number.
type Who = (String, i32, u32);

/// A thread's books: when they were read, `utime`, `stime`, run time.
type ThreadTime = (u64, u64, u64, u64);

/// What the profile holds of the guest's books.
struct Books {
    meta: BTreeMap<String, String>,
    vcpus: Vec<VcpuRow>,
    instances: HashMap<u32, Who>,
    processes: HashMap<u32, RusageRow>,
    threads: HashMap<(u32, i32), ThreadTime>,
    thread_names: HashMap<(u32, i32), String>,
    cpus: Vec<(u32, CpuTimes)>,
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], row)?.collect()
}

impl Books {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let meta = rows(connection, "SELECT key, value FROM meta", |row| Ok((row.get(0)?, row.get(1)?)))?;
        let instances = rows(connection, "SELECT id, comm, pid, number FROM instance", |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
        })?;
        let sql = "SELECT instance, time_ns, user_ns, system_ns, tick_user_ns, tick_system_ns, runtime_ns, \
                   run_delay_ns, voluntary, involuntary FROM rusage";
        let processes = rows(connection, sql, |row| {
            Ok(RusageRow {
                instance: row.get(0)?,
                time_ns: unsigned(row, 1)?,
                user_ns: unsigned(row, 2)?,
                system_ns: unsigned(row, 3)?,
                tick_user_ns: unsigned(row, 4)?,
                tick_system_ns: unsigned(row, 5)?,
                runtime_ns: unsigned(row, 6)?,
                run_delay_ns: unsigned(row, 7)?,
                voluntary: unsigned(row, 8)?,
                involuntary: unsigned(row, 9)?,
            })
        })?;
        let sql = "SELECT instance, tid, time_ns, tick_user_ns, tick_system_ns, runtime_ns FROM thread_time";
        let threads = rows(connection, sql, |row| {
            let time = (unsigned(row, 2)?, unsigned(row, 3)?, unsigned(row, 4)?, unsigned(row, 5)?);
            Ok(((row.get(0)?, row.get(1)?), time))
        })?;
        let names = rows(connection, "SELECT instance, tid, comm FROM thread", |row| {
            Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
        })?;
        let sql = "SELECT cpu, user_ns + nice_ns, system_ns, irq_ns, softirq_ns, idle_ns + iowait_ns, steal_ns \
                   FROM cpu_time ORDER BY cpu";
        let cpus = rows(connection, sql, |row| {
            let times = CpuTimes {
                user_ns: unsigned(row, 1)?,
                system_ns: unsigned(row, 2)?,
                irq_ns: unsigned(row, 3)?,
                softirq_ns: unsigned(row, 4)?,
                idle_ns: unsigned(row, 5)?,
                steal_ns: unsigned(row, 6)?,
            };
            Ok((row.get(0)?, times))
        })?;
        Ok(Self {
            meta: meta.into_iter().collect(),
            vcpus: vcpus(connection)?,
            instances: instances.into_iter().collect(),
            processes: processes.into_iter().map(|row| (row.instance, row)).collect(),
            threads: threads.into_iter().collect(),
            thread_names: names.into_iter().collect(),
            cpus,
        })
    }

    fn clock(&self) -> ClockKind {
        ClockKind::told(self.meta.get("clock").map(String::as_str))
    }

    fn compare(&self, seen: &Seen) -> Rusage {
        let text = |key: &str| self.meta.get(key).cloned();
        let duration = self.meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let mut processes: Vec<_> =
            self.processes.values().filter_map(|row| self.process(row, seen)).collect();
        processes.sort_by_key(|p| {
            let told = p.reported_user_ns + p.reported_system_ns;
            (std::cmp::Reverse(told.max(p.true_cpu_ns)), p.pid, p.instance)
        });
        let mut threads: Vec<_> =
            self.threads.iter().filter_map(|(key, time)| self.thread(*key, *time, seen)).collect();
        threads.sort_by_key(|t| (std::cmp::Reverse(t.runtime_ns.max(t.true_cpu_ns)), t.tid));
        Rusage {
            version: text("version").unwrap_or_default(),
            host: text("host").unwrap_or_else(|| "unknown".to_owned()),
            kernel: text("kernel"),
            duration_s: seconds(duration),
            unsampled_s: seconds(seen.unsampled_ns),
            intervals_valid: trustworthy(self.clock()),
            processes,
            threads,
            cpus: self.cpus.iter().filter_map(|(cpu, told)| self.cpu(*cpu, *told, seen)).collect(),
        }
    }

    fn process(&self, row: &RusageRow, seen: &Seen) -> Option<ProcessRusage> {
        let (comm, pid, instance) = self.instances.get(&row.instance)?.clone();
        let of = |key| seen.time(&self.vcpus, seen.processes.get(&(row.instance, key)));
        let (samples, truth) = of(Part::All);
        let told = row.user_ns.saturating_add(row.system_ns);
        Some(ProcessRusage {
            comm,
            pid,
            instance,
            read_s: seconds(row.time_ns),
            reported_user_ns: row.user_ns,
            reported_system_ns: row.system_ns,
            runtime_ns: row.runtime_ns,
            run_delay_ns: row.run_delay_ns,
            switches: row.voluntary.saturating_add(row.involuntary),
            samples,
            true_cpu_ns: whole(truth.ns),
            true_low_ns: whole(truth.low_ns),
            true_high_ns: whole(truth.high_ns),
            true_user_ns: whole(of(Part::User).1.ns),
            interrupted_ns: whole(of(Part::Interrupted).1.ns),
            difference_ns: told.cast_signed().saturating_sub(whole(truth.ns).cast_signed()),
            outside: seen.unsampled_ns == 0 && is_outside(told, &truth),
        })
    }

    fn thread(&self, key: (u32, i32), time: ThreadTime, seen: &Seen) -> Option<ThreadRusage> {
        let (_, pid, instance) = self.instances.get(&key.0)?.clone();
        let (_, user, system, runtime_ns) = time;
        let (_, truth) = seen.time(&self.vcpus, seen.threads.get(&key));
        Some(ThreadRusage {
            comm: self.thread_names.get(&key).cloned(),
            pid,
            instance,
            tid: key.1,
            reported_user_ns: user,
            reported_system_ns: system,
            runtime_ns,
            true_cpu_ns: whole(truth.ns),
            true_low_ns: whole(truth.low_ns),
            true_high_ns: whole(truth.high_ns),
            outside: seen.unsampled_ns == 0 && is_outside(user.saturating_add(system), &truth),
        })
    }

    /// The guest's CPUs are numbered as their vCPUs.
    fn cpu(&self, cpu: u32, reported: CpuTimes, seen: &Seen) -> Option<CpuRusage> {
        let vcpu = self.vcpus.iter().find(|vcpu| u32::from(vcpu.id) == cpu)?;
        let states = &vcpu.states;
        let of = |mode| seen.time(std::slice::from_ref(vcpu), seen.modes.get(&(vcpu.id, mode))).1;
        let [user, system, irq, softirq, idle] = Kind::ALL.map(of);
        let steal = states.waiting + states.vmm + states.sampler + states.paused;
        let times = |part: fn(&Time) -> f64| CpuTimes {
            user_ns: whole(part(&user)),
            system_ns: whole(part(&system)),
            irq_ns: whole(part(&irq)),
            softirq_ns: whole(part(&softirq)),
            idle_ns: states.halted + states.kvm + whole(part(&idle)),
            steal_ns: steal,
        };
        Some(CpuRusage {
            cpu,
            reported,
            truly: times(|time| time.ns),
            low: times(|time| time.low_ns),
            high: times(|time| time.high_ns),
        })
    }
}

/// What is told apart of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    /// Its own code, user and kernel.
    All,
    /// Its user code.
    User,
    /// Interrupts that hit it.
    Interrupted,
}

/// What is told apart of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    User,
    System,
    HardIrq,
    SoftIrq,
    Idle,
}

impl Kind {
    const ALL: [Self; 5] = [Self::User, Self::System, Self::HardIrq, Self::SoftIrq, Self::Idle];

    fn of(mode: Mode) -> Self {
        match mode {
            Mode::User => Self::User,
            Mode::Kernel | Mode::Boot | Mode::Unknown => Self::System,
            Mode::HardIrq | Mode::Nmi => Self::HardIrq,
            Mode::SoftIrq => Self::SoftIrq,
            Mode::Idle => Self::Idle,
        }
    }
}

/// What the samples say, each process and thread up to the moment of its books.
struct Seen {
    ticks: Ticks,
    /// Time of vCPUs in the guest where they were not sampled throughout: what was sampled, ns.
    sampled_ns: HashMap<u8, u64>,
    unsampled_ns: u64,
    processes: HashMap<(u32, Part), Tallies>,
    threads: HashMap<(u32, i32), Tallies>,
    modes: HashMap<(u8, Kind), Tallies>,
}

impl Seen {
    fn read(connection: &Connection, books: &Books) -> rusqlite::Result<Self> {
        let rate = books.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        let duration = books.meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let paces = Paces::read(connection)?;
        let unsampled = books.vcpus.iter().map(|vcpu| paces.unsampled_ns(vcpu.id, duration));
        let mut seen = Self {
            ticks: Ticks::new(books.clock(), mean_ns(rate)),
            sampled_ns: HashMap::new(),
            unsampled_ns: unsampled.max().unwrap_or(0),
            processes: HashMap::new(),
            threads: HashMap::new(),
            modes: HashMap::new(),
        };
        for (vcpu, stretches) in Stretch::read(connection)? {
            let divide = |own: &Stretch| paces.divide(vcpu, (own.begin, own.end), own.guest_ns);
            let parts: Vec<_> = stretches.iter().flat_map(divide).collect();
            let changes = paces.of(vcpu);
            if !changes.is_empty() {
                seen.sampled_ns.insert(vcpu, parts.iter().map(|(_, ns)| ns).sum());
            }
            seen.ticks.divide(vcpu, parts);
            seen.ticks.change_mean(vcpu, changes.iter().map(|(since, rate)| (*since, mean_ns(*rate))));
        }
        let sql = "SELECT vcpu, mode, instance, tid, time_ns, fell FROM sample ORDER BY id";
        let mut statement = connection.prepare(sql)?;
        let mut samples = statement.query([])?;
        while let Some(row) = samples.next()? {
            let inside = row.get_ref(5)?.as_str().is_ok_and(|fell| fell == Fell::Guest.name());
            let mode = usize::from(row.get::<_, u8>(1)?);
            let mode = MODES.get(mode).map_or(Mode::Unknown, |(mode, _)| *mode);
            seen.add(books, row.get(0)?, mode, (row.get(2)?, row.get(3)?), (unsigned(row, 4)?, inside));
        }
        Ok(seen)
    }

    fn add(
        &mut self,
        books: &Books,
        vcpu: u8,
        mode: Mode,
        (instance, tid): (Option<u32>, Option<i32>),
        (time_ns, inside): (u64, bool),
    ) {
        let tick = self.ticks.tick(vcpu, time_ns, inside);
        if !inside {
            return;
        }
        let Self { ticks, processes, threads, modes, .. } = self;
        modes.entry((vcpu, Kind::of(mode))).or_default().add(ticks, tick);
        let Some(instance) = instance else { return };
        let parts: &[Part] = match mode {
            Mode::User => &[Part::All, Part::User],
            Mode::Kernel => &[Part::All],
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => &[Part::Interrupted],
            Mode::Idle | Mode::Boot | Mode::Unknown => return,
        };
        if books.processes.get(&instance).is_some_and(|row| time_ns <= row.time_ns) {
            for part in parts {
                processes.entry((instance, *part)).or_default().add(ticks, tick);
            }
        }
        let thread = tid.map(|tid| (instance, tid)).filter(|_| parts.contains(&Part::All));
        if let Some(key) = thread.filter(|key| books.threads.get(key).is_some_and(|time| time_ns <= time.0)) {
            threads.entry(key).or_default().add(ticks, tick);
        }
    }

    /// Samples and time of what was tallied on these vCPUs.
    fn time(&self, vcpus: &[VcpuRow], tallies: Option<&Tallies>) -> (u64, Time) {
        let sampled = |vcpu: &VcpuRow| self.sampled_ns.get(&vcpu.id).copied().unwrap_or(vcpu.states.guest);
        let times: Vec<_> = vcpus.iter().map(|vcpu| (vcpu.id, sampled(vcpu))).collect();
        let none = Tallies::default();
        let estimate = self.ticks.estimate(&times, tallies.unwrap_or(&none));
        (estimate.samples, estimate.time)
    }
}

/// Whole ns.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded; the cast saturates")]
fn whole(ns: f64) -> u64 {
    ns.max(0.0).round() as u64
}
