//! systemd's messages about its units, out of the journal that systemd-journald has mapped.
//!
//! ```text
//! tasks ── systemd-journal, a child of process 1 ── its mappings ── .../system.journal
//!       ── page cache ── messages
//! ```
//!
//! Early in a boot the journal is in /run; later its messages are copied to /var, if there is one. Messages
//! have the guest's CLOCK_MONOTONIC; [`ClockBounds`] converts it to the host's.

use std::time::{Duration, Instant};

use guest_linux::journal::{
    Journal, JournalBytes, JournalError, StartupTimes, UnitMessage, UnitMessages, UnitStep,
};
use guest_linux::{FileRef, Kernel, MappingKind, Missing, PageCache, TaskSnapshot};
use vmm::monotonic_ns;

use crate::guest_clock::ClockBounds;
use crate::memory::GuestMemory;
use profile::rows::UnitEventRow;

/// `comm` of systemd-journald: 15 bytes and a NUL.
pub(super) const JOURNALD: &[u8; 16] = b"systemd-journal\0";
/// Processes of that name that are checked, at most: containers have their own.
const MOST_CANDIDATES: usize = 64;
/// Time between readings of the files that journald has mapped.
const FILES_PERIOD: Duration = Duration::from_millis(500);
/// Journals that are followed, at most; each takes memory.
const MOST_FILES: usize = 16;
/// Readings of the clock in a row, and the pause between them: some ticks of the guest's.
const READINGS: usize = 16;
const READING_PAUSE: Duration = Duration::from_micros(700);

/// Messages since the last call.
#[derive(Debug, Default)]
pub(crate) struct UnitEvents {
    /// Rows whose times are the host's monotonic clock, ns.
    pub rows: Vec<UnitEventRow>,
    /// systemd's report that the boot is over.
    pub startup: Option<StartupTimes>,
}

/// Reasons why systemd's messages cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    /// The finder has no kernel yet.
    #[error("no kernel was found")]
    NoKernel,
    /// No task has the name of systemd-journald.
    #[error("no process systemd-journald was seen")]
    NotRunning,
    /// Tasks have the name, but none is the system's journald.
    #[error("no child of process 1 is systemd-journald")]
    NotTheSystems,
    /// systemd-journald has not mapped a journal.
    #[error("systemd-journald has no journal open")]
    NoJournal,
    /// The journal has no message about a unit.
    #[error("systemd's journal has no message about a unit")]
    NoMessage,
    /// The journal cannot be parsed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel's data cannot be read.
    #[error(transparent)]
    Kernel(#[from] Missing),
}

/// Follower of a guest's journal.
#[derive(Debug, Default)]
pub(super) struct JournalFollower {
    messages: Option<UnitMessages>,
    files: Vec<(FileRef, Journal)>,
    files_read: Option<Instant>,
    clock: ClockBounds,
    /// Messages from before the clock was known.
    waiting: Vec<UnitMessage>,
}

impl JournalFollower {
    /// Reads the messages since the last call. `tasks` are processes that may be systemd-journald.
    ///
    /// # Errors
    /// Returns the reason why nothing can be read.
    pub(super) fn read(
        &mut self,
        kernel: &Kernel,
        memory: &GuestMemory,
        tasks: &[TaskSnapshot],
    ) -> Result<UnitEvents, UnitError> {
        self.find_files(kernel, memory, tasks)?;
        if self.messages.is_none() {
            self.messages = Some(UnitMessages::new(kernel.boot_id(memory)?));
        }
        let cache = PageCache::new(kernel, memory)?;
        let mut failed = None;
        if let Some(messages) = &mut self.messages {
            for (file, journal) in &mut self.files {
                match messages.read(journal, &CachedFile { cache: &cache, memory, file }) {
                    Ok(mut messages) => self.waiting.append(&mut messages),
                    Err(error) => failed = Some(error),
                }
            }
        }
        self.read_clock(kernel, memory)?;
        let events = self.take_placed();
        match failed {
            Some(failed) if events.rows.is_empty() => Err(failed.into()),
            _ => Ok(events),
        }
    }

    /// Finds the journals that systemd-journald has mapped; known ones keep their reading position.
    fn find_files(
        &mut self,
        kernel: &Kernel,
        memory: &GuestMemory,
        tasks: &[TaskSnapshot],
    ) -> Result<(), UnitError> {
        if self.files_read.is_some_and(|read| read.elapsed() < FILES_PERIOD) {
            return Ok(());
        }
        let is_the_systems = |task: &&TaskSnapshot| matches!(kernel.process(memory, task.task).parent, Ok(1));
        let journald = tasks.iter().take(MOST_CANDIDATES).find(is_the_systems);
        let journald = journald.ok_or(UnitError::NotTheSystems)?;
        let mappings = kernel.mappings(memory, journald.task)?;
        let mut known = std::mem::take(&mut self.files);
        for mapping in mappings {
            let MappingKind::File(file) = mapping.kind else { continue };
            let same = |(other, _): &(FileRef, Journal)| other.address_space == file.address_space;
            let is_journal = !file.deleted && file.raw_path.ends_with(b"/system.journal");
            if !is_journal || self.files.iter().any(same) || self.files.len() >= MOST_FILES {
                continue;
            }
            let state = known.iter_mut().find(|known| same(known)).map(|(_, state)| std::mem::take(state));
            self.files.push((FileRef::clone(&file), state.unwrap_or_default()));
        }
        self.files_read = Some(Instant::now());
        if self.files.is_empty() { Err(UnitError::NoJournal) } else { Ok(()) }
    }

    /// Reads the guest's clock: several times in a row while it is not known to a tick.
    fn read_clock(&mut self, kernel: &Kernel, memory: &GuestMemory) -> Result<(), Missing> {
        for n in 0..READINGS {
            if n > 0 {
                std::thread::sleep(READING_PAUSE);
            }
            let before_ns = monotonic_ns();
            let clock = kernel.clock(memory)?;
            self.clock.note((before_ns, monotonic_ns()), clock);
            if self.clock.is_narrow(clock.tick_ns) {
                break;
            }
        }
        Ok(())
    }

    /// Takes the waiting messages, with times on the host's clock.
    fn take_placed(&mut self) -> UnitEvents {
        let mut events = UnitEvents::default();
        if !self.clock.is_known() {
            return events;
        }
        for message in self.waiting.drain(..) {
            let Some((time_ns, within_ns)) = self.clock.to_host(message.monotonic_ns) else { continue };
            let (step, unit, result) = match message.step {
                UnitStep::Starting(unit) => ("starting", Some(unit), None),
                UnitStep::Started(unit) => ("started", Some(unit), None),
                UnitStep::Failed(unit, result) => ("failed", Some(unit), Some(result)),
                UnitStep::Finished(startup) => {
                    events.startup = Some(startup);
                    ("finished", None, None)
                }
            };
            let (step, guest_ns) = (step.to_owned(), message.monotonic_ns);
            let within_ns = (!message.by_log).then_some(within_ns);
            events.rows.push(UnitEventRow { time_ns, guest_ns, within_ns, step, unit, result });
        }
        events
    }
}

/// A file in the page cache.
struct CachedFile<'a> {
    cache: &'a PageCache<'a>,
    memory: &'a GuestMemory,
    file: &'a FileRef,
}

impl JournalBytes for CachedFile<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.cache.read(self.memory, self.file, offset, into)
    }
}
