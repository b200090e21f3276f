//! Cases of the simulation.

use super::Section;
use super::host::Host;
use super::program::{Program, Task, Vcpu, Waits};
use super::quantities::Quantity;
use crate::clock::ClockKind;

/// Start of a fixed clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At any phase, drawn for each profiling.
    Anywhere,
    /// At the phase that the program expects: a tick is at each whole interval.
    Known,
}

/// One machine, profiled again and again.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub section: Section,
    pub table: Option<u8>,
    pub name: String,
    pub vcpus: Vec<Vcpu>,
    /// Length of the run, intervals.
    pub ticks: f64,
    /// Variance of the units of events that a sample represents, whose mean is 100.
    pub noise: f64,
    /// Part of the ticks of the first half of the run that are lost.
    pub lost: f64,
    pub start: Start,
    /// True if one clock ticks all vCPUs.
    pub at_once: bool,
    /// Effects of the host on ticks.
    pub host: Host,
    /// Estimated quantity.
    pub quantity: Quantity,
    /// Number of different courses that are profiled in turn; one, as in the paper, is profiled repeatedly.
    pub courses: u32,
    pub clocks: &'static [ClockKind],
}

const PAPERS: &[ClockKind] = &[ClockKind::Fixed, ClockKind::Uniform];
const UNIFORM: &[ClockKind] = &[ClockKind::Uniform];
const RANDOM: &[ClockKind] = &[ClockKind::Uniform, ClockKind::Exponential];
const ALL: &[ClockKind] = &[ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed];

/// Units of the paper in a sampling interval.
const UNITS: f64 = 100.0;

impl Case {
    fn new(section: Section, name: impl Into<String>, program: Program, ticks: f64) -> Self {
        Self {
            section,
            table: None,
            name: name.into(),
            vcpus: vec![Vcpu { program, load: 1.0 }],
            ticks,
            noise: 0.0,
            lost: 0.0,
            start: Start::Anywhere,
            at_once: false,
            host: Host::default(),
            quantity: Quantity::Share,
            courses: 20,
            clocks: ALL,
        }
    }

    /// Returns a case of the paper: one course.
    fn of_table(section: Section, table: u8, name: String, tasks: &[Task], ticks: f64) -> Self {
        let program = Program::Tasks(tasks.to_vec());
        Self { table: Some(table), courses: 1, clocks: PAPERS, ..Self::new(section, name, program, ticks) }
    }

    /// Returns the number of states that are estimated, from 1.
    pub fn states(&self) -> u8 {
        match self.vcpus.first().map(|vcpu| &vcpu.program).filter(|_| self.section != Section::Printed) {
            Some(Program::Tasks(tasks)) => u8::try_from(tasks.len()).unwrap_or(1),
            _ => 1,
        }
    }
}

/// Returns all cases, in the order of their sections.
pub(super) fn all() -> Vec<Case> {
    [single(), mixed(), noisy(), granularity(), adversaries(), estimator(), printed(), host()].concat()
}

/// Returns section 5.2.1: a million units, a sample every 100.
fn single() -> Vec<Case> {
    let mut cases = Vec::new();
    for (table, share) in [(2, 0.8), (3, 0.5), (3, 0.3)] {
        for units in [30.0, 50.0, 100.0, 150.0, 200.0, 280.0] {
            let task = Task { share, granularity: units / UNITS };
            let name = format!("{:.0} %, {units} units", share * 100.0);
            cases.push(Case::of_table(Section::Single, table, name, &[task], 10_000.0));
        }
    }
    cases
}

/// Returns the tasks of section 5.2.2: four tasks that take 80 % together.
fn tasks() -> [Task; 4] {
    [(0.3, 30.0), (0.2, 50.0), (0.2, 150.0), (0.1, 280.0)]
        .map(|(share, units)| Task { share, granularity: units / UNITS })
}

fn mixed() -> Vec<Case> {
    vec![Case::of_table(Section::Mixed, 4, String::new(), &tasks(), 10_000.0)]
}

/// Returns section 5.3: the units of events vary.
fn noisy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (table, samples, noises) in [(5, 10_000.0, [0.5, 1.0, 2.0]), (6, 1_000.0, [0.5, 1.0, 2.0])] {
        for noise in noises {
            let name = format!("n {samples} N(0,{noise}) ");
            cases.push(Case { noise, ..Case::of_table(Section::Noise, table, name, &tasks(), samples) });
        }
    }
    let name = "n 500 N(0,1) ".to_owned();
    cases.push(Case { noise: 1.0, ..Case::of_table(Section::Noise, 6, name, &tasks(), 500.0) });
    cases
}

/// Returns runs from a hundredth of an interval to a hundred.
fn granularity() -> Vec<Case> {
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
        .map(|run| {
            let program = Program::Runs { share: 0.3, run };
            Case::new(Section::Granularity, run.to_string(), program, 2_000.0)
        })
        .to_vec()
}

fn adversaries() -> Vec<Case> {
    let periodic = |name: &str, period: f64, from: f64, to: f64| {
        let program = Program::Periodic { period, from, to };
        Case { courses: 1, ..Case::new(Section::Adversary, name, program, 2_000.0) }
    };
    let knows = |case: Case| Case { start: Start::Known, ..case };
    vec![
        periodic("in step, 30 % of each interval", 1.0, 0.0, 0.3),
        knows(periodic("dodges the tick, 90 %", 1.0, 0.05, 0.95)),
        // Its run contains the time of the tick, which is the end and the beginning of the period.
        knows(periodic("waits for the tick, 10 %", 1.0, 0.0, 0.1)),
        periodic("every 2.25 intervals, 20 %", 2.25, 0.0, 0.2),
        periodic("drifts by a fifth of a period", 1.000_1, 0.0, 0.3),
        periodic("two thirds of an interval, 50 %", 2.0 / 3.0, 0.0, 0.5),
    ]
}

fn estimator() -> Vec<Case> {
    let case = |name: &str, program: Program, ticks: f64| Case {
        clocks: RANDOM,
        ..Case::new(Section::Estimator, name, program, ticks)
    };
    let runs = |share: f64, run: f64| Program::Runs { share, run };
    let loads = |loads: &[f64], program: &Program| -> Vec<Vcpu> {
        loads.iter().map(|&load| Vcpu { program: program.clone(), load }).collect()
    };
    let pinned = |program: Program| -> Vec<Vcpu> {
        let never = Program::Periodic { period: 1.0, from: 0.0, to: 0.0 };
        let programs = std::iter::once(program).chain(std::iter::repeat_n(never, 7));
        programs.map(|program| Vcpu { program, load: 1.0 }).collect()
    };
    let polling = |work: Program, idle: f64| Program::Polling { work: Box::new(work), idle, spell: 2.0 };
    let apart = |shares: [f64; 2], idle: f64| -> Vec<Vcpu> {
        let program = |share: f64| match share {
            0.0 | 1.0 => Program::Periodic { period: 1.0, from: 0.0, to: share },
            _ => runs(share, 0.5),
        };
        shares.map(|share| Vcpu { program: polling(program(share), idle), load: 1.0 }).to_vec()
    };
    let short = runs(0.3, 0.5);
    let phases = |run: f64| Program::Phases { shares: [0.5, 0.1], phase: 50.0, run };
    let halves = |run: f64| Program::Halves { shares: [0.5, 0.1], run };
    vec![
        case("runs of 0.02, n 100", runs(0.3, 0.02), 100.0),
        case("runs of 0.5, n 1,000", short.clone(), 1_000.0),
        case("runs of 0.5, n 20,000", short.clone(), 20_000.0),
        case("runs of 2, n 1,000", runs(0.3, 2.0), 1_000.0),
        case("runs of 30, n 1,000", runs(0.3, 30.0), 1_000.0),
        case("bursts in phases, n 2,000", phases(0.02), 2_000.0),
        case("runs in phases, n 10,000", phases(1.0), 10_000.0),
        case("1 in 100, n 1,000", runs(0.01, 0.02), 1_000.0),
        case("1 in 300, n 1,000", runs(1.0 / 300.0, 0.02), 1_000.0),
        case("1 in 1,000, n 1,000", runs(0.001, 0.02), 1_000.0),
        case("1 in 100, runs of 3", runs(0.01, 3.0), 1_000.0),
        Case {
            vcpus: loads(&[1.0, 0.5, 0.2, 0.05], &runs(0.3, 2.0)),
            ..case("4 vCPUs, runs of 2", short.clone(), 1_000.0)
        },
        Case {
            vcpus: loads(&[1.0, 0.5, 0.2, 0.05], &runs(0.3, 0.02)),
            ..case("4 vCPUs, runs of 0.02", short.clone(), 1_000.0)
        },
        Case { vcpus: pinned(runs(0.1, 0.02)), ..case("on 1 of 8 vCPUs", short.clone(), 500.0) },
        Case { vcpus: pinned(runs(0.01, 0.02)), ..case("on 1 of 8, rare", short.clone(), 500.0) },
        Case { vcpus: apart([1.0, 0.0], 0.5), ..case("2 vCPUs poll, 100 and 0 %", short.clone(), 1_000.0) },
        Case { vcpus: apart([0.95, 0.05], 0.1), ..case("2 vCPUs poll, 95 and 5 %", short.clone(), 1_000.0) },
        Case { vcpus: apart([1.0, 0.0], 0.005), ..case("2 vCPUs poll rarely", short.clone(), 10_000.0) },
        Case { lost: 0.5, ..case("half lost in one phase", halves(0.02), 2_000.0) },
        Case { lost: 0.5, ..case("half lost, runs of 2", halves(2.0), 2_000.0) },
    ]
}

/// Returns virtual machines on a host with other work.
fn host() -> Vec<Case> {
    let case = |name: &str, host: Host, programs: &[Program]| Case {
        clocks: RANDOM,
        host,
        vcpus: programs.iter().map(|program| Vcpu { program: program.clone(), load: 1.0 }).collect(),
        ..Case::new(Section::Host, name, Program::Runs { share: 0.3, run: 1.0 }, 2_000.0)
    };
    let runs = |share: f64, run: f64| Program::Runs { share, run };
    // Only the time after a wait.
    let after = |waits: Waits, after: f64| {
        let nothing = Program::Periodic { period: 1.0, from: 0.0, to: 0.0 };
        Program::Waiting { work: Box::new(nothing), waits, after }
    };
    let random = |run: f64, wait: f64| Waits::Random { run, wait };
    let with_waits =
        |work: Program, waits: Waits| Program::Waiting { work: Box::new(work), waits, after: 0.1 };
    // A VMM that takes a part of the thread's time on a CPU; only ticks can distinguish it from the guest's
    // time.
    let vmm = |work: Program| Program::Polling { work: Box::new(work), idle: 0.2, spell: 0.1 };
    let woken = |halt: f64, wait: f64| Program::Woken { halt, wait, run: 0.1, rest: 0.4 };
    let prompt = Host::default();
    let late = Host { late: 0.1, ..prompt };
    let slow = Host { service: 0.6, ..prompt };
    let busy = Host { late: 0.05, service: 0.1, ..prompt };
    let asked = Host { runs_on: true, ..late };
    let quota = Waits::Quota { period: 10.0, run: 3.0 };
    let four = [
        with_waits(runs(0.3, 0.5), random(2.0, 1.0)),
        with_waits(runs(0.1, 5.0), quota),
        woken(0.8, 0.3),
        woken(5.0, 0.0),
    ];
    vec![
        case("late ticks", late, &[runs(0.3, 0.3)]),
        case("after long waits", prompt, &[after(random(5.0, 5.0), 0.2)]),
        case("after waits of 1", late, &[after(random(2.0, 1.0), 0.1)]),
        case("after waits of 0.1", prompt, &[after(random(1.0, 0.1), 0.05)]),
        case("after a quota's waits", late, &[after(quota, 0.2)]),
        case("woken from halts", late, &[woken(0.8, 0.0)]),
        case("woken, waits for a CPU", late, &[woken(0.8, 0.3)]),
        case("served in 0.6, period 0.7", slow, &[Program::Periodic { period: 0.7, from: 0.0, to: 0.35 }]),
        case("served in 0.6, period 1.6", slow, &[Program::Periodic { period: 1.6, from: 0.0, to: 0.5 }]),
        case("4 vCPUs, all of it", busy, &four),
        case("attached, after waits", asked, &[after(random(2.0, 1.0), 0.1)]),
        case(
            "attached, 2 vCPUs",
            asked,
            &[vmm(with_waits(runs(0.6, 0.5), random(2.0, 1.0))), vmm(runs(0.1, 2.0))],
        ),
        Case {
            at_once: true,
            ..case(
                "attached by a stub",
                prompt,
                &[woken(0.5, 0.0), runs(0.1, 2.0), runs(0.6, 0.2), vmm(runs(0.3, 5.0))],
            )
        },
    ]
}

/// Returns every kind of interval, each for states in short, middling and long runs, and for a rare state.
fn printed() -> Vec<Case> {
    let runs = |share: f64, run: f64| vec![Vcpu { program: Program::Runs { share, run }, load: 0.6 }];
    // Two states in blocks of these lengths.
    let tasks = |length: f64| {
        let tasks = [0.2, 0.1].map(|share| Task { share, granularity: length });
        vec![Vcpu { program: Program::Tasks(tasks.to_vec()), load: 0.6 }]
    };
    let polling = |run: f64| {
        [0.6, 0.1]
            .map(|share| {
                let work = Box::new(Program::Runs { share, run });
                Vcpu { program: Program::Polling { work, idle: 0.4, spell: run }, load: 0.8 }
            })
            .to_vec()
    };
    let case = |name: &str, run: &str, quantity: Quantity, vcpus: Vec<Vcpu>| Case {
        // Scans have no other clock.
        clocks: if quantity == Quantity::TaskState { UNIFORM } else { RANDOM },
        quantity,
        courses: if quantity == Quantity::SixRuns { 200 } else { 20 },
        vcpus,
        ..Case::new(
            Section::Printed,
            format!("{name}, {run}"),
            Program::Runs { share: 0.3, run: 1.0 },
            2_000.0,
        )
    };
    let lengths = [("0.05", 0.05), ("2", 2.0), ("30", 30.0)];
    let mut cases = Vec::new();
    for (name, quantity) in [
        ("share", Quantity::Share),
        ("time", Quantity::Time),
        ("callers", Quantity::Callers),
        ("change, two runs", Quantity::TwoRuns),
        ("change, six runs", Quantity::SixRuns),
        ("time in a boot", Quantity::Boot),
        ("rusage", Quantity::Rusage),
        ("task state", Quantity::TaskState),
        ("user part, exact", Quantity::ExactPart),
    ] {
        for (run, length) in lengths {
            let vcpus = match quantity {
                Quantity::Share | Quantity::Time => polling(length),
                Quantity::Callers => tasks(length),
                Quantity::TaskState => {
                    vec![Vcpu { program: Program::Runs { share: 0.3, run: length }, load: 1.0 }]
                }
                _ => runs(0.3, length),
            };
            cases.push(case(name, run, quantity, vcpus));
        }
        let rare = vec![Vcpu { program: Program::Runs { share: 0.001, run: 0.02 }, load: 1.0 }];
        cases.push(case(name, "rare", quantity, rare));
    }
    cases
}
