//! The guest's memory by holder over time: a thread reads it at a fixed interval while the guest runs.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use linux::{Kernel, MemoryReader, MemoryUse, PhysicalMemory};
use profile::rows::{Batch, EventRow, MemoryKind, MemoryReadingRow, MemoryUseRow};
use text::clean;
use vmm::monotonic_ns;

use crate::event_thread::{EventThread, EventThreadError, StopFlag};
use crate::memory::GuestMemory;
use crate::microstate::host::own_cpu_time;

/// Rows of each kind in a reading, at most.
const ROWS: usize = 16;
/// Shortest time from one reading to the next, as a multiple of a reading's CPU time, so that readings take
/// at most 1 % of a CPU: in a guest with very many files or processes they become fewer.
const COST_MULTIPLE: u32 = 100;
/// Time between two attempts to read the guest at the start.
const PAUSE: Duration = Duration::from_millis(50);

/// Event of the thread.
#[derive(Debug)]
enum MemoryEvent {
    Reading(Box<MemoryReading>),
    /// Nothing more comes, for this reason.
    Missing(String),
}

#[derive(Debug)]
struct MemoryReading {
    /// CLOCK_MONOTONIC ns.
    time_ns: u64,
    /// CPU time, ns.
    cost_ns: u64,
    memory: MemoryUse,
}

/// Readings of the guest's memory as the collector sees them.
#[derive(Debug)]
pub(crate) struct MemoryUseCollector {
    interval: Duration,
    /// CLOCK_MONOTONIC ns at the start of the run.
    zero_ns: u64,
    thread: Option<EventThread<MemoryEvent>>,
    readings: u64,
}

impl MemoryUseCollector {
    /// Returns a collector of readings at this interval. `zero_ns` is CLOCK_MONOTONIC at the run's start.
    pub(crate) fn new(interval: Duration, zero_ns: u64) -> Self {
        Self { interval, zero_ns, thread: None, readings: 0 }
    }

    /// Starts the thread: the kernel was found.
    pub(crate) fn start(&mut self, kernel: Arc<Kernel>, memory: GuestMemory, batch: &mut Batch) {
        if matches!(memory, GuestMemory::Stub(_)) {
            return self.missing("each reading by a GDB stub would stop the guest for seconds", batch);
        }
        let interval = self.interval;
        let run = move |stop, sender| read_until_stopped(&kernel, &memory, interval, &stop, &sender);
        match EventThread::start("memory-reader", run) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => self.missing(&error.to_string(), batch),
        }
    }

    /// Takes the readings that have arrived.
    pub(crate) fn step(&mut self, batch: &mut Batch) {
        let Some(mut thread) = self.thread.take() else { return };
        let taken = thread.take(|event| self.take_event(event, batch));
        self.thread = Some(thread);
        self.report(taken, batch);
    }

    /// Ends the thread: the machine has ended, or another kernel runs in it.
    pub(crate) fn close(&mut self, batch: &mut Batch) {
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.end(|event| self.take_event(event, batch));
        self.report(ended, batch);
    }

    fn take_event(&mut self, event: MemoryEvent, batch: &mut Batch) {
        match event {
            MemoryEvent::Reading(reading) => {
                self.readings += 1;
                let time_ns = reading.time_ns.saturating_sub(self.zero_ns);
                add_rows(self.readings, time_ns, &reading, batch);
            }
            MemoryEvent::Missing(reason) => self.missing(&reason, batch),
        }
    }

    fn report(&self, result: Result<(), EventThreadError>, batch: &mut Batch) {
        if let Err(error) = result {
            self.missing(&error.to_string(), batch);
        }
    }

    fn missing(&self, reason: &str, batch: &mut Batch) {
        let time_ns = monotonic_ns().saturating_sub(self.zero_ns);
        let text = format!("memory by holder is not read: {reason}");
        batch.events.push(EventRow { time_ns, kind: "missing".to_owned(), text });
    }
}

/// Reads the memory at once and then at the interval, until the thread is stopped or the receiver is gone.
fn read_until_stopped(
    kernel: &Kernel,
    memory: &impl PhysicalMemory,
    interval: Duration,
    stop: &StopFlag,
    sender: &SyncSender<MemoryEvent>,
) {
    let Some(reader) = wait_for_reader(kernel, memory, stop, sender) else { return };
    loop {
        let (time_ns, before) = (monotonic_ns(), own_cpu_time().unwrap_or(0));
        let read = reader.read(memory, ROWS);
        let cost_ns = own_cpu_time().unwrap_or(0).saturating_sub(before);
        // A kernel that has just started lacks lists, which appear later.
        if let Ok(memory) = read {
            let reading = MemoryEvent::Reading(Box::new(MemoryReading { time_ns, cost_ns, memory }));
            if sender.send(reading).is_err() {
                return;
            }
        }
        let pause = interval.max(Duration::from_nanos(cost_ns).saturating_mul(COST_MULTIPLE));
        let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        if !stop.wait_until(time_ns.saturating_add(pause_ns)) {
            return;
        }
    }
}

/// Waits until the guest has what is read.
fn wait_for_reader<'a>(
    kernel: &'a Kernel,
    memory: &impl PhysicalMemory,
    stop: &StopFlag,
    sender: &SyncSender<MemoryEvent>,
) -> Option<MemoryReader<'a>> {
    while !stop.is_set() {
        match kernel.memory_reader(memory) {
            Ok(reader) => return Some(reader),
            Err(reason) if reason.may_come() => thread::park_timeout(PAUSE),
            Err(reason) => {
                // The receiver is gone only when the run is over.
                drop(sender.send(MemoryEvent::Missing(reason.to_string())));
                return None;
            }
        }
    }
    None
}

/// Adds the rows of a reading: the largest holders of each kind.
fn add_rows(reading: u64, time_ns: u64, read: &MemoryReading, batch: &mut Batch) {
    let memory = &read.memory;
    let counters = &memory.counters;
    let swap_used = counters.swap_total.zip(counters.swap_free);
    batch.memory_readings.push(MemoryReadingRow {
        id: reading,
        time_ns,
        total: counters.total,
        available: counters.available,
        swap_total: counters.swap_total,
        swap_used: swap_used.map(|(total, free)| total.saturating_sub(free)),
        cost_ns: read.cost_ns,
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
    use std::sync::mpsc::sync_channel;

    use linux::MemoryPart;
    use linux::fixture::{Config, Style};

    use super::*;

    #[test]
    fn a_guest_is_read_until_the_thread_is_stopped() {
        let guest = Config::new(Style::V6_15).build();
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
        let (stop, (sender, receiver)) = (StopFlag::default(), sync_channel(4));
        let flag = stop.clone();
        let reading = thread::spawn(move || {
            read_until_stopped(&kernel, &guest.memory, Duration::from_millis(1), &flag, &sender);
        });
        let mut collector = MemoryUseCollector::new(Duration::ZERO, 0);
        let mut batch = Batch::default();
        for _ in 0..3 {
            collector.take_event(receiver.recv().expect("a reading"), &mut batch);
        }
        stop.set();
        reading.thread().unpark();
        drop(receiver);
        reading.join().expect("it ends by itself");
        let readings = &batch.memory_readings;
        assert_eq!(readings.iter().map(|row| row.id).collect::<Vec<_>>(), [1, 2, 3]);
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
    fn a_kernel_without_types_is_a_reason() {
        let mut config = Config::new(Style::V6_1);
        config.btf = false;
        let guest = config.build();
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
        let (sender, receiver) = sync_channel(1);
        read_until_stopped(&kernel, &guest.memory, Duration::from_secs(1), &StopFlag::default(), &sender);
        let mut batch = Batch::default();
        MemoryUseCollector::new(Duration::ZERO, 0).take_event(receiver.recv().expect("a reason"), &mut batch);
        assert!(batch.events[0].text.starts_with("memory by holder is not read: "), "{:?}", batch.events);
        assert!(batch.events[0].text.contains("BTF"), "{:?}", batch.events);
    }
}
