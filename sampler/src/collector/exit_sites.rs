//! Exits by the guest's code that they interrupted, as the host's kernel notes them.

use std::collections::HashMap;

use attach::ExitNote;
use guest_linux::{CurrentReader, VirtAddr};

use super::Collector;
use super::counters::VcpuCounters;
use crate::record::SampleRecord;
use crate::resolve::resolver::ExitPlace;
use profile::rows::{Batch, ExitSiteRow, Mode, VcpuState};

/// Sites that are counted separately. Later ones share a row for each reason: a guest that leaves from ever
/// other places must not exhaust the host's memory.
const MOST_SITES: usize = 65_536;

/// Reason and place of exits of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SiteKey {
    vcpu: usize,
    /// Key of the reason.
    exit: u64,
    /// `None` for all sites that share a row.
    place: Option<ExitPlace>,
}

/// Sums of the notes of a site.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct SiteSums {
    notes: u64,
    count: u64,
    total_ns: u64,
    /// Variances of the two numbers before. Each exit is noted with the chance 1 / weight, independently of
    /// the others (Horvitz and Thompson, 1952).
    count_variance: f64,
    total_variance: f64,
    /// There are notes that no row has.
    changed: bool,
}

/// Sites of the exits.
#[derive(Debug, Default)]
pub(super) struct ExitSites {
    sums: HashMap<SiteKey, SiteSums>,
    /// Exits that were to be noted and were not, with the vCPU and the key of their reason.
    unnoted: HashMap<(usize, u64), (u64, u64)>,
}

/// Returns what a sample at an exit would have read.
fn record(note: &ExitNote, apic_id: usize, reader: Option<&CurrentReader>) -> SampleRecord {
    let current = reader.and_then(|reader| reader.read(note, apic_id));
    let record = SampleRecord {
        time_ns: note.time_ns(),
        nested: note.is_nested(),
        vcpu_state: VcpuState::Guest,
        current,
        ..SampleRecord::default()
    };
    if note.is_nested() {
        return record;
    }
    SampleRecord {
        rip: VirtAddr(note.rip()),
        cr3: note.cr3(),
        cpl: note.cpl(),
        long_mode: note.is_long_mode(),
        ..record
    }
}

impl Collector {
    /// Takes the exits that the host's kernel has noted.
    pub(super) fn take_exits(&mut self) {
        let taken: Vec<_> = self.counters.take_notes().collect();
        for (vcpu, apic_id, notes) in taken {
            for note in notes {
                let reader = self.readers.get().map(|readers| &readers.current);
                let mut record = record(&note, apic_id, reader);
                // As with samples: the task of a kernel that is gone means nothing.
                let known = self.trusts(vcpu, &record);
                record.current = record.current.filter(|_| known);
                let place = self.resolver.exit_place(&record, &mut self.batch);
                self.exit_sites.add(vcpu, place, &note);
            }
        }
    }
}

impl ExitSites {
    fn add(&mut self, vcpu: usize, place: ExitPlace, note: &ExitNote) {
        self.count(vcpu, place, (note.key(), note.ns(), note.weight()));
    }

    fn count(&mut self, vcpu: usize, place: ExitPlace, (exit, ns, weight): (u64, u64, u64)) {
        let mut key = SiteKey { vcpu, exit, place: Some(place) };
        if self.sums.len() >= MOST_SITES && !self.sums.contains_key(&key) {
            key.place = None;
        }
        let sums = self.sums.entry(key).or_default();
        let variance = weight as f64 * weight.saturating_sub(1) as f64;
        sums.notes += 1;
        sums.count = sums.count.saturating_add(weight);
        sums.total_ns = sums.total_ns.saturating_add(weight.saturating_mul(ns));
        sums.count_variance += variance;
        sums.total_variance += variance * (ns as f64).powi(2);
        sums.changed = true;
    }

    /// Adds the rows of the sites that have changed, whose exits have rows by now.
    pub(super) fn write(&mut self, counters: &VcpuCounters, batch: &mut Batch) {
        let mut row_of = |key: &SiteKey, sums: &SiteSums| {
            let exit = counters.reported_exits(key.vcpu)?.get(&key.exit)?;
            let place = key.place;
            batch.exit_sites.push(ExitSiteRow {
                exit: exit.id,
                mode: place.map_or(Mode::Unknown, |place| place.mode),
                instance: place.and_then(|place| place.instance).unwrap_or(0),
                frame: place.map_or(0, |place| place.frame),
                noted: sums.notes,
                count: sums.count,
                total_ns: sums.total_ns,
                count_error: sums.count_variance.sqrt(),
                total_error_ns: sums.total_variance.sqrt(),
            });
            Some(())
        };
        for vcpu in 0.. {
            let Some(reported) = counters.reported_exits(vcpu) else { break };
            for (&exit, reported) in reported.iter().filter(|(_, reported)| reported.unnoted.0 > 0) {
                let before = self.unnoted.insert((vcpu, exit), reported.unnoted);
                if before != Some(reported.unnoted) {
                    self.sums.entry(SiteKey { vcpu, exit, place: None }).or_default().changed = true;
                }
            }
        }
        for (key, sums) in self.sums.iter_mut().filter(|(_, sums)| sums.changed) {
            let shared = self.unnoted.get(&(key.vcpu, key.exit)).filter(|_| key.place.is_none());
            let (count, ns) = shared.copied().unwrap_or_default();
            let all = SiteSums {
                count: sums.count.saturating_add(count),
                total_ns: sums.total_ns.saturating_add(ns),
                ..*sums
            };
            sums.changed = row_of(key, &all).is_none();
        }
    }

    /// Returns the number of exits that have neither a function nor a process.
    pub(super) fn unnoted(&self) -> u64 {
        let shared = self.sums.iter().filter(|(key, _)| key.place.is_none()).map(|(_, sums)| sums.count);
        self.unnoted.values().map(|(count, _)| *count).chain(shared).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(frame: u32) -> ExitPlace {
        ExitPlace { mode: Mode::User, instance: Some(1), frame }
    }

    #[test]
    fn weights_add_up_and_show_their_error() {
        let mut sites = ExitSites::default();
        for (ns, weight) in [(100, 1), (300, 1), (50, 4)] {
            sites.count(0, place(7), (5, ns, weight));
        }
        let sums = sites.sums[&SiteKey { vcpu: 0, exit: 5, place: Some(place(7)) }];
        assert_eq!((sums.notes, sums.count, sums.total_ns), (3, 6, 600));
        // Of the one note that is for four: 4 times 3.
        assert!((sums.count_variance - 12.0).abs() < 1e-9 && (sums.total_variance - 30_000.0).abs() < 1e-9);
    }

    #[test]
    fn places_without_end_share_a_row() {
        let mut sites = ExitSites::default();
        for frame in 0..100_000 {
            sites.count(0, place(frame), (5, 10, 1));
        }
        assert_eq!(sites.sums.len(), MOST_SITES + 1);
        assert_eq!(sites.unnoted(), 100_000 - MOST_SITES as u64);
    }
}
