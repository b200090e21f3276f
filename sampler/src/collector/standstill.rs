//! Detection of a standstill: the guest makes no progress for many seconds, by a fault of its host.
//!
//! | what is seen | what it is a sign of |
//! |---|---|
//! | a vCPU has no ticks although they are due | it does not leave the guest any more |
//! | no vCPU moves, one of them is not halted, and no interrupt is injected | the guest's timer is lost |
//! | all vCPUs are halted while a task is runnable | a wake-up or a timer is lost |
//! | all vCPUs are halted after the time of the next timer | the guest's timer is lost |
//!
//! Hardware does not do any of this. An emulated host does (docs/limits.md).

use guest_linux::VirtAddr;

use crate::record::SampleRecord;
use crate::task_state::TaskKey;
use profile::rows::{Batch, KvmCounterRow, MicrostateRow};

/// Kind of the profile's events that report a standstill.
pub const STANDSTILL: &str = "standstill";
/// Shortest time for which all vCPUs are halted, ns: longer than any bandwidth period (`cpu.max`) keeps a
/// group from its CPUs.
const LEAST_HALTED_NS: u64 = 5_000_000_000;
/// Shortest time without ticks, or at one address, ns: longer than a loaded machine keeps a thread from its
/// CPUs.
const LEAST_STILL_NS: u64 = 10_000_000_000;
/// Least number of ticks that are missing, or that found the same address.
const LEAST_TICKS: u32 = 10;
/// Inverse of the part of its time that a vCPU may be in the guest and still count as halted.
const BUSY_PART: u64 = 200;
/// Tasks that are watched through a standstill, at most.
const WATCHED: usize = 16;
/// Standstills that are reported, at most.
const MOST: u32 = 16;
/// KVM's counter of interrupts that it has injected (`kvm_vcpu_stats_desc`, arch/x86/kvm/x86.c, 5.14 to
/// 6.12).
const INJECTIONS: &str = "irq_injections";

/// Sign of a standstill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StandstillSign {
    /// A vCPU has no ticks.
    NoTicks {
        /// The vCPU.
        vcpu: usize,
    },
    /// No vCPU moves and no interrupt is injected.
    OneAddress {
        /// A vCPU that is not halted.
        vcpu: usize,
        /// Its instruction pointer.
        rip: VirtAddr,
    },
    /// All vCPUs are halted, and this task is runnable.
    Halted(TaskKey),
    /// All vCPUs are halted, and the guest's next timer is overdue.
    TimerLost,
}

/// A standstill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standstill {
    pub(super) sign: StandstillSign,
    /// Its length so far, ns.
    pub(super) took_ns: u64,
}

/// The latest samples of a vCPU that are all alike.
#[derive(Debug, Clone, Copy, Default)]
struct AlikeSamples {
    rip: VirtAddr,
    halted: bool,
    /// Nothing wakes the vCPU, as of the last one.
    for_good: bool,
    /// Times of the first and the last one, CLOCK_MONOTONIC ns.
    first_ns: u64,
    last_ns: u64,
    count: u32,
}

/// Ticks that a vCPU is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueTicks {
    /// Mean rate, Hz; 0 for none.
    pub(super) rate_hz: f64,
    /// Time from which the rate is in force, CLOCK_MONOTONIC ns.
    pub(super) since_ns: u64,
}

/// The guest's clock and its next timer, as they are in its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuestTimer {
    /// CLOCK_MONOTONIC as of the guest's last tick, ns.
    pub(super) clock_ns: u64,
    /// Time of the next timer on that clock, ns.
    pub(super) next_ns: u64,
}

/// Detector of standstills.
#[derive(Debug, Default)]
pub(super) struct StandstillDetector {
    /// The guest's clock while all vCPUs are halted: its value, and the first time with it, CLOCK_MONOTONIC
    /// ns.
    clock: Option<(u64, u64)>,
    /// Ticks are vprof's own: no other VMM holds vCPUs back.
    own_ticks: bool,
    samples: Vec<AlikeSamples>,
    /// Number of injected interrupts, and the time of its last change, CLOCK_MONOTONIC ns.
    injected: Option<(u64, u64)>,
    /// Start of the period in which all vCPUs are halted, ns since the run's start, and the tasks that were
    /// runnable throughout.
    halted: Option<(u64, Vec<TaskKey>)>,
    /// The present standstill was reported.
    reported: bool,
    count: u32,
}

impl StandstillDetector {
    /// Watches ticks, too: the machine is vprof's own.
    pub(super) fn watch_ticks(&mut self) {
        self.own_ticks = true;
    }

    /// Forgets everything so far: the host had stopped the whole process.
    pub(super) fn forget(&mut self) {
        self.samples.clear();
        (self.injected, self.halted, self.clock) = (None, None, None);
    }

    /// Notes a sample.
    pub(super) fn sample(&mut self, vcpu: usize, record: &SampleRecord) {
        if self.samples.len() <= vcpu {
            self.samples.resize(vcpu + 1, AlikeSamples::default());
        }
        let alike = &mut self.samples[vcpu];
        if alike.count == 0 || (alike.rip, alike.halted) != (record.rip, record.halted) {
            let (rip, halted, first_ns) = (record.rip, record.halted, record.time_ns);
            *alike = AlikeSamples { rip, halted, first_ns, ..AlikeSamples::default() };
        }
        alike.count = alike.count.saturating_add(1);
        alike.last_ns = record.time_ns;
        alike.for_good = record.is_halted_for_good();
    }

    /// Checks the samples so far, the counters and clocks of the batch, and the tasks that were runnable at
    /// the last scan. Returns the present standstill, and true if it is to be reported: once. `now_ns` is
    /// CLOCK_MONOTONIC; `timer` reads the guest's timer.
    pub(super) fn check(
        &mut self,
        now_ns: u64,
        due: &[DueTicks],
        batch: &Batch,
        ready: impl Iterator<Item = TaskKey>,
        timer: impl FnOnce() -> Option<GuestTimer>,
    ) -> (Option<Standstill>, bool) {
        self.note_injections(now_ns, &batch.kvm_counters);
        let halted = self.all_halted(due.len(), &batch.microstates, ready);
        let lost = self.timer_lost(now_ns, timer);
        let found = self.without_ticks(now_ns, due).or_else(|| self.at_one_address(now_ns, due));
        let found = found.or(halted).or(lost);
        if found.is_none() {
            // A batch without rows of the clocks shows nothing of halted vCPUs.
            self.reported &= batch.microstates.is_empty() || self.halted.is_some();
            return (None, false);
        }
        let is_new = !self.reported && self.count < MOST;
        if is_new {
            self.reported = true;
            self.count += 1;
        }
        (found, is_new)
    }

    fn note_injections(&mut self, now_ns: u64, counters: &[KvmCounterRow]) {
        let mut values = counters.iter().filter(|row| row.name == INJECTIONS).map(|row| row.value).peekable();
        if values.peek().is_none() {
            return;
        }
        let sum = values.fold(0_u64, u64::wrapping_add);
        if self.injected.is_none_or(|(before, _)| before != sum) {
            self.injected = Some((sum, now_ns));
        }
    }

    /// Returns a vCPU that had ticks, and has none although they are due.
    fn without_ticks(&self, now_ns: u64, due: &[DueTicks]) -> Option<Standstill> {
        let mut vcpus = self.samples.iter().zip(due).enumerate().filter(|_| self.own_ticks);
        vcpus.find_map(|(vcpu, (alike, due))| {
            // A vCPU that never had a tick is not started.
            if alike.count == 0 || due.rate_hz <= 0.0 {
                return None;
            }
            let took_ns = now_ns.saturating_sub(alike.last_ns.max(due.since_ns));
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let missing = took_ns as f64 / 1e9 * due.rate_hz;
            (took_ns >= LEAST_STILL_NS && missing >= f64::from(LEAST_TICKS))
                .then_some(Standstill { sign: StandstillSign::NoTicks { vcpu }, took_ns })
        })
    }

    /// Returns a vCPU that stays at one address without being halted, while no other one moves and no
    /// interrupt is injected. An interrupt that the guest serves would move it.
    fn at_one_address(&self, now_ns: u64, due: &[DueTicks]) -> Option<Standstill> {
        let (_, injected_ns) = self.injected?;
        if self.samples.len() < due.len() || self.samples.iter().any(|alike| alike.count < LEAST_TICKS) {
            return None;
        }
        let (vcpu, stuck) = self.samples.iter().enumerate().find(|(_, alike)| !alike.halted)?;
        let since_ns = self.samples.iter().map(|alike| alike.first_ns).fold(injected_ns, u64::max);
        let until_ns = self.samples.iter().map(|alike| alike.last_ns).fold(now_ns, u64::min);
        let took_ns = until_ns.saturating_sub(since_ns);
        let sign = StandstillSign::OneAddress { vcpu, rip: stuck.rip };
        (took_ns >= LEAST_STILL_NS).then_some(Standstill { sign, took_ns })
    }

    /// Returns the time for which the guest's next timer is overdue while all vCPUs are halted. A guest that
    /// idles may have no tick for a long time, but its timers end that.
    fn timer_lost(&mut self, now_ns: u64, timer: impl FnOnce() -> Option<GuestTimer>) -> Option<Standstill> {
        if self.halted.is_none() {
            self.clock = None;
            return None;
        }
        let GuestTimer { clock_ns, next_ns } = timer()?;
        let (_, since_ns) = *self
            .clock
            .insert(self.clock.filter(|(value, _)| *value == clock_ns).unwrap_or((clock_ns, now_ns)));
        // The guest's clock had this value at that time already.
        let passed_ns = now_ns.saturating_sub(since_ns);
        let took_ns = clock_ns.saturating_add(passed_ns).saturating_sub(next_ns).min(passed_ns);
        (took_ns >= LEAST_HALTED_NS).then_some(Standstill { sign: StandstillSign::TimerLost, took_ns })
    }

    /// Returns a task that was runnable throughout a period in which all vCPUs were halted.
    fn all_halted(
        &mut self,
        vcpus: usize,
        windows: &[MicrostateRow],
        ready: impl Iterator<Item = TaskKey>,
    ) -> Option<Standstill> {
        let now = windows.iter().map(|window| window.time_ns).max()?;
        let halted = |window: &MicrostateRow| {
            let states = window.states;
            // The stops for samples are not the guest's time.
            let all = states.wall().saturating_sub(states.sampler);
            (states.halted.saturating_add(states.kvm)).saturating_mul(BUSY_PART)
                >= all.saturating_mul(BUSY_PART - 1)
        };
        // A system that has halted its CPUs itself waits for nothing.
        let by_itself = self.samples.len() >= vcpus && self.samples.iter().all(|alike| alike.for_good);
        if vcpus == 0 || by_itself || !windows.iter().all(halted) {
            self.halted = None;
            return None;
        }
        let ready: Vec<TaskKey> = ready.collect();
        let Some((since, watched)) = &mut self.halted else {
            self.halted = Some((now, ready.into_iter().take(WATCHED).collect()));
            return None;
        };
        watched.retain(|who| ready.contains(who));
        let (took_ns, first) = (now.saturating_sub(*since), watched.first().copied());
        if watched.is_empty() {
            // The earlier tasks have run, or sleep: the wait of those that are runnable now begins here.
            self.halted = Some((now, ready.into_iter().take(WATCHED).collect()));
        }
        let sign = StandstillSign::Halted(first?);
        (took_ns >= LEAST_HALTED_NS).then_some(Standstill { sign, took_ns })
    }
}

impl Standstill {
    /// Returns the text of the event; `name` is that of a thread.
    pub(super) fn sentence(&self, name: impl FnOnce(TaskKey) -> String) -> String {
        let seconds = self.took_ns / 1_000_000_000;
        match self.sign {
            StandstillSign::NoTicks { vcpu } => {
                format!("vCPU {vcpu} had no ticks for {seconds} s: it does not leave the guest")
            }
            StandstillSign::OneAddress { vcpu, rip } => format!(
                "vCPU {vcpu} was at {rip:#x} for {seconds} s, no other one moved, and no interrupt came: the host may \
                 have lost a timer"
            ),
            StandstillSign::Halted(who) => format!(
                "all vCPUs were halted for at least {seconds} s while thread {} ({}) was runnable; the host may have \
                 lost a timer or a wake-up",
                who.tid,
                name(who)
            ),
            StandstillSign::TimerLost => format!(
                "all vCPUs were halted although the guest's next timer was due {seconds} s ago: the host has lost a timer"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::rows::Microstates;

    const SECOND: u64 = 1_000_000_000;
    const DUE: DueTicks = DueTicks { rate_hz: 100.0, since_ns: 0 };

    fn who(tid: i32) -> TaskKey {
        TaskKey { instance: 1, tid }
    }

    fn name(_: TaskKey) -> String {
        "dd".to_owned()
    }

    /// A batch with windows of both vCPUs, a second long; `guest` is the guest time of the second one, ns.
    fn windows(second: u64, guest: u64) -> Batch {
        let row = |vcpu, guest| MicrostateRow {
            vcpu,
            time_ns: second * SECOND,
            states: Microstates { guest, halted: SECOND - guest, ..Microstates::default() },
        };
        Batch { microstates: vec![row(0, 0), row(1, guest)], ..Batch::default() }
    }

    /// Checks clocks and runnable tasks of two vCPUs without samples.
    fn halted(detector: &mut StandstillDetector, batch: &Batch, ready: &[TaskKey]) -> Option<Standstill> {
        let (found, is_new) = detector.check(0, &[DUE; 2], batch, ready.iter().copied(), || None);
        found.filter(|_| is_new)
    }

    #[test]
    fn a_task_that_could_run_while_all_vcpus_are_halted_is_reported_once() {
        let mut standstill = StandstillDetector::default();
        for second in 1..=5 {
            let batch = windows(second, SECOND / 1_000);
            assert_eq!(halted(&mut standstill, &batch, &[who(3), who(7)]), None);
        }
        // One of them slept meanwhile.
        let found = halted(&mut standstill, &windows(6, 0), &[who(7)]).expect("a standstill");
        assert_eq!(found, Standstill { sign: StandstillSign::Halted(who(7)), took_ns: 5 * SECOND });
        assert_eq!(halted(&mut standstill, &windows(7, 0), &[who(7)]), None);
        assert!(
            found
                .sentence(name)
                .starts_with("all vCPUs were halted for at least 5 s while thread 7 (dd) was runnable")
        );
        // The guest runs, and is halted again.
        assert_eq!(halted(&mut standstill, &windows(8, SECOND / 2), &[]), None);
        for second in 9..=13 {
            assert_eq!(halted(&mut standstill, &windows(second, 0), &[who(7)]), None);
        }
        assert!(halted(&mut standstill, &windows(14, 0), &[who(7)]).is_some());
    }

    #[test]
    fn stops_for_samples_are_not_the_guests_time() {
        let mut standstill = StandstillDetector::default();
        let found = (1..=6).filter_map(|second| {
            let mut batch = windows(second, 0);
            for Microstates { halted, sampler, .. } in batch.microstates.iter_mut().map(|row| &mut row.states)
            {
                (*halted, *sampler) = (SECOND / 10 * 9, SECOND / 10);
            }
            halted(&mut standstill, &batch, &[who(7)])
        });
        assert_eq!(found.count(), 1);
    }

    #[test]
    fn a_system_that_has_halted_itself_has_no_standstill() {
        let mut standstill = StandstillDetector::default();
        let kernel = VirtAddr(crate::record::KERNEL_HALF);
        let dead = SampleRecord { rip: kernel, long_mode: true, halted: true, ..SampleRecord::default() };
        let waits = SampleRecord { interrupts_on: true, ..dead };
        for vcpu in 0..2 {
            standstill.sample(vcpu, &dead);
        }
        for second in 1..20 {
            assert_eq!(halted(&mut standstill, &windows(second, 0), &[who(7)]), None);
        }
        // One vCPU is offline, the other one waits for its timer.
        standstill.sample(0, &waits);
        let found = (20..=26).filter_map(|second| halted(&mut standstill, &windows(second, 0), &[who(7)]));
        assert_eq!(found.count(), 1);
    }

    #[test]
    fn a_guest_that_idles_or_works_has_no_standstill() {
        let mut standstill = StandstillDetector::default();
        for second in 1..20 {
            assert_eq!(halted(&mut standstill, &windows(second, 0), &[]), None, "nobody can run");
        }
        for second in 20..40 {
            // Each for less than five seconds.
            let ready = who(i32::try_from(second / 4).unwrap());
            assert_eq!(halted(&mut standstill, &windows(second, 0), &[ready]), None);
        }
        for second in 40..60 {
            let busy = windows(second, SECOND / 100);
            assert_eq!(halted(&mut standstill, &busy, &[who(1)]), None, "a vCPU works");
        }
        assert_eq!(halted(&mut standstill, &Batch::default(), &[who(1)]), None);
    }

    /// A run of two vCPUs, checked every second: what each vCPU's samples find at a time, and the number of
    /// interrupts that were injected so far. Returns the first standstill and its second.
    fn first_standstill(
        seconds: u64,
        due: DueTicks,
        sample: impl Fn(usize, u64) -> Option<(u64, bool)>,
        injected: impl Fn(u64) -> u64,
    ) -> Option<(u64, StandstillSign)> {
        let mut detector = StandstillDetector::default();
        detector.watch_ticks();
        (1..=seconds).find_map(|second| {
            for vcpu in 0..2 {
                for tick in 0..100 {
                    let time_ns = (second - 1) * SECOND + tick * SECOND / 100;
                    let Some((rip, halted)) = sample(vcpu, time_ns) else { continue };
                    detector.sample(
                        vcpu,
                        &SampleRecord { time_ns, rip: VirtAddr(rip), halted, ..Default::default() },
                    );
                }
            }
            let row = |vcpu, value| KvmCounterRow { vcpu, name: INJECTIONS.to_owned(), value, grows: true };
            let kvm_counters = vec![row(0, injected(second)), row(1, 5)];
            let batch = Batch { kvm_counters, ..Batch::default() };
            let (found, is_new) =
                detector.check(second * SECOND, &[due; 2], &batch, std::iter::empty(), || None);
            Some((second, found.filter(|_| is_new)?.sign))
        })
    }

    #[test]
    fn an_overdue_timer_of_a_halted_guest_is_found() {
        // The guest's clock stays at 100 s since second 3; its next timer is due 2 s later.
        let run = |guest, next: fn(u64) -> u64, clock: fn(u64) -> u64| {
            let mut detector = StandstillDetector::default();
            (1..60).find_map(|second| {
                let timer =
                    || Some(GuestTimer { clock_ns: clock(second) * SECOND, next_ns: next(second) * SECOND });
                let batch = windows(second, guest);
                let (found, is_new) =
                    detector.check(second * SECOND, &[DUE; 2], &batch, std::iter::empty(), timer);
                Some((second, found.filter(|_| is_new)?))
            })
        };
        let lost = |took_ns| Standstill { sign: StandstillSign::TimerLost, took_ns };
        let stops = |second: u64| 97 + second.min(3);
        assert_eq!(run(0, |_| 102, stops), Some((10, lost(5 * SECOND))));
        assert_eq!(run(0, |_| 1_000, stops), None, "no timer is due");
        assert_eq!(run(0, |second| 98 + second, |second| 97 + second), None, "its timers come");
        assert_eq!(run(SECOND / 100, |_| 102, stops), None, "a vCPU works");
        assert!(lost(5 * SECOND).sentence(name).contains("due 5 s ago"));
    }

    /// Idle in the same instruction.
    const IDLE: Option<(u64, bool)> = Some((0xffff_ffff_8100_0000, true));

    #[test]
    fn a_vcpu_whose_ticks_end_is_found_after_ten_seconds() {
        let frozen =
            |vcpu, time_ns| if vcpu == 1 && time_ns > 3 * SECOND { None } else { Some((time_ns, false)) };
        let found = first_standstill(60, DUE, frozen, |second| second);
        assert_eq!(found, Some((13, StandstillSign::NoTicks { vcpu: 1 })));
        let sentence = Standstill { sign: StandstillSign::NoTicks { vcpu: 1 }, took_ns: 10 * SECOND };
        assert_eq!(sentence.sentence(name), "vCPU 1 had no ticks for 10 s: it does not leave the guest");
        // No ticks are due.
        let off = DueTicks { rate_hz: 0.0, since_ns: 0 };
        assert_eq!(first_standstill(60, off, frozen, |second| second), None);
        // Less than ten of them.
        let rare = DueTicks { rate_hz: 0.1, since_ns: 0 };
        assert_eq!(first_standstill(60, rare, frozen, |second| second), None);
        // Ticks are due only since a moment ago.
        let resumed = DueTicks { rate_hz: 100.0, since_ns: 55 * SECOND };
        assert_eq!(first_standstill(60, resumed, frozen, |second| second), None);
    }

    #[test]
    fn a_vcpu_that_never_had_a_tick_is_not_started() {
        let one = |vcpu, time_ns| (vcpu == 0).then_some((time_ns, false));
        assert_eq!(first_standstill(60, DUE, one, |second| second), None);
    }

    #[test]
    fn vcpus_that_do_not_move_without_an_interrupt_are_found() {
        let rip = 0xffff_ffff_c032_ddcc;
        let stuck = |vcpu, time_ns| match vcpu {
            0 if time_ns >= 2 * SECOND => Some((rip, false)),
            0 => Some((time_ns, false)),
            _ => IDLE,
        };
        let found = first_standstill(60, DUE, stuck, |second| second.min(2));
        assert_eq!(found, Some((13, StandstillSign::OneAddress { vcpu: 0, rip: VirtAddr(rip) })));
        let standstill = Standstill { sign: found.unwrap().1, took_ns: 12 * SECOND };
        assert!(standstill.sentence(name).starts_with("vCPU 0 was at 0xffffffffc032ddcc for 12 s,"));
        assert_eq!(first_standstill(60, DUE, stuck, |second| second), None, "interrupts come");
        let moves = |vcpu, time_ns| if vcpu == 1 { Some((time_ns, false)) } else { stuck(vcpu, time_ns) };
        assert_eq!(first_standstill(60, DUE, moves, |_| 2), None, "the other vCPU moves");
        assert_eq!(first_standstill(60, DUE, |_, _| IDLE, |_| 2), None, "both idle");
    }
}
