//! All tables of the profile: the fields of a [`Batch`] and the statements that write them.
//!
//! A table that is added is declared here and in `store/schema.sql`, and nowhere else.

use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};

use super::column::{Bits, Column, NameList, PairList, ScannedState};
use super::*;

/// Expands to the start and the end of the statement that adds a row.
///
/// `add`: a new row. `replace`: takes the place of a row with the same key. `refill`: the rows of a batch
/// take the place of all earlier ones. `merge SET`: on a row with the same key, `SET` joins both (`excluded`
/// is the new one).
macro_rules! statement {
    (start add) => {
        "INSERT INTO"
    };
    (start replace) => {
        "INSERT OR REPLACE INTO"
    };
    (start refill) => {
        "INSERT INTO"
    };
    (start merge $set:literal) => {
        "INSERT INTO"
    };
    (end merge $set:literal) => {
        concat!(" ON CONFLICT DO UPDATE SET ", $set)
    };
    (end $($other:tt)*) => {
        ""
    };
}

/// Expands to true if a batch with any rows replaces the whole table.
macro_rules! is_refilled {
    (refill) => {
        true
    };
    ($($other:tt)*) => {
        false
    };
}

/// Expands to the value of a column: that of the field of the same name, or an expression.
macro_rules! value {
    ($row:ident, $column:ident) => {
        $row.$column
    };
    ($row:ident, $column:ident, $value:expr) => {
        $value
    };
}

/// Declares tables. For each: the documentation, name and row type of the field of [`Batch`]; how rows are
/// written, see `statement`; the table's name; and its columns, each with a value unless the row has a
/// field of that name.
macro_rules! tables {
    ($(
        $(#[$documentation:meta])*
        $field:ident: $row_type:ty => ($($how:tt)*) $table:ident |$row:ident| {
            $first:ident $(= $first_value:expr)? $(, $column:ident $(= $value:expr)?)* $(,)?
        }
    )*) => {
        /// Rows to write in one transaction.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Batch {
            $(
                #[doc = concat!("Table `", stringify!($table), "`.")]
                $(#[$documentation])*
                pub $field: Vec<$row_type>,
            )*
        }

        impl Batch {
            /// Removes all rows and keeps their memory for the next ones.
            pub fn clear(&mut self) {
                $(self.$field.clear();)*
            }

            /// Writes all rows.
            pub(crate) fn insert(&self, to: &Transaction<'_>) -> rusqlite::Result<()> {
                $(
                    if !self.$field.is_empty() {
                        if is_refilled!($($how)*) {
                            to.execute(concat!("DELETE FROM ", stringify!($table)), [])?;
                        }
                        let sql = concat!(
                            statement!(start $($how)*), " ", stringify!($table),
                            " (\"", stringify!($first), "\"", $(", \"", stringify!($column), "\"",)*
                            ") VALUES (?", $(placeholder!($column),)* ")", statement!(end $($how)*),
                        );
                        let mut statement = to.prepare_cached(sql)?;
                        for $row in &self.$field {
                            statement.execute(params![
                                value!($row, $first $(, $first_value)?).column()
                                $(, value!($row, $column $(, $value)?).column())*
                            ])?;
                        }
                    }
                )*
                Ok(())
            }

            /// Number of tables.
            pub(crate) const TABLES: usize = [$(stringify!($table)),*].len();
        }
    };
}

/// Expands to the placeholder of a column after the first.
macro_rules! placeholder {
    ($column:ident) => {
        ", ?"
    };
}

impl Batch {
    /// Returns true if it holds something of the guest, which only this run can have seen.
    pub(crate) fn is_recorded(&self) -> bool {
        let ran = |row: &VcpuRow| row.exits > 0 || row.states.guest > 0;
        !self.samples.is_empty()
            || !self.console.is_empty()
            || !self.frames.is_empty()
            || !self.instances.is_empty()
            || !self.task_states.is_empty()
            || !self.task_scan_states.is_empty()
            || !self.memory_readings.is_empty()
            || !self.trip_calls.is_empty()
            || self.vcpus.iter().any(ran)
    }

    /// Returns true if it is the last one of a run that came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.meta.iter().any(|(key, value)| key == COMPLETE && value == "1")
    }
}

tables! {
    /// Key and value.
    meta: (String, String) => (replace) meta |row| { key = row.0, value = row.1 }

    vcpus: VcpuRow => (replace) vcpu |row| {
        id, number = row.id, samples, lost, exits, guest_ns = row.states.guest, halted_ns = row.states.halted,
        waiting_ns = row.states.waiting, kvm_ns = row.states.kvm, vmm_ns = row.states.vmm,
        sampler_ns = row.states.sampler, paused_ns = row.states.paused,
    }

    microstates: MicrostateRow => (replace) microstate |row| {
        vcpu, time_ns, guest_ns = row.states.guest, halted_ns = row.states.halted, waiting_ns = row.states.waiting,
        kvm_ns = row.states.kvm, vmm_ns = row.states.vmm, sampler_ns = row.states.sampler,
        paused_ns = row.states.paused,
    }

    rates: RateRow => (replace) rate |row| { vcpu, time_ns, rate_hz }

    exits: ExitRow => (replace) exit |row| {
        id, vcpu, reason, address, device, count, total_ns, max_ns, p50_ns, p99_ns, times = PairList(&row.times),
    }

    exit_sites: ExitSiteRow => (replace) exit_site |row| {
        exit, mode, instance, frame, noted, count, total_ns, count_error, total_error_ns,
    }

    kvm_counters: KvmCounterRow => (replace) kvm_counter |row| { vcpu, name, value, grows }

    host_waits: HostWaitRow => (replace) host_wait |row| { vcpu, pid, name, count, total_ns }

    injected: InjectedRow => (refill) injected |row| { device, vector, count }

    rusage: RusageRow => (replace) rusage |row| {
        instance, first, time_ns, user_ns, system_ns, tick_user_ns, tick_system_ns, runtime_ns, run_delay_ns,
        voluntary, involuntary, children_user_ns = row.children.user_ns,
        children_system_ns = row.children.system_ns, children_voluntary = row.children.voluntary,
        children_involuntary = row.children.involuntary, children_minor_faults = row.children.minor_faults,
        children_major_faults = row.children.major_faults,
    }

    thread_times: ThreadTimeRow => (replace) thread_time |row| {
        instance, tid, first, time_ns, tick_user_ns, tick_system_ns, runtime_ns,
    }

    cpu_times: CpuTimeRow => (replace) cpu_time |row| {
        cpu = row.stat.cpu, first, time_ns, user_ns = row.stat.user_ns, nice_ns = row.stat.nice_ns,
        system_ns = row.stat.system_ns, softirq_ns = row.stat.softirq_ns, irq_ns = row.stat.irq_ns,
        idle_ns = row.stat.idle_ns, iowait_ns = row.stat.iowait_ns, steal_ns = row.stat.steal_ns,
    }

    instances: InstanceRow => (replace) instance |row| {
        id, pid, start_ns, comm, number, kernel_thread, parent_pid, command, exe, cgroup,
    }

    threads: ThreadRow => (replace) thread |row| { instance, tid, comm }

    cgroups: CgroupRow => (replace) cgroup |row| { id, path, unit, container }

    // What is known of a file grows from row to row: another thread reports what names its functions.
    files: FileRow => (merge "deleted = excluded.deleted, build_id = coalesce(excluded.build_id, build_id), \
                              read_from = coalesce(excluded.read_from, read_from), \
                              named_by = coalesce(excluded.named_by, named_by)") file |row| {
        id, path, device, inode = Bits(row.inode), filesystem, deleted, build_id, read_from, named_by,
    }

    mappings: MappingRow => (replace) mapping |row| {
        instance, start = Bits(row.start), end = Bits(row.end), file, file_offset = Bits(row.file_offset),
    }

    frames: FrameRow => (replace) frame |row| {
        id, address = Bits(row.address), call, kind, instance, file, symbol, module, offset = Bits(row.offset),
        source, line,
    }

    inlined: InlinedRow => (replace) inlined |row| { frame, depth, symbol, source, line }

    stacks: StackRow => (add) stack |row| { id, parent, frame }

    code: CodeRow => (replace) code |row| { start = Bits(row.start), file, module, bytes, read }

    interrupts: InterruptRow => (replace) interrupt |row| { id, kind, name }

    /// Number and name.
    syscalls: (u32, String) => (replace) syscall |row| { number = row.0, name = row.1 }

    samples: SampleRow => (add) sample |row| {
        vcpu, mode, instance, frame, late_ns, time_ns, halted, cpl, interrupts_on, tid, preempt_count,
        rsp = Bits(row.rsp), cr3 = Bits(row.cr3), stack, syscall, interrupt, vcpu_state, fault,
    }

    host_frames: HostFrameRow => (replace) host_frame |row| {
        id, kind, address = Bits(row.address), call, symbol, module, offset = Bits(row.offset),
    }

    host_stacks: StackRow => (add) host_stack |row| { id, parent, frame }

    host_samples: HostSampleRow => (replace) host_sample |row| { vcpu, time_ns, place, on_cpu, stack }

    // Sums of exact mode grow: rows have what was added since the last batch.
    task_states: TaskStateRow => (merge "ns = ns + excluded.ns, count = count + excluded.count") task_state |row| {
        instance, tid, state, wait_reason, stack, ns, count,
    }

    task_runs: TaskRunRow => (add) task_run |row| {
        vcpu, instance, tid, from_ns, wait_ns, delay_ns, running_ns, interrupted_ns, sampler_ns, state, wait_reason,
    }

    task_delays: TaskDelayRow => (merge "count = count + excluded.count, ns = ns + excluded.ns, \
                                         max_from_ns = iif(excluded.max_ns > max_ns, excluded.max_from_ns, max_from_ns), \
                                         max_ns = max(max_ns, excluded.max_ns)") task_delay |row| {
        instance, tid, woken, low_ns, count, ns, max_ns, max_from_ns,
    }

    task_lives: TaskLifeRow => (merge "from_ns = min(from_ns, excluded.from_ns), \
                                       to_ns = max(to_ns, excluded.to_ns), \
                                       ended = excluded.ended") task_life |row| {
        instance, tid, from_ns, to_ns, ended,
    }

    reaped: ReapedRow => (replace) reaped |row| { child, parent, time_ns }

    wakeups: WakeupRow => (merge "count = count + excluded.count") wakeup |row| {
        by, waker, waker_tid, woken, woken_tid, count,
    }

    interrupt_times: InterruptTimeRow => (merge "ns = ns + excluded.ns, \
                                                 count = count + excluded.count") interrupt_time |row| {
        vcpu, instance, tid, ns, count,
    }

    interrupt_sources: InterruptSourceRow => (merge "ns = ns + excluded.ns, count = count + excluded.count, \
                                                     max_ns = max(max_ns, excluded.max_ns)") interrupt_source |row| {
        vcpu, interrupt, vector, ns, count, max_ns,
    }

    exact_vcpus: ExactVcpuRow => (replace) exact_vcpu |row| {
        vcpu, probe_exits, lost, switches, guest_switches, idle_ns, stacks_missed, cost_ns,
    }

    trips: TripRow => (replace) trip |row| {
        id, symbol, address = Bits(row.address), typed, calls, lost, stacks_missed, cost_ns, switching_ns,
        switching_samples,
    }

    trip_arguments: TripArgumentRow => (replace) trip_argument |row| {
        trip, number, name, type_name, kind, names = NameList(&row.values),
    }

    trip_texts: TripTextRow => (replace) trip_text |row| { id, text }

    trip_calls: TripCallRow => (add) trip_call |row| {
        trip, vcpu, time_ns, mode, instance, tid, stack, weight, argument_1 = row.arguments[0],
        argument_2 = row.arguments[1], argument_3 = row.arguments[2], argument_4 = row.arguments[3],
        argument_5 = row.arguments[4], argument_6 = row.arguments[5],
    }

    task_scans: TaskScanRow => (replace) task_scan |row| { id, time_ns, late_ns, backoff }

    task_scan_states: TaskScanStateRow => (replace) task_scan_state |row| {
        instance, tid, scan, state = ScannedState(row.state), wait_reason, stack,
    }

    memory_readings: MemoryReadingRow => (replace) memory_reading |row| {
        id, time_ns, total, available, swap_total, swap_used, cost_ns,
    }

    memory_uses: MemoryUseRow => (add) memory_use |row| {
        reading, kind, name, pid, bytes, anonymous, file, swap,
    }

    console: ConsoleRow => (add) console |row| { time_ns, bytes }

    unit_events: UnitEventRow => (add) unit_event |row| { time_ns, guest_ns, within_ns, step, unit, result }

    events: EventRow => (add) event |row| { time_ns, kind, text }
}
