//! Conditions that a run waits for: to begin or to end sampling, or to end itself.
//!
//! ```text
//!  armed ──▶ [`Gate`] ◀── console, marks, tasks, control groups, as the collector gets them
//!              └── closed: samples are taken, but none is kept; the time counts as not sampled
//! ```
//!
//! The collector looks every 10 ms. Tasks are listed every 20 ms while a process or a unit is waited for.

mod gate;
mod going;
mod trigger;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use gate::{Action, Gate};
pub(crate) use going::Going;
pub(crate) use trigger::Trigger;

/// Bytes of a pattern, at most.
const LONGEST_PATTERN: usize = 1_000;
/// Bytes that a compiled pattern may take.
const LARGEST_PATTERN: usize = 1 << 20;

/// Something that a guest comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// A line of the console, also one that is not finished, has a match of this regular expression; escape sequences are
    /// taken out before.
    Console(String),
    /// A process has this name (`comm`, of which the guest keeps 15 bytes).
    Process(String),
    /// A process of this name was there, and there is none any more.
    ProcessEnd(String),
    /// A mark with this text was put into the profile through the control socket.
    Mark(String),
    /// So much time has passed: of the run, and for the end of sampling since it began.
    Time(Duration),
    /// A systemd unit: a process is in a control group of this name.
    Unit(String),
    /// systemd says that the boot is over ("Startup finished"): the default target and all that it wants are there.
    Started,
}

/// A regular expression that does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// It is none.
    #[error("the regular expression is wrong at character {at}: {why}")]
    Syntax {
        /// The place, from 1.
        at: usize,
        /// What is wrong there.
        why: String,
    },
    /// It would take too much memory.
    #[error("the regular expression is too large")]
    TooLarge,
}

impl Condition {
    /// Whether the condition can be waited for.
    ///
    /// # Errors
    /// Its regular expression does not compile.
    pub fn check(&self) -> Result<(), BadPattern> {
        Trigger::new(self.clone()).map(drop)
    }

    /// Whether all tasks have to be listed to see it.
    pub(crate) fn needs_tasks(&self) -> bool {
        matches!(self, Self::Process(_) | Self::ProcessEnd(_) | Self::Unit(_) | Self::Started)
    }
}

/// Fault of a condition as it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCondition {
    /// It does not look like a condition.
    #[error("{ADVICE}")]
    Malformed,
    /// Its kind is not known.
    #[error("{:?} is no kind of condition: {ADVICE}", text::clean::escaped(.0))]
    UnknownKind(String),
    /// Nothing follows its kind.
    #[error("{0}: what?")]
    Empty(String),
    /// Its time is none.
    #[error(transparent)]
    Time(#[from] text::parse::TimeError),
    /// Its regular expression does not compile.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
}

const ADVICE: &str =
    "write it like console:REGEX, process:NAME, process-end:NAME, mark:TEXT, unit:NAME, started or time:5s";

impl FromStr for Condition {
    type Err = BadCondition;

    /// Parses what `--start-when` and `--stop-when` accept, and checks it.
    fn from_str(text: &str) -> Result<Self, BadCondition> {
        if text == profile::boot::STARTED {
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
            "time" => Self::Time(text::parse::positive_time(what)?),
            _ => return Err(BadCondition::UnknownKind(kind.to_owned())),
        };
        condition.check()?;
        Ok(condition)
    }
}

impl fmt::Display for Condition {
    /// As it is written on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Console(pattern) => write!(f, "console:{pattern}"),
            Self::Process(name) => write!(f, "process:{name}"),
            Self::ProcessEnd(name) => write!(f, "process-end:{name}"),
            Self::Mark(text) => write!(f, "mark:{text}"),
            Self::Time(time) => write!(f, "time:{time:?}"),
            Self::Unit(name) => write!(f, "unit:{name}"),
            Self::Started => write!(f, "{}", profile::boot::STARTED),
        }
    }
}

/// What is to be waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Sampling is off until then.
    Start(Condition),
    /// Sampling ends then, once it has begun; the run as well, if `end`.
    Stop {
        /// When.
        when: Condition,
        /// The run ends, too.
        end: bool,
    },
    /// The run ends then; it was successful.
    Until(Condition),
    /// The guest has come no further for so long: neither console output nor a new process, nor an answer of its disk,
    /// nor output of its command, nor an exit of a new kind. The run ends then; it was no success. Without a time it is
    /// only noted when the guest last came further (`progress_ns` in `meta`). Tasks are listed as often as if a process was
    /// waited for, so that each is in the profile soon.
    Still(Option<Duration>),
}

/// When what was waited for was seen, ns since the run's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The last [`Wait::Start`].
    pub start_ns: Option<u64>,
    /// The last [`Wait::Stop`].
    pub stop_ns: Option<u64>,
    /// [`Wait::Until`].
    pub until_ns: Option<u64>,
    /// [`Wait::Still`].
    pub still_ns: Option<u64>,
}

#[cfg(test)]
mod tests;
