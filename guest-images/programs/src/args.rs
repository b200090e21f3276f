//! Command lines of the workloads: `--option value` and nothing else, so that the programs stay small.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::str::FromStr;

/// Reason for which a workload ended early.
#[derive(Debug)]
pub enum ProgramError {
    /// The command line is wrong.
    Usage(String),
    /// A system call failed.
    System {
        /// Description of the call.
        what: &'static str,
        /// Error of the call.
        source: io::Error,
    },
}

impl ProgramError {
    /// Returns a function for `map_err` that adds the description of the call.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for ProgramError {}

/// Options of one command line, each known to the program.
#[derive(Debug, Default)]
pub struct ProgramArgs {
    values: BTreeMap<String, String>,
}

impl ProgramArgs {
    /// Reads `--option value` and `--option=value` pairs and, for names that end in `!`, bare `--option`
    /// flags.
    ///
    /// # Errors
    /// An option is unknown, a value is missing, or a word is not an option.
    pub fn parse(known: &[&str], words: impl IntoIterator<Item = String>) -> Result<Self, ProgramError> {
        let mut values = BTreeMap::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--") else {
                return Err(ProgramError::Usage(format!("{word} is not an option")));
            };
            let (name, attached) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let value = if known.iter().any(|k| k.strip_suffix('!') == Some(name)) {
                String::from("yes")
            } else if known.contains(&name) {
                attached
                    .or_else(|| words.next())
                    .ok_or_else(|| ProgramError::Usage(format!("--{name} needs a value")))?
            } else {
                return Err(ProgramError::Usage(format!("--{name} is not known")));
            };
            values.insert(name.to_owned(), value);
        }
        Ok(Self { values })
    }

    /// Returns true if the flag was given.
    pub fn flag(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns the text given for an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns the number given for an option.
    ///
    /// # Errors
    /// The text is not such a number.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, ProgramError> {
        let Some(text) = self.values.get(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ProgramError::Usage(format!("--{name} {text} is not a number that fits"))),
        }
    }
}

/// Runs a workload and prints its error to stderr. The exit code is 2 for a wrong command line, 1 for other
/// errors.
pub fn main_with(
    usage: &str,
    known: &[&str],
    run: impl FnOnce(&ProgramArgs) -> Result<(), ProgramError>,
) -> ExitCode {
    match ProgramArgs::parse(known, std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ProgramError::Usage(_)) => {
            eprintln!("{error}\nusage: {usage}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ProgramArgs, ProgramError> {
        ProgramArgs::parse(&["name", "seconds", "exec!"], words.iter().map(ToString::to_string))
    }

    #[test]
    fn options_and_flags() {
        let args = parse(&["--name", "a b", "--seconds=1.5", "--exec"]).unwrap();
        assert_eq!(args.text("name"), Some("a b"));
        assert_eq!(args.number::<f64>("seconds").unwrap(), Some(1.5));
        assert!(args.flag("exec"));
        assert_eq!(parse(&[]).unwrap().number::<u32>("seconds").unwrap(), None);
    }

    #[test]
    fn mistakes_are_reported() {
        for (words, message) in [
            (&["--nam", "x"][..], "--nam is not known"),
            (&["--name"], "--name needs a value"),
            (&["10"], "10 is not an option"),
        ] {
            assert_eq!(parse(words).unwrap_err().to_string(), message);
        }
        let error = parse(&["--seconds", "ten"]).unwrap().number::<f64>("seconds").unwrap_err();
        assert_eq!(error.to_string(), "--seconds ten is not a number that fits");
    }
}
