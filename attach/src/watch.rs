//! Watcher of an attached machine: its thread detects the end, pauses, vCPUs that are plugged in or out, and
//! the layout of the memory.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_bindings::KVM_EXIT_HLT;
use sandbox::ThreadKind;
use vmm::ThreadId;

use crate::bpf::SampledVm;
use crate::memory::{ForeignMemory, LayoutProver, ProofAttempt};
use crate::process::Process;
use crate::run_page::RunPage;
use crate::shared::{AttachEvent, AttachmentEnd, PauseCause, PluggedVcpu, SharedState};
use crate::stack::give_back_stack;
use crate::target::TargetVcpu;
use crate::thread::{ThreadActivity, ThreadFiles};

/// Maximum interval between two checks, ms.
const CHECK_MS: i32 = 100;
/// The same while samples find vCPUs in KVM_RUN: the machine is neither paused nor closed. A wake-up of this
/// thread costs more than what it does.
const RUNS_CHECK_MS: i32 = 200;
/// Interval between the first two searches for the layout.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Maximum interval between two searches for the layout, each of which may read many page tables.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Time without a layout after which an event reports that.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which none of a paused machine's vCPUs is in the guest: no exit takes that long on all of them.
const PAUSED_TIME: Duration = Duration::from_secs(1);
/// Minimum number of checks within that time.
const PAUSED_CHECKS: u32 = 5;
/// Interval between two scans of all descriptors of the process.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// A vCPU as the watcher sees it.
#[derive(Debug)]
pub(crate) struct WatchedVcpu {
    /// KVM's number of the vCPU.
    number: u32,
    thread: WatchedThread,
    /// The vCPU's thread has ended.
    gone: bool,
}

/// Means by which a vCPU's thread is watched.
#[derive(Debug)]
enum WatchedThread {
    /// Files in /proc and the run page of the vCPU with this descriptor.
    Files(i32, ThreadFiles, RunPage),
    /// The host's kernel, which samples the vCPU with this index.
    Kernel(Arc<SampledVm>, usize),
}

impl WatchedVcpu {
    /// Makes the watcher's part of a vCPU, the one with this index, which the host's kernel samples if there
    /// is a `vm`. `None` if it was taken already.
    pub(crate) fn take(index: usize, vcpu: &mut TargetVcpu, vm: Option<&Arc<SampledVm>>) -> Option<Self> {
        let (files, page) = vcpu.watched.take()?;
        let thread = match vm {
            Some(vm) => WatchedThread::Kernel(Arc::clone(vm), index),
            None => WatchedThread::Files(vcpu.fd, files, page),
        };
        Some(Self { number: vcpu.number, thread, gone: false })
    }

    /// Returns true if the VMM keeps the vCPU out of the guest, and not because the vCPU has halted.
    fn is_kept_out(&self) -> bool {
        let (own, files, page) = match &self.thread {
            WatchedThread::Files(fd, files, page) => (*fd, files, page),
            WatchedThread::Kernel(vm, index) => return vm.is_kept_out(*index).unwrap_or(true),
        };
        match files.activity() {
            Ok(ThreadActivity::Running) => false,
            Ok(ThreadActivity::BlockedInRun(fd) | ThreadActivity::BlockedOnPage(fd)) if fd == own => false,
            Ok(_) => page.exit_reason() != KVM_EXIT_HLT,
            Err(_) => true,
        }
    }

    /// Returns the index of a vCPU that the host's kernel sampled until its thread ended.
    fn gone_index(&self) -> Option<usize> {
        match &self.thread {
            WatchedThread::Kernel(_, index) if self.gone => Some(*index),
            _ => None,
        }
    }

    /// Returns true if the vCPU's thread has ended.
    fn has_ended(&self) -> bool {
        match &self.thread {
            WatchedThread::Files(_, files, _) => files.activity().is_err(),
            WatchedThread::Kernel(vm, index) => vm.has_ended(*index),
        }
    }
}

/// Detector of pauses: time since which no vCPU was in the guest, and number of checks since.
#[derive(Debug, Default)]
struct PauseDetector(Option<(Instant, u32)>);

impl PauseDetector {
    /// Adds a check; returns true if the machine is paused. `kept_out` is true if no vCPU was in the guest.
    fn update(&mut self, kept_out: bool, now: Instant) -> bool {
        let (since, checks) = self.0.unwrap_or((now, 0));
        self.0 = kept_out.then_some((since, checks.saturating_add(1)));
        kept_out && checks >= PAUSED_CHECKS && now.saturating_duration_since(since) >= PAUSED_TIME
    }
}

/// Times of the searches for the layout, at growing intervals.
#[derive(Debug)]
struct SearchTimes {
    next: Instant,
    pause: Duration,
}

impl SearchTimes {
    fn new(begin: Instant) -> Self {
        Self { next: begin + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Returns true if a search is due; then the next one is due later.
    fn take(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.pause = self.pause.saturating_mul(2).min(LAST_PAUSE);
            self.next = now + self.pause;
        }
        is_due
    }

    /// Returns the time until the next search, at most `limit_ms`, ms.
    fn wait_ms(&self, now: Instant, limit_ms: i32) -> i32 {
        let left = self.next.saturating_duration_since(now).as_millis();
        i32::try_from(left).map_or(limit_ms, |left| left.saturating_add(1).min(limit_ms))
    }
}

/// Everything that the thread owns.
#[derive(Debug)]
pub(crate) struct Watcher {
    process: Arc<Process>,
    memory: ForeignMemory,
    shared: Arc<SharedState>,
    /// The watched vCPUs; empty behind a stub.
    vcpus: Vec<WatchedVcpu>,
    /// Descriptors of the watched vCPUs.
    descriptors: Vec<i32>,
    /// KVM's numbers of all vCPUs that were reported.
    known: Vec<u32>,
    /// Time without a layout after which an event reports that.
    patience: Duration,
    /// The host's kernel samples the vCPUs.
    sampled: Option<Arc<SampledVm>>,
    /// Addresses of vCPUs in the kernel that are not profiled.
    passed: Vec<u64>,
}

impl Watcher {
    /// Makes the watcher of a machine whose vCPUs are not watched.
    pub(crate) fn new(process: Arc<Process>, memory: ForeignMemory, shared: Arc<SharedState>) -> Self {
        let (vcpus, descriptors, known, passed) = Default::default();
        let (patience, sampled) = (PATIENCE, None);
        Self { process, memory, shared, vcpus, descriptors, known, patience, sampled, passed }
    }

    /// Keeps what the host's kernel knows of the guest up to date.
    pub(crate) fn with_samples(self, sampled: Option<Arc<SampledVm>>) -> Self {
        Self { sampled, ..self }
    }

    /// Adds vCPUs to watch, with the VMM's descriptors. vCPUs other than the known ones are reported.
    pub(crate) fn with_vcpus(self, vcpus: Vec<WatchedVcpu>, descriptors: Vec<i32>, known: Vec<u32>) -> Self {
        Self { vcpus, descriptors, known, ..self }
    }

    /// Starts the thread.
    pub(crate) fn start(self) -> io::Result<JoinHandle<()>> {
        let behind_wall = move || {
            sandbox::enter_thread(ThreadKind::Watcher);
            self.run();
        };
        thread::Builder::new().name("attach".to_owned()).spawn(behind_wall)
    }

    /// Checks until the end.
    fn run(mut self) {
        let begin = Instant::now();
        let prover = LayoutProver::new(self.memory.clone());
        let (mut search, mut reported, mut proven) = (SearchTimes::new(begin), false, false);
        let (mut detector, mut listed) = (PauseDetector::default(), begin);
        let mut pause_ms = search.wait_ms(begin, CHECK_MS);
        while !self.shared.is_over() {
            // The process first: its threads end with it.
            if self.process.ended_within(pause_ms) {
                return self.shared.finish(AttachmentEnd::ProcessEnded);
            }
            // What a sample has just seen need not be looked up in /proc.
            let in_run = self.shared.take_found_in_run();
            if !in_run && self.has_lost_all_vcpus() {
                let process_too = self.process.ended_within(CHECK_MS) || self.process.is_ending();
                return self.shared.finish(if process_too {
                    AttachmentEnd::ProcessEnded
                } else {
                    AttachmentEnd::VcpusEnded
                });
            }
            let lists = listed.elapsed() >= LIST_INTERVAL;
            if !self.vcpus.is_empty() {
                self.check_pause(&mut detector, in_run);
                self.adopt_plugged();
                if lists {
                    listed = Instant::now();
                    self.check_plugged();
                    if let Some(layout) = self.sampled.as_ref().and_then(|vm| vm.refresh())
                        && self.memory.change(layout)
                        && proven
                    {
                        self.shared.report(AttachEvent::MemoryChanged(pieces(&self.memory)));
                    }
                }
            }
            if let (Some(vm), Some(kernel)) = (&self.sampled, self.memory.kernel())
                && (!vm.is_planned() || lists && vm.lacks_plan())
            {
                vm.plan(kernel, &self.memory);
                give_back_stack();
            }
            pause_ms = if in_run { RUNS_CHECK_MS } else { CHECK_MS };
            if self.memory.is_proven() {
                if !std::mem::replace(&mut proven, true) {
                    self.shared.report(AttachEvent::MemoryProven(describe(&self.memory)));
                }
                continue;
            }
            // Firmware and boot loaders may never have tables that can be walked.
            let is_due = search.take(Instant::now());
            let tables = self.shared.tables.last().filter(|_| is_due);
            let found =
                tables.is_some_and(|tables| matches!(prover.attempt(tables), Ok(ProofAttempt::Proven)));
            if is_due {
                give_back_stack();
            }
            pause_ms = if found { 0 } else { search.wait_ms(Instant::now(), pause_ms) };
            if !found && begin.elapsed() >= self.patience && !std::mem::replace(&mut reported, true) {
                self.shared.report(AttachEvent::Missing(
                    "no Linux kernel proves the layout of the guest's memory in the VMM yet: samples have addresses \
                     without names"
                        .to_owned(),
                ));
            }
        }
    }

    /// Returns true if the host's kernel shows vCPUs that are plugged in.
    fn finds_plugged(&self) -> bool {
        self.sampled.as_ref().is_some_and(|vm| vm.lists_vcpus())
    }

    /// Returns true if the threads of all vCPUs have ended, or none of the descriptors is a vCPU's any
    /// longer.
    fn has_lost_all_vcpus(&self) -> bool {
        let closed = !self.descriptors.is_empty() && !self.process.holds_vcpu(&self.descriptors);
        closed || self.shared.has_no_vcpus()
    }

    /// Updates the present pause. `in_run` is true if a vCPU's thread was in KVM_RUN since the last check.
    fn check_pause(&self, detector: &mut PauseDetector, in_run: bool) {
        if !in_run && self.process.is_stopped() {
            *detector = PauseDetector::default();
            return self.shared.set_pause(Some(PauseCause::Signal));
        }
        let kept_out = !in_run && self.vcpus.iter().all(WatchedVcpu::is_kept_out);
        if detector.update(kept_out, Instant::now()) {
            self.shared.set_pause(Some(PauseCause::Vmm));
        } else if !kept_out {
            self.shared.set_pause(None);
        }
    }

    /// Watches the vCPUs that were plugged in, where the host's kernel samples them.
    fn adopt_plugged(&mut self) {
        let Some(vm) = &self.sampled else { return };
        let gone: Vec<_> = self.vcpus.iter().filter_map(WatchedVcpu::gone_index).collect();
        for (number, thread, index) in vm.take_new(&gone, &mut self.passed) {
            self.known.push(number);
            let Some(index) = index else {
                if vm.is_outgrown() {
                    return self.shared.finish(AttachmentEnd::Outgrown);
                }
                self.shared.report(AttachEvent::NotAdopted(number));
                continue;
            };
            let id =
                ThreadId { process: self.process.pid(), thread: i32::try_from(thread.tid).unwrap_or(-1) };
            // Without its descriptor, the others show whether the machine is closed.
            let open = self.process.vcpus().unwrap_or_default().into_iter();
            self.descriptors.extend(open.filter(|(own, _)| *own == number).map(|(_, fd)| fd));
            let thread = WatchedThread::Kernel(Arc::clone(vm), index);
            self.vcpus.push(WatchedVcpu { number, thread, gone: false });
            self.shared.report(AttachEvent::Plugged(PluggedVcpu { number, index, id }));
        }
    }

    /// Reports vCPUs that were plugged in and cannot be profiled, and those that were removed.
    fn check_plugged(&mut self) {
        // A process that ends meanwhile is reported as the end.
        let open = if self.finds_plugged() { Vec::new() } else { self.process.vcpus().unwrap_or_default() };
        for (number, _) in open {
            if !self.known.contains(&number) {
                self.known.push(number);
                self.shared.report(AttachEvent::NotAdopted(number));
            }
        }
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| !vcpu.gone) {
            vcpu.gone = vcpu.has_ended();
            if vcpu.gone && !self.process.ended_within(CHECK_MS) && !self.process.is_ending() {
                self.shared.report(AttachEvent::Unplugged(vcpu.number));
            }
        }
    }
}

/// Describes the proven layout in a sentence.
fn describe(memory: &ForeignMemory) -> String {
    format!("the guest's kernel proves the layout of its memory: {}", pieces(memory))
}

/// Lists the pieces of the layout.
fn pieces(memory: &ForeignMemory) -> String {
    let pieces = memory.layout().map(|layout| layout.pieces().to_vec()).unwrap_or_default();
    let piece = |piece: &crate::MemoryPiece| {
        format!("{} MiB at {:#x} are at {:#x} in the VMM", piece.bytes >> 20, piece.guest.0, piece.host.0)
    };
    let list: Vec<String> = pieces.iter().map(piece).collect();
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Time limit of a test for what must happen.
    const LIMIT: Duration = Duration::from_secs(5);

    fn watcher(shared: &Arc<SharedState>, patience: Duration) -> Watcher {
        let pid = i32::try_from(std::process::id()).unwrap();
        let process = Arc::new(Process::open(pid).unwrap());
        Watcher { patience, ..Watcher::new(process, ForeignMemory::new(pid).unwrap(), Arc::clone(shared)) }
    }

    #[test]
    fn a_guest_without_page_tables_is_reported_once() {
        let shared = Arc::new(SharedState::new(1).unwrap());
        thread::scope(|scope| {
            let watcher = watcher(&shared, Duration::ZERO);
            scope.spawn(|| watcher.run());
            let begin = Instant::now();
            let mut events = Vec::new();
            // Several searches longer, because each of them could report it again.
            while begin.elapsed() < Duration::from_millis(500) || events.is_empty() && begin.elapsed() < LIMIT
            {
                events.extend(shared.take_events());
                thread::sleep(Duration::from_millis(10));
            }
            shared.finish(AttachmentEnd::Detached);
            assert!(matches!(&events[..], [AttachEvent::Missing(_)]), "{events:?}");
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
    fn searches_become_rare() {
        let begin = Instant::now();
        let mut times = SearchTimes::new(begin);
        let due = |ms| begin + Duration::from_millis(ms);
        assert_eq!((times.take(due(9)), times.wait_ms(begin, 100)), (false, 11));
        assert!(times.take(due(10)) && !times.take(due(29)) && times.take(due(30)));
        assert_eq!(times.wait_ms(due(30), 100), 41);
        let found = (31..60_000).filter(|ms| times.take(due(*ms))).count();
        assert!((60..70).contains(&found), "{found}");
        assert_eq!(times.wait_ms(due(60_000), 200), 200);
    }

    #[test]
    fn one_check_after_a_long_time_is_not_a_pause() {
        let (mut detector, begin) = (PauseDetector::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(!detector.update(true, begin) && !detector.update(true, at(5_000)));
        assert!(!detector.update(false, at(5_100)));
        assert!((52..62).all(|check| !detector.update(true, at(check * 100))));
        assert!(detector.update(true, at(6_200)));
    }
}
