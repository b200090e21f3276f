//! Counts of the interrupts that devices have raised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Interrupts of one device, by the vector that the guest has chosen for them.
#[derive(Debug)]
pub(crate) struct InjectionTally {
    device: String,
    vectors: [AtomicU64; 256],
    /// Raised by a line of the I/O APIC, whose vector only KVM knows.
    line: AtomicU64,
}

impl InjectionTally {
    pub(crate) fn new(device: &str) -> Arc<Self> {
        let vectors = [const { AtomicU64::new(0) }; 256];
        Arc::new(Self { device: device.to_owned(), vectors, line: AtomicU64::new(0) })
    }

    /// Counts a message; the vector is the lowest byte of its data (Intel SDM vol. 3, 11.11.2).
    pub(crate) fn message(&self, data: u32) {
        let [vector, ..] = data.to_le_bytes();
        self.vectors[usize::from(vector)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a raised line.
    pub(crate) fn line(&self) {
        self.line.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of interrupts that one device has raised on one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectionCount {
    /// The device.
    pub device: String,
    /// The guest's interrupt vector; `None` for a line of the I/O APIC.
    pub vector: Option<u8>,
    /// Number of interrupts.
    pub count: u64,
}

/// The counts of all devices of a machine; can be read at any time and from any thread.
#[derive(Debug, Clone, Default)]
pub struct Injections(pub(crate) Vec<Arc<InjectionTally>>);

impl Injections {
    /// Returns all counts that are not 0.
    pub fn read(&self) -> Vec<InjectionCount> {
        let of = |tally: &Arc<InjectionTally>| {
            let line = (None, tally.line.load(Ordering::Relaxed));
            let vectors = (0..=u8::MAX).zip(&tally.vectors);
            let vectors = vectors.map(|(vector, count)| (Some(vector), count.load(Ordering::Relaxed)));
            let all: Vec<_> = vectors.chain([line]).filter(|(_, count)| *count > 0).collect();
            let injected = |(vector, count)| InjectionCount { device: tally.device.clone(), vector, count };
            all.into_iter().map(injected).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_vectors_are_counted_apart() {
        let (disk, serial) = (InjectionTally::new("disk 0"), InjectionTally::new("serial port"));
        disk.message(0x23);
        disk.message(0x4023);
        disk.message(0xff);
        serial.line();
        let seen = Injections(vec![disk, serial]).read();
        let seen: Vec<_> = seen.iter().map(|i| (i.device.as_str(), i.vector, i.count)).collect();
        assert_eq!(seen, [("disk 0", Some(0x23), 2), ("disk 0", Some(0xff), 1), ("serial port", None, 1)]);
    }
}
