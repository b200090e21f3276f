//! Figures 3 and 4 of McCanne and Torek: a program that works in step with a clock, sampled by that clock.

use anyhow::{Context, Result, ensure};
use vprof_tests::{FRAMES_AT_PROBES, Run};

use crate::document::DocumentSection;
use crate::measured::{boot, end, growth, lateness, lines, printed_at, rusage, setting, since, value};
use crate::native::{self, NativeCase, WorkShares};
use crate::table::{MarkdownTable, median, more};
use statistics::clock::ClockKind;
use testkit::{LinePlot, PlotLine, PlotScale};

/// Length of each run of the program, s.
const LENGTH: f64 = 10.0;

const ABOUT: &str = "\
The audio tool *vat* processed a frame every 22.5 ms. A clock of 10 ms met only four points of its period, so its CPU
time had flat and steep regions of about 30 s each instead of a straight line.

`isochronous` works 2.25 ms of every 22.5 ms, or 2 ms of every 24.02 ms: six ticks of Debian's kernels
(`CONFIG_HZ=250`), and the 20 us by which such programs drift.";

const DISCUSSION: &str = "\
`/proc/stat`, and every tool that shows how busy CPUs are, count ticks; getrusage is exact.

Ticks of 4 ms meet a period of 22.5 ms at eight points, 0.5 ms apart (the paper: four, 2.5 ms apart), too many for a
large error with 2.25 ms of work. Large errors of those rows are likely due to ticks that a busy emulated machine serves
late or loses. At 24.02 ms the two are almost in step, and `/proc/stat` has the flat and steep regions of figure 4.

With a fixed clock in step with the program, vprof's error depends on the phase, as the tick's does. With random
intervals, the default, only chance remains, at any rate, as the native table shows: there the tick's interrupt stops
the guest within microseconds.

The columns, in the guest:

- \"exact\" is exact mode in the same run, with the program's start and end, which its own clock leaves out, and with time
  that the VMM and the host took from the program. Like \"vprof\" it includes interrupts that hit the program, and
  excludes vprof's time (events, and the switches between guest and host for them).
- \"its own clock\" is not a reference for emulated ticks. The scheduler charges a task from when it is picked; ticks and
  exact mode, from when the switch is complete: natively less than a microsecond later, emulated up to a millisecond,
  half of this program's work in a period.
- \"at most\" counts for the program all samples that an emulated guest cannot divide. Those in the VMM and in waits of
  the host are the additional time of \"exact\", and belong in part to the idle task. Those at probes are the switches
  between guest and host, and ticks due in the work before, since the guest continues briefly when one is due. The true
  value is between vprof's \"off by\" and \"at most\".";

/// One case: the program's options, vprof's, and words for both.
struct EmulatedCase {
    program: &'static str,
    clock: &'static [&'static str],
    name: &'static str,
    plot: Option<(&'static str, &'static str)>,
}

const CASES: [EmulatedCase; 5] = [
    EmulatedCase {
        program: "--period-micros 22500 --work-micros 2250",
        clock: &["-F", "200"],
        name: "22.5 ms, vprof random, 200 Hz",
        plot: Some(("isochronous-22", "2.25 ms of work every 22.5 ms, ticks every 4 ms")),
    },
    EmulatedCase {
        program: "--period-micros 24020 --work-micros 2000",
        clock: &["-F", "200"],
        name: "24.02 ms, vprof random, 200 Hz",
        plot: Some(("isochronous-24", "2 ms of work every 24.02 ms, ticks every 4 ms")),
    },
    EmulatedCase {
        program: "--period-micros 22500 --work-micros 2250",
        clock: &["-F", "44.444444", "--clock", "fixed"],
        name: "22.5 ms, vprof fixed, 22.5 ms",
        plot: Some(("isochronous-fixed", "The same seen by vprof with a fixed clock of 22.5 ms")),
    },
    EmulatedCase {
        program: "--period-micros 22500 --work-micros 2250",
        clock: &["-F", "44.444444"],
        name: "22.5 ms, vprof random, 22.5 ms on average",
        plot: None,
    },
    EmulatedCase {
        program: "--period-micros 22500 --work-micros 2250",
        clock: &["-F", "1000"],
        name: "22.5 ms, vprof random, 1000 Hz",
        plot: None,
    },
];

const FAST: NativeCase =
    NativeCase { period_us: 22_500, work_us: 2_250, rate_hz: 1_000.0, clock: ClockKind::Uniform };

/// The same program and clocks natively.
const NATIVE_CASES: [(&str, NativeCase); 5] = [
    ("22.5 ms, random, 1000 Hz", FAST),
    ("22.5 ms, random, 200 Hz", NativeCase { rate_hz: 200.0, ..FAST }),
    ("24.02 ms, random, 1000 Hz", NativeCase { period_us: 24_020, work_us: 2_000, ..FAST }),
    ("22.5 ms, random, 22.5 ms on average", NativeCase { rate_hz: 1e6 / 22_500.0, ..FAST }),
    ("22.5 ms, fixed, 22.5 ms", NativeCase { rate_hz: 1e6 / 22_500.0, clock: ClockKind::Fixed, ..FAST }),
];

/// Parses the program's output: (s, `/proc/stat` s, CPU s).
fn log(run: &Run) -> Result<Vec<(f64, f64, f64)>> {
    let read = |line| {
        let number = |word| value(line, word).map(|ms| ms / 1e3);
        Some((number("at")?, number("stat")?, number("cpu")?))
    };
    let log: Option<Vec<_>> = lines(run, "at").map(read).collect();
    let log = log.context("a line of the log is broken")?;
    ensure!(log.len() > 10, "the program printed {} lines", log.len());
    Ok(log)
}

/// Returns the time on a CPU in exact mode, from the program's first switch to its end, s. The time that
/// ticks, events and the switches for them took is not part of it.
fn on_cpu(run: &Run) -> f64 {
    run.number(
        "SELECT coalesce(sum(ns), 0) / 1e9 FROM task_state t JOIN instance i ON i.id = t.instance \
         WHERE i.comm = 'isochronous' AND t.state IN ('running', 'interrupted')",
    )
}

/// Returns the time that the VMM and the host took from the program, by the ticks in these states, s.
fn outside(run: &Run) -> Result<f64> {
    let mut sum = 0.0;
    for state in ["vmm", "waiting"] {
        let rows = run.query(&format!(
            "SELECT coalesce(avg(v.comm = 'isochronous'), 0) * (SELECT sum({state}_ns) FROM vcpu) / 1e9 \
             FROM v_samples v JOIN sample s ON s.id = v.id WHERE s.vcpu_state = '{state}'"
        ));
        sum += rows.first().and_then(|row| row.first()?.as_f64()).context("no time of a state")?;
    }
    Ok(sum)
}

/// Results of a case in all of its runs.
#[derive(Debug, Default)]
struct CaseSum {
    own: f64,
    stat: f64,
    exact: f64,
    sampled: f64,
    /// Time of the samples at probes, in the VMM and in waits, s.
    further: f64,
    /// Samples in the guest that met the program, and all of them.
    met: f64,
    all: f64,
}

impl CaseSum {
    /// Returns the effect of chance on the count of ticks, as a part of it: 1.96 standard deviations of
    /// independent ticks.
    fn chance(&self) -> f64 {
        chance(self.met / self.all, self.all)
    }

    fn row(&self, name: &str) -> [String; 9] {
        let seconds = |value: f64| format!("{value:.2} s");
        [
            name.to_owned(),
            seconds(self.own),
            seconds(self.stat),
            more(self.stat, self.own),
            seconds(self.exact),
            seconds(self.sampled),
            more(self.sampled, self.exact),
            format!("+-{:.1} %", self.chance() * 100.0),
            more(self.sampled + self.further, self.exact),
        ]
    }
}

/// Returns 1.96 standard deviations of the count of `ticks` independent ones that meet a state with this
/// share, as a part of the count.
fn chance(share: f64, ticks: f64) -> f64 {
    1.96 * ((1.0 - share) / (share * ticks)).sqrt()
}

/// Makes the section.
pub fn run(runs: usize) -> Result<DocumentSection> {
    let headings = [
        "period and clock",
        "its own clock",
        "`/proc/stat`",
        "off by",
        "exact",
        "vprof",
        "off by",
        "chance",
        "at most",
    ];
    let mut table = MarkdownTable::new(&headings);
    let (mut plots, mut images) = (Vec::new(), String::new());
    let (mut measured, mut late) = (String::new(), Vec::new());
    let met = format!("v.comm = 'isochronous' AND s.frame NOT IN ({FRAMES_AT_PROBES})");
    let at_probes = format!("v.comm = 'isochronous' AND s.frame IN ({FRAMES_AT_PROBES})");
    for case in CASES {
        let options = [case.clock, &["--depth", "0", "--exact"]].concat();
        let mut sum = CaseSum::default();
        for number in 0..runs {
            let run = boot(&options, &format!("isochronous --seconds {LENGTH} {}", case.program))?;
            let log = log(&run)?;
            let start = printed_at(&run, "isochronous starts")?;
            let length = log.last().map_or(LENGTH, |(time, ..)| *time);
            let grown = growth(&run, &met)?;
            let exact: Vec<_> = log.iter().map(|(time, _, cpu)| (*time, *cpu)).collect();
            let ticked: Vec<_> = log.iter().map(|(time, stat, _)| (*time, *stat)).collect();
            sum.own += end(&exact);
            sum.stat += end(&ticked);
            sum.exact += on_cpu(&run);
            sum.sampled += end(&grown);
            sum.further += outside(&run)? + end(&growth(&run, &at_probes)?);
            sum.met += run.number(&format!(
                "SELECT count(*) FROM v_samples v JOIN sample s ON s.id = v.id WHERE {met}"
            ));
            sum.all += run.number("SELECT count(*) FROM sample WHERE vcpu_state = 'guest'");
            measured = setting(&rusage(&run)?, &format!("sums of {runs} runs"));
            late.push(lateness(&run)?);
            if let (0, Some((file, title))) = (number, case.plot) {
                let line = |name: &str, points| PlotLine { name: name.to_owned(), points };
                let seen = since(&grown, start, length);
                let lines = vec![
                    line("/proc/stat, by ticks", ticked),
                    line("its own clock", exact),
                    line("vprof", seen),
                ];
                let (x, y) = ("real time, s", "CPU time, s");
                let plot = LinePlot { title, x, y, scale: PlotScale::Linear, lines };
                plots.push((file, plot.svg()));
                images.push_str(&format!("![{title}](experiments/{file}.svg)\n\n"));
            }
        }
        table.row(sum.row(case.name));
    }
    let text = format!(
        "## A program in step with the clock\n\n\
         This repeats section 5.3 and figures 3 and 4 of McCanne and Torek.\n{ABOUT}\n\n{images}{}\n{measured}\n\
         Pictures are of the first run. vprof's ticks were served {:.0} us late (median).\n\
         Of 100 counts of ticks, 95 are within \"chance\" of the measured time.\n\n{}\n{DISCUSSION}",
        table.markdown(),
        median(&late).unwrap_or_default(),
        natively(runs)?
    );
    Ok(DocumentSection { text, plots })
}

/// Runs the same on this machine's own KVM; returns a paragraph with its table.
fn natively(runs: usize) -> Result<String> {
    if let Err(error) = vmm::kvm_check::open() {
        return Ok(format!("Not measured natively: {error}.\n"));
    }
    let mut table = MarkdownTable::new(&[
        "period and clock",
        "ticks",
        "worked",
        "vprof",
        "off by",
        "chance",
        "of the runs",
    ]);
    for (name, case) in NATIVE_CASES {
        let mut shares = Vec::new();
        for seed in 1..=runs as u64 {
            shares.push(case.run(seed)?);
        }
        let mean = |of: &dyn Fn(&WorkShares) -> f64| shares.iter().map(of).sum::<f64>() / shares.len() as f64;
        let ticks: u64 = shares.iter().map(|run| run.ticks).sum();
        let (own, sampled) = (mean(&|run| run.own), mean(&|run| run.sampled));
        let off: Vec<f64> = shares.iter().map(|run| run.sampled / run.own - 1.0).collect();
        let each = off.iter().map(|off| format!("{:+.1}", off * 100.0)).collect::<Vec<_>>().join(", ");
        table.row([
            name.to_owned(),
            ticks.to_string(),
            format!("{:.3} %", own * 100.0),
            format!("{:.3} %", sampled * 100.0),
            more(sampled, own),
            format!("+-{:.1} %", chance(own, ticks as f64) * 100.0),
            each,
        ]);
    }
    Ok(format!(
        "Natively, on this machine's KVM, a program at privilege level 3 does the same, {runs} times {} s for each clock. \"Worked\" is\n\
         by the time-stamp counter, without time in which the program did not run (the host's other work and vprof's).\n\n{}",
        native::LENGTH,
        table.markdown()
    ))
}
