//! Failures of sinks, each as one sentence.

use std::error::Error;
use std::io;
use std::time::Duration;

use display::clean::escaped;

/// Characters of another program's words in a message, at most.
const MOST_WORDS: usize = 300;

/// Failure of a sink.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// It cannot be used with these settings.
    #[error("cannot use {address}: {reason}")]
    Settings {
        /// Address of the sink.
        address: String,
        /// Reason.
        reason: String,
    },
    /// It does not take this data, and would not take it later.
    #[error("{address} refuses {name}: {reason}")]
    Refused {
        /// Address of the sink.
        address: String,
        /// Name of the data.
        name: String,
        /// Reason.
        reason: String,
    },
    /// It has not taken the data now.
    #[error("{address} has not taken {name}: {reason}")]
    Failed {
        /// Address of the sink.
        address: String,
        /// Name of the data.
        name: String,
        /// Reason, and what to do if that is known.
        reason: String,
        /// Time after which the sink wants to be asked again, if it has said so.
        after: Option<Duration>,
    },
}

/// Returns the words of another program for a message: on one line, of bounded length, without a page of HTML
/// or XML.
pub(crate) fn words(text: &str) -> String {
    let text = text.split(['<', '\n', '\r']).next().unwrap_or_default();
    let text: String = text.chars().take(MOST_WORDS).collect();
    escaped(text.trim_end_matches([':', ' '])).into_owned()
}

/// Returns true if the certificate of the other side is the cause: another attempt has the same result.
pub(crate) fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    let mut cause = innermost_cause(error);
    // The source of one of these is that of the error in it.
    while let Some(within) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        cause = within;
    }
    matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
}

fn innermost_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// Returns the words of the innermost cause of an error: those around it repeat it or say less.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let text = innermost_cause(error).to_string();
    let text = words(text.split(" (os error").next().unwrap_or(&text));
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| format!("{}{}", first.to_lowercase(), chars.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_one_short_line() {
        assert_eq!(words("status 500: <?xml version=\"1.0\"?>\n<Error>"), "status 500");
        assert_eq!(words("a\nb"), "a");
        assert_eq!(words("\x1b[31mred"), "\\x1b[31mred");
        assert_eq!(words(&"x".repeat(10_000)).len(), MOST_WORDS);
    }
}
