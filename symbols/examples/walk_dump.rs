//! Walks the kernel stacks of a guest under QEMU: of every CPU and of every task that sleeps.
//!
//! ```text
//! qemu-system-x86_64 -m 256 -machine pc,memory-backend=ram -monitor unix:MONITOR,server=on,wait=off ...
//!     -object memory-backend-file,id=ram,size=256M,mem-path=RAM,share=on
//! cargo run --release -p symbols --example walk_dump -- RAM MONITOR [samples=N] [print=N] [stacks=FILE]
//! ```
//!
//! Stops the guest by its monitor, reads registers and RAM, lets it run on, `samples` times (100). Prints the shares of
//! the ways in which walks end, the first `print` stacks and all that break, and how long a copy and a frame take.
//!
//! To check walks of sleeping tasks against what the guest itself says: `stacks=` a file with, for each task, a line
//! "TASK tid name" and the lines of `/proc/TID/stack`. Tasks that have moved on since differ.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symbols::{
    FrameKind, Kernel, KernelFrame, KernelUnwinder, Modules, Registers, StackCopy, StackMemory, StackReader,
    StackSample, WalkEnd,
};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// Frames of a walk, at most.
const LIMIT: usize = 128;
/// How often each copy and each walk is repeated to be timed.
const ROUNDS: u32 = 200;
/// Stacks that break and are printed, at most.
const MAX_BROKEN: usize = 20;

/// Words of a stack that are printed.
const WORDS: u64 = 12;

/// The command line.
struct Options {
    ram: String,
    monitor: String,
    samples: usize,
    print: usize,
    stacks: Option<String>,
}

fn options() -> Option<Options> {
    let mut args = std::env::args().skip(1);
    let mut options =
        Options { ram: args.next()?, monitor: args.next()?, samples: 100, print: 0, stacks: None };
    for arg in args {
        match arg.split_once('=')? {
            ("samples", value) => options.samples = value.parse().ok()?,
            ("print", value) => options.print = value.parse().ok()?,
            ("stacks", value) => options.stacks = Some(value.into()),
            _ => return None,
        }
    }
    Some(options)
}

/// One CPU as QEMU shows it.
#[derive(Debug, Clone)]
struct Cpu {
    registers: Registers,
    cpl: u8,
    cr3: u64,
    five_level: bool,
}

/// QEMU's monitor for people.
struct Monitor(UnixStream);

impl Monitor {
    fn ask(&mut self, command: &str) -> Result<String, Box<dyn Error>> {
        self.0.write_all(format!("{command}\n").as_bytes())?;
        self.answer()
    }

    /// Everything up to the next prompt.
    fn answer(&mut self) -> Result<String, Box<dyn Error>> {
        let mut text = Vec::new();
        let mut buffer = [0; 16384];
        while !text.ends_with(b"(qemu) ") {
            match self.0.read(&mut buffer)? {
                0 => return Err("QEMU ended".into()),
                count => text.extend_from_slice(&buffer[..count]),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn cpus(&mut self) -> Result<Vec<Cpu>, Box<dyn Error>> {
        let text = self.ask("info registers -a")?;
        text.split("CPU#").skip(1).map(|cpu| parse(cpu).ok_or_else(|| "unknown registers".into())).collect()
    }
}

fn parse(text: &str) -> Option<Cpu> {
    let value = |name: &str| {
        let (_, rest) = text.split_once(&format!("{name}="))?;
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    let names = [
        "RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", "R8 ", "R9 ", "R10", "R11", "R12", "R13",
        "R14", "R15",
    ];
    let mut registers = Registers { rip: value("RIP")?, ..Registers::default() };
    for (slot, name) in registers.gpr.iter_mut().zip(names) {
        *slot = value(name)?;
    }
    Some(Cpu {
        registers,
        cpl: u8::try_from(value("CPL")?).ok()?,
        cr3: value("CR3")?,
        five_level: value("CR4")? >> 12 & 1 == 1,
    })
}

/// What is asked of, found once.
struct Guest {
    memory: GuestMemoryMmap,
    kernel: Kernel,
    modules: Modules,
    unwinder: KernelUnwinder,
    stacks: StackReader,
}

impl Guest {
    fn name(&self, frame: KernelFrame) -> String {
        let at = frame.lookup();
        let mark = if frame.kind == FrameKind::Exact { "*" } else { "" };
        match self.kernel.symbol_at(at).or_else(|| self.modules.symbol_at(at)) {
            Some(symbol) => {
                let offset = symbol.offset + (frame.address.0 - at.0);
                let module = symbol.module.map_or(String::new(), |m| format!(" [{m}]"));
                format!("{}+{offset:#x}{module}{mark}", symbol.name)
            }
            None => format!("{:#x}{mark}", frame.address.0),
        }
    }

    fn walk(&self, copy: &StackCopy) -> (Vec<KernelFrame>, WalkEnd) {
        let mut frames = Vec::new();
        let end = self.unwinder.walk_copy(copy, LIMIT, |frame| frames.push(frame));
        (frames, end)
    }
}

/// Sums over all samples.
#[derive(Default)]
struct Sums {
    ends: BTreeMap<(&'static str, String), usize>,
    /// By the function of the outermost frame: a wrong end would stand out.
    outermost: BTreeMap<String, usize>,
    broken: usize,
    copies: Vec<Duration>,
    bytes: usize,
    frames: usize,
    walking: Duration,
    /// Kernel walks in which the user's RSP was in the copy.
    users: usize,
    user_stacks: usize,
}

fn describe(end: &WalkEnd) -> String {
    match end {
        WalkEnd::User(_) => "user".into(),
        WalkEnd::Complete => "complete".into(),
        WalkEnd::Broken(reason) => format!("broken: {reason}"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options().ok_or("arguments: RAM MONITOR [samples=N] [print=N] [stacks=FILE]")?;
    let file = File::options().read(true).write(true).open(&options.ram)?;
    let size = usize::try_from(file.metadata()?.len())?;
    let file = FileOffset::from_arc(Arc::new(file), 0);
    let memory = GuestMemoryMmap::from_ranges_with_files(&[(GuestAddress(0), size, Some(file))])?;
    let mut monitor = Monitor(UnixStream::connect(&options.monitor)?);
    monitor.answer()?;
    monitor.ask("stop")?;
    let cpus = monitor.cpus()?;
    let first = cpus.first().ok_or("no CPU")?;
    let kernel = Kernel::find(&memory, first.cr3, first.five_level)?;
    let modules = kernel.modules(&memory)?;
    let start = Instant::now();
    let unwinder = kernel.unwinder(&memory, &modules);
    println!("{} rules in {:.1?}", unwinder.rules(), start.elapsed());
    let stacks = kernel.stack_reader(&memory)?;
    let guest = Guest { memory, kernel, modules, unwinder, stacks };
    if let Some(file) = &options.stacks {
        compare(&guest, &std::fs::read_to_string(file)?)?;
    }
    let mut sums = Sums::default();
    for round in 0..options.samples {
        if round > 0 {
            monitor.ask("stop")?;
        }
        let cpus = monitor.cpus()?;
        running(&guest, &cpus, round < options.print, &mut sums)?;
        if round % 20 == 0 {
            sleeping(&guest, &cpus, round < options.print, &mut sums)?;
        }
        monitor.ask("cont")?;
        std::thread::sleep(Duration::from_millis(7 + (round as u64 * 13) % 17));
    }
    report(&mut sums);
    Ok(())
}

fn running(guest: &Guest, cpus: &[Cpu], print: bool, sums: &mut Sums) -> Result<(), Box<dyn Error>> {
    let current = guest.kernel.current_reader(&guest.memory)?;
    let mut copy = StackCopy::new();
    for (id, cpu) in cpus.iter().enumerate() {
        let task = current.read(&guest.memory, id).and_then(|c| c.task);
        let sample = StackSample {
            registers: &cpu.registers,
            cpl: cpu.cpl,
            cr3: cpu.cr3,
            cr2: 0,
            five_level: cpu.five_level,
            task: task.map(|t| t.task),
            kernel_thread: task.is_some_and(|t| t.kernel_thread),
            user_bytes: StackReader::USER_BYTES,
        };
        let start = Instant::now();
        for _ in 0..ROUNDS {
            guest.stacks.copy(&guest.memory, id, black_box(&sample), &mut copy);
        }
        sums.copies.push(start.elapsed() / ROUNDS);
        sums.bytes += copy.len();
        let kind = if cpu.cpl == 3 { "user mode" } else { "kernel mode" };
        look_at(guest, &copy, kind, print, sums);
    }
    Ok(())
}

/// The tasks that run, whose saved stack pointers are old.
fn on_cpu(guest: &Guest) -> Result<Vec<u64>, Box<dyn Error>> {
    let current = guest.kernel.current_reader(&guest.memory)?;
    let tasks = current.cpus().filter_map(|cpu| Some(current.read(&guest.memory, cpu)?.task?.task));
    Ok(tasks.collect())
}

fn sleeping(guest: &Guest, cpus: &[Cpu], print: bool, sums: &mut Sums) -> Result<(), Box<dyn Error>> {
    let current = guest.kernel.current_reader(&guest.memory)?;
    let on_cpu: Vec<u64> =
        current.cpus().filter_map(|cpu| Some(current.read(&guest.memory, cpu)?.task?.task)).collect();
    let mut copy = StackCopy::new();
    for task in guest.kernel.tasks(&guest.memory)? {
        if on_cpu.contains(&task.task) {
            continue;
        }
        match guest.stacks.copy_sleeping(&guest.memory, (task.task, task.kernel_thread), 0, &mut copy) {
            // A CPU is switching to it, or from it.
            Some(()) if cpus.iter().any(|cpu| cpu.registers.rsp() >> 14 == copy.registers().rsp() >> 14) => {}
            Some(()) => look_at(guest, &copy, "sleeping", print, sums),
            None => *sums.ends.entry(("sleeping", "no stack".into())).or_default() += 1,
        }
    }
    Ok(())
}

/// Walks a copy, times it, and counts how it ends.
fn look_at(guest: &Guest, copy: &StackCopy, kind: &'static str, print: bool, sums: &mut Sums) {
    let (frames, end) = guest.walk(copy);
    *sums.ends.entry((kind, describe(&end))).or_default() += 1;
    if let WalkEnd::User(user) = &end
        && kind == "kernel mode"
    {
        sums.users += 1;
        let copied = copy.read_u64(user.registers.rsp()).is_some();
        sums.user_stacks += usize::from(copied);
        if !copied {
            let frames: Vec<String> = frames.iter().map(|&frame| guest.name(frame)).collect();
            println!("no user stack at {:#x}: {frames:?}", user.registers.rsp());
        }
    }
    if let Some(&last) = frames.last() {
        let name = guest.name(last);
        let function = name.split('+').next().unwrap_or_default();
        *sums.outermost.entry(format!("{} {function}", describe(&end))).or_default() += 1;
    }
    let broken = matches!(end, WalkEnd::Broken(_));
    if print || broken && sums.broken < MAX_BROKEN {
        println!("{kind}, rsp {:#x}: {}, {:?}", copy.registers().rsp(), describe(&end), copy.gaps());
        for segment in copy.segments() {
            println!("    {:#x} {} bytes", segment.0, segment.1.len());
        }
        for &frame in &frames {
            println!("  {}", guest.name(frame));
        }
        let words = (0..WORDS).map_while(|i| copy.read_u64(copy.registers().rsp().wrapping_add(i * 8)));
        println!("  words {:x?}", words.collect::<Vec<_>>());
    }
    sums.broken += usize::from(broken);
    if !frames.is_empty() {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let mut sum = 0;
            let end = guest.unwinder.walk_copy(black_box(copy), LIMIT, |f| sum ^= f.address.0);
            black_box((end, sum));
        }
        sums.walking += start.elapsed() / ROUNDS;
        sums.frames += frames.len();
    }
}

fn report(sums: &mut Sums) {
    for ((kind, end), count) in &sums.ends {
        println!("{count:7} {kind:<12} {end}");
    }
    for (outermost, count) in &sums.outermost {
        println!("{count:7} outermost {outermost}");
    }
    println!("{} of {} user stacks behind kernel stacks were copied", sums.user_stacks, sums.users);
    sums.copies.sort();
    if let (Some(median), Some(last)) = (sums.copies.get(sums.copies.len() / 2), sums.copies.last()) {
        println!(
            "copy: {median:.0?} median, {last:.0?} at most, {} bytes mean",
            sums.bytes / sums.copies.len()
        );
    }
    println!(
        "walk: {:.1} ns a frame, {} frames",
        sums.walking.as_secs_f64() * 1e9 / sums.frames as f64,
        sums.frames
    );
}

/// Compares with the guest's own words: names and offsets from its last frame on.
fn compare(guest: &Guest, truth: &str) -> Result<(), Box<dyn Error>> {
    let mut said: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    let mut tid = 0;
    for line in truth.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["TASK", id, ..] => {
                tid = id.parse()?;
                said.insert(tid, Vec::new());
            }
            ["[<0>]", frame, ref module @ ..] => {
                let name = frame.split('/').next().unwrap_or(frame);
                let module = module.first().map_or(String::new(), |m| format!(" {m}"));
                said.entry(tid).or_default().push(format!("{name}{module}"));
            }
            _ => {}
        }
    }
    let (mut equal, mut other) = (0, 0);
    let mut copy = StackCopy::new();
    let on_cpu = on_cpu(guest)?;
    for task in guest.kernel.tasks(&guest.memory)? {
        if on_cpu.contains(&task.task) {
            continue;
        }
        let Some(said) = said.get(&task.tid).filter(|said| !said.is_empty()) else { continue };
        let place = (task.task, task.kernel_thread);
        if guest.stacks.copy_sleeping(&guest.memory, place, 0, &mut copy).is_none() {
            continue;
        }
        let frames: Vec<String> = guest.walk(&copy).0.into_iter().map(|f| guest.name(f)).collect();
        // The guest leaves out the scheduler's own frames at the top.
        if frames.ends_with(said) {
            equal += 1;
        } else {
            other += 1;
            println!("differs: tid {}\n  here  {frames:?}\n  guest {said:?}", task.tid);
        }
    }
    println!("sleeping stacks: {equal} equal to the guest's, {other} not");
    Ok(())
}
