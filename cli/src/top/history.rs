//! What each vCPU did over time: a column for each look.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use profile::live::Snapshot;

/// Columns that are kept.
const KEPT: usize = 600;

/// The states of a vCPU, as [`profile::rows::Microstates`] names them.
pub const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];

/// Parts of a time by state, in the order of [`STATES`]; all 0 where nothing is known.
pub type Parts = [f32; STATES.len()];

/// Parts in the order of [`STATES`].
pub fn parts(named: &[(String, f64)]) -> Parts {
    let mut parts = Parts::default();
    for (part, name) in parts.iter_mut().zip(STATES) {
        let found = named.iter().find(|(state, _)| state == name).map_or(0.0, |(_, part)| *part);
        #[expect(clippy::cast_possible_truncation, reason = "shown to three digits")]
        let found = found as f32;
        *part = if found.is_finite() { found.clamp(0.0, 1.0) } else { 0.0 };
    }
    parts
}

/// The mean of several.
pub fn mean<'a>(all: impl IntoIterator<Item = &'a Parts>) -> Parts {
    let (mut sums, mut count) = (Parts::default(), 0.0_f32);
    for parts in all.into_iter().filter(|parts| parts.iter().any(|part| *part > 0.0)) {
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        count += 1.0;
    }
    sums.map(|sum| if count > 0.0 { sum / count } else { 0.0 })
}

/// Columns of all vCPUs, the latest last.
#[derive(Debug, Default)]
pub struct History {
    columns: VecDeque<BTreeMap<u8, Parts>>,
    /// The run's time at the latest.
    latest_s: f64,
    /// So many of the latest are not shown.
    hidden: usize,
}

impl History {
    /// Adds a look, which is the next one `every` after the last. Where looks are missing, so are columns.
    pub fn add(&mut self, look: &Snapshot, every: Duration, hidden: bool) {
        // The same look again, or a run that has begun anew.
        if look.time_s < self.latest_s {
            self.columns.clear();
            self.hidden = 0;
        } else if look.time_s - self.latest_s < every.as_secs_f64() * 0.1 {
            return;
        }
        let gap = (look.time_s - self.latest_s) / every.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
        let missing =
            if self.columns.is_empty() { 0 } else { (gap - 1.0).floor().clamp(0.0, 600.0) as usize };
        for _ in 0..missing {
            self.push(BTreeMap::new(), hidden);
        }
        self.push(look.vcpus.iter().map(|vcpu| (vcpu.id, parts(&vcpu.now))).collect(), hidden);
        self.latest_s = look.time_s;
    }

    fn push(&mut self, column: BTreeMap<u8, Parts>, hidden: bool) {
        if self.columns.len() >= KEPT {
            self.columns.pop_front();
        }
        self.columns.push_back(column);
        self.hidden = if hidden { (self.hidden + 1).min(KEPT) } else { 0 };
    }

    /// Shows all columns (again).
    pub fn show_all(&mut self) {
        self.hidden = 0;
    }

    /// Mean columns of some vCPUs, the latest first.
    pub fn latest<'a>(&'a self, vcpus: &'a [u8]) -> impl Iterator<Item = Parts> + 'a {
        let shown = self.columns.len().saturating_sub(self.hidden);
        let column = |column: &BTreeMap<u8, Parts>| mean(vcpus.iter().filter_map(|vcpu| column.get(vcpu)));
        self.columns.iter().take(shown).rev().map(column)
    }
}

#[cfg(test)]
mod tests {
    use profile::live::VcpuShare;

    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    fn look(time_s: f64, guest: f64) -> Snapshot {
        let states = vec![("guest".to_owned(), guest), ("halted".to_owned(), 1.0 - guest)];
        let vcpu = |id| VcpuShare { id, now: states.clone(), ..VcpuShare::default() };
        Snapshot { time_s, vcpus: vec![vcpu(0), vcpu(1)], ..Snapshot::default() }
    }

    fn guest(history: &History) -> Vec<f32> {
        history.latest(&[0, 1]).map(|parts| parts[0]).collect()
    }

    #[test]
    fn columns_follow_the_runs_time() {
        let mut history = History::default();
        history.add(&look(1.0, 0.25), EVERY, false);
        history.add(&look(1.0, 0.5), EVERY, false);
        assert_eq!(guest(&history), [0.25]);
        history.add(&look(1.5, 0.5), EVERY, false);
        history.add(&look(3.1, 1.0), EVERY, false);
        assert_eq!(guest(&history), [1.0, 0.0, 0.0, 0.5, 0.25]);
        history.add(&look(0.5, 0.75), EVERY, false);
        assert_eq!(guest(&history), [0.75]);
    }

    #[test]
    fn what_comes_while_the_display_stands_still_is_kept() {
        let mut history = History::default();
        history.add(&look(1.0, 0.25), EVERY, false);
        history.add(&look(1.5, 0.5), EVERY, true);
        assert_eq!(guest(&history), [0.25]);
        history.show_all();
        assert_eq!(guest(&history), [0.5, 0.25]);
    }

    #[test]
    fn columns_are_bounded_and_parts_in_range() {
        let mut history = History::default();
        history.add(&look(0.5, f64::NAN), EVERY, false);
        history.add(&look(1e12, 7.0), EVERY, false);
        assert_eq!(history.columns.len(), KEPT);
        assert_eq!(guest(&history)[0], 1.0);
        assert_eq!(mean([&[0.0; 7], &parts(&[("kvm".to_owned(), 1.0)])])[3], 1.0);
    }
}
