//! Compares the accounting in a profile with its samples and clocks.

use std::collections::HashMap;

use display::units::rounded;
use rusqlite::Connection;
use statistics::clock::{ClockKind, mean_ns};
use statistics::cpu_accounting::ChildCpuTimes;
use statistics::estimate::{Tallies, Ticks, Time, trustworthy};
use statistics::{part, scaled};

use super::accounting::{AccountedTimes, GuestAccounting, ReadingPair};
use super::{ChildrenRusage, CpuRusage, CpuTimes, ProcessRusage, Rusage, ThreadRusage, outside};
use crate::numbers::{seconds, unsigned};
use crate::report::tables::{Segment, VcpuTotals, read_rates};
use crate::rows::Microstates;
use crate::rows::{Mode, VcpuState};
use crate::store::{Profile, ProfileError, snapshot};

impl Rusage {
    /// Reads the reported and measured times of a profile.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        profile.has_one_vm("CPU accounting of a guest")?;
        let connection = profile.connection();
        let read = || {
            // One transaction, so that all parts have the same state of a run in progress.
            let _snapshot = snapshot(connection)?;
            let accounting = GuestAccounting::read(connection)?;
            let sampled = SampledTimes::read(connection, &accounting)?;
            Ok(accounting.compare(&sampled))
        };
        read().map_err(|error| profile.error(&error))
    }
}

impl GuestAccounting {
    fn clock(&self) -> ClockKind {
        ClockKind::from_meta(self.meta.get("clock").map(String::as_str))
    }

    fn compare(&self, sampled: &SampledTimes) -> Rusage {
        let text = |key: &str| self.meta.get(key).cloned();
        let duration = self.meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let processes = self.processes.iter();
        let found = processes.filter_map(|(id, kept)| self.process(*id, kept, sampled));
        let (mut processes, chances): (Vec<_>, Vec<_>) = found.unzip();
        for (process, outside) in processes.iter_mut().zip(outside(&chances)) {
            process.outside = outside && sampled.unsampled_ns == 0;
        }
        processes.sort_by_key(|p| {
            let reported = p.reported_user_ns + p.reported_system_ns;
            (std::cmp::Reverse(reported.max(p.measured_cpu_ns)), p.pid, p.instance)
        });
        let threads = self.threads.iter();
        let found = threads.filter_map(|(key, kept)| self.thread(*key, kept, sampled));
        let (mut threads, chances): (Vec<_>, Vec<_>) = found.unzip();
        for (thread, outside) in threads.iter_mut().zip(outside(&chances)) {
            thread.outside = outside && sampled.unsampled_ns == 0;
        }
        threads.sort_by_key(|t| (std::cmp::Reverse(t.runtime_ns.max(t.measured_cpu_ns)), t.tid));
        Rusage {
            version: text("version").unwrap_or_default(),
            host: text("host").unwrap_or_else(|| "unknown".to_owned()),
            kernel: text("kernel"),
            duration_s: seconds(duration),
            unsampled_s: seconds(sampled.unsampled_ns),
            intervals_valid: trustworthy(self.clock()),
            processes,
            threads,
            cpus: self.cpus.iter().filter_map(|(cpu, kept)| self.cpu(*cpu, kept, sampled)).collect(),
        }
    }

    /// Returns the times with the chance of the reported one, if it is right; `outside` depends on all rows
    /// and is set later.
    fn process(
        &self,
        id: u32,
        kept: &ReadingPair<AccountedTimes>,
        sampled: &SampledTimes,
    ) -> Option<(ProcessRusage, f64)> {
        let (comm, pid, instance) = self.instances.get(&id)?.clone();
        let of = |part| sampled.time(&self.vcpus, sampled.processes.get(&(id, part)));
        let (samples, measured) = of(TimePart::All);
        let (grown, before) = (kept.grown(), kept.before());
        let reported = grown.user_ns.saturating_add(grown.system_ns);
        let process = ProcessRusage {
            comm,
            pid,
            instance,
            since_s: kept.since_ns().map(seconds),
            read_s: seconds(kept.last.0),
            reported_user_ns: grown.user_ns,
            reported_system_ns: grown.system_ns,
            before_user_ns: before.0,
            before_system_ns: before.1,
            runtime_ns: grown.runtime_ns,
            run_delay_ns: grown.run_delay_ns,
            switches: grown.switches,
            samples,
            measured_cpu_ns: rounded(measured.ns),
            measured_low_ns: rounded(measured.low_ns),
            measured_high_ns: rounded(measured.high_ns),
            measured_user_ns: rounded(of(TimePart::User).1.ns),
            interrupted_ns: rounded(of(TimePart::Interrupted).1.ns),
            difference_ns: super::difference(reported, rounded(measured.ns)),
            outside: false,
            children: self.children(id, &grown, sampled),
        };
        Some((process, kept.chance(&measured)))
    }

    fn children(&self, id: u32, grown: &AccountedTimes, sampled: &SampledTimes) -> Option<ChildrenRusage> {
        let (accounting, processes) = (grown.children, self.reaped.below(id));
        if accounting == ChildCpuTimes::default() && processes == 0 {
            return None;
        }
        let (samples, measured) = sampled.time(&self.vcpus, sampled.processes.get(&(id, TimePart::Children)));
        let reported = accounting.user_ns.saturating_add(accounting.system_ns);
        Some(ChildrenRusage {
            processes,
            seen: self.reaped.seen(),
            reported_user_ns: accounting.user_ns,
            reported_system_ns: accounting.system_ns,
            switches: accounting.voluntary.saturating_add(accounting.involuntary),
            minor_faults: accounting.minor_faults,
            major_faults: accounting.major_faults,
            samples,
            measured_cpu_ns: rounded(measured.ns),
            measured_low_ns: rounded(measured.low_ns),
            measured_high_ns: rounded(measured.high_ns),
            difference_ns: super::difference(reported, rounded(measured.ns)),
        })
    }

    fn thread(
        &self,
        key: (u32, i32),
        kept: &ReadingPair<AccountedTimes>,
        sampled: &SampledTimes,
    ) -> Option<(ThreadRusage, f64)> {
        let (_, pid, instance) = self.instances.get(&key.0)?.clone();
        let grown = kept.grown();
        let (_, measured) = sampled.time(&self.vcpus, sampled.threads.get(&key));
        let thread = ThreadRusage {
            comm: self.thread_names.get(&key).cloned(),
            pid,
            instance,
            tid: key.1,
            since_s: kept.since_ns().map(seconds),
            reported_user_ns: grown.user_ns,
            reported_system_ns: grown.system_ns,
            runtime_ns: grown.runtime_ns,
            measured_cpu_ns: rounded(measured.ns),
            measured_low_ns: rounded(measured.low_ns),
            measured_high_ns: rounded(measured.high_ns),
            outside: false,
        };
        Some((thread, kept.chance(&measured)))
    }

    /// Accounting of CPUs has the numbers of their vCPUs.
    fn cpu(&self, cpu: u32, kept: &ReadingPair<CpuTimes>, sampled: &SampledTimes) -> Option<CpuRusage> {
        let vcpu = self.vcpus.iter().find(|vcpu| u32::from(vcpu.id) == cpu)?;
        let of = |mode| sampled.time(std::slice::from_ref(vcpu), sampled.modes.get(&(vcpu.id, mode))).1;
        let [user, system, irq, softirq, idle] = CpuTimeKind::ALL.map(of);
        let states = sampled.clocks.get(&vcpu.id).map_or_else(
            || StateBounds::whole(&vcpu.states),
            |segments| StateBounds::between(segments, kept.since_ns().unwrap_or(0), kept.last.0),
        );
        let times = |part: fn(&Time) -> f64, states: &Microstates| CpuTimes {
            user_ns: rounded(part(&user)),
            system_ns: rounded(part(&system)),
            irq_ns: rounded(part(&irq)),
            softirq_ns: rounded(part(&softirq)),
            idle_ns: states.halted + states.kvm + rounded(part(&idle)),
            steal_ns: states.waiting + states.vmm + states.sampler + states.paused,
        };
        Some(CpuRusage {
            cpu,
            since_s: kept.since_ns().map(seconds),
            read_s: seconds(kept.last.0),
            reported: kept.grown(),
            before: kept.before(),
            measured: times(|time| time.ns, &states.likely),
            low: times(|time| time.low_ns, &states.low),
            high: times(|time| time.high_ns, &states.high),
        })
    }
}

/// Times of states between two points of time. They are exact, except for the segments that one of these
/// cuts: all of a state's time there may be inside or outside.
struct StateBounds {
    likely: Microstates,
    low: Microstates,
    high: Microstates,
}

impl StateBounds {
    fn whole(states: &Microstates) -> Self {
        Self { likely: *states, low: *states, high: *states }
    }

    fn between(segments: &[Segment], from: u64, to: u64) -> Self {
        let mut ends = Self::whole(&Microstates::default());
        for segment in segments {
            let inside = segment.end.min(to).saturating_sub(segment.begin.max(from));
            let length = segment.end.saturating_sub(segment.begin);
            if inside == 0 {
                continue;
            }
            let add = |to: &mut Microstates, of: &dyn Fn(u64) -> u64| *to = to.plus(&segment.states.map(of));
            add(&mut ends.likely, &|ns| scaled(ns, part(inside, length)));
            add(&mut ends.low, &|ns| ns.saturating_sub(length - inside));
            add(&mut ends.high, &|ns| ns.min(inside));
        }
        ends
    }
}

/// Part of a process's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TimePart {
    /// Its own code, user and kernel.
    All,
    /// Its user code.
    User,
    /// Interrupts that hit it.
    Interrupted,
    /// The own code of the processes that it has waited for.
    Children,
}

/// Part of a CPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CpuTimeKind {
    User,
    System,
    HardIrq,
    SoftIrq,
    Idle,
}

impl CpuTimeKind {
    const ALL: [Self; 5] = [Self::User, Self::System, Self::HardIrq, Self::SoftIrq, Self::Idle];

    fn from_mode(mode: Mode) -> Self {
        match mode {
            Mode::User => Self::User,
            Mode::Kernel | Mode::Boot | Mode::Unknown => Self::System,
            Mode::HardIrq | Mode::Nmi => Self::HardIrq,
            Mode::SoftIrq => Self::SoftIrq,
            Mode::Idle => Self::Idle,
        }
    }
}

/// Sampled times of each process, thread and CPU between the readings of its accounting.
struct SampledTimes {
    ticks: Ticks,
    /// Sampled time of vCPUs in the guest, if they were not sampled throughout, ns.
    sampled_ns: HashMap<u16, u64>,
    unsampled_ns: u64,
    processes: HashMap<(u32, TimePart), Tallies>,
    threads: HashMap<(u32, i32), Tallies>,
    /// Modes of CPUs, between the readings of their accounting.
    modes: HashMap<(u16, CpuTimeKind), Tallies>,
    clocks: HashMap<u16, Vec<Segment>>,
}

impl SampledTimes {
    fn read(connection: &Connection, accounting: &GuestAccounting) -> rusqlite::Result<Self> {
        let rate = accounting.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        let duration = accounting.meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let rates = read_rates(connection)?;
        let unsampled = accounting.vcpus.iter().map(|vcpu| rates.unsampled_ns(vcpu.id, (0, duration)));
        let mut sampled = Self {
            ticks: Ticks::new(accounting.clock(), mean_ns(rate)),
            sampled_ns: HashMap::new(),
            unsampled_ns: unsampled.max().unwrap_or(0),
            processes: HashMap::new(),
            threads: HashMap::new(),
            modes: HashMap::new(),
            clocks: Segment::read(connection)?,
        };
        sampled.ticks.read_meta(&accounting.meta);
        for (&vcpu, segments) in &sampled.clocks {
            let divide = |own: &Segment| rates.divide(vcpu, (own.begin, own.end), own.states.guest);
            let parts: Vec<_> = segments.iter().flat_map(divide).collect();
            let changes = rates.changes(vcpu);
            // The clock also counts time without ticks. Only the sampled part may be divided by ticks.
            if !changes.is_empty() {
                sampled.sampled_ns.insert(vcpu, parts.iter().map(|(_, ns)| ns).sum());
            }
            sampled.ticks.divide(vcpu, parts);
            sampled.ticks.change_mean(vcpu, changes.iter().map(|(since, rate)| (*since, mean_ns(*rate))));
        }
        // Ids rise with the time of each vCPU, which is the order that the estimator needs.
        let sql = "SELECT vcpu, mode, instance, tid, time_ns, vcpu_state FROM sample ORDER BY id";
        let mut statement = connection.prepare(sql)?;
        let mut samples = statement.query([])?;
        while let Some(row) = samples.next()? {
            let inside =
                row.get_ref(5)?.as_str().is_ok_and(|vcpu_state| vcpu_state == VcpuState::Guest.name());
            let mode = Mode::from_id(row.get(1)?);
            sampled.add(
                accounting,
                row.get(0)?,
                mode,
                (row.get(2)?, row.get(3)?),
                (unsigned(row, 4)?, inside),
            );
        }
        Ok(sampled)
    }

    fn add(
        &mut self,
        accounting: &GuestAccounting,
        vcpu: u16,
        mode: Mode,
        (instance, tid): (Option<u32>, Option<i32>),
        (time_ns, inside): (u64, bool),
    ) {
        let tick = self.ticks.tick(vcpu, time_ns, inside);
        if !inside {
            return;
        }
        let Self { ticks, processes, threads, modes, .. } = self;
        if accounting.cpus.get(&u32::from(vcpu)).is_some_and(|kept| kept.covers(time_ns)) {
            modes.entry((vcpu, CpuTimeKind::from_mode(mode))).or_default().add(ticks, tick);
        }
        let Some(instance) = instance else { return };
        let parts: &[TimePart] = match mode {
            Mode::User => &[TimePart::All, TimePart::User],
            Mode::Kernel => &[TimePart::All],
            // Its own work: the kernel's accounting charges it for soft interrupts as well.
            Mode::SoftIrq if accounting.ksoftirqds.contains(&instance) => &[TimePart::All],
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => &[TimePart::Interrupted],
            Mode::Idle | Mode::Boot | Mode::Unknown => return,
        };
        if accounting.processes.get(&instance).is_some_and(|kept| kept.covers(time_ns)) {
            for part in parts {
                processes.entry((instance, *part)).or_default().add(ticks, tick);
            }
        }
        if parts.contains(&TimePart::All) {
            for &above in accounting.reaped.above(instance) {
                processes.entry((above, TimePart::Children)).or_default().add(ticks, tick);
            }
        }
        let thread = tid.map(|tid| (instance, tid)).filter(|_| parts.contains(&TimePart::All));
        if let Some(key) =
            thread.filter(|key| accounting.threads.get(key).is_some_and(|kept| kept.covers(time_ns)))
        {
            threads.entry(key).or_default().add(ticks, tick);
        }
    }

    /// Returns samples and time of a tally on these vCPUs.
    fn time(&self, vcpus: &[VcpuTotals], tallies: Option<&Tallies>) -> (u64, Time) {
        let sampled = |vcpu: &VcpuTotals| self.sampled_ns.get(&vcpu.id).copied().unwrap_or(vcpu.states.guest);
        let times: Vec<_> = vcpus.iter().map(|vcpu| (vcpu.id, sampled(vcpu))).collect();
        let none = Tallies::default();
        let estimate = self.ticks.estimate(&times, tallies.unwrap_or(&none));
        (estimate.samples, estimate.time)
    }
}
