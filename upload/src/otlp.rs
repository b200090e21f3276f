//! Receivers of OpenTelemetry profiles (OTLP 1.10: opentelemetry.io/docs/specs/otlp).
//!
//! A request is repeated while the receiver says that it may succeed later, after the time that it gives or
//! after one that doubles, and within [`RETRY_LIMIT`].

use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use tokio::runtime::Runtime;

use crate::address::OtlpAddress;
use crate::error::{SinkError, innermost, is_certificate, words};
use crate::{CONNECT_LIMIT, REQUEST_LIMIT, RETRY_LIMIT, USER_AGENT, runtime};

/// Environment variable with headers of requests, as of OpenTelemetry's exporters: `name=value,name=value`,
/// with values encoded as in URLs (opentelemetry.io/docs/specs/otel/protocol/exporter).
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Path of the service below that of the address.
const SERVICE: &str = "/v1development/profiles";
const PROTOBUF: &str = "application/x-protobuf";
/// Longest answer that is read, bytes.
const LONGEST_ANSWER: usize = 64 << 10;
/// Time before the second attempt, on average; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A receiver of profiles.
#[derive(Debug)]
pub struct OtlpSink {
    address: OtlpAddress,
    client: reqwest::Client,
    url: String,
    runtime: Runtime,
}

/// Answer to a request that has succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Profiles of the request that the receiver has rejected.
    pub rejected: u64,
    /// Its words about them, or a warning; often empty.
    pub words: String,
}

/// Fate of a request that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It may succeed soon, after the time that the receiver gives.
    Again(Option<Duration>),
    /// It may succeed once something has changed.
    Later,
    /// It cannot succeed.
    Never,
}

/// What a receiver says of a failure: `google.rpc.Status` (google/rpc/status.proto), only its words.
#[derive(Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

/// A request that has failed.
#[derive(Debug)]
struct Failure {
    fate: Fate,
    reason: String,
}

impl OtlpSink {
    /// Makes a client.
    ///
    /// # Errors
    /// [`SinkError::Settings`]. Nothing is sent.
    pub fn new(address: &OtlpAddress) -> Result<Self, SinkError> {
        let failed = |reason: String| SinkError::Settings { address: address.to_string(), reason };
        let runtime = runtime().map_err(|error| failed(error.to_string()))?;
        let headers = headers(&std::env::var(HEADERS).unwrap_or_default())
            .ok_or_else(|| failed(format!("{HEADERS} is not name=value,name=value")))?;
        let scheme = if address.is_secure { "https" } else { "http" };
        let url = format!("{scheme}://{}{}{SERVICE}", address.authority, address.path);
        let client = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(USER_AGENT)
            // Headers have credentials, which are for this receiver.
            .redirect(Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .timeout(REQUEST_LIMIT)
            .build()
            .map_err(|error| failed(innermost(&error)))?;
        Ok(Self { address: address.clone(), client, url, runtime })
    }

    /// Sends a request, encoded and compressed by gzip. `name` is for messages.
    ///
    /// # Errors
    /// See [`SinkError`]. After [`SinkError::Failed`] the receiver may have the request, if only its answer
    /// was lost.
    pub fn export(&self, name: &str, zipped: &[u8]) -> Result<Accepted, SinkError> {
        let sent = self.runtime.block_on(self.send(zipped));
        let (address, name) = (self.address.to_string(), name.to_owned());
        let response = sent.map_err(|Failure { fate, reason }| match fate {
            Fate::Never => SinkError::Refused { address, name, reason },
            Fate::Again(after) => SinkError::Failed { address, name, reason, after },
            Fate::Later => SinkError::Failed { address, name, reason, after: None },
        })?;
        let partial = response.partial_success.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_profiles).unwrap_or(0);
        Ok(Accepted { rejected, words: words(&partial.error_message) })
    }

    /// Sends a request until it succeeds, or may not be repeated.
    async fn send(&self, zipped: &[u8]) -> Result<ExportProfilesServiceResponse, Failure> {
        let (begin, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let failure = match self.post(zipped).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let Fate::Again(after) = failure.fate else { return Err(failure) };
            // All agents of a fleet send at the same time, the end of a window.
            let wait = after.unwrap_or_else(|| pause.mul_f64(rand::random_range(0.5..1.5)));
            if begin.elapsed().saturating_add(wait) > RETRY_LIMIT {
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Sends a request once.
    async fn post(&self, zipped: &[u8]) -> Result<ExportProfilesServiceResponse, Failure> {
        let request = self
            .client
            .post(&self.url)
            .header(CONTENT_TYPE, PROTOBUF)
            .header(CONTENT_ENCODING, "gzip")
            .body(zipped.to_vec());
        let lost = |error: reqwest::Error| {
            let reason =
                if error.is_timeout() { "it has not answered in time".to_owned() } else { innermost(&error) };
            if is_certificate(&error) {
                untrusted(&reason)
            } else {
                Failure { fate: Fate::Again(None), reason }
            }
        };
        let mut answer = request.send().await.map_err(lost)?;
        let status = answer.status();
        let is_protobuf = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == PROTOBUF);
        let after = answer.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(lost)? {
            if body.len() + part.len() > LONGEST_ANSWER {
                break;
            }
            body.extend_from_slice(&part);
        }
        if status.is_success() {
            let other = |_| Failure {
                fate: Fate::Later,
                reason: "its answer is not one of OTLP: check host, port and path".to_owned(),
            };
            return ExportProfilesServiceResponse::decode(body.as_slice()).map_err(other);
        }
        let fate = match status.as_u16() {
            // "Retryable Response Codes".
            429 | 502 | 503 | 504 => Fate::Again(after),
            400 | 413 | 415 | 422 => Fate::Never,
            _ => Fate::Later,
        };
        let said = if is_protobuf {
            RpcStatus::decode(body.as_slice()).map(|status| status.message).unwrap_or_default()
        } else {
            String::from_utf8_lossy(&body).into_owned()
        };
        let hint = match status.as_u16() {
            401 | 403 => format!(" (give credentials in {HEADERS})"),
            404 | 405 => " (check the address; the receiver has to take profiles)".to_owned(),
            _ => String::new(),
        };
        Err(Failure { fate, reason: format!("status {status}{}{hint}", after_colon(&said)) })
    }
}

/// Returns the time that `Retry-After` asks for: seconds, or a date of HTTP (RFC 9110, section 10.2.3).
fn retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Returns the failure of a receiver whose certificate is not accepted.
fn untrusted(reason: &str) -> Failure {
    let reason = format!("{reason} (SSL_CERT_FILE names other authorities than the system's)");
    Failure { fate: Fate::Later, reason }
}

fn after_colon(said: &str) -> String {
    let said = words(said);
    if said.is_empty() { said } else { format!(": {said}") }
}

/// Reads headers; `None` if the text has another form.
fn headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&decoded(value.trim())?).ok()?;
        value.set_sensitive(true);
        headers.insert(name.trim().parse::<HeaderName>().ok()?, value);
    }
    Some(headers)
}

/// Replaces `%20` and the like by their bytes (RFC 3986, section 2.1).
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        let is_hex = code.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(code, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}
