//! Counters of the guest's memory.

use std::collections::HashMap;

use display::clean::escaped;
use profile::Profile;
use profile::rows::MemoryKind;

use super::proto::{CounterDescriptor, EventType, PacketData, TrackDescriptor, TrackEvent};
use super::{TraceWriter, tables, uuid};
use crate::ExportError;

/// Tracks of holders, at most: a guest has any number of processes and files over time.
const TRACKS: usize = 512;

impl TraceWriter<'_> {
    /// Writes a counter for each part of the memory, and for the largest process and control groups.
    pub(super) fn memory(&mut self, profile: &Profile) -> Result<(), ExportError> {
        let sql = "SELECT r.time_ns, sum(u.bytes), u.kind, u.name, u.pid \
                   FROM memory_use u JOIN memory_reading r ON r.id = u.reading \
                   WHERE u.kind IN ('part', 'process', 'group') \
                   GROUP BY r.id, u.kind, u.name, u.pid ORDER BY r.time_ns, r.id, u.rowid";
        let rows = tables::rows(profile, sql, |row| {
            let holder = (tables::text(row, 2), tables::text(row, 3), tables::number(row, 4));
            (tables::number(row, 0), tables::number(row, 1), holder)
        })?;
        if rows.is_empty() {
            return Ok(());
        }
        self.track(uuid::MEMORY, "Memory of the guest".to_owned(), None)?;
        let mut tracks: HashMap<_, u64> = HashMap::new();
        for (time_ns, bytes, holder) in rows {
            if tracks.len() >= TRACKS && !tracks.contains_key(&holder) {
                continue;
            }
            let next = uuid::MEMORY + 1 + tracks.len() as u64;
            let track = *tracks.entry(holder.clone()).or_insert(next);
            if track == next {
                let (kind, name, pid) = &holder;
                let name = escaped(name);
                let name = match kind == MemoryKind::Process.name() {
                    true => format!("process {name} ({pid})"),
                    false if kind == MemoryKind::Group.name() => format!("group {name}"),
                    false => format!("memory {name}"),
                };
                let descriptor = TrackDescriptor {
                    uuid: track,
                    name,
                    parent_uuid: Some(uuid::MEMORY),
                    counter: Some(CounterDescriptor { unit_name: "bytes".to_owned() }),
                    ..TrackDescriptor::default()
                };
                self.data(None, PacketData::TrackDescriptor(descriptor))?;
            }
            let event = TrackEvent {
                track_uuid: track,
                double_counter_value: Some(bytes as f64),
                ..TrackEvent::default()
            };
            self.event(time_ns, EventType::Counter, event)?;
        }
        Ok(())
    }
}
