//! Clocks and counters of all vCPUs, read into rows of a batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attach::{ExitNote, HostTick, VcpuCounts};
use statistics::cpu_accounting::CpuStat;
use vmm::{Counters, InjectionCount, Injections, Machine, Observer, Region};

use super::standstill::DueTicks;
use crate::guest_cpu::GuestCpu;
use crate::microstate::meter::{ReportedExit, VcpuMeter};
use crate::microstate::stats::VcpuStats;
use profile::rows::{Batch, InjectedRow, RateRow};
use statistics::estimate::guest_error_key;

/// Time between rows of exits and KVM's counters.
const COUNTERS_PERIOD: Duration = Duration::from_secs(1);

/// Meters of all vCPUs, and the machine's own counters.
pub(super) struct VcpuCounters {
    meters: Vec<VcpuMeter>,
    /// Samples of each vCPU that the gate has dropped.
    passed_over: Vec<u64>,
    regions: Vec<Region>,
    injections: Injections,
    /// The highest row id of an exit.
    exit_rows: u32,
    counted: Instant,
}

impl VcpuCounters {
    pub(super) fn new(stats: &[Arc<VcpuStats>]) -> Self {
        Self {
            meters: (0..).zip(stats).map(|(id, stats)| VcpuMeter::new(id, Arc::clone(stats))).collect(),
            passed_over: vec![0; stats.len()],
            regions: Vec::new(),
            injections: Injections::default(),
            exit_rows: 0,
            counted: Instant::now(),
        }
    }

    /// Adds a vCPU that is another process', the next one.
    pub(super) fn add(&mut self, stats: Arc<VcpuStats>, counts: VcpuCounts) {
        let id = u8::try_from(self.meters.len()).unwrap_or(u8::MAX);
        let mut meter = VcpuMeter::new(id, stats);
        meter.set_kvm_counters(counts.opened);
        meter.set_course(counts.course);
        self.meters.push(meter);
        self.passed_over.push(0);
    }

    /// Takes the counters and the devices of the machine whose vCPUs these are.
    pub(super) fn bind<O: Observer>(&mut self, machine: &mut Machine<O>) {
        self.regions = machine.regions().to_vec();
        self.injections = machine.injections();
        self.set_kvm_counters(machine.take_counters());
    }

    /// Sets what is counted of the vCPUs, in their order, which are another process'.
    pub(super) fn set_counts(&mut self, counts: Vec<VcpuCounts>) {
        for (meter, VcpuCounts { opened, course }) in self.meters.iter_mut().zip(counts) {
            meter.set_kvm_counters(opened);
            meter.set_course(course);
        }
    }

    /// Sets KVM's counters of the vCPUs, in their order.
    fn set_kvm_counters(&mut self, counters: Vec<Option<Counters>>) {
        for (meter, kvm) in self.meters.iter_mut().zip(counters) {
            meter.set_kvm_counters(kvm);
        }
    }

    /// Returns the ticks that each vCPU is to have.
    pub(super) fn due_ticks(&self) -> impl Iterator<Item = DueTicks> {
        self.meters.iter().map(VcpuMeter::due_ticks).map(|(rate_hz, since_ns)| DueTicks { rate_hz, since_ns })
    }

    /// Returns the rate at which each vCPU is sampled, Hz.
    pub(super) fn sampled_hz(&self) -> impl Iterator<Item = f64> {
        self.meters.iter().map(VcpuMeter::sampled_hz)
    }

    /// Returns the CPU of the guest's kernel that each vCPU is.
    pub(super) fn guest_cpus(&self) -> impl Iterator<Item = GuestCpu> {
        self.meters.iter().map(VcpuMeter::guest_cpu)
    }

    /// Changes the numbers of CPUs from APIC ids to those of their vCPUs. CPUs whose vCPU is not sampled go.
    pub(super) fn number_vcpus(&self, cpus: &mut Vec<CpuStat>) {
        let mut ids: Vec<_> = cpus.iter().map(|stat| stat.cpu as usize).collect();
        ids.sort_unstable();
        let apic_ids: Vec<_> =
            self.meters.iter().map(|meter| meter.guest_cpu().apic_id(ids.iter().copied())).collect();
        cpus.retain_mut(|stat| {
            let vcpu = (0..).zip(&apic_ids).find(|(_, id)| **id == Some(stat.cpu as usize));
            vcpu.map(|(vcpu, _)| stat.cpu = vcpu).is_some()
        });
    }

    /// Notes that the host had stopped the whole process for `ns`.
    pub(super) fn stopped(&mut self, ns: u64) {
        self.meters.iter_mut().for_each(|meter| meter.stopped(ns));
    }

    /// Notes that the gate has dropped a sample of this vCPU.
    pub(super) fn pass_over(&mut self, vcpu: usize) {
        if let Some(count) = self.passed_over.get_mut(vcpu) {
            *count += 1;
        }
    }

    /// Returns the sampling rates that have changed since the last call.
    pub(super) fn changed_rates(&mut self, zero_ns: u64) -> impl Iterator<Item = RateRow> {
        self.meters.iter_mut().filter_map(move |meter| meter.changed_rate(zero_ns))
    }

    /// Returns the sampling rates in force as rows from this time on, ns since the run's start.
    pub(super) fn rate_rows(&self, time_ns: u64) -> impl Iterator<Item = RateRow> {
        self.meters.iter().map(move |meter| meter.rate_row(time_ns))
    }

    /// Reads the clocks of all vCPUs into `batch`. `zero_ns` is the start of the profile, CLOCK_MONOTONIC.
    pub(super) fn read_clocks(&mut self, zero_ns: u64, batch: &mut Batch) {
        batch.vcpus.clear();
        for (meter, passed_over) in self.meters.iter_mut().zip(&self.passed_over) {
            let (mut row, window) = meter.read(zero_ns);
            row.samples = row.samples.saturating_sub(*passed_over);
            if let Some(error) = meter.guest_error() {
                batch.meta.push((guest_error_key(row.id.into()), error.to_string()));
            }
            batch.vcpus.push(row);
            batch.microstates.extend(window);
        }
    }

    /// Takes the exits that the host's kernel has noted, with the number and the APIC id of their vCPU.
    pub(super) fn take_notes(&self) -> impl Iterator<Item = (usize, usize, Vec<ExitNote>)> {
        let taken = |(vcpu, meter): (usize, &VcpuMeter)| {
            let (apic_id, notes) = meter.take_notes()?;
            Some((vcpu, apic_id, notes))
        };
        self.meters.iter().enumerate().filter_map(taken)
    }

    /// Takes the ticks with stacks of the host, and the number of those for which there was no room, with the
    /// number of their vCPU.
    pub(super) fn take_host_ticks(&self) -> Vec<(u8, (Vec<HostTick>, u64))> {
        let taken = |(vcpu, meter): (u8, &VcpuMeter)| Some((vcpu, meter.take_host_ticks()?));
        (0..).zip(&self.meters).filter_map(taken).collect()
    }

    /// Returns the exits of a vCPU that were reported, by their keys.
    pub(super) fn reported_exits(&self, vcpu: usize) -> Option<&HashMap<u64, ReportedExit>> {
        self.meters.get(vcpu).map(VcpuMeter::reported_exits)
    }

    /// Reads exits, KVM's counters and injected interrupts into `batch`, if that is due or the run has
    /// `ended`. Returns true if they were read.
    pub(super) fn read_counts(&mut self, ended: bool, batch: &mut Batch) -> bool {
        if !ended && self.counted.elapsed() < COUNTERS_PERIOD {
            return false;
        }
        self.counted = Instant::now();
        for meter in &mut self.meters {
            batch.exits.append(&mut meter.exits(&self.regions, &mut self.exit_rows));
            batch.kvm_counters.append(&mut meter.counters());
            batch.host_waits.append(&mut meter.host_waits());
        }
        let row = |InjectionCount { device, vector, count }| InjectedRow { device, vector, count };
        batch.injected = self.injections.read().into_iter().map(row).collect();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of CPUs with these APIC ids, whose user time is the id, as those of these vCPUs.
    fn numbered(vcpus: &[GuestCpu], apic_ids: &[u32]) -> Vec<(u32, u64)> {
        let stats: Vec<_> = vcpus
            .iter()
            .map(|cpu| Arc::new(VcpuStats { cpu: (*cpu).into(), ..VcpuStats::default() }))
            .collect();
        let stat = |id: &u32| CpuStat { cpu: *id, user_ns: u64::from(*id), ..CpuStat::default() };
        let mut cpus = apic_ids.iter().map(stat).collect();
        VcpuCounters::new(&stats).number_vcpus(&mut cpus);
        cpus.iter().map(|stat| (stat.cpu, stat.user_ns)).collect()
    }

    #[test]
    fn a_cpu_has_the_number_of_the_vcpu_with_its_apic_id() {
        let known = [0, 1, 4].map(GuestCpu::ApicId);
        assert_eq!(numbered(&known, &[0, 1, 4, 5]), [(0, 0), (1, 1), (2, 4)]);
        assert_eq!(numbered(&known[..2], &[0, 4]), [(0, 0)]);
        // Behind a GDB stub.
        let nth = [0, 1, 2].map(GuestCpu::Nth);
        assert_eq!(numbered(&nth, &[0, 1, 4]), [(0, 0), (1, 1), (2, 4)]);
    }
}
