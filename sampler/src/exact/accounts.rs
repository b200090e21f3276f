//! Accounts of every task's states: one clock per task, which is always in exactly one state (Chubb).
//!
//! ```text
//!   new ──▶ queue ──switch to──▶ running ──interrupt──▶ interrupted
//!             ▲                  │    ▲                      │
//!             │                  │    └──────────────────────┘
//!   wake      │   switch from, by the task's own state: queue, sleep, disk, stopped, zombie, or gone
//!             └─── sleep, disk, stopped ◀┘
//! ```
//!
//! Time that vprof itself takes from a CPU (for ticks, events, and the switches to the host for these) is not
//! time of `running` or `interrupted` but of `sampler`.
//!
//! The module knows neither guest, thread nor profile: times and tasks come in, sums go out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use profile::rows::TaskState;

use super::runs::{Delays, RunTimes, TaskRun};
use crate::task_state::{
    HandlerTimes, InterruptSource, SwitchOutcome, TaskActivity, TaskId, TaskKey, TaskLife, TimeSum,
    WakeSource,
};

/// Tasks that are followed, at most; events about others are counted.
const TASKS: usize = 1 << 17;

#[derive(Debug, Clone, Copy)]
struct FollowedTask {
    who: TaskKey,
    doing: TaskActivity,
    /// Begin of the present state.
    began_ns: u64,
    /// Time up to which the present state is charged.
    since_ns: u64,
    from_ns: u64,
    /// The present state began with a wake-up.
    woken: bool,
    /// CPU and begin of the last run.
    run_cpu: usize,
    run_from_ns: u64,
    times: RunTimes,
    /// The task ends with its next switch.
    released: bool,
    /// The task was charged since the sums were last taken.
    charged: bool,
    /// Time on a CPU that vprof has taken from the task, not charged yet.
    served_ns: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct CpuState {
    /// Current task; `None`: idle, or not known yet.
    current: Option<u64>,
    /// Start of the idle period.
    idle_since: Option<u64>,
    /// Start of the interrupt that is being served, and its source.
    interrupted: Option<(u64, InterruptSource)>,
    /// Time that vprof has taken in total, and within the interrupt.
    served_ns: Option<u64>,
    interrupt_served_ns: u64,
    idle_ns: u64,
}

/// Sums since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct TaskSums {
    pub states: HashMap<(TaskKey, TaskActivity), TimeSum>,
    pub wakeups: HashMap<(WakeSource, TaskKey), u64>,
    /// Hard interrupts by CPU and interrupted task.
    pub interrupts: HashMap<(usize, TaskKey), TimeSum>,
    /// Hard interrupts by CPU and source.
    pub sources: HashMap<(usize, InterruptSource), HandlerTimes>,
    pub lives: Vec<TaskLife>,
    /// Runs that have ended, in the order of their ends.
    pub runs: Vec<TaskRun>,
    pub delays: Delays,
}

/// The accounts of all tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskAccounts {
    tasks: HashMap<u64, FollowedTask>,
    cpus: Vec<CpuState>,
    sums: TaskSums,
    /// Tasks that ran although they were asleep: their wake-up was missed.
    pub unseen_wakes: u64,
    /// Events about tasks beyond the limit.
    pub untracked: u64,
    /// Runs that have ended.
    pub runs: u64,
}

impl TaskAccounts {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { cpus: vec![CpuState::default(); cpus], ..Self::default() }
    }

    /// Notes a task that exists when following begins.
    pub(crate) fn exists(&mut self, time_ns: u64, task: TaskId, doing: TaskActivity) {
        self.enter(time_ns, task, doing);
    }

    /// Notes what a CPU runs when following begins.
    pub(crate) fn runs(&mut self, time_ns: u64, cpu: usize, task: Option<TaskId>) {
        if let Some(task) = task {
            self.enter_cpu(time_ns, cpu, task);
        }
        if let Some(cpu) = self.cpus.get_mut(cpu) {
            cpu.current = task.map(|task| task.address);
            cpu.idle_since = if task.is_none() { Some(time_ns) } else { None };
        }
    }

    /// Notes the total time that vprof has taken from a CPU. Each event reports it, before the event itself.
    pub(crate) fn served(&mut self, cpu: usize, in_all_ns: u64) {
        let current = self.current(cpu);
        let Some(cpu) = self.cpus.get_mut(cpu) else { return };
        let before = cpu.served_ns.replace(in_all_ns);
        let ns = before.map_or(0, |before| in_all_ns.saturating_sub(before));
        cpu.interrupt_served_ns = cpu.interrupt_served_ns.saturating_add(ns);
        if let Some((id, state)) = current
            && state.is_on_cpu()
            && let Some(task) = self.tasks.get_mut(&id.address)
        {
            task.served_ns = task.served_ns.saturating_add(ns);
        }
    }

    /// Notes a switch on a CPU. Idle tasks are `None`.
    pub(crate) fn switch(
        &mut self,
        time_ns: u64,
        cpu: usize,
        previous: Option<(TaskId, SwitchOutcome)>,
        next: Option<TaskId>,
    ) {
        self.interrupt_end(time_ns, cpu);
        let before = self.cpus.get(cpu).and_then(|cpu| cpu.current);
        // A switch in between was lost: the earlier task no longer runs.
        if let Some(before) = before.filter(|&before| previous.is_none_or(|(id, _)| id.address != before))
            && let Some(task) = self.tasks.get(&before).copied()
            && task.doing.state.is_on_cpu()
        {
            let id = TaskId { address: before, who: task.who };
            self.enter(time_ns, id, TaskActivity::plain(TaskState::Unknown));
        }
        // The previous task leaves before the next one enters: both may be the same task.
        match previous {
            Some((id, SwitchOutcome::In(doing))) => {
                self.enter(time_ns, id, doing);
                let released = self.tasks.get(&id.address).is_some_and(|task| task.released);
                if released && doing.state == TaskState::Zombie {
                    self.end(time_ns, id.address);
                }
            }
            Some((id, SwitchOutcome::Gone)) => {
                self.enter(time_ns, id, TaskActivity::plain(TaskState::Zombie));
                self.end(time_ns, id.address);
            }
            None => {}
        }
        // A task that runs was awake, so a sleep without a wake-up means that the wake-up was missed.
        if let Some(next) = next {
            let asleep = |task: &FollowedTask| {
                matches!(task.doing.state, TaskState::Sleep | TaskState::Disk | TaskState::Stopped)
            };
            self.unseen_wakes += u64::from(self.tasks.get(&next.address).is_some_and(asleep));
            self.enter_cpu(time_ns, cpu, next);
        }
        let Some(cpu) = self.cpus.get_mut(cpu) else { return };
        cpu.current = next.map(|next| next.address);
        cpu.charge_idle(time_ns);
        cpu.idle_since = if next.is_none() { Some(time_ns) } else { None };
    }

    /// Notes a wake-up of a task on `cpu`.
    pub(crate) fn wake(&mut self, time_ns: u64, cpu: usize, by: Option<WakeSource>, woken: TaskId) {
        let current = self.cpus.get(cpu).and_then(|cpu| self.tasks.get(&cpu.current?));
        let by = by.unwrap_or(WakeSource::Task(current.map_or(TaskKey::default(), |task| task.who)));
        *self.sums.wakeups.entry((by, woken.who)).or_default() += 1;
        match self.tasks.get(&woken.address).map(|task| task.doing.state) {
            // The task is on its way to sleep: the switch from it shows its state.
            Some(TaskState::Running | TaskState::Interrupted | TaskState::Runnable | TaskState::Zombie) => {}
            _ => self.enter_woken(time_ns, woken),
        }
    }

    /// Notes a new task that waits for its first CPU.
    pub(crate) fn starts(&mut self, time_ns: u64, task: TaskId) {
        self.end(time_ns, task.address);
        self.enter_woken(time_ns, task);
    }

    /// Notes that no process waits for the task any longer.
    pub(crate) fn release(&mut self, time_ns: u64, address: u64) {
        match self.tasks.get_mut(&address) {
            Some(task) if task.doing.state == TaskState::Zombie => self.end(time_ns, address),
            // The task is still on its way to its last switch.
            Some(task) => task.released = true,
            None => {}
        }
    }

    /// Returns the task that a CPU runs; `None` while the CPU is idle.
    pub(crate) fn runs_on(&self, cpu: usize) -> Option<TaskKey> {
        self.current(cpu).map(|(id, _)| id.who)
    }

    /// Notes that a CPU begins to serve a hard interrupt.
    pub(crate) fn interrupt_begin(&mut self, time_ns: u64, cpu: usize, source: InterruptSource) {
        self.interrupt_end(time_ns, cpu);
        let Some(at) = self.cpus.get_mut(cpu) else { return };
        at.interrupted = Some((time_ns, source));
        at.interrupt_served_ns = 0;
        if let Some((id, TaskState::Running)) = self.current(cpu) {
            self.enter(time_ns, id, TaskActivity::plain(TaskState::Interrupted));
        }
    }

    /// Notes the vector of the interrupt that is being served.
    pub(crate) fn interrupt_vector(&mut self, cpu: usize, vector: u8) {
        if let Some((_, source)) = self.cpus.get_mut(cpu).and_then(|cpu| cpu.interrupted.as_mut()) {
            *source = InterruptSource::Vector(vector);
        }
    }

    /// Notes that a CPU has served a hard interrupt.
    pub(crate) fn interrupt_end(&mut self, time_ns: u64, cpu: usize) {
        let Some(at) = self.cpus.get_mut(cpu) else { return };
        let Some((since_ns, source)) = at.interrupted.take() else { return };
        let served_ns = at.interrupt_served_ns;
        let current = self.current(cpu);
        let who = current.map_or(TaskKey::default(), |(id, _)| id.who);
        let ns = time_ns.saturating_sub(since_ns).saturating_sub(served_ns);
        self.sums.interrupts.entry((cpu, who)).or_default().add(ns);
        let one = HandlerTimes { sum: TimeSum { ns, count: 1 }, max_ns: ns };
        self.sums.sources.entry((cpu, source)).or_default().add(&one);
        if let Some((id, TaskState::Interrupted)) = current {
            self.enter(time_ns, id, TaskActivity::plain(TaskState::Running));
        }
    }

    fn current(&self, cpu: usize) -> Option<(TaskId, TaskState)> {
        let address = self.cpus.get(cpu)?.current?;
        let task = self.tasks.get(&address)?;
        Some((TaskId { address, who: task.who }, task.doing.state))
    }

    /// Notes that events were lost: the state of every task is unknown until its next event.
    pub(crate) fn lose(&mut self, time_ns: u64) {
        let tasks: Vec<TaskId> =
            self.tasks.iter().map(|(&address, task)| TaskId { address, who: task.who }).collect();
        for id in tasks {
            self.enter(time_ns, id, TaskActivity::plain(TaskState::Unknown));
        }
        for cpu in &mut self.cpus {
            cpu.charge_idle(time_ns);
            (cpu.current, cpu.idle_since, cpu.interrupted, cpu.served_ns) = (None, None, None, None);
        }
    }

    /// Charges all tasks up to this time, so that the sums are complete.
    pub(crate) fn settle(&mut self, time_ns: u64) {
        for task in self.tasks.values_mut() {
            charge(task, time_ns, &mut self.sums);
        }
        self.cpus.iter_mut().for_each(|cpu| cpu.charge_idle(time_ns));
    }

    /// Ends the runs and the waits for a CPU that are in progress: no event follows. All tasks have been
    /// charged.
    pub(crate) fn finish(&mut self) {
        for task in self.tasks.values_mut() {
            task.leave(task.doing, &mut self.sums);
        }
    }

    /// Takes the sums since the last call, with the lifetimes of the tasks in them.
    pub(crate) fn take(&mut self) -> TaskSums {
        self.runs += self.sums.runs.len() as u64;
        let mut sums = std::mem::take(&mut self.sums);
        for task in self.tasks.values_mut().filter(|task| task.charged) {
            task.charged = false;
            let FollowedTask { who, from_ns, since_ns, .. } = *task;
            sums.lives.push(TaskLife { who, from_ns, to_ns: since_ns, ended: false });
        }
        sums
    }

    /// Returns the time in which the CPU had nothing to run, interrupts included, ns.
    pub(crate) fn idle_ns(&self, cpu: usize) -> u64 {
        self.cpus.get(cpu).map_or(0, |cpu| cpu.idle_ns)
    }

    /// Changes the state of a task. Returns it; `None` if it is beyond the limit.
    fn enter(&mut self, time_ns: u64, id: TaskId, doing: TaskActivity) -> Option<&mut FollowedTask> {
        if self.tasks.get(&id.address).is_some_and(|task| task.who != id.who) {
            // An exec of another thread than the first gives it the first one's ids; or the end of the task
            // was missed.
            self.end(time_ns, id.address);
        }
        let has_room = self.tasks.len() < TASKS;
        let task = match self.tasks.entry(id.address) {
            Entry::Occupied(known) => {
                let task = known.into_mut();
                charge(task, time_ns, &mut self.sums);
                if !(task.doing.state.is_on_cpu() && doing.state.is_on_cpu()) {
                    task.leave(doing, &mut self.sums);
                }
                (task.doing, task.began_ns, task.woken) = (doing, task.since_ns, false);
                if !doing.state.is_on_cpu() {
                    task.served_ns = 0;
                }
                task
            }
            Entry::Vacant(place) if has_room => place.insert(FollowedTask {
                who: id.who,
                doing,
                began_ns: time_ns,
                since_ns: time_ns,
                from_ns: time_ns,
                woken: false,
                run_cpu: 0,
                run_from_ns: time_ns,
                times: RunTimes::default(),
                released: false,
                charged: true,
                served_ns: 0,
            }),
            Entry::Vacant(_) => {
                self.untracked += 1;
                return None;
            }
        };
        self.sums.states.entry((id.who, doing)).or_default().count += 1;
        Some(task)
    }

    /// Has a task wait for a CPU from its wake-up on.
    fn enter_woken(&mut self, time_ns: u64, id: TaskId) {
        if let Some(task) = self.enter(time_ns, id, TaskActivity::plain(TaskState::Runnable)) {
            task.woken = true;
        }
    }

    /// Begins a run of a task.
    fn enter_cpu(&mut self, time_ns: u64, cpu: usize, id: TaskId) {
        // The switch from the task was lost, if it runs by now.
        if let Some(task) = self.tasks.get_mut(&id.address)
            && task.doing.state.is_on_cpu()
        {
            charge(task, time_ns, &mut self.sums);
            task.leave(TaskActivity::plain(TaskState::Unknown), &mut self.sums);
        }
        if let Some(task) = self.enter(time_ns, id, TaskActivity::plain(TaskState::Running)) {
            (task.run_cpu, task.run_from_ns) = (cpu, task.since_ns);
        }
    }

    fn end(&mut self, time_ns: u64, address: u64) {
        let Some(mut task) = self.tasks.remove(&address) else { return };
        charge(&mut task, time_ns, &mut self.sums);
        task.leave(TaskActivity::plain(TaskState::Unknown), &mut self.sums);
        let FollowedTask { who, from_ns, since_ns, .. } = task;
        self.sums.lives.push(TaskLife { who, from_ns, to_ns: since_ns, ended: true });
    }
}

impl FollowedTask {
    /// Notes the end of the present state, which is charged, if that is a run or a wait for a CPU.
    fn leave(&mut self, then: TaskActivity, sums: &mut TaskSums) {
        match self.doing.state {
            state if state.is_on_cpu() => {
                let (who, cpu, from_ns) = (self.who, self.run_cpu, self.run_from_ns);
                let times = std::mem::take(&mut self.times);
                sums.runs.push(TaskRun { who, cpu, from_ns, times, then });
            }
            TaskState::Runnable => sums.delays.count(self.who, self.woken, (self.began_ns, self.since_ns)),
            _ => {}
        }
    }
}

impl CpuState {
    fn charge_idle(&mut self, time_ns: u64) {
        if let Some(since_ns) = &mut self.idle_since {
            self.idle_ns += time_ns.saturating_sub(*since_ns);
            *since_ns = time_ns.max(*since_ns);
        }
    }
}

/// Charges the time since the last change to the task's state. Events of different CPUs may come slightly out
/// of order; no time counts twice then.
fn charge(task: &mut FollowedTask, time_ns: u64, sums: &mut TaskSums) {
    let spent = time_ns.saturating_sub(task.since_ns);
    task.since_ns = time_ns.max(task.since_ns);
    task.charged = true;
    // Time served before the last settlement may be reported only now.
    let served = if task.doing.state.is_on_cpu() { task.served_ns.min(spent) } else { 0 };
    task.served_ns -= served;
    for (doing, ns) in [(task.doing, spent - served), (TaskActivity::plain(TaskState::Sampler), served)] {
        if ns > 0 {
            sums.states.entry((task.who, doing)).or_default().ns += ns;
            task.times.add(doing.state, ns);
        }
    }
}

#[cfg(test)]
mod tests;
