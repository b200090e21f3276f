use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::exact::runs::{DelayKey, DelaySum};
use profile::rows::WaitReason;

fn task(number: u64) -> TaskId {
    let tid = i32::try_from(number).unwrap();
    TaskId { address: 0x1000 + number, who: TaskKey { instance: 1, tid } }
}

fn doing(state: TaskState) -> SwitchOutcome {
    SwitchOutcome::In(TaskActivity::plain(state))
}

fn ns(sums: &TaskSums, number: u64, state: TaskState) -> u64 {
    let mine = |((who, doing), sum): (&(TaskKey, TaskActivity), &TimeSum)| {
        (*who == task(number).who && doing.state == state).then_some(sum.ns)
    };
    sums.states.iter().filter_map(mine).sum()
}

#[test]
fn a_task_from_its_start_to_its_release() {
    let mut a = TaskAccounts::new(1);
    a.runs(0, 0, Some(task(1)));
    a.starts(100, task(2));
    a.switch(150, 0, Some((task(1), doing(TaskState::Sleep))), Some(task(2)));
    a.interrupt_begin(200, 0, InterruptSource::Entry(7));
    a.interrupt_vector(0, 35);
    a.wake(210, 0, Some(WakeSource::Hard), task(1));
    a.interrupt_end(230, 0);
    a.switch(300, 0, Some((task(2), doing(TaskState::Zombie))), Some(task(1)));
    a.release(340, task(2).address);
    a.switch(400, 0, Some((task(1), doing(TaskState::Disk))), None);
    a.settle(500);
    let sums = a.take();
    let of = |number| TaskState::ALL.map(|state| ns(&sums, number, state));
    assert_eq!(of(2), [120, 30, 0, 50, 0, 0, 0, 40, 0]);
    assert_eq!(of(1), [250, 0, 0, 90, 60, 100, 0, 0, 0]);
    assert_eq!(sums.wakeups, HashMap::from([((WakeSource::Hard, task(1).who), 1)]));
    assert_eq!(sums.interrupts, HashMap::from([((0, task(2).who), TimeSum { ns: 30, count: 1 })]));
    let handled = HandlerTimes { sum: TimeSum { ns: 30, count: 1 }, max_ns: 30 };
    assert_eq!(sums.sources, HashMap::from([((0, InterruptSource::Vector(35)), handled)]));
    assert_eq!(a.idle_ns(0), 100);
    let ended = TaskLife { who: task(2).who, from_ns: 100, to_ns: 340, ended: true };
    assert!(sums.lives.contains(&ended), "{:?}", sums.lives);
}

#[test]
fn what_vprof_takes_is_not_time_of_the_guest() {
    let mut a = TaskAccounts::new(1);
    a.runs(0, 0, Some(task(1)));
    // Before the first event nothing is known of vprof's time.
    a.served(0, 1_000);
    a.interrupt_begin(100, 0, InterruptSource::Entry(7));
    a.served(0, 1_015);
    a.interrupt_end(130, 0);
    // A settlement comes before the event that reports the time served before it.
    a.settle(150);
    a.served(0, 1_045);
    a.switch(200, 0, Some((task(1), doing(TaskState::Sleep))), None);
    a.served(0, 1_055);
    a.wake(250, 0, Some(WakeSource::Hard), task(1));
    a.switch(300, 0, None, Some(task(1)));
    a.settle(400);
    let sums = a.take();
    let of = TaskState::ALL.map(|state| ns(&sums, 1, state));
    assert_eq!(of, [100 + 20 + 20 + 100, 15, 45, 50, 50, 0, 0, 0, 0]);
    assert_eq!(sums.interrupts, HashMap::from([((0, task(1).who), TimeSum { ns: 15, count: 1 })]));
}

#[test]
fn a_run_has_the_waits_before_it() {
    let mut a = TaskAccounts::new(2);
    a.runs(0, 0, Some(task(1)));
    let futex = TaskActivity { state: TaskState::Sleep, wait_reason: WaitReason::Futex, stack: 7 };
    a.switch(100, 0, Some((task(1), SwitchOutcome::In(futex))), Some(task(2)));
    a.wake(130, 1, None, task(1));
    a.settle(140);
    a.switch(150, 1, None, Some(task(1)));
    a.interrupt_begin(160, 1, InterruptSource::Unknown);
    a.interrupt_end(165, 1);
    // Preempted, and still waiting when the data ends; the other task still runs then.
    a.switch(200, 1, Some((task(1), doing(TaskState::Runnable))), Some(task(3)));
    a.switch(260, 1, Some((task(3), SwitchOutcome::Gone)), None);
    a.settle(290);
    a.finish();
    let sums = a.take();
    let times = |wait_ns, delay_ns, running_ns, interrupted_ns| RunTimes {
        wait_ns,
        delay_ns,
        running_ns,
        interrupted_ns,
        sampler_ns: 0,
    };
    let run =
        |number, cpu, from_ns, times, then| TaskRun { who: task(number).who, cpu, from_ns, times, then };
    let plain = TaskActivity::plain;
    assert_eq!(
        sums.runs,
        [
            run(1, 0, 0, times(0, 0, 100, 0), futex),
            run(1, 1, 150, times(30, 20, 45, 5), plain(TaskState::Runnable)),
            run(3, 1, 200, times(0, 0, 60, 0), plain(TaskState::Zombie)),
            run(2, 0, 100, times(0, 0, 190, 0), plain(TaskState::Running)),
        ]
    );
    assert_eq!(a.runs, 4);
    let delay = |woken, from_ns, ns| {
        let key = DelayKey { who: task(1).who, woken, low_ns: if ns < 64 { 0 } else { 88 } };
        (key, DelaySum { count: 1, ns, max_ns: ns, max_from_ns: from_ns })
    };
    assert_eq!(sums.delays.0, HashMap::from([delay(true, 130, 20), delay(false, 200, 90)]));
}

#[test]
fn the_longest_wait_of_a_bucket_has_its_begin() {
    let mut delays = Delays::default();
    for wait in [(100, 110), (200, 250), (300, 350)] {
        delays.count(task(1).who, true, wait);
    }
    let sum = DelaySum { count: 3, ns: 110, max_ns: 50, max_from_ns: 200 };
    let key = DelayKey { who: task(1).who, woken: true, low_ns: 0 };
    assert_eq!(delays.0, HashMap::from([(key, sum)]));
}

#[test]
fn a_run_whose_end_was_lost_ends_with_the_next_one() {
    let mut a = TaskAccounts::new(2);
    a.runs(0, 0, Some(task(1)));
    a.switch(50, 1, None, Some(task(1)));
    a.lose(80);
    let runs = a.take().runs;
    let found: Vec<_> =
        runs.iter().map(|run| (run.cpu, run.from_ns, run.times.running_ns, run.then.state)).collect();
    assert_eq!(found, [(0, 0, 50, TaskState::Unknown), (1, 50, 30, TaskState::Unknown)]);
}

#[test]
fn a_thread_that_is_released_before_its_last_switch_ends_there() {
    let mut a = TaskAccounts::new(1);
    a.runs(0, 0, Some(task(1)));
    a.release(10, task(1).address);
    a.switch(30, 0, Some((task(1), doing(TaskState::Zombie))), None);
    let lives = a.take().lives;
    assert_eq!(lives, [TaskLife { who: task(1).who, from_ns: 0, to_ns: 30, ended: true }]);
}

#[test]
fn a_wake_on_the_way_to_sleep_leaves_the_word_to_the_switch() {
    let mut a = TaskAccounts::new(1);
    a.runs(0, 0, Some(task(1)));
    a.wake(10, 0, None, task(1));
    a.switch(20, 0, Some((task(1), doing(TaskState::Runnable))), Some(task(2)));
    a.settle(50);
    let sums = a.take();
    assert_eq!((ns(&sums, 1, TaskState::Running), ns(&sums, 1, TaskState::Runnable)), (20, 30));
    assert_eq!(sums.wakeups, HashMap::from([((WakeSource::Task(task(1).who), task(1).who), 1)]));
    assert_eq!(a.unseen_wakes, 0);
}

#[test]
fn interrupts_are_counted_by_their_source() {
    let mut a = TaskAccounts::new(1);
    for (begin, length, source, vector) in [
        (100, 10, InterruptSource::Entry(1), None),
        (200, 30, InterruptSource::Entry(1), None),
        (300, 7, InterruptSource::Entry(2), Some(40)),
        (400, 8, InterruptSource::Unknown, Some(40)),
    ] {
        a.interrupt_begin(begin, 0, source);
        vector.into_iter().for_each(|vector| a.interrupt_vector(0, vector));
        a.interrupt_end(begin + length, 0);
    }
    // A vector without a handler's start is ignored.
    a.interrupt_vector(0, 41);
    let handled = |ns, count, max_ns| HandlerTimes { sum: TimeSum { ns, count }, max_ns };
    let wanted = [
        ((0, InterruptSource::Entry(1)), handled(40, 2, 30)),
        ((0, InterruptSource::Vector(40)), handled(15, 2, 8)),
    ];
    assert_eq!(a.take().sources, HashMap::from(wanted));
}

#[test]
fn what_is_lost_is_unknown_until_it_is_seen_again() {
    let mut a = TaskAccounts::new(2);
    a.runs(0, 0, Some(task(1)));
    a.exists(0, task(2), TaskActivity::plain(TaskState::Sleep));
    a.lose(10);
    a.switch(30, 1, None, Some(task(2)));
    // A switch from a task that this CPU was not seen to run.
    a.switch(40, 1, Some((task(3), doing(TaskState::Runnable))), None);
    a.settle(60);
    let sums = a.take();
    assert_eq!((ns(&sums, 1, TaskState::Unknown), ns(&sums, 1, TaskState::Running)), (50, 10));
    assert_eq!((ns(&sums, 2, TaskState::Unknown), ns(&sums, 2, TaskState::Running)), (40, 10));
    assert_eq!(ns(&sums, 3, TaskState::Runnable), 20);
}

#[derive(Debug, Clone)]
enum AccountStep {
    Switch(usize, u64, u8, Option<u64>),
    Wake(usize, u64),
    Starts(u64),
    Release(u64),
    Begin(usize),
    End(usize),
    Lose,
    Settle,
}

fn step() -> impl Strategy<Value = AccountStep> {
    let (cpu, number) = (0usize..3, 0u64..6);
    prop_oneof![
        6 => (cpu.clone(), number.clone(), 0u8..7, proptest::option::of(number.clone()))
            .prop_map(|(cpu, from, left, to)| AccountStep::Switch(cpu, from, left, to)),
        3 => (cpu.clone(), number.clone()).prop_map(|(cpu, n)| AccountStep::Wake(cpu, n)),
        1 => number.clone().prop_map(AccountStep::Starts),
        1 => number.prop_map(AccountStep::Release),
        2 => cpu.clone().prop_map(AccountStep::Begin),
        2 => cpu.prop_map(AccountStep::End),
        1 => Just(AccountStep::Lose),
        1 => Just(AccountStep::Settle),
    ]
}

proptest! {
    /// Whatever events come, in any order: the states of each task add up to its lifetime, its runs and waits
    /// to the times of these states, and nothing panics.
    #[test]
    fn states_add_up_to_lifetimes(steps in prop::collection::vec((step(), -5i64..40), 0..200)) {
        let mut a = TaskAccounts::new(2);
        let (mut now, mut latest) = (1_000i64, 1_000);
        let mut spent: BTreeMap<TaskKey, u64> = BTreeMap::new();
        let mut lived: BTreeMap<TaskKey, u64> = BTreeMap::new();
        let mut open: BTreeMap<TaskKey, u64> = BTreeMap::new();
        let mut ran = RunSums::default();
        for (step, by) in steps {
            now = (now + by).max(0);
            latest = latest.max(now);
            let t = u64::try_from(now).unwrap();
            match step {
                AccountStep::Switch(cpu, from, left, to) => {
                    let left = match left {
                        0 => SwitchOutcome::Gone,
                        1 => doing(TaskState::Runnable),
                        2 => doing(TaskState::Zombie),
                        3 => doing(TaskState::Disk),
                        4 => doing(TaskState::Stopped),
                        _ => SwitchOutcome::In(TaskActivity { state: TaskState::Sleep, wait_reason: WaitReason::Pipe, stack: 7 }),
                    };
                    a.switch(t, cpu, Some((task(from), left)), to.map(task));
                }
                AccountStep::Wake(cpu, n) => a.wake(t, cpu, None, task(n)),
                AccountStep::Starts(n) => a.starts(t, task(n)),
                AccountStep::Release(n) => a.release(t, task(n).address),
                AccountStep::Begin(cpu) => a.interrupt_begin(t, cpu, InterruptSource::Entry(t)),
                AccountStep::End(cpu) => a.interrupt_end(t, cpu),
                AccountStep::Lose => a.lose(t),
                AccountStep::Settle => a.settle(t),
            }
            let sums = a.take();
            ran.add(&sums);
            gather(sums, &mut spent, &mut lived, &mut open);
            // Also in between, so that a run that is cut short has consistent sums.
            let sum = |map: &BTreeMap<TaskKey, u64>| map.values().sum::<u64>();
            prop_assert_eq!(sum(&spent), sum(&lived) + sum(&open));
        }
        a.settle(u64::try_from(latest).unwrap());
        a.finish();
        let sums = a.take();
        ran.add(&sums);
        ran.check();
        prop_assert_eq!(ran.count, a.runs);
        gather(sums, &mut spent, &mut lived, &mut open);
        for (who, length) in open {
            *lived.entry(who).or_default() += length;
        }
        lived.retain(|_, ns| *ns > 0);
        prop_assert_eq!(spent, lived);
    }
}

/// Sums of runs and of waits for a CPU, and of the states that they are parts of.
#[derive(Debug, Default)]
struct RunSums {
    count: u64,
    runs: BTreeMap<TaskKey, RunTimes>,
    states: BTreeMap<TaskKey, RunTimes>,
    delays: BTreeMap<TaskKey, TimeSum>,
    runnable: BTreeMap<TaskKey, TimeSum>,
}

impl RunSums {
    fn add(&mut self, sums: &TaskSums) {
        self.count += sums.runs.len() as u64;
        for TaskRun { who, times, .. } in &sums.runs {
            let sum = self.runs.entry(*who).or_default();
            sum.add(TaskState::Sleep, times.wait_ns);
            sum.add(TaskState::Runnable, times.delay_ns);
            sum.add(TaskState::Running, times.running_ns);
            sum.add(TaskState::Interrupted, times.interrupted_ns);
            sum.add(TaskState::Sampler, times.sampler_ns);
        }
        for ((who, doing), sum) in &sums.states {
            self.states.entry(*who).or_default().add(doing.state, sum.ns);
            if doing.state == TaskState::Runnable {
                let runnable = self.runnable.entry(*who).or_default();
                (runnable.ns, runnable.count) = (runnable.ns + sum.ns, runnable.count + sum.count);
            }
        }
        for (key, sum) in &sums.delays.0 {
            let delays = self.delays.entry(key.who).or_default();
            (delays.ns, delays.count) = (delays.ns + sum.ns, delays.count + sum.count);
            assert!(sum.max_ns >= key.low_ns && sum.max_ns <= sum.ns, "{key:?} {sum:?}");
        }
    }

    fn check(&self) {
        assert_eq!(self.delays, self.runnable);
        for (who, states) in &self.states {
            let runs = self.runs.get(who).copied().unwrap_or_default();
            let on_cpu = |times: &RunTimes| (times.running_ns, times.interrupted_ns, times.sampler_ns);
            assert_eq!(on_cpu(&runs), on_cpu(states), "{who:?}");
            // The last waits may have no run.
            assert!(runs.wait_ns <= states.wait_ns && runs.delay_ns <= states.delay_ns, "{who:?}");
        }
    }
}

/// Adds the times in each state, and the lifetimes: those of ended tasks, and the last ones of each live
/// task.
fn gather(
    sums: TaskSums,
    spent: &mut BTreeMap<TaskKey, u64>,
    lived: &mut BTreeMap<TaskKey, u64>,
    open: &mut BTreeMap<TaskKey, u64>,
) {
    for ((who, _), sum) in sums.states {
        if sum.ns > 0 {
            *spent.entry(who).or_default() += sum.ns;
        }
    }
    for life in sums.lives {
        let length = life.to_ns - life.from_ns;
        if life.ended {
            *lived.entry(life.who).or_default() += length;
            open.remove(&life.who);
        } else {
            open.insert(life.who, length);
        }
    }
}
