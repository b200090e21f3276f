//! The result of `vprof boot`: for people, as Markdown for a comment on a change, and as JUnit XML for a CI
//! service.
//!
//! For example, a guest that hangs gives a [`BootAttempt`] with the verdict [`BootVerdict::HangIdle`], a
//! [`BootCheck`] that failed, and the stacks of the tasks that sleep. These are only the results:
//! `vprof boot` judges, because that needs the run.

pub mod junit;
pub mod markdown;
pub mod text;

use std::path::PathBuf;

use profile::boot::{Boot, Evidence};
use serde::{Deserialize, Serialize};
use statistics::spread::ValueSpread;

/// Result of all boots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BootOutcome {
    /// vprof's version.
    pub version: String,
    /// The image that was booted.
    pub image: String,
    /// All expectations were met.
    pub passed: bool,
    /// The first expectation that was not met.
    pub failure: Option<String>,
    /// The boots in order.
    pub boots: Vec<BootAttempt>,
    /// Results of the expectations.
    pub checks: Vec<BootCheck>,
    /// Wall time of each phase over the boots that came up, s.
    pub spread: Vec<ValueSpread>,
}

/// Result of one boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BootAttempt {
    /// Path of the profile.
    pub profile: PathBuf,
    /// Verdict on the boot.
    pub verdict: BootVerdict,
    /// The verdict as a sentence.
    pub sentence: String,
    /// Number of times that the guest reset itself before this boot.
    pub reboots: u32,
    /// Phases and other times of the boot.
    pub boot: Boot,
    /// State of the guest at the end of a boot that failed.
    pub evidence: Option<Evidence>,
}

/// Verdict on a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootVerdict {
    /// The guest came up.
    Up,
    /// The kernel panicked.
    Panic,
    /// The kernel had an oops.
    Oops,
    /// The guest had a triple fault.
    TripleFault,
    /// The guest reset itself more often than allowed.
    RebootLoop,
    /// The guest powered off before it was up.
    PowerOff,
    /// The guest hangs, and all vCPUs wait.
    HangIdle,
    /// The guest hangs, and a vCPU is busy.
    HangBusy,
    /// The guest was still in progress when its time was over.
    TimeOut,
    /// The machine failed in another way.
    Failed,
    /// The user ended the run.
    Interrupted,
}

/// Result of one expectation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BootCheck {
    /// Like `boot 1`, `budget total`, `baseline kernel`.
    pub name: String,
    /// The expectation was met, or could not be checked.
    pub passed: bool,
    /// The expectation could not be checked; the message has the reason.
    pub skipped: bool,
    /// Finding, as a sentence.
    pub message: String,
    /// Time that the phase or boot took, s.
    pub time_s: f64,
}
