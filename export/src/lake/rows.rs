//! Rows of the lake's tables. docs/fleet.md describes the columns.

use crate::parquet::table::{UnixTime, table_row};

table_row! {
    /// Samples of a machine in a window with the same place and stack.
    struct SampleRow<'a> {
        t: UnixTime,
        window_ns: u64,
        host: &'a str,
        vm: &'a str,
        vm_name: &'a str,
        vmm: &'a str,
        group_: &'a str,
        kernel: &'a str,
        process: &'a str,
        exe: &'a str,
        unit: &'a str,
        container: &'a str,
        thread: &'a str,
        mode: &'a str,
        syscall: String,
        interrupt: String,
        function: String,
        module: String,
        build_id: String,
        address: Option<i64>,
        source: String,
        line: Option<i64>,
        stack: i64,
        samples: u64,
        weight_ns: f64,
        inclusion: f64,
        rate_hz: f64,
    }
}

table_row! {
    /// A stack.
    struct StackRow<'a> {
        t: UnixTime,
        host: &'a str,
        stack: i64,
        depth: u64,
        frames: String,
        doubtful: u64,
        reason: String,
    }
}

table_row! {
    /// Times of a vCPU.
    struct VcpuRow<'a> {
        t: UnixTime,
        window_ns: u64,
        host: &'a str,
        vm: &'a str,
        vm_name: &'a str,
        group_: &'a str,
        vcpu: i64,
        guest_ns: u64,
        halted_ns: u64,
        waiting_ns: u64,
        kvm_ns: u64,
        vmm_ns: u64,
        sampler_ns: u64,
        paused_ns: u64,
        samples: u64,
        lost: u64,
        exits: u64,
        steal_ns: Option<u64>,
        inclusion: f64,
    }
}

table_row! {
    /// Time that the tasks of a program spent in a state; or the accounting of the program.
    struct TaskRow<'a> {
        t: UnixTime,
        window_ns: u64,
        host: &'a str,
        vm: &'a str,
        vm_name: &'a str,
        group_: &'a str,
        process: &'a str,
        state: &'a str,
        cause: &'a str,
        moments: Option<u64>,
        time_ns: Option<u64>,
        user_ns: Option<u64>,
        system_ns: Option<u64>,
        rss_bytes: Option<u64>,
        inclusion: f64,
    }
}

table_row! {
    /// A profile of a machine.
    struct VmRow<'a> {
        t: UnixTime,
        window_ns: u64,
        host: &'a str,
        vm: &'a str,
        vm_name: &'a str,
        vmm: &'a str,
        group_: &'a str,
        uuid: &'a str,
        pod: &'a str,
        container: &'a str,
        kernel: &'a str,
        begin: UnixTime,
        covered_ns: u64,
        complete: u64,
        vcpus: u64,
        memory_bytes: Option<u64>,
        engine: String,
        samples: u64,
        other_samples: u64,
        lost: u64,
        missing: String,
        unavailable: String,
        dropped_windows: u64,
        agent_cpu_ns: u64,
        agent_memory_bytes: u64,
        version: String,
        inclusion: f64,
        rate_hz: f64,
    }
}
