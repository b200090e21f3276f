//! Liang's mostly blocked program: threads that did not run are charged nothing.

use anyhow::{Context, Result, ensure};
use profile::rusage::ThreadRusage;

use crate::document::DocumentSection;
use crate::measured::{boot, end, growth, rusage, setting, value};
use crate::table::{MarkdownTable, seconds};

const SECONDS: f64 = 6.0;
const WAITING: usize = 16;
const WORKING: usize = 2;

const ABOUT: &str = "\
S. Liang, *Thread-Aware CPU Time Sampling* (1998), has a profiler for programs \"in which most threads are blocked most
of the time\". At every tick it suspends all threads and charges those whose registers have changed since the last.
`blocked` has, on one CPU, 2 threads that work and 16 that wait, half of these in one call, half waking four times a
second.";

const DISCUSSION: &str = "\
\"Charging all\" is a profiler that samples all threads at every tick, whether they ran or not. The paper has only an
overhead: \"less than 20%\" at a tick every millisecond.

vprof neither suspends nor compares: a tick samples the thread that the CPU runs. A waiting thread is charged only for
its start, wake-ups and end, and a loop of one instruction, in which registers stay the same, is not lost.";

/// Makes the section.
pub fn run(_: usize) -> Result<DocumentSection> {
    let command = format!("blocked --seconds {SECONDS} --waiting {WAITING} --working {WORKING}");
    let run = boot(&["-F", "1000", "--depth", "0"], &command)?;
    let rusage = rusage(&run)?;
    let named = |start: &str| -> Vec<&ThreadRusage> {
        let of = |thread: &&ThreadRusage| thread.comm.as_ref().is_some_and(|comm| comm.starts_with(start));
        rusage.threads.iter().filter(of).collect()
    };
    let printed = |start: &str| -> Result<f64> {
        let lines = run.stdout.lines().filter(|line| line.trim().starts_with(start));
        let used: Option<Vec<f64>> = lines.map(|line| value(line, "used")).collect();
        let used = used.filter(|used| !used.is_empty()).context("a thread printed no time")?;
        Ok(used.iter().sum())
    };
    let mut table = MarkdownTable::new(&[
        "threads",
        "their own clocks",
        "the guest's CPU accounting",
        "charging all",
        "vprof",
    ]);
    for (name, start, count) in [
        ("`work-0`", "work-0", 1),
        ("`work-1`", "work-1", 1),
        ("the 16 that wait, together", "wait-", WAITING),
    ] {
        let threads = named(start);
        ensure!(threads.len() <= count, "more threads {name} than were made");
        let tids = format!("v.tid IN (SELECT tid FROM thread WHERE comm LIKE '{start}%')");
        let seen = end(&growth(&run, &format!("{tids} AND v.mode IN ('user', 'kernel')"))?);
        table.row([
            name.to_owned(),
            format!("{:.2} s", printed(start)?),
            seconds(threads.iter().map(|thread| thread.runtime_ns).sum()),
            format!("{:.2} s", SECONDS * count as f64),
            format!("{seen:.2} s"),
        ]);
    }
    let hit = named("wait-").iter().filter(|thread| thread.measured_cpu_ns > 0).count();
    let text = format!(
        "## A mostly blocked program\n\n{ABOUT}\n\n{}\n{}\n{hit} of the {WAITING} waiting threads were hit by a sample.\n\n{DISCUSSION}",
        table.markdown(),
        setting(&rusage, "one run")
    );
    Ok(DocumentSection { text, plots: Vec::new() })
}
