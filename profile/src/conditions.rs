//! Conditions that a run waits for: to begin or to end sampling, or to end itself.
//!
//! For example, `process:make` is met once a process has that name. They are plain data, because the command
//! line, the control socket and the recorder's process all write and read them; the recorder evaluates them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Bytes of a pattern, at most.
const LONGEST_PATTERN: usize = 1_000;
/// Bytes that a compiled pattern may take.
const LARGEST_PATTERN: usize = 1 << 20;

/// A condition on the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// A line of the console, finished or not, has a match of this regular expression. Escape sequences are
    /// removed before.
    Console(String),
    /// A process has this name (`comm`, of which the guest keeps 15 bytes).
    Process(String),
    /// A process with this name existed, and all of them have ended.
    ProcessEnd(String),
    /// A mark with this text was put into the profile through the control socket.
    Mark(String),
    /// This much time has passed: since the run's start, or for the end of sampling, since sampling began.
    Time(Duration),
    /// A systemd unit: a process is in a control group of this name.
    Unit(String),
    /// systemd reports the end of the boot ("Startup finished"): the default target and all units that it
    /// wants are active.
    Started,
}

/// A regular expression that does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// The text is not a regular expression.
    #[error("invalid regular expression at character {at}: {why}")]
    Syntax {
        /// Character of the error, from 1.
        at: usize,
        /// The error at that character.
        why: String,
    },
    /// The compiled expression would take too much memory.
    #[error("the regular expression is too large")]
    TooLarge,
}

impl Condition {
    /// Checks that the condition can be awaited.
    ///
    /// # Errors
    /// Returns an error if the regular expression does not compile.
    pub fn check(&self) -> Result<(), BadPattern> {
        match self {
            Self::Console(pattern) => compile_pattern(pattern).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns true if the condition needs a list of all tasks.
    pub fn needs_tasks(&self) -> bool {
        matches!(self, Self::Process(_) | Self::ProcessEnd(_) | Self::Unit(_) | Self::Started)
    }
}

/// Compiles the pattern of a condition. It is the user's, so its size is bounded.
///
/// # Errors
/// It is no regular expression, or too large.
pub fn compile_pattern(pattern: &str) -> Result<Regex, BadPattern> {
    if pattern.len() > LONGEST_PATTERN {
        return Err(BadPattern::TooLarge);
    }
    if let Err(error) = regex_syntax::parse(pattern) {
        let (at, why) = match &error {
            regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
            regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind().to_string()),
            other => (0, other.to_string()),
        };
        let at = pattern.get(..at).map_or(0, |before| before.chars().count()) + 1;
        return Err(BadPattern::Syntax { at, why });
    }
    RegexBuilder::new(pattern)
        .size_limit(LARGEST_PATTERN)
        .dfa_size_limit(LARGEST_PATTERN)
        .build()
        .map_err(|_| BadPattern::TooLarge)
}

/// Reasons why a text is not a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCondition {
    /// The text does not have the form of a condition.
    #[error("{ADVICE}")]
    Malformed,
    /// The kind is not known.
    #[error("unknown kind of condition {:?}: {ADVICE}", display::clean::escaped(.0))]
    UnknownKind(String),
    /// Nothing follows the kind.
    #[error("{0}: needs a value: {ADVICE}")]
    Empty(String),
    /// The time cannot be parsed.
    #[error(transparent)]
    Time(#[from] display::parse::TimeError),
    /// The regular expression does not compile.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
}

/// Forms of a condition, for messages.
const ADVICE: &str =
    "write it like console:REGEX, process:NAME, process-end:NAME, mark:TEXT, unit:NAME, started or time:5s";

impl FromStr for Condition {
    type Err = BadCondition;

    /// Parses and checks an argument of `--start-when` or `--stop-when`.
    fn from_str(text: &str) -> Result<Self, BadCondition> {
        if text == crate::boot::STARTED {
            return Ok(Self::Started);
        }
        let (kind, what) = text.split_once(':').ok_or(BadCondition::Malformed)?;
        let named =
            || if what.is_empty() { Err(BadCondition::Empty(kind.to_owned())) } else { Ok(what.to_owned()) };
        let condition = match kind {
            "console" => Self::Console(named()?),
            "process" => Self::Process(named()?),
            "process-end" => Self::ProcessEnd(named()?),
            "mark" => Self::Mark(named()?),
            "unit" => Self::Unit(named()?),
            "time" => Self::Time(display::parse::positive_time(what)?),
            _ => return Err(BadCondition::UnknownKind(kind.to_owned())),
        };
        condition.check()?;
        Ok(condition)
    }
}

impl fmt::Display for Condition {
    /// Writes the condition as on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Console(pattern) => write!(f, "console:{pattern}"),
            Self::Process(name) => write!(f, "process:{name}"),
            Self::ProcessEnd(name) => write!(f, "process-end:{name}"),
            Self::Mark(text) => write!(f, "mark:{text}"),
            Self::Time(time) => write!(f, "time:{time:?}"),
            Self::Unit(name) => write!(f, "unit:{name}"),
            Self::Started => write!(f, "{}", crate::boot::STARTED),
        }
    }
}

/// A condition together with the reaction to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunTrigger {
    /// Sampling is off until the condition is met.
    Start(Condition),
    /// Sampling ends when the condition is met after sampling has begun; the run also ends if `end` is true.
    Stop {
        /// The condition.
        when: Condition,
        /// True if the run ends, too.
        end: bool,
    },
    /// The run ends successfully when the condition is met.
    Until(Condition),
    /// The run fails when the guest has made no progress for this long: neither console output nor a new
    /// process, nor an answer of its disk, nor output of its command, nor an exit of a new kind. Without a
    /// time, the run only notes the last progress (`progress_ns` in `meta`). Tasks are listed as often as if
    /// a process was awaited, so that each is in the profile soon.
    Still(Option<Duration>),
}

/// Times at which conditions were met, ns since the run's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionTimes {
    /// The last [`RunTrigger::Start`].
    pub start_ns: Option<u64>,
    /// The last [`RunTrigger::Stop`].
    pub stop_ns: Option<u64>,
    /// [`RunTrigger::Until`].
    pub until_ns: Option<u64>,
    /// [`RunTrigger::Still`].
    pub still_ns: Option<u64>,
}
