//! Debug files from debuginfod servers, for builds that neither guest nor host has a debug file of.
//!
//! Off unless the user set `DEBUGINFOD_URLS`. Shares the cache of debuginfod-find, so that files that gdb
//! fetched are not fetched again: `CACHE/BUILDID/debuginfo`, empty when servers did not have it.
//!
//! A crate for itself, because it talks to other machines, with TLS, and the process with the guest must not.
//! Only the crate `upload` does so, too.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod config;
mod http;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use symbols::elf::{BuildId, ReadAt};
use symbols::names::{DebugSource, DebugSourceError};

pub use self::config::ConfigError;
use self::config::DebuginfodConfig;
pub use self::http::DownloadProgress;
use self::http::{HttpClient, HttpError};

/// Time for which servers are not asked again for files that they did not have, unless the cache's own file
/// `cache_miss_s` says otherwise (debuginfod-client-config(7)).
const MISS: Duration = Duration::from_secs(600);

type ProgressFn = Box<dyn Fn(&DownloadProgress<'_>) + Send>;

/// A client of debuginfod servers.
pub struct Debuginfod {
    urls: Vec<String>,
    cache: PathBuf,
    retries: u32,
    http: HttpClient,
    progress: ProgressFn,
}

impl fmt::Debug for Debuginfod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debuginfod")
            .field("urls", &self.urls)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

impl Debuginfod {
    /// Returns a client as the environment configures it, by the variables of debuginfod-client-config(7).
    /// `None` when the user wants no server, or there is no place for the cache.
    ///
    /// # Errors
    /// A variable has no meaning.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(config) = DebuginfodConfig::from_environment(&variable)? else { return Ok(None) };
        let DebuginfodConfig { urls, cache, retries, limits, headers } = config;
        let authorities = config::authorities(&variable);
        let http = HttpClient::new(limits, headers, authorities);
        Ok(Some(Self { urls, cache, retries, http, progress: Box::new(|_| {}) }))
    }

    /// Calls `progress` before each read of a download.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(&DownloadProgress<'_>) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
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
        (age < self.miss_time()).then_some(None)
    }

    /// Returns the time for which a miss is remembered, which the user may set for all clients of the cache.
    fn miss_time(&self) -> Duration {
        let text = fs::read_to_string(self.cache.join("cache_miss_s")).ok();
        let seconds = text.and_then(|text| text.trim().parse().ok());
        seconds.map_or(MISS, Duration::from_secs)
    }

    /// Fetches to a file next to `path`, then renames it: readers of the cache never see half a file.
    fn fetch(&self, id: &BuildId, path: &Path) -> Result<Option<File>, DebugSourceError> {
        let unwritable = |error: io::Error| DebugSourceError::Cache { path: path.to_owned(), error };
        let directory = path.parent().unwrap_or(&self.cache);
        fs::create_dir_all(directory).map_err(unwritable)?;
        let partial = PartialFile(directory.join(format!("debuginfo.vprof-{}", std::process::id())));
        let mut reasons = Vec::new();
        for url in &self.urls {
            match self.get(&format!("{}/buildid/{id}/debuginfo", url.trim_end_matches('/')), &partial.0) {
                Ok(true) => {
                    fs::rename(&partial.0, path).map_err(unwritable)?;
                    return File::open(path).map(Some).map_err(unwritable);
                }
                Ok(false) => {}
                Err(HttpError::Write(error)) => return Err(unwritable(error)),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if !reasons.is_empty() {
            return Err(DebugSourceError::Servers(reasons));
        }
        File::create(&partial.0).and_then(|_| fs::rename(&partial.0, path)).map_err(unwritable)?;
        Ok(None)
    }

    /// Gets a URL into a file, in several attempts if the failure may pass.
    fn get(&self, url: &str, path: &Path) -> Result<bool, HttpError> {
        let attempt =
            || self.http.get(url, &mut File::create(path).map_err(HttpError::Write)?, &self.progress);
        let mut result = attempt();
        for _ in 0..self.retries {
            if !result.as_ref().is_err_and(HttpError::may_pass) {
                break;
            }
            result = attempt();
        }
        result
    }
}

/// File that is removed when dropped, unless it was renamed.
struct PartialFile(PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Renamed, or never made.
        let _ = fs::remove_file(&self.0);
    }
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
