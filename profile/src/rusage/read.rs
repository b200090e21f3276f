//! Compares the books in a profile with its samples and clocks.

use std::collections::HashMap;

use linux::ChildCpuTimes;
use rusqlite::Connection;

use super::books::{Books, Kept, Told};
use super::{ChildrenRusage, CpuRusage, CpuTimes, ProcessRusage, Rusage, ThreadRusage, outside};
use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Tallies, Ticks, Time, trustworthy};
use crate::numbers::{part, seconds, unsigned};
use crate::paces::{Paces, scaled};
use crate::report::tables::Stretch;
use crate::rows::Microstates;
use crate::rows::{Mode, VcpuRow, VcpuState};
use crate::store::{MODES, Profile, ProfileError, snapshot};

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

impl Books {
    fn clock(&self) -> ClockKind {
        ClockKind::told(self.meta.get("clock").map(String::as_str))
    }

    fn compare(&self, seen: &Seen) -> Rusage {
        let text = |key: &str| self.meta.get(key).cloned();
        let duration = self.meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let processes = self.processes.iter();
        let found = processes.filter_map(|(id, kept)| self.process(*id, kept, seen));
        let (mut processes, chances): (Vec<_>, Vec<_>) = found.unzip();
        for (process, outside) in processes.iter_mut().zip(outside(&chances)) {
            process.outside = outside && seen.unsampled_ns == 0;
        }
        processes.sort_by_key(|p| {
            let told = p.reported_user_ns + p.reported_system_ns;
            (std::cmp::Reverse(told.max(p.true_cpu_ns)), p.pid, p.instance)
        });
        let threads = self.threads.iter();
        let found = threads.filter_map(|(key, kept)| self.thread(*key, kept, seen));
        let (mut threads, chances): (Vec<_>, Vec<_>) = found.unzip();
        for (thread, outside) in threads.iter_mut().zip(outside(&chances)) {
            thread.outside = outside && seen.unsampled_ns == 0;
        }
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
            cpus: self.cpus.iter().filter_map(|(cpu, kept)| self.cpu(*cpu, kept, seen)).collect(),
        }
    }

    /// With the chance that it is told so where it is right; what is outside is known of all together.
    fn process(&self, id: u32, kept: &Kept<Told>, seen: &Seen) -> Option<(ProcessRusage, f64)> {
        let (comm, pid, instance) = self.instances.get(&id)?.clone();
        let of = |part| seen.time(&self.vcpus, seen.processes.get(&(id, part)));
        let (samples, truth) = of(Part::All);
        let (grown, before) = (kept.grown(), kept.before());
        let told = grown.user_ns.saturating_add(grown.system_ns);
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
            true_cpu_ns: whole(truth.ns),
            true_low_ns: whole(truth.low_ns),
            true_high_ns: whole(truth.high_ns),
            true_user_ns: whole(of(Part::User).1.ns),
            interrupted_ns: whole(of(Part::Interrupted).1.ns),
            difference_ns: super::difference(told, whole(truth.ns)),
            outside: false,
            children: self.children(id, &grown, seen),
        };
        Some((process, kept.chance(&truth)))
    }

    fn children(&self, id: u32, grown: &Told, seen: &Seen) -> Option<ChildrenRusage> {
        let (books, processes) = (grown.children, self.families.below(id));
        if books == ChildCpuTimes::default() && processes == 0 {
            return None;
        }
        let (samples, truth) = seen.time(&self.vcpus, seen.processes.get(&(id, Part::Children)));
        let told = books.user_ns.saturating_add(books.system_ns);
        Some(ChildrenRusage {
            processes,
            seen: self.families.seen(),
            reported_user_ns: books.user_ns,
            reported_system_ns: books.system_ns,
            switches: books.voluntary.saturating_add(books.involuntary),
            minor_faults: books.minor_faults,
            major_faults: books.major_faults,
            samples,
            true_cpu_ns: whole(truth.ns),
            true_low_ns: whole(truth.low_ns),
            true_high_ns: whole(truth.high_ns),
            difference_ns: super::difference(told, whole(truth.ns)),
        })
    }

    fn thread(&self, key: (u32, i32), kept: &Kept<Told>, seen: &Seen) -> Option<(ThreadRusage, f64)> {
        let (_, pid, instance) = self.instances.get(&key.0)?.clone();
        let grown = kept.grown();
        let (_, truth) = seen.time(&self.vcpus, seen.threads.get(&key));
        let thread = ThreadRusage {
            comm: self.thread_names.get(&key).cloned(),
            pid,
            instance,
            tid: key.1,
            since_s: kept.since_ns().map(seconds),
            reported_user_ns: grown.user_ns,
            reported_system_ns: grown.system_ns,
            runtime_ns: grown.runtime_ns,
            true_cpu_ns: whole(truth.ns),
            true_low_ns: whole(truth.low_ns),
            true_high_ns: whole(truth.high_ns),
            outside: false,
        };
        Some((thread, kept.chance(&truth)))
    }

    /// Books of CPUs have the numbers of their vCPUs.
    fn cpu(&self, cpu: u32, kept: &Kept<CpuTimes>, seen: &Seen) -> Option<CpuRusage> {
        let vcpu = self.vcpus.iter().find(|vcpu| u32::from(vcpu.id) == cpu)?;
        let of = |mode| seen.time(std::slice::from_ref(vcpu), seen.modes.get(&(vcpu.id, mode))).1;
        let [user, system, irq, softirq, idle] = Kind::ALL.map(of);
        let states = seen.clocks.get(&vcpu.id).map_or_else(
            || Ends::whole(&vcpu.states),
            |stretches| Ends::between(stretches, kept.since_ns().unwrap_or(0), kept.last.0),
        );
        let times = |part: fn(&Time) -> f64, states: &Microstates| CpuTimes {
            user_ns: whole(part(&user)),
            system_ns: whole(part(&system)),
            irq_ns: whole(part(&irq)),
            softirq_ns: whole(part(&softirq)),
            idle_ns: states.halted + states.kvm + whole(part(&idle)),
            steal_ns: states.waiting + states.vmm + states.sampler + states.paused,
        };
        Some(CpuRusage {
            cpu,
            since_s: kept.since_ns().map(seconds),
            read_s: seconds(kept.last.0),
            reported: kept.grown(),
            before: kept.before(),
            truly: times(|time| time.ns, &states.likely),
            low: times(|time| time.low_ns, &states.low),
            high: times(|time| time.high_ns, &states.high),
        })
    }
}

/// The times of states between two moments: exact but for the stretches that a moment cuts, of which both parts may have
/// had all of a state's time.
struct Ends {
    likely: Microstates,
    low: Microstates,
    high: Microstates,
}

impl Ends {
    fn whole(states: &Microstates) -> Self {
        Self { likely: *states, low: *states, high: *states }
    }

    fn between(stretches: &[Stretch], from: u64, to: u64) -> Self {
        let mut ends = Self::whole(&Microstates::default());
        for stretch in stretches {
            let inside = stretch.end.min(to).saturating_sub(stretch.begin.max(from));
            let length = stretch.end.saturating_sub(stretch.begin);
            if inside == 0 {
                continue;
            }
            let add = |to: &mut Microstates, of: &dyn Fn(u64) -> u64| *to = to.plus(&stretch.states.map(of));
            add(&mut ends.likely, &|ns| scaled(ns, part(inside, length)));
            add(&mut ends.low, &|ns| ns.saturating_sub(length - inside));
            add(&mut ends.high, &|ns| ns.min(inside));
        }
        ends
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
    /// The own code of those that it has waited for.
    Children,
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

/// What the samples say, of each process, thread and CPU between the readings of its books.
struct Seen {
    ticks: Ticks,
    /// Time of vCPUs in the guest where they were not sampled throughout: what was sampled, ns.
    sampled_ns: HashMap<u8, u64>,
    unsampled_ns: u64,
    processes: HashMap<(u32, Part), Tallies>,
    threads: HashMap<(u32, i32), Tallies>,
    /// Of CPUs, between the readings of their books.
    modes: HashMap<(u8, Kind), Tallies>,
    clocks: HashMap<u8, Vec<Stretch>>,
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
            clocks: Stretch::read(connection)?,
        };
        seen.ticks.tell(&books.meta);
        for (&vcpu, stretches) in &seen.clocks {
            let divide = |own: &Stretch| paces.divide(vcpu, (own.begin, own.end), own.states.guest);
            let parts: Vec<_> = stretches.iter().flat_map(divide).collect();
            let changes = paces.of(vcpu);
            if !changes.is_empty() {
                seen.sampled_ns.insert(vcpu, parts.iter().map(|(_, ns)| ns).sum());
            }
            seen.ticks.divide(vcpu, parts);
            seen.ticks.change_mean(vcpu, changes.iter().map(|(since, rate)| (*since, mean_ns(*rate))));
        }
        let sql = "SELECT vcpu, mode, instance, tid, time_ns, vcpu_state FROM sample ORDER BY id";
        let mut statement = connection.prepare(sql)?;
        let mut samples = statement.query([])?;
        while let Some(row) = samples.next()? {
            let inside =
                row.get_ref(5)?.as_str().is_ok_and(|vcpu_state| vcpu_state == VcpuState::Guest.name());
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
        if books.cpus.get(&u32::from(vcpu)).is_some_and(|kept| kept.covers(time_ns)) {
            modes.entry((vcpu, Kind::of(mode))).or_default().add(ticks, tick);
        }
        let Some(instance) = instance else { return };
        let parts: &[Part] = match mode {
            Mode::User => &[Part::All, Part::User],
            Mode::Kernel => &[Part::All],
            // Its own work: the kernel's books charge it for them as well.
            Mode::SoftIrq if books.ksoftirqds.contains(&instance) => &[Part::All],
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => &[Part::Interrupted],
            Mode::Idle | Mode::Boot | Mode::Unknown => return,
        };
        if books.processes.get(&instance).is_some_and(|kept| kept.covers(time_ns)) {
            for part in parts {
                processes.entry((instance, *part)).or_default().add(ticks, tick);
            }
        }
        if parts.contains(&Part::All) {
            for &above in books.families.above(instance) {
                processes.entry((above, Part::Children)).or_default().add(ticks, tick);
            }
        }
        let thread = tid.map(|tid| (instance, tid)).filter(|_| parts.contains(&Part::All));
        if let Some(key) =
            thread.filter(|key| books.threads.get(key).is_some_and(|kept| kept.covers(time_ns)))
        {
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
