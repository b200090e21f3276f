//! Chubb's tables: a null system call and switches between processes, with and without what measures them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use vprof_tests::Run;

use crate::document::Section;
use crate::measured::{boot, lines, rusage, setting, value};
use crate::table::{Table, median, more, scatter};

/// Rings, and the paper's microseconds without and with microstate accounting (2.5.72 and 2.5.72msa, 0K).
const RINGS: [(u32, f64, f64); 6] = [
    (2, 1.582, 1.664),
    (4, 1.650, 1.688),
    (8, 1.830, 1.850),
    (16, 1.976, 1.992),
    (32, 2.326, 2.480),
    (64, 5.714, 5.812),
];
/// The paper's null system call, likewise.
const NULL_CALL: (f64, f64) = (0.366, 0.364);

/// Off as far as the options allow, sampling, and exact.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("off", &["-F", "0.1", "--depth", "0", "--census", "0"]),
    ("sampling", &["-F", "1000"]),
    // The kernel is looked for at ticks, so exact mode needs some.
    ("exact", &["-F", "20", "--depth", "0", "--exact", "--census", "0"]),
];

const ABOUT: &str = "\
P. Chubb, *Micro-State Accounting for Linux*, asks lmbench what his accounting costs: each system call and each switch reads a clock and books the time \
gone by. His figures are of an IA64 machine at 900 MHz with two processors' kernel (2.5.72 and 2.5.72msa, 0K, means of five runs). `latency` measures as lmbench does: \
getppid, and a token that goes round a ring of processes, less what pipes cost without a switch; of ten means the least counts.";

const DISCUSSION: &str = "\
Chubb pays at every event, little. vprof that samples pays at every tick, whatever the guest does in between, and nothing at events: a call or a switch \
costs more only by the ticks' share of the time. In exact mode each switch and each wake leaves the guest, each hard interrupt twice (tripwires): \
the price of changing nothing in the guest's kernel, and high where exits are emulated. Neither way a system call by itself costs anything more. An emulated machine on a busy host scatters \
by far more than what Chubb had to tell apart: only the order of magnitude of exact mode's switches stands out from these figures.";

/// Nanoseconds of one run: of the null call (0), and of the ring of so many processes.
fn read(run: &Run) -> Result<BTreeMap<u32, f64>> {
    let null = lines(run, "null").find_map(|line| value(line, "call"));
    let mut times = BTreeMap::from([(0, null.context("the null call was not printed")?)]);
    for (count, ..) in RINGS {
        let switch = lines(run, "switch").find_map(|line| {
            value(line, "of")
                .filter(|of| *of == f64::from(count))
                .and_then(|_| value(line, &count.to_string()))
        });
        times.insert(count, switch.with_context(|| format!("the ring of {count} was not printed"))?);
    }
    Ok(times)
}

/// Makes the section.
pub fn run(runs: usize) -> Result<Section> {
    let mut times: BTreeMap<(u32, &str), Vec<f64>> = BTreeMap::new();
    let mut measured = String::new();
    for _ in 0..runs {
        for (name, options) in SETTINGS {
            let run = boot(options, "latency")?;
            if name == "exact" {
                let missing = run.query("SELECT value FROM meta WHERE key = 'exact_missing'");
                ensure!(missing.is_empty(), "there is no exact data: {missing:?}");
                let rows = run.query("SELECT sum(switches) FROM exact_vcpu");
                let switches = rows.first().and_then(|row| row.first()?.as_f64());
                ensure!(switches > Some(1000.0), "exact mode saw {switches:?} switches");
            }
            for (what, ns) in read(&run)? {
                times.entry((what, name)).or_default().push(ns);
            }
            measured = setting(&rusage(&run)?, runs);
        }
    }
    let mut table =
        Table::new(&["", "Chubb: without", "with", "", "vprof: off", "sampling", "", "exact", ""]);
    let null = std::iter::once((0, NULL_CALL.0, NULL_CALL.1));
    for (what, without, with) in null.chain(RINGS) {
        let middle = |name| {
            let values = times.get(&(what, name)).and_then(|values| median(values));
            values.map(|ns| ns / 1e3).context("nothing was measured")
        };
        let [off, sampling, exact] = SETTINGS.map(|(name, _)| middle(name));
        let (off, sampling, exact) = (off?, sampling?, exact?);
        table.row([
            if what == 0 { "null system call".into() } else { format!("switch, {what} processes") },
            format!("{without:.3} us"),
            format!("{with:.3} us"),
            more(with, without),
            format!("{off:.1} us"),
            format!("{sampling:.1} us"),
            more(sampling, off),
            format!("{exact:.1} us"),
            more(exact, off),
        ]);
    }
    let text = format!(
        "## What a system call and a switch cost\n\n{ABOUT}\n\n{}\n{measured} Off is a tick every 10 s on average, sampling is 1000 Hz with stacks. {}\n\n{DISCUSSION}",
        table.markdown(),
        scatter(times.values())
    );
    Ok(Section { text, plots: Vec::new() })
}
