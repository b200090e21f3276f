//! From sums to rows.

use std::collections::HashMap;

use super::accounts::Sums;
use super::state::{Handled, Source, Waker, Who};
use crate::batch::{Batch, InterruptSourceRow, InterruptTimeRow, TaskLifeRow, TaskStateRow, WakeupRow};
use crate::collector::resolver::Resolver;

fn vcpu_id(vcpu: usize) -> u8 {
    u8::try_from(vcpu).unwrap_or(u8::MAX)
}

/// Rows of all that is named already; times are told from `zero_ns`, CLOCK_MONOTONIC.
pub(super) fn push(sums: &Sums, zero_ns: u64, batch: &mut Batch) {
    batch.task_states.extend(sums.states.iter().map(|((who, doing), sum)| TaskStateRow {
        instance: who.instance,
        tid: who.tid,
        state: doing.state,
        cause: doing.cause,
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
            Waker::Task(who) => ("task", *who),
            Waker::Hard => ("hard", Who::default()),
            Waker::Soft => ("soft", Who::default()),
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

/// Times of interrupts that wait for their names: which device has a vector is read every few seconds.
#[derive(Debug, Default)]
pub(super) struct Sources(HashMap<(usize, Source), Handled>);

impl Sources {
    pub(super) fn add(&mut self, more: HashMap<(usize, Source), Handled>) {
        for (key, handled) in more {
            self.0.entry(key).or_default().add(&handled);
        }
    }

    /// Rows of those that have a name, and of all others if this is the `last` chance.
    pub(super) fn push(&mut self, last: bool, resolver: &mut Resolver, batch: &mut Batch) {
        self.0.retain(|&(vcpu, source), handled| {
            let Some(interrupt) = resolver.source(vcpu, source, last, batch) else { return true };
            let vector = if let Source::Vector(vector) = source { vector } else { 0 };
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
