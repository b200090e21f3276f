//! Benchmarks of naming the code of large programs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use symbols::elf::ElfFile;
use symbols::names::Symbolizer;

use crate::child;
use crate::table::TableRow;

/// Distinct addresses that are named.
const ADDRESSES: usize = 100_000;

/// Measures the compiler's library, which has only symbols, and this program, which has lines and inlined
/// functions.
pub fn rows() -> anyhow::Result<Vec<TableRow>> {
    let mut rows = Vec::new();
    match compiler() {
        Some(path) => rows.push(row("a program with symbols", &path)?),
        None => eprintln!("SKIPPED naming the compiler's library: it is not there"),
    }
    rows.push(row("a program with DWARF", &std::env::current_exe()?)?);
    Ok(rows)
}

/// Returns `librustc_driver` of the toolchain in use.
fn compiler() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(output.stdout).ok()?;
    let entries = Path::new(sysroot.trim()).join("lib").read_dir().ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librustc_driver") && name.ends_with(".so")
    })
}

fn row(what: &str, path: &Path) -> anyhow::Result<TableRow> {
    let size = path.metadata()?.len();
    let [functions, read_ns, named_ns, frames, memory] = child::run("names", path)?;
    let what = format!("{what}, {} MB: naming {ADDRESSES} addresses", size / 1_000_000);
    Ok(TableRow::text(&what, format!("{:.2} s", (read_ns + named_ns) as f64 / 1e9), "").detail(format!(
        "{functions} functions read in {:.2} s, {frames} frames in {:.2} s, {} MB at the peak",
        read_ns as f64 / 1e9,
        named_ns as f64 / 1e9,
        memory / 1_000_000
    )))
}

/// Measures in a separate process: functions, time to read them (ns), time to name addresses (ns), their
/// frames.
pub fn measure(path: &Path) -> anyhow::Result<[u64; 4]> {
    let mut begin = Instant::now();
    let elf = ElfFile::open(Box::new(File::open(path)?))?;
    let names = Symbolizer::new(&elf, None, None);
    let read = begin.elapsed();
    let code: Vec<_> = elf.segments().iter().filter(|segment| segment.executable).collect();
    let bytes: u64 = code.iter().map(|segment| segment.memory_size).sum();
    let step = usize::try_from(bytes)?.checked_div(ADDRESSES).filter(|step| *step > 0);
    let step = step.context("too little code for so many addresses")?;
    let addresses = code
        .iter()
        .flat_map(|segment| (0..segment.memory_size).step_by(step).map(|at| segment.address + at))
        .take(ADDRESSES);
    begin = Instant::now();
    let (mut named, mut frames) = (0, 0);
    for address in addresses {
        let found = names.frames_at(address, &|_| None).len();
        named += usize::from(found > 0);
        frames += found as u64;
    }
    let took = begin.elapsed();
    // A library may export only a part of its functions.
    anyhow::ensure!(named * 2 > ADDRESSES, "only {named} of {ADDRESSES} addresses have names");
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos());
    Ok([names.functions().len() as u64, ns(read)?, ns(took)?, frames])
}
