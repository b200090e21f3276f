//! Systemd's account of a boot: targets, units that failed, the end of its jobs, and the units that the boot
//! waited for.
//!
//! ```text
//!  starting a ── started a ─┐
//!                           ├─ starting b ───── started b ─┐
//!        starting c ── started c                           ├─ multi-user.target
//! ```
//!
//! The chain goes backwards from the default target, each time to the unit that became active last before the
//! previous one began to start: `multi-user.target`, `b`, `a`. systemd starts a unit as soon as the last unit
//! in its ordering is active, but the order itself is in unit files, which are not read.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::read::BootInput;
use super::{CpuEstimate, STARTUP_TIMES, SYSTEMD_JOURNAL};
use crate::numbers::unsigned;

/// Targets that are the default in nearly all guests, the later first (systemd.special(7)).
const DEFAULT_TARGETS: [&str; 2] = ["graphical.target", "multi-user.target"];
/// Limit of links in the chain.
const LONGEST_CHAIN: usize = 200;

/// Systemd's account of a boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Systemd {
    /// Reason why there is no account; `None` if its journal was read.
    pub missing: Option<String>,
    /// The end of its jobs, if the boot reached it.
    pub startup: Option<StartupTimes>,
    /// Targets that were reached, in the order of time.
    pub targets: Vec<Target>,
    /// Units that failed to start, in the order of time.
    pub failed: Vec<FailedUnit>,
    /// Units that the boot waited for, the default target first.
    pub chain: Vec<ChainLink>,
    /// Largest error of the times of units, s, except those of the kernel's log: the precision of the
    /// relation between the guest's clock and the host's.
    pub within_s: f64,
}

/// "StartupTimes finished".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StartupTimes {
    /// Time, s.
    pub at_s: f64,
    /// Time that the kernel took according to systemd, s: from the beginning of its clock to the first
    /// process.
    pub kernel_s: f64,
    /// Time that the initrd took, s; `None` without systemd in it.
    pub initrd_s: Option<f64>,
    /// Time that the rest took, s.
    pub userspace_s: f64,
}

/// A target that was reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Name.
    pub name: String,
    /// Time, s.
    pub at_s: f64,
    /// The time is that of the kernel's log, and may be wrong by more than [`Systemd::within_s`].
    pub by_log: bool,
}

/// A unit that failed to start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedUnit {
    /// Name.
    pub name: String,
    /// Time, s.
    pub at_s: f64,
    /// Result of its start job: `failed`, `timeout`, `dependency` ...
    pub result: String,
}

/// A unit that the boot waited for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainLink {
    /// Name.
    pub name: String,
    /// Time at which it began to start, s; a target is reached at once.
    pub from_s: f64,
    /// Time at which it was active, s.
    pub to_s: f64,
    /// True if its beginning is a time of the kernel's log.
    pub by_log: bool,
    /// Time from then to the beginning of the next one, s; 0 for the first.
    pub gap_s: f64,
    /// CPU time of its own processes during that time.
    pub own: CpuEstimate,
    /// CPU time of everything during that time, interrupts included.
    pub all: CpuEstimate,
}

/// A message, with its time by the run's clock.
#[derive(Debug, Clone)]
struct Message {
    time_ns: u64,
    by_log: bool,
    step: Step,
    unit: String,
    result: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Starting,
    Started,
    Failed,
    Finished,
}

/// The messages of a profile.
#[derive(Debug, Default)]
pub(super) struct Messages {
    all: Vec<Message>,
    /// `read`, or the reason why the journal was not read.
    journal: Option<String>,
    /// Times of the kernel, the initrd and the rest according to systemd, ns.
    times: [Option<u64>; 3],
    within_ns: u64,
}

impl Messages {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let sql =
            "SELECT time_ns, step, unit, result, within_ns IS NULL FROM unit_event ORDER BY guest_ns, id";
        let message = |row: &rusqlite::Row<'_>| {
            let step = match row.get_ref(1)?.as_str()? {
                "starting" => Step::Starting,
                "started" => Step::Started,
                "finished" => Step::Finished,
                _ => Step::Failed,
            };
            let text = |at| row.get::<_, Option<String>>(at).map(Option::unwrap_or_default);
            let by_log = row.get(4)?;
            Ok(Message { time_ns: unsigned(row, 0)?, by_log, step, unit: text(2)?, result: text(3)? })
        };
        let meta = |key: &str| -> rusqlite::Result<Option<String>> {
            let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE key = ?")?;
            statement.query_map([key], |row| row.get(0))?.next().transpose()
        };
        let mut times = [None; 3];
        for (time, key) in times.iter_mut().zip(STARTUP_TIMES) {
            *time = meta(key)?.and_then(|ns| ns.parse().ok());
        }
        Ok(Self {
            all: connection.prepare(sql)?.query_map([], message)?.collect::<Result<_, _>>()?,
            journal: meta(SYSTEMD_JOURNAL)?,
            times,
            within_ns: connection.query_row(
                "SELECT coalesce(max(within_ns), 0) FROM unit_event",
                [],
                |row| unsigned(row, 0),
            )?,
        })
    }

    /// Returns the end of the boot, ns since the run's start.
    pub(super) fn finished_ns(&self) -> Option<u64> {
        self.all.iter().find(|message| message.step == Step::Finished).map(|message| message.time_ns)
    }

    /// Returns the largest error of times of messages, ns.
    pub(super) fn within_ns(&self) -> u64 {
        self.within_ns
    }

    pub(super) fn systemd(&self, input: &BootInput) -> Systemd {
        let missing = match self.journal.as_deref() {
            _ if !self.all.is_empty() => None,
            Some(reason) => Some(reason.to_owned()),
            None => Some("the journal of systemd was not searched".to_owned()),
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let [kernel, initrd, userspace] = self.times;
        let startup = self.finished_ns().map(|ns| StartupTimes {
            at_s: input.since(ns),
            kernel_s: seconds(kernel.unwrap_or(0)),
            initrd_s: initrd.map(seconds),
            userspace_s: seconds(userspace.unwrap_or(0)),
        });
        let of = |step: Step| self.all.iter().filter(move |message| message.step == step);
        let target = |message: &Message| Target {
            name: message.unit.clone(),
            at_s: input.since(message.time_ns),
            by_log: message.by_log,
        };
        let failed = |message: &Message| FailedUnit {
            name: message.unit.clone(),
            at_s: input.since(message.time_ns),
            result: message.result.clone(),
        };
        Systemd {
            missing,
            startup,
            targets: of(Step::Started).filter(|message| is_target(&message.unit)).map(target).collect(),
            failed: of(Step::Failed).map(failed).collect(),
            chain: self.chain(input),
            within_s: seconds(self.within_ns),
        }
    }

    /// Returns the chain from the default target backwards.
    fn chain(&self, input: &BootInput) -> Vec<ChainLink> {
        let mut chain = Vec::new();
        let mut next_ns = None;
        for (began, active) in self.places() {
            let (Some(began), Some(active)) = (self.all.get(began), self.all.get(active)) else { break };
            let span = (began.time_ns, active.time_ns.max(began.time_ns));
            let (all, own) = input.cpu(span, &active.unit);
            let gap_ns = next_ns.map_or(0, |next: u64| next.saturating_sub(span.1));
            chain.push(ChainLink {
                name: active.unit.clone(),
                from_s: input.since(span.0),
                to_s: input.since(span.1),
                by_log: began.by_log,
                gap_s: gap_ns as f64 / 1e9,
                own,
                all,
            });
            next_ns = Some(span.0);
        }
        chain
    }

    /// Returns the chain as indexes of messages: of each unit's start and of its becoming active.
    fn places(&self) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        let mut next = self.default_target();
        while let Some(active) = next.filter(|_| places.len() < LONGEST_CHAIN) {
            let began = self.began(active).unwrap_or(active);
            places.push((began, active));
            // A socket, a timer or a mount point of the kernel is active at once, and no unit waits for it.
            next = (0..began).rev().find(|&place| {
                self.all.get(place).is_some_and(|message| message.step == Step::Started)
                    && (self.is_target_at(place) || self.began(place).is_some())
            });
        }
        places
    }

    fn default_target(&self) -> Option<usize> {
        let end = self.all.iter().position(|message| message.step == Step::Finished);
        let end = end.unwrap_or(self.all.len());
        let reached = || (0..end).rev().filter(|&place| self.is_target_at(place));
        let named = |name: &&str| {
            reached().find(|&place| self.all.get(place).is_some_and(|message| message.unit == **name))
        };
        DEFAULT_TARGETS.iter().find_map(named).or_else(|| reached().next())
    }

    fn is_target_at(&self, place: usize) -> bool {
        let message = self.all.get(place);
        message.is_some_and(|message| message.step == Step::Started && is_target(&message.unit))
    }

    /// Returns the index at which the unit that is active at this index began to start.
    fn began(&self, active: usize) -> Option<usize> {
        let unit = &self.all.get(active)?.unit;
        let before = (0..active).rev().find(|&place| self.all.get(place).is_some_and(|m| m.unit == *unit))?;
        self.all.get(before).filter(|message| message.step == Step::Starting).map(|_| before)
    }
}

fn is_target(unit: &str) -> bool {
    unit.ends_with(".target")
}
