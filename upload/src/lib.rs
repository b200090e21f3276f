//! Sinks of `vprof agent` on the network: object stores with the interface of S3, and receivers of
//! OpenTelemetry profiles.
//!
//! ```text
//! files of a window ──▶ ObjectSink::put ──▶ PUT http(s)://ENDPOINT/BUCKET/PREFIX/v1/TABLE/...
//! requests ───────────▶ OtlpSink::export ─▶ POST http(s)://HOST/v1development/profiles
//! ```
//!
//! The clients are asynchronous. This crate alone knows it: its functions block until a request has
//! succeeded, or has failed for good within bounded time and number of attempts. Who calls keeps the data
//! until then, and tries again later. Certificates are checked by the system's authorities; TLS is `rustls`
//! with `ring`.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod address;
mod error;
mod object;
mod otlp;

pub use address::{AddressError, BucketAddress, OtlpAddress, SinkAddress};
pub use error::SinkError;
pub use object::ObjectSink;
pub use otlp::{Accepted, OtlpSink};

use std::time::Duration;

/// Version of the protocol's definition (`opentelemetry-proto`) that requests follow.
pub const OTLP_VERSION: &str = "1.10.0";

/// Beginnings of the names of environment variables that have credentials for sinks.
pub const SECRET_VARIABLES: [&str; 2] = ["AWS_", "OTEL_"];

/// Time limit of a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time limit of a request, from its begin until its answer has ended.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// No attempt begins later than this after the first one.
const RETRY_LIMIT: Duration = Duration::from_secs(60);
/// Name of the program in requests.
const USER_AGENT: &str = concat!("vprof/", env!("CARGO_PKG_VERSION"));

/// Makes the runtime of a sink: one thread, the caller's.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // Clients of TLS take the default of the process; the first one stays.
    let _first = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
