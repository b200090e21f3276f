//! Messages of the first process about its units.
//!
//! Before systemd-journald runs, messages go to the kernel's log, and from there as bare texts into the
//! journal. They are understood where they name the unit (`StatusUnitFormat=combined` or `name`, the first
//! being the default since version 252), by what `job_start_message_format` and `job_done_message_format` put
//! before it (src/core/job.c, and the tables `*_vtable.status_message_formats` of the types of units).
//!
//! The identifiers are those of systemd's sd-messages.h (version 257; in use since version 183), the fields
//! those of systemd.journal-fields(7) and of `job_emit_start_message`, `job_emit_done_message` and
//! `manager_notify_finished` (src/core/job.c, src/core/manager.c).

use std::collections::HashSet;

use super::{Journal, JournalBytes, JournalEntry, JournalError, WantedEntries};
use display::clean::ascii;

/// `SD_MESSAGE_UNIT_STARTING`: a start job runs.
const STARTING: &[u8] = b"MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5";
/// `SD_MESSAGE_UNIT_STARTED`: it has succeeded.
const STARTED: &[u8] = b"MESSAGE_ID=39f53479d3a045ac8e11786248231fbf";
/// `SD_MESSAGE_UNIT_FAILED`: it has not.
const FAILED: &[u8] = b"MESSAGE_ID=be02cf6855d2428ba40df7e9d022f03d";
/// `SD_MESSAGE_STARTUP_FINISHED`: the jobs of the boot are done.
const FINISHED: &[u8] = b"MESSAGE_ID=b07a249cd024414a82dd00cd181378ff";
/// Of the first process: journald writes fields that begin with `_` itself.
const OF_INIT: &[u8] = b"_PID=1";
/// When the sender has sent it, µs since 1970.
const SENT: &[u8] = b"_SOURCE_REALTIME_TIMESTAMP=";
/// From the kernel's log, by systemd.
const OF_KERNEL_LOG: &[u8] = b"_TRANSPORT=kernel";
const BY_SYSTEMD: &[u8] = b"SYSLOG_IDENTIFIER=systemd";
/// When a message of the kernel's log was written, µs by the log's clock (`local_clock`).
const LOGGED: &[u8] = b"_SOURCE_MONOTONIC_TIMESTAMP=";
/// First words of the messages about units that are active.
const ACTIVE: [&str; 9] = [
    "Started ",
    "Finished ",
    "Reached target ",
    "Mounted ",
    "Listening on ",
    "Created slice ",
    "Set up automount ",
    "Activated swap ",
    "Found device ",
];
/// First words of the messages about units whose start job runs.
const BEGINS: [&str; 3] = ["Starting ", "Mounting ", "Activating swap "];
/// Types of units (systemd.unit(5)).
const TYPES: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];
/// Wanted values: the first and the next four show the kind of an entry; the last two are read as well.
const WANTED: WantedEntries<'static> = WantedEntries {
    values: &[OF_INIT, STARTING, STARTED, FAILED, FINISHED, OF_KERNEL_LOG, BY_SYSTEMD],
    is_wanted: |values| values & 1 != 0 && values & 0x1e != 0 || values & 0x60 == 0x60,
    fields: &[
        LOGGED,
        b"SYSLOG_PID=1",
        b"MESSAGE=",
        b"MESSAGE_ID=",
        b"UNIT=",
        b"JOB_TYPE=",
        b"JOB_RESULT=",
        b"KERNEL_USEC=",
        b"INITRD_USEC=",
        b"USERSPACE_USEC=",
        SENT,
    ],
};
/// A message waits no longer than this for journald, µs: what says otherwise is a clock that was set
/// meanwhile.
const LONGEST_WAIT_US: u64 = 600_000_000;
/// Messages that are kept of one boot, at most.
const MOST_MESSAGES: usize = 20_000;

/// Something that the first process has said of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnitMessage {
    /// When, ns by the guest's CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// The time is that of the kernel's log, whose clock is another one, if only a little: it began earlier
    /// by what CLOCK_MONOTONIC lost before it had a clock source.
    pub by_log: bool,
    /// Kind of the step.
    pub step: UnitStep,
}

/// A step of the boot that systemd logs: of one unit, or the end of all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UnitStep {
    /// The unit's start job runs.
    Starting(String),
    /// The unit is active; a target: reached.
    Started(String),
    /// The unit's start job has ended with this result instead.
    Failed(String, String),
    /// All jobs of the boot are done.
    Finished(StartupTimes),
}

/// Duration of the boot as systemd reports it, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StartupTimes {
    /// From the beginning of the kernel's clock to the first process, or to the initrd's.
    pub kernel_ns: u64,
    /// From there to the system's first process; `None` without systemd in the initrd.
    pub initrd_ns: Option<u64>,
    /// From there to the end.
    pub userspace_ns: u64,
}

impl StartupTimes {
    /// Returns the end by the guest's CLOCK_MONOTONIC, ns.
    pub fn end_ns(&self) -> u64 {
        self.kernel_ns.saturating_add(self.initrd_ns.unwrap_or(0)).saturating_add(self.userspace_ns)
    }
}

/// The messages of one boot, out of as many journals as it has.
#[derive(Debug)]
pub struct UnitMessages {
    boot_id: [u8; 16],
    /// Messages that were returned, with the time at which journald took them: it copies messages from one
    /// file to another.
    known: HashSet<(u64, UnitStep)>,
    /// When the last one was taken, and when it was sent, µs.
    last_us: (u64, u64),
}

impl UnitMessages {
    /// Returns a reader of this boot's messages.
    pub fn new(boot_id: [u8; 16]) -> Self {
        Self { boot_id, known: HashSet::new(), last_us: (0, 0) }
    }

    /// Reads what has come to `journal` since the last call.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn read(
        &mut self,
        journal: &mut Journal,
        bytes: &impl JournalBytes,
    ) -> Result<Vec<UnitMessage>, JournalError> {
        let mut entries = Vec::new();
        let read = journal.read(bytes, &WANTED, &mut entries);
        let messages: Vec<_> = entries.iter().filter_map(|entry| self.take(entry)).collect();
        // What came before the damage is in order.
        if messages.is_empty() { read.map(|()| messages) } else { Ok(messages) }
    }

    /// Returns the message of an entry, unless it was there before.
    fn take(&mut self, entry: &JournalEntry) -> Option<UnitMessage> {
        if entry.boot_id != self.boot_id || self.known.len() >= MOST_MESSAGES {
            return None;
        }
        let step = step(entry)?;
        if !self.known.insert((entry.monotonic_us, step.clone())) {
            return None;
        }
        let logged = number(entry, LOGGED);
        let sent_us = match logged {
            Some(logged_us) => logged_us.min(entry.monotonic_us),
            None => self.sent(entry),
        };
        let monotonic_ns = match &step {
            UnitStep::Finished(startup) => startup.end_ns(),
            _ => sent_us.saturating_mul(1_000),
        };
        Some(UnitMessage { monotonic_ns, by_log: logged.is_some(), step })
    }

    /// When a message was sent, µs by CLOCK_MONOTONIC: journald may take it much later.
    fn sent(&mut self, entry: &JournalEntry) -> u64 {
        let waited = number(entry, SENT).and_then(|sent| entry.realtime_us.checked_sub(sent));
        let waited = waited.filter(|&waited| waited <= LONGEST_WAIT_US).unwrap_or(0);
        let (last_us, last_sent_us) = self.last_us;
        // The first process sends one message after the other, whatever its clock is set to meanwhile.
        let first_us = if entry.monotonic_us < last_us { 0 } else { last_sent_us };
        let sent_us = entry.monotonic_us.saturating_sub(waited).max(first_us).min(entry.monotonic_us);
        self.last_us = (entry.monotonic_us, sent_us);
        sent_us
    }
}

fn step(entry: &JournalEntry) -> Option<UnitStep> {
    if number(entry, LOGGED).is_some() {
        return logged(entry);
    }
    let id = entry.fields.iter().find(|field| field.starts_with(b"MESSAGE_ID="))?.as_slice();
    if id == FINISHED {
        let ns = |name: &[u8]| number(entry, name).map(|us| us.saturating_mul(1_000));
        let (kernel_ns, userspace_ns) = (ns(b"KERNEL_USEC=")?, ns(b"USERSPACE_USEC=")?);
        return Some(UnitStep::Finished(StartupTimes {
            kernel_ns,
            initrd_ns: ns(b"INITRD_USEC="),
            userspace_ns,
        }));
    }
    let unit = value(entry, b"UNIT=").filter(|unit| !unit.is_empty()).map(ascii)?;
    // Versions before 247 say no type here.
    let starts = value(entry, b"JOB_TYPE=").is_none_or(|kind| kind == b"start");
    match id {
        STARTING if starts => Some(UnitStep::Starting(unit)),
        STARTED if starts => Some(UnitStep::Started(unit)),
        FAILED if starts => {
            let result = value(entry, b"JOB_RESULT=").map_or_else(|| "failed".to_owned(), ascii);
            Some(UnitStep::Failed(unit, result))
        }
        _ => None,
    }
}

/// Returns the step that a message of the kernel's log reports.
fn logged(entry: &JournalEntry) -> Option<UnitStep> {
    if !entry.fields.iter().any(|field| field == b"SYSLOG_PID=1") {
        return None;
    }
    let text = ascii(value(entry, b"MESSAGE=")?);
    let unit = |begins: &[&str]| {
        let rest = begins.iter().find_map(|begin| text.strip_prefix(begin))?;
        // `NAME - Description.`, or `NAME...` and `NAME.`
        let name = rest.split(' ').next()?.trim_end_matches('.');
        let kind = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?.1;
        TYPES.contains(&kind).then(|| name.to_owned())
    };
    unit(&ACTIVE).map(UnitStep::Started).or_else(|| unit(&BEGINS).map(UnitStep::Starting))
}

fn value<'a>(entry: &'a JournalEntry, name: &[u8]) -> Option<&'a [u8]> {
    entry.fields.iter().find_map(|field| field.strip_prefix(name))
}

fn number(entry: &JournalEntry, name: &[u8]) -> Option<u64> {
    std::str::from_utf8(value(entry, name)?).ok()?.parse().ok()
}
