//! Receivers of OpenTelemetry profiles (OTLP 1.10: opentelemetry.io/docs/specs/otlp).
//!
//! A request is repeated while the receiver says that it may succeed later, after the time that it gives or
//! after one that doubles, and within [`RETRY_LIMIT`].

use std::io::Read;
use std::time::{Duration, Instant, SystemTime};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_client::ProfilesServiceClient;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use tokio::runtime::Runtime;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use crate::address::{OtlpAddress, OtlpTransport};
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
/// Longest request, bytes: vprof makes them smaller than 4 MiB, the limit of collectors.
const LONGEST_REQUEST: u64 = 64 << 20;
/// Time before the second attempt, on average; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A receiver of profiles.
#[derive(Debug)]
pub struct OtlpSink {
    address: OtlpAddress,
    client: Client,
    runtime: Runtime,
}

#[derive(Debug)]
enum Client {
    Http { client: reqwest::Client, url: String },
    Grpc { client: Box<ProfilesServiceClient<Channel>>, headers: MetadataMap },
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
        let url = format!("{scheme}://{}{}", address.authority, address.path);
        let client = match address.transport {
            OtlpTransport::Http => {
                let client = reqwest::Client::builder()
                    .default_headers(headers)
                    .user_agent(USER_AGENT)
                    // Headers have credentials, which are for this receiver.
                    .redirect(Policy::none())
                    .connect_timeout(CONNECT_LIMIT)
                    .timeout(REQUEST_LIMIT)
                    .build()
                    .map_err(|error| failed(innermost(&error)))?;
                Client::Http { client, url: format!("{url}{SERVICE}") }
            }
            OtlpTransport::Grpc => {
                let wrong = |error: tonic::transport::Error| failed(innermost(&error));
                let mut endpoint = Endpoint::from_shared(url)
                    .and_then(|endpoint| endpoint.user_agent(USER_AGENT))
                    .map_err(wrong)?
                    .connect_timeout(CONNECT_LIMIT)
                    .timeout(REQUEST_LIMIT);
                if address.is_secure {
                    let tls = ClientTlsConfig::new().with_native_roots();
                    endpoint = endpoint.tls_config(tls).map_err(wrong)?;
                }
                // Tasks of the connection belong to the runtime.
                let channel = runtime.block_on(async { endpoint.connect_lazy() });
                let client = ProfilesServiceClient::new(channel).send_compressed(CompressionEncoding::Gzip);
                Client::Grpc { client: Box::new(client), headers: MetadataMap::from_headers(headers) }
            }
        };
        Ok(Self { address: address.clone(), client, runtime })
    }

    /// Sends a request, encoded and compressed by gzip. `name` is for messages.
    ///
    /// # Errors
    /// See [`SinkError`]. After [`SinkError::Failed`] the receiver may have the request, if only its answer
    /// was lost.
    pub fn export(&mut self, name: &str, zipped: &[u8]) -> Result<Accepted, SinkError> {
        let Self { address, client, runtime } = self;
        let sent = runtime.block_on(client.export(zipped));
        let (address, name) = (address.to_string(), name.to_owned());
        let response = sent.map_err(|Failure { fate, reason }| match fate {
            Fate::Never => SinkError::Refused { address, name, reason },
            Fate::Again(after) => SinkError::Failed { address, name, reason, after },
            Fate::Later => SinkError::Failed { address, name, reason, after: None },
        })?;
        let partial = response.partial_success.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_profiles).unwrap_or(0);
        Ok(Accepted { rejected, words: words(&partial.error_message) })
    }
}

impl Client {
    /// Sends a request until it succeeds, or may not be repeated.
    async fn export(&mut self, zipped: &[u8]) -> Result<ExportProfilesServiceResponse, Failure> {
        let (begin, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let sent = match self {
                Self::Http { client, url } => post(client, url, zipped).await,
                Self::Grpc { client, headers } => call(client, headers, zipped).await,
            };
            let failure = match sent {
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
}

/// Sends a request by HTTP.
async fn post(
    client: &reqwest::Client,
    url: &str,
    zipped: &[u8],
) -> Result<ExportProfilesServiceResponse, Failure> {
    let request = client
        .post(url)
        .header(CONTENT_TYPE, PROTOBUF)
        .header(CONTENT_ENCODING, "gzip")
        .body(zipped.to_vec());
    let lost = |error: reqwest::Error| {
        let reason =
            if error.is_timeout() { "it has not answered in time".to_owned() } else { innermost(&error) };
        if is_certificate(&error) { untrusted(&reason) } else { Failure { fate: Fate::Again(None), reason } }
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
        tonic_types::Status::decode(body.as_slice()).map(|status| status.message).unwrap_or_default()
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

/// Returns the time that `Retry-After` asks for: seconds, or a date of HTTP (RFC 9110, section 10.2.3).
fn retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Sends a request by gRPC.
async fn call(
    client: &mut ProfilesServiceClient<Channel>,
    headers: &MetadataMap,
    zipped: &[u8],
) -> Result<ExportProfilesServiceResponse, Failure> {
    let mut bytes = Vec::new();
    let unzipped = GzDecoder::new(zipped).take(LONGEST_REQUEST).read_to_end(&mut bytes);
    let message = unzipped.ok().and_then(|_| ExportProfilesServiceRequest::decode(bytes.as_slice()).ok());
    let damaged = || Failure { fate: Fate::Never, reason: "the request is damaged".to_owned() };
    let mut request = Request::new(message.ok_or_else(damaged)?);
    *request.metadata_mut() = headers.clone();
    client.export(request).await.map(tonic::Response::into_inner).map_err(|status| refused(&status))
}

/// Returns the failure of a receiver whose certificate is not accepted.
fn untrusted(reason: &str) -> Failure {
    let reason = format!("{reason} (SSL_CERT_FILE names other authorities than the system's)");
    Failure { fate: Fate::Later, reason }
}

/// Returns the failure of an answer of gRPC.
fn refused(status: &Status) -> Failure {
    let source = std::error::Error::source(status);
    if let Some(error) = source.filter(|error| is_certificate(*error)) {
        return untrusted(&innermost(error));
    }
    let after = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let fate = match status.code() {
        // "Retryable gRPC status codes" of the specification; the first only if the receiver says when.
        Code::ResourceExhausted if after.is_some() => Fate::Again(after),
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Fate::Again(after),
        Code::InvalidArgument | Code::ResourceExhausted => Fate::Never,
        _ => Fate::Later,
    };
    // Of a connection that has failed, the cause says more.
    let said = match source {
        Some(source) => innermost(source),
        None => words(status.message()),
    };
    let hint = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => format!(" (give credentials in {HEADERS})"),
        Code::Unimplemented => " (the receiver has to take profiles)".to_owned(),
        _ => String::new(),
    };
    let name = words(status.code().description()).to_lowercase();
    Failure { fate, reason: format!("{name}{}{hint}", after_colon(&said)) }
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
