//! Measures the cost of a tick to the guest: of a foreign vCPU, by a stop and by a sample of the host's
//! kernel, next to a tick of an own machine.
//!
//! `cargo run --release -p attach --example cost`. A VMM (this program, started again) runs a guest that only
//! counts; ten stops a second measure its speed. Variants take turns, and medians of their ratios are
//! printed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use attach::{Attachment, EngineChoice, StopMemory, Target};
use vmm::{AttachedThread, Machine, MissReason, Observer, ThreadStatistics, Tick, VmConfig};

/// `again: inc %rax; jmp again`
const COUNT: &[u8] = &[0x48, 0xff, 0xc0, 0xeb, 0xfb];
/// Rounds of each variant.
const ROUNDS: usize = 9;
/// Time for which a variant runs in a round.
const TURN: Duration = Duration::from_millis(700);
/// Ticks a second that measure the guest's speed.
const QUIET: f64 = 10.0;

/// Uniform intervals between half and one and a half of the mean, by a linear congruential generator.
struct Intervals {
    mean: Duration,
    state: u64,
}

impl Intervals {
    fn new(rate_hz: f64) -> Self {
        Self { mean: Duration::from_secs_f64(1.0 / rate_hz), state: 1 }
    }

    fn next(&mut self) -> Duration {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let unit = f64::from(u32::try_from(self.state >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        self.mean.mul_f64(0.5 + unit)
    }
}

/// A machine's own ticks that read nothing.
struct Kick(Option<Intervals>);

impl Observer for Kick {
    fn started(&mut self) -> Option<Duration> {
        self.0.as_mut().map(Intervals::next)
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        self.0.as_mut().map(Intervals::next)
    }
}

/// Ticks from outside that read nothing but registers.
struct Outside {
    intervals: Intervals,
    first: Option<(u64, u64)>,
    last: (u64, u64),
    suspended_ns: Vec<u64>,
    /// Scheduler statistics of the thread, and its time waited at the first and at the last tick, ns.
    statistics: Option<Arc<dyn ThreadStatistics>>,
    waited_ns: (u64, u64),
}

impl Outside {
    fn new(rate_hz: f64) -> Self {
        Self {
            intervals: Intervals::new(rate_hz),
            first: None,
            last: (0, 0),
            suspended_ns: Vec::new(),
            statistics: None,
            waited_ns: (0, 0),
        }
    }

    /// Returns the time that the thread has waited for a CPU, which is not the ticks' doing.
    fn waited(&self) -> u64 {
        let statistics = self.statistics.as_ref().expect("a thread with statistics");
        statistics.read().expect("the time waited").waited_ns
    }
}

impl Observer<StopMemory> for Outside {
    fn attached(&mut self, thread: Option<AttachedThread>) {
        self.statistics = thread.expect("a thread").statistics;
    }
    fn started(&mut self) -> Option<Duration> {
        Some(self.intervals.next())
    }
    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        self.last = (tick.now_ns, tick.regs.rax);
        self.waited_ns.1 = self.waited();
        if self.first.is_none() {
            self.first = Some(self.last);
            self.waited_ns.0 = self.waited_ns.1;
        }
        Some(self.intervals.next())
    }
    fn missed(&mut self, _: MissReason, _: u64, _: u64) -> Option<Duration> {
        Some(self.intervals.next())
    }
    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        self.suspended_ns.push(to_ns - from_ns);
    }
}

/// Runs the VMM: its guest counts, with `rate_hz` own ticks a second.
fn vmm(rate_hz: f64) {
    let config = VmConfig { memory_bytes: 64 << 20, ..VmConfig::flat(COUNT) };
    let kick = |_| Kick((rate_hz > 0.0).then(|| Intervals::new(rate_hz)));
    let machine = Machine::start(config, kick).expect("KVM runs code at CPL 3");
    println!("it runs");
    machine.wait(Some(Duration::from_secs(60))).expect("it ends");
}

fn child(rate_hz: f64) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut child = command.arg(rate_hz.to_string()).stdout(Stdio::piped()).spawn().expect("it starts again");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
    child
}

/// Returns counts per second that the vCPU's thread did not wait for a CPU, and the median length of a stop
/// in us, of a VMM with `own` ticks a second, attached to with `ours` by an engine.
fn measure(own: f64, engine: EngineChoice, ours: f64) -> (f64, f64) {
    let mut child = child(own);
    let pid = i32::try_from(child.id()).expect("a pid");
    let target = Target::find_by(engine, pid, 1, None).expect("a VM");
    let mut outside = Some(Outside::new(ours));
    let attached = Attachment::start(target, |_| outside.take().expect("one vCPU")).expect("threads");
    std::thread::sleep(TURN);
    let seen = attached.wait().expect("it lets go").observers.remove(0);
    child.kill().expect("a child");
    child.wait().expect("a child");
    let first = seen.first.expect("ticks");
    // Without the time for which other programs had the CPU.
    let waited_ns = seen.waited_ns.1 - seen.waited_ns.0;
    let (ns, loops) = ((seen.last.0 - first.0).saturating_sub(waited_ns), seen.last.1 - first.1);
    assert!(ns > 0 && loops > 0, "the guest counts");
    (ratio(loops, ns), median(seen.suspended_ns.iter().map(|ns| ratio(*ns, 1_000)).collect()))
}

#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    if let Some(rate_hz) = std::env::args().nth(1) {
        return vmm(rate_hz.parse().expect("a rate"));
    }
    let (bpf, ptrace) = (EngineChoice::Bpf, EngineChoice::Ptrace);
    println!(
        "| Hz | attach, BPF: slow-down | attach, ptrace: slow-down | run: slow-down | ptrace: stop to resume |"
    );
    println!("|---|---|---|---|---|");
    for rate_hz in [100.0, 1_000.0] {
        let mut slower = [Vec::new(), Vec::new(), Vec::new()];
        let mut stops = Vec::new();
        for round in 0..ROUNDS {
            let (quiet, _) = measure(0.0, ptrace, QUIET);
            // They take turns in being first: a noisy machine drifts.
            for turn in 0..slower.len() {
                let variant = (turn + round) % slower.len();
                let (speed, stop) = match variant {
                    0 => measure(0.0, bpf, rate_hz),
                    1 => measure(0.0, ptrace, rate_hz),
                    _ => measure(rate_hz, ptrace, QUIET),
                };
                slower[variant].push((1.0 - speed / quiet) * 100.0);
                if variant == 1 {
                    stops.push(stop);
                }
            }
        }
        let [bpf, ptrace, run] = slower.map(median);
        println!("| {rate_hz} | {bpf:.1} % | {ptrace:.1} % | {run:.1} % | {:.0} us |", median(stops));
    }
}
