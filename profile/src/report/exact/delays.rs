//! Waits of tasks for a CPU: the longest of each task, and how long a woken task waits.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::{Key, count, key, part, seconds};
use crate::histogram::{bucket_low_ns, end_ns, quantile};

/// Waits of a task for a CPU, from the wake-up or from the loss of a CPU on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskDelay {
    /// Number of waits.
    pub count: u64,
    /// Mean, s.
    pub mean_s: f64,
    /// 99th percentile, s, to an eighth.
    pub p99_s: f64,
    /// The longest, s. A wait that had not ended at the end of the data has its time until then.
    pub max_s: f64,
    /// Its begin, s since the run's start.
    pub max_from_s: f64,
}

/// Durations of one bucket of the histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DelayBucket {
    /// Shortest duration, s.
    pub from_s: f64,
    /// End of the bucket, s: shortest duration of the next one.
    pub to_s: f64,
    /// Number of durations.
    pub count: u64,
}

/// Durations in buckets: wake-up latencies, or intervals between calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DurationSummary {
    /// Number of durations.
    pub count: u64,
    /// Mean, s.
    pub mean_s: f64,
    /// Median, s, to an eighth.
    pub p50_s: f64,
    /// 90th percentile, s, to an eighth.
    pub p90_s: f64,
    /// 99th percentile, s, to an eighth.
    pub p99_s: f64,
    /// The longest, s.
    pub max_s: f64,
    /// Buckets that are not empty, shortest first.
    pub buckets: Vec<DelayBucket>,
}

/// Sum of durations.
#[derive(Debug, Default)]
pub(in crate::report) struct DelaySum {
    count: u64,
    ns: u64,
    max_ns: u64,
    max_from_ns: u64,
    /// Number of durations by the shortest of their bucket, ns.
    buckets: BTreeMap<u64, u64>,
}

impl DelaySum {
    /// Counts a duration from `from_ns` on.
    pub(in crate::report) fn count(&mut self, ns: u64, from_ns: u64) {
        let one = Self { count: 1, ns, max_ns: ns, max_from_ns: from_ns, buckets: BTreeMap::new() };
        self.add(bucket_low_ns(ns), &one);
    }

    /// Returns the summary; `None` without a duration.
    pub(in crate::report) fn summary(&self) -> Option<DurationSummary> {
        let [p50_s, p90_s, p99_s] = self.quantiles_s([0.5, 0.9, 0.99]);
        let bucket = |(&low, &count): (&u64, &u64)| DelayBucket {
            from_s: seconds(low),
            to_s: seconds(end_ns(low)),
            count,
        };
        (self.count > 0).then(|| DurationSummary {
            count: self.count,
            mean_s: self.mean_s(),
            p50_s,
            p90_s,
            p99_s,
            max_s: seconds(self.max_ns),
            buckets: self.buckets.iter().map(bucket).collect(),
        })
    }

    fn add(&mut self, low_ns: u64, more: &Self) {
        self.count = self.count.saturating_add(more.count);
        self.ns = self.ns.saturating_add(more.ns);
        if more.max_ns > self.max_ns || self.buckets.is_empty() {
            (self.max_ns, self.max_from_ns) = (more.max_ns, more.max_from_ns);
        }
        let bucket = self.buckets.entry(low_ns).or_default();
        *bucket = bucket.saturating_add(more.count);
    }

    fn mean_s(&self) -> f64 {
        part(self.ns, self.count) / 1e9
    }

    fn quantiles_s<const N: usize>(&self, parts: [f64; N]) -> [f64; N] {
        let buckets: Vec<(u64, u64)> = self.buckets.iter().map(|(low, count)| (*low, *count)).collect();
        parts.map(|part| seconds(quantile(&buckets, part, self.max_ns)))
    }
}

/// Waits of all chosen tasks for a CPU.
#[derive(Debug, Default)]
pub(super) struct Delays {
    tasks: HashMap<Key, DelaySum>,
    woken: DelaySum,
}

impl Delays {
    pub(super) fn read(connection: &Connection, chosen: impl Fn(Key) -> bool) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(
            "SELECT instance, tid, woken, low_ns, count, ns, max_ns, max_from_ns FROM task_delay \
             ORDER BY instance, tid, woken, low_ns",
        )?;
        let mut rows = statement.query([])?;
        let mut delays = Self::default();
        while let Some(row) = rows.next()? {
            let key = key(row, 0)?;
            if !chosen(key) {
                continue;
            }
            let (woken, low_ns): (bool, u64) = (row.get(2)?, count(row, 3)?);
            let more = DelaySum {
                count: count(row, 4)?,
                ns: count(row, 5)?,
                max_ns: count(row, 6)?,
                max_from_ns: count(row, 7)?,
                buckets: BTreeMap::new(),
            };
            delays.tasks.entry(key).or_default().add(low_ns, &more);
            if woken {
                delays.woken.add(low_ns, &more);
            }
        }
        Ok(delays)
    }

    /// Returns the waits of a task; `None` if it never waited.
    pub(super) fn of_task(&self, key: Key) -> Option<TaskDelay> {
        let sum = self.tasks.get(&key)?;
        let [p99_s] = sum.quantiles_s([0.99]);
        Some(TaskDelay {
            count: sum.count,
            mean_s: sum.mean_s(),
            p99_s,
            max_s: seconds(sum.max_ns),
            max_from_s: seconds(sum.max_from_ns),
        })
    }

    /// Returns the wake-up latencies of all tasks; `None` without wake-ups.
    pub(super) fn wakeup_latency(&self) -> Option<DurationSummary> {
        self.woken.summary()
    }
}
