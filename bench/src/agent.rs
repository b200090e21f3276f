//! Cost of `vprof agent`: memory and CPU time of all its processes, and the time until all machines are
//! recorded.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use profile::Profile;
use profile::store::Value;

use crate::attached::CountingGuest;
use crate::table::TableRow;

/// Numbers of machines without a kernel, and of machines with the memory of a real one.
const BARE: [usize; 3] = [1, 8, 32];
const WITH_KERNEL: [usize; 2] = [1, 8];
/// Time limit until all machines are recorded: a window may have to begin first.
const BEGIN_LIMIT: Duration = Duration::from_secs(300);
/// Time for which CPU time is measured.
const MEASURED: Duration = Duration::from_secs(30);
/// Bytes of the kernel's stack of a thread (THREAD_SIZE, arch/x86/include/asm/page_64_types.h).
const KERNEL_STACK: u64 = 16 << 10;
/// Name of a mapping of a BPF map.
const MAP: &str = "anon_inode:bpf-map";
/// Flag of maps that can be mapped (BPF_F_MMAPABLE, include/uapi/linux/bpf.h).
const MAPPABLE: u64 = 1 << 10;

/// An agent with its processes.
struct RunningAgent(Child);

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // Both fail only if it is gone already. Its recorders end with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory of processes, bytes.
#[derive(Debug, Default)]
struct MemoryParts {
    /// Proportional set size without maps of BPF.
    own: u64,
    /// BPF maps and programs.
    bpf: u64,
    /// Page tables, and the kernel's stacks of threads.
    kernel: u64,
}

impl RunningAgent {
    /// Starts an agent of the machines with this name.
    fn start(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let mut agent = Command::new(vprof_tests::vprof());
        agent.args(["agent", "--name", name, "--engine", "bpf"]).env("XDG_RUNTIME_DIR", directory);
        agent.arg("--to").arg(directory.join("lake")).arg("--spool").arg(directory.join("spool"));
        Ok(Self(agent.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Returns the directories in /proc of the agent and of all its descendants.
    fn processes(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.0.id()];
        while let Some(pid) = open.pop() {
            let directory = Path::new("/proc").join(pid.to_string());
            for task in tasks(&directory) {
                let children = fs::read_to_string(task.join("children")).unwrap_or_default();
                open.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            found.push(directory);
        }
        found
    }

    fn cpu_ns(&self) -> u64 {
        let threads = self.processes().into_iter().flat_map(|process| tasks(&process));
        threads.filter_map(|task| first_number(&task.join("schedstat"))).sum()
    }

    fn memory(&self) -> MemoryParts {
        let mut parts = MemoryParts::default();
        // Each program once, and each map that cannot be mapped, by its kind and number. The other maps are
        // mapped once, and their descriptors may be closed.
        let mut objects = HashMap::new();
        for process in self.processes() {
            let smaps = fs::read_to_string(process.join("smaps")).unwrap_or_default();
            let mut is_map = false;
            for line in smaps.lines() {
                if let Some(bytes) = kilobytes(line, "Size:").filter(|_| is_map) {
                    parts.bpf += bytes;
                } else if let Some(bytes) = kilobytes(line, "Pss:") {
                    parts.own += if is_map { 0 } else { bytes };
                } else if line.contains('-') {
                    is_map = line.ends_with(MAP);
                }
            }
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            parts.kernel += status.lines().filter_map(|line| kilobytes(line, "VmPTE:")).sum::<u64>();
            parts.kernel += tasks(&process).len() as u64 * KERNEL_STACK;
            for entry in fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten() {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                let field =
                    |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
                let hexadecimal =
                    |text: &str| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
                let flags = text.lines().find_map(|line| hexadecimal(line.strip_prefix("map_flags:")?));
                if flags.is_some_and(|flags| flags & MAPPABLE != 0) {
                    continue;
                }
                for kind in ["map_id:", "prog_id:"] {
                    if let (Some(id), Some(bytes)) = (field(kind), field("memlock:")) {
                        let _same: Option<u64> = objects.insert((kind, id), bytes);
                    }
                }
            }
        }
        parts.bpf += objects.values().sum::<u64>();
        parts
    }
}

fn tasks(process: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn first_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the value of a line like `Pss:   12 kB`, bytes.
fn kilobytes(line: &str, key: &str) -> Option<u64> {
    Some(line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns the number of recordings below a directory that have samples.
fn recorded(directory: &Path) -> usize {
    let windows = fs::read_dir(directory.join("spool")).into_iter().flatten().flatten();
    let files = windows.flat_map(|window| fs::read_dir(window.path()).into_iter().flatten().flatten());
    let profiles =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "vprof"));
    let has_samples = |path: &PathBuf| {
        let table = Profile::open(path).ok()?.query("SELECT EXISTS (SELECT 1 FROM sample)").ok()?;
        Some(table.rows.first()?.first()? == &Value::Integer(1))
    };
    profiles.filter(|path| has_samples(path) == Some(true)).count()
}

/// Has an agent make the tables of a kernel that its recorders share, in the spool of `directory`.
fn make_tables(name: &str, directory: &Path) -> anyhow::Result<()> {
    let first = tempfile::tempdir()?;
    let _agent = RunningAgent::start(first.path(), name)?;
    let made = first.path().join("spool/tables");
    let begin = Instant::now();
    // Files without their names yet have other endings.
    let files = || {
        let entries = fs::read_dir(&made).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "tables")).collect::<Vec<_>>()
    };
    while files().is_empty() {
        ensure!(begin.elapsed() < BEGIN_LIMIT, "no tables of a kernel are made");
        std::thread::sleep(Duration::from_millis(200));
    }
    let spool = directory.join("spool/tables");
    fs::create_dir_all(&spool)?;
    for file in files() {
        fs::copy(&file, spool.join(file.file_name().context("a file without a name")?))?;
    }
    Ok(())
}

/// Measures an agent of that many machines, which do nothing but count. The file `ram` has the memory of a
/// guest with a kernel, or is empty.
fn measure_count(count: usize, ram: &Path) -> anyhow::Result<Vec<TableRow>> {
    let name = format!("bench-agent-{}-{count}", std::process::id());
    let has_kernel = fs::metadata(ram)?.len() > 0;
    let guests = (0..count).map(|_| CountingGuest::start_named(ram, &name));
    let _guests: Vec<CountingGuest> = guests.collect::<anyhow::Result<_>>()?;
    let directory = tempfile::tempdir()?;
    let mut label = format!("machines: {count}");
    if has_kernel {
        make_tables(&name, directory.path())?;
        label.push_str(" with a kernel that was seen before");
    }
    let begin = Instant::now();
    let agent = RunningAgent::start(directory.path(), &name)?;
    while recorded(directory.path()) < count {
        ensure!(begin.elapsed() < BEGIN_LIMIT, "not all of {count} machines are recorded");
        std::thread::sleep(Duration::from_millis(200));
    }
    let attached = begin.elapsed();
    // Free memory of the heap is given back within this time.
    std::thread::sleep(Duration::from_secs(10));
    let (began, before_ns) = (Instant::now(), agent.cpu_ns());
    std::thread::sleep(MEASURED);
    let (seconds, spent_ns) = (began.elapsed().as_secs_f64(), agent.cpu_ns().saturating_sub(before_ns));
    let MemoryParts { own, bpf, kernel } = agent.memory();
    ensure!(own > 0 && bpf > 0, "the memory of the agent is not known");
    let each = |bytes: u64| bytes as f64 / 1e6 / count as f64;
    let cpu = spent_ns as f64 / 1e9 / seconds * 100.0;
    Ok(vec![
        TableRow::text(
            &format!("memory of `vprof agent`, {label}"),
            format!("{:.1} MB for each", each(own + bpf + kernel)),
            "at most 2.5 MB",
        )
        .detail(format!(
            "{:.1} MB in processes (PSS), {:.1} MB of BPF, {:.1} MB of page tables and kernel stacks, all together",
            own as f64 / 1e6,
            bpf as f64 / 1e6,
            kernel as f64 / 1e6
        )),
        TableRow::text(
            &format!("CPU time of `vprof agent`, {label}"),
            format!("{:.2} % of a CPU for each", cpu / count as f64),
            "",
        )
        .detail(format!("{cpu:.2} % all together, at 19 Hz; recorded after {:.1} s", attached.as_secs_f64())),
    ])
}

/// Measures agents of few and of many machines. The file `ram` has the memory of a guest, as for
/// [`counting`](crate::attached::counting); `empty` is empty.
///
/// # Errors
/// The host's kernel does not sample here, or a machine is not recorded.
pub fn measure(ram: &Path, empty: &Path, print: impl Fn(&[TableRow])) -> anyhow::Result<()> {
    let measured = BARE.map(|count| (count, empty)).into_iter().chain(WITH_KERNEL.map(|count| (count, ram)));
    for (count, ram) in measured {
        print(&measure_count(count, ram).with_context(|| format!("an agent of {count} machines"))?);
    }
    Ok(())
}
