//! Reads a dump of a guest's RAM: prints what is found and how long each step took.
//!
//! ```text
//! cargo run --release -p linux --example read_dump -- RAM CR3 [la57] [kallsyms=FILE] [tasks=FILE]
//! ```
//!
//! RAM is the guest's memory from physical address 0. With QEMU's monitor: `stop`, then
//! `info registers -a` (CR3; `la57` when bit 12 of CR4 is set) and `pmemsave 0 SIZE RAM`.
//!
//! To check what is read against what the guest itself says, take in the guest, as root, right before:
//! `cat /proc/kallsyms` for `kallsyms=`, and for `tasks=` lines of "pid tid comm", like those of
//! `ps -eLo pid=,lwp=,comm=`. Differences are printed; the exit code is 1 if there are any.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::time::Instant;

use guest_linux::{
    CurrentReader, FindStep, Kernel, Missing, Modules, PhysicalMemory, TaskSnapshot, VirtAddr,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Number of timed reads of the current task.
const ROUNDS: u32 = 1_000_000;
/// Differences of one kind that are printed.
const SHOWN: usize = 10;

/// The command line.
struct Options {
    ram: String,
    cr3: u64,
    la57: bool,
    kallsyms: Option<String>,
    tasks: Option<String>,
}

fn options() -> Option<Options> {
    let mut args = std::env::args().skip(1);
    let ram = args.next()?;
    let cr3 = args.next()?;
    let mut options = Options {
        ram,
        cr3: u64::from_str_radix(cr3.trim_start_matches("0x"), 16).ok()?,
        la57: false,
        kallsyms: None,
        tasks: None,
    };
    for arg in args {
        match arg.split_once('=') {
            None if arg == "la57" => options.la57 = true,
            Some(("kallsyms", file)) => options.kallsyms = Some(file.into()),
            Some(("tasks", file)) => options.tasks = Some(file.into()),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let Some(options) = options() else {
        eprintln!("usage: read_dump RAM CR3 [la57] [kallsyms=FILE] [tasks=FILE]");
        return Ok(ExitCode::from(2));
    };
    let memory = load(&options.ram)?;
    let Some(kernel) = or_reason(find(&memory, &options)) else {
        return Ok(ExitCode::from(1));
    };
    let (start, end) = kernel.image();
    println!("release        {}", kernel.release().unwrap_or("?"));
    println!("image          {:#x}..{:#x}", start.0, end.0);
    println!("symbols        {}", kernel.symbol_count());
    for missing in kernel.missing() {
        println!("missing        {missing}");
    }
    let modules = or_reason(timed("modules", || kernel.modules(&memory))).unwrap_or_default();
    for (name, start, size) in modules.iter() {
        println!("module         {name} {:#x} {size:#x}", start.0);
    }
    let tasks = or_reason(timed("tasks", || kernel.tasks(&memory))).unwrap_or_default();
    println!("tasks          {}", tasks.len());
    if let Some(reader) = or_reason(timed("reader", || kernel.current_reader(&memory))) {
        current(&memory, &reader);
    }

    let mut differences = 0;
    if let Some(file) = &options.kallsyms {
        differences += compare_kallsyms(&kernel, &modules, &std::fs::read_to_string(file)?);
    }
    if let Some(file) = &options.tasks {
        differences += compare_tasks(&tasks, &std::fs::read_to_string(file)?);
    }
    Ok(ExitCode::from(u8::from(differences > 0)))
}

/// Returns the dump in memory, of the kind that a VMM has.
fn load(path: &str) -> Result<GuestMemoryMmap, Box<dyn Error>> {
    let mut file = File::open(path)?;
    let size = usize::try_from(file.metadata()?.len())?;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)])?;
    memory.read_exact_volatile_from(GuestAddress(0), &mut file, size)?;
    Ok(memory)
}

/// Runs `what` and prints how long it took.
fn timed<T>(name: &str, what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = what();
    println!("time: {name:<8} {:>10.1?}", start.elapsed());
    result
}

fn find(memory: &impl PhysicalMemory, options: &Options) -> Result<Kernel, Missing> {
    let mut last = Instant::now();
    let kernel = Kernel::find_in_steps(memory, options.cr3, options.la57, |step| {
        let name = match step {
            FindStep::Image => "image",
            FindStep::Kallsyms => "kallsyms",
            FindStep::Btf => "btf",
        };
        println!("time: {name:<8} {:>10.1?}", last.elapsed());
        last = Instant::now();
    });
    kernel.inspect_err(|_| println!("time: nothing  {:>10.1?}", last.elapsed()))
}

/// Returns the value; prints the reason on a separate line where there is none.
fn or_reason<T>(result: Result<T, Missing>) -> Option<T> {
    result.inspect_err(|missing| println!("missing        {missing}")).ok()
}

fn current(memory: &impl PhysicalMemory, reader: &CurrentReader) {
    let cpus: Vec<usize> = reader.cpus().collect();
    let mut tids = 0i64;
    for &cpu in &cpus {
        let current = reader.read(memory, cpu).unwrap_or_default();
        println!("cpu {cpu:<10} preempt count {:#x}: {:?}", current.preempt_count, current.serving);
        let Some(task) = current.task else {
            println!("cpu {cpu:<10} no task");
            continue;
        };
        tids += i64::from(task.tid);
        let (name, process) = (text(&task.comm), text(&task.process_comm));
        println!("cpu {cpu:<10} task {:#x}, tid {} {name}, pid {} {process}", task.task, task.tid, task.pid);
    }
    let start = Instant::now();
    let mut sum = 0i64;
    for _ in 0..ROUNDS {
        for &cpu in &cpus {
            let task = std::hint::black_box(reader).read(memory, cpu).and_then(|c| c.task);
            sum += i64::from(task.map_or(0, |t| t.tid));
        }
    }
    let each = start.elapsed() / ROUNDS / u32::try_from(cpus.len()).unwrap_or(1).max(1);
    assert_eq!(sum, tids * i64::from(ROUNDS), "the reads changed");
    println!("time: current  {each:>10.1?}");
}

fn text(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

/// Prints the first differences of one kind and returns their number.
fn report(kind: &str, differences: &[String]) -> usize {
    for difference in differences.iter().take(SHOWN) {
        println!("differs: {kind} {difference}");
    }
    if differences.len() > SHOWN {
        println!("differs: {kind} ... {} in all", differences.len());
    }
    differences.len()
}

/// One line of /proc/kallsyms.
struct Line<'a> {
    address: u64,
    kind: char,
    name: &'a str,
    module: Option<&'a str>,
}

fn parse(line: &str) -> Option<Line<'_>> {
    let mut words = line.split_whitespace();
    Some(Line {
        address: u64::from_str_radix(words.next()?, 16).ok()?,
        kind: words.next()?.chars().next()?,
        name: words.next()?,
        module: words.next().map(|m| m.trim_start_matches('[').trim_end_matches(']')),
    })
}

fn compare_kallsyms(kernel: &Kernel, modules: &Modules, truth: &str) -> usize {
    let lines: Vec<_> = truth.lines().filter_map(parse).collect();
    let image = lines.iter().filter(|l| l.module.is_none());
    let mut found = kernel.symbols();
    let mut same = 0;
    let mut wrong = Vec::new();
    for line in image.clone() {
        match found.next() {
            Some((name, at)) if name == line.name && at.0 == line.address => same += 1,
            other => wrong.push(format!("{:#x} {}: {other:x?}", line.address, line.name)),
        }
    }
    wrong.extend(found.map(|extra| format!("{extra:x?} is not in the guest's list")));
    println!("image symbols  {same} equal");
    let mut differences = report("symbol", &wrong);

    // Each function must be found at its address, under one of the names that the guest has for it.
    let mut names: BTreeMap<u64, Vec<&Line>> = BTreeMap::new();
    for line in &lines {
        names.entry(line.address).or_default().push(line);
    }
    for (kind, in_module) in [("function", false), ("module function", true)] {
        let mut same = 0;
        let mut none = 0;
        let mut wrong = Vec::new();
        for (&address, lines) in &names {
            let functions: Vec<_> =
                lines.iter().filter(|l| "tTwW".contains(l.kind) && l.module.is_some() == in_module).collect();
            if functions.is_empty() {
                continue;
            }
            let at = VirtAddr(address);
            let found = kernel.symbol_at(at).or_else(|| modules.symbol_at(at));
            match found {
                Some(f)
                    if f.offset == 0
                        && functions.iter().any(|l| l.name == f.name && l.module == f.module) =>
                {
                    same += 1;
                }
                // Marks, and init code that is gone.
                None => none += 1,
                Some(f) if f.name.is_empty() => none += 1,
                Some(f) => wrong.push(format!("{address:#x} {}: {f:?}", functions[0].name)),
            }
        }
        println!("{kind}s: {same} found, {none} left out");
        differences += report(kind, &wrong);
    }
    differences
}

fn compare_tasks(tasks: &[TaskSnapshot], truth: &str) -> usize {
    let mut found: BTreeMap<i32, &TaskSnapshot> = tasks.iter().map(|t| (t.tid, t)).collect();
    let mut wrong = Vec::new();
    let mut same = 0;
    for line in truth.lines() {
        let mut words = line.trim_start().splitn(3, ' ');
        let (Some(Ok(pid)), Some(Ok(tid)), Some(comm)) = (
            words.next().map(str::parse::<i32>),
            words.next().map(|w| w.trim().parse::<i32>()),
            words.next(),
        ) else {
            continue;
        };
        match found.remove(&tid) {
            // The guest shows a work-queue thread's work after its name.
            Some(t) if t.pid == pid && comm.starts_with(&text(&t.comm)) => same += 1,
            other => wrong.push(format!("{line}: {other:?}")),
        }
    }
    wrong.extend(found.values().map(|t| format!("{t:?} is not in the guest's list")));
    println!("tasks          {same} equal");
    report("task", &wrong)
}
