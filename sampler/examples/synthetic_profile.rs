//! Writes a profile of made-up samples and times writing and reading it:
//! `cargo run --release -p sampler --example synthetic_profile -- FILE [SAMPLES [STACKS]]`.

use std::path::PathBuf;

use sampler::bench;

/// Largest resident set of this process so far, MiB (proc(5), VmHWM).
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib / 1024)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path: PathBuf = arguments.next().ok_or("usage: synthetic_profile FILE [SAMPLES [STACKS]]")?.into();
    let samples = match arguments.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 1_000_000_u64,
    };
    let stacks = match arguments.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 0_u32,
    };
    let written = bench::write_profile_with_stacks(&path, true, samples, stacks)?;
    let bytes = std::fs::metadata(&path)?.len();
    println!("collect {samples} samples: {written:.2?}; file {} MiB", bytes >> 20);
    println!("peak memory of collecting: {} MiB", peak_mib().ok_or("no VmHWM")?);
    let (read, report) = bench::read_report(&path, samples)?;
    println!(
        "report: {read:.2?}, {} processes, {} functions",
        report.processes.len(),
        report.functions.len()
    );
    println!("peak memory: {} MiB", peak_mib().ok_or("no VmHWM")?);
    let (read, functions) = bench::read_functions(&path, samples)?;
    println!("by function: {read:.2?}, {} rows", functions.rows.len());
    println!("peak memory: {} MiB", peak_mib().ok_or("no VmHWM")?);
    let ticks = 1_000_000;
    println!("{ticks} ticks served: {:.2?}", bench::serve_ticks(ticks));
    Ok(())
}
