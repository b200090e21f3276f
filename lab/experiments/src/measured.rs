//! Output of a guest, and its time by the samples.

use anyhow::{Context, Result, ensure};
use profile::rusage::{ProcessRusage, Rusage};
use profile::store::Profile;
use vprof_tests::{Guest, Run};

use crate::table::median;

/// Runs a script in a guest under `vprof run` with these options. It has the console, so that the profile has
/// the times of its output.
pub fn boot(options: &[&str], script: &str) -> Result<Run> {
    let run = Guest::demo().options(["--console", "-"]).options(options).script(script).run();
    ensure!(run.status.success(), "{}\nstdout: {}\nstderr: {}", run.status, run.stdout, run.stderr);
    Ok(run)
}

/// The guest's CPU accounting and the measured times.
pub fn rusage(run: &Run) -> Result<Rusage> {
    let profile = Profile::open(run.profile())?;
    Ok(Rusage::read(&profile)?)
}

/// Returns the CPU accounting of the process of this name.
pub fn process<'a>(rusage: &'a Rusage, comm: &str) -> Result<&'a ProcessRusage> {
    let found = rusage.processes.iter().find(|process| process.comm == comm);
    found.with_context(|| format!("the profile has no CPU accounting of {comm}"))
}

/// Returns `utime` and `stime` of a process together, which only ticks add to, ns.
pub fn ticked(run: &Run, comm: &str) -> Result<u64> {
    let sql = format!(
        "SELECT tick_user_ns + tick_system_ns FROM rusage JOIN instance ON id = instance WHERE comm = '{comm}' AND NOT first"
    );
    let rows = run.query(&sql);
    let value = rows.first().and_then(|row| row.first()?.as_u64());
    value.with_context(|| format!("the profile holds no ticks of {comm}"))
}

/// Returns the number that follows a word in a line.
pub fn value(line: &str, word: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    words.find(|found| *found == word)?;
    words.next()?.trim_end_matches(',').parse().ok()
}

/// Returns the lines of the console that start with a word.
pub fn lines<'a>(run: &'a Run, start: &'a str) -> impl Iterator<Item = &'a str> {
    run.stdout.lines().map(str::trim).filter(move |line| line.split_whitespace().next() == Some(start))
}

/// Returns the time at which a program began to print this, s since the run's start.
pub fn printed_at(run: &Run, text: &str) -> Result<f64> {
    let rows = run.query("SELECT time_ns, CAST(bytes AS TEXT) FROM console ORDER BY id");
    let pieces: Vec<_> = rows.iter().filter_map(|row| Some((row[0].as_f64()?, row[1].as_str()?))).collect();
    let ns = first_piece(&pieces, text).with_context(|| format!("the console does not hold \"{text}\""))?;
    Ok(ns / 1e9)
}

/// Returns the time of the piece in which a text begins that may continue in the next ones.
fn first_piece(pieces: &[(f64, &str)], text: &str) -> Option<f64> {
    let all: String = pieces.iter().map(|(_, piece)| *piece).collect();
    let position = all.find(text)?;
    let mut end = 0;
    let holds = |piece: &&(f64, &str)| {
        end += piece.1.len();
        end > position
    };
    pieces.iter().find(holds).map(|(time, _)| *time)
}

/// Returns the growth of the time that meets a condition on `v_samples`, on vCPU 0: points (s since the run's
/// start, s).
///
/// In each interval of the vCPU's state clock, it is the share of the samples in the guest, of the time in
/// the guest. It is computed by intervals because an emulated host does not serve as many ticks in a second
/// of one kind as of another.
pub fn growth(run: &Run, condition: &str) -> Result<Vec<(f64, f64)>> {
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
    let samples = run.query(&format!(
        "SELECT s.time_ns, coalesce({condition}, 0) FROM v_samples v JOIN sample s ON s.id = v.id \
         WHERE s.vcpu = 0 AND s.vcpu_state = 'guest' ORDER BY s.time_ns"
    ));
    let intervals = run.query("SELECT time_ns, guest_ns FROM microstate WHERE vcpu = 0 ORDER BY time_ns");
    ensure!(!samples.is_empty() && !intervals.is_empty(), "the profile holds no samples of vCPU 0");
    let samples: Vec<_> = samples.iter().map(|row| (number(&row[0]), number(&row[1]) > 0.0)).collect();
    let intervals: Vec<_> = intervals.iter().map(|row| (number(&row[0]), number(&row[1]))).collect();
    Ok(grow(&samples, &intervals))
}

/// Samples that an interval must have: it is merged with the next ones if it has fewer.
const ENOUGH: usize = 20;

/// Computes [`growth`] from samples (ns, met) and intervals (end in ns, guest time in ns), both in order of
/// time.
fn grow(samples: &[(f64, bool)], intervals: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (mut rest, mut sum, mut waiting) = (samples, 0.0, 0);
    let mut points = Vec::with_capacity(intervals.len());
    for (index, (end, _)) in intervals.iter().enumerate() {
        let (here, later) = rest.split_at(rest.partition_point(|(time, _)| time <= end));
        let last = index + 1 == intervals.len();
        if here.len() < ENOUGH && !last {
            continue;
        }
        rest = later;
        let met = here.iter().filter(|(_, met)| *met).count();
        let share = met as f64 / here.len().max(1) as f64;
        for (end, guest) in &intervals[waiting..=index] {
            sum += guest * share;
            points.push((end / 1e9, sum / 1e9));
        }
        waiting = index + 1;
    }
    points
}

/// Returns the part of a growth between two times, from zero.
pub fn since(points: &[(f64, f64)], from: f64, length: f64) -> Vec<(f64, f64)> {
    let base = value_at(points, from);
    let inside = points.iter().filter(|(time, _)| (from..=from + length).contains(time));
    std::iter::once((0.0, 0.0)).chain(inside.map(|(time, value)| (time - from, value - base))).collect()
}

/// Returns the value of a growth at a time: that of the last point not after it.
pub fn value_at(points: &[(f64, f64)], moment: f64) -> f64 {
    points.iter().rev().find(|(time, _)| *time <= moment).map_or(0.0, |(_, value)| *value)
}

/// Returns the last value of a growth.
pub fn end(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |(_, value)| *value)
}

/// Returns the median delay of ticks that fell into the guest, us.
pub fn lateness(run: &Run) -> Result<f64> {
    let rows = run.query("SELECT late_ns / 1e3 FROM sample WHERE vcpu_state IN ('guest', 'waiting')");
    let late: Vec<f64> = rows.iter().filter_map(|row| row.first()?.as_f64()).collect();
    median(&late).context("no tick fell into the guest")
}

/// Describes the host, the guest's kernel and the machine's load, as a sentence; `runs` are those of the
/// figures: "medians of 5 runs".
pub fn setting(rusage: &Rusage, runs: &str) -> String {
    let host = match rusage.host.as_str() {
        "portable" => "the portable host",
        _ => "this machine's own KVM",
    };
    let kernel = rusage.kernel.as_deref().unwrap_or("of unknown release");
    format!("Measured on {host}, {runs}: Linux {kernel}{}.", load())
}

/// Describes the machine's load, as the end of a sentence; empty if the machine does not count it.
fn load() -> String {
    let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism();
    match (average.split_whitespace().next(), cpus) {
        (Some(average), Ok(cpus)) => format!(", load average {average} on {cpus} CPUs"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_their_words() {
        let line = "victim real 2.5 s, user 1 s, system 0.25 s";
        assert_eq!(value(line, "real"), Some(2.5));
        assert_eq!(value("a 3, b 4", "a"), Some(3.0));
        assert_eq!(value(line, "idle"), None);
        assert_eq!(value("real", "real"), None);
    }

    #[test]
    fn a_text_begins_in_its_first_piece() {
        let pieces = [(1.0, "loop"), (2.0, " sta"), (3.0, "rts\n")];
        assert_eq!(first_piece(&pieces, "starts"), Some(2.0));
        assert_eq!(first_piece(&pieces, "loop starts"), Some(1.0));
        assert_eq!(first_piece(&pieces, "ends"), None);
    }

    #[test]
    fn time_grows_by_the_share_of_each_interval() {
        let half = (0..ENOUGH).map(|n| (1e9, n % 2 == 0));
        // Too few alone, enough together with those of the next interval.
        let whole = [(2.5e9, true)].into_iter().chain((0..ENOUGH).map(|_| (3.5e9, true)));
        let samples: Vec<_> = half.chain(whole).collect();
        let points = grow(&samples, &[(2e9, 2e9), (3e9, 0.5e9), (4e9, 1e9), (5e9, 7e9)]);
        assert_eq!(points, [(2.0, 1.0), (3.0, 1.5), (4.0, 2.5), (5.0, 2.5)]);
        assert_eq!(since(&points, 2.0, 1.0), [(0.0, 0.0), (0.0, 0.0), (1.0, 0.5)]);
        assert!((end(&points) - 2.5).abs() < 1e-12);
    }
}
