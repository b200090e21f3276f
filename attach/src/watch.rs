//! The thread beside those that tick: it looks for the end of an attached machine, for pauses, for vCPUs that come and go, and
//! for the layout of the memory.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_bindings::KVM_EXIT_HLT;

use crate::machine::{End, News, Shared, Standing};
use crate::memory::{ForeignMemory, Prover};
use crate::process::Process;
use crate::run_page::RunPage;
use crate::target::Vcpu;
use crate::thread::{Doing, ThreadFiles};

/// Pause between two looks, at most, ms.
const LOOK_MS: i32 = 100;
/// Pause between two looks for the layout: the first, and the longest, ms.
const FIRST_PAUSE_MS: i32 = 10;
const LAST_PAUSE_MS: i32 = 1_000;
/// When it is told that no layout was found so far.
const PATIENCE: Duration = Duration::from_secs(10);
/// A machine none of whose vCPUs was in the guest for so long, at so many looks, is paused: no exit takes that long on all of
/// them.
const STILL: Duration = Duration::from_secs(1);
const STILL_LOOKS: u32 = 5;
/// How often all descriptors of the process are looked at.
const LIST: Duration = Duration::from_secs(1);

/// A vCPU as it is looked at here.
#[derive(Debug)]
pub(crate) struct Watched {
    /// KVM's number of it.
    number: u32,
    fd: i32,
    files: ThreadFiles,
    page: RunPage,
    /// Its thread has ended.
    gone: bool,
}

impl Watched {
    pub(crate) fn of(process: &Process, vcpu: &Vcpu) -> io::Result<Self> {
        let (number, fd) = (vcpu.number, vcpu.fd);
        let files = ThreadFiles::open(vcpu.id)?;
        Ok(Self { number, fd, files, page: RunPage::map(process, fd)?, gone: false })
    }

    /// Its VMM keeps it out of the guest, but not because it has halted there.
    fn is_held(&self) -> bool {
        match self.files.doing() {
            Ok(Doing::Running) => false,
            Ok(Doing::BlockedInRun(fd)) if fd == self.fd => false,
            Ok(_) => self.page.exit_reason() != KVM_EXIT_HLT,
            Err(_) => true,
        }
    }
}

/// Since when, and at how many looks, no vCPU was in the guest.
#[derive(Debug, Default)]
struct Stillness(Option<(Instant, u32)>);

impl Stillness {
    /// Takes in a look; whether the machine is paused.
    fn look(&mut self, held: bool, now: Instant) -> bool {
        let (since, looks) = self.0.unwrap_or((now, 0));
        self.0 = held.then_some((since, looks.saturating_add(1)));
        held && looks >= STILL_LOOKS && now.saturating_duration_since(since) >= STILL
    }
}

/// Everything the thread owns.
#[derive(Debug)]
pub(crate) struct Watcher {
    process: Arc<Process>,
    memory: ForeignMemory,
    shared: Arc<Shared>,
    /// None behind a stub.
    vcpus: Vec<Watched>,
    /// Theirs.
    descriptors: Vec<i32>,
    /// KVM's numbers of all vCPUs that were told of.
    known: Vec<u32>,
    /// After this time without a layout that is told.
    patience: Duration,
}

impl Watcher {
    /// For a machine whose vCPUs are not looked at from here.
    pub(crate) fn new(process: Arc<Process>, memory: ForeignMemory, shared: Arc<Shared>) -> Self {
        let (vcpus, descriptors, known) = Default::default();
        Self { process, memory, shared, vcpus, descriptors, known, patience: PATIENCE }
    }

    /// Looks at these vCPUs, and for others than the known ones.
    pub(crate) fn with_vcpus(mut self, vcpus: Vec<Watched>, known: Vec<u32>) -> Self {
        self.descriptors = vcpus.iter().map(|vcpu| vcpu.fd).collect();
        (self.vcpus, self.known) = (vcpus, known);
        self
    }

    /// Starts the thread.
    pub(crate) fn start(self) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("attach".to_owned()).spawn(move || self.run())
    }

    /// Looks until the end.
    fn run(mut self) {
        let begin = Instant::now();
        let prover = Prover::new(self.memory.clone());
        let (mut pause_ms, mut told, mut proven) = (FIRST_PAUSE_MS, false, false);
        let (mut stillness, mut listed) = (Stillness::default(), begin);
        while !self.shared.is_over() {
            // Ended first: its threads end with it.
            if self.process.ended_within(pause_ms.min(LOOK_MS)) {
                return self.shared.end(End::ProcessEnded);
            }
            if self.has_lost_all() {
                let process_too = self.process.ended_within(LOOK_MS) || self.process.is_ending();
                return self.shared.end(if process_too { End::ProcessEnded } else { End::VcpusEnded });
            }
            if !self.vcpus.is_empty() {
                self.look_for_pauses(&mut stillness);
                if listed.elapsed() >= LIST {
                    listed = Instant::now();
                    self.look_for_others();
                }
            }
            if self.memory.is_proven() {
                if !std::mem::replace(&mut proven, true) {
                    self.shared.tell(News::Memory(describe(&self.memory)));
                }
                pause_ms = LOOK_MS;
                continue;
            }
            pause_ms = pause_ms.saturating_mul(2).min(LAST_PAUSE_MS);
            // Firmware and boot loaders may never have tables that can be walked.
            let attempt = self.shared.tables.last().map(|tables| prover.attempt(tables));
            let found = matches!(attempt, Some(Ok(true)));
            if !found && begin.elapsed() >= self.patience && !std::mem::replace(&mut told, true) {
                self.shared.tell(News::NoMemory(
                    "no Linux kernel proves how the guest's memory lies in the VMM: samples have addresses and no \
                     names until one does"
                        .to_owned(),
                ));
            }
        }
    }

    /// All threads of vCPUs have ended, or none of the descriptors is a vCPU's any more.
    fn has_lost_all(&self) -> bool {
        let closed = !self.descriptors.is_empty() && !self.process.holds_vcpu(&self.descriptors);
        closed || self.shared.is_deserted()
    }

    /// Whether the machine stands still.
    fn look_for_pauses(&self, stillness: &mut Stillness) {
        if self.process.is_stopped() {
            *stillness = Stillness::default();
            return self.shared.stands(Some(Standing::Stopped));
        }
        let held = self.vcpus.iter().all(Watched::is_held);
        if stillness.look(held, Instant::now()) {
            self.shared.stands(Some(Standing::Paused));
        } else if !held {
            self.shared.stands(None);
        }
    }

    /// vCPUs that were plugged in, and those that were taken out.
    fn look_for_others(&mut self) {
        // What ends meanwhile is told as the end.
        for (number, _) in self.process.vcpus().unwrap_or_default() {
            if !self.known.contains(&number) {
                self.known.push(number);
                self.shared.tell(News::Plugged(number));
            }
        }
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| !vcpu.gone) {
            vcpu.gone = vcpu.files.doing().is_err();
            if vcpu.gone && !self.process.ended_within(LOOK_MS) && !self.process.is_ending() {
                self.shared.tell(News::Unplugged(vcpu.number));
            }
        }
    }
}

/// The layout in a sentence.
fn describe(memory: &ForeignMemory) -> String {
    let pieces = memory.layout().map(|layout| layout.pieces().to_vec()).unwrap_or_default();
    let piece = |piece: &crate::Piece| {
        format!("{} MiB at {:#x} are at {:#x} in the VMM", piece.bytes >> 20, piece.guest, piece.host)
    };
    let list: Vec<String> = pieces.iter().map(piece).collect();
    format!("the guest's kernel proves its memory: {}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// How long a test waits for what must come.
    const LIMIT: Duration = Duration::from_secs(5);

    fn watcher(shared: &Arc<Shared>, patience: Duration) -> Watcher {
        let pid = i32::try_from(std::process::id()).unwrap();
        let process = Arc::new(Process::open(pid).unwrap());
        Watcher { patience, ..Watcher::new(process, ForeignMemory::new(pid), Arc::clone(shared)) }
    }

    #[test]
    fn a_guest_without_page_tables_is_told_once() {
        let shared = Arc::new(Shared::new(1).unwrap());
        thread::scope(|scope| {
            let watcher = watcher(&shared, Duration::ZERO);
            scope.spawn(|| watcher.run());
            let begin = Instant::now();
            let mut news = Vec::new();
            // The pauses between the looks so far: one more would have told it again.
            while begin.elapsed() < Duration::from_millis(500) || news.is_empty() && begin.elapsed() < LIMIT {
                news.extend(shared.news());
                thread::sleep(Duration::from_millis(10));
            }
            shared.end(End::Detached);
            assert!(matches!(&news[..], [News::NoMemory(_)]), "{news:?}");
        });
    }

    #[test]
    fn a_process_that_has_closed_its_vcpus_is_let_go() {
        let shared = Arc::new(Shared::new(1).unwrap());
        let other = std::fs::File::open("/dev/null").unwrap();
        Watcher { descriptors: vec![other.as_raw_fd()], ..watcher(&shared, PATIENCE) }.run();
        assert_eq!(shared.how(), End::VcpusEnded);
    }

    #[test]
    fn one_look_after_a_long_time_makes_no_pause() {
        let (mut stillness, begin) = (Stillness::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(!stillness.look(true, begin) && !stillness.look(true, at(5_000)));
        assert!(!stillness.look(false, at(5_100)));
        assert!((52..62).all(|look| !stillness.look(true, at(look * 100))));
        assert!(stillness.look(true, at(6_200)));
    }

    #[test]
    fn a_pause_is_told_when_it_begins_and_when_it_ends() {
        let shared = Shared::new(1).unwrap();
        shared.stands(None);
        shared.stands(Some(Standing::Paused));
        shared.stands(Some(Standing::Paused));
        assert_eq!(shared.standing(), Some(Standing::Paused));
        shared.stands(Some(Standing::Stopped));
        shared.stands(None);
        let stands = |standing| News::Stands(standing);
        assert_eq!(shared.news(), [stands(Standing::Paused), stands(Standing::Stopped), News::Moves]);
    }
}
