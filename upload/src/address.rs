//! Addresses of sinks, as on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use display::clean::escaped;
use display::message::Shown;
use http::Uri;

/// Port of receivers (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Default Port").
const STANDARD_PORT: u16 = 4318;

/// Address of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SinkAddress {
    /// A directory.
    Directory(PathBuf),
    /// A bucket of an object store.
    Bucket(BucketAddress),
    /// A receiver of OpenTelemetry profiles.
    Otlp(OtlpAddress),
}

/// A bucket, and the beginning of the names of objects in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BucketAddress {
    /// Name of the bucket.
    pub bucket: String,
    /// Beginning of all names, without slashes at its ends; may be empty.
    pub prefix: String,
}

/// A receiver of OpenTelemetry profiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtlpAddress {
    /// True with TLS.
    pub is_secure: bool,
    /// Host and port.
    pub authority: String,
    /// Path before that of the service, without a slash at its end.
    pub path: String,
}

/// Reason why an address is none of a sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is nothing.
    #[error("name a directory, s3://BUCKET/PREFIX or otlp+http://HOST:PORT")]
    Empty,
    /// No sink has this scheme.
    #[error(
        "{0}:// is not a scheme of a sink: use s3://BUCKET/PREFIX, otlp+http:// or otlp+https:// with \
         HOST:PORT, or a directory"
    )]
    Scheme(String),
    /// The bucket is missing, or is not a name of one.
    #[error("{0} names no bucket: use s3://BUCKET/PREFIX, with letters, digits, dots and hyphens in BUCKET")]
    Bucket(String),
    /// Names of objects cannot begin so.
    #[error(
        "{0} has a prefix with an empty part, a part of dots, or a special character: use names like a/b"
    )]
    Prefix(String),
    /// The host or the port is missing or wrong.
    #[error("{0} names no host: use otlp+http://HOST:PORT; the standard port is 4318")]
    Host(String),
    /// The receiver's address has a name and a password.
    #[error("an address has no password: give headers of requests in OTEL_EXPORTER_OTLP_HEADERS")]
    Password,
}

impl FromStr for SinkAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Self::Directory(text.into())) };
        match scheme {
            "s3" => bucket(text, rest).map(Self::Bucket),
            "otlp+http" => otlp(text, rest, false).map(Self::Otlp),
            "otlp+https" => otlp(text, rest, true).map(Self::Otlp),
            other => Err(AddressError::Scheme(escaped(other).into_owned())),
        }
    }
}

fn bucket(text: &str, rest: &str) -> Result<BucketAddress, AddressError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.is_empty() || !bucket.chars().all(is_plain) {
        return Err(AddressError::Bucket(escaped(text).into_owned()));
    }
    let prefix = prefix.trim_end_matches('/');
    // Of an address in a query of SQL and in a URL alike: no part needs escapes in either.
    let is_name = |part: &str| {
        let is_plain = |c: char| is_plain(c) || "=+@,".contains(c);
        !part.is_empty() && part.chars().all(is_plain) && part.chars().any(|c| c != '.')
    };
    if !prefix.is_empty() && !prefix.split('/').all(is_name) {
        return Err(AddressError::Prefix(escaped(text).into_owned()));
    }
    Ok(BucketAddress { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

fn otlp(text: &str, rest: &str, is_secure: bool) -> Result<OtlpAddress, AddressError> {
    let wrong = || AddressError::Host(escaped(text).into_owned());
    let scheme = if is_secure { "https" } else { "http" };
    let uri: Uri = format!("{scheme}://{rest}").parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    if authority.as_str().contains('@') {
        return Err(AddressError::Password);
    }
    // A port that is not a number is not one.
    let port = match authority.as_str().strip_prefix(authority.host()) {
        Some("") => STANDARD_PORT,
        _ => authority.port_u16().filter(|port| *port > 0).ok_or_else(wrong)?,
    };
    if authority.host().is_empty() || uri.query().is_some() || rest.contains('#') {
        return Err(wrong());
    }
    let path = uri.path().trim_end_matches('/').to_owned();
    Ok(OtlpAddress { is_secure, authority: format!("{}:{port}", authority.host()), path })
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => Shown(path).fmt(f),
            Self::Bucket(address) => address.fmt(f),
            Self::Otlp(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.as_str() {
            "" => write!(f, "s3://{}", self.bucket),
            prefix => write!(f, "s3://{}/{prefix}", self.bucket),
        }
    }
}

impl fmt::Display for OtlpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "otlp+https" } else { "otlp+http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("/srv/lake", "/srv/lake"),
            ("lake", "lake"),
            ("s3:/odd", "s3:/odd"),
            ("s3://profiles", "s3://profiles"),
            ("s3://profiles/", "s3://profiles"),
            ("s3://my.profiles-1/a/b=c/", "s3://my.profiles-1/a/b=c"),
            ("otlp+http://collector", "otlp+http://collector:4318"),
            ("otlp+https://[::1]:443/otlp/", "otlp+https://[::1]:443/otlp"),
            ("otlp+https://10.0.0.1:1", "otlp+https://10.0.0.1:1"),
        ] {
            let address: SinkAddress = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        let error = |text: &str| text.parse::<SinkAddress>().unwrap_err();
        assert_eq!(error(""), AddressError::Empty);
        assert_eq!(error("gs://a"), AddressError::Scheme("gs".to_owned()));
        assert_eq!(error("http://a"), AddressError::Scheme("http".to_owned()));
        for text in ["s3://", "s3:///a", "s3://a b", "s3://a'b/c", "s3://ü"] {
            assert!(matches!(error(text), AddressError::Bucket(_)), "{text}");
        }
        for text in ["s3://a//b", "s3://a/../b", "s3://a/b\nc", "s3://a/b'c", "s3://a/./b", "s3://a//"] {
            let found = text.parse::<SinkAddress>();
            assert!(matches!(found, Err(AddressError::Prefix(_))) || text == "s3://a//", "{text}: {found:?}");
        }
        for text in [
            "otlp+http://",
            "otlp+http://:4318",
            "otlp+http://a:",
            "otlp+http://a:x",
            "otlp+http://a:0",
            "otlp+http://a:99999",
            "otlp+http://a b",
            "otlp+http://a/?b",
            "otlp+http://a/#b",
        ] {
            assert!(matches!(error(text), AddressError::Host(_)), "{text}: {:?}", error(text));
        }
        assert_eq!(error("otlp+https://user:word@host"), AddressError::Password);
    }
}
