//! Object stores with the interface of Amazon's S3.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{ClientConfigKey, HttpError, HttpErrorKind};
use object_store::path::Path as ObjectPath;
use object_store::{BackoffConfig, ClientOptions, ObjectStoreExt, PutPayload, RetryConfig};
use tokio::runtime::Runtime;

use crate::address::BucketAddress;
use crate::error::{SinkError, innermost, words};
use crate::{CONNECT_LIMIT, REQUEST_LIMIT, RETRY_LIMIT, USER_AGENT, runtime};

/// Variable of Amazon's clients with the number of attempts at a request (AWS SDKs and Tools Reference Guide,
/// Retry behavior).
const ATTEMPTS: &str = "AWS_MAX_ATTEMPTS";
/// Their number without that variable.
const DEFAULT_ATTEMPTS: usize = 6;
/// Bytes for which a request has one second more.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// A bucket that files are put into. An object is there as a whole or not at all.
#[derive(Debug)]
pub struct ObjectSink {
    address: BucketAddress,
    store: AmazonS3,
    runtime: Runtime,
}

impl ObjectSink {
    /// Makes a client by the settings in the environment (`AWS_*`, or the credentials of the instance). Its
    /// requests have at most `longest` bytes, by which their time is limited: 30 s, and a second for each
    /// MiB. A request that fails is repeated, in 6 attempts at most, or as many as `AWS_MAX_ATTEMPTS` allows.
    ///
    /// # Errors
    /// [`SinkError::Settings`]. Nothing is sent.
    pub fn new(address: &BucketAddress, longest: u64) -> Result<Self, SinkError> {
        let failed = |reason: String| SinkError::Settings { address: address.to_string(), reason };
        let runtime = runtime().map_err(|error| failed(error.to_string()))?;
        let limit = REQUEST_LIMIT + Duration::from_secs(longest / BYTES_PER_SECOND);
        let (init_backoff, max_backoff) = (Duration::from_millis(500), Duration::from_secs(15));
        let attempts = std::env::var(ATTEMPTS).ok();
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff, max_backoff, base: 2.0 },
            max_retries: retries(attempts.as_deref()).map_err(failed)?,
            retry_timeout: RETRY_LIMIT,
        };
        let name = USER_AGENT.parse().map_err(|_| failed("its name is not a header".to_owned()))?;
        let options = ClientOptions::new()
            .with_user_agent(name)
            .with_connect_timeout(CONNECT_LIMIT)
            .with_timeout(limit);
        let mut builder = AmazonS3Builder::new().with_client_options(options);
        // The environment has the last word, also on time limits.
        for (name, value) in std::env::vars_os() {
            let key = name.to_str().filter(|name| name.starts_with("AWS_")).map(str::to_ascii_lowercase);
            if let (Some(Ok(key)), Some(value)) = (key.map(|key| key.parse()), value.to_str()) {
                builder = builder.with_config(key, value);
            }
        }
        let setting = |key| builder.get_config_value(&key).unwrap_or_default();
        let endpoint = setting(AmazonS3ConfigKey::Endpoint);
        if endpoint.starts_with("http://")
            && setting(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)) != "true"
        {
            let endpoint = words(&endpoint);
            return Err(failed(format!("{endpoint} has no TLS: AWS_ALLOW_HTTP=true allows that")));
        }
        let store = builder.with_bucket_name(&address.bucket).with_retry(retry).build();
        let store = store.map_err(|error| failed(innermost(&error)))?;
        Ok(Self { address: address.clone(), store, runtime })
    }

    /// Puts an object under the prefix and `path`; it replaces an older one. Returns once it is stored.
    ///
    /// # Errors
    /// [`SinkError::Failed`]: it is not stored, or the answer was lost.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) -> Result<(), SinkError> {
        let (address, name) = (self.address.to_string(), path.to_string_lossy().into_owned());
        let whole = format!("{}/{name}", self.address.prefix);
        let key = ObjectPath::parse(&whole).map_err(|error| SinkError::Settings {
            address: address.clone(),
            reason: words(&error.to_string()),
        })?;
        let payload = PutPayload::from(bytes);
        let put = self.runtime.block_on(self.store.put(&key, payload));
        put.map(drop).map_err(|error| SinkError::Failed {
            reason: reason(&error, &self.address.bucket),
            address,
            name,
            after: None,
        })
    }
}

/// Returns the number of attempts after the first one. `attempts` is the value of [`ATTEMPTS`].
fn retries(attempts: Option<&str>) -> Result<usize, String> {
    let Some(text) = attempts else { return Ok(DEFAULT_ATTEMPTS - 1) };
    let number = text.parse().ok().and_then(|number: usize| number.checked_sub(1));
    number.ok_or_else(|| format!("{ATTEMPTS} is {}: give a number from 1", words(text)))
}

/// Returns the reason of a failed PUT, and what to do.
fn reason(error: &object_store::Error, bucket: &str) -> String {
    match error {
        object_store::Error::NotFound { .. } => {
            format!("there is no bucket {bucket}: make it, or check AWS_REGION")
        }
        object_store::Error::PermissionDenied { .. } => {
            "it is forbidden (403): the credentials need the right s3:PutObject".to_owned()
        }
        object_store::Error::Unauthenticated { .. } => {
            "the credentials are not accepted (401): check AWS_ACCESS_KEY_ID, or the role of this host"
                .to_owned()
        }
        error => other_reason(error),
    }
}

fn other_reason(error: &(dyn Error + 'static)) -> String {
    let causes = || std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    // The client names request, address and attempts, then the cause.
    let request = causes().map(ToString::to_string).find_map(|text| request(&text));
    let to = request.map_or_else(String::new, |request| format!(" ({request})"));
    match causes().find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind) {
        Some(HttpErrorKind::Timeout) => format!("it has not answered in time{to}"),
        _ => format!("{}{to}", innermost(error)),
    }
}

/// Returns method and address of a request in the words of the client.
fn request(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Error performing ")?;
    let (request, _) = rest.split_once(" in ")?;
    Some(words(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_limits_attempts() {
        assert_eq!([None, Some("1"), Some("3")].map(retries), [Ok(5), Ok(0), Ok(2)]);
        for wrong in ["", "0", "-1", "many"] {
            assert_eq!(
                retries(Some(wrong)),
                Err(format!("AWS_MAX_ATTEMPTS is {wrong}: give a number from 1"))
            );
        }
    }
}
