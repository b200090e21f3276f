//! Figure 2 of McCanne and Torek: a loop is charged for interrupts that it has nothing to do with.

use anyhow::{Context, Result, ensure};
use vprof_tests::Run;

use crate::document::DocumentSection;
use crate::measured::{boot, growth, lines, printed_at, rusage, setting, since, value, value_at};
use crate::table::MarkdownTable;
use testkit::{LinePlot, PlotLine, PlotScale};

/// Length of each third, s: quiet, storm, quiet.
const THIRD: f64 = 3.0;

const ABOUT: &str = "\
A program loops and records its CPU time as reported by the system, four times a second. For some time its machine
serves interrupts that do not concern it: in the paper from a network in promiscuous mode; here from a program on
another CPU that floods the loopback device, whose packets the kernel receives on the loop's CPU (`interfered`).";

const DISCUSSION: &str = "\
In the paper, SunOS charged the loop \"a significant amount of system CPU time\" during the storm, 4.4BSD next to none.
Linux without `CONFIG_IRQ_TIME_ACCOUNTING`, as Debian builds it, behaves like SunOS:

- The total of getrusage is the scheduler's run time, with interrupts: all of it is charged to the loop.
- Ticks divide the total. A tick in a soft interrupt counts as system time of the interrupted task. No tick comes in a
  hard interrupt, in which interrupts are off: that time counts as user time.

vprof charges interrupts to no process, from entry to exit; it shows which process they hit.";

/// Parses the loop's output: (s, user s, system s).
fn log(run: &Run) -> Result<Vec<(f64, f64, f64)>> {
    let read = |line| {
        let number = |word| value(line, word).map(|ms| ms / 1e3);
        Some((number("at")?, number("user")?, number("system")?))
    };
    let log: Option<Vec<_>> = lines(run, "at").map(read).collect();
    let log = log.context("a line of the log is broken")?;
    ensure!(log.len() > 10, "the loop printed {} lines", log.len());
    Ok(log)
}

/// Makes the section.
pub fn run(_: usize) -> Result<DocumentSection> {
    let command = format!("interfered --seconds {}", 3.0 * THIRD);
    // Stacks show which kernel code is the entry or the exit of an interrupt.
    let run = boot(&["-F", "1000", "--cpus", "2"], &command)?;
    let log = log(&run)?;
    let sent = lines(&run, "storm").find_map(|line| value(line, "sent")).context("the storm sent nothing")?;
    let start = printed_at(&run, "interfered starts")?;
    let seen = |condition: &str| -> Result<_> { Ok(since(&growth(&run, condition)?, start, 3.0 * THIRD)) };
    let reported: Vec<_> = log.iter().map(|(time, user, system)| (*time, user + system)).collect();
    let told_system: Vec<_> = log.iter().map(|(time, _, system)| (*time, *system)).collect();
    let own = seen("v.comm = 'interfered' AND v.mode IN ('user', 'kernel')")?;
    let own_kernel = seen("v.comm = 'interfered' AND v.mode = 'kernel'")?;
    let hard = seen("v.comm = 'interfered' AND v.mode = 'hardirq'")?;
    let soft = seen("v.comm = 'interfered' AND v.mode = 'softirq'")?;

    let mut table = MarkdownTable::new(&["of the loop, in each 3 s", "quiet", "storm", "quiet again"]);
    for (name, points) in [
        ("getrusage: user and system", &reported),
        ("getrusage: system", &told_system),
        ("vprof: its own code, user and kernel", &own),
        ("vprof: its own code, kernel", &own_kernel),
        ("vprof: hard interrupts that hit it", &hard),
        ("vprof: soft interrupts that hit it", &soft),
    ] {
        let third = |n: f64| value_at(points, (n + 1.0) * THIRD) - value_at(points, n * THIRD);
        let cells = [0.0, 1.0, 2.0].map(|n| format!("{:.2} s", third(n)));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    let line = |name: &str, points: Vec<_>| PlotLine { name: name.to_owned(), points };
    let plot = LinePlot {
        title: "System time of a loop that interrupts hit",
        x: "real time, s (storm from 3 to 6 s)",
        y: "CPU time, s",
        scale: PlotScale::Linear,
        lines: vec![
            line("getrusage: system time", told_system),
            line("vprof: its own code, kernel", own_kernel),
            line("vprof: soft interrupts that hit it", soft),
        ],
    };
    let text = format!(
        "## Interrupts: the processes charged for them\n\nThis repeats section 5.1 and figure 2 of McCanne and Torek.\n{ABOUT}\n\n\
         ![System time of a loop that interrupts hit](experiments/interference.svg)\n\n{}\n{}\n{sent:.0} datagrams were sent. \
         Only the first two rows have time taken by the host\n(the vCPU's waits and vprof's own work).\n\n{DISCUSSION}",
        table.markdown(),
        setting(&rusage(&run)?, "one run"),
    );
    Ok(DocumentSection { text, plots: vec![("interference", plot.svg())] })
}
