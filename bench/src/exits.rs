//! Cost of counting exits of an attached machine, and of noting the guest's code that they interrupt.
//!
//! The guest writes to a port in a loop, and counts: its time of a turn is that of an exit to the VMM. Variants
//! take turns. Its memory has that of a real guest, as in [`crate::attached`], so that each note copies the
//! current task of that guest's kernel.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use attach::{Attachment, EngineChoice};

use crate::attached::{CountReader, CountingGuest, QuietTicks, TURN, running};
use crate::kick::FOUND_LIMIT;
use crate::programs::{ProgramRuns, ProgramTimes};
use crate::table::{TableRow, median};

/// Number of rounds; the median of them counts.
const ROUNDS: usize = 9;
/// Interval of the ticks that read the guest's count.
const TICK: Duration = Duration::from_millis(10);
/// Interval at which notes are taken, as by the collector.
const TAKEN: Duration = Duration::from_millis(10);
/// Turns of an empty loop before each exit: for as many exits as possible, and for some hundred a second, so
/// that each is noted.
pub const FREQUENT: u32 = 1;
pub const RARE: u32 = 3_000_000;

/// Runs the guest with this many turns of an empty loop before each exit.
///
/// # Errors
/// The machine does not start.
pub fn guest(ram: &Path, pause: u32) -> anyhow::Result<()> {
    // `again: mov $pause, %ecx; 1: dec %ecx; jnz 1b; inc %rax; out %al, $0x80; jmp again`
    let mut code = vec![0xb9];
    code.extend(pause.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc, 0x48, 0xff, 0xc0, 0xe6, 0x80, 0xeb, 0xf0]);
    running(ram, code)
}

/// Means of counting exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// None: no program runs at exits.
    Nothing,
    /// By reason and time.
    Counted,
    /// The same, and some noted with the guest's code.
    Noted,
}

/// Returns the time between two exits of the guest, ns, and the slowest program that has run at most of them.
fn measure(ram: &Path, what: &str, counting: Counting) -> anyhow::Result<(f64, ProgramRuns)> {
    let guest = CountingGuest::start_as(&[OsStr::new(what), ram.as_os_str()])?;
    let mut target = guest.target(EngineChoice::Bpf)?;
    target.prove(FOUND_LIMIT);
    let counts = if counting == Counting::Nothing { Vec::new() } else { target.counts() };
    let course = counts.into_iter().next().and_then(|counts| counts.course);
    ensure!(counting == Counting::Nothing || target.uncounted().contains("kvm_pvm"), "exits are not counted");
    let measuring = Arc::new(AtomicBool::new(false));
    let attached = Attachment::start(target, |_| CountReader::new(QuietTicks(TICK), Arc::clone(&measuring)))?;
    // The addresses in the guest's kernel are known from the first samples on.
    std::thread::sleep(TURN / 4);
    let before = ProgramRuns::read_all()?;
    measuring.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    let mut notes = 0;
    while begin.elapsed() < TURN {
        std::thread::sleep(TAKEN);
        if let (Counting::Noted, Some(course)) = (counting, &course) {
            notes += course.take_notes().len();
        }
    }
    let exits = course.as_ref().and_then(|course| course.returns()).unwrap_or(0);
    let runs = ProgramRuns::slowest_since(&before, 100)?;
    ensure!((notes > 0) == (counting == Counting::Noted), "{notes} notes of {exits} exits");
    let speed = attached.wait()?.observers.first().context("one vCPU")?.speed()?;
    Ok((1.0 / speed, runs))
}

/// Measures exits with and without notes, all in turns.
///
/// # Errors
/// The host's kernel does not count exits here.
pub fn rows(ram: &Path) -> anyhow::Result<Vec<TableRow>> {
    let variants = [Counting::Nothing, Counting::Counted, Counting::Noted];
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS {
        let mut turn = [0.0; 3];
        // They take turns in being first: a noisy machine drifts.
        for first in 0..turn.len() {
            let variant = (first + round) % turn.len();
            turn[variant] = measure(ram, "exits", variants[variant])?.0;
        }
        for (times, ns) in times.iter_mut().zip(turn) {
            times.push(ns);
        }
        ratios[0].push(turn[2] / turn[1]);
        ratios[1].push(turn[2] / turn[0]);
    }
    let [noted, all] = ratios.map(|ratios| median(&ratios));
    let [nothing, counted, with_notes] = times.map(|times| median(&times) / 1e3);
    let measured = ProgramTimes::start()?;
    let [plain, note] =
        [Counting::Counted, Counting::Noted].map(|counting| measure(ram, "rare-exits", counting));
    drop(measured);
    let (plain, note) = (plain?.1.mean_ns(), note?.1.mean_ns());
    Ok(vec![
        TableRow::ratio("exit to the VMM, attached: noted by function / counted only", noted, "at most 1.05")
            .detail(format!("{with_notes:.2} µs / {counted:.2} µs from exit to exit")),
        TableRow::ratio("exit to the VMM, attached: noted by function / not counted", all, "at most 1.2")
            .detail(format!("{with_notes:.2} µs / {nothing:.2} µs")),
        TableRow::text("note of an exit", format!("{} ns", note.saturating_sub(plain)), "")
            .detail(format!("program with / without: {note} ns / {plain} ns, measured by the host's kernel; at most about 1,000 notes a second and vCPU")),
    ])
}
