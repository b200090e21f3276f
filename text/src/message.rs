//! Parts of messages.

use std::fmt;
use std::io;
use std::path::Path;

/// A path in a message; control characters are shown as escapes.
#[derive(Debug)]
pub struct Shown<'a>(pub &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::clean::escaped(&self.0.to_string_lossy()))
    }
}

/// The reason of an I/O error in a message, without its "(os error 2)".
#[derive(Debug)]
pub struct Reason<'a>(pub &'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let text = text.split(" (os error").next().unwrap_or(&text);
        let mut chars = text.chars();
        match chars.next() {
            Some(first) => write!(f, "{}{}", first.to_lowercase(), chars.as_str()),
            None => f.write_str("unknown reason"),
        }
    }
}
