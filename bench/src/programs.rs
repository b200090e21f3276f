//! Times of vprof's programs in the host's kernel, by the kernel's own measurement.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;

/// Switch of the kernel's measurement of its programs (Documentation/admin-guide/sysctl/kernel.rst).
const PROGRAM_TIMES: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Runs of a program in the host's kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramRuns {
    pub count: u64,
    /// Time in it, ns.
    pub ns: u64,
}

impl ProgramRuns {
    /// Returns the runs of this process' programs, by their descriptors.
    pub fn read_all() -> anyhow::Result<HashMap<OsString, Self>> {
        let mut all = HashMap::new();
        for entry in fs::read_dir("/proc/self/fdinfo")? {
            let entry = entry?;
            // The descriptor of this list is closed by then.
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            let field = |name: &str| {
                let value = text.lines().find_map(|line| line.strip_prefix(name))?;
                value.trim_start_matches(':').trim().parse().ok()
            };
            if let (Some(count), Some(ns)) = (field("run_cnt"), field("run_time_ns")) {
                all.insert(entry.file_name(), Self { count, ns });
            }
        }
        Ok(all)
    }

    /// Returns the runs, since `before`, of the slowest program of those that have run that often. Those at
    /// trace points run more often than samples are taken, and take less time.
    pub fn slowest_since(before: &HashMap<OsString, Self>, least: u64) -> anyhow::Result<Self> {
        let often = Self::since(before)?.filter(|runs| runs.count >= least);
        Ok(often.max_by_key(Self::mean_ns).unwrap_or_default())
    }

    /// Returns the mean time of a run, ns.
    pub fn mean_ns(&self) -> u64 {
        self.ns.checked_div(self.count).unwrap_or(0)
    }

    fn since(before: &HashMap<OsString, Self>) -> anyhow::Result<impl Iterator<Item = Self>> {
        let since = |(name, now): (OsString, Self)| {
            let then = before.get(&name).copied().unwrap_or_default();
            Self { count: now.count.saturating_sub(then.count), ns: now.ns.saturating_sub(then.ns) }
        };
        Ok(Self::read_all()?.into_iter().map(since))
    }
}

/// The kernel's measurement of its programs, while this value lives.
pub struct ProgramTimes(Vec<u8>);

impl ProgramTimes {
    pub fn start() -> anyhow::Result<Self> {
        let before = fs::read(PROGRAM_TIMES)?;
        fs::write(PROGRAM_TIMES, "1")?;
        Ok(Self(before))
    }
}

impl Drop for ProgramTimes {
    fn drop(&mut self) {
        // The same write has succeeded before.
        let _ = fs::write(PROGRAM_TIMES, &self.0);
    }
}
