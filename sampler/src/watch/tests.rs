//! Courses of a guest, second by second, and the alerts that they have.

use guest_linux::{GracePeriod, VirtAddr};
use profile::rows::{Microstates, Mode, TaskState, VcpuState};

use super::*;
use crate::record::KERNEL_HALF;

const SECOND: u64 = 1_000_000_000;
/// Samples of a vCPU in a second.
const RATE: u64 = 50;
const RATE_HZ: f64 = 50.0;

/// Activity of a guest in one second.
#[derive(Debug, Clone)]
struct Second {
    /// Findings of the samples of each vCPU; `None`: it has none.
    vcpus: Vec<Option<Found>>,
    /// Each vCPU's part of the second in which it waits for a CPU of the host.
    waiting: f64,
    paused: bool,
    /// The kernel counts a switch on each vCPU, and its clock advances.
    switches: bool,
    ticks: bool,
    grace_period: Option<u64>,
    kills: u64,
    /// Tasks in uninterruptible sleep, and the second in which the sleep began.
    asleep: Vec<(i32, u64)>,
    standstill_s: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Found {
    mode: Mode,
    interrupts_on: bool,
    state: VcpuState,
    tid: i32,
}

const IDLE: Found = Found { mode: Mode::Idle, interrupts_on: true, state: VcpuState::Halted, tid: 0 };
const USER: Found = Found { mode: Mode::User, interrupts_on: true, state: VcpuState::Guest, tid: 7 };
const KERNEL: Found = Found { mode: Mode::Kernel, ..USER };
const OFF: Found = Found { interrupts_on: false, ..KERNEL };
/// Halted by a kernel that has panicked on another vCPU.
const DEAD: Found = Found { interrupts_on: false, ..IDLE };

impl Default for Second {
    /// A guest of two vCPUs that works.
    fn default() -> Self {
        Self {
            vcpus: vec![Some(USER), Some(IDLE)],
            waiting: 0.0,
            paused: false,
            switches: true,
            ticks: true,
            grace_period: None,
            kills: 0,
            asleep: Vec::new(),
            standstill_s: None,
        }
    }
}

fn of_vcpu_0(found: Found) -> Second {
    Second { vcpus: vec![Some(found), Some(IDLE)], ..Second::default() }
}

/// An alert as the tests name it: its second, step, condition and sentence.
type Seen = (u64, AlertStep, WatchCondition, String);

fn record(found: Found, time_ns: u64) -> (SampleRecord, SampleRow) {
    let halted = found.state == VcpuState::Halted;
    let cpl = if found.mode == Mode::User { 3 } else { 0 };
    let interrupts_on = found.interrupts_on;
    let rip = VirtAddr(if cpl == 0 { KERNEL_HALF } else { 0 });
    let record =
        SampleRecord { time_ns, rip, cpl, interrupts_on, long_mode: true, halted, ..SampleRecord::default() };
    let row = SampleRow {
        mode: found.mode,
        vcpu_state: found.state,
        instance: Some(1),
        tid: Some(found.tid),
        ..SampleRow::default()
    };
    (record, row)
}

/// A watch of all conditions with these counters so far.
struct Scene {
    watch: Watch,
    second: u64,
    switches: u64,
    clock_ns: u64,
    seen: Vec<Seen>,
}

impl Scene {
    fn new() -> Self {
        Self::of(WatchConfig { conditions: WatchThreshold::all(), ..WatchConfig::default() })
    }

    fn of(config: WatchConfig) -> Self {
        Self { watch: Watch::new(config, 0), second: 0, switches: 0, clock_ns: 0, seen: Vec::new() }
    }

    /// Lets the guest do the same for some seconds.
    fn run(&mut self, seconds: u64, what: &Second) -> &mut Self {
        for _ in 0..seconds {
            self.step(what);
        }
        self
    }

    fn step(&mut self, what: &Second) {
        let begin_ns = self.second * SECOND;
        for (vcpu, found) in what.vcpus.iter().enumerate() {
            for tick in (0..RATE).filter(|_| !what.paused) {
                let Some(found) = found else { continue };
                let (record, row) = record(*found, begin_ns + tick * SECOND / RATE);
                self.watch.sample(vcpu, &record, &row);
            }
        }
        self.second += 1;
        let now_ns = self.second * SECOND;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a second")]
        let waiting = (what.waiting * 1e9) as u64;
        let states = match what.paused {
            true => Microstates { paused: SECOND, ..Microstates::default() },
            false => Microstates { guest: SECOND - waiting, waiting, ..Microstates::default() },
        };
        let vcpus = (0_u8..).zip(&what.vcpus);
        let windows: Vec<_> =
            vcpus.map(|(vcpu, _)| MicrostateRow { vcpu, time_ns: now_ns, states }).collect();
        let total_ns = waiting * self.second;
        let wait = |pid, name: &str, total_ns| HostWaitRow {
            vcpu: 0,
            pid,
            name: name.to_owned(),
            count: 1,
            total_ns,
        };
        self.watch.rows(&windows, &[wait(0, "", total_ns / 4), wait(99, "stress", total_ns / 2)]);
        self.switches += u64::from(what.switches);
        self.clock_ns += if what.ticks { SECOND } else { 0 };
        let kernel = KernelCounters {
            switches: vec![Some(self.switches); what.vcpus.len()],
            grace_period: what
                .grace_period
                .map(|sequence| GracePeriod { sequence, in_progress: sequence & 3 != 0 }),
            oom_kills: Some(what.kills),
            clock_ns: Some(self.clock_ns),
        };
        let activity = TaskActivity::plain(TaskState::Disk);
        let sleeper =
            |&(tid, since)| Sleeper { who: TaskKey { instance: 1, tid }, since_ns: since * SECOND, activity };
        let sleepers: Vec<_> = what.asleep.iter().map(sleeper).collect();
        let inputs = WatchInputs {
            now_ns,
            rates_hz: &[RATE_HZ; 2],
            kernel: Some(kernel),
            sleepers: Some(&sleepers),
            standstill: match what.standstill_s {
                Some(s) => StandstillFinding::Present {
                    length_ns: s * SECOND,
                    sentence: "all vCPUs were halted".to_owned(),
                },
                None => StandstillFinding::Absent,
            },
        };
        let alerts = self.watch.check(&inputs, |_| "dd".to_owned());
        let second = self.second;
        self.seen
            .extend(alerts.into_iter().map(|alert| (second, alert.step, alert.condition, alert.sentence)));
    }

    /// Returns the alerts without their sentences.
    fn alerts(&self) -> Vec<(u64, AlertStep, WatchCondition)> {
        self.seen.iter().map(|(second, step, condition, _)| (*second, *step, *condition)).collect()
    }
}

use AlertStep::{Begin, End};
use WatchCondition as On;

#[test]
fn a_guest_that_idles_or_works_has_no_alert() {
    let idle = Second { vcpus: vec![Some(IDLE); 2], ticks: false, switches: false, ..Second::default() };
    let work = Second { grace_period: Some(0x101), ..of_vcpu_0(KERNEL) };
    let waits = Second { waiting: 0.4, asleep: vec![(3, 100)], ..of_vcpu_0(USER) };
    let mut scene = Scene::new();
    // An hour: idle without a tick, in the kernel with switches, and on a host that is shared.
    for minute in 0..60 {
        let grace_period = Some(minute * 4 + 1);
        scene.run(20, &idle).run(20, &Second { grace_period, ..work.clone() });
        let since = scene.second;
        scene.run(20, &Second { asleep: vec![(3, since)], ..waits.clone() });
    }
    assert_eq!(scene.alerts(), []);
}

#[test]
fn interrupts_that_stay_off_have_one_alert_with_its_end() {
    let mut scene = Scene::new();
    let stuck = Second { switches: false, ticks: false, ..of_vcpu_0(OFF) };
    scene.run(10, &Second::default()).run(30, &stuck).run(10, &Second::default());
    // The samples of the sixth second are the first that are 5 s from the first one.
    assert_eq!(scene.alerts(), [(16, Begin, On::IrqsOff), (41, End, On::IrqsOff)]);
    let (_, _, _, begin) = &scene.seen[0];
    assert_eq!(begin, "vCPU 0 has had interrupts off for 5.98 s, in dd (7)");
    assert_eq!(scene.seen[1].3, "over after 30.98 s: irqs-off of vCPU 0");
}

#[test]
fn a_cpu_that_idles_or_waits_for_the_host_with_interrupts_off_is_not_stuck() {
    for found in [
        Found { mode: Mode::Idle, ..OFF },
        Found { mode: Mode::Unknown, ..OFF },
        Found { mode: Mode::Boot, ..OFF },
        Found { state: VcpuState::Waiting, ..OFF },
        Found { state: VcpuState::Halted, mode: Mode::Idle, ..OFF },
    ] {
        let mut scene = Scene::new();
        scene.run(60, &of_vcpu_0(found));
        assert_eq!(scene.alerts(), [], "{found:?}");
    }
}

#[test]
fn a_task_that_never_leaves_the_kernel_is_a_lockup_only_without_a_switch() {
    let mut scene = Scene::new();
    let locked = Second { switches: false, ..of_vcpu_0(KERNEL) };
    scene.run(5, &Second::default()).run(20, &locked).run(3, &of_vcpu_0(KERNEL));
    assert_eq!(scene.alerts(), [(16, Begin, On::SoftLockup), (26, End, On::SoftLockup)]);
    let sentence = "vCPU 0 has run kernel code of dd (7) for 10.98 s without a switch to another task";
    assert_eq!(scene.seen[0].3, sentence);
    // Another task, or user code, without a switch that was counted: nothing is locked up.
    let mut scene = Scene::new();
    for second in 0..60 {
        scene.step(&Second { switches: false, ..of_vcpu_0(Found { tid: second / 9, ..KERNEL }) });
    }
    assert_eq!(scene.alerts(), []);
}

#[test]
fn time_without_samples_is_not_known() {
    let none = Second { vcpus: vec![None, Some(IDLE)], switches: false, ..Second::default() };
    let mut scene = Scene::new();
    // Sampling is off for a minute between samples that look the same.
    scene.run(3, &of_vcpu_0(OFF)).run(60, &none).run(3, &of_vcpu_0(OFF)).run(60, &none);
    assert_eq!(scene.alerts(), []);
    // What has begun is not over because nothing is seen.
    scene.run(10, &of_vcpu_0(OFF)).run(60, &none).run(1, &Second::default());
    let steps: Vec<_> = scene.alerts().into_iter().map(|(_, step, condition)| (step, condition)).collect();
    assert_eq!(steps, [(Begin, On::IrqsOff), (End, On::IrqsOff)]);
}

#[test]
fn a_machine_that_is_paused_has_that_alert_alone() {
    let asleep = vec![(3, 0)];
    let runs = Second { grace_period: Some(0x101), asleep: asleep.clone(), ..Second::default() };
    let paused = Second { paused: true, switches: false, ticks: false, ..runs.clone() };
    let after = Second { grace_period: Some(0x105), ..runs.clone() };
    let mut scene = Scene::new();
    scene.run(10, &runs).run(300, &paused).run(10, &after);
    assert_eq!(scene.alerts(), [(15, Begin, On::Paused), (311, End, On::Paused)]);
    // The task has slept for 20 s of the running machine; it is reported after 120 s of that.
    scene.run(99, &Second { grace_period: None, ..after.clone() });
    assert_eq!(scene.seen.len(), 2);
    scene.run(3, &Second { grace_period: None, ..after });
    assert_eq!(scene.alerts()[2..], [(420, Begin, On::BlockedTask)]);
}

#[test]
fn a_grace_period_that_does_not_end_is_a_stall() {
    let held = Second { grace_period: Some(0x101), ..Second::default() };
    let next = Second { grace_period: Some(0x104), ..Second::default() };
    let mut scene = Scene::new();
    scene.run(40, &held).run(60, &next);
    assert_eq!(scene.alerts(), [(22, Begin, On::RcuStall), (41, End, On::RcuStall)]);
    assert!(scene.seen[0].3.starts_with("a grace period of RCU has not ended for 21.00 s"));
}

#[test]
fn each_task_that_sleeps_for_long_has_an_alert() {
    let mut scene = Scene::new();
    scene.run(150, &Second { asleep: vec![(3, 0), (4, 20)], ..Second::default() });
    scene.run(2, &Second { asleep: vec![(3, 151), (4, 20)], ..Second::default() });
    let expected =
        [(120, Begin, On::BlockedTask), (140, Begin, On::BlockedTask), (151, End, On::BlockedTask)];
    assert_eq!(scene.alerts(), expected);
    assert_eq!(scene.seen[0].3, "thread 3 (dd) has been in uninterruptible sleep for 2 min 00 s");
    // Of very many, the first have an alert.
    let mut scene = Scene::new();
    scene.run(130, &Second { asleep: (1..=40).map(|tid| (tid, 0)).collect(), ..Second::default() });
    assert_eq!(scene.seen.len(), MOST_TASKS);
    assert!(scene.seen[0].3.ends_with("(24 more tasks, too)"), "{}", scene.seen[0].3);
}

#[test]
fn a_clock_that_does_not_advance_while_interrupts_are_served_is_a_lost_timer() {
    let lost = Second { ticks: false, ..Second::default() };
    let mut scene = Scene::new();
    scene.run(5, &Second::default()).run(15, &lost).run(2, &Second::default());
    assert_eq!(scene.alerts(), [(11, Begin, On::LostTimer), (21, End, On::LostTimer)]);
    // The CPU that keeps the clock is halted for good, or has interrupts off: no timer is lost.
    let mut scene = Scene::new();
    let panicked = Second { vcpus: vec![Some(DEAD), Some(USER)], ticks: false, ..Second::default() };
    scene.run(5, &Second::default()).run(15, &panicked);
    assert_eq!(scene.alerts(), []);
    let mut scene = Scene::new();
    let both = Second { vcpus: vec![Some(OFF), Some(USER)], ticks: false, ..Second::default() };
    scene.run(5, &Second::default()).run(15, &both);
    assert_eq!(scene.alerts(), [(11, Begin, On::IrqsOff)]);
    // A standstill of halted vCPUs.
    let mut scene = Scene::new();
    let halted = Second { vcpus: vec![Some(IDLE); 2], ticks: false, ..Second::default() };
    for second in 1..10 {
        scene.step(&Second { standstill_s: Some(second), ..halted.clone() });
    }
    scene.run(2, &Second::default());
    assert_eq!(scene.alerts(), [(5, Begin, On::LostTimer), (10, End, On::LostTimer)]);
}

#[test]
fn a_vcpu_that_waits_for_half_of_its_time_starves_and_its_taker_is_named() {
    let mut scene = Scene::new();
    let starved = Second { waiting: 0.8, ..Second::default() };
    scene.run(20, &Second::default()).run(20, &starved).run(20, &Second::default());
    let alerts = scene.alerts();
    let of_0: Vec<_> = alerts.iter().filter(|alert| alert.2 == On::Starved).collect();
    // Both vCPUs wait, each has its own alert; more than 5 s of waiting in 10 s.
    assert_eq!(of_0.len(), 4, "{alerts:?}");
    assert_eq!(of_0[0], &(27, Begin, On::Starved));
    let sentence = &scene.seen[0].3;
    assert!(sentence.starts_with("vCPU 0 has waited for a CPU of the host for 5."), "{sentence}");
    assert!(sentence.contains("; stress (99) took it at the begin of waits of 5."), "{sentence}");
}

#[test]
fn killed_processes_are_reported_at_once_and_have_no_end() {
    let mut scene = Scene::new();
    let kills = |kills| Second { kills, ..Second::default() };
    // Those before the watch are not its own.
    scene.run(3, &kills(2)).run(3, &kills(3)).run(3, &kills(5));
    assert_eq!(scene.alerts(), [(4, Begin, On::Oom), (7, Begin, On::Oom)]);
    assert_eq!(scene.seen[0].3, "the guest's kernel has killed 1 process for lack of memory");
    assert_eq!(scene.seen[1].3, "the guest's kernel has killed 2 processes for lack of memory");
}

#[test]
fn conditions_are_those_that_were_asked_for_and_can_be_judged() {
    let conditions = vec!["irqs-off:2s".parse().unwrap(), "paused".parse().unwrap()];
    let unjudged = vec![(On::Paused, "a test".to_owned())];
    let mut scene = Scene::of(WatchConfig { conditions, exit: false, unjudged });
    let stuck = Second { switches: false, kills: 3, grace_period: Some(1), ..of_vcpu_0(OFF) };
    scene.run(40, &stuck).run(40, &Second { paused: true, ..Second::default() });
    assert_eq!(scene.alerts(), [(3, Begin, On::IrqsOff)]);
}

#[test]
fn an_alert_has_the_latest_samples_and_the_tasks_that_sleep() {
    let mut watch = Scene::new();
    watch.run(5, &Second { asleep: vec![(3, 0)], ..of_vcpu_0(OFF) });
    let (record, row) = record(OFF, 6 * SECOND);
    watch.watch.sample(0, &record, &SampleRow { stack: Some(9), ..row });
    let inputs = WatchInputs {
        now_ns: 6 * SECOND,
        rates_hz: &[RATE_HZ; 2],
        kernel: None,
        sleepers: None,
        standstill: StandstillFinding::Unknown,
    };
    let alerts = watch.watch.check(&inputs, |_| "dd".to_owned());
    let [alert] = &alerts[..] else { panic!("{alerts:?}") };
    assert_eq!((alert.number, alert.vcpu, alert.since_ns), (1, Some(0), 0));
    assert_eq!(alert.vcpus.iter().map(|row| row.stack).collect::<Vec<_>>(), [Some(9), None]);
    assert_eq!(alert.blocked.iter().map(|task| task.task.tid).collect::<Vec<_>>(), [3]);
}

#[test]
fn after_a_stop_of_vprof_everything_begins_again() {
    let mut scene = Scene::new();
    scene.run(4, &of_vcpu_0(OFF));
    scene.watch.forget();
    scene.run(4, &of_vcpu_0(OFF));
    assert_eq!(scene.alerts(), []);
}
