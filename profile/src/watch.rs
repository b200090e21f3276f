//! Reports of `vprof attach --watch` on a guest that stalls.
//!
//! The sampler judges the conditions; a [`Sink`](crate::Sink) gets each report after the rows that it
//! refers to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use display::parse::{TimeError, positive_time};
use serde::{Deserialize, Serialize};

use crate::rows::{SampleRow, WaitReason};

/// Kind of the profile's events that report the begin and the end of an alert.
pub const WATCH: &str = "watch";

/// A condition of a guest that is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchCondition {
    /// A vCPU runs kernel code with interrupts off.
    IrqsOff,
    /// A vCPU runs kernel code of one task, and switches to no other.
    SoftLockup,
    /// A grace period of RCU does not end.
    RcuStall,
    /// A task is in the same uninterruptible sleep.
    BlockedTask,
    /// The guest gets no timer interrupts, or no wake-ups.
    LostTimer,
    /// The machine is paused by its VMM, or stopped by a signal.
    Paused,
    /// A vCPU waits for a CPU of the host, at least half of the time.
    Starved,
    /// The guest's kernel has killed a process for lack of memory.
    Oom,
}

impl WatchCondition {
    /// All conditions.
    pub const ALL: [Self; 8] = [
        Self::IrqsOff,
        Self::SoftLockup,
        Self::RcuStall,
        Self::BlockedTask,
        Self::LostTimer,
        Self::Paused,
        Self::Starved,
        Self::Oom,
    ];

    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::IrqsOff => "irqs-off",
            Self::SoftLockup => "soft-lockup",
            Self::RcuStall => "rcu-stall",
            Self::BlockedTask => "blocked-task",
            Self::LostTimer => "lost-timer",
            Self::Paused => "paused",
            Self::Starved => "starved",
            Self::Oom => "oom",
        }
    }

    /// Returns the time after which the condition is reported, unless the user chooses another; zero for a
    /// condition that has no duration. Those of `rcu-stall` and `blocked-task` are the kernel's own
    /// (`CONFIG_RCU_CPU_STALL_TIMEOUT`, kernel/rcu/Kconfig.debug; `CONFIG_DEFAULT_HUNG_TASK_TIMEOUT`,
    /// lib/Kconfig.debug, Linux 6.12).
    pub fn default_threshold(self) -> Duration {
        Duration::from_secs(match self {
            Self::IrqsOff | Self::LostTimer | Self::Paused | Self::Starved => 5,
            Self::SoftLockup => 10,
            Self::RcuStall => 21,
            Self::BlockedTask => 120,
            Self::Oom => 0,
        })
    }
}

impl fmt::Display for WatchCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A condition, and the time after which it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchThreshold {
    /// The condition.
    pub condition: WatchCondition,
    /// Shortest duration that is reported; zero for a condition without a duration.
    pub threshold: Duration,
}

/// Reason why a text is not a watched condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWatch {
    /// No condition has this name.
    #[error("no condition {:?}; conditions are {}", display::clean::escaped(.0), WatchCondition::ALL.map(WatchCondition::name).join(", "))]
    UnknownCondition(String),
    /// The time cannot be parsed.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// The condition has no duration.
    #[error("oom takes no time: a killed process is reported at once")]
    NoDuration,
}

impl WatchThreshold {
    /// Returns all conditions with their default thresholds.
    pub fn all() -> Vec<Self> {
        WatchCondition::ALL.map(Self::from).to_vec()
    }
}

impl From<WatchCondition> for WatchThreshold {
    fn from(condition: WatchCondition) -> Self {
        Self { condition, threshold: condition.default_threshold() }
    }
}

impl FromStr for WatchThreshold {
    type Err = BadWatch;

    /// Parses `NAME` or `NAME:TIME`.
    fn from_str(text: &str) -> Result<Self, BadWatch> {
        let (name, time) = text.split_once(':').map_or((text, None), |(name, time)| (name, Some(time)));
        let condition = WatchCondition::ALL.into_iter().find(|condition| condition.name() == name);
        let condition = condition.ok_or_else(|| BadWatch::UnknownCondition(name.to_owned()))?;
        match time {
            None => Ok(condition.into()),
            Some(_) if condition == WatchCondition::Oom => Err(BadWatch::NoDuration),
            Some(time) => Ok(Self { condition, threshold: positive_time(time)? }),
        }
    }
}

impl fmt::Display for WatchThreshold {
    /// Writes the condition as on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            WatchCondition::Oom => f.write_str(self.condition.name()),
            condition => write!(f, "{condition}:{:?}", self.threshold),
        }
    }
}

/// Begin or end of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertStep {
    /// The condition holds for as long as its threshold.
    Begin,
    /// The condition no longer holds.
    End,
}

/// A task of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedTask {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
}

/// A task in uninterruptible sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedTask {
    /// The task.
    pub task: WatchedTask,
    /// Time since which it is known to be in this sleep, ns.
    pub blocked_ns: u64,
    /// Wait reason.
    pub wait_reason: WaitReason,
    /// Row id of the stack that it sleeps in; 0 for none.
    pub stack: u32,
}

/// An alert at its begin or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Number of the alert in the run, from 1 on; the end has that of its begin.
    pub number: u32,
    /// Begin or end.
    pub step: AlertStep,
    /// The condition.
    pub condition: WatchCondition,
    /// Start of the condition, ns since the run's start.
    pub since_ns: u64,
    /// Time of this report, ns since the run's start.
    pub time_ns: u64,
    /// The vCPU, for a condition of one.
    pub vcpu: Option<u8>,
    /// The task, for a condition of one.
    pub task: Option<WatchedTask>,
    /// One sentence; names in it are the guest's.
    pub sentence: String,
    /// Latest sample of each vCPU that has one; empty at the end of an alert.
    pub vcpus: Vec<SampleRow>,
    /// Tasks in uninterruptible sleep, the longest first; empty at the end of an alert.
    pub blocked: Vec<BlockedTask>,
}

/// A report of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchReport {
    /// An alert.
    Alert(Box<Alert>),
    /// Conditions that cannot be judged, and the reason.
    Unjudged(Vec<WatchCondition>, String),
}

/// Returns the sentence on conditions that cannot be judged for a reason.
pub fn unjudged_sentence(conditions: &[WatchCondition], reason: &str) -> String {
    let names: Vec<_> = conditions.iter().map(|condition| condition.name()).collect();
    format!("the watch cannot judge {}: {reason}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_has_a_name_and_a_threshold() {
        for condition in WatchCondition::ALL {
            let wanted = WatchThreshold::from(condition);
            assert_eq!(condition.name().parse(), Ok(wanted));
            assert_eq!(wanted.to_string().parse(), Ok(wanted), "{wanted}");
            assert_eq!(serde_json::to_string(&condition).unwrap(), format!("\"{condition}\""));
        }
        let other: WatchThreshold = "blocked-task:1m".parse().unwrap();
        assert_eq!((other.condition, other.threshold.as_secs()), (WatchCondition::BlockedTask, 60));
    }

    #[test]
    fn what_is_no_condition_is_refused_with_the_names() {
        let error = |text: &str| text.parse::<WatchThreshold>().expect_err(text).to_string();
        assert!(error("hang").starts_with("no condition \"hang\"; conditions are irqs-off, soft-lockup,"));
        assert!(error("paused:").contains("write it like 20s"));
        assert!(error("paused:0s").contains("more than 0"));
        assert_eq!(error("oom:3s"), "oom takes no time: a killed process is reported at once");
    }
}
