//! Chubb's tables of lmbench: system calls, processes, switches, files and communication, with and without a
//! measuring program.

mod paper;

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};
use vprof_tests::Run;

use crate::document::DocumentSection;
use crate::measured::{boot, rusage, setting};
use crate::table::{MarkdownTable, count_of_runs, deviation, median, more};
use paper::{PaperTable, TABLES, TableUnit};

/// Settings: off as far as the options allow, sampling, and exact.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("off", &["-F", "0.1", "--depth", "0", "--task-rate", "0"]),
    ("sampling", &["-F", "1000"]),
    // The kernel is found at ticks, so exact mode needs some.
    ("exact", &["-F", "20", "--depth", "0", "--exact", "--task-rate", "0"]),
];
/// Each measurement takes a tenth of a second.
const SCRIPT: &str = "latency --seconds 0.1";

const ABOUT: &str = "\
P. Chubb, *Micro-State Accounting for Linux*, measures with lmbench the cost of his accounting, which reads a clock at
each system call and switch (IA64 at 900 MHz, kernels 2.5.72 and 2.5.72msa for two processors, means of five runs).
`latency` has programs of the same design; of a measurement's ten parts the smallest mean counts. Processes in a ring
pass a token on, and sum an array of the given size when they have it; the cost of pipes without a switch is subtracted.";

const LEFT_OUT: &str = "\
Differences from the paper:

- Not measured: memory latencies and bandwidths of copies, which do not touch the kernel; RPC and HTTP, which add a
  library to UDP and TCP.
- An array (4 to 64 KiB) costs page lookups after a switch, and no cache lines: an emulated processor has no caches.
- lmbench subtracts the signal from the protection fault; here the paper's two are added.
- The mapped file has 4 MiB, a tenth of which is touched; the paper does not give its size. Files are on ext4.
- All processes are on one processor; in the paper the scheduler chooses.";

const DISCUSSION: &str = "\
Chubb's accounting has a small cost at every event, vprof's sampling at every tick: a call or a switch costs more only
by the ticks' share of the time.

In exact mode each switch and each wake-up (a signal to a running task is one) leaves the guest once, and each hard
interrupt twice (probes), which is expensive where exits are emulated. Other system calls, `select`, faults and cached
files pass no probe.";

/// Output of one run, in the units of the tables.
fn read(run: &Run) -> Result<HashMap<String, f64>> {
    let printed: HashMap<&str, f64> = run
        .stdout
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?.parse().ok()?))
        })
        .collect();
    let mut values = HashMap::new();
    for table in &TABLES {
        for (key, ..) in table.rows {
            let value = printed.get(key).with_context(|| format!("{key} was not printed"))?;
            let value = if table.unit == TableUnit::Us { value / 1e3 } else { *value };
            ensure!(value > 0.0, "{key} is {value}");
            values.insert((*key).to_owned(), value);
        }
    }
    Ok(values)
}

/// Values of all runs by measurement and setting.
type Values = BTreeMap<(String, &'static str), Vec<f64>>;

fn table(paper: &PaperTable, values: &Values) -> Result<String> {
    let unit = match paper.unit {
        TableUnit::Us => "us",
        TableUnit::Rate => "MB/s",
    };
    let mut table = MarkdownTable::new(&[
        unit,
        "Chubb: without",
        "with",
        "%",
        "vprof: off",
        "s.d., %",
        "sampling",
        "%",
        "exact",
        "%",
    ]);
    let percent = |value, base| more(value, base).trim_end_matches(" %").to_owned();
    for (key, label, without, with) in paper.rows {
        let of_setting = |name| values.get(&((*key).to_owned(), name)).map_or(&[][..], Vec::as_slice);
        let middle = |name| median(of_setting(name)).context("nothing was measured");
        let [off, sampling, exact] = SETTINGS.map(|(name, _)| middle(name));
        let (off, sampling, exact) = (off?, sampling?, exact?);
        table.row([
            (*label).to_owned(),
            digits(*without),
            digits(*with),
            percent(*with, *without),
            digits(off),
            deviation(of_setting("off")).map_or_else(String::new, |part| format!("{:.0}", part * 100.0)),
            digits(sampling),
            percent(sampling, off),
            digits(exact),
            percent(exact, off),
        ]);
    }
    Ok(format!("### {}\n\n{}", paper.title, table.markdown()))
}

/// Formats a number with three significant digits.
fn digits(value: f64) -> String {
    let decimals = match value {
        _ if value < 10.0 => 2,
        _ if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Describes how well measurements repeat, as a sentence.
fn repeatability(values: &Values) -> String {
    let mut parts: Vec<f64> = values.values().filter_map(|values| deviation(values)).collect();
    parts.sort_by(f64::total_cmp);
    match (median(&parts), parts.last()) {
        (Some(middle), Some(most)) => format!(
            "The standard deviation of a measurement's runs under one setting is {:.0} % of their mean at the median, {:.0} % at\n\
             most; \"s.d.\" is that with vprof off. A difference of less than twice its row's \"s.d.\" is not significant.",
            middle * 100.0,
            most * 100.0
        ),
        _ => "One run cannot show how well such times repeat.".to_owned(),
    }
}

/// Makes the section.
pub fn run(runs: usize) -> Result<DocumentSection> {
    let mut values = Values::new();
    let mut measured = String::new();
    for _ in 0..runs {
        for (name, options) in SETTINGS {
            let run = boot(options, SCRIPT)?;
            if name == "exact" {
                let missing = run.query("SELECT value FROM meta WHERE key = 'exact_missing'");
                ensure!(missing.is_empty(), "there is no exact data: {missing:?}");
                let rows = run.query("SELECT sum(switches) FROM exact_vcpu");
                let switches = rows.first().and_then(|row| row.first()?.as_f64());
                ensure!(switches > Some(1000.0), "exact mode saw {switches:?} switches");
            }
            for (what, value) in read(&run)? {
                values.entry((what, name)).or_default().push(value);
            }
            measured = setting(&rusage(&run)?, &count_of_runs(runs));
        }
    }
    let tables = TABLES.iter().map(|paper| table(paper, &values)).collect::<Result<Vec<_>>>()?;
    let text = format!(
        "## The cost of system calls, processes and switches\n\n{ABOUT}\n\n{LEFT_OUT}\n\n{}\n{measured}\n\
         Sampling is 1000 Hz with stacks and task-state sampling. Without both, off is a tick every 10 s on average, exact 20 Hz.\n{}\n\n{DISCUSSION}",
        tables.join("\n"),
        repeatability(&values)
    );
    Ok(DocumentSection { text, plots: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.364, 12.345, 3541.5].map(digits), ["0.36", "12.3", "3542"]);
    }

    #[test]
    fn each_measurement_has_one_row() {
        let mut keys: Vec<_> = TABLES.iter().flat_map(|table| table.rows).map(|(key, ..)| key).collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn a_table_has_the_middle_of_the_runs_and_how_they_repeat() {
        const ROWS: &[paper::PaperRow] = &[("a", "A", 2.0, 2.2)];
        let paper = PaperTable { title: "T", unit: TableUnit::Us, rows: ROWS };
        let mut values = Values::new();
        for (name, runs) in [("off", [9.0, 10.0, 11.0]), ("sampling", [20.0; 3]), ("exact", [5.0; 3])] {
            values.insert(("a".to_owned(), name), runs.to_vec());
        }
        let row = "| A | 2.00 | 2.20 | +10.0 | 10.0 | 10 | 20.0 | +100.0 | 5.00 | -50.0 |";
        let text = table(&paper, &values).unwrap();
        assert!(text.starts_with("### T\n\n| us |") && text.contains(row), "{text}");
        assert!(repeatability(&values).contains("0 % of their mean at the median, 10 % at\nmost"));
        assert!(table(&paper, &Values::new()).is_err());
    }
}
