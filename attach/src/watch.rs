//! The thread beside those that tick: it looks for the end of an attached machine, for pauses, for vCPUs that
//! come and go, and for the layout of the memory.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_bindings::KVM_EXIT_HLT;

use crate::shared::{AttachmentEnd, AttachEvent, SharedState, PauseCause};
use crate::memory::{ForeignMemory, Prover};
use crate::process::Process;
use crate::run_page::RunPage;
use crate::target::TargetVcpu;
use crate::thread::{ThreadActivity, ThreadFiles};

/// Pause between two looks, at most, ms.
const LOOK_MS: i32 = 100;
/// Pause between two looks for the layout: the first, and the longest, ms.
const FIRST_PAUSE_MS: i32 = 10;
const LAST_PAUSE_MS: i32 = 1_000;
/// When it is told that no layout was found so far.
const PATIENCE: Duration = Duration::from_secs(10);
/// A machine none of whose vCPUs was in the guest for so long, at so many looks, is paused: no exit takes
/// that long on all of them.
const STILL: Duration = Duration::from_secs(1);
const STILL_LOOKS: u32 = 5;
/// How often all descriptors of the process are looked at.
const LIST: Duration = Duration::from_secs(1);

/// A vCPU as it is looked at here.
#[derive(Debug)]
pub(crate) struct WatchedVcpu {
    /// KVM's number of it.
    number: u32,
    fd: i32,
    files: ThreadFiles,
    page: RunPage,
    /// Its thread has ended.
    gone: bool,
}

impl WatchedVcpu {
    pub(crate) fn new(process: &Process, vcpu: &TargetVcpu) -> io::Result<Self> {
        let (number, fd) = (vcpu.number, vcpu.fd);
        let files = ThreadFiles::open(vcpu.id)?;
        Ok(Self { number, fd, files, page: RunPage::map(process, fd)?, gone: false })
    }

    /// Its VMM keeps it out of the guest, but not because it has halted there.
    fn is_held(&self) -> bool {
        match self.files.activity() {
            Ok(ThreadActivity::Running) => false,
            Ok(ThreadActivity::BlockedInRun(fd)) if fd == self.fd => false,
            Ok(_) => self.page.exit_reason() != KVM_EXIT_HLT,
            Err(_) => true,
        }
    }
}

/// Since when, and at how many looks, no vCPU was in the guest.
#[derive(Debug, Default)]
struct PauseDetector(Option<(Instant, u32)>);

impl PauseDetector {
    /// Takes in a look; whether the machine is paused.
    fn update(&mut self, held: bool, now: Instant) -> bool {
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
    shared: Arc<SharedState>,
    /// None behind a stub.
    vcpus: Vec<WatchedVcpu>,
    /// Theirs.
    descriptors: Vec<i32>,
    /// KVM's numbers of all vCPUs that were told of.
    known: Vec<u32>,
    /// After this time without a layout that is told.
    patience: Duration,
}

impl Watcher {
    /// For a machine whose vCPUs are not looked at from here.
    pub(crate) fn new(process: Arc<Process>, memory: ForeignMemory, shared: Arc<SharedState>) -> Self {
        let (vcpus, descriptors, known) = Default::default();
        Self { process, memory, shared, vcpus, descriptors, known, patience: PATIENCE }
    }

    /// Looks at these vCPUs, and for others than the known ones.
    pub(crate) fn with_vcpus(mut self, vcpus: Vec<WatchedVcpu>, known: Vec<u32>) -> Self {
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
        let (mut detector, mut listed) = (PauseDetector::default(), begin);
        while !self.shared.is_over() {
            // Ended first: its threads end with it.
            if self.process.ended_within(pause_ms.min(LOOK_MS)) {
                return self.shared.finish(AttachmentEnd::ProcessEnded);
            }
            if self.has_lost_all() {
                let process_too = self.process.ended_within(LOOK_MS) || self.process.is_ending();
                return self.shared.finish(if process_too { AttachmentEnd::ProcessEnded } else { AttachmentEnd::VcpusEnded });
            }
            if !self.vcpus.is_empty() {
                self.look_for_pauses(&mut detector);
                if listed.elapsed() >= LIST {
                    listed = Instant::now();
                    self.look_for_others();
                }
            }
            if self.memory.is_proven() {
                if !std::mem::replace(&mut proven, true) {
                    self.shared.report(AttachEvent::MemoryProven(describe(&self.memory)));
                }
                pause_ms = LOOK_MS;
                continue;
            }
            pause_ms = pause_ms.saturating_mul(2).min(LAST_PAUSE_MS);
            // Firmware and boot loaders may never have tables that can be walked.
            let attempt = self.shared.tables.last().map(|tables| prover.attempt(tables));
            let found = matches!(attempt, Some(Ok(true)));
            if !found && begin.elapsed() >= self.patience && !std::mem::replace(&mut told, true) {
                self.shared.report(AttachEvent::MemoryUnproven(
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
        closed || self.shared.has_no_vcpus()
    }

    /// Whether the machine stands still.
    fn look_for_pauses(&self, detector: &mut PauseDetector) {
        if self.process.is_stopped() {
            *detector = PauseDetector::default();
            return self.shared.set_pause(Some(PauseCause::Signal));
        }
        let held = self.vcpus.iter().all(WatchedVcpu::is_held);
        if detector.update(held, Instant::now()) {
            self.shared.set_pause(Some(PauseCause::Vmm));
        } else if !held {
            self.shared.set_pause(None);
        }
    }

    /// vCPUs that were plugged in, and those that were taken out.
    fn look_for_others(&mut self) {
        // What ends meanwhile is told as the end.
        for (number, _) in self.process.vcpus().unwrap_or_default() {
            if !self.known.contains(&number) {
                self.known.push(number);
                self.shared.report(AttachEvent::Plugged(number));
            }
        }
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| !vcpu.gone) {
            vcpu.gone = vcpu.files.activity().is_err();
            if vcpu.gone && !self.process.ended_within(LOOK_MS) && !self.process.is_ending() {
                self.shared.report(AttachEvent::Unplugged(vcpu.number));
            }
        }
    }
}

/// The layout in a sentence.
fn describe(memory: &ForeignMemory) -> String {
    let pieces = memory.layout().map(|layout| layout.pieces().to_vec()).unwrap_or_default();
    let piece = |piece: &crate::MemoryPiece| {
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

    fn watcher(shared: &Arc<SharedState>, patience: Duration) -> Watcher {
        let pid = i32::try_from(std::process::id()).unwrap();
        let process = Arc::new(Process::open(pid).unwrap());
        Watcher { patience, ..Watcher::new(process, ForeignMemory::new(pid), Arc::clone(shared)) }
    }

    #[test]
    fn a_guest_without_page_tables_is_told_once() {
        let shared = Arc::new(SharedState::new(1).unwrap());
        thread::scope(|scope| {
            let watcher = watcher(&shared, Duration::ZERO);
            scope.spawn(|| watcher.run());
            let begin = Instant::now();
            let mut news = Vec::new();
            // The pauses between the looks so far: one more would have told it again.
            while begin.elapsed() < Duration::from_millis(500) || news.is_empty() && begin.elapsed() < LIMIT {
                news.extend(shared.take_events());
                thread::sleep(Duration::from_millis(10));
            }
            shared.finish(AttachmentEnd::Detached);
            assert!(matches!(&news[..], [AttachEvent::MemoryUnproven(_)]), "{news:?}");
        });
    }

    #[test]
    fn a_process_that_has_closed_its_vcpus_is_let_go() {
        let shared = Arc::new(SharedState::new(1).unwrap());
        let other = std::fs::File::open("/dev/null").unwrap();
        Watcher { descriptors: vec![other.as_raw_fd()], ..watcher(&shared, PATIENCE) }.run();
        assert_eq!(shared.end(), AttachmentEnd::VcpusEnded);
    }

    #[test]
    fn one_look_after_a_long_time_makes_no_pause() {
        let (mut detector, begin) = (PauseDetector::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(!detector.update(true, begin) && !detector.update(true, at(5_000)));
        assert!(!detector.update(false, at(5_100)));
        assert!((52..62).all(|look| !detector.update(true, at(look * 100))));
        assert!(detector.update(true, at(6_200)));
    }
}
