//! `hog`: a process that uses the CPU but never runs at the scheduler's tick.
//!
//! The program of table 1 and the appendix of S. McCanne and C. Torek, *A Randomized Sampling Clock for CPU
//! Utilization Estimation and Code Profiling* (USENIX Winter 1993), rewritten for Linux:
//!
//! 1. **Train.** The kernel checks a timer on the process' CPU time (`ITIMER_VIRTUAL`) only at a tick, so its
//!    signal arrives right after one. The signal that came soonest after the last reading of the clock
//!    indicates the phase of the ticks best.
//! 2. **Work** in user space until shortly before the next tick, **sleep** across it, again and again.
//!
//! A count at ticks sees an idle CPU, like `/proc/stat` of a kernel with `CONFIG_TICK_CPU_ACCOUNTING`. The
//! sleep of 4.3BSD lasted until the next tick but one, so the paper needed two hogs for a whole CPU. Linux's
//! high-resolution timers wake the hog right after the tick, and one is enough.

use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guest_programs::{
    ProgramArgs, ProgramError, burn, busy, main_with, pin, process_cpu, seconds, set_name, since_boot,
};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const USAGE: &str = "hog [--seconds N] [--hz N] [--guard-micros N] [--name NAME] [--cpu N]
uses the CPU between the ticks of a kernel with CONFIG_HZ=N (250) for N seconds (10), stops N us (400) before each
tick and sleeps across it; prints what it used and what /proc/stat saw of it";

/// Signals to evaluate while training.
const TRAINING_TICKS: u32 = 20;
/// Rounds of work between two readings of the clock, about 1 us on a 3 GHz CPU.
const ROUNDS: u32 = 1_000;

/// Last reading of the clock, ns since boot; the signal handler compares it with its own.
static LOOKED: AtomicU64 = AtomicU64::new(0);
/// Least distance so far between a reading and the next signal, ns.
static NEAREST: AtomicU64 = AtomicU64::new(u64::MAX);
/// Time of that signal, ns since boot.
static TICK: AtomicU64 = AtomicU64::new(0);
/// Signals so far.
static TICKS: AtomicU64 = AtomicU64::new(0);

fn nanos(time: Duration) -> u64 {
    // 584 years of uptime fit.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

extern "C" fn on_tick(_: libc::c_int) {
    let now = nanos(since_boot());
    let distance = now.saturating_sub(LOOKED.load(Ordering::Relaxed));
    if distance < NEAREST.load(Ordering::Relaxed) {
        NEAREST.store(distance, Ordering::Relaxed);
        TICK.store(now, Ordering::Relaxed);
    }
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// Requests SIGVTALRM at every tick that hits this process, or stops the signals.
fn virtual_timer(micros: i64) -> Result<(), ProgramError> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the new value outlives the call, and the old one is not requested.
    let result = unsafe { libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, ptr::null_mut()) };
    nix::errno::Errno::result(result).map(drop).map_err(ProgramError::system("set a virtual timer"))
}

/// Returns the phase of the ticks in their period, ns.
fn train(period: u64) -> Result<u64, ProgramError> {
    let action = SigAction::new(SigHandler::Handler(on_tick), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler touches only atomics and reads a clock, both of which are safe in a signal handler.
    unsafe { sigaction(Signal::SIGVTALRM, &action) }.map_err(ProgramError::system("handle SIGVTALRM"))?;
    // A sleep right before keeps other processes from taking the CPU in the middle of the training.
    std::thread::sleep(Duration::from_micros(1));
    virtual_timer(1)?;
    while TICKS.load(Ordering::Relaxed) < u64::from(TRAINING_TICKS) {
        LOOKED.store(nanos(since_boot()), Ordering::Relaxed);
        std::hint::black_box(burn(ROUNDS / 4, 1));
    }
    virtual_timer(0)?;
    Ok(TICK.load(Ordering::Relaxed) % period)
}

/// Returns the first tick after `now`, ns since boot.
fn next_tick(now: u64, period: u64, phase: u64) -> u64 {
    let since = (now + period - phase) % period;
    now + period - since
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    set_name(args.text("name").unwrap_or("hog"))?;
    pin(args.number("cpu")?.unwrap_or(0))?;
    let hz = args.number::<u64>("hz")?.unwrap_or(250);
    if !(100..=1000).contains(&hz) {
        return Err(ProgramError::Usage(format!("--hz {hz}: kernels tick 100 to 1000 times a second")));
    }
    let period = 1_000_000_000 / hz;
    let guard = args.number::<u64>("guard-micros")?.unwrap_or(400).saturating_mul(1000);
    if guard >= period / 2 {
        return Err(ProgramError::Usage(format!("--guard-micros: a tick comes every {} us", period / 1000)));
    }
    // By default the kernel may wake a sleeper 50 us late.
    nix::sys::prctl::set_timerslack(1).map_err(ProgramError::system("ask for exact sleeps"))?;
    let phase = train(period)?;

    let start = since_boot();
    let (cpu_before, ticked_before) = (process_cpu(), busy());
    let deadline = nanos(start + seconds(args, 10.0)?);
    let mut now = nanos(start);
    let mut state = 1;
    while now < deadline {
        let tick = next_tick(now, period, phase);
        while now + guard < tick {
            state = burn(ROUNDS, state);
            now = nanos(since_boot());
        }
        // A quarter of the guard after the tick, its handler has finished.
        let wake = Duration::from_nanos(tick + guard / 4);
        std::thread::sleep(wake.saturating_sub(since_boot()));
        now = nanos(since_boot());
    }
    std::hint::black_box(state);
    let wall = since_boot() - start;
    let cpu = process_cpu() - cpu_before;
    print!("hog used {:.2} s of {:.2} s", cpu.as_secs_f64(), wall.as_secs_f64());
    match (ticked_before, busy()) {
        (Some(before), Some(after)) => {
            println!("; /proc/stat saw {:.2} s of work", after.saturating_sub(before).as_secs_f64());
        }
        _ => println!(),
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "hz", "guard-micros", "name", "cpu"], run)
}

#[cfg(test)]
mod tests {
    use super::next_tick;

    #[test]
    fn the_next_tick_is_the_first_after_now() {
        for (now, tick) in [(0, 300), (299, 300), (300, 4300), (4000, 4300), (4301, 8300)] {
            assert_eq!(next_tick(now, 4000, 300), tick);
        }
    }
}
