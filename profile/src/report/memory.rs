//! The guest's memory by holder over time.

use std::collections::HashMap;

use rusqlite::{Connection, Row};
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
        profile.has_one_vm("readings of memory")?;
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let _snapshot = snapshot(connection).map_err(sql)?;
        let readings = read_readings(connection, filter).map_err(sql)?;
        let memory = readings.last().ok_or(ReportError::NoMemory)?.memory;
        let mut histories = Histories::new(&readings);
        let mut statement = connection
            .prepare(&format!(
                "SELECT reading, kind, name, pid, bytes FROM memory_use \
                 WHERE reading IN (SELECT id FROM memory_reading WHERE {TIME}) ORDER BY reading"
            ))
            .map_err(sql)?;
        let mut rows = statement.query(filter.time()).map_err(sql)?;
        while let Some(row) = rows.next().map_err(sql)? {
            histories.add_row(row).map_err(sql)?;
        }
        let (found, points) = histories.finish();
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

/// A holder: kind, name and process id.
type Key = (MemoryKind, String, i32);

/// Histories in the making.
struct Histories<'a> {
    readings: &'a [Reading],
    /// Indexes of `readings` by id.
    indexes: HashMap<u64, usize>,
    /// Indexes of the readings that are points.
    points: Vec<usize>,
    found: HashMap<Key, HolderHistory>,
    /// Index of the reading whose rows are being added.
    index: usize,
    /// Bytes of its holders.
    sums: HashMap<Key, u64>,
}

impl<'a> Histories<'a> {
    fn new(readings: &'a [Reading]) -> Self {
        Self {
            readings,
            indexes: readings.iter().zip(0..).map(|(reading, index)| (reading.id, index)).collect(),
            points: point_indexes(readings.len()),
            found: HashMap::new(),
            index: 0,
            sums: HashMap::new(),
        }
    }

    /// Adds a row of table `memory_use`. Those of one reading come together.
    fn add_row(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let Some(index) = self.indexes.get(&unsigned(row, 0)?).copied() else { return Ok(()) };
        if index != self.index {
            self.end_reading();
            self.index = index;
        }
        let kind = row.get_ref(1)?;
        let Some(kind) = kind.as_str().ok().and_then(MemoryKind::from_name) else { return Ok(()) };
        let sum = self.sums.entry((kind, row.get(2)?, row.get(3)?)).or_default();
        *sum = sum.saturating_add(unsigned(row, 4)?);
        Ok(())
    }

    fn end_reading(&mut self) {
        let Some(reading) = self.readings.get(self.index) else { return };
        let point = self.points.binary_search(&self.index).ok();
        for (key, bytes) in self.sums.drain() {
            if self.found.len() >= HOLDERS && !self.found.contains_key(&key) {
                continue;
            }
            let points = self.points.len();
            let holder = self.found.entry(key).or_insert_with_key(|key| HolderHistory::new(key, points));
            holder.add(bytes, seconds(reading.time_ns), self.index, self.readings.len());
            if let Some(at) = point.and_then(|point| holder.bytes.get_mut(point)) {
                *at = Some(bytes);
            }
        }
    }

    /// Returns the histories and the indexes of the points.
    fn finish(mut self) -> (HashMap<Key, HolderHistory>, Vec<usize>) {
        self.end_reading();
        (self.found, self.points)
    }
}

impl HolderHistory {
    fn new((kind, name, pid): &Key, points: usize) -> Self {
        Self {
            kind: *kind,
            name: name.clone(),
            pid: (*pid != 0).then_some(*pid),
            first: None,
            last: None,
            peak: 0,
            peak_s: 0.0,
            bytes: vec![None; points],
        }
    }

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
