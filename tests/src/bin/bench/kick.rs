//! What a tick costs the guest: a sample against a bare kick that reads nothing, on a guest that only counts.
//!
//! The guest runs at privilege level 3, which every KVM executes natively. All variants take turns within one run, so that a
//! noisy machine disturbs them alike.

use std::time::Duration;

use sampler::clock::{ClockKind, Intervals};
use sampler::{Batch, Session, SessionConfig, Sink, SinkError};
use vmm::monotonic_ns;
use vmm::{Console, Exit, Machine, Observer, Payload, Tick, VmConfig};

use crate::table::{Row, median};

/// `again: inc %rax; jmp again`: counts as fast as the processor can.
const COUNT: &[u8] = &[0x48, 0xff, 0xc0, 0xeb, 0xfb];
/// Rounds; the median of them counts.
const ROUNDS: usize = 9;
/// How long each variant runs in a round.
const TURN: Duration = Duration::from_millis(500);
const SEED: u64 = 1;

/// Kicks at random intervals and reads nothing.
struct Bare(Intervals);

impl Observer for Bare {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_nanos(self.0.next_ns()))
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        Some(Duration::from_nanos(self.0.next_ns()))
    }
}

/// Drops what it gets: the disk is measured elsewhere.
struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Measures another observer from outside.
struct Measured<O> {
    inner: O,
    exited_ns: u64,
    ticked: bool,
    gaps_ns: Vec<u64>,
    first: Option<(u64, u64)>,
    last: (u64, u64),
}

impl<O> Measured<O> {
    fn new(inner: O) -> Self {
        // Room for every tick of a turn: nothing is allocated while it runs.
        Self {
            inner,
            exited_ns: 0,
            ticked: false,
            gaps_ns: Vec::with_capacity(100_000),
            first: None,
            last: (0, 0),
        }
    }

    /// Loops of the guest per second between the first and the last tick.
    fn speed(&self) -> f64 {
        let first = self.first.expect("ticks arrive");
        let (ns, loops) = (self.last.0 - first.0, self.last.1 - first.1);
        assert!(loops > 0, "the guest counts");
        loops as f64 / ns as f64 * 1e9
    }
}

impl<O: Observer> Observer for Measured<O> {
    fn started(&mut self) -> Option<Duration> {
        self.inner.started()
    }
    fn entering(&mut self, now_ns: u64) {
        self.inner.entering(now_ns);
        if std::mem::take(&mut self.ticked) && self.gaps_ns.len() < self.gaps_ns.capacity() {
            self.gaps_ns.push(monotonic_ns() - self.exited_ns);
        }
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.exited_ns = now_ns;
        self.inner.exited(exit, now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.ticked = true;
        self.last = (tick.now_ns, tick.regs.rax);
        self.first.get_or_insert(self.last);
        self.inner.ticked(tick)
    }
    fn stopped(&mut self) {
        self.inner.stopped();
    }
}

fn turn<O: Observer>(inner: O, start: impl FnOnce(vmm::GuestMemoryMmap)) -> Measured<O> {
    let config = VmConfig {
        vcpus: 1,
        memory_bytes: 64 << 20,
        payload: Payload::Flat { code: COUNT.to_vec(), cpl: 3 },
        disks: Vec::new(),
        console: Console(Box::new(std::io::sink())),
    };
    let mut inner = Some(inner);
    let machine = Machine::start(config, |_| Measured::new(inner.take().expect("one vCPU")))
        .unwrap_or_else(|error| panic!("the counting guest does not start: {error}"));
    start(machine.memory());
    std::thread::sleep(TURN);
    machine.stop();
    let mut ended = machine.wait(Some(Duration::from_secs(5))).expect("the machine ends");
    ended.observers.remove(0)
}

fn bare(rate_hz: f64) -> Measured<Bare> {
    turn(Bare(Intervals::new(ClockKind::Uniform, rate_hz, SEED, 0).expect("a rate")), |_| {})
}

fn sampled(rate_hz: f64) -> Measured<sampler::VcpuSampler> {
    let config = SessionConfig {
        vcpus: 1,
        rate_hz,
        clock: ClockKind::Uniform,
        seed: SEED,
        stack_depth: 127,
        exact: false,
        meta: Vec::new(),
    };
    let (mut session, mut samplers) = Session::new(config, Box::new(Nowhere), sampler::no_files());
    let measured = turn(samplers.remove(0), |memory| session.start(memory).expect("the collector starts"));
    let totals = session.finish(Vec::new());
    assert_eq!(totals.lost, 0, "the ring is never full here");
    assert!(totals.samples > 0, "samples arrive");
    measured
}

/// Exit to re-entry, and the guest's slow-down at several rates.
///
/// # Errors
/// Why there is no KVM to measure on.
pub fn rows() -> Result<Vec<Row>, String> {
    vmm::probe::open().map_err(|error| error.to_string())?;
    let mut rows = vec![gap()];
    rows.extend([100.0, 1000.0, 5000.0].map(slow_down));
    Ok(rows)
}

fn gap() -> Row {
    let (mut bare_ns, mut sample_ns) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare_ns.push(median(&bare(1000.0).gaps_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>()));
        sample_ns.push(median(&sampled(1000.0).gaps_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>()));
    }
    let (bare, sample) = (median(&bare_ns), median(&sample_ns));
    Row::ratio("exit to re-entry: sample / bare kick", sample / bare, "at most 1.25").detail(format!(
        "{:.2} us / {:.2} us",
        sample / 1000.0,
        bare / 1000.0
    ))
}

fn slow_down(rate_hz: f64) -> Row {
    let (mut ratios, mut kicked, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Ten ticks a second tell the speed and cost next to nothing.
        let quiet = bare(10.0).speed();
        // Neighbours in time are compared, and take turns in being first: a noisy machine drifts.
        let (bare, sampled) = if round % 2 == 0 {
            (bare(rate_hz).speed(), sampled(rate_hz).speed())
        } else {
            let sampled = sampled(rate_hz).speed();
            (bare(rate_hz).speed(), sampled)
        };
        ratios.push(bare / sampled);
        kicked.push((1.0 - bare / quiet) * 100.0);
        seen.push((1.0 - sampled / quiet) * 100.0);
    }
    Row::ratio(&format!("guest's time at {rate_hz} Hz: sampled / bare kicks"), median(&ratios), "at most 1.1")
        .detail(format!("slow-down {:.1} % / {:.1} %", median(&seen), median(&kicked)))
}
