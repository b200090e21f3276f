//! Joins profiles of several virtual machines in one, which all reports read like any other.
//!
//! ```text
//!  A.vprof ──┐  inspect: order by start,     copy, one after the other:
//!  B.vprof ──┼─▶ refuse what cannot be ────▶  rows with new ids ──▶ all.vprof
//!  C.vprof ──┘  merged                        equal files, code, stacks once
//! ```
//!
//! Row ids of a source mean nothing in another, so each table has a list of what its columns refer to
//! (`tables`). vCPUs stay apart: each is a stratum of all estimates, with the clock of its run (table `vm`).
//! Times count from the start of the first run. docs/fleet.md has the reasons.
//!
//! Sources are read one after the other. Memory is bounded by the largest of them and by `ids`: what is
//! beyond that is stored once for each source.

mod copy;
mod error;
mod ids;
mod source;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use statistics::estimate::guest_error_key;
use statistics::part;

use crate::report::is_emulated;
use crate::store::{Profile, WholeProfile};
use copy::{SourceCopy, Target};
pub use error::MergeError;
use source::Source;

/// Key of `meta`: number of profiles that were merged.
pub const MERGED: &str = "merged";
/// Value of a key of `meta` that differs among the merged profiles.
pub const MIXED: &str = "mixed";
/// Data that is of one virtual machine, and stays in its profile.
const ONE_VM: &str =
    "the profile is merged, and these data are of one virtual machine: use the profile of that machine";

/// Result of a merge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// Virtual machines in the order of their runs' starts.
    pub vms: Vec<MergedVm>,
    /// Length of all runs together, from the first start to the last end, s.
    pub duration_s: f64,
    /// Samples of all virtual machines.
    pub samples: u64,
}

/// A virtual machine of a merge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MergedVm {
    /// Its name in the merged profile.
    pub name: String,
    /// Name of its host, if the profile has it.
    pub host: Option<String>,
    /// The profile.
    pub profile: PathBuf,
    /// Start of its run, s since the start of the first run.
    pub from_s: f64,
    /// Number of vCPUs.
    pub vcpus: u64,
    /// Number of samples.
    pub samples: u64,
}

/// Merges profiles in a new one. With `force` it takes the place of an older file, once it is complete.
/// Calls `progress` from time to time with the number of samples done and the number of all.
///
/// # Errors
/// See [`MergeError`]. The output does not exist, or is the older one, after an error.
pub fn merge(
    paths: &[PathBuf],
    output: &Path,
    force: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Merged, MergeError> {
    let sources = inspected(paths, output)?;
    let first_ns = sources.iter().map(|source| source.started_ns).min().unwrap_or(0);
    let all = sources.iter().map(|source| source.samples).fold(0, u64::saturating_add);
    let whole = WholeProfile::create(output, force)?;
    let mut target = Target::new(whole.connection(), output);
    let mut vms = Vec::new();
    let mut errors = BTreeMap::new();
    for (source, id) in sources.iter().zip(1_u32..) {
        let profile = Profile::open(&source.path)?;
        let _snapshot = profile.snapshot()?;
        if !source.is_same(&Source::read(&profile)?) {
            return Err(MergeError::Changed(source.path.clone()));
        }
        let from_ns = source.started_ns - first_ns;
        let before = target.samples();
        let copy = SourceCopy { profile: &profile, source, vm: id, from_ns };
        let vcpus = target.copy(&copy, &mut |done| progress(done, all))?;
        errors.extend(guest_errors(source, &vcpus));
        vms.push(MergedVm {
            name: source.name.clone(),
            host: source.host().map(str::to_owned),
            profile: source.path.clone(),
            from_s: crate::numbers::seconds(from_ns),
            vcpus: vcpus.len() as u64,
            samples: target.samples() - before,
        });
    }
    let duration_ns = sources.iter().map(|source| source.started_ns - first_ns + source.duration_ns).max();
    let duration_ns = duration_ns.unwrap_or(0);
    errors.extend(meta(&sources, (first_ns, duration_ns)));
    write_meta(whole.connection(), &errors).map_err(|error| MergeError::write(output, &error))?;
    let samples = target.samples();
    whole.place()?;
    progress(all, all);
    Ok(Merged { vms, duration_s: crate::numbers::seconds(duration_ns), samples })
}

/// Reads what each profile is, and returns them in the order of their starts, with names that differ.
fn inspected(paths: &[PathBuf], output: &Path) -> Result<Vec<Source>, MergeError> {
    let mut sources = Vec::with_capacity(paths.len());
    for path in paths {
        if source::is_same_file(path, output) {
            return Err(MergeError::OutputIsSource(path.clone()));
        }
        let profile = Profile::open(path)?;
        let _snapshot = profile.snapshot()?;
        if profile.is_merged()? {
            return Err(MergeError::Merged(path.clone()));
        }
        sources.push(Source::read(&profile)?);
    }
    let mut known: HashMap<_, &Path> = HashMap::new();
    for source in &sources {
        if let Some(other) = known.insert(source.identity(), &source.path) {
            return Err(MergeError::SameRun(other.to_owned(), source.path.clone()));
        }
    }
    sources.sort_by(|a, b| (a.started_ns, &a.path).cmp(&(b.started_ns, &b.path)));
    let first_ns = sources.first().map_or(0, |source| source.started_ns);
    for source in &sources {
        let end_ns = (source.started_ns - first_ns).checked_add(source.duration_ns);
        if end_ns.is_none_or(|end_ns| i64::try_from(end_ns).is_err()) {
            return Err(MergeError::Times(source.path.clone()));
        }
    }
    source::distinguish(&mut sources);
    Ok(sources)
}

/// Returns the errors of estimated times in the guest, by the new numbers of the vCPUs.
fn guest_errors<'a>(
    source: &'a Source,
    vcpus: &'a [(i64, u32)],
) -> impl Iterator<Item = (String, String)> + 'a {
    vcpus.iter().filter_map(|(old, new)| {
        let error = source.meta.get(&guest_error_key(u16::try_from(*old).ok()?))?;
        Some((guest_error_key(u16::try_from(*new).ok()?), error.clone()))
    })
}

/// Returns the rows of `meta` of all sources together.
fn meta(sources: &[Source], (first_ns, duration_ns): (u64, u64)) -> BTreeMap<String, String> {
    let common = |key: &str| {
        let first = sources.first()?.meta.get(key)?;
        sources.iter().all(|source| source.meta.get(key) == Some(first)).then(|| first.clone())
    };
    let mixed = |key: &str| common(key).unwrap_or_else(|| MIXED.to_owned());
    let sum = |key: &str| sources.iter().map(|source| source.number(key)).fold(0, u64::saturating_add);
    let vcpus: u64 = sources.iter().map(|source| source.vcpus).sum();
    let rates = sources.iter().map(|source| source.rate_hz * part(source.vcpus, vcpus)).sum::<f64>();
    let rate = common("rate_hz").unwrap_or_else(|| rates.to_string());
    let mut meta = vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        (MERGED, sources.len().to_string()),
        ("started_unix_ns", first_ns.to_string()),
        ("duration_ns", duration_ns.to_string()),
        ("rate_hz", rate),
        ("clock", mixed("clock")),
        ("host", mixed("host")),
        ("vcpus", vcpus.to_string()),
        ("samples_without_stack", sum("samples_without_stack").to_string()),
        ("unavailable", format!("Exits, interrupts and KVM's counters are not shown: {ONE_VM}.")),
        ("exact_missing", ONE_VM.to_owned()),
        ("task_scan_missing", ONE_VM.to_owned()),
    ];
    meta.extend(["kernel", "hardirq_bits"].into_iter().filter_map(|key| Some((key, common(key)?))));
    if sources.iter().all(Source::is_complete) {
        meta.push(("complete", "1".to_owned()));
    }
    meta.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn write_meta(connection: &Connection, meta: &BTreeMap<String, String>) -> rusqlite::Result<()> {
    let mut insert = connection.prepare("INSERT OR REPLACE INTO meta VALUES (?, ?)")?;
    for (key, value) in meta {
        insert.execute(params![key, value])?;
    }
    Ok(())
}

/// Returns the sentences about a source that readers of the merged profile must see.
fn warnings(source: &Source) -> impl Iterator<Item = String> {
    let ended = (!source.is_complete()).then(|| "its run did not end properly".to_owned());
    let missing = source.meta.get("unavailable").cloned();
    let emulated = source.meta.get("host").is_some_and(|host| is_emulated(host));
    let emulated = emulated.then(|| "its host was emulated: its times are not those of a machine".to_owned());
    ended.into_iter().chain(missing).chain(emulated)
}
