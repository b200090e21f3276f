//! The guest's memory by holder over time: threads read it, one after the other, at a fixed interval while
//! the guest runs. Between two readings there is none: a host may have many guests.

use std::sync::Arc;
use std::time::Duration;

use display::clean;
use guest_linux::{Kernel, MemoryReader, MemoryUse, PhysicalMemory};
use profile::rows::{Batch, EventRow, MemoryKind, MemoryReadingRow, MemoryUseRow};
use vmm::monotonic_ns;

use crate::event_thread::{EventThread, EventThreadError};
use crate::memory::GuestMemory;
use crate::microstate::host::own_cpu_time;

/// Rows of each kind in a reading, at most.
const ROWS: usize = 16;
/// Shortest time from one reading to the next, as a multiple of a reading's CPU time, so that readings take
/// at most 1 % of a CPU: in a guest with very many files or processes they become fewer.
const COST_MULTIPLE: u32 = 100;
/// Time between two attempts to read the guest at the start.
const PAUSE: Duration = Duration::from_millis(50);

/// Outcome of an attempt to read.
#[derive(Debug)]
enum ReadOutcome {
    Reading(Box<MemoryReading>),
    /// The guest does not have yet what is read.
    NotYet,
    /// Nothing can be read, for this reason.
    Missing(String),
}

/// Reader of a guest that several threads use, one after the other: its making parses the kernel's types.
type SharedReader = Arc<MemoryReader<Arc<Kernel>>>;

#[derive(Debug)]
struct MemoryReading {
    reader: SharedReader,
    /// CLOCK_MONOTONIC ns.
    time_ns: u64,
    /// CPU time, ns.
    cost_ns: u64,
    /// `None` from a kernel that has just started and lacks lists, which appear later.
    memory: Option<MemoryUse>,
}

/// Readings of the guest's memory as the collector sees them.
#[derive(Debug)]
pub(crate) struct MemoryUseCollector {
    interval: Duration,
    /// CLOCK_MONOTONIC ns at the start of the run.
    zero_ns: u64,
    /// `None` before a kernel is found, and once nothing more is read.
    guest: Option<(Arc<Kernel>, GuestMemory)>,
    /// `None` before the first reading of this kernel.
    reader: Option<SharedReader>,
    /// Time of the next reading, CLOCK_MONOTONIC ns.
    due_ns: u64,
    thread: Option<EventThread<ReadOutcome>>,
    readings: u64,
}

impl MemoryUseCollector {
    /// Returns a collector of readings at this interval. `zero_ns` is CLOCK_MONOTONIC at the run's start.
    pub(crate) fn new(interval: Duration, zero_ns: u64) -> Self {
        Self { interval, zero_ns, guest: None, reader: None, due_ns: 0, thread: None, readings: 0 }
    }

    /// Begins to read: the kernel was found.
    pub(crate) fn start(&mut self, kernel: Arc<Kernel>, memory: GuestMemory, batch: &mut Batch) {
        if matches!(memory, GuestMemory::Stub(_)) {
            return self.missing("each reading by a GDB stub would stop the guest for seconds", batch);
        }
        (self.guest, self.reader) = (Some((kernel, memory)), None);
        self.due_ns = monotonic_ns();
        self.step(batch);
    }

    /// Takes a reading that has arrived, and starts the next one when it is due.
    pub(crate) fn step(&mut self, batch: &mut Batch) {
        if let Some(mut thread) = self.thread.take() {
            let mut outcome = None;
            let taken = thread.take(|event| outcome = Some(event));
            match outcome {
                Some(outcome) => self.take_outcome(outcome, batch),
                None if taken.is_ok() => self.thread = Some(thread),
                None => {}
            }
            self.report(taken, batch);
        }
        let now_ns = monotonic_ns();
        if self.thread.is_some() || now_ns < self.due_ns {
            return;
        }
        let Some((kernel, memory)) = self.guest.clone() else { return };
        let reader = self.reader.clone();
        let started = EventThread::start("memory-reader", move |_, sender| {
            // The receiver is gone only when the run is over.
            drop(sender.send(read(reader, kernel, &memory)));
        });
        match started {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => self.report(Err(error), batch),
        }
    }

    /// Ends the readings: the machine has ended, or another kernel runs in it.
    pub(crate) fn close(&mut self, batch: &mut Batch) {
        self.guest = None;
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.end(|outcome| self.take_outcome(outcome, batch));
        self.report(ended, batch);
    }

    fn take_outcome(&mut self, outcome: ReadOutcome, batch: &mut Batch) {
        let pause = match outcome {
            ReadOutcome::Reading(reading) => {
                self.reader = Some(reading.reader);
                if let Some(memory) = &reading.memory {
                    self.readings += 1;
                    let time_ns = reading.time_ns.saturating_sub(self.zero_ns);
                    add_rows(self.readings, (time_ns, reading.cost_ns), memory, batch);
                }
                self.interval.max(Duration::from_nanos(reading.cost_ns).saturating_mul(COST_MULTIPLE))
            }
            ReadOutcome::NotYet => PAUSE,
            ReadOutcome::Missing(reason) => return self.missing(&reason, batch),
        };
        let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.due_ns = self.due_ns.saturating_add(pause_ns).max(monotonic_ns());
    }

    fn report(&mut self, result: Result<(), EventThreadError>, batch: &mut Batch) {
        if let Err(error) = result {
            self.missing(&error.to_string(), batch);
        }
    }

    /// Notes the reason why nothing more is read.
    fn missing(&mut self, reason: &str, batch: &mut Batch) {
        self.guest = None;
        let time_ns = monotonic_ns().saturating_sub(self.zero_ns);
        let text = format!("memory by holder is not read: {reason}");
        batch.events.push(EventRow { time_ns, kind: "missing".to_owned(), text });
    }
}

/// Reads the guest's memory once, by `reader` if there is one.
fn read(reader: Option<SharedReader>, kernel: Arc<Kernel>, memory: &impl PhysicalMemory) -> ReadOutcome {
    let reader = match reader.map_or_else(|| MemoryReader::new(kernel, memory).map(Arc::new), Ok) {
        Ok(reader) => reader,
        Err(reason) if reason.may_come() => return ReadOutcome::NotYet,
        Err(reason) => return ReadOutcome::Missing(reason.to_string()),
    };
    let (time_ns, before) = (monotonic_ns(), own_cpu_time().unwrap_or(0));
    let memory = reader.read(memory, ROWS).ok();
    let cost_ns = own_cpu_time().unwrap_or(0).saturating_sub(before);
    ReadOutcome::Reading(Box::new(MemoryReading { reader, time_ns, cost_ns, memory }))
}

/// Adds the rows of a reading: the largest holders of each kind.
fn add_rows(reading: u64, (time_ns, cost_ns): (u64, u64), memory: &MemoryUse, batch: &mut Batch) {
    let counters = &memory.counters;
    let swap_used = counters.swap_total.zip(counters.swap_free);
    batch.memory_readings.push(MemoryReadingRow {
        id: reading,
        time_ns,
        total: counters.total,
        available: counters.available,
        swap_total: counters.swap_total,
        swap_used: swap_used.map(|(total, free)| total.saturating_sub(free)),
        cost_ns,
    });
    let row = |kind, name: &str, bytes| MemoryUseRow::new(reading, kind, clean::printable(name), bytes);
    let rows = &mut batch.memory_uses;
    rows.extend(counters.parts().map(|(part, bytes)| row(MemoryKind::Part, part.name(), bytes)));
    rows.extend(memory.processes.iter().flat_map(|found| &found.rows).map(|process| MemoryUseRow {
        pid: process.pid,
        anonymous: Some(process.anonymous),
        file: Some(process.file.saturating_add(process.shmem)),
        swap: Some(process.swap),
        ..row(MemoryKind::Process, &process.comm, process.resident())
    }));
    let groups = memory.groups.iter().flat_map(|found| &found.rows);
    rows.extend(groups.filter_map(|group| {
        Some(MemoryUseRow {
            anonymous: group.stat.map(|stat| stat.anonymous),
            file: group.stat.map(|stat| stat.file),
            swap: group.swap,
            ..row(MemoryKind::Group, &group.path, group.current?)
        })
    }));
    rows.extend(memory.filesystems.iter().flat_map(|found| &found.rows).map(|filesystem| {
        let name = filesystem.mount.as_deref().unwrap_or(&filesystem.device);
        row(MemoryKind::Filesystem, name, filesystem.bytes)
    }));
    rows.extend(memory.files.iter().take(ROWS).map(|file| match file.path.as_str() {
        "" => row(MemoryKind::File, &format!("[inode {}]", file.inode), file.bytes),
        path => row(MemoryKind::File, path, file.bytes),
    }));
    let slabs = memory.slabs.iter().flat_map(|found| &found.rows);
    rows.extend(slabs.map(|slab| row(MemoryKind::Slab, &slab.name, slab.bytes)));
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use guest_linux::MemoryPart;
    use guest_linux::fixture::{Config, Guest, Style};
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    use super::*;

    /// A collector that reads a guest at this interval.
    fn started(guest: &Guest, interval: Duration, batch: &mut Batch) -> MemoryUseCollector {
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
        let bytes = &guest.memory.0;
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes.len())]).expect("memory");
        memory.write_slice(bytes, GuestAddress(0)).expect("as much memory");
        let mut collector = MemoryUseCollector::new(interval, 0);
        collector.start(Arc::new(kernel), memory.into(), batch);
        collector
    }

    #[test]
    fn a_guest_is_read_at_the_interval_until_the_end() {
        let (interval, begin) = (Duration::from_millis(20), Instant::now());
        let mut batch = Batch::default();
        let mut collector = started(&Config::new(Style::V6_15).build(), interval, &mut batch);
        while batch.memory_readings.len() < 3 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{batch:?}");
            thread::sleep(Duration::from_millis(1));
            collector.step(&mut batch);
        }
        assert!(begin.elapsed() >= 2 * interval);
        collector.close(&mut batch);
        let ended = batch.memory_readings.len();
        collector.step(&mut batch);
        assert!(collector.thread.is_none() && batch.memory_readings.len() == ended);
        let readings = &batch.memory_readings;
        assert_eq!(readings.iter().take(3).map(|row| row.id).collect::<Vec<_>>(), [1, 2, 3]);
        for reading in readings {
            let is_part = |row: &&MemoryUseRow| row.reading == reading.id && row.kind == MemoryKind::Part;
            assert_eq!(batch.memory_uses.iter().filter(is_part).count(), MemoryPart::ALL.len());
            assert!(reading.total > 0 && reading.available.is_some(), "{reading:?}");
        }
        let kinds = |kind| batch.memory_uses.iter().filter(|row| row.kind == kind).count();
        assert!(kinds(MemoryKind::Process) >= 3 && kinds(MemoryKind::Slab) >= 3, "{batch:?}");
        assert!(batch.events.is_empty(), "{:?}", batch.events);
    }

    #[test]
    fn a_kernel_without_types_is_a_reason_and_is_not_read_again() {
        let mut config = Config::new(Style::V6_1);
        config.btf = false;
        let (mut batch, begin) = (Batch::default(), Instant::now());
        let mut collector = started(&config.build(), Duration::ZERO, &mut batch);
        while batch.events.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            collector.step(&mut batch);
        }
        collector.step(&mut batch);
        assert!(collector.thread.is_none() && batch.events.len() == 1, "{:?}", batch.events);
        assert!(batch.events[0].text.starts_with("memory by holder is not read: "), "{:?}", batch.events);
        assert!(batch.events[0].text.contains("BTF"), "{:?}", batch.events);
    }
}
