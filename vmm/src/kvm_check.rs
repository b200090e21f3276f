//! Capabilities of this host, determined by experiment.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::config::{Payload, VmConfig};
use crate::error::StartError;
use crate::machine::Machine;
use crate::observer::{Exit, Observer, Tick};

pub use crate::kvm::{Capabilities, capabilities, open, open_descriptor};

/// Iterations of a counting loop per second at both privilege levels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RingSpeeds {
    /// At CPL 0, where kernels run.
    pub ring0_per_s: f64,
    /// At CPL 3, where programs run.
    pub ring3_per_s: f64,
}

impl RingSpeeds {
    /// Returns true if the processor itself executes CPL-0 code. An emulator is slower by a factor of
    /// hundreds (kvm_pvm: about 2000), a processor by nothing but noise, hence the wide limit.
    pub fn native(&self) -> bool {
        self.ring0_per_s * 10.0 > self.ring3_per_s
    }
}

/// Reason why [`native_ring0`] has no result.
#[derive(Debug, thiserror::Error)]
pub enum RingSpeedError {
    /// The small machine could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The small machine ran but its counter did not change, or no tick came that could read it.
    #[error("a test program at privilege level {cpl} did not run: {reason}")]
    NoProgress {
        /// The level, 0 or 3.
        cpl: u8,
        /// Observation.
        reason: String,
    },
}

/// Runs a counting loop for 3 ms at CPL 3 and at CPL 0, on a machine of one vCPU and 4 MiB, and returns the
/// speed of each. Takes 10 to 30 ms; longer only on a host that is too busy to run it.
///
/// # Errors
///
/// See [`RingSpeedError`].
pub fn native_ring0() -> Result<RingSpeeds, RingSpeedError> {
    Ok(RingSpeeds { ring3_per_s: speed(3)?, ring0_per_s: speed(0)? })
}

/// Measures the time of an exit to this process and of the way back into the guest, for 3 ms, on a machine of
/// one vCPU and 4 MiB: what a [probe](crate::ProbeSet) costs without the work of its observer.
///
/// # Errors
///
/// See [`RingSpeedError`].
pub fn exit_time() -> Result<Duration, RingSpeedError> {
    let per_s = measured(&OUT, 3, |readings| ExitMeter { readings, exits: 0, first_ns: 0 })?;
    Ok(Duration::from_secs_f64(1.0 / per_s.max(1.0)))
}

/// `1: out %al, $0xe0; jmp 1b`: an exit at a port without a device.
const OUT: [u8; 4] = [0xe6, 0xe0, 0xeb, 0xfc];
/// Exits before the first reading: first the guest's memory must be mapped.
const FIRST_EXITS: u64 = 100;

/// `1: inc %rax; jmp 1b`
const COUNT: [u8; 5] = [0x48, 0xff, 0xc0, 0xeb, 0xfb];
/// Interval between two readings until the guest has begun to count: first its memory must be mapped.
const WARM_UP: Duration = Duration::from_micros(500);
/// From the first reading to the second.
const MEASURE: Duration = Duration::from_millis(3);
/// For all of it; far more than any host needs.
const LIMIT: Duration = Duration::from_secs(2);

/// The counter at a point in time.
#[derive(Debug, Clone, Copy)]
struct CounterReading {
    at_ns: u64,
    count: u64,
}

/// Sends the counter once it counts, and again a little later.
#[derive(Debug)]
struct SpeedMeter {
    readings: SyncSender<CounterReading>,
    /// The last count that was sent.
    sent: u64,
}

impl Observer for SpeedMeter {
    fn started(&mut self) -> Option<Duration> {
        Some(WARM_UP)
    }

    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        let count = tick.regs.rax;
        let first = self.sent == 0;
        if count == self.sent {
            // The host has not let the guest run since.
            return Some(if first { WARM_UP } else { MEASURE });
        }
        self.sent = count;
        let _receiver_gone = self.readings.try_send(CounterReading { at_ns: tick.now_ns, count });
        first.then_some(MEASURE)
    }
}

/// Counter of exits: sends it after the first ones, and again a little later.
#[derive(Debug)]
struct ExitMeter {
    readings: SyncSender<CounterReading>,
    exits: u64,
    first_ns: u64,
}

impl Observer for ExitMeter {
    fn started(&mut self) -> Option<Duration> {
        None
    }

    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        None
    }

    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.exits += u64::from(matches!(exit, Exit::Io { .. }));
        let is_second =
            self.first_ns != 0 && u128::from(now_ns.saturating_sub(self.first_ns)) >= MEASURE.as_nanos();
        if self.exits == FIRST_EXITS || is_second {
            // No room: both readings have been sent.
            let _sent = self.readings.try_send(CounterReading { at_ns: now_ns, count: self.exits });
            self.first_ns = if is_second { 0 } else { now_ns };
        }
    }
}

fn speed(cpl: u8) -> Result<f64, RingSpeedError> {
    measured(&COUNT, cpl, |readings| SpeedMeter { readings, sent: 0 })
}

/// Runs code at a privilege level. Returns counts per second of a meter.
fn measured<O: Observer>(
    code: &[u8],
    cpl: u8,
    meter: impl Fn(SyncSender<CounterReading>) -> O,
) -> Result<f64, RingSpeedError> {
    let (readings, receiver) = sync_channel(2);
    let config = VmConfig {
        kvm: None,
        memory_bytes: 4 << 20,
        payload: Payload::Flat { code: code.to_vec(), cpl },
        ..VmConfig::flat(code)
    };
    let machine = Machine::start(config, |_| meter(readings.clone()))?;
    drop(readings);
    let measured = rate(&receiver);
    machine.stop();
    let ended = machine.wait(Some(LIMIT));
    measured.map_err(|reason| {
        let end = ended.map_or_else(|error| error.to_string(), |ended| format!("{:?}", ended.end));
        RingSpeedError::NoProgress { cpl, reason: format!("{reason} ({end})") }
    })
}

/// Returns counts per second between two readings; on failure the reason.
#[allow(clippy::cast_precision_loss, reason = "both differences are far below 2^52")]
fn rate(readings: &Receiver<CounterReading>) -> Result<f64, &'static str> {
    let next = || readings.recv_timeout(LIMIT).map_err(|_| "its counter did not change");
    let (first, second) = (next()?, next()?);
    let counted = second.count.wrapping_sub(first.count);
    let elapsed_ns = second.at_ns.saturating_sub(first.at_ns);
    if elapsed_ns == 0 {
        return Err("the host's clock did not change");
    }
    Ok(counted as f64 / (elapsed_ns as f64 / 1e9))
}
