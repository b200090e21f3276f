//! Compares the user unwinder with gdb on a live program.
//!
//! ```text
//! cargo run --release -p symbols --example unwind_process -- --stops 100 --steps 20 -- \
//!     /usr/bin/sha256sum /dev/zero
//! ```
//!
//! gdb runs the program, stops it `--stops` times at random moments, makes `--steps` single steps at each
//! stop, and writes registers, the first `--stack` bytes of the stack, mappings and its own frames. The
//! unwinder then walks each of these stops from the copied bytes alone. Frames that gdb makes up for inlined
//! and tail calls are left out.

mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Instant;

use process::{File, Files, Mappings};
use symbols::cfi::{CfiTable, CodeMappings, UserEnd, UserFrame, UserUnwinder, UserWalkError};
use symbols::{Registers, StackMemory, VirtAddr};

const LIMIT: usize = 250;

struct Options {
    stops: u32,
    steps: u32,
    stack: u32,
    show: usize,
    program: Vec<String>,
}

fn options() -> Option<Options> {
    let mut options = Options { stops: 100, steps: 20, stack: 16 << 10, show: 3, program: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--stops" => options.stops = words.next()?.parse().ok()?,
            "--steps" => options.steps = words.next()?.parse().ok()?,
            "--stack" => options.stack = words.next()?.parse().ok()?,
            "--show" => options.show = words.next()?.parse().ok()?,
            "--" => options.program.extend(words.by_ref()),
            _ => return None,
        }
    }
    (!options.program.is_empty()).then_some(options)
}

/// A copy of a part of the stack.
struct Copied {
    start: u64,
    bytes: Vec<u8>,
}

impl StackMemory for Copied {
    fn read_u64(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some(u64::from_le_bytes(self.bytes.get(offset..offset.checked_add(8)?)?.try_into().ok()?))
    }
}

/// One stop of the program.
struct Stop {
    mappings: usize,
    registers: Registers,
    stack: Copied,
    frames: Vec<u64>,
    stop: String,
}

fn hex(text: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).filter_map(digits).collect()
}

/// Reads what the script wrote.
fn stops(path: &std::path::Path) -> std::io::Result<(Vec<Mappings>, Vec<Stop>, Files)> {
    let (mut mappings, mut stops, mut files) = (Vec::new(), Vec::new(), Files::new());
    let mut maps = String::new();
    for line in BufReader::new(std::fs::File::open(path)?).lines() {
        let line: serde_json::Value = serde_json::from_str(&line?)?;
        if let Some(text) = line["maps"].as_str() {
            maps = text.into();
            mappings.push(Mappings::new(&maps, &mut files));
        } else if let Some(text) = line["vdso"].as_str() {
            let id = u32::try_from(files.len()).unwrap_or(0);
            files.entry("[vdso]".into()).or_insert_with(|| File::new(id, hex(text)).map(Into::into));
            mappings.pop();
            mappings.push(Mappings::new(&maps, &mut files));
        } else {
            let numbers = |name: &str| -> Vec<u64> {
                line[name].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).collect()
            };
            let values = numbers("registers");
            let mut registers = Registers { rip: values[16], ..Registers::default() };
            registers.gpr.copy_from_slice(&values[..16]);
            let start = line["stack_start"].as_u64().unwrap_or(0);
            stops.push(Stop {
                mappings: mappings.len() - 1,
                registers,
                stack: Copied { start, bytes: hex(line["stack"].as_str().unwrap_or_default()) },
                frames: numbers("frames"),
                stop: line["stop"].as_str().unwrap_or_default().into(),
            });
        }
    }
    Ok((mappings, stops, files))
}

fn walk(unwinder: &mut UserUnwinder, stop: &Stop, mappings: &Mappings) -> (Vec<UserFrame>, UserEnd) {
    let mut frames = Vec::with_capacity(64);
    let end = unwinder.walk(&stop.registers, &stop.stack, mappings, LIMIT, |frame| frames.push(frame));
    (frames, end)
}

/// gdb's frames up to where it takes data for code: it may continue beyond the outermost frame.
fn until_data<'a>(frames: &'a [u64], mappings: &Mappings) -> &'a [u64] {
    let data = frames.iter().skip(1).position(|&address| mappings.find(VirtAddr(address)).is_none());
    data.map_or(frames, |at| &frames[..=at])
}

/// Prints how walks ended and where they differ from gdb's.
fn compare(stops: &[Stop], mappings: &[Mappings], show: usize) {
    let mut unwinder = UserUnwinder::new();
    let (mut equal, mut beginning, mut differ, mut doubtful, mut frames) = (0, 0, 0, 0, 0);
    let mut shown = BTreeMap::new();
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for stop in stops {
        let (ours, end) = walk(&mut unwinder, stop, &mappings[stop.mappings]);
        *ends.entry(end.to_string()).or_default() += 1;
        frames += ours.len();
        doubtful += u32::from(ours.iter().any(|frame| frame.doubt.is_some()));
        let addresses: Vec<u64> = ours.iter().map(|frame| frame.at.address.0).collect();
        let theirs = until_data(&stop.frames, &mappings[stop.mappings]);
        let verdict = match (addresses == theirs, theirs.starts_with(&addresses)) {
            (true, _) => &mut equal,
            (_, true) => &mut beginning,
            _ => &mut differ,
        };
        *verdict += 1;
        let times = shown.entry((end.to_string(), addresses == theirs)).or_insert(0);
        *times += 1;
        if *times <= show && (addresses != theirs || end != UserEnd::Complete) {
            let text = |list: &[u64]| list.iter().map(|a| format!("{a:x}")).collect::<Vec<_>>().join(" ");
            println!("  ours ({end}): {}\n  gdb's ({}): {}", text(&addresses), stop.stop, text(&stop.frames));
        }
    }
    println!(
        "  {} stops, {frames} frames, equal {equal}, a beginning {beginning}, differ {differ}, with doubt {doubtful}, ends {ends:?}, {:?}",
        stops.len(),
        unwinder.cache_use()
    );
}

/// Prints the time of a frame with no row in the cache, and with every one.
fn measure(stops: &[Stop], mappings: &[Mappings]) {
    const ROUNDS: u32 = 10;
    let mut unwinder = UserUnwinder::new();
    let mut generation = 0;
    let mut round = |cold: bool| {
        let (start, mut frames) = (Instant::now(), 0_u32);
        for stop in stops {
            generation += if cold { 1000 } else { 0 };
            mappings[stop.mappings].generation.set(generation);
            let pushed = |_| frames += 1;
            let end = unwinder.walk(&stop.registers, &stop.stack, &mappings[stop.mappings], LIMIT, pushed);
            assert_ne!(end, UserEnd::Broken(UserWalkError::TooDeep));
        }
        start.elapsed().div_f64(f64::from(frames.max(1)))
    };
    let mut best = |cold| (0..ROUNDS).map(|_| round(cold)).min().unwrap_or_default();
    println!("  a frame: {:?} without the cache, {:?} with", best(true), best(false));
}

fn main() -> std::io::Result<()> {
    let Some(options) = options() else {
        eprintln!(
            "usage: unwind_process [--stops N] [--steps N] [--stack BYTES] [--show N] -- PROGRAM [ARGUMENT]..."
        );
        std::process::exit(2);
    };
    let directory = tempfile::tempdir()?;
    let (script, snapshots) = (directory.path().join("snapshots.py"), directory.path().join("snapshots"));
    std::fs::write(&script, include_str!("snapshots.py"))?;
    let output = Command::new("gdb")
        .args(["-q", "-nx", "-batch", "-x"])
        .arg(&script)
        .arg("--args")
        .args(&options.program)
        .env("SNAPSHOTS", &snapshots)
        .env("STOPS", options.stops.to_string())
        .env("STEPS", options.steps.to_string())
        .env("STACK_BYTES", options.stack.to_string())
        .env("SEED", "1")
        .output()?;
    if !output.status.success() || !snapshots.exists() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    println!("{}", options.program.join(" "));
    let (mappings, stops, files) = stops(&snapshots)?;
    compare(&stops, &mappings, options.show);
    measure(&stops, &mappings);
    for (path, file) in files.iter().filter_map(|(path, file)| Some((path, file.as_ref()?))) {
        let sections = file.sections().ok_or(std::io::ErrorKind::InvalidData)?;
        let start = Instant::now();
        let Ok(table) = CfiTable::parse(sections) else { continue };
        let elapsed = start.elapsed();
        println!(
            "  {path}: {} functions, {} bytes, parsed in {elapsed:?}",
            table.functions(),
            table.memory()
        );
    }
    Ok(())
}
