//! Parts of messages.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes text to standard error, all at once. A failure is ignored because there is no place left to report
/// it; the exit code still says how the command ended.
pub fn write_stderr(text: &str) {
    let _failed = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes a line to standard error, with the arguments of `format!`. Use it in place of `eprintln!`, which
/// panics if nobody reads: `vprof report gone.vprof 2>&1 | true` would exit with 101, which no document has.
#[macro_export]
macro_rules! stderr_line {
    ($($arguments:tt)*) => {
        $crate::message::write_stderr(&(::std::format!($($arguments)*) + "\n"))
    };
}

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

/// A name that is not in a list of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    name: String,
    /// All names of the list, separated by commas.
    known: String,
}

impl UnknownName {
    /// Returns the value with this name.
    ///
    /// # Errors
    /// `all` has no such name.
    pub fn find<T: Copy>(name: &str, all: impl IntoIterator<Item = (&'static str, T)>) -> Result<T, Self> {
        let mut known = Vec::new();
        for (other, value) in all {
            if other == name {
                return Ok(value);
            }
            known.push(other);
        }
        Err(Self { name: name.to_owned(), known: known.join(", ") })
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not one of {}", self.name, self.known)
    }
}

impl std::error::Error for UnknownName {}
