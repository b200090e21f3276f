//! Table 1 of McCanne and Torek: a program that never runs when the tick comes, next to one that counts.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use vprof_tests::Run;

use crate::document::DocumentSection;
use crate::measured::{boot, growth, lines, process, rusage, setting, ticked, value, value_at};
use crate::table::{MarkdownTable, count_of_runs, median};

/// The victim alone, then next to the hog, which outlives it.
const SCRIPT: &str = "victim --rounds 400000000 --name alone --cpu 0; hog --guard-micros 1500 --seconds 60 & sleep 1; \
                      victim --rounds 400000000 --name paired --cpu 0; kill $!";

/// Names of the processes, and their names in the table.
const PROCESSES: [(&str, &str); 3] =
    [("alone", "victim, alone"), ("paired", "victim, with hog"), ("hog", "hog")];

const ABOUT: &str = "\
`hog` works between the ticks and sleeps across them; `victim` does a fixed amount of work. The paper's figures:

| | | real | cpu | %cpu |
|---|---|---|---|---|
| SunOS | without hog | 7.1 | 7.1 | 100 % |
| | with hog | 584.5 | 334.8 | 57 % |
| 4.4BSD | without hog | 7.1 | 7.0 | 99 % |
| | with hog | 15.5 | 7.0 | 45 % |";

const DISCUSSION: &str = "\
The scheduler and getrusage use exact run times, so the hog is charged, and the victim takes longer by the hog's time,
as under 4.4BSD, not 80 times as long. Ticks still count in `/proc/stat`, and in `utime` and `stime`, which divide a
process' time into user and system. They charge most of the hog's time to the victim, and miss some of every process:
when the host takes the CPU away for more than a tick, the guest corrects its clock, but charges no process.

The portable host, when busy, serves ticks up to milliseconds late. So the hog keeps 1.5 ms away from each 4 ms tick,
which leaves it little more than half of the CPU; ticks still hit it sometimes. getrusage exceeds vprof's time by what
the guest cannot see: the vCPU's waits for the host, and vprof's own time.";

/// Times of a process, s: real time if it ended, and until its CPU accounting was last read, getrusage,
/// ticks, and vprof's time.
type Times = [Option<f64>; 4];

fn times(run: &Run, comm: &str, real: Option<f64>) -> Result<Times> {
    let rusage = rusage(run)?;
    let accounting = process(&rusage, comm)?;
    let seconds = |ns: u64| Some(ns as f64 / 1e9);
    let grown = growth(run, &format!("v.comm = '{comm}' AND v.mode IN ('user', 'kernel')"))?;
    Ok([
        real,
        seconds(accounting.reported_user_ns + accounting.reported_system_ns),
        seconds(ticked(run, comm)?),
        Some(value_at(&grown, accounting.read_s)),
    ])
}

/// Makes the section.
pub fn run(runs: usize) -> Result<DocumentSection> {
    let mut all: BTreeMap<&str, Vec<Times>> = BTreeMap::new();
    let mut measured = String::new();
    for _ in 0..runs {
        let run = boot(&["-F", "500", "--depth", "0"], SCRIPT)?;
        let mut reals = lines(&run, "victim").map(|line| value(line, "real"));
        for (comm, _) in PROCESSES {
            let real = if comm == "hog" {
                None
            } else {
                Some(reals.next().flatten().with_context(|| format!("{comm} printed no time"))?)
            };
            all.entry(comm).or_default().push(times(&run, comm, real)?);
        }
        measured = setting(&rusage(&run)?, &count_of_runs(runs));
    }
    let mut table =
        MarkdownTable::new(&["", "real", "getrusage", "ticks (`utime` + `stime`)", "vprof", "ticks / vprof"]);
    for (comm, name) in PROCESSES {
        let times = all.get(comm).context("no run")?;
        let middle = |index: usize| -> Option<f64> {
            median(&times.iter().filter_map(|times| times[index]).collect::<Vec<_>>())
        };
        let text = |index| middle(index).map_or(String::new(), |value| format!("{value:.2} s"));
        let part = |times: &Times| Some(100.0 * times[2]? / times[3].filter(|time| *time > 0.0)?);
        let parts: Vec<f64> = times.iter().filter_map(part).collect();
        table.row([
            name.to_owned(),
            text(0),
            text(1),
            text(2),
            text(3),
            median(&parts).map_or(String::new(), |part| format!("{part:.0} %")),
        ]);
    }
    let text = format!(
        "## A program that avoids the tick\n\nThis repeats section 5.2 and table 1 of S. McCanne and C. Torek, *A Randomized Sampling Clock for CPU Utilization\n\
         Estimation and Code Profiling* (USENIX Winter 1993).\n{ABOUT}\n\n\
         On current Linux, with the hog's times up to the end of the victim:\n\n{}\n{measured}\n\n{DISCUSSION}",
        table.markdown()
    );
    Ok(DocumentSection { text, plots: Vec::new() })
}
