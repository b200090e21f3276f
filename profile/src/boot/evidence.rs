//! Facts of a profile about a boot that failed.

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

use crate::numbers::unsigned;
use crate::store::{Profile, ProfileError, snapshot};
use display::clean;

/// Limit of lines of the console.
const LAST_LINES: usize = 20;
/// Length at which a line is cut, bytes.
const LINE: usize = 1_000;
/// Mark of a panic's line (kernel/panic.c, `vpanic`, Linux 6.12).
const PANIC: &str = "Kernel panic - not syncing";
/// Marks of the first line of an oops (arch/x86/kernel/dumpstack.c `__die_header`, arch/x86/mm/fault.c,
/// lib/bug.c, arch/x86/kernel/traps.c, Linux 6.12).
const OOPS: [&str; 5] = [
    "BUG: unable to handle",
    "BUG: kernel NULL pointer",
    "kernel BUG at",
    "general protection fault",
    "Oops: ",
];
/// Limit of sleeping tasks.
const MOST_BLOCKED: usize = 50;
/// Time before the end whose samples show the last activity of a vCPU, ns.
const LAST_NS: u64 = 2_000_000_000;

/// Facts about the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The last lines of the console.
    pub console: Vec<String>,
    /// The line of the console that reports a panic.
    pub panic_line: Option<String>,
    /// The first line that reports an oops.
    pub oops_line: Option<String>,
    /// True if a CPU has panicked, according to the kernel's own state; `None` if it could not be read.
    pub panicked: Option<bool>,
    /// True if there was an oops; `None` if that could not be read.
    pub died: Option<bool>,
    /// Length of the run, s.
    pub duration_s: f64,
    /// Time of the last progress of the guest (`Wait::Still` of the sampler waits for the lack of it), s
    /// since the run's start.
    pub progress_s: f64,
    /// Activity of each vCPU in the last two seconds.
    pub vcpus: Vec<LastOf>,
    /// Tasks that slept at the end: first those in an uninterruptible sleep, then the first process.
    pub blocked: Vec<BlockedTask>,
}

/// Last activity of a vCPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LastOf {
    /// Number of the vCPU.
    pub vcpu: u16,
    /// Part of its samples in which it was not idle.
    pub busy: f64,
    /// The process of its last sample that was not idle.
    pub process: Option<String>,
    /// The functions of that sample, innermost first.
    pub stack: Vec<String>,
}

/// A task that slept at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockedTask {
    /// Its process' name.
    pub comm: String,
    /// Process id.
    pub pid: i64,
    /// Thread id.
    pub tid: i64,
    /// `sleep`, or `disk` for a sleep that only its event can end.
    pub state: String,
    /// Wait reason, if it is known.
    pub wait_reason: String,
    /// Start of the sleep, s since the run's start.
    pub since_s: f64,
    /// The functions it sleeps in, innermost first.
    pub stack: Vec<String>,
}

impl Evidence {
    /// Reads the facts.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        read(profile.connection()).map_err(|error| profile.error(&error))
    }

    /// Returns the busy part of the last two seconds of the busiest vCPU.
    pub fn busiest(&self) -> f64 {
        self.vcpus.iter().map(|vcpu| vcpu.busy).fold(0.0, f64::max)
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Evidence> {
    let _snapshot = snapshot(connection)?;
    let flag = |key: &str| -> rusqlite::Result<Option<bool>> {
        let value: Option<String> = connection
            .query_row("SELECT value FROM meta WHERE key = ?", [key], |row| row.get(0))
            .optional()?;
        Ok(value.map(|value| value == "1"))
    };
    let ns = |key: &str| -> rusqlite::Result<u64> {
        let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?";
        let value: Option<i64> = connection.query_row(sql, [key], |row| row.get(0)).optional()?;
        Ok(value.unwrap_or(0).max(0).cast_unsigned())
    };
    let duration_ns = ns("duration_ns")?;
    let mut evidence = Evidence {
        panicked: flag("kernel_panicked")?,
        died: flag("kernel_died")?,
        duration_s: duration_ns as f64 / 1e9,
        progress_s: ns("progress_ns")? as f64 / 1e9,
        vcpus: vcpus(connection, duration_ns)?,
        blocked: blocked(connection)?,
        ..Evidence::default()
    };
    console(connection, &mut evidence)?;
    Ok(evidence)
}

fn console(connection: &Connection, evidence: &mut Evidence) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT bytes FROM console ORDER BY id")?;
    let mut rows = statement.query([])?;
    let mut line = Vec::new();
    let mut last = std::collections::VecDeque::new();
    // A row has several lines where they came fast.
    let mut parts = std::collections::VecDeque::new();
    loop {
        if parts.is_empty() {
            let bytes: Option<Vec<u8>> = rows.next()?.map(|row| row.get(0)).transpose()?;
            let lines = bytes.iter().flat_map(|bytes| bytes.split_inclusive(|&byte| byte == b'\n'));
            parts.extend(lines.map(<[u8]>::to_vec));
            if bytes.is_some_and(|bytes| bytes.is_empty()) {
                continue;
            }
        }
        let bytes = parts.pop_front();
        let ends = bytes.as_ref().is_none_or(|bytes| bytes.ends_with(b"\n"));
        if let Some(bytes) = &bytes {
            let room = LINE.saturating_sub(line.len());
            line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
        if ends {
            let shown = clean::without_escape_sequences(&String::from_utf8_lossy(&line));
            let shown = clean::printable(shown.trim_end());
            line.clear();
            if shown.contains(PANIC) {
                evidence.panic_line.get_or_insert_with(|| shown.clone());
            }
            if OOPS.iter().any(|mark| shown.contains(mark)) {
                evidence.oops_line.get_or_insert_with(|| shown.clone());
            }
            if !shown.is_empty() {
                last.push_back(shown);
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            }
        }
        if bytes.is_none() {
            break;
        }
    }
    evidence.console = last.into();
    Ok(())
}

fn vcpus(connection: &Connection, duration_ns: u64) -> rusqlite::Result<Vec<LastOf>> {
    let from = i64::try_from(duration_ns.saturating_sub(LAST_NS)).unwrap_or(i64::MAX);
    let busy = "SELECT avg(m.name <> 'idle') FROM sample s JOIN mode m ON m.id = s.mode WHERE s.vcpu = ? AND s.time_ns >= ?";
    let last = "SELECT i.comm, s.stack, f.symbol, f.address FROM sample s JOIN mode m ON m.id = s.mode \
                JOIN frame f ON f.id = s.frame LEFT JOIN instance i ON i.id = s.instance \
                WHERE s.vcpu = ? AND s.time_ns >= ? AND m.name <> 'idle' ORDER BY s.time_ns DESC LIMIT 1";
    let ids: Vec<u16> = connection
        .prepare("SELECT id FROM vcpu ORDER BY id")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for vcpu in ids {
        let busy: Option<f64> = connection.query_row(busy, (vcpu, from), |row| row.get(0))?;
        let mut end = LastOf { vcpu, busy: busy.unwrap_or(0.0), ..LastOf::default() };
        let mut statement = connection.prepare(last)?;
        let mut rows = statement.query((vcpu, from))?;
        if let Some(row) = rows.next()? {
            end.process = row.get(0)?;
            end.stack = match row.get::<_, Option<i64>>(1)? {
                Some(stack) => frames(connection, stack)?,
                None => {
                    let (symbol, address): (Option<String>, i64) = (row.get(2)?, row.get(3)?);
                    vec![symbol.unwrap_or_else(|| format!("{address:#x}"))]
                }
            };
        }
        all.push(end);
    }
    Ok(all)
}

/// Reads the functions of a stack, innermost first.
fn frames(connection: &Connection, stack: i64) -> rusqlite::Result<Vec<String>> {
    let sql = "WITH RECURSIVE up (id, parent, frame, depth) AS ( \
               SELECT id, parent, frame, 0 FROM stack WHERE id = ? \
               UNION ALL SELECT s.id, s.parent, s.frame, up.depth + 1 FROM up JOIN stack s ON s.id = up.parent \
               WHERE up.depth < 1024) \
               SELECT coalesce(f.symbol, f.module, printf('0x%x', f.address)) FROM up JOIN frame f ON f.id = up.frame \
               ORDER BY up.depth";
    connection.prepare(sql)?.query_map([stack], |row| row.get(0))?.collect()
}

/// Reads the last state of tasks that sleep, from scans.
fn blocked(connection: &Connection) -> rusqlite::Result<Vec<BlockedTask>> {
    let sql = "SELECT i.comm, i.pid, s.tid, s.state, s.wait_reason, m.time_ns, s.stack FROM task_scan_state s \
               JOIN (SELECT instance, tid, max(scan) AS scan FROM task_scan_state GROUP BY instance, tid) last \
               ON last.instance = s.instance AND last.tid = s.tid AND last.scan = s.scan \
               JOIN task_scan m ON m.id = s.scan JOIN instance i ON i.id = s.instance \
               WHERE s.state = 'disk' OR (s.state = 'sleep' AND i.kernel_thread = 0) \
               ORDER BY s.state <> 'disk', i.pid, s.tid LIMIT ?";
    let most = i64::try_from(MOST_BLOCKED).unwrap_or(i64::MAX);
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([most])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let stack: i64 = row.get(6)?;
        all.push(BlockedTask {
            comm: row.get(0)?,
            pid: row.get(1)?,
            tid: row.get(2)?,
            state: row.get(3)?,
            wait_reason: row.get(4)?,
            since_s: unsigned(row, 5)? as f64 / 1e9,
            stack: if stack > 0 { frames(connection, stack)? } else { Vec::new() },
        });
    }
    Ok(all)
}
