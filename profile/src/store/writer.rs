//! Writes a profile.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::CpuStat;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement, Transaction, params, params_from_iter};

use super::{APPLICATION_ID, CreateError, MODES, SCHEMA, SCHEMA_VERSION, mode_id};
use crate::rows::Microstates;
use crate::rows::PageFaultKind;
use crate::rows::{Batch, Sink, SinkError};

/// How long a write waits for another process that holds the file, which only a checkpoint of a reader does.
const BUSY: Duration = Duration::from_secs(5);

/// Writes batches into a profile file.
#[derive(Debug)]
pub struct ProfileWriter {
    connection: Connection,
    path: PathBuf,
}

/// Files that SQLite keeps beside a database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

pub(super) fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl ProfileWriter {
    /// Creates the profile. With `force` a regular file of that name is replaced; without, it is an error.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create(path: &Path, force: bool) -> Result<Self, CreateError> {
        let io = |error| CreateError::Io { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() && !meta.is_symlink() => {
                return Err(CreateError::NotAFile(path.to_owned()));
            }
            Ok(_) if !force => return Err(CreateError::Exists(path.to_owned())),
            Ok(_) => fs::remove_file(path).map_err(io)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        // What a killed run has left must not be taken for the new profile's log.
        for suffix in COMPANIONS {
            match fs::remove_file(companion(path, suffix)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
                _ => {}
            }
        }
        // Claims the name: of two runs that start at the same time only one gets it.
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CreateError::Exists(path.to_owned()),
            _ => io(error),
        })?;
        let connection = prepare(path).map_err(|error| {
            let reason = explain(path, &error);
            CreateError::Database { path: path.to_owned(), reason }
        });
        // A profile that could not even begin is nobody's profile.
        let connection = connection.inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Self { connection, path: path.to_owned() })
    }

    fn error(&self, error: &rusqlite::Error) -> SinkError {
        SinkError(format!("cannot write {}: {}", self.path.display(), explain(&self.path, error)))
    }
}

fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.execute_batch(SCHEMA)?;
    for (mode, name) in MODES {
        transaction.execute("INSERT INTO mode VALUES (?, ?)", params![mode_id(mode), name])?;
    }
    transaction.commit()?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // In WAL mode a kill loses nothing that was committed; NORMAL risks the last commits only when power fails.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// The reason in plain words, above all for a disk that is full. SQLite reports only some of those cases as such.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) if no_room(path) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) => format!("the disk refuses to take more ({error})"),
        _ => error.to_string(),
    }
}

/// Whether the file system under `path` has less than a batch's room left.
fn no_room(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` is NUL-terminated and `stat` has room for the structure; both outlive the call.
    if unsafe { libc::statvfs(name.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: statvfs has succeeded and so filled the structure.
    let stat = unsafe { stat.assume_init() };
    stat.f_bavail.saturating_mul(stat.f_frsize) < 1 << 20
}

/// A time or count; SQLite's integers end at 2^63 - 1.
fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Sink for ProfileWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let transaction = self.connection.transaction();
        let written = transaction.and_then(|transaction| {
            write_small(&transaction, batch)?;
            write_times(&transaction, batch)?;
            write_who(&transaction, batch)?;
            write_code(&transaction, batch)?;
            write_samples(&transaction, batch)?;
            write_exact(&transaction, batch)?;
            write_task_scans(&transaction, batch)?;
            transaction.commit()
        });
        written.map_err(|error| self.error(&error))
    }

    /// Folds the write-ahead log into the file. While somebody reads the file the log stays beside it.
    fn finish(&mut self) -> Result<(), SinkError> {
        let folded = self
            .connection
            .busy_timeout(Duration::from_secs(1))
            .and_then(|()| self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
            .and_then(|()| self.connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())));
        match folded {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
            other => other.map_err(|error| self.error(&error)),
        }
    }
}

fn each<T>(
    transaction: &Transaction<'_>,
    sql: &str,
    rows: &[T],
    bind: impl Fn(&mut Statement<'_>, &T) -> rusqlite::Result<usize>,
) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = transaction.prepare_cached(sql)?;
    rows.iter().try_for_each(|row| bind(&mut statement, row).map(drop))
}

fn write_small(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    each(to, "INSERT OR REPLACE INTO meta VALUES (?, ?)", &batch.meta, |sql, (key, value)| {
        sql.execute(params![key, value])
    })?;
    each(to, "INSERT INTO console (time_ns, bytes) VALUES (?, ?)", &batch.console, |sql, row| {
        sql.execute(params![count(row.time_ns), row.bytes])
    })?;
    let sql =
        "INSERT INTO unit_event (time_ns, guest_ns, within_ns, step, unit, result) VALUES (?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.unit_events, |sql, row| {
        let ([time_ns, guest_ns], within_ns) =
            ([row.time_ns, row.guest_ns].map(count), row.within_ns.map(count));
        sql.execute(params![time_ns, guest_ns, within_ns, row.step, row.unit, row.result])
    })?;
    each(to, "INSERT INTO event (time_ns, kind, text) VALUES (?, ?, ?)", &batch.events, |sql, row| {
        sql.execute(params![count(row.time_ns), row.kind, row.text])
    })
}

/// The states in the order of their columns.
fn states(states: &Microstates) -> [i64; 7] {
    states.named().map(|(_, ns)| count(ns))
}

fn write_times(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO vcpu VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.vcpus, |sql, v| {
        let [guest, halted, waiting, kvm, vmm, sampler, paused] = states(&v.states);
        let counts = [v.samples, v.lost, v.exits].map(count);
        sql.execute(params![
            v.id, counts[0], counts[1], counts[2], guest, halted, waiting, kvm, vmm, sampler, paused
        ])
    })?;
    let sql = "INSERT OR REPLACE INTO microstate VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.microstates, |sql, m| {
        let [guest, halted, waiting, kvm, vmm, sampler, paused] = states(&m.states);
        sql.execute(params![m.vcpu, count(m.time_ns), guest, halted, waiting, kvm, vmm, sampler, paused])
    })?;
    each(to, "INSERT OR REPLACE INTO rate VALUES (?, ?, ?)", &batch.rates, |sql, r| {
        sql.execute(params![r.vcpu, count(r.time_ns), r.rate_hz])
    })?;
    let sql = "INSERT OR REPLACE INTO exit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.exits, |sql, e| {
        let numbers = [e.count, e.total_ns, e.max_ns, e.p50_ns, e.p99_ns].map(count);
        let times: Vec<String> = e.times.iter().map(|(low, count)| format!("[{low},{count}]")).collect();
        sql.execute(params![
            e.id,
            e.vcpu,
            e.reason,
            e.address.map(count),
            e.device,
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            format!("[{}]", times.join(","))
        ])
    })?;
    each(to, "INSERT OR REPLACE INTO kvm_counter VALUES (?, ?, ?, ?)", &batch.kvm_counters, |sql, c| {
        sql.execute(params![c.vcpu, c.name, count(c.value), c.grows])
    })?;
    let sql = "INSERT OR REPLACE INTO rusage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.rusage, |sql, r| {
        let times = [r.time_ns, r.user_ns, r.system_ns, r.tick_user_ns, r.tick_system_ns].map(count);
        let more = [r.runtime_ns, r.run_delay_ns, r.voluntary, r.involuntary].map(count);
        let children = [
            r.children.user_ns,
            r.children.system_ns,
            r.children.voluntary,
            r.children.involuntary,
            r.children.minor_faults,
            r.children.major_faults,
        ];
        let numbers = times.into_iter().chain(more).chain(children.map(count));
        let head = [i64::from(r.instance), i64::from(r.first)];
        sql.execute(params_from_iter(head.into_iter().chain(numbers)))
    })?;
    let sql = "INSERT OR REPLACE INTO thread_time VALUES (?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.thread_times, |sql, t| {
        let times = [t.time_ns, t.tick_user_ns, t.tick_system_ns, t.runtime_ns].map(count);
        sql.execute(params![t.instance, t.tid, t.first, times[0], times[1], times[2], times[3]])
    })?;
    let sql = "INSERT OR REPLACE INTO cpu_time VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.cpu_times, |sql, c| {
        let CpuStat { cpu, .. } = c.books;
        let busy = [c.books.user_ns, c.books.nice_ns, c.books.system_ns, c.books.softirq_ns, c.books.irq_ns];
        let [user, nice, system, softirq, irq] = busy.map(count);
        let [idle, iowait, steal] = [c.books.idle_ns, c.books.iowait_ns, c.books.steal_ns].map(count);
        sql.execute(params![
            cpu,
            c.first,
            count(c.time_ns),
            user,
            nice,
            system,
            softirq,
            irq,
            idle,
            iowait,
            steal
        ])
    })?;
    if !batch.injected.is_empty() {
        to.execute("DELETE FROM injected", [])?;
    }
    each(to, "INSERT INTO injected VALUES (?, ?, ?)", &batch.injected, |sql, i| {
        sql.execute(params![i.device, i.vector, count(i.count)])
    })
}

fn write_who(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    each(
        to,
        "INSERT OR REPLACE INTO instance VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        &batch.instances,
        |sql, i| {
            sql.execute(params![
                i.id,
                i.pid,
                count(i.start_ns),
                i.comm,
                i.number,
                i.kernel_thread,
                i.parent_pid,
                i.command,
                i.exe,
                i.cgroup
            ])
        },
    )?;
    each(to, "INSERT OR REPLACE INTO thread VALUES (?, ?, ?)", &batch.threads, |sql, t| {
        sql.execute(params![t.instance, t.tid, t.comm])
    })?;
    each(to, "INSERT OR REPLACE INTO cgroup VALUES (?, ?, ?, ?)", &batch.cgroups, |sql, c| {
        sql.execute(params![c.id, c.path, c.unit, c.container])
    })?;
    each(to, "INSERT OR REPLACE INTO interrupt VALUES (?, ?, ?)", &batch.interrupts, |sql, i| {
        sql.execute(params![i.id, i.kind, i.name])
    })?;
    each(to, "INSERT OR REPLACE INTO syscall VALUES (?, ?)", &batch.syscalls, |sql, (number, name)| {
        sql.execute(params![number, name])
    })
}

fn write_code(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    // What is known of a file grows from row to row; who named it is told by another thread than the rest.
    let sql = "INSERT INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) \
               ON CONFLICT (id) DO UPDATE SET deleted = excluded.deleted, \
               build_id = coalesce(excluded.build_id, build_id), \
               read_from = coalesce(excluded.read_from, read_from), \
               named_by = coalesce(excluded.named_by, named_by)";
    each(to, sql, &batch.files, |sql, f| {
        let inode = f.inode.cast_signed();
        sql.execute(params![
            f.id,
            f.path,
            f.device,
            inode,
            f.filesystem,
            f.deleted,
            f.build_id,
            f.read_from,
            f.named_by
        ])
    })?;
    each(to, "INSERT OR REPLACE INTO mapping VALUES (?, ?, ?, ?, ?)", &batch.mappings, |sql, m| {
        let addresses = [m.start, m.end, m.file_offset].map(u64::cast_signed);
        sql.execute(params![m.instance, addresses[0], addresses[1], m.file, addresses[2]])
    })?;
    let sql = "INSERT OR REPLACE INTO frame VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.frames, |sql, f| {
        sql.execute(params![
            f.id,
            f.address.cast_signed(),
            f.call,
            f.kind.name(),
            f.instance,
            f.file,
            f.symbol,
            f.module,
            f.offset.cast_signed(),
            f.source,
            f.line
        ])
    })?;
    each(to, "INSERT OR REPLACE INTO inlined VALUES (?, ?, ?, ?, ?)", &batch.inlined, |sql, i| {
        sql.execute(params![i.frame, i.depth, i.symbol, i.source, i.line])
    })?;
    each(to, "INSERT INTO stack VALUES (?, ?, ?)", &batch.stacks, |sql, s| {
        sql.execute(params![s.id, s.parent, s.frame])
    })?;
    each(to, "INSERT OR REPLACE INTO code VALUES (?, ?, ?, ?, ?)", &batch.code, |sql, c| {
        sql.execute(params![c.start.cast_signed(), c.file, c.module, c.bytes, c.read.name()])
    })
}

fn write_samples(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    let sql = "INSERT INTO sample (vcpu, mode, instance, frame, late_ns, time_ns, halted, cpl, interrupts_on, tid, \
               preempt_count, rsp, cr3, stack, syscall, interrupt, vcpu_state, fault) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.samples, |sql, s| {
        sql.execute(params![
            s.vcpu,
            mode_id(s.mode),
            s.instance,
            s.frame,
            count(s.late_ns),
            count(s.time_ns),
            s.halted,
            s.cpl,
            s.interrupts_on,
            s.tid,
            s.preempt_count,
            s.rsp.cast_signed(),
            s.cr3.cast_signed(),
            s.stack,
            s.syscall,
            s.interrupt,
            s.vcpu_state.name(),
            s.fault.map(PageFaultKind::name),
        ])
    })
}

/// Sums grow: rows hold what has come since the last batch.
fn write_exact(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    let sql = "INSERT INTO task_state VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET ns = ns + excluded.ns, count = count + excluded.count";
    each(to, sql, &batch.task_states, |sql, t| {
        let (state, wait_reason) = (t.state.name(), t.wait_reason.name());
        sql.execute(params![t.instance, t.tid, state, wait_reason, t.stack, count(t.ns), count(t.count)])
    })?;
    let sql = "INSERT INTO task_life VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET from_ns = min(from_ns, excluded.from_ns), to_ns = max(to_ns, excluded.to_ns), ended = excluded.ended";
    each(to, sql, &batch.task_lives, |sql, l| {
        sql.execute(params![l.instance, l.tid, count(l.from_ns), count(l.to_ns), l.ended])
    })?;
    each(to, "INSERT OR REPLACE INTO reaped VALUES (?, ?, ?)", &batch.reaped, |sql, w| {
        sql.execute(params![w.child, w.parent, count(w.time_ns)])
    })?;
    let sql = "INSERT INTO wakeup VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET count = count + excluded.count";
    each(to, sql, &batch.wakeups, |sql, w| {
        sql.execute(params![w.by, w.waker, w.waker_tid, w.woken, w.woken_tid, count(w.count)])
    })?;
    let sql = "INSERT INTO interrupt_time VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET ns = ns + excluded.ns, count = count + excluded.count";
    each(to, sql, &batch.interrupt_times, |sql, i| {
        sql.execute(params![i.vcpu, i.instance, i.tid, count(i.ns), count(i.count)])
    })?;
    let sql = "INSERT INTO interrupt_source VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET ns = ns + excluded.ns, count = count + excluded.count, max_ns = max(max_ns, excluded.max_ns)";
    each(to, sql, &batch.interrupt_sources, |sql, i| {
        let [ns, number, max_ns] = [i.ns, i.count, i.max_ns].map(count);
        sql.execute(params![i.vcpu, i.interrupt, i.vector, ns, number, max_ns])
    })?;
    let sql = "INSERT OR REPLACE INTO exact_vcpu VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.exact_vcpus, |sql, v| {
        let numbers = [v.probe_exits, v.lost, v.switches, v.idle_ns, v.stacks_missed, v.cost_ns].map(count);
        sql.execute(params![
            v.vcpu,
            numbers[0],
            numbers[1],
            numbers[2],
            v.guest_switches.map(count),
            numbers[3],
            numbers[4],
            numbers[5]
        ])
    })
}

fn write_task_scans(to: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    each(to, "INSERT OR REPLACE INTO task_scan VALUES (?, ?, ?, ?)", &batch.task_scans, |sql, m| {
        sql.execute(params![count(m.id), count(m.time_ns), count(m.late_ns), m.backoff])
    })?;
    let sql = "INSERT OR REPLACE INTO task_scan_state VALUES (?, ?, ?, ?, ?, ?)";
    each(to, sql, &batch.task_scan_states, |sql, s| {
        sql.execute(params![s.instance, s.tid, count(s.scan), s.state_name(), s.wait_reason.name(), s.stack])
    })
}
