//! Figures of `vprof stat`: states of vCPUs, exits, interrupts and KVM's counters, of a whole run or a part
//! of it.
//!
//! [`Stat`] serializes to exactly the object that docs/json.md describes; a test compares the two.

mod read;
mod sites;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::quantile;
pub use sites::ExitSiteStat;

/// The figures of a run up to now, or, after [`Stat::since`], of the time between two readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// vprof's version that wrote the profile.
    pub version: String,
    /// `kvm`, `portable`, `attached`, or `unknown`.
    pub host: String,
    /// Figures that this host cannot provide, as a sentence: they are 0 or absent. `None` if all are
    /// available.
    pub unavailable: Option<String>,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// False while the run is in progress, and if it was cut short.
    pub complete: bool,
    /// Start of the figures, s since the run's start.
    pub from_s: f64,
    /// End of the figures, s since the run's start.
    pub to_s: f64,
    /// One entry per vCPU.
    pub vcpus: Vec<VcpuStat>,
    /// One entry per vCPU, reason and address; longest total first.
    pub exits: Vec<ExitStat>,
    /// Exits by the guest's process and function, longest total first; empty unless the host's kernel notes
    /// them.
    pub exit_sites: Vec<ExitSiteStat>,
    /// Interrupts raised by devices; most first.
    pub interrupts: Vec<InterruptStat>,
    /// Interrupts that the guest has served, longest total first; empty without exact mode.
    pub served: Vec<ServedStat>,
    /// KVM's counters, by name and vCPU.
    pub kvm_counters: Vec<CounterStat>,
    /// Waits of vCPUs for a CPU by the process of the host that had it; longest total first.
    pub host_waits: Vec<HostWaitStat>,
}

/// Time of one vCPU in each state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VcpuStat {
    /// Number in the profile: 0 and up.
    pub id: u16,
    /// Name of its virtual machine in a merged profile.
    pub vm: Option<String>,
    /// Number in its virtual machine; `id` unless the profile is merged.
    pub number: u16,
    /// Length, ns.
    pub wall_ns: u64,
    /// Its parts by state, ns; they add up to `wall_ns`.
    pub states: BTreeMap<String, u64>,
    /// Returns of KVM_RUN.
    pub exits: u64,
    /// Samples recorded.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
}

/// Exits of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitStat {
    /// vCPU; `None` after [`Stat::by_device`] for the sum of all.
    pub vcpu: Option<u16>,
    /// Reason, like `port write`.
    pub reason: String,
    /// Port or guest physical address.
    pub address: Option<u64>,
    /// The device that answers there.
    pub device: Option<String>,
    /// Number of exits.
    pub count: u64,
    /// From the exits to the next entries, ns.
    pub total_ns: u64,
    /// `total_ns / count`.
    pub mean_ns: u64,
    /// Median, ns, to an eighth.
    pub p50_ns: u64,
    /// 99th percentile, ns, to an eighth.
    pub p99_ns: u64,
    /// Longest of the whole run, ns.
    pub max_ns: u64,
    /// Shortest time of a bucket in ns, and the number of exits in it.
    #[serde(skip)]
    times: Vec<(u64, u64)>,
}

/// Interrupts of one device and vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptStat {
    /// The device.
    pub device: String,
    /// The guest's interrupt vector; `None` for a line of the I/O APIC.
    pub vector: Option<u8>,
    /// Number of interrupts.
    pub count: u64,
}

/// Hard interrupts that the guest has served, recorded by exact mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedStat {
    /// vCPU; `None` after [`Stat::served_by_name`] for the sum of all.
    pub vcpu: Option<u16>,
    /// Name of the handler: a device as in `/proc/interrupts`, or the kernel's name of one of the machine's
    /// own vectors.
    pub name: String,
    /// A device's vector on this vCPU; `None` for the machine's own.
    pub vector: Option<u8>,
    /// Number of interrupts.
    pub count: u64,
    /// In their handlers, ns.
    pub total_ns: u64,
    /// `total_ns / count`.
    pub mean_ns: u64,
    /// Longest of the whole run, ns.
    pub max_ns: u64,
}

/// Waits of a vCPU's thread for a CPU that one process of the host had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWaitStat {
    /// vCPU; `None` after [`Stat::waits_by_process`] for the sum of all.
    pub vcpu: Option<u16>,
    /// The process; `None` for all that share one row.
    pub pid: Option<u32>,
    /// Its name; empty for all that share one row.
    pub name: String,
    /// Number of waits.
    pub count: u64,
    /// Length of the waits, ns.
    pub total_ns: u64,
    /// `total_ns / count`.
    pub mean_ns: u64,
}

/// One of KVM's counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterStat {
    /// vCPU.
    pub vcpu: u16,
    /// KVM's name.
    pub name: String,
    /// ns where the name ends in `_ns`, else a count.
    pub value: u64,
    /// True if it only grows; otherwise it is a present value or a peak.
    pub grows: bool,
}

impl ExitStat {
    /// Returns the histogram of its times from the exit to the next entry: shortest time of a bucket in ns,
    /// and the number of exits in it, rising. Buckets are those of [`crate::histogram`].
    pub fn times(&self) -> &[(u64, u64)] {
        &self.times
    }

    /// Calculates the figures that follow from the others.
    fn derive(&mut self) {
        self.mean_ns = self.total_ns.checked_div(self.count).unwrap_or(0);
        self.p50_ns = quantile(&self.times, 0.5, self.max_ns);
        self.p99_ns = quantile(&self.times, 0.99, self.max_ns);
    }

    /// Adds another kind's exits to these.
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        let mut times: BTreeMap<u64, u64> = self.times.iter().copied().collect();
        for (low, count) in &other.times {
            *times.entry(*low).or_default() += count;
        }
        self.times = times.into_iter().collect();
        self.derive();
    }

    fn since(&self, earlier: &Self) -> Self {
        let before: BTreeMap<u64, u64> = earlier.times.iter().copied().collect();
        let left = |(low, count): &(u64, u64)| {
            let count = count.saturating_sub(before.get(low).copied().unwrap_or(0));
            (count > 0).then_some((*low, count))
        };
        let mut exit = Self {
            count: self.count.saturating_sub(earlier.count),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            times: self.times.iter().filter_map(left).collect(),
            ..self.clone()
        };
        exit.derive();
        exit
    }
}

impl Stat {
    /// Returns the figures since `earlier`, a reading of the same run. Rows to which nothing was added are
    /// left out.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let vcpus = self.vcpus.iter().map(|now| {
            let before = earlier.vcpus.iter().find(|before| before.id == now.id);
            before.map_or_else(|| now.clone(), |before| now.since(before))
        });
        let exits = self.exits.iter().map(|now| {
            let same = |before: &&ExitStat| before.kind() == now.kind();
            earlier.exits.iter().find(same).map_or_else(|| now.clone(), |before| now.since(before))
        });
        let interrupts = self.interrupts.iter().map(|now| {
            let same = |before: &&InterruptStat| (&before.device, before.vector) == (&now.device, now.vector);
            let before = earlier.interrupts.iter().find(same).map_or(0, |before| before.count);
            InterruptStat { count: now.count.saturating_sub(before), ..now.clone() }
        });
        let served = self.served.iter().map(|now| {
            let same = |before: &&ServedStat| before.key() == now.key();
            earlier.served.iter().find(same).map_or_else(|| now.clone(), |before| now.since(before))
        });
        let counters = self.kvm_counters.iter().map(|now| {
            let same = |before: &&CounterStat| (&before.name, before.vcpu) == (&now.name, now.vcpu);
            let before = earlier.kvm_counters.iter().find(same).filter(|_| now.grows);
            CounterStat { value: now.value.saturating_sub(before.map_or(0, |b| b.value)), ..now.clone() }
        });
        let waits = self.host_waits.iter().map(|now| {
            let same = |before: &&HostWaitStat| (before.vcpu, before.pid) == (now.vcpu, now.pid);
            let before = earlier.host_waits.iter().find(same);
            let (count, total_ns) = before.map_or((0, 0), |before| (before.count, before.total_ns));
            now.clone().with(now.count.saturating_sub(count), now.total_ns.saturating_sub(total_ns))
        });
        let mut stat = Self {
            from_s: earlier.to_s,
            vcpus: vcpus.collect(),
            exits: exits.filter(|exit| exit.count > 0).collect(),
            exit_sites: sites::since(&self.exit_sites, &earlier.exit_sites),
            interrupts: interrupts.filter(|interrupt| interrupt.count > 0).collect(),
            served: served.filter(|served| served.count > 0).collect(),
            kvm_counters: counters.collect(),
            host_waits: waits.filter(|wait| wait.count > 0).collect(),
            ..self.clone()
        };
        stat.sort();
        stat
    }

    /// Keeps only one vCPU, of each virtual machine; devices' interrupts belong to no vCPU and stay.
    #[must_use]
    pub fn of_vcpu(mut self, vcpu: u16) -> Self {
        self.vcpus.retain(|row| row.number == vcpu);
        self.exits.retain(|row| row.vcpu == Some(vcpu));
        self.exit_sites.retain(|row| row.vcpu == Some(vcpu));
        self.served.retain(|row| row.vcpu == Some(vcpu));
        self.kvm_counters.retain(|row| row.vcpu == vcpu);
        self.host_waits.retain(|row| row.vcpu == Some(vcpu));
        self
    }

    /// Returns exits by reason and device: over all addresses, and over all vCPUs. Without a device, and for
    /// `other` reasons, addresses stay separate.
    pub fn by_device(&self) -> Vec<ExitStat> {
        let mut sums: BTreeMap<_, ExitStat> = BTreeMap::new();
        for exit in &self.exits {
            let address = if exit.device.is_some() { None } else { exit.address };
            let key = (exit.reason.clone(), exit.device.clone(), address);
            let sum = ExitStat { vcpu: None, address, ..exit.clone() };
            sums.entry(key).and_modify(|sum| sum.add(exit)).or_insert(sum);
        }
        let mut list: Vec<_> = sums.into_values().collect();
        list.sort_by_key(|exit| std::cmp::Reverse(exit.total_ns));
        list
    }

    /// Returns served interrupts by name, over all vCPUs; the vector if it is the same on all.
    pub fn served_by_name(&self) -> Vec<ServedStat> {
        let mut sums: BTreeMap<&str, ServedStat> = BTreeMap::new();
        for served in &self.served {
            let whole = || ServedStat { vcpu: None, ..served.clone() };
            sums.entry(&served.name).and_modify(|sum| sum.add(served)).or_insert_with(whole);
        }
        let mut list: Vec<_> = sums.into_values().collect();
        list.sort_by_key(|served| std::cmp::Reverse(served.total_ns));
        list
    }

    /// Returns waits by the process that had the CPU, over all vCPUs.
    pub fn waits_by_process(&self) -> Vec<HostWaitStat> {
        let mut sums: BTreeMap<(Option<u32>, &str), HostWaitStat> = BTreeMap::new();
        for wait in &self.host_waits {
            let sum = sums
                .entry((wait.pid, &wait.name))
                .or_insert_with(|| HostWaitStat { vcpu: None, ..wait.clone().with(0, 0) });
            *sum = sum.clone().with(sum.count + wait.count, sum.total_ns.saturating_add(wait.total_ns));
        }
        let mut list: Vec<_> = sums.into_values().collect();
        list.sort_by_key(|wait| std::cmp::Reverse(wait.total_ns));
        list
    }

    fn sort(&mut self) {
        self.host_waits.sort_by_key(|wait| (std::cmp::Reverse(wait.total_ns), wait.vcpu));
        self.exits.sort_by_key(|exit| (std::cmp::Reverse(exit.total_ns), exit.vcpu));
        sites::sort(&mut self.exit_sites);
        self.interrupts.sort_by_key(|interrupt| std::cmp::Reverse(interrupt.count));
        self.served.sort_by_key(|served| (std::cmp::Reverse(served.total_ns), served.vcpu));
    }
}

impl ExitStat {
    fn kind(&self) -> (Option<u16>, &str, Option<u64>) {
        (self.vcpu, &self.reason, self.address)
    }
}

impl HostWaitStat {
    fn with(self, count: u64, total_ns: u64) -> Self {
        Self { count, total_ns, mean_ns: total_ns.checked_div(count).unwrap_or(0), ..self }
    }
}

impl ServedStat {
    fn key(&self) -> (Option<u16>, &str, Option<u8>) {
        (self.vcpu, &self.name, self.vector)
    }

    fn with(self, count: u64, total_ns: u64) -> Self {
        Self { count, total_ns, mean_ns: total_ns.checked_div(count).unwrap_or(0), ..self }
    }

    fn since(&self, earlier: &Self) -> Self {
        let count = self.count.saturating_sub(earlier.count);
        self.clone().with(count, self.total_ns.saturating_sub(earlier.total_ns))
    }

    fn add(&mut self, other: &Self) {
        let (count, total_ns) = (self.count + other.count, self.total_ns + other.total_ns);
        let sum = Self {
            vector: self.vector.filter(|vector| other.vector == Some(*vector)),
            max_ns: self.max_ns.max(other.max_ns),
            ..self.clone()
        };
        *self = sum.with(count, total_ns);
    }
}

impl VcpuStat {
    fn since(&self, earlier: &Self) -> Self {
        let states = self.states.iter().map(|(name, ns)| {
            (name.clone(), ns.saturating_sub(earlier.states.get(name).copied().unwrap_or(0)))
        });
        Self {
            id: self.id,
            vm: self.vm.clone(),
            number: self.number,
            wall_ns: self.wall_ns.saturating_sub(earlier.wall_ns),
            states: states.collect(),
            exits: self.exits.saturating_sub(earlier.exits),
            samples: self.samples.saturating_sub(earlier.samples),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}

#[cfg(test)]
mod tests;
