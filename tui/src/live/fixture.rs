//! Snapshots for tests.

use profile::live::{
    CallShare, Detail, DetailView, ExitRate, FunctionShare, MemoryShare, ModeShares, Note, ProcessShare,
    ProgramShare, Sampling, Snapshot, TaskShare, VcpuShare,
};
use profile::rows::MemoryKind;
use statistics::estimate::share;

/// Samples that were not idle.
const BUSY: u64 = 4_500;

/// Names the parts, in the order of [`crate::widgets::theme::STATES`].
fn states(parts: [f64; 7]) -> Vec<(String, f64)> {
    crate::widgets::theme::STATES.iter().zip(parts).map(|(name, part)| ((*name).to_owned(), part)).collect()
}

/// Returns the states of a vCPU at a time: it works, waits for a CPU of the host, and halts, by turns.
fn doing(id: u8, time_s: f64) -> [f64; 7] {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let step = (time_s * 2.0) as u64 % 20;
    match step + u64::from(id) {
        step @ 0..=8 => [step as f64 / 8.0 * 0.97, 1.0 - step as f64 / 8.0, 0.0, 0.005, 0.015, 0.01, 0.0],
        9..=10 => [0.6, 0.0, 0.4, 0.0, 0.0, 0.0, 0.0],
        11 => [0.2, 0.0, 0.0, 0.0, 0.8, 0.0, 0.0],
        _ => [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    }
}

fn vcpu(id: u8, time_s: f64) -> VcpuShare {
    VcpuShare {
        id,
        states: states([0.612, 0.35, 0.021, 0.004, 0.0105, 0.0025, 0.0]),
        now: states(doing(id, time_s)),
        modes: ModeShares { user: 0.403, kernel: 0.181, hardirq: 0.02, softirq: 0.0002, idle: 0.3958 },
        history: Vec::new(),
    }
}

fn process(comm: &str, pid: i32, instance: u32, samples: u64, user: f64) -> ProcessShare {
    let share = share(samples, BUSY);
    ProcessShare { comm: comm.to_owned(), pid, instance, kernel_thread: false, samples, share, user }
}

fn function(symbol: &str, module: Option<&str>, own: u64, total: u64) -> FunctionShare {
    FunctionShare {
        symbol: symbol.to_owned(),
        module: module.map(str::to_owned),
        samples: own,
        own: share(own, BUSY),
        total: share(total, BUSY),
    }
}

fn task(comm: &str, tid: i32, running: f64) -> TaskShare {
    let named = [("running", running), ("interrupted", 0.01), ("runnable", 0.04), ("sleep", 0.95 - running)];
    let states = named.map(|(name, part)| (name.to_owned(), part)).to_vec();
    TaskShare { comm: comm.to_owned(), pid: 84, instance: 0, tid, time_s: 5.0, states }
}

fn exit(reason: &str, device: Option<&str>, address: Option<u64>, per_s: f64, mean_ns: f64) -> ExitRate {
    let (reason, device) = (reason.to_owned(), device.map(str::to_owned));
    ExitRate { reason, device, address, per_s, mean_ns, share: per_s * mean_ns / 1e9 }
}

/// Makes a snapshot of a run with this many vCPUs, at a time.
pub fn snapshot(vcpus: u8, time_s: f64) -> Snapshot {
    let hog = (0..40).map(|n| process("worker", 200 + n, n.unsigned_abs(), 9, 1.0));
    let processes = [
        process("python3", 84, 0, 1_180, 0.88),
        process("sha256sum", 85, 0, 612, 0.8),
        process("gr\u{f6}\u{df}e\u{202e}x", 4_711, 2, 333, 0.25),
        process("[hard interrupt]", 0, 0, 270, 0.0),
    ];
    let long = "core::iter::adapters::map::Map<I, F> as core::iter::traits::iterator::Iterator>::fold::h17d4";
    let program = |process: &ProcessShare, instances: u64, samples: u64| ProgramShare {
        comm: process.comm.clone(),
        kernel_thread: false,
        instances,
        pid: (instances == 1).then_some(process.pid),
        samples,
        share: share(samples, BUSY),
        user: process.user,
    };
    let mut programs: Vec<ProgramShare> =
        processes.iter().map(|p| program(p, u64::from(p.pid > 0), p.samples)).collect();
    programs.insert(2, program(&process("worker", 200, 0, 360, 1.0), 40, 360));
    Snapshot {
        time_s,
        programs,
        span_s: 5.0,
        kernel: Some("6.1.0-56-cloud-amd64".to_owned()),
        host: "kvm".to_owned(),
        sampling: Sampling {
            on: true,
            rate_hz: 1_000.0,
            clock: "uniform".to_owned(),
            samples: 18_153,
            lost: 2,
            counted: 9_000,
        },
        vcpus: (0..vcpus).map(|id| vcpu(id, time_s)).collect(),
        modes: ModeShares { user: 0.403, kernel: 0.181, hardirq: 0.02, softirq: 0.0002, idle: 0.3958 },
        processes: processes.into_iter().chain(hog).collect(),
        functions: vec![
            function(long, Some("python3.11"), 590, 602),
            function("clear_user_erms", None, 230, 230),
            function("_PyEval_EvalFrameDefault", Some("python3.11"), 205, 1_160),
            function("ext4_file_write_iter", Some("ext4"), 3, 300),
        ],
        exact: true,
        tasks: vec![task("python3", 84, 0.9), task("python3", 86, 0.05)],
        exits: vec![
            exit("port write", Some("serial"), Some(0x3f8), 1_250.0, 8_400.0),
            exit("port read", None, Some(0xcf8), 2.0, 5_100.0),
        ],
        memory: [
            (MemoryKind::Part, "free", 0, 320, -24),
            (MemoryKind::Part, "page_cache", 0, 96, 0),
            (MemoryKind::Process, "python3", 84, 64, 12),
            (MemoryKind::File, "/usr/lib/libc\u{1b}.so.6", 0, 2, 0),
        ]
        .map(|(kind, name, pid, mib, growth)| MemoryShare {
            kind,
            name: name.to_owned(),
            pid,
            bytes: mib << 20,
            growth: growth << 20,
            share: mib as f64 / 463.0,
        })
        .to_vec(),
        events: vec![
            Note { time_s: 0.4, kind: "kernel".to_owned(), text: "Linux 6.1.0-56-cloud-amd64".to_owned() },
            Note { time_s: 12.25, kind: "mark".to_owned(), text: "cache is\x1b[2J warm".to_owned() },
        ],
        console: (0..40).map(|n| format!("[{n:>3}.000000] line {n} of the console")).collect(),
        detail: None,
    }
}

/// Makes the table that a view selects: of 1,180 samples.
pub fn detail(view: &DetailView) -> Detail {
    let call = |depth, symbol: &str, module: Option<&str>, samples: u64| CallShare {
        depth,
        symbol: symbol.to_owned(),
        module: module.map(str::to_owned),
        samples,
        share: share(samples, BUSY),
        part: samples as f64 / 1_160.0,
    };
    let python = Some("python3.11");
    let (functions, calls) = match &view.calls {
        None => {
            let eval = function("_PyEval_EvalFrameDefault", python, 205, 1_160);
            (vec![function("PyLong_Add", python, 590, 602), eval], Vec::new())
        }
        Some(wanted) => {
            let root = call(0, &wanted.symbol, wanted.module.as_deref(), 1_160);
            let rest = [("main", python, 1_000), ("_start", python, 990), ("asm_exc_page_fault", None, 160)];
            let depths = [1, 2, 1];
            let rest = rest.into_iter().zip(depths);
            let rest = rest.map(|((symbol, module, samples), depth)| call(depth, symbol, module, samples));
            (Vec::new(), std::iter::once(root).chain(rest).collect())
        }
    };
    Detail { view: view.clone(), samples: 1_180, functions, calls }
}
