//! The guest's memory at the last two readings.

use std::collections::HashMap;

use statistics::part;

use super::snapshot::MemoryShare;
use crate::rows::{Batch, MemoryKind, MemoryReadingRow, MemoryUseRow};

/// The last two readings.
#[derive(Debug, Default)]
pub(super) struct LiveMemory {
    /// The last one, and its holders.
    last: Option<(MemoryReadingRow, Vec<MemoryUseRow>)>,
    /// Memory of the holders of the one before, bytes.
    before: HashMap<(MemoryKind, String, i32), u64>,
}

impl LiveMemory {
    pub fn add(&mut self, batch: &Batch) {
        for reading in &batch.memory_readings {
            if let Some((_, rows)) = self.last.take() {
                self.before =
                    rows.into_iter().map(|row| ((row.kind, row.name, row.pid), row.bytes)).collect();
            }
            let of_it = batch.memory_uses.iter().filter(|row| row.reading == reading.id);
            self.last = Some((*reading, of_it.cloned().collect()));
        }
    }

    /// Returns the holders, with at most `rows` of each kind.
    pub fn shares(&self, rows: usize) -> Vec<MemoryShare> {
        let Some((reading, holders)) = &self.last else { return Vec::new() };
        let share = |row: &MemoryUseRow| {
            let before = self.before.get(&(row.kind, row.name.clone(), row.pid));
            MemoryShare {
                kind: row.kind,
                name: row.name.clone(),
                pid: row.pid,
                bytes: row.bytes,
                growth: before.map_or(0, |before| row.bytes.wrapping_sub(*before).cast_signed()),
                share: part(row.bytes, reading.total),
            }
        };
        let mut found = Vec::new();
        for kind in MemoryKind::ALL {
            let mut of_kind: Vec<_> =
                holders.iter().filter(|row| row.kind == kind && row.bytes > 0).collect();
            of_kind.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
            found.extend(of_kind.into_iter().take(rows).map(share));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_since_the_reading_before() {
        let reading = |id| MemoryReadingRow { id, total: 1_000, ..MemoryReadingRow::default() };
        let mut memory = LiveMemory::default();
        assert!(memory.shares(9).is_empty());
        let batch = Batch {
            memory_readings: vec![reading(1), reading(2)],
            memory_uses: vec![
                MemoryUseRow::new(1, MemoryKind::Part, "free", 700),
                MemoryUseRow::new(1, MemoryKind::Part, "other", 300),
                MemoryUseRow::new(2, MemoryKind::Slab, "dentry", 100),
                MemoryUseRow::new(2, MemoryKind::Part, "other", 450),
                MemoryUseRow::new(2, MemoryKind::Part, "free", 550),
            ],
            ..Batch::default()
        };
        memory.add(&batch);
        let shares = memory.shares(9);
        let seen: Vec<_> = shares.iter().map(|row| (row.name.as_str(), row.bytes, row.growth)).collect();
        assert_eq!(seen, [("free", 550, -150), ("other", 450, 150), ("dentry", 100, 0)]);
        assert!((shares[0].share - 0.55).abs() < 1e-9);
        assert_eq!(memory.shares(1).len(), 2);
    }
}
