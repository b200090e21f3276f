//! Stalls that the guest's kernel reports on its console: a CPU or a thread made no progress for many
//! seconds, perhaps because the host has lost a timer.

use display::clean::{printable, without_escape_sequences};
use profile::rows::ConsoleRow;

/// Kind of the profile's events that hold such reports.
pub(crate) const STALL: &str = "stall";
/// Messages of the kernel's detectors (Linux 5.10 to 6.12: kernel/rcu/tree_stall.h, kernel/watchdog.c,
/// kernel/hung_task.c), each with the word that begins the line after its time.
const REPORTS: [(&str, &str); 5] = [
    ("rcu:", "detected stall"),
    ("rcu:", "kthread starved for"),
    ("watchdog:", "soft lockup"),
    ("", "hard LOCKUP on cpu"),
    ("INFO:", "blocked for more than"),
];
/// Reports that are kept: a guest may print any number of them.
const MOST: usize = 16;

/// Finder of stall reports in a guest's output.
#[derive(Debug, Default)]
pub(super) struct StallReports {
    /// The end of a line that is not complete yet.
    begun: Vec<u8>,
    found: usize,
}

impl StallReports {
    /// Returns the reports in these rows: each its row's time and its line, printable.
    pub(super) fn in_rows(&mut self, rows: &[ConsoleRow]) -> Vec<(u64, String)> {
        let mut reports = Vec::new();
        // A row has several lines where they come fast.
        let parts = |row: &'_ ConsoleRow| -> Vec<(u64, Vec<u8>)> {
            row.bytes
                .split_inclusive(|&byte| byte == b'\n')
                .map(|part| (row.time_ns, part.to_vec()))
                .collect()
        };
        for (time_ns, bytes) in rows.iter().flat_map(parts) {
            self.begun.extend_from_slice(&bytes);
            if !bytes.ends_with(b"\n") && self.begun.len() < LINE {
                continue;
            }
            let line = std::mem::take(&mut self.begun);
            let line = String::from_utf8_lossy(&line);
            if self.found < MOST && is_report(&line) {
                self.found += 1;
                reports.push((time_ns, printable(without_escape_sequences(&line).trim())));
            }
        }
        reports
    }
}

/// Bytes of a line that are checked.
const LINE: usize = 1024;

/// Returns true if a line of the console is such a report.
fn is_report(line: &str) -> bool {
    // A time in brackets, if the kernel prints one.
    let line = line.trim_start();
    let line = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((time, rest)) if time.trim().parse::<f64>().is_ok() => rest.trim_start(),
        _ => line,
    };
    REPORTS.iter().any(|(begin, words)| line.starts_with(begin) && line.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(time_ns: u64, text: &str) -> ConsoleRow {
        ConsoleRow { time_ns, bytes: text.as_bytes().to_vec() }
    }

    #[test]
    fn stalls_are_found_in_the_kernels_words() {
        let lines = [
            "[   85.101] rcu: rcu_preempt kthread starved for 15020 jiffies! g-703 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x402 ->cpu=0\r\n",
            "[   21.004027] rcu: INFO: rcu_preempt self-detected stall on CPU\n",
            "[   64.2] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:\n",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kcompactd0:33]\n",
            "[  242.6] INFO: task jbd2/vda-8:90 blocked for more than 120 seconds.\n",
            "[    9.1] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1\n",
        ];
        for line in lines {
            assert!(is_report(line), "{line}");
        }
        let others = [
            "[    0.8] rcu: Hierarchical RCU implementation.\n",
            "[    1.2] NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.\n",
            "debian login: rcu: is blocked\n",
            "the task was blocked for more than a day\n",
        ];
        for line in others {
            assert!(!is_report(line), "{line}");
        }
    }

    #[test]
    fn a_line_may_come_in_pieces_and_reports_are_bounded() {
        let mut reports = StallReports::default();
        assert_eq!(reports.in_rows(&[row(1, "rcu: rcu_preempt kthread sta")]), []);
        let found = reports.in_rows(&[row(2, "rved for 5 jiffies!\x1b[2J\n"), row(3, "login: ")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == 2 && !found[0].1.contains('\x1b'), "{found:?}");
        assert_eq!(reports.in_rows(&[row(4, "x\n")]), []);
        let many: Vec<_> = (0..100).map(|n| row(n, "watchdog: BUG: soft lockup - CPU#0\n")).collect();
        assert_eq!(reports.in_rows(&many).len(), MOST - 1);
    }
}
