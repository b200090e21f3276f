//! Debug files from debuginfod servers, for builds that neither guest nor host has a debug file of.
//!
//! Off unless the user set `DEBUGINFOD_URLS`. Shares the cache of debuginfod-find, so that files that gdb
//! fetched are not fetched again: `CACHE/BUILDID/debuginfo`, empty when servers did not have it.

mod http;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::elf::{BuildId, ReadAt};
use crate::names::{DebugSource, DebugSourceError};

use self::http::{HttpError, Limits};

/// Seconds without enough of an answer, as debuginfod-find has it (debuginfod_find_debuginfo(3)).
const TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes of a debug file, at most.
const MAX_SIZE: u64 = 1 << 30;
/// Time for which servers are not asked again for files that they did not have (`cache_miss_s`, the same
/// page).
const MISS: Duration = Duration::from_secs(600);
/// Servers that are asked, at most.
const MAX_SERVERS: usize = 16;

/// A client of debuginfod servers.
#[derive(Debug)]
pub struct Debuginfod {
    urls: Vec<String>,
    cache: PathBuf,
    limits: Limits,
}

impl Debuginfod {
    /// Returns a client as the environment configures it: `DEBUGINFOD_URLS` (separated by blanks),
    /// `DEBUGINFOD_CACHE_PATH`, `DEBUGINFOD_TIMEOUT` (seconds). `None` when the user wants no server, or
    /// there is no place for the cache.
    pub fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let urls: Vec<String> =
            text("DEBUGINFOD_URLS")?.split_whitespace().take(MAX_SERVERS).map(str::to_owned).collect();
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = path("DEBUGINFOD_CACHE_PATH")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("debuginfod_client")))
            .or_else(|| Some(path("HOME")?.join(".cache/debuginfod_client")))?;
        let seconds =
            text("DEBUGINFOD_TIMEOUT").and_then(|value| value.trim().parse().ok()).filter(|s| *s > 0);
        let timeout = seconds.map_or(TIMEOUT, Duration::from_secs);
        (!urls.is_empty()).then_some(Self { urls, cache, limits: Limits { timeout, most: MAX_SIZE } })
    }

    /// Returns the answer of the cache: the file, or `None` inside when servers did not have it a short while
    /// ago.
    fn cached(&self, path: &Path) -> Option<Option<File>> {
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        if metadata.len() > 0 {
            return Some(Some(file));
        }
        let age = SystemTime::now().duration_since(metadata.modified().ok()?).unwrap_or_default();
        (age < MISS).then_some(None)
    }

    /// Fetches to a file next to `path`, then renames it: readers of the cache never see half a file.
    fn fetch(&self, id: &BuildId, path: &Path) -> Result<Option<File>, DebugSourceError> {
        let unwritable = |error: io::Error| DebugSourceError::Cache { path: path.to_owned(), error };
        let directory = path.parent().unwrap_or(&self.cache);
        fs::create_dir_all(directory).map_err(unwritable)?;
        let partial = directory.join(format!("debuginfo.vprof-{}", std::process::id()));
        let mut reasons = Vec::new();
        for url in &self.urls {
            let mut file = File::create(&partial).map_err(unwritable)?;
            match get(url, id, self.limits, &mut file) {
                Ok(true) => {
                    fs::rename(&partial, path).map_err(unwritable)?;
                    return File::open(path).map(Some).map_err(unwritable);
                }
                Ok(false) => {}
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if !reasons.is_empty() {
            let _ = fs::remove_file(&partial);
            return Err(DebugSourceError::Servers(reasons));
        }
        File::create(&partial).and_then(|_| fs::rename(&partial, path)).map_err(unwritable)?;
        Ok(None)
    }
}

fn get(url: &str, id: &BuildId, limits: Limits, out: &mut dyn Write) -> Result<bool, HttpError> {
    http::get(&format!("{}/buildid/{id}/debuginfo", url.trim_end_matches('/')), limits, out)
}

impl DebugSource for Debuginfod {
    fn name(&self) -> String {
        "debuginfod".into()
    }

    fn find(&self, build_id: &BuildId) -> Result<Option<Box<dyn ReadAt>>, DebugSourceError> {
        let path = self.cache.join(build_id.to_string()).join("debuginfo");
        let found = match self.cached(&path) {
            Some(known) => known,
            None => self.fetch(build_id, &path)?,
        };
        Ok(found.map(|file| Box::new(file) as Box<dyn ReadAt>))
    }
}
