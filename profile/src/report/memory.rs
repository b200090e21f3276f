//! The guest's memory by holder over time.

use std::collections::HashMap;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::filter::TIME;
use super::{Filter, ReportError};
use crate::numbers::{seconds, unsigned};
use crate::rows::MemoryKind;
use crate::store::{Profile, snapshot};

/// Points of a holder's history, at most.
const POINTS: usize = 120;
/// Holders of a profile, at most: a guest could make up a new one for each reading.
const HOLDERS: usize = 65_536;

/// The guest's memory by holder over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Number of readings.
    pub readings: u64,
    /// CPU time of the host for all readings, s.
    pub cost_s: f64,
    /// Times of the points of `holders`, s since the run's start: of all readings, or of 120 of them.
    pub times_s: Vec<f64>,
    /// The whole memory at the last reading.
    pub memory: WholeMemory,
    /// Holders: by kind, and of each kind those with the most memory at any reading first.
    pub holders: Vec<HolderHistory>,
}

/// The whole memory of a guest, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeMemory {
    /// Memory that the guest's kernel manages.
    pub total: u64,
    /// Memory that programs can get without swapping.
    pub available: Option<u64>,
    /// Swap.
    pub swap_total: Option<u64>,
    /// Swap in use.
    pub swap_used: Option<u64>,
}

/// Memory of a holder over time, bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HolderHistory {
    /// Kind.
    pub kind: MemoryKind,
    /// Name of a part, of a process' program, of a cache, or path.
    pub name: String,
    /// Id of a process.
    pub pid: Option<i32>,
    /// At the first reading; `None` if it was not among the largest of its kind.
    pub first: Option<u64>,
    /// At the last reading.
    pub last: Option<u64>,
    /// The most at any reading.
    pub peak: u64,
    /// Time of that reading, s since the run's start.
    pub peak_s: f64,
    /// At the report's `times_s`.
    pub bytes: Vec<Option<u64>>,
}

/// A row of table `memory_reading`.
struct Reading {
    id: u64,
    time_ns: u64,
    cost_ns: u64,
    memory: WholeMemory,
}

impl MemoryReport {
    /// Reads the report over the time that `filter` chooses. Its other parts choose nothing.
    ///
    /// # Errors
    /// [`ReportError::NoMemory`] if the profile has no readings in that time.
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let _snapshot = snapshot(connection).map_err(sql)?;
        let readings = read_readings(connection, filter).map_err(sql)?;
        let memory = readings.last().ok_or(ReportError::NoMemory)?.memory;
        let mut found: HashMap<(MemoryKind, String, i32), HolderHistory> = HashMap::new();
        let points = point_indexes(readings.len());
        let mut statement = connection
            .prepare("SELECT kind, name, pid, bytes FROM memory_use WHERE reading = ?1")
            .map_err(sql)?;
        let mut point = 0;
        for (index, reading) in readings.iter().enumerate() {
            let is_point = points.get(point) == Some(&index);
            let mut sums: HashMap<(MemoryKind, String, i32), u64> = HashMap::new();
            let mut rows = statement.query([reading.id.cast_signed()]).map_err(sql)?;
            while let Some(row) = rows.next().map_err(sql)? {
                let kind = row.get_ref(0).map_err(sql)?;
                let Some(kind) = kind.as_str().ok().and_then(MemoryKind::from_name) else { continue };
                let key = (kind, row.get(1).map_err(sql)?, row.get(2).map_err(sql)?);
                let sum = sums.entry(key).or_default();
                *sum = sum.saturating_add(unsigned(row, 3).map_err(sql)?);
            }
            for (key, bytes) in sums {
                if found.len() >= HOLDERS && !found.contains_key(&key) {
                    continue;
                }
                let (kind, name, pid) = &key;
                let holder = found.entry(key.clone()).or_insert_with(|| HolderHistory {
                    kind: *kind,
                    name: name.clone(),
                    pid: (*pid != 0).then_some(*pid),
                    first: None,
                    last: None,
                    peak: 0,
                    peak_s: 0.0,
                    bytes: vec![None; points.len()],
                });
                holder.add(bytes, seconds(reading.time_ns), index, readings.len());
                if let Some(at) = holder.bytes.get_mut(point).filter(|_| is_point) {
                    *at = Some(bytes);
                }
            }
            point += usize::from(is_point);
        }
        // A file of 0 bytes holds nothing.
        let mut holders: Vec<_> = found.into_values().filter(|holder| holder.peak > 0).collect();
        holders.sort_by(|a, b| {
            a.kind
                .cmp(&b.kind)
                .then(b.peak.cmp(&a.peak))
                .then_with(|| (&a.name, a.pid).cmp(&(&b.name, b.pid)))
        });
        Ok(Self {
            readings: readings.len() as u64,
            cost_s: seconds(readings.iter().fold(0, |sum, reading| sum.saturating_add(reading.cost_ns))),
            times_s: points.iter().filter_map(|at| Some(seconds(readings.get(*at)?.time_ns))).collect(),
            memory,
            holders,
        })
    }
}

impl HolderHistory {
    fn add(&mut self, bytes: u64, time_s: f64, index: usize, readings: usize) {
        if index == 0 {
            self.first = Some(bytes);
        }
        if index + 1 == readings {
            self.last = Some(bytes);
        }
        if bytes > self.peak {
            (self.peak, self.peak_s) = (bytes, time_s);
        }
    }
}

/// Returns the indexes of the readings that are points: all, or as many as there may be, with the first and
/// the last.
fn point_indexes(readings: usize) -> Vec<usize> {
    if readings <= POINTS {
        return (0..readings).collect();
    }
    (0..POINTS).map(|point| point * (readings - 1) / (POINTS - 1)).collect()
}

fn read_readings(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Reading>> {
    let mut statement = connection.prepare(&format!(
        "SELECT id, time_ns, cost_ns, total, available, swap_total, swap_used FROM memory_reading \
         WHERE {TIME} ORDER BY time_ns, id"
    ))?;
    let mut rows = statement.query(filter.time())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let bytes = |column| {
            row.get::<_, Option<i64>>(column).map(|value| value.map(|bytes| bytes.max(0).cast_unsigned()))
        };
        found.push(Reading {
            id: unsigned(row, 0)?,
            time_ns: unsigned(row, 1)?,
            cost_ns: unsigned(row, 2)?,
            memory: WholeMemory {
                total: unsigned(row, 3)?,
                available: bytes(4)?,
                swap_total: bytes(5)?,
                swap_used: bytes(6)?,
            },
        });
    }
    Ok(found)
}
