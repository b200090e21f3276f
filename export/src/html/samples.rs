//! The samples in few bytes, so that the page can count them again for any time.
//!
//! Time is divided into equal buckets. A cell is a bucket of one vCPU. For each cell with samples
//! the page gets the distance from the cell before, the number of entries, and the time that one of its
//! samples represents. For each entry it gets the distance of its node from that of the entry before, the
//! role, and the number of samples. Entries of a cell are in the order of nodes.

use display::units::rounded;
use profile::report::{Filter, Recording};

use super::block::{Block, Numbers};
use super::facts::Facts;
use super::tree::{Functions, Tree, small};
use super::who::{ProcessRows, Role, mode_number};

/// Lengths of a bucket in ms, rising, each with the limit of buckets of a run: the first that a run
/// does not exceed is its own. 20 and 50 ms are the rows of the page's heat map, which divide its seconds.
const LENGTHS: [(u64, u64); 6] = [(1, 500), (2, 500), (5, 500), (10, 500), (20, 3_000), (50, MOST_BUCKETS)];
/// Limit of buckets of a run.
const MOST_BUCKETS: u64 = 12_000;
/// One ms, ns.
const MS: u64 = 1_000_000;
/// Weights are written as multiples of this part of a ns.
const WEIGHT_PARTS: f64 = 1024.0;

/// Division of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimeBuckets {
    /// Begin of the first bucket, ns since the run's start.
    pub begin_ns: u64,
    /// Length of a bucket, ns.
    pub bucket_ns: u64,
    /// Number of buckets, at least one.
    pub buckets: u64,
    /// The vCPUs, rising.
    pub vcpus: Vec<u16>,
}

impl TimeBuckets {
    /// Divides the run, or the part of it that a filter chooses. A run in progress has samples after its
    /// length.
    pub(super) fn new(recording: &Recording, filter: &Filter) -> Self {
        let begin_ns = filter.from_ns.unwrap_or(0);
        let last = recording.samples.last().map_or(0, |sample| sample.time_ns.saturating_add(1));
        let run = recording.about.duration_ns.max(last);
        let end = filter.to_ns.map_or(run, |to| to.min(run));
        let length = end.saturating_sub(begin_ns);
        let bucket_ns = bucket_ns(length);
        let buckets = length.div_ceil(bucket_ns).max(1);
        Self { begin_ns, bucket_ns, buckets, vcpus: recording.vcpus.iter().map(|vcpu| vcpu.id).collect() }
    }

    /// Returns the cell of a vCPU at a time.
    fn cell(&self, vcpu: u16, time_ns: u64) -> Option<u32> {
        let bucket = (time_ns.saturating_sub(self.begin_ns) / self.bucket_ns).min(self.buckets - 1);
        let vcpu = self.vcpus.iter().position(|&known| known == vcpu)?;
        u32::try_from(bucket).ok()?.checked_mul(small(self.vcpus.len()))?.checked_add(small(vcpu))
    }
}

/// Returns the length of a bucket in a run of this length, ns.
fn bucket_ns(length: u64) -> u64 {
    let fits = |(ms, most): &&(u64, u64)| length.div_ceil(ms * MS) <= *most;
    let longer = || length.div_ceil(MOST_BUCKETS).next_multiple_of(100 * MS);
    LENGTHS.iter().find(fits).map_or_else(longer, |(ms, _)| ms * MS)
}

/// Samples by cell, node and role.
#[derive(Debug)]
pub(super) struct Samples {
    time: TimeBuckets,
    /// One for each sample: cell, node, role.
    list: Vec<(u32, u32, u32)>,
    /// By cell: samples and their time, ns.
    cells: Vec<(u64, f64)>,
}

impl Samples {
    /// Collects the samples of a recording; their stacks go into the tree.
    pub(super) fn new(
        recording: &Recording,
        time: TimeBuckets,
        functions: &mut Functions,
        tree: &mut Tree,
        process_rows: &mut ProcessRows,
    ) -> Self {
        let nodes = tree.add(recording, functions);
        let threads: Vec<u32> =
            recording.owners.iter().map(|owner| process_rows.of_owner(recording, owner)).collect();
        let cells = usize::try_from(time.buckets).unwrap_or(0) * time.vcpus.len();
        let mut samples =
            Self { time, list: Vec::with_capacity(recording.samples.len()), cells: vec![(0, 0.0); cells] };
        for sample in &recording.samples {
            let thread = threads.get(sample.owner as usize);
            let node = nodes.get(sample.stack as usize);
            let cell = samples.time.cell(sample.vcpu, sample.time_ns);
            if let (Some(&thread), Some(&node), Some(cell)) = (thread, node, cell) {
                let call = process_rows.call(recording, sample);
                let role = process_rows.role(Role { thread, mode: mode_number(sample.mode), call });
                samples.list.push((cell, node, role));
                if let Some((count, ns)) = samples.cells.get_mut(cell as usize) {
                    *count += 1;
                    *ns += sample.weight_ns;
                }
            }
        }
        samples
    }

    /// Gives nodes their new numbers.
    pub(super) fn renumber(&mut self, order: &[u32]) {
        for (_, node, _) in &mut self.list {
            *node = order[*node as usize];
        }
        self.list.sort_unstable();
    }

    /// Writes the sections of the page.
    pub(super) fn write(self, block: &mut Block, facts: &mut Facts) {
        let (mut nodes, mut roles, mut counts, mut cells) =
            (Numbers::default(), Numbers::default(), Numbers::default(), Numbers::default());
        let (mut entries, mut filled, mut before) = (0_u64, 0_u64, 0);
        for cell in self.list.chunk_by(|a, b| a.0 == b.0) {
            let number = cell[0].0;
            let (mut own, mut last) = (0_u64, 0);
            for entry in cell.chunk_by(|a, b| a == b) {
                let (_, node, role) = entry[0];
                nodes.push((node - last).into());
                roles.push(role.into());
                counts.push(entry.len() as u64);
                (own, last) = (own + 1, node);
            }
            let (count, ns) = self.cells.get(number as usize).copied().unwrap_or_default();
            cells.push((number - before).into());
            cells.push(own);
            cells.push(rounded(ns / count.max(1) as f64 * WEIGHT_PARTS));
            (entries, filled, before) = (entries + own, filled + 1, number + 1);
        }
        facts.samples(&self.time, (filled, entries), WEIGHT_PARTS * 1e9);
        for (name, numbers) in
            [("cells", cells), ("entryNodes", nodes), ("entryRoles", roles), ("entryCounts", counts)]
        {
            block.section(name, numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(begin_ns: u64, bucket_ns: u64, buckets: u64) -> TimeBuckets {
        TimeBuckets { begin_ns, bucket_ns, buckets, vcpus: vec![0, 2] }
    }

    #[test]
    fn buckets_divide_seconds_and_are_few() {
        let buckets = |length: u64| (bucket_ns(length) / MS, length.div_ceil(bucket_ns(length)));
        assert_eq!(buckets(0), (1, 0));
        assert_eq!(buckets(500 * MS), (1, 500));
        assert_eq!(buckets(10_000 * MS), (20, 500));
        assert_eq!(buckets(60_000 * MS), (20, 3_000));
        assert_eq!(buckets(60_001 * MS), (50, 1_201));
        assert_eq!(buckets(600_000 * MS), (50, 12_000));
        assert_eq!(buckets(3_600_000 * MS), (300, 12_000));
        assert!(u64::MAX.div_ceil(bucket_ns(u64::MAX)) <= MOST_BUCKETS);
    }

    #[test]
    fn a_cell_is_a_bucket_of_one_vcpu() {
        let time = time(100, 10, 3);
        assert_eq!(time.cell(0, 100), Some(0));
        assert_eq!(time.cell(2, 109), Some(1));
        assert_eq!(time.cell(0, 110), Some(2));
        assert_eq!(time.cell(2, u64::MAX), Some(5));
        assert_eq!(time.cell(0, 5), Some(0));
        assert_eq!(time.cell(1, 110), None, "no such vCPU");
    }
}
