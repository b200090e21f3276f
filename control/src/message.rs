//! Messages of the control socket: one JSON object a line, each way.

use std::path::PathBuf;

use profile::conditions::{BadCondition, Condition};
use profile::live::{Snapshot, View};
use profile::session::{RateOutOfRange, checked_rate};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest line that is understood, bytes.
pub const LONGEST_LINE: usize = 64 << 10;
/// The longest text of a mark, bytes.
pub const LONGEST_MARK: usize = 1_000;
/// The shortest time between two views of `watch`, ms.
pub const SHORTEST_MS: u64 = 100;
/// The most rows of a table.
pub const MOST_ROWS: usize = 10_000;

/// A request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The state of the run: [`About`].
    Status,
    /// The tables as they are: a [`Snapshot`].
    Tables {
        /// Selection of the view.
        #[serde(default)]
        view: View,
    },
    /// The tables again and again: lines with a `snapshot` each, until the run ends or another `watch` comes.
    Watch {
        /// Selection of the view.
        #[serde(default)]
        view: View,
        /// Time between two views, ms.
        #[serde(default = "half_a_second")]
        every_ms: u64,
    },
    /// Sample (again).
    Start {
        /// Not before this condition was seen, as `--start-when` takes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        when: Option<String>,
    },
    /// Do not sample until `start`.
    Stop {
        /// Only once this condition was seen, as `--stop-when` takes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        when: Option<String>,
        /// Action on the run then; it continues otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Then>,
    },
    /// Another sampling rate.
    Rate {
        /// Mean ticks per second and vCPU.
        hz: f64,
    },
    /// A row of table `event`, of kind `mark`.
    Mark {
        /// Text of the mark.
        text: String,
    },
    /// Write what was recorded so far to the profile; answered when it is there.
    Write,
    /// End the run.
    End,
}

/// Action on a run that no longer samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// It ends.
    End,
    /// It continues, unsampled.
    Continue,
}

fn half_a_second() -> u64 {
    500
}

/// All verbs, for messages about unknown ones.
pub const VERBS: [&str; 9] = ["status", "tables", "watch", "start", "stop", "rate", "mark", "write", "end"];

/// Those that take nothing more.
const BARE: [&str; 3] = ["status", "write", "end"];

/// The answer to one request, or one look of `watch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Reply<T = Value> {
    /// That of the request, as it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// The requested data; `{}` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    /// One look of `watch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Box<Snapshot>>,
    /// One sentence: why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The answer to `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// vprof's version.
    pub version: String,
    /// Process id of the run.
    pub pid: u32,
    /// The image.
    pub image: String,
    /// The profile that is written, absolute.
    pub profile: PathBuf,
    /// Present step before the guest runs; `None` once it does.
    pub preparing: Option<String>,
    /// Time since the start of sampling, s.
    pub time_s: f64,
    /// The vCPUs are sampled.
    pub sampling: bool,
    /// Mean ticks per second and vCPU while they are.
    pub rate_hz: f64,
    /// Samples so far.
    pub samples: u64,
    /// Lost so far.
    pub lost: u64,
    /// The guest's kernel release, once it was found.
    pub kernel: Option<String>,
    /// Reason why an attached machine is stopped, if it is.
    pub standing: Option<String>,
}

/// Why a line is not a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is not JSON.
    #[error("this is not JSON: {0}")]
    Json(serde_json::Error),
    /// It is not an object.
    #[error("a request is an object like {{\"do\":\"status\"}}")]
    NoObject,
    /// It has no verb.
    #[error("a request needs \"do\", like {{\"do\":\"status\"}}")]
    NoVerb,
    /// Its verb is not known.
    #[error("there is no {:?}: \"do\" is one of {}", display::clean::escaped(.0), VERBS.join(", "))]
    UnknownVerb(String),
    /// Its verb takes no fields.
    #[error("{0}: unknown field: it takes none")]
    NoFields(String),
    /// A field is wrong.
    #[error("{verb}: {source}")]
    Fields {
        /// The verb.
        verb: String,
        /// The fault.
        source: serde_json::Error,
    },
    /// The rate is out of range.
    #[error(transparent)]
    Rate(#[from] RateOutOfRange),
    /// The condition is wrong.
    #[error("when: {0}")]
    Condition(#[from] BadCondition),
    /// Something is to happen at a condition, and there is none.
    #[error("stop: \"then\" needs \"when\"")]
    ThenWithoutWhen,
    /// The mark is too long.
    #[error("mark: the text is longer than {LONGEST_MARK} bytes")]
    LongMark,
    /// The looks would be too close.
    #[error("watch: every_ms is {SHORTEST_MS} at least")]
    ShortInterval,
    /// The tables would be too long.
    #[error("a view has {MOST_ROWS} rows at most")]
    ManyRows,
}

/// Reads a line as a request, with the `id` that goes back with the answer, whatever the request is.
pub fn read_request(line: &[u8]) -> (Option<Value>, Result<Request, RequestError>) {
    let mut value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return (None, Err(RequestError::Json(error))),
    };
    let Some(object) = value.as_object_mut() else { return (None, Err(RequestError::NoObject)) };
    let id = object.remove("id");
    let verb = object.get("do").and_then(Value::as_str).map(str::to_owned);
    let request = match verb {
        None => Err(RequestError::NoVerb),
        Some(verb) if !VERBS.contains(&verb.as_str()) => Err(RequestError::UnknownVerb(verb)),
        // serde takes more fields than a verb without any has.
        Some(verb) if BARE.contains(&verb.as_str()) && object.len() > 1 => Err(RequestError::NoFields(verb)),
        Some(verb) => serde_json::from_value(value).map_err(|source| RequestError::Fields { verb, source }),
    };
    (id, request.and_then(check))
}

fn check(request: Request) -> Result<Request, RequestError> {
    match &request {
        Request::Rate { hz } => {
            checked_rate(*hz)?;
        }
        Request::Start { when: Some(when) } | Request::Stop { when: Some(when), .. } => {
            when.parse::<Condition>()?;
        }
        Request::Stop { when: None, then: Some(_) } => return Err(RequestError::ThenWithoutWhen),
        Request::Mark { text } if text.len() > LONGEST_MARK => return Err(RequestError::LongMark),
        Request::Watch { every_ms, .. } if *every_ms < SHORTEST_MS => {
            return Err(RequestError::ShortInterval);
        }
        Request::Watch { view, .. } | Request::Tables { view } if view.rows > MOST_ROWS => {
            return Err(RequestError::ManyRows);
        }
        _ => {}
    }
    Ok(request)
}

/// Reads a line as a reply.
///
/// # Errors
/// It is not a reply.
pub fn read_reply<T: DeserializeOwned>(line: &[u8]) -> Result<Reply<T>, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use profile::live::Span;

    use super::*;

    fn read(line: &str) -> Result<Request, RequestError> {
        read_request(line.as_bytes()).1
    }

    #[test]
    fn requests_are_short_and_checked() {
        let (id, request) = read_request(br#"{"id":7,"do":"status"}"#);
        assert_eq!((id, request.unwrap()), (Some(Value::from(7)), Request::Status));
        let view = View { span: Span::Last(2.5), rows: 3, ..View::default() };
        let tables = read(r#"{"do":"tables","view":{"span":{"last":2.5},"rows":3}}"#).unwrap();
        assert_eq!(tables, Request::Tables { view });
        let watch = read(r#"{"do":"watch"}"#).unwrap();
        assert_eq!(watch, Request::Watch { view: View::default(), every_ms: 500 });
        for (line, said) in [
            ("{", "not JSON"),
            ("[]", "an object"),
            ("{}", "needs \"do\""),
            (r#"{"do":"stat\u001b"}"#, "there is no \"stat"),
            (r#"{"do":"rate"}"#, "missing field `hz`"),
            (r#"{"do":"rate","hz":0}"#, "0.1"),
            (r#"{"do":"rate","hz":1e9}"#, "50000"),
            (r#"{"do":"stop","now":1}"#, "unknown field"),
            (r#"{"do":"watch","every_ms":1}"#, "every_ms"),
            (r#"{"do":"start","when":"console:("}"#, "at character 1: unclosed group"),
            (r#"{"do":"stop","then":"end"}"#, "needs \"when\""),
            (r#"{"do":"stop","when":"process:a","then":"explode"}"#, "unknown variant"),
            (r#"{"do":"tables","view":{"rows":1000000}}"#, "rows"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(said) && !error.contains('\u{1b}'), "{line}: {error}");
        }
        let long = format!(r#"{{"do":"mark","text":"{}"}}"#, "x".repeat(1_001));
        assert!(read(&long).is_err());
    }
}
