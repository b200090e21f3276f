//! Reactions of the collector to awaited conditions.

use std::sync::atomic::Ordering;

use vmm::monotonic_ns;

use super::Collector;
use crate::conditions::GateAction;
use crate::record::SampleRecord;
use crate::shared::GateCommand;
use profile::conditions::{Condition, RunTrigger};
use profile::rows::AWAITED;

impl Collector {
    /// Takes the session's commands, as of `at_ns` since the run's start, or as of now.
    pub(super) fn take_waits(&mut self, at_ns: Option<u64>) {
        for command in self.shared.commands() {
            let now_ns = at_ns.unwrap_or_else(|| self.now_ns());
            match command {
                GateCommand::Await(wait) => {
                    if let RunTrigger::Start(condition) = &wait {
                        self.batch.meta.push((AWAITED.to_owned(), condition.to_string()));
                    }
                    if self.gate.arm(wait, now_ns) {
                        self.close_at(now_ns);
                    }
                }
                GateCommand::Open => {
                    if self.gate.open(now_ns) {
                        self.open_at(now_ns);
                    }
                }
            }
        }
    }

    /// Checks the conditions, and reacts to those that are met.
    pub(super) fn wait(&mut self) {
        self.gate.scan(&self.batch);
        let now_ns = self.now_ns();
        for action in self.gate.decide(now_ns) {
            match action {
                GateAction::Open(condition) => {
                    self.open_at(now_ns);
                    self.saw(&condition, "sampling begins");
                }
                GateAction::Close(condition, end) => {
                    self.close_at(now_ns);
                    self.saw(&condition, "sampling ends");
                    if end {
                        self.shared.reached.set();
                    }
                }
                GateAction::End(condition) => {
                    self.saw(&condition, "the run ends");
                    self.shared.reached.set();
                }
                GateAction::Panicked => {
                    self.event("panic", "the guest's kernel has panicked: the run ends".to_owned());
                    self.shared.reached.set();
                }
                GateAction::Still(still) => {
                    self.event(
                        "still",
                        format!("the guest has made no progress for {still:.1?}: the run ends"),
                    );
                    self.shared.reached.set();
                }
            }
        }
        if let Some(finder) = &self.finder {
            finder.wanted.task_lists(self.gate.needs_tasks());
        }
        let awaits_start = self.gate.awaits_start();
        if self.shared.status().awaits_start != awaits_start {
            self.shared.change(|status| status.awaits_start = awaits_start);
        }
    }

    /// Drops a sample.
    pub(super) fn pass_over(&mut self, vcpu: usize, record: &SampleRecord) {
        self.resolver.pass_over(record);
        self.counters.pass_over(vcpu);
        self.shared.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    fn open_at(&mut self, time_ns: u64) {
        self.batch.meta.push((AWAITED.to_owned(), String::new()));
        self.batch.rates.extend(self.counters.rate_rows(time_ns));
        self.shared.change(|status| status.sampling = true);
    }

    fn close_at(&mut self, time_ns: u64) {
        let rows = self.counters.rate_rows(time_ns);
        self.batch.rates.extend(rows.map(|row| profile::rows::RateRow { rate_hz: 0.0, ..row }));
        self.shared.change(|status| status.sampling = false);
    }

    fn saw(&mut self, condition: &Condition, so: &str) {
        self.event("condition", format!("{}: {so}", display::clean::printable(&condition.to_string())));
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.shared.zero_ns)
    }
}
