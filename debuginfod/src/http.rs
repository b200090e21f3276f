//! One GET over HTTP or HTTPS: a status, and a body to a file. Time and size are bounded.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use display::message::Reason;
use ureq::http::{Response, Version};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Redirections that are followed.
const MAX_REDIRECTS: u32 = 3;
/// Bytes that must come within one timeout (debuginfod-client-config(7), `DEBUGINFOD_TIMEOUT`).
const MIN_BYTES: u64 = 100 << 10;
/// Bytes of one read.
const BUFFER_BYTES: usize = 64 << 10;

/// Reason why a GET failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection or the exchange failed.
    #[error("{url}: {}", sentence(.error))]
    Exchange {
        /// The URL.
        url: String,
        /// The reason.
        error: ureq::Error,
    },
    /// No certificate of an authority to check a server's certificate by.
    #[error("{url}: no certificates of authorities were found: name them in SSL_CERT_FILE{reasons}")]
    NoAuthorities {
        /// The URL.
        url: String,
        /// Why files could not be read.
        reasons: String,
    },
    /// Neither 200 nor 404.
    #[error("{url}: the server answered {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: u16,
    },
    /// The end of the connection would be the end of the body: a cut one would look whole.
    #[error("{0}: the answer has no length")]
    NoLength(String),
    /// The body is larger than the bound.
    #[error("{url}: more than {max_bytes} bytes")]
    TooLarge {
        /// The URL.
        url: String,
        /// The bound.
        max_bytes: u64,
    },
    /// The body comes too slowly.
    #[error("{url}: timed out: less than 100 KiB in {} s", .timeout.as_secs())]
    TooSlow {
        /// The URL.
        url: String,
        /// Time for 100 KiB.
        timeout: Duration,
    },
    /// The body cannot be written.
    #[error("{}", Reason(.0))]
    Write(io::Error),
}

fn sentence(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => Reason(error).to_string(),
        ureq::Error::Timeout(part) => format!("timed out ({part})"),
        ureq::Error::Protocol(error) => format!("the answer is not HTTP: {error}"),
        ureq::Error::RequireHttpsOnly(url) => format!("the server redirects to {url}, without TLS"),
        error => error.to_string(),
    }
}

impl HttpError {
    /// True if a second try may succeed: not after a timeout, which may be long, or a refused certificate.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Exchange { error: ureq::Error::Io(error), .. } => {
                error.kind() != io::ErrorKind::InvalidData
            }
            Self::Exchange { error: ureq::Error::ConnectionFailed, .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

/// True if the end of the body is known from the body, not from the end of the connection. Chunks need
/// HTTP/1.1 (RFC 9112, section 6.1).
fn has_end(answer: &Response<Body>) -> bool {
    let mut encodings = answer.headers().get_all("transfer-encoding").iter();
    let is_chunked = answer.version() == Version::HTTP_11 && encodings.any(|encoding| encoding == "chunked");
    is_chunked || answer.body().content_length().is_some()
}

/// Limits of a GET: time and size. `None` turns a limit off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// No answer, or less than 100 KiB of it, within this time ends the GET.
    pub timeout: Option<Duration>,
    /// Time of the whole GET, at most.
    pub max_time: Option<Duration>,
    /// Bytes of the body, at most.
    pub max_bytes: Option<u64>,
}

/// Certificates of the authorities that servers are checked by.
#[derive(Debug)]
pub struct Authorities {
    certificates: Vec<Certificate<'static>>,
    /// Why files could not be read, for a message; empty if all were read.
    reasons: String,
}

impl From<rustls_native_certs::CertificateResult> for Authorities {
    fn from(result: rustls_native_certs::CertificateResult) -> Self {
        let certificates =
            result.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
        let reasons = result.errors.iter().map(|error| format!("; {error}")).collect();
        Self { certificates, reasons }
    }
}

/// Progress of a download.
#[derive(Debug)]
pub struct DownloadProgress<'a> {
    /// URL of the file.
    pub url: &'a str,
    /// Bytes so far.
    pub bytes: u64,
    /// All bytes, if the server reports them.
    pub total: Option<u64>,
}

/// HTTP client with its limits and headers.
#[derive(Debug)]
pub struct HttpClient {
    /// For URLs with http://, which may redirect to https://.
    plain: Agent,
    /// For URLs with https://, which may not redirect to http://.
    tls: Agent,
    limits: HttpLimits,
    headers: Vec<(String, String)>,
    /// Message if no server's certificate can be checked.
    no_authorities: Option<String>,
}

impl HttpClient {
    /// Makes a client that sends `headers` with each request.
    pub fn new(limits: HttpLimits, headers: Vec<(String, String)>, authorities: Authorities) -> Self {
        let no_authorities = authorities.certificates.is_empty().then_some(authorities.reasons);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls_config = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(authorities.certificates)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let agent = |https_only| {
            Agent::config_builder()
                .https_only(https_only)
                .tls_config(tls_config.clone())
                .http_status_as_error(false)
                .max_redirects(MAX_REDIRECTS)
                .user_agent(concat!("vprof/", env!("CARGO_PKG_VERSION")))
                // A compressed body would have another size than the file.
                .accept_encoding("identity")
                .timeout_global(limits.max_time)
                .timeout_resolve(limits.timeout)
                .timeout_connect(limits.timeout)
                .timeout_send_request(limits.timeout)
                .timeout_recv_response(limits.timeout)
                .timeout_per_read(limits.timeout)
                .build()
                .new_agent()
        };
        Self { plain: agent(false), tls: agent(true), limits, headers, no_authorities }
    }

    /// Writes the body at `url` to `out` and returns true; false when the server does not have it (404).
    pub fn get(
        &self,
        url: &str,
        out: &mut dyn Write,
        progress: &dyn Fn(&DownloadProgress<'_>),
    ) -> Result<bool, HttpError> {
        let is_tls = url.starts_with("https://");
        if let (true, Some(reasons)) = (is_tls, &self.no_authorities) {
            return Err(HttpError::NoAuthorities { url: url.to_owned(), reasons: reasons.clone() });
        }
        let mut request = if is_tls { &self.tls } else { &self.plain }.get(url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(max) = self.limits.max_bytes {
            // The server refuses larger files with 406 (elfutils: debuginfod.cxx).
            request = request.header("X-DEBUGINFOD-MAXSIZE", max.to_string());
        }
        let answer = request.call().map_err(|error| HttpError::Exchange { url: url.to_owned(), error })?;
        match answer.status().as_u16() {
            200 if !has_end(&answer) => Err(HttpError::NoLength(url.to_owned())),
            200 => self.copy(url, answer.into_body(), out, progress).map(|()| true),
            404 => Ok(false),
            406 => Err(self.too_large(url)),
            status => Err(HttpError::Status { url: url.to_owned(), status }),
        }
    }

    fn too_large(&self, url: &str) -> HttpError {
        HttpError::TooLarge { url: url.to_owned(), max_bytes: self.limits.max_bytes.unwrap_or(u64::MAX) }
    }

    fn copy(
        &self,
        url: &str,
        body: Body,
        out: &mut dyn Write,
        progress: &dyn Fn(&DownloadProgress<'_>),
    ) -> Result<(), HttpError> {
        let total = body.content_length();
        let is_too_large = |bytes| self.limits.max_bytes.is_some_and(|max| bytes > max);
        if total.is_some_and(is_too_large) {
            return Err(self.too_large(url));
        }
        let mut body = body.into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut bytes, mut since, mut bytes_then) = (0, Instant::now(), 0);
        loop {
            progress(&DownloadProgress { url, bytes, total });
            let size = body
                .read(&mut buffer)
                .map_err(|error| HttpError::Exchange { url: url.to_owned(), error: error.into() })?;
            if size == 0 {
                return Ok(());
            }
            bytes += size as u64;
            if is_too_large(bytes) {
                return Err(self.too_large(url));
            }
            out.write_all(&buffer[..size]).map_err(HttpError::Write)?;
            match self.limits.timeout {
                // The reader itself ends a read without any byte after this time.
                Some(timeout) if bytes - bytes_then < MIN_BYTES && since.elapsed() >= timeout => {
                    return Err(HttpError::TooSlow { url: url.to_owned(), timeout });
                }
                _ if bytes - bytes_then >= MIN_BYTES => (since, bytes_then) = (Instant::now(), bytes),
                _ => {}
            }
        }
    }
}
