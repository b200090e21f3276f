//! What lies behind the vCPU: collector, report, memory.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use sampler::bench;

use vprof_tests::Guest;

use crate::table::Row;

/// Samples in the profile that is written and reported.
const SAMPLES: u64 = 1_000_000;

/// Throughput of collector and writer, and the time and memory of a report.
pub fn rows() -> anyhow::Result<Vec<Row>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("bench.vprof");
    let written = bench::write_profile(&path, false, SAMPLES)?;
    let size = fs::metadata(&path)?.len();
    let (read, memory) = report(&path)?;
    Ok(vec![
        Row::text(
            "collector and writer, one core",
            format!("{:.0} samples/s", SAMPLES as f64 / written.cpu.as_secs_f64()),
            "at least 200,000/s",
        )
        .detail(format!(
            "{SAMPLES} samples in {:.2?} of CPU, {:.2?} of time, {} MB",
            written.cpu,
            written.wall,
            size / 1_000_000
        )),
        Row::text("report over 1,000,000 samples", format!("{read:.2?}"), "at most 2 s")
            .detail(format!("{} MB at the peak (at most 300)", memory / 1_000_000)),
    ])
}

/// Memory of a `vprof` that records at 5 kHz beyond its guest's.
pub fn memory() -> Row {
    let run = Guest::demo().options(["--rate", "5000"]).script("spin --seconds 3").run().succeeded();
    let bytes = run.number("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'memory_beyond_guest_bytes'");
    let report = run.report();
    Row::text("memory of vprof beyond the guest's", format!("{:.0} MB", bytes / 1e6), "at most 64 MB").detail(
        format!(
            "a Debian guest at 5,000 Hz, {} samples, host: {}",
            report.number("samples"),
            report.get("host").as_str().unwrap_or("unknown")
        ),
    )
}

/// Time and peak memory (bytes) of a report in a process of its own, which has written nothing.
fn report(path: &std::path::Path) -> anyhow::Result<(Duration, u64)> {
    let output = std::process::Command::new(std::env::current_exe()?).arg("report").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || words.next().context("two numbers")?.context("a number");
    Ok((Duration::from_nanos(next()?), next()?))
}

/// The other end of [`report`]: prints nanoseconds and bytes.
pub fn report_child(path: &std::path::Path) -> anyhow::Result<()> {
    let (elapsed, _) = bench::read_report(path, SAMPLES)?;
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    let kib: u64 = line.split_whitespace().nth(1).context("VmHWM has no value")?.parse()?;
    println!("{} {}", elapsed.wall.as_nanos(), kib * 1024);
    Ok(())
}
