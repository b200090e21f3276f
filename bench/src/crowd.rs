//! vprof's own CPU time for many attached vCPUs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use attach::{Attachment, EngineChoice};
use sampler::{AttachedSampler, RecordingConfig, Session, SessionConfig};

use crate::attached::CountingGuest;
use crate::kick::{CountingSink, DEPTH, SEED};
use crate::table::TableRow;

/// Rate of samples of a whole fleet, Hz.
pub const FLEET_HZ: f64 = 19.0;
/// Attached vCPUs together, their rate in Hz, and the time for which they are sampled.
pub const CROWD: u8 = 64;
const CROWD_HZ: f64 = 100.0;
const CROWD_TIME: Duration = Duration::from_secs(10);

/// Returns the CPU time of this process's threads, s, by their names without numbers.
fn cpu_times() -> anyhow::Result<BTreeMap<String, f64>> {
    let mut times = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let read = |name| fs::read_to_string(path.join(name));
        // A thread may end meanwhile.
        let (Ok(name), Ok(statistics)) = (read("comm"), read("schedstat")) else { continue };
        let name = name.trim_end().trim_end_matches(|c: char| c.is_ascii_digit()).trim_end();
        // Nanoseconds on a CPU (Documentation/scheduler/sched-stats.rst).
        let ns: u64 = statistics.split_ascii_whitespace().next().context("no time")?.parse()?;
        *times.entry(name.to_owned()).or_default() += ns as f64 / 1e9;
    }
    Ok(times)
}

/// vprof's use of a CPU for many vCPUs.
struct CrowdCost {
    /// Parts of a CPU, by the names of threads.
    parts: BTreeMap<String, f64>,
    samples: u64,
}

impl CrowdCost {
    fn part(&self) -> f64 {
        self.parts.values().sum()
    }

    /// Describes the parts that are not nothing.
    fn detail(&self) -> String {
        let parts = self.parts.iter().filter(|(_, part)| **part >= 5e-5);
        let list: Vec<_> = parts.map(|(name, part)| format!("{name} {:.2} %", part * 100.0)).collect();
        format!("{} samples, none lost; threads: {}", self.samples, list.join(", "))
    }
}

/// Measures vprof's own CPU time for many vCPUs, at two rates.
fn crowd(empty: &Path, vcpus: u8) -> anyhow::Result<Vec<TableRow>> {
    let guests: Vec<_> = (0..vcpus).map(|_| CountingGuest::start(empty, 0.0)).collect::<Result<_, _>>()?;
    let what =
        |rate_hz| format!("vprof's own CPU: {vcpus} attached vCPUs at {rate_hz} Hz, by the host's kernel");
    let cost = crowd_at(&guests, CROWD_HZ)?;
    let figure = format!("{:.1} % of a CPU", cost.part() * 100.0);
    let many = TableRow::text(&what(CROWD_HZ), figure, "at most 5 %")
        .detail(format!("guests that only count, each in a VMM; {}", cost.detail()));
    let cost = crowd_at(&guests, FLEET_HZ)?;
    let figure = format!("{:.3} % of a CPU for each", cost.part() / f64::from(vcpus) * 100.0);
    let few = TableRow::text(&what(FLEET_HZ), figure, "at most 0.1 %").detail(cost.detail());
    Ok(vec![many, few])
}

/// Samples the guests at this rate.
fn crowd_at(guests: &[CountingGuest], rate_hz: f64) -> anyhow::Result<CrowdCost> {
    let recording = RecordingConfig { rate_hz, seed: SEED, stack_depth: DEPTH, ..RecordingConfig::default() };
    let config = SessionConfig { vcpus: u8::try_from(guests.len())?, recording, meta: Vec::new() };
    let sink = Box::new(CountingSink::default());
    let (mut session, samplers) = Session::new(config, sink, symbols::names::no_files());
    let targets: Vec<_> =
        guests.iter().map(|guest| guest.target(EngineChoice::Bpf)).collect::<Result<_, _>>()?;
    let mut all: Vec<Attachment<AttachedSampler>> = Vec::new();
    for (target, sampler) in targets.into_iter().zip(samplers) {
        let mut sampler = Some(AttachedSampler::from(sampler));
        let attached = Attachment::start(target, |_| sampler.take().expect("one vCPU"))?;
        // Before the rings of the first are full.
        if all.is_empty() {
            session.start(attached.memory().clone())?;
        }
        all.push(attached);
    }
    let (before, begin) = (cpu_times()?, Instant::now());
    std::thread::sleep(CROWD_TIME);
    let (after, seconds) = (cpu_times()?, begin.elapsed().as_secs_f64());
    let part = |(name, time): (String, f64)| {
        let spent = time - before.get(&name).copied().unwrap_or(0.0);
        (name, spent / seconds)
    };
    let parts = after.into_iter().map(part).collect();
    for attached in all {
        drop(attached.wait()?);
    }
    let totals = session.finish(Vec::new());
    ensure!(totals.lost == 0, "{} samples were lost", totals.lost);
    Ok(CrowdCost { parts, samples: totals.samples })
}

/// Measures vprof's own CPU time for that many vCPUs.
///
/// # Errors
/// The host's kernel does not sample here, or samples were lost.
pub fn measure(directory: &Path, vcpus: u8, print: impl Fn(&[TableRow])) -> anyhow::Result<()> {
    let empty = directory.join("crowd-empty");
    fs::write(&empty, [])?;
    print(&crowd(&empty, vcpus)?);
    Ok(())
}
