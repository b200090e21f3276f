//! Figure 9 of SLEEPY: the cost of profiling three programs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::document::DocumentSection;
use crate::measured::{boot, rusage, setting, value};
use crate::table::{MarkdownTable, count_of_runs, median, more, scatter};

/// Programs with fixed work: name, command, and the paper's three times in s.
const PROGRAMS: [(&str, &str, [f64; 3]); 3] = [
    ("loop", "loop --iterations 240000000", [10.477_351, 10.476_556, 10.800_774]),
    ("call", "call --outer 22000", [38.906_508, 38.902_799, 40.228_744]),
    ("btree", "btree --operations 1200000", [63.732_426, 63.181_360, 67.768_769]),
];

/// Settings: no sampling as far as the options allow, samples alone, and samples with stacks.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("control", &["-F", "0.1", "--depth", "0", "--task-rate", "0"]),
    ("samples", &["-F", "1000", "--depth", "0"]),
    ("samples and stacks", &["-F", "1000"]),
];

const ABOUT: &str = "\
Figure 9 of SLEEPY compares the times of `loop`, `call` and `btree` without sampling, with it, and with the samples
written to a file (medians of three runs).";

const DISCUSSION: &str = "\
The steps differ: vprof always writes its profile, on a separate thread, which costs the guest a share of the host's
CPUs and no time of the vCPU. Here the control has a tick every 10 s and no task-state sampling, and the second step has
no stacks.

SLEEPY sampled at the guest's own ticks, which come in any case. A sample of vprof is an exit from the guest, expensive
under emulation ([on KVM](performance.md)). Times are the programs' own CPU times, which continue while vprof reads a
sample.";

/// Makes the section.
pub fn run(runs: usize) -> Result<DocumentSection> {
    let script: Vec<String> = PROGRAMS.iter().map(|(_, command, _)| (*command).to_owned()).collect();
    let mut times: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    let mut measured = String::new();
    // The settings take turns, so that a host that grows busier does not favour one.
    for _ in 0..runs {
        for (setting_name, options) in SETTINGS {
            let run = boot(options, &script.join("; "))?;
            let used: Vec<f64> = run.stdout.lines().filter_map(|line| value(line, "used")).collect();
            ensure!(used.len() == PROGRAMS.len(), "the programs printed {used:?}");
            for ((name, ..), used) in PROGRAMS.iter().zip(used) {
                times.entry((*name, setting_name)).or_default().push(used);
            }
            measured = setting(&rusage(&run)?, &count_of_runs(runs));
        }
    }
    let mut table = MarkdownTable::new(&["program", "", "control", "samples", "", "samples and stacks", ""]);
    for (name, _, paper) in PROGRAMS {
        let [control, samples, written] = paper;
        let row = |who: &str, control: f64, samples: f64, written: f64| {
            [
                name.to_owned(),
                who.to_owned(),
                format!("{control:.2} s"),
                format!("{samples:.2} s"),
                more(samples, control),
                format!("{written:.2} s"),
                more(written, control),
            ]
        };
        table.row(row("SLEEPY", control, samples, written));
        let middle = |setting| times.get(&(name, setting)).and_then(|times| median(times)).context("no time");
        let [control, samples, written] = SETTINGS.map(|(setting, _)| middle(setting));
        table.row(row("vprof", control?, samples?, written?));
    }
    let text = format!(
        "## The cost of profiling\n\n{ABOUT}\nvprof's rows are of a guest at a requested 1000 Hz.\n\n\
         {}\n{measured}\n{}\n\n{DISCUSSION}",
        table.markdown(),
        scatter(times.values())
    );
    Ok(DocumentSection { text, plots: Vec::new() })
}
