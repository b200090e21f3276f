//! Names addresses of an ELF file: how long it takes, and what it takes of memory.
//!
//! Usage: `name_addresses FILE [DEBUG_FILE] [COUNT]`: COUNT distinct addresses, spread over the executable segments.

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use symbols::elf::ElfFile;
use symbols::names::Symbolizer;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: name_addresses FILE [DEBUG_FILE|-] [COUNT]")?;
    let debug = arguments.next().filter(|path| path != "-").map(File::open).transpose()?;
    let count: u64 = arguments.next().map_or(Ok(100_000), |count| count.parse())?;

    let start = Instant::now();
    let elf = ElfFile::open(Box::new(File::open(&path)?))?;
    let debug = debug.map(|file| ElfFile::open(Box::new(file))).transpose()?;
    println!("open: {:.3} s, build-id {:?}", start.elapsed().as_secs_f64(), elf.build_id());

    let start = Instant::now();
    let names = Symbolizer::new(&elf, debug.as_ref(), None);
    println!(
        "read: {:.3} s, {} functions, lines: {}; {} kB",
        start.elapsed().as_secs_f64(),
        names.functions().len(),
        names
            .lines()
            .map_or_else(ToString::to_string, |lines| format!("{} bytes of work", lines.work_left())),
        peak_kilobytes()
    );
    let segments: Vec<_> = elf.segments().iter().filter(|segment| segment.executable).collect();
    let bytes: u64 = segments.iter().map(|segment| segment.memory_size).sum();
    let step = (bytes / count).max(1);
    let addresses: Vec<u64> = segments
        .iter()
        .flat_map(|segment| {
            (0..segment.memory_size)
                .step_by(usize::try_from(step).unwrap_or(1))
                .map(|at| segment.address + at)
        })
        .collect();

    let start = Instant::now();
    let named = addresses.iter().filter(|address| names.find(**address, &|_| None).is_some()).count();
    println!(
        "symbols: {:.3} s for {} addresses, {named} named; {} kB",
        start.elapsed().as_secs_f64(),
        addresses.len(),
        peak_kilobytes()
    );
    for pass in ["first", "second"] {
        let start = Instant::now();
        let frames: usize = addresses.iter().map(|address| names.frames_at(*address, &|_| None).len()).sum();
        println!(
            "frames, {pass} time: {:.3} s, {frames} frames, {}; {} kB",
            start.elapsed().as_secs_f64(),
            names.lines().map_or_else(ToString::to_string, |lines| format!(
                "{} bytes of work left",
                lines.work_left()
            )),
            peak_kilobytes()
        );
    }
    Ok(())
}

/// The largest resident size of this process so far (proc_pid_status(5), `VmHWM`).
fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
