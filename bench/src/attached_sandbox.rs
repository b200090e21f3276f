//! Cost of the sandbox around a process that is attached by stops: time until it can sample, CPU time of a
//! sample, and slow-down of the guest.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use attach::{Attachment, EngineChoice, Target, capabilities};
use sampler::{AttachedSampler, RecordingConfig, Session, SessionConfig};
use sandbox::{AttachedSandbox, SyscallPolicy};
use vmm::monotonic_ns;

use crate::attached::{CountReader, CountingGuest, TURN, wait_for_stacks};
use crate::child;
use crate::guest_sandbox::{by_turns, report_pipe};
use crate::kick::{CountingSink, DEPTH, FOUND_LIMIT, SEED};
use crate::table::{TableRow, median};

/// Number of rounds; the median of them counts.
const ROUNDS: usize = 9;
/// Rate of the samples, Hz.
const RATE_HZ: f64 = 1000.0;
/// Factor by which the guest's counts per nanosecond are multiplied to be printed.
const SCALE: f64 = 1e9;

/// Measurements of one process.
struct AttachedTurn {
    /// Time from its start until it could sample, ms.
    start_ms: f64,
    /// CPU time of a sample, µs.
    sample_us: f64,
    /// The guest's counts per nanosecond.
    speed: f64,
}

/// Samples the counting guest of another process, inside the sandbox if the first part of `argument` is `on`;
/// the second one is the process. Prints the time at which sampling could begin, ns of CLOCK_MONOTONIC, the
/// CPU time of a sample, ns, and the guest's counts in a second.
///
/// # Errors
/// The process cannot be attached to, or the sandbox cannot be entered.
pub fn measure(argument: &Path) -> anyhow::Result<()> {
    let (filters, pid) =
        argument.to_str().and_then(|words| words.split_once('/')).context("on/PID or off/PID")?;
    let target = Target::find_by(EngineChoice::Ptrace, pid.parse()?, 1, None)?;
    let (report, _written) = report_pipe()?;
    if filters == "on" {
        let (policy, capabilities) = (SyscallPolicy::Refuse, capabilities::kept(false));
        let sandbox = AttachedSandbox { policy, reach: target.reach(), capabilities, report };
        ensure!(::sandbox::enter_attached(sandbox)?.syscalls, "the filters apply");
    }
    let ready_ns = monotonic_ns();
    target.prove(FOUND_LIMIT);
    let recording =
        RecordingConfig { rate_hz: RATE_HZ, seed: SEED, stack_depth: DEPTH, ..RecordingConfig::default() };
    let sink = CountingSink::default();
    let config = SessionConfig { vcpus: 1, recording, meta: Vec::new() };
    let (mut session, samplers) = Session::new(config, Box::new(sink.clone()), symbols::names::no_files());
    let measuring = Arc::new(AtomicBool::new(false));
    let mut samplers = samplers.into_iter();
    let attached = Attachment::start(target, |_| {
        let sampler = AttachedSampler::from(samplers.next().expect("one vCPU"));
        CountReader::new(sampler, Arc::clone(&measuring))
    })?;
    session.start(attached.memory().clone())?;
    wait_for_stacks(&sink)?;
    let (before_ns, stacks) = (cpu_ns()?, sink.stacks());
    measuring.store(true, Ordering::Relaxed);
    std::thread::sleep(TURN);
    let (spent_ns, samples) = (cpu_ns()? - before_ns, sink.stacks() - stacks);
    let ended = attached.wait()?;
    let speed = ended.observers.first().context("one vCPU")?.speed()?;
    drop(ended);
    ensure!(samples > 100 && session.finish(Vec::new()).lost == 0, "{samples} samples");
    println!("{ready_ns} {} {:.0}", spent_ns / samples, speed * SCALE);
    Ok(())
}

/// CPU time of all threads of this process, ns.
fn cpu_ns() -> anyhow::Result<u64> {
    // SAFETY: rusage is plain data for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    ensure!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } == 0, "no CPU time");
    let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1_000;
    Ok(u64::try_from(ns(usage.ru_utime) + ns(usage.ru_stime))?)
}

/// Measures the sandbox's cost: processes with and without it take turns.
///
/// # Errors
/// Such a process fails.
pub fn rows(ram: &Path) -> anyhow::Result<Vec<TableRow>> {
    let one = |filters: &str| -> anyhow::Result<AttachedTurn> {
        let guest = CountingGuest::start(ram, 0.0)?;
        let begin_ns = monotonic_ns();
        let argument = OsString::from(format!("{filters}/{}", guest.pid()));
        let [ready_ns, sample_ns, counts] = child::run("attached-sandbox", Path::new(&argument))
            .with_context(|| format!("a profiler with filters {filters}"))?;
        Ok(AttachedTurn {
            start_ms: ready_ns.saturating_sub(begin_ns) as f64 / 1e6,
            sample_us: sample_ns as f64 / 1e3,
            speed: counts as f64 / SCALE,
        })
    };
    let [with, without] = by_turns(ROUNDS, one)?;
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(on, off)| off.speed / on.speed).collect();
    let middle = |turns: &[AttachedTurn], value: fn(&AttachedTurn) -> f64| {
        median(&turns.iter().map(value).collect::<Vec<_>>())
    };
    let [start, bare_start] = [&with, &without].map(|turns| middle(turns, |turn| turn.start_ms));
    let [sample, bare_sample] = [&with, &without].map(|turns| middle(turns, |turn| turn.sample_us));
    Ok(vec![
        TableRow::ratio(
            "guest's time at 1000 Hz, attached by stops: vprof inside the sandbox / without",
            median(&ratios),
            "at most 1.02",
        )
        .detail(format!("CPU time of a sample {sample:.1} µs / {bare_sample:.1} µs")),
        TableRow::text(
            "start of the attached process inside the sandbox",
            format!("{:.1} ms more", start - bare_start),
            "at most 30 ms",
        )
        .detail(format!("{start:.1} ms / {bare_start:.1} ms without the sandbox")),
    ])
}
