//! Console bytes on their way into the profile.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use profile::rows::ConsoleRow;
use vmm::monotonic_ns;

/// Bytes that wait for the collector, at most, which takes them every 10 ms. Beyond that the oldest are
/// dropped and counted: the guest never waits for its own output.
const WAITING: usize = 1 << 20;
/// Bytes of a row, at most; it also ends with a line.
const ROW: usize = 1024;

#[derive(Debug, Default)]
struct QueuedRows {
    rows: VecDeque<ConsoleRow>,
    bytes: usize,
    dropped: u64,
}

/// The bounded queue between the console and the collector. Its lock is held only to move a few bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConsoleQueue {
    queue: Arc<Mutex<QueuedRows>>,
    zero_ns: u64,
}

impl ConsoleQueue {
    pub(crate) fn new(zero_ns: u64) -> Self {
        Self { queue: Arc::default(), zero_ns }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedRows> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the rows that have arrived into `rows`. Returns the bytes dropped in total.
    pub(crate) fn take(&self, rows: &mut Vec<ConsoleRow>) -> u64 {
        let mut queue = self.lock();
        let taken = std::mem::take(&mut queue.rows);
        queue.bytes = 0;
        let dropped = queue.dropped;
        drop(queue);
        rows.extend(taken);
        dropped
    }
}

impl Write for ConsoleQueue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let time_ns = monotonic_ns().saturating_sub(self.zero_ns);
        let mut queue = self.lock();
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            for part in line.chunks(ROW) {
                match queue.rows.back_mut() {
                    Some(row) if row.bytes.last() != Some(&b'\n') && row.bytes.len() + part.len() <= ROW => {
                        row.bytes.extend_from_slice(part);
                    }
                    _ => queue.rows.push_back(ConsoleRow { time_ns, bytes: part.to_vec() }),
                }
                queue.bytes += part.len();
            }
        }
        while queue.bytes > WAITING {
            let Some(oldest) = queue.rows.pop_front() else { break };
            queue.bytes -= oldest.bytes.len();
            queue.dropped += oldest.bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_lines() {
        let mut queue = ConsoleQueue::new(0);
        for byte in b"one\ntwo\nthr" {
            queue.write_all(&[*byte]).expect("never fails");
        }
        let mut rows = Vec::new();
        assert_eq!(queue.take(&mut rows), 0);
        let lines: Vec<_> = rows.iter().map(|row| row.bytes.as_slice()).collect();
        assert_eq!(lines, [b"one\n".as_slice(), b"two\n", b"thr"]);
        assert!(rows.iter().all(|row| row.time_ns > 0));
    }

    #[test]
    fn a_flood_drops_the_oldest_and_counts() {
        let mut queue = ConsoleQueue::new(0);
        let line = [&[b'x'; 99][..], b"\n"].concat();
        for _ in 0..20_000 {
            queue.write_all(&line).expect("never fails");
        }
        queue.write_all(b"last").expect("never fails");
        let mut rows = Vec::new();
        let dropped = queue.take(&mut rows);
        let kept: usize = rows.iter().map(|row| row.bytes.len()).sum();
        assert!(kept <= WAITING && kept > WAITING - 200);
        assert_eq!(dropped + kept as u64, 2_000_004);
        assert_eq!(rows.last().expect("rows").bytes, b"last");
    }
}
