//! Configuration by the environment, as debuginfod-client-config(7) describes it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::http::{Authorities, HttpLimits};

/// `DEBUGINFOD_TIMEOUT` if unset, as elfutils has it.
const TIMEOUT: i64 = 90;
/// `DEBUGINFOD_RETRY_LIMIT` if unset, as elfutils has it.
const RETRIES: i64 = 2;
/// `DEBUGINFOD_MAXTIME` in seconds if unset; elfutils waits without end.
const MAX_TIME: i64 = 3600;
/// `DEBUGINFOD_MAXSIZE` if unset; elfutils takes any size.
const MAX_BYTES: i64 = 1 << 30;
/// Servers that are asked, at most.
const MAX_SERVERS: usize = 16;
/// Attempts after the first one, at most.
const MAX_RETRIES: i64 = 100;

/// Reason why a variable of the environment has no meaning.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A server that cannot be asked.
    #[error("DEBUGINFOD_URLS: {0}: only http:// and https:// are supported")]
    Scheme(String),
    /// A limit that is not a number.
    #[error("{name} is not a whole number: {value}")]
    Number {
        /// Name of the variable.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// The file of headers cannot be read.
    #[error("cannot read {path}, the file of DEBUGINFOD_HEADERS_FILE: {error}", path = .path.display())]
    Headers {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// A line of the file is not a header. The line may be a secret.
    #[error("{path}, the file of DEBUGINFOD_HEADERS_FILE: line {line} is not `Name: value`", path = .path.display())]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
}

/// Configuration of a client.
#[derive(Debug, PartialEq, Eq)]
pub struct DebuginfodConfig {
    /// Servers, in the order in which they are asked.
    pub urls: Vec<String>,
    /// Directory of the cache.
    pub cache: PathBuf,
    /// Attempts after the first one.
    pub retries: u32,
    /// Limits of one attempt.
    pub limits: HttpLimits,
    /// Names and values of additional headers.
    pub headers: Vec<(String, String)>,
}

impl DebuginfodConfig {
    /// Reads the variables. `None` without a server, or without a place for the cache.
    pub fn from_environment(
        variable: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, ConfigError> {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let urls = variable("DEBUGINFOD_URLS").unwrap_or_default();
        let urls = urls.to_string_lossy();
        // Policies for signatures of RPMs are not URLs. All files are checked by their build-id.
        let urls = urls.split_whitespace().filter(|word| !word.starts_with("ima:")).take(MAX_SERVERS);
        let urls: Vec<String> = urls.map(str::to_owned).collect();
        let home = path("HOME");
        // An older elfutils made it, and newer ones use it if it exists.
        let old = home.as_ref().map(|home| home.join(".debuginfod_client_cache"));
        let cache = path("DEBUGINFOD_CACHE_PATH")
            .or_else(|| old.filter(|old| old.is_dir()))
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("debuginfod_client")))
            .or_else(|| Some(home?.join(".cache/debuginfod_client")));
        let Some(cache) = cache.filter(|_| !urls.is_empty()) else { return Ok(None) };
        let has_scheme = |url: &&String| url.starts_with("http://") || url.starts_with("https://");
        if let Some(url) = urls.iter().find(|url| !has_scheme(url)) {
            return Err(ConfigError::Scheme(url.clone()));
        }
        let number = |name, usual| number(variable, name, usual);
        let seconds = |name, usual| Ok(positive(number(name, usual)?).map(Duration::from_secs));
        let retries = number("DEBUGINFOD_RETRY_LIMIT", RETRIES)?.clamp(0, MAX_RETRIES);
        Ok(Some(Self {
            urls,
            cache,
            retries: retries.try_into().unwrap_or_default(),
            limits: HttpLimits {
                timeout: seconds("DEBUGINFOD_TIMEOUT", TIMEOUT)?,
                max_time: seconds("DEBUGINFOD_MAXTIME", MAX_TIME)?,
                max_bytes: positive(number("DEBUGINFOD_MAXSIZE", MAX_BYTES)?),
            },
            headers: path("DEBUGINFOD_HEADERS_FILE").map(headers).transpose()?.unwrap_or_default(),
        }))
    }
}

fn number(
    variable: impl Fn(&str) -> Option<OsString>,
    name: &'static str,
    usual: i64,
) -> Result<i64, ConfigError> {
    let Some(value) = variable(name).filter(|value| !value.is_empty()) else { return Ok(usual) };
    let value = value.to_string_lossy();
    value.trim().parse().map_err(|_| ConfigError::Number { name, value: value.into_owned() })
}

/// Zero and negative numbers turn a limit off.
fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn headers(path: PathBuf) -> Result<Vec<(String, String)>, ConfigError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Err(ConfigError::Headers { path, error }),
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let header = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
            // RFC 9110, section 5.1: a name is a token. A value has no control characters (5.5).
            let is_token = |name: &str| {
                !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
            };
            match header {
                Some((name, value)) if is_token(name) && !value.chars().any(char::is_control) => {
                    Ok((name.to_owned(), value.to_owned()))
                }
                _ => Err(ConfigError::Header { path: path.clone(), line: index + 1 }),
            }
        })
        .collect()
}

/// Reads the certificates of authorities: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, else the system's.
pub fn authorities(variable: &impl Fn(&str) -> Option<OsString>) -> Authorities {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match (path("SSL_CERT_FILE"), path("SSL_CERT_DIR")) {
        (None, None) => rustls_native_certs::load_native_certs().into(),
        (file, directory) => {
            rustls_native_certs::load_certs_from_paths(file.as_deref(), directory.as_deref()).into()
        }
    }
}
