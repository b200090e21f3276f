//! Console bytes on their way into the profile.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use profile::rows::ConsoleRow;
use vmm::monotonic_ns;

/// Maximum of output that waits for the collector, bytes with the rows' own; it takes them every 10 ms.
/// Beyond that the oldest are dropped and counted: the guest never waits for its own output.
const WAITING: usize = 1 << 20;
/// Bytes of a row, at most; it also ends with a line.
const ROW: usize = 1024;
/// Size of a row besides its bytes, in memory and in the profile.
const ROW_COST: usize = 64;
/// Rows that wait at once before lines are joined to rows: a guest that writes nothing but newlines would
/// have a row for each byte. At a round of 10 ms this is 25,600 lines a second.
const LINES: usize = 256;
/// Maximum of the console's output in a profile as it comes, bytes with the rows' own.
const BUDGET: usize = 64 << 20;
/// Size of the newest part of the rest, which is written at the end, bytes.
const NEWEST: usize = 1 << 20;

fn cost(row: &ConsoleRow) -> usize {
    row.bytes.len() + ROW_COST
}

#[derive(Debug, Default)]
struct QueuedRows {
    rows: VecDeque<ConsoleRow>,
    cost: usize,
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
        queue.cost = 0;
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
                let joins = queue.rows.len() >= LINES;
                match queue.rows.back_mut() {
                    Some(row)
                        if (joins || row.bytes.last() != Some(&b'\n'))
                            && row.bytes.len() + part.len() <= ROW =>
                    {
                        row.bytes.extend_from_slice(part);
                    }
                    _ => {
                        queue.rows.push_back(ConsoleRow { time_ns, bytes: part.to_vec() });
                        queue.cost += ROW_COST;
                    }
                }
                queue.cost += part.len();
            }
        }
        while queue.cost > WAITING {
            let Some(oldest) = queue.rows.pop_front() else { break };
            queue.cost -= cost(&oldest);
            queue.dropped += oldest.bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Selection of the console's output for the profile.
#[derive(Debug, Default)]
pub(crate) struct ConsoleBudget {
    written: usize,
    newest: VecDeque<ConsoleRow>,
    newest_cost: usize,
    dropped: u64,
}

impl ConsoleBudget {
    /// Event when the budget is used up.
    pub(crate) const SPENT: &str = "the console has filled its part of the profile, 64 MiB: of what follows only the \
                                    newest MiB is kept";

    /// Takes the rows beyond the budget out of `rows`. Returns true the first time.
    pub(crate) fn withhold(&mut self, rows: &mut Vec<ConsoleRow>) -> bool {
        let mut fit = 0;
        if self.newest.is_empty() {
            for row in rows.iter() {
                if self.written + cost(row) > BUDGET {
                    break;
                }
                self.written += cost(row);
                fit += 1;
            }
        }
        let first = self.newest.is_empty() && fit < rows.len();
        for row in rows.drain(fit..) {
            self.newest_cost += cost(&row);
            self.newest.push_back(row);
            while self.newest_cost > NEWEST {
                let Some(oldest) = self.newest.pop_front() else { break };
                self.newest_cost -= cost(&oldest);
                self.dropped += oldest.bytes.len() as u64;
            }
        }
        first
    }

    /// Bytes that are not in the profile.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The newest part, for the end of the profile.
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = ConsoleRow> {
        self.newest_cost = 0;
        std::mem::take(&mut self.newest).into_iter()
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
        let all: usize = rows.iter().map(cost).sum();
        assert!(all <= WAITING && all > WAITING - 2 * (ROW + ROW_COST), "{all}");
        assert_eq!(dropped + kept as u64, 2_000_004);
        assert!(rows.last().expect("rows").bytes.ends_with(b"x\nlast"), "lines that come fast share a row");
    }

    #[test]
    fn newlines_alone_take_no_row_each() {
        let mut queue = ConsoleQueue::new(0);
        for _ in 0..512 {
            queue.write_all(&[b'\n'; 4096]).expect("never fails");
        }
        let mut rows = Vec::new();
        let dropped = queue.take(&mut rows);
        assert!(rows.len() < 2_000, "{} rows", rows.len());
        assert!(rows.iter().map(cost).sum::<usize>() <= WAITING);
        assert_eq!(dropped + rows.iter().map(|row| row.bytes.len() as u64).sum::<u64>(), 512 * 4096);
    }

    #[test]
    fn beyond_its_budget_the_newest_part_of_the_console_is_kept() {
        let mut budget = ConsoleBudget::default();
        let (mut written, mut events) = (0, 0);
        for n in 0..200_000_u32 {
            let mut rows = vec![ConsoleRow { time_ns: n.into(), bytes: vec![b'x'; 1000] }];
            events += u32::from(budget.withhold(&mut rows));
            written += rows.iter().map(cost).sum::<usize>();
        }
        assert!(written <= BUDGET && written > BUDGET - 2_000, "{written}");
        assert_eq!(events, 1);
        let rest: Vec<_> = budget.rest().collect();
        assert!(rest.iter().map(cost).sum::<usize>() <= NEWEST && rest.len() > 900);
        assert_eq!(rest.last().map(|row| row.time_ns), Some(199_999));
        let bytes: usize = rest.iter().map(|row| row.bytes.len()).sum();
        assert_eq!(budget.dropped() + (bytes + written / 1064 * 1000) as u64, 200_000_000);
    }
}
