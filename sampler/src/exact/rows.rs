//! From sums to rows.

use std::collections::HashMap;

use super::accounts::TaskSums;
use crate::resolve::resolver::SampleResolver;
use crate::task_state::{HandlerTimes, InterruptSource, TaskKey, WakeSource};
use profile::rows::{
    Batch, InterruptSourceRow, InterruptTimeRow, TaskDelayRow, TaskLifeRow, TaskRunRow, TaskStateRow,
    WakeupRow,
};

/// Unnamed sources, at most: the guest chooses the addresses of callers.
const WAITING: usize = 4_096;

fn vcpu_id(vcpu: usize) -> u8 {
    u8::try_from(vcpu).unwrap_or(u8::MAX)
}

/// Adds rows of all sums that need no name; times count from `zero_ns`, CLOCK_MONOTONIC.
pub(super) fn push(sums: &TaskSums, zero_ns: u64, batch: &mut Batch) {
    batch.task_states.extend(sums.states.iter().map(|((who, doing), sum)| TaskStateRow {
        instance: who.instance,
        tid: who.tid,
        state: doing.state,
        wait_reason: doing.wait_reason,
        stack: doing.stack,
        ns: sum.ns,
        count: sum.count,
    }));
    batch.task_lives.extend(sums.lives.iter().map(|life| TaskLifeRow {
        instance: life.who.instance,
        tid: life.who.tid,
        from_ns: life.from_ns.saturating_sub(zero_ns),
        to_ns: life.to_ns.saturating_sub(zero_ns),
        ended: life.ended,
    }));
    batch.wakeups.extend(sums.wakeups.iter().map(|((waker, woken), &count)| {
        let (by, waker) = match waker {
            WakeSource::Task(who) => ("task", *who),
            WakeSource::Hard => ("hard", TaskKey::default()),
            WakeSource::Soft => ("soft", TaskKey::default()),
        };
        WakeupRow {
            by: by.to_owned(),
            waker: waker.instance,
            waker_tid: waker.tid,
            woken: woken.instance,
            woken_tid: woken.tid,
            count,
        }
    }));
    batch.interrupt_times.extend(sums.interrupts.iter().map(|((vcpu, who), sum)| InterruptTimeRow {
        vcpu: vcpu_id(*vcpu),
        instance: who.instance,
        tid: who.tid,
        ns: sum.ns,
        count: sum.count,
    }));
}

/// Adds rows of runs and of waits for a CPU; times count from `zero_ns`, CLOCK_MONOTONIC.
pub(super) fn push_runs(sums: &TaskSums, zero_ns: u64, batch: &mut Batch) {
    batch.task_runs.extend(sums.runs.iter().map(|run| TaskRunRow {
        vcpu: vcpu_id(run.cpu),
        instance: run.who.instance,
        tid: run.who.tid,
        from_ns: run.from_ns.saturating_sub(zero_ns),
        wait_ns: run.times.wait_ns,
        delay_ns: run.times.delay_ns,
        running_ns: run.times.running_ns,
        interrupted_ns: run.times.interrupted_ns,
        sampler_ns: run.times.sampler_ns,
        state: run.then.state,
        wait_reason: run.then.wait_reason,
    }));
    batch.task_delays.extend(sums.delays.0.iter().map(|(key, sum)| TaskDelayRow {
        instance: key.who.instance,
        tid: key.who.tid,
        woken: key.woken,
        low_ns: key.low_ns,
        count: sum.count,
        ns: sum.ns,
        max_ns: sum.max_ns,
        max_from_ns: sum.max_from_ns.saturating_sub(zero_ns),
    }));
}

/// Times of interrupts that have no name yet: the device of a vector is read every few seconds.
#[derive(Debug, Default)]
pub(super) struct UnnamedSources(HashMap<(usize, InterruptSource), HandlerTimes>);

impl UnnamedSources {
    pub(super) fn add(&mut self, more: HashMap<(usize, InterruptSource), HandlerTimes>) {
        for (key, handled) in more {
            let (vcpu, _) = key;
            let has_room = self.0.len() < WAITING || self.0.contains_key(&key);
            let key = if has_room { key } else { (vcpu, InterruptSource::Unknown) };
            self.0.entry(key).or_default().add(&handled);
        }
    }

    /// Adds rows of the sources that have a name, and of all others if this is the `last` call.
    pub(super) fn push(&mut self, last: bool, resolver: &mut SampleResolver, batch: &mut Batch) {
        self.0.retain(|&(vcpu, source), handled| {
            let Some(interrupt) = resolver.source(vcpu, source, last, batch) else { return true };
            let vector = if let InterruptSource::Vector(vector) = source { vector } else { 0 };
            batch.interrupt_sources.push(InterruptSourceRow {
                vcpu: vcpu_id(vcpu),
                interrupt,
                vector,
                ns: handled.sum.ns,
                count: handled.sum.count,
                max_ns: handled.max_ns,
            });
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use profile::rows::{TaskState, WaitReason};

    use super::*;
    use crate::exact::runs::{RunTimes, TaskRun};
    use crate::task_state::{TaskActivity, TimeSum};

    #[test]
    fn times_of_runs_count_from_the_start() {
        let who = TaskKey { instance: 3, tid: 9 };
        let times = RunTimes { wait_ns: 1, delay_ns: 2, running_ns: 3, interrupted_ns: 4, sampler_ns: 5 };
        let then = TaskActivity { state: TaskState::Sleep, wait_reason: WaitReason::Pipe, stack: 7 };
        let run = TaskRun { who, cpu: 1, from_ns: 1_500, times, then };
        let mut sums = TaskSums { runs: vec![run], ..TaskSums::default() };
        sums.delays.count(who, true, (1_100, 1_300));
        let mut batch = Batch::default();
        push_runs(&sums, 1_000, &mut batch);
        let row = TaskRunRow {
            vcpu: 1,
            instance: 3,
            tid: 9,
            from_ns: 500,
            wait_ns: 1,
            delay_ns: 2,
            running_ns: 3,
            interrupted_ns: 4,
            sampler_ns: 5,
            state: TaskState::Sleep,
            wait_reason: WaitReason::Pipe,
        };
        assert_eq!(batch.task_runs, [row]);
        let (count, ns, max_ns) = (1, 200, 200);
        let row = TaskDelayRow {
            instance: 3,
            tid: 9,
            woken: true,
            low_ns: 192,
            count,
            ns,
            max_ns,
            max_from_ns: 100,
        };
        assert_eq!(batch.task_delays, [row]);
    }

    #[test]
    fn what_waits_for_names_is_bounded_and_nothing_is_lost() {
        let (mut sources, mut resolver, mut batch) =
            (UnnamedSources::default(), SampleResolver::new(0), Batch::default());
        let one = HandlerTimes { sum: TimeSum { ns: 3, count: 1 }, max_ns: 3 };
        for address in 0..2 * WAITING as u64 {
            sources.add(HashMap::from([((1, InterruptSource::Entry(address)), one)]));
        }
        sources.add(HashMap::from([((0, InterruptSource::Vector(35)), one)]));
        assert!(sources.0.len() <= WAITING + 2);
        sources.push(false, &mut resolver, &mut batch);
        assert!(batch.interrupt_sources.is_empty(), "nothing has a name yet");
        sources.push(true, &mut resolver, &mut batch);
        let count: u64 = batch.interrupt_sources.iter().map(|row| row.count).sum();
        assert_eq!((count, sources.0.len()), (2 * WAITING as u64 + 1, 0));
        let names: Vec<&str> = batch.interrupts.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["hard interrupt"]);
    }
}
