//! Behaviour of a simulated vCPU. All lengths are in mean intervals of the sampling clock.

use display::units::rounded;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

use super::timeline::{OUTSIDE, POLLING, REST, Timeline, WAITING};

/// Mean interval of the simulated clock, ns: 1 ms, so that the product's rounding to whole nanoseconds and
/// its limit of 1 us are far below the simulated lengths.
pub(super) const MEAN_NS: u64 = 1_000_000;

/// Course of a vCPU's time.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Program {
    /// Blocks as long as a task's granularity, each of a task drawn by its share; the rest is idle, in blocks
    /// of the first task's length. State n is task n, from 1.
    Tasks(Vec<Task>),
    /// State 1 comes and goes at random: runs of exponential length, those of state 1 with a mean of `run`.
    Runs {
        /// Share of state 1.
        share: f64,
        /// Mean length of its runs.
        run: f64,
    },
    /// Two phases that come and go at random, half of the time each; state 1 has these shares in them, in
    /// runs.
    Phases {
        /// Shares of state 1 in the two phases.
        shares: [f64; 2],
        /// Mean length of a phase.
        phase: f64,
        /// Mean length of a run of state 1.
        run: f64,
    },
    /// State 1 in runs, with one share in the first half and another in the second.
    Halves {
        /// Shares of state 1.
        shares: [f64; 2],
        /// Mean length of a run of state 1.
        run: f64,
    },
    /// State 1 in each period from `from` to `to`, at the same phase of each.
    Periodic {
        /// Length of a period.
        period: f64,
        /// Start of state 1, as a part of the period.
        from: f64,
        /// End of state 1, as a part of the period.
        to: f64,
    },
    /// Another program, while the guest is not idle.
    Polling {
        /// Program of the other time.
        work: Box<Program>,
        /// Part of the time in which the guest is idle without being halted.
        idle: f64,
        /// Mean length of such a spell.
        spell: f64,
    },
    /// Another program on a host that takes the CPU away and so stops the guest. State 1 runs right after
    /// each wait, like the interrupts that have come during the wait, and the tasks that they wake.
    Waiting {
        /// Program of the guest.
        work: Box<Program>,
        /// Times without a CPU.
        waits: Waits,
        /// Length of state 1 after a wait.
        after: f64,
    },
    /// Halted until an interrupt comes; then the vCPU's thread waits for a CPU, and state 1 and another state
    /// run.
    Woken {
        /// Mean length of a halt.
        halt: f64,
        /// Mean length of a wait.
        wait: f64,
        /// Length of state 1.
        run: f64,
        /// Mean length of the rest.
        rest: f64,
    },
}

/// Pattern in which a host takes a CPU away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Waits {
    /// At random, of exponential lengths with these means.
    Random {
        /// Mean time from one wait to the next.
        run: f64,
        /// Mean length of a wait.
        wait: f64,
    },
    /// Like a quota (cpu.max): `run` in each period, then nothing until the next.
    Quota {
        /// Length of a period.
        period: f64,
        /// Time with a CPU in each period.
        run: f64,
    },
}

impl Waits {
    /// Draws the length of the next time with a CPU, and of the wait after it, ns.
    fn draw(self, random: &mut ChaCha8Rng) -> (u64, u64) {
        let mut of = |mean: f64| {
            let drawn: f64 = Exp1.sample(random);
            ns(drawn * mean).max(1)
        };
        match self {
            Self::Random { run, wait } => (of(run), of(wait)),
            Self::Quota { period, run } => (ns(run), ns(period - run)),
        }
    }
}

/// A task of the unbiasedness study.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Task {
    /// Its share of all time.
    pub share: f64,
    /// Length of a block.
    pub granularity: f64,
}

/// Converts a length to ns.
pub(super) fn ns(intervals: f64) -> u64 {
    rounded(intervals * MEAN_NS as f64)
}

impl Program {
    /// Draws one course of this length.
    pub fn course(&self, random: &mut ChaCha8Rng, intervals: f64) -> Timeline {
        let length = ns(intervals);
        let mut line = Timeline::default();
        match self {
            Self::Tasks(tasks) => tasks_course(tasks, random, length, &mut line),
            Self::Runs { share, run } => runs(&mut line, random, length, *share, *run, 1),
            Self::Phases { shares, phase, run } => {
                let mut phases = Timeline::default();
                runs(&mut phases, random, length, 0.5, *phase, 1);
                let mut at = phases.cursor();
                while line.length() < length {
                    let now = line.length();
                    let share = shares[usize::from(at.state_at(now).min(1))];
                    runs(&mut line, random, at.end().min(length), share, *run, 1);
                }
            }
            Self::Halves { shares, run } => {
                for (share, end) in shares.iter().zip([length / 2, length]) {
                    runs(&mut line, random, end, *share, *run, 1);
                }
            }
            Self::Periodic { period, from, to } => {
                let mut n = 0.0;
                while line.length() < length {
                    for (state, until) in [(REST, *from), (1, *to), (REST, 1.0)] {
                        // Each end is rounded by itself, so that rounding does not add up.
                        let end = ns((n + until) * period);
                        line.push(state, end.saturating_sub(line.length()));
                    }
                    n += 1.0;
                }
            }
            Self::Polling { work, idle, spell } => {
                let mut idles = Timeline::default();
                runs(&mut idles, random, length, *idle, *spell, POLLING);
                line = work.course(random, intervals).within(&idles);
            }
            Self::Waiting { work, waits, after } => {
                let course = work.course(random, intervals);
                let (mut at, mut done) = (course.cursor(), 0);
                while line.length() < length {
                    let (run, wait) = waits.draw(random);
                    let until = done + run;
                    while done < until {
                        let state = at.state_at(done);
                        let end = at.end().min(until);
                        line.push(state, end - done);
                        done = end;
                    }
                    line.push(WAITING, wait);
                    line.push(1, ns(*after));
                }
            }
            Self::Woken { halt, wait, run, rest } => {
                while line.length() < length {
                    for (state, mean) in [(OUTSIDE, *halt), (WAITING, *wait), (1, *run), (REST, *rest)] {
                        let drawn: f64 = if state == 1 { 1.0 } else { Exp1.sample(random) };
                        line.push(state, ns(drawn * mean));
                    }
                }
            }
        }
        line.truncated(length)
    }
}

fn tasks_course(tasks: &[Task], random: &mut ChaCha8Rng, length: u64, line: &mut Timeline) {
    let rest = 1.0 - tasks.iter().map(|task| task.share).sum::<f64>();
    let idle = tasks.first().map_or(1.0, |task| task.granularity);
    // The longer a block, the less often it is drawn.
    let all = tasks.iter().map(|task| (task.share, task.granularity)).chain([(rest, idle)]);
    let weights: Vec<f64> = all.map(|(share, granularity)| share / granularity).collect();
    let sum: f64 = weights.iter().sum();
    while line.length() < length {
        let mut drawn = random.random::<f64>() * sum;
        let place = weights.iter().position(|weight| {
            drawn -= weight;
            drawn < 0.0
        });
        let task = place.and_then(|place| Some((u8::try_from(place + 1).ok()?, tasks.get(place)?)));
        match task {
            Some((state, task)) => line.push(state, ns(task.granularity)),
            None => line.push(REST, ns(idle)),
        }
    }
}

/// Continues a course up to `end` with a state that comes and goes.
fn runs(line: &mut Timeline, random: &mut ChaCha8Rng, end: u64, share: f64, run: f64, state: u8) {
    let mut on = random.random::<f64>() < share;
    while line.length() < end {
        let mean = if on { run } else { run * (1.0 - share) / share };
        let drawn: f64 = Exp1.sample(random);
        let length = ns(drawn * mean).max(1).min(end - line.length());
        line.push(if on { state } else { REST }, length);
        on = !on;
    }
}

/// One vCPU: its program, and its part of time in the guest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Vcpu {
    pub program: Program,
    /// Part of the time in the guest; the rest comes in intervals with a mean of 5.
    pub load: f64,
}

impl Vcpu {
    pub fn course(&self, random: &mut ChaCha8Rng, intervals: f64) -> Timeline {
        let line = self.program.course(random, intervals);
        if self.load >= 1.0 {
            return line;
        }
        let mut outer = Timeline::default();
        runs(&mut outer, random, ns(intervals), 1.0 - self.load, 5.0, OUTSIDE);
        line.within(&outer)
    }
}
