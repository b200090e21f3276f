//! Writes a lake of many hosts, made of a few real profiles.
//!
//! Called by `cargo xtask fleet-bench`: `fleet LAKE HOURS PROFILE...`.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use export::lake::{HOUR_NS, KnownStacks, LakeProfile, LakeVm, LakeWindow, LakeWriter};
use profile::Profile;
use profile::report::RecordedSample;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Poisson};

/// Hours of each host: a day, in which each stack is written once.
const HOURS: u64 = 24;
/// First hour, since 1970: that of a day.
const FIRST_HOUR: u64 = 489_984;
/// Ticks per second and vCPU by default of an agent.
const RATE_HZ: f64 = 19.0;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [lake, host_hours, profiles @ ..] = arguments.as_slice() else {
        bail!("usage: fleet LAKE HOURS PROFILE...");
    };
    let host_hours =
        host_hours.to_str().and_then(|hours| hours.parse().ok()).context("not a number of hours")?;
    let profiles: Vec<_> = profiles.iter().map(PathBuf::from).collect();
    write(Path::new(lake), host_hours, &profiles)
}

/// A profile, and how it becomes an hour.
struct Source {
    profile: LakeProfile,
    samples: Vec<RecordedSample>,
    /// Mean number of times that a sample occurs in an hour.
    times: Poisson<f64>,
    /// Factor of a sample's time.
    weight: f64,
}

impl Source {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let opened = Profile::open(path)?;
        let mut profile = LakeProfile::read(&opened)?;
        let samples = std::mem::take(&mut profile.recording.samples);
        let ticks = profile.ticks() as f64;
        ensure!(!samples.is_empty() && ticks > 0.0, "{} has no samples", path.display());
        // Sampling may have been off for a part of the run.
        let mean = RATE_HZ * 3_600.0 / ticks;
        let busy_ns = HOUR_NS as f64 * samples.len() as f64 / ticks;
        let sampled_ns: f64 = samples.iter().map(|sample| sample.weight_ns).sum();
        let weight = busy_ns / (sampled_ns * mean);
        Ok(Self { profile, samples, times: Poisson::new(mean)?, weight })
    }

    /// Draws the samples of an hour: each of the profile's as often as chance has it.
    fn draw(&mut self, rng: &mut ChaCha8Rng) -> &LakeProfile {
        let drawn = &mut self.profile.recording.samples;
        drawn.clear();
        for sample in &self.samples {
            let sample = RecordedSample { weight_ns: sample.weight_ns * self.weight, ..*sample };
            let mut times = self.times.sample(rng);
            while times >= 1.0 {
                drawn.push(sample);
                times -= 1.0;
            }
        }
        &self.profile
    }
}

/// Writes a lake of `host_hours` hours of hosts with a machine each, which is as busy as one of the profiles,
/// drawn at random, and sampled at 19 Hz.
fn write(lake: &Path, host_hours: u64, profiles: &[PathBuf]) -> anyhow::Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let part =
            |worker: u64| scope.spawn(move || write_part(lake, host_hours, profiles, (worker, workers)));
        let parts: Vec<_> = (0..workers).map(part).collect();
        let ends = parts.into_iter().map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        ends.collect()
    })
}

/// Writes the hours of each n-th host from one on: the first and n.
fn write_part(
    lake: &Path,
    host_hours: u64,
    profiles: &[PathBuf],
    (first, step): (u64, u64),
) -> anyhow::Result<()> {
    let mut sources: Vec<Source> =
        profiles.iter().map(|path| Source::read(path)).collect::<Result<_, _>>()?;
    for host in (0..host_hours.div_ceil(HOURS)).filter(|host| host % step == first) {
        // A host has the same programs in each hour.
        let place = ChaCha8Rng::seed_from_u64(host).random_range(0..sources.len());
        let source = sources.get_mut(place).context("no profile")?;
        let numbers = host * HOURS..host_hours.min((host + 1) * HOURS);
        write_host(lake, (host, numbers), source)?;
    }
    Ok(())
}

/// Writes hours of a host, which have these numbers in the lake.
fn write_host(lake: &Path, (host, numbers): (u64, Range<u64>), source: &mut Source) -> anyhow::Result<()> {
    let mut known = KnownStacks::default();
    for number in numbers {
        let profile = source.draw(&mut ChaCha8Rng::seed_from_u64(number));
        let window = LakeWindow {
            host: format!("host-{host:06}"),
            start_unix_ns: (FIRST_HOUR + number % HOURS) * HOUR_NS,
            length_ns: HOUR_NS,
            inclusion: 1.0,
            dropped_windows: 0,
        };
        let mut writer = LakeWriter::create(window, known, lake)?;
        let vm = LakeVm {
            id: format!("vm-{host:06}"),
            name: format!("vm-{host}"),
            group: format!("tenant={}", host % 10),
            ..LakeVm::default()
        };
        writer.add(&vm, profile)?;
        known = writer.finish()?.1;
    }
    Ok(())
}
