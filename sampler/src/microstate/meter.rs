//! Reader of the clocks of one vCPU, which makes rows of them, on the collector's thread.

use std::collections::HashMap;
use std::sync::Arc;

use attach::{CpuTaker, ExitNote, HostTick, VcpuCourse};
use vmm::{Counters as KvmCounters, Region, ThreadTimes, counters::Kind, monotonic_ns};

use super::clock::StateTimes;
use super::exits::{ExitCount, ExitKey};
use super::foreign;
use super::host::ThreadReader;
use super::stats::VcpuStats;
use crate::guest_cpu::GuestCpu;
use profile::histogram::quantile;
use profile::rows::Microstates;
use profile::rows::{ExitRow, HostWaitRow, KvmCounterRow, MicrostateRow, RateRow, VcpuRow};

/// KVM's times of halts that ended while KVM still polled (arch/x86/kvm/x86.c, `kvm_vcpu_stats_desc`, Linux
/// 6.12). The thread runs then, but the guest does not.
const POLLED: [&str; 2] = ["halt_poll_success_ns", "halt_poll_fail_ns"];

/// The meter of one vCPU.
#[derive(Debug)]
pub(crate) struct VcpuMeter {
    vcpu: u8,
    stats: Arc<VcpuStats>,
    thread: Option<ThreadReader>,
    kvm: Option<KvmCounters>,
    /// Counts of the host's kernel, of an attached vCPU.
    course: Option<VcpuCourse>,
    /// Time that KVM had polled before, ns.
    polled_before_ns: u64,
    /// Time for which the host had stopped the whole process, ns.
    stopped_ns: u64,
    /// States that were reported so far.
    reported: Microstates,
    exits: HashMap<u64, ReportedExit>,
    counters: Vec<u64>,
    /// Sampling rate that was last reported.
    rate_hz: f64,
    /// Relative standard error of the guest time of an attached vCPU.
    guest_error: f64,
}

impl VcpuMeter {
    pub(crate) fn new(vcpu: u8, stats: Arc<VcpuStats>) -> Self {
        Self {
            vcpu,
            rate_hz: stats.pace.in_force().0.sampled_hz(),
            stats,
            thread: None,
            kvm: None,
            course: None,
            polled_before_ns: 0,
            stopped_ns: 0,
            reported: Microstates::default(),
            exits: HashMap::new(),
            counters: Vec::new(),
            guest_error: 0.0,
        }
    }

    /// Returns the CPU that the guest's kernel takes this vCPU for.
    pub(crate) fn guest_cpu(&self) -> GuestCpu {
        self.stats.cpu.get().copied().unwrap_or(GuestCpu::ApicId(self.vcpu.into()))
    }

    /// Sets KVM's counters of this vCPU.
    pub(crate) fn set_kvm_counters(&mut self, kvm: Option<KvmCounters>) {
        if let Some(polls) = kvm.as_ref().and_then(|kvm| kvm.sum_of(&POLLED)) {
            // Set once: a vCPU keeps its counters.
            drop(self.stats.polls.set(polls));
        }
        self.kvm = kvm;
    }

    /// Sets what the host's kernel counts of this vCPU, which is another process'.
    pub(crate) fn set_course(&mut self, course: Option<VcpuCourse>) {
        self.course = course;
        // The machine has run before.
        self.polled_before_ns = self.polled();
    }

    /// Notes that the host had stopped the whole process for `ns`.
    pub(crate) fn stopped(&mut self, ns: u64) {
        self.stopped_ns = self.stopped_ns.saturating_add(ns);
    }

    /// Returns the vCPU's row, and a row of the time in each state since the last call. `zero_ns` is the
    /// start of the profile, CLOCK_MONOTONIC.
    pub(crate) fn read(&mut self, zero_ns: u64) -> (VcpuRow, Option<MicrostateRow>) {
        let mut window = None;
        if let Some((until_ns, places)) = self.stats.clock.read(monotonic_ns) {
            let target = self.states(&places);
            let before = self.reported;
            self.reported = advance(&before, &target);
            let states = self.reported.since(&before);
            let time_ns = until_ns.saturating_sub(zero_ns);
            window = (states.wall() > 0).then_some(MicrostateRow { vcpu: self.vcpu, time_ns, states });
        }
        let mut row = self.stats.row(self.vcpu, self.reported);
        if let Some(returns) = self.course.as_ref().and_then(VcpuCourse::returns) {
            row.exits = returns;
        }
        (row, window)
    }

    /// Returns the relative standard error of the guest time up to now; `None` if the time is exact.
    pub(crate) fn guest_error(&self) -> Option<f64> {
        Some(self.guest_error).filter(|error| *error > 0.0)
    }

    /// Returns the rate of ticks in force, Hz, and the time since which it is, CLOCK_MONOTONIC ns.
    pub(crate) fn due_ticks(&self) -> (f64, u64) {
        let (plan, since_ns) = self.stats.pace.in_force();
        (plan.ticks_hz(), since_ns)
    }

    /// Returns the sampling rate in force, Hz.
    pub(crate) fn sampled_hz(&self) -> f64 {
        self.stats.pace.in_force().0.sampled_hz()
    }

    /// Returns the sampling rate if it has changed since the last call.
    pub(crate) fn changed_rate(&mut self, zero_ns: u64) -> Option<RateRow> {
        let (plan, since_ns) = self.stats.pace.in_force();
        let rate_hz = plan.sampled_hz();
        let changed = std::mem::replace(&mut self.rate_hz, rate_hz).to_bits() != rate_hz.to_bits();
        changed.then(|| RateRow { vcpu: self.vcpu, time_ns: since_ns.saturating_sub(zero_ns), rate_hz })
    }

    /// Returns the sampling rate in force as a row from this time on, ns since the run's start.
    pub(crate) fn rate_row(&self, time_ns: u64) -> RateRow {
        RateRow { vcpu: self.vcpu, time_ns, rate_hz: self.rate_hz }
    }

    fn thread(&mut self) -> Option<&ThreadReader> {
        if self.thread.is_none() {
            self.thread = self.stats.clock.reader();
        }
        self.thread.as_ref()
    }

    /// Returns the times in each state, by all clocks.
    fn states(&mut self, places: &StateTimes) -> Microstates {
        let first = self.stats.clock.first();
        let times = self.times().map(|now| ThreadTimes {
            run_ns: now.run_ns.saturating_sub(first.run_ns),
            waited_ns: now.waited_ns.saturating_sub(first.waited_ns),
        });
        if self.stats.clock.is_foreign() {
            let polled = (self.kvm.is_some() || self.course.is_some()).then(|| self.polled());
            if let (Some(times), Some(vmm)) = (times, self.course.as_ref().and_then(VcpuCourse::vmm_times)) {
                return foreign::exact(places, times, vmm, polled.unwrap_or(0));
            }
            let states = foreign::split(places, times, &self.stats.seen, polled);
            self.guest_error = foreign::guest_error(&states, times, &self.stats.seen, polled);
            return states;
        }
        let inside =
            RunParts { kvm_ns: self.stats.kvm_ns(), polled_ns: self.polled(), stopped_ns: self.stopped_ns };
        split(places, times, inside)
    }

    fn times(&mut self) -> Option<ThreadTimes> {
        if let Some(last) = self.stats.clock.last() {
            return Some(last);
        }
        self.thread()?.read()
    }

    /// Reads the time in which KVM polled for the wake-up of a halted guest since the meter has its counters,
    /// ns.
    fn polled(&mut self) -> u64 {
        // The last values stay when the counters of an ended vCPU cannot be read.
        match (&mut self.kvm, &self.course) {
            (Some(kvm), _) => {
                if let Ok(values) = kvm.read() {
                    self.counters.clear();
                    self.counters.extend(values);
                }
            }
            (None, Some(course)) => course.read_counters(&mut self.counters),
            (None, None) => return 0,
        }
        let named = self.counter_names().zip(&self.counters);
        let polled =
            named.filter(|((name, _), _)| POLLED.contains(name)).map(|(_, value)| value).sum::<u64>();
        polled.saturating_sub(self.polled_before_ns)
    }

    /// Returns the names of KVM's counters, and whether each only grows.
    fn counter_names(&self) -> impl Iterator<Item = (&str, bool)> {
        let opened = self.kvm.iter().flat_map(|kvm| kvm.list());
        let opened = opened.map(|counter| (counter.name.as_str(), counter.kind == Kind::Cumulative));
        let course = self.course.iter().filter(|_| self.kvm.is_none()).flat_map(VcpuCourse::counters);
        opened.chain(course.map(|counter| (counter.name.as_str(), counter.grows())))
    }

    /// Returns the exits whose counts have changed since the last call. `next` numbers new ones.
    pub(crate) fn exits(&mut self, regions: &[Region], next: &mut u32) -> Vec<ExitRow> {
        let mut rows = Vec::new();
        let counted = self.course.as_ref().and_then(VcpuCourse::exits);
        let counted = counted.map(|exits| exits.into_iter().map(ExitCount::from).collect());
        for exit in counted.unwrap_or_else(|| self.stats.exits.read()) {
            let reported = self.exits.entry(exit.key.number()).or_insert_with(|| {
                *next += 1;
                ReportedExit { id: *next, ..ReportedExit::default() }
            });
            reported.unnoted = exit.unnoted;
            if reported.count != exit.count {
                reported.count = exit.count;
                rows.push(exit_row(reported.id, self.vcpu, exit, regions));
            }
        }
        rows
    }

    /// Returns the exits that were reported, by their keys.
    pub(crate) fn reported_exits(&self) -> &HashMap<u64, ReportedExit> {
        &self.exits
    }

    /// Takes the exits that the host's kernel has noted since the last call, with the vCPU's APIC id.
    pub(crate) fn take_notes(&self) -> Option<(usize, Vec<ExitNote>)> {
        self.course.as_ref().map(|course| (course.apic_id(), course.take_notes()))
    }

    /// Takes the ticks with stacks of the host since the last call, and the number of those for which there
    /// was no room.
    pub(crate) fn take_host_ticks(&self) -> Option<(Vec<HostTick>, u64)> {
        self.course.as_ref().map(VcpuCourse::take_host_ticks)
    }

    /// Returns KVM's counters as last read.
    pub(crate) fn counters(&self) -> Vec<KvmCounterRow> {
        let rows = self.counter_names().zip(&self.counters).map(|((name, grows), value)| KvmCounterRow {
            vcpu: self.vcpu,
            name: name.to_owned(),
            value: *value,
            grows,
        });
        rows.collect()
    }

    /// Returns the waits for a CPU by the process of the host that had it.
    pub(crate) fn host_waits(&self) -> Vec<HostWaitRow> {
        let takers = self.course.as_ref().map(VcpuCourse::takers).unwrap_or_default();
        let row = |CpuTaker { pid, name, count, total_ns }| HostWaitRow {
            vcpu: self.vcpu,
            pid: pid.unwrap_or(0),
            name,
            count,
            total_ns,
        };
        takers.into_iter().map(row).collect()
    }
}

/// Exits for one reason that were reported.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReportedExit {
    /// Row id.
    pub id: u32,
    count: u64,
    /// Exits that were to be noted and were not, and their time, ns.
    pub unnoted: (u64, u64),
}

/// Further times within KVM_RUN, ns.
#[derive(Debug, Clone, Copy, Default)]
struct RunParts {
    /// On a CPU while the guest was halted, without polling.
    kvm_ns: u64,
    /// Polling for a wake-up of the halted guest.
    polled_ns: u64,
    /// Stopped by the host.
    stopped_ns: u64,
}

/// Splits the time in KVM_RUN by the host's scheduler statistics of the thread. Blocked is the time that the
/// thread neither ran nor waited; a vCPU's thread blocks in KVM_RUN or where it is held. Without statistics,
/// all time in KVM_RUN counts for the guest.
fn split(places: &StateTimes, times: Option<ThreadTimes>, inside: RunParts) -> Microstates {
    let StateTimes { run, vmm, sampler, paused } = *places;
    let Some(times) = times else {
        return Microstates { guest: run, vmm, sampler, paused, ..Microstates::default() };
    };
    let blocked = places.wall().saturating_sub(times.run_ns).saturating_sub(times.waited_ns);
    let asleep = blocked.saturating_sub(paused);
    let stopped = inside.stopped_ns.min(asleep);
    let halted = (asleep - stopped).saturating_add(inside.polled_ns).min(run);
    let waiting = times.waited_ns.saturating_add(stopped).min(run - halted);
    let kvm = inside.kvm_ns.min(run - halted - waiting);
    Microstates { guest: run - halted - waiting - kvm, halted, waiting, kvm, vmm, sampler, paused }
}

/// Returns the next states to report: no state shrinks, and the sum is that of `target`. The scheduler counts
/// a wait only when the wait ends, so a later reading may take back a little; the next one makes up for it.
fn advance(reported: &Microstates, target: &Microstates) -> Microstates {
    let mut more = target.since(reported);
    let mut excess = more.wall().saturating_sub(target.wall().saturating_sub(reported.wall()));
    // Only times within KVM_RUN are ever revised. The guest's time is the remainder, so it is cut first.
    for state in [&mut more.guest, &mut more.waiting, &mut more.halted, &mut more.kvm] {
        let cut = excess.min(*state);
        *state -= cut;
        excess -= cut;
    }
    reported.plus(&more)
}

fn exit_row(id: u32, vcpu: u8, exit: ExitCount, regions: &[Region]) -> ExitRow {
    let ExitCount { key, count, total_ns, max_ns, times, .. } = exit;
    ExitRow {
        id,
        vcpu,
        reason: key.reason().to_owned(),
        address: key.address(),
        device: device(key, regions).map(str::to_owned),
        count,
        total_ns,
        max_ns,
        p50_ns: quantile(&times, 0.5, max_ns),
        p99_ns: quantile(&times, 0.99, max_ns),
        times,
    }
}

/// Returns the name of the device at the key's address.
fn device(key: ExitKey, regions: &[Region]) -> Option<&str> {
    let (space, address) = (key.space()?, key.address()?);
    let here = |region: &&Region| region.space == space && (region.first..=region.last).contains(&address);
    regions.iter().find(here).map(|region| region.name.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    /// Returns a file with one of KVM's counters, at this value (Documentation/virt/kvm/api.rst, 4.133).
    fn counters_file(name: &str, value: u64) -> File {
        let mut bytes: Vec<u8> = Vec::new();
        // Flags, bytes of a name, number of counters, offsets of id, descriptors and values.
        [0_u32, 32, 1, 24, 24, 72].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        // A count that only grows, of one number.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        bytes.extend(1_u16.to_ne_bytes());
        bytes.extend([0; 8]);
        let mut text = name.as_bytes().to_vec();
        text.resize(32, 0);
        bytes.extend(text);
        bytes.extend(value.to_ne_bytes());
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&bytes, 0).expect("room");
        file
    }

    #[test]
    fn what_kvm_had_polled_before_an_attachment_is_not_the_runs() {
        let file = counters_file(POLLED[0], 500);
        let kvm = KvmCounters::from_descriptor(file.try_clone().expect("a copy").into()).expect("counters");
        let mut meter = VcpuMeter::new(0, Arc::default());
        meter.set_kvm_counters(Some(kvm));
        meter.set_course(None);
        assert_eq!(meter.polled(), 0);
        file.write_all_at(&700_u64.to_ne_bytes(), 72).expect("room");
        assert_eq!(meter.polled(), 200);
        let [row] = &meter.counters()[..] else { panic!("one counter") };
        assert_eq!((row.name.as_str(), row.value, row.grows), (POLLED[0], 700, true), "as KVM has it");
    }

    fn times(run_ns: u64, waited_ns: u64) -> Option<ThreadTimes> {
        Some(ThreadTimes { run_ns, waited_ns })
    }

    #[test]
    fn blocked_is_halted_and_the_rest_is_the_guests() {
        let places = StateTimes { run: 900, vmm: 60, sampler: 30, paused: 10 };
        let all = |guest, halted, waiting| Microstates {
            guest,
            halted,
            waiting,
            kvm: 0,
            vmm: 60,
            sampler: 30,
            paused: 10,
        };
        let inside = |kvm_ns, polled_ns, stopped_ns| RunParts { kvm_ns, polled_ns, stopped_ns };
        // 1,000 of wall, 450 run, 40 waited, so 510 blocked, of which 10 held.
        assert_eq!(split(&places, times(450, 40), inside(0, 0, 0)), all(360, 500, 40));
        assert_eq!(
            split(&places, times(450, 40), inside(0, 25, 0)),
            all(335, 525, 40),
            "polling is halted, too"
        );
        assert_eq!(
            split(&places, times(450, 40), inside(0, 0, 200)),
            all(360, 300, 240),
            "stopped by the host"
        );
        assert_eq!(
            split(&places, times(450, 40), inside(100, 30, 0)),
            Microstates { guest: 230, halted: 530, waiting: 40, kvm: 100, vmm: 60, sampler: 30, paused: 10 },
            "what is polled for in other runs is not part of what ticks cost"
        );
        assert_eq!(split(&places, None, inside(3, 7, 0)), all(900, 0, 0));
        // Statistics that claim more than there was.
        assert_eq!(split(&places, times(u64::MAX, u64::MAX), inside(u64::MAX, u64::MAX, 0)), all(0, 900, 0));
        assert_eq!(split(&places, times(0, 2_000), inside(9, 0, 0)), all(0, 0, 900));
    }

    proptest! {
        /// Reported times never shrink, and the sum is always the wall time.
        #[test]
        fn told_states_only_grow_and_add_up(
            steps in prop::collection::vec((0_u64..1_000, 0_u64..1_000, 0_u64..1_000, 0_u64..90), 1..40),
        ) {
            let (mut reported, mut wall) = (Microstates::default(), 0);
            for (run, halted, waiting, vmm) in steps {
                wall += run + vmm;
                let in_run = wall - reported.vmm - vmm;
                let halted = (halted * 20).min(in_run);
                let waiting = (waiting * 20).min(in_run - halted);
                let target = Microstates {
                    guest: in_run - halted - waiting, halted, waiting, vmm: reported.vmm + vmm, ..Microstates::default()
                };
                let next = advance(&reported, &target);
                prop_assert_eq!(next.wall(), wall);
                for ((_, before), (_, after)) in reported.named().iter().zip(next.named()) {
                    prop_assert!(after >= *before, "{:?} {:?}", reported, next);
                }
                reported = next;
            }
        }
    }
}
