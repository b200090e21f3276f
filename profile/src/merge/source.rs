//! A profile that is merged: its identity and its facts.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use statistics::clock::ClockKind;
use statistics::estimate::ONE_CLOCK;

use super::MergeError;
use crate::rows::HOSTNAME;
use crate::store::{Profile, ProfileError};

/// Largest number of rows of `meta`: a run has a few dozen, and some for each vCPU.
const MOST_META: u32 = 4_096;
/// Longest name of a virtual machine, characters.
const LONGEST_NAME: usize = 100;

/// A profile that is merged.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub path: PathBuf,
    /// Name of the virtual machine.
    pub name: String,
    pub meta: BTreeMap<String, String>,
    /// Start of the run, ns since 1970.
    pub started_ns: u64,
    /// Length of the run, ns.
    pub duration_ns: u64,
    /// Mean rate that was requested, per vCPU.
    pub rate_hz: f64,
    pub vcpus: u64,
    /// Samples according to table `vcpu`.
    pub samples: u64,
}

/// Identity of a run: its start, and the seed of its clock, which is random.
pub(super) type Run = (u64, Option<String>);

impl Source {
    /// Reads the facts of a profile.
    pub(super) fn read(profile: &Profile) -> Result<Self, MergeError> {
        let path = profile.path().to_owned();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let connection = profile.connection();
        let read = || {
            let mut statement = connection.prepare("SELECT key, value FROM meta ORDER BY key LIMIT ?")?;
            let rows = statement.query_map([MOST_META + 1], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<BTreeMap<String, String>>>()
        };
        let meta = read().map_err(sql)?;
        if meta.len() > MOST_META as usize {
            let reason = format!("its table meta has more than {MOST_META} rows");
            return Err(ProfileError::Damaged { path, reason }.into());
        }
        let counts = "SELECT count(*), coalesce(sum(max(samples, 0)), 0) FROM vcpu";
        let (vcpus, samples): (i64, i64) =
            connection.query_row(counts, [], |row| Ok((row.get(0)?, row.get(1)?))).map_err(sql)?;
        let mut source = Self {
            name: String::new(),
            meta,
            started_ns: 0,
            duration_ns: 0,
            rate_hz: 0.0,
            vcpus: vcpus.max(0).cast_unsigned(),
            samples: samples.max(0).cast_unsigned(),
            path,
        };
        source.started_ns = source.number("started_unix_ns");
        source.duration_ns = source.number("duration_ns");
        let rate = source.meta.get("rate_hz").and_then(|rate| rate.parse::<f64>().ok());
        source.rate_hz = rate.filter(|rate| rate.is_finite() && *rate >= 0.0).unwrap_or(0.0);
        source.name = source.own_name();
        if source.started_ns == 0 { Err(MergeError::NotStarted(source.path)) } else { Ok(source) }
    }

    /// Returns the name of an attached virtual machine, or that of the profile's file.
    fn own_name(&self) -> String {
        let attached = self.meta.get("host").is_some_and(|host| host == "attached");
        let label = self.meta.get("image").filter(|label| attached && !label.is_empty());
        let stem =
            || self.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let name = label.cloned().unwrap_or_else(stem);
        name.chars().take(LONGEST_NAME).collect()
    }

    /// Returns a number of `meta`; 0 if it is absent.
    pub(super) fn number(&self, key: &str) -> u64 {
        self.meta.get(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Returns the name of the host.
    pub(super) fn host(&self) -> Option<&str> {
        self.meta.get(HOSTNAME).map(String::as_str)
    }

    /// Returns the name of its sampling clock.
    pub(super) fn clock(&self) -> &'static str {
        ClockKind::from_meta(self.meta.get("clock").map(String::as_str)).name()
    }

    /// True if one clock ticks all vCPUs.
    pub(super) fn has_one_clock(&self) -> bool {
        self.meta.get(ONE_CLOCK).is_some_and(|value| value == "1")
    }

    /// True if the run ended properly.
    pub(super) fn is_complete(&self) -> bool {
        self.meta.get("complete").is_some_and(|value| value == "1")
    }

    /// Returns the identity of its run, which a copy of the profile has, too.
    pub(super) fn identity(&self) -> Run {
        (self.started_ns, self.meta.get("seed").cloned())
    }

    /// True if the other reading is of the same run at the same time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.duration_ns == other.duration_ns
    }
}

/// True if both names are of the same file.
pub(super) fn is_same_file(path: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(path).is_some_and(|own| identity(other) == Some(own))
}

/// Gives virtual machines of the same name numbers: `web`, `web#2`, `web#3`.
pub(super) fn distinguish(sources: &mut [Source]) {
    let mut known: HashSet<String> = HashSet::new();
    for source in sources {
        let own = source.name.clone();
        let mut number = 1_u32;
        while !known.insert(source.name.clone()) {
            number += 1;
            source.name = format!("{own}#{number}");
        }
    }
}
