//! Benchmarks on a real guest's memory: finding its kernel, copying, walking and collecting stacks.

use std::path::Path;
use std::time::{Duration, Instant};

use guest_linux::{FindStep, Kernel, ScanResult};
use profile::ProfileWriter;
use sampler::bench::{StackFigures, StoppedGuest, stack_figures};
use vmm::x86::CR4_LA57;

use crate::dump::QemuGuest;
use crate::table::{TableRow, median};

/// Number of measurements of each step.
const ROUNDS: usize = 7;
/// Number of walks over the list of tasks.
const WALKS: usize = 101;
/// Number of guest states whose stacks are measured.
const MOMENTS: usize = 12;

/// Measures the time to find the kernel image, to decode kallsyms, to index BTF.
pub fn found(stopped: &StoppedGuest) -> anyhow::Result<TableRow> {
    let (memory, five_level) = (&stopped.memory, stopped.sregs.cr4 & CR4_LA57 != 0);
    let mut steps: [Vec<f64>; 3] = Default::default();
    let mut symbols = 0;
    for _ in 0..ROUNDS {
        let mut begin = Instant::now();
        let found = Kernel::find_in_steps(memory, stopped.sregs.cr3, five_level, |step| {
            let index = match step {
                FindStep::Image => 0,
                FindStep::Kallsyms => 1,
                FindStep::Btf => 2,
            };
            steps[index].push(begin.elapsed().as_secs_f64() * 1e3);
            begin = Instant::now();
        })?;
        symbols = found.symbol_count();
        anyhow::ensure!(found.missing().is_empty(), "missing in the guest: {:?}", found.missing());
        anyhow::ensure!(found.address_of("schedule").is_some(), "no schedule among the symbols");
    }
    let [image, kallsyms, btf] = steps.map(|values| median(&values));
    let total = image + kallsyms + btf;
    Ok(TableRow::text("kernel found in a guest's memory, named and laid out", format!("{total:.0} ms"), "")
        .detail(format!(
            "image {image:.2} ms, {symbols} symbols {kallsyms:.0} ms, BTF and offsets {btf:.0} ms"
        )))
}

/// Measures a scan: one walk over the list of tasks.
pub fn task_scan(stopped: &StoppedGuest) -> anyhow::Result<TableRow> {
    let memory = &stopped.memory;
    let kernel = Kernel::find(memory, stopped.sregs.cr3, stopped.sregs.cr4 & CR4_LA57 != 0)?;
    let task_scan = kernel.task_list_reader(memory)?;
    let (mut times, mut tasks) = (Vec::new(), 0);
    for _ in 0..WALKS {
        let begin = Instant::now();
        tasks = 0;
        let result = task_scan.walk(memory, |_| tasks += 1);
        times.push(begin.elapsed().as_secs_f64() * 1e9);
        anyhow::ensure!(
            result == ScanResult::Complete && tasks > 10,
            "{tasks} tasks in the guest: {result:?}"
        );
    }
    let walk = median(&times);
    Ok(TableRow::text("scan of all tasks, per task", format!("{:.0} ns", walk / f64::from(tasks)), "")
        .detail(format!("{tasks} tasks in {:.0} us", walk / 1e3)))
}

/// Measures several states of `guest`; also returns the one with the largest stacks.
pub fn stacks(guest: &mut QemuGuest, directory: &Path) -> anyhow::Result<(Vec<TableRow>, StoppedGuest)> {
    let mut figures: Vec<StackFigures> = Vec::new();
    let mut largest: Option<(usize, StoppedGuest)> = None;
    let files = guest.files();
    while figures.len() < MOMENTS {
        let stopped = guest.stop()?;
        let mut writer = ProfileWriter::create(&directory.join("stacks.vprof"), true)?;
        let measured = stack_figures(&stopped, &files, &mut writer)?;
        if largest.as_ref().is_none_or(|(bytes, _)| measured.bytes > *bytes) {
            largest = Some((measured.bytes, stopped));
        }
        figures.push(measured);
    }
    let broken = figures.iter().filter(|figures| figures.broken).count();
    anyhow::ensure!(broken * 4 <= MOMENTS, "{broken} of {MOMENTS} walks are broken");
    let (_, stopped) = largest.ok_or_else(|| anyhow::anyhow!("no moment was measured"))?;
    Ok((rows(&figures), stopped))
}

fn rows(figures: &[StackFigures]) -> Vec<TableRow> {
    let count = figures.len() as f64;
    let mean = |of: &dyn Fn(&StackFigures) -> f64| figures.iter().map(of).sum::<f64>() / count;
    let seconds = |of: fn(&StackFigures) -> Duration| mean(&|figures| of(figures).as_secs_f64());
    let (kernel_frames, user_frames) =
        (mean(&|f| f64::from(f.kernel_frames)), mean(&|f| f64::from(f.user_frames)));
    let bytes = mean(&|f| f.bytes as f64);
    let stacks = format!("{count} stacks of {kernel_frames:.0} kernel and {user_frames:.0} user frames");
    let (serve, kernel, user, collect) = (
        seconds(|f| f.serve.cpu),
        seconds(|f| f.kernel.cpu),
        seconds(|f| f.user.cpu),
        seconds(|f| f.collect.cpu),
    );
    let per_frame = |what: &str, time: f64, frames: f64| {
        TableRow::text(what, format!("{:.0} ns a frame", time / frames * 1e9), "")
            .detail(format!("{:.2} us a stack", time * 1e6))
    };
    vec![
        TableRow::text("serving a tick: task, stacks, ring", format!("{:.2} us", serve * 1e6), "")
            .detail(format!("{stacks}, {:.1} KB copied; warm caches", bytes / 1e3)),
        per_frame("kernel stack, by ORC", kernel, kernel_frames),
        per_frame("user stack, by call frame information", user, user_frames),
        TableRow::text(
            "collector and writer with stacks, one core",
            format!("{:.0} samples/s", 1.0 / collect),
            "",
        )
        .detail(format!("{:.1} us a sample; {stacks}", collect * 1e6)),
    ]
}
