//! `report --exact --timehist`: one line per run of a task on a vCPU.

use std::io::{self, Write};

use display::units;
use profile::report::{ReportError, TaskRun, Timehist};

use super::PageLayout;
use super::exact::{more, name};
use super::paragraph::wrapped;
use super::table::cut;

/// Columns that the task keeps on a narrow terminal.
const LEAST_NAME: usize = 12;

/// Why runs are not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The profile cannot be read.
    #[error(transparent)]
    Read(#[from] ReportError),
    /// The output fails.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Writes at most `rows` runs. The columns have fixed widths, as the runs may be too many to measure first.
pub fn write(
    history: &Timehist<'_>,
    rows: usize,
    page: PageLayout,
    out: &mut dyn Write,
) -> Result<(), WriteError> {
    let mut text = String::new();
    let from = units::seconds(history.from_s);
    let title = format!("Runs of tasks: {}, exact data from {from} on", units::count(history.count));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    let note = "wait: asleep or stopped; delay: runnable, waiting for a vCPU; run: on the vCPU; irq: handlers of \
                interrupts there, both without vprof's own time; then: what the task did next";
    wrapped(&mut text, note, "  ", page.width);
    if history.left_out > 0 {
        let left_out = format!(
            "{} of the whole guest are left out for the size of the profile; the sums of --exact have them",
            units::counted(history.left_out, "later run")
        );
        wrapped(&mut text, &left_out, "  ", page.width);
    }
    if !history.complete {
        wrapped(&mut text, "Events were lost: runs at that time are missing.", "  ", page.width);
    }
    let mut line = |cells: [&str; 8], task: &str| {
        let [time, vcpu, wait, delay, run, irq, then, tid] = cells;
        let start = format!(
            "  {time:>13}  {vcpu:>4}  {wait:>10}  {delay:>9}  {run:>9}  {irq:>7}  {then:<14}  {tid:>7}  "
        );
        let task = cut(task, page.width.saturating_sub(start.len()).max(LEAST_NAME));
        text.push_str(&start);
        text.push_str(&task);
        text.push('\n');
        out.write_all(text.as_bytes())?;
        text.clear();
        Ok::<_, WriteError>(())
    };
    line(["time s", "vCPU", "wait ms", "delay ms", "run ms", "irq ms", "then", "tid"], "task")?;
    history.for_each(rows, |run| {
        let times =
            [run.wait_s, run.delay_s, run.running_s, run.interrupted_s].map(|s| format!("{:.3}", s * 1e3));
        let [wait, delay, running, irq] = times.each_ref().map(String::as_str);
        let (time, vcpu) = (format!("{:.6}", run.time_s), run.vcpu.to_string());
        let tid = run.task.tid.to_string();
        line([&time, &vcpu, wait, delay, running, irq, then(&run), &tid], &name(&run.task))
    })?;
    let mut end = String::new();
    more(&mut end, usize::try_from(history.count).unwrap_or(usize::MAX), rows);
    Ok(out.write_all(end.as_bytes())?)
}

/// Returns the wait reason after a run, or the state of a task that does not sleep.
fn then(run: &TaskRun<'_>) -> &'static str {
    if run.wait_reason.is_empty() { run.state } else { run.wait_reason }
}
