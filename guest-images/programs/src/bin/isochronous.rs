//! `isochronous`: works for a moment at the start of every period, like the audio tool *vat* of figures 3 and
//! 4 of S. McCanne and C. Torek, *A Randomized Sampling Clock for CPU Utilization Estimation and Code
//! Profiling* (USENIX Winter 1993), which processed a frame of sound every 22.5 ms.
//!
//! Its CPU time grows in a straight line. Samples at a regular clock hit only few points of its period, and
//! always the same point if the period is a multiple of the clock's.

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{
    ProgramArgs, ProgramError, burn, busy, main_with, pin, process_cpu, seconds, since_boot,
};

const USAGE: &str = "isochronous [--seconds N] [--period-micros N] [--work-micros N] [--log-millis N] [--cpu N]
does what took it N us (2250) of CPU time when it was tried out, at the start of every period of N us (22500), for N
seconds (10); prints, of about every N ms (100), the time
since its start, the time that /proc/stat saw CPUs busy, and its own CPU time, all in ms";

/// Rounds in one piece of work, about 1 us on a 3 GHz CPU.
const ROUNDS: u32 = 1_000;
/// Pieces between two readings of the clock, which is a system call.
const PIECES: u64 = 32;
/// CPU time of a trial.
const TRIAL: Duration = Duration::from_millis(100);

/// Line of the log: time since the start, of `/proc/stat`, and CPU time.
type LogLine = (Duration, Duration, Duration);

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    pin(args.number("cpu")?.unwrap_or(0))?;
    let micros = |name, default| Ok(args.number::<u32>(name)?.unwrap_or(default));
    let period = Duration::from_micros(micros("period-micros", 22_500)?.into());
    let work = Duration::from_micros(micros("work-micros", 2_250)?.into());
    if work >= period {
        return Err(ProgramError::Usage("--work-micros: the work does not fit into the period".into()));
    }
    let every = Duration::from_millis(micros("log-millis", 100)?.into());
    let length = seconds(args, 10.0)?;
    // By default the kernel may wake a sleeper 50 us late.
    nix::sys::prctl::set_timerslack(1).map_err(ProgramError::system("ask for exact sleeps"))?;

    let (each, mut state) = work_of(work);
    println!("isochronous starts");
    let start = since_boot();
    let (cpu_start, busy_start) = (process_cpu(), busy().unwrap_or_default());
    let mut log: Vec<LogLine> = Vec::new();
    let (mut frame, mut due) = (Duration::ZERO, Duration::ZERO);
    while frame < length {
        std::thread::sleep((start + frame).saturating_sub(since_boot()));
        // A frame does all its work, even if it begins late.
        for _ in 0..each {
            state = burn(ROUNDS, state);
        }
        if frame >= due {
            let busy = busy().unwrap_or_default().saturating_sub(busy_start);
            log.push((since_boot() - start, busy, process_cpu() - cpu_start));
            due += every;
        }
        frame += period;
    }
    black_box(state);
    let mut text = String::new();
    for (time, busy, cpu) in log {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "at {:.1} stat {:.0} cpu {:.3}", ms(time), ms(busy), ms(cpu));
    }
    print!("{text}");
    Ok(())
}

/// Returns the number of pieces per such CPU time, by a trial, and the result of the work.
fn work_of(time: Duration) -> (u64, u64) {
    let (begin, mut state, mut count) = (process_cpu(), 1, 0);
    loop {
        for _ in 0..PIECES {
            state = burn(ROUNDS, state);
        }
        count += PIECES;
        let taken = process_cpu() - begin;
        if taken >= TRIAL {
            let pieces = u128::from(count) * time.as_nanos() / taken.as_nanos();
            return (u64::try_from(pieces).unwrap_or(u64::MAX), state);
        }
    }
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "period-micros", "work-micros", "log-millis", "cpu"], run)
}
