//! `isochronous`: works for a moment at the start of every period, like the audio tool *vat* of figures 3 and 4 of S.
//! McCanne and C. Torek, *A Randomized Sampling Clock for CPU Utilization Estimation and Code Profiling* (USENIX Winter
//! 1993), which processed a frame of sound every 22.5 ms.
//!
//! Its CPU time grows in a straight line. Who looks at a regular clock sees it at few points of its period only, and
//! when the period is a multiple of the clock's, always at the same one.

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{Args, Error, burn, busy, main_with, pin, process_cpu, seconds, since_boot};

const USAGE: &str = "isochronous [--seconds N] [--period-micros N] [--work-micros N] [--log-millis N] [--cpu N]
works for N us (2250) of every period of N us (22500) for N seconds (10); prints, of about every N ms (100), the time
since its start, the time that /proc/stat saw CPUs busy, and its own CPU time, all in ms";

/// Rounds of work between two looks at the clock, about 1 us on a 3 GHz CPU.
const ROUNDS: u32 = 1_000;

/// One line of the log: time since the start, of `/proc/stat`, and CPU time.
type Line = (Duration, Duration, Duration);

fn run(args: &Args) -> Result<(), Error> {
    pin(args.number("cpu")?.unwrap_or(0))?;
    let micros = |name, default| Ok(args.number::<u32>(name)?.unwrap_or(default));
    let period = Duration::from_micros(micros("period-micros", 22_500)?.into());
    let work = Duration::from_micros(micros("work-micros", 2_250)?.into());
    if work >= period {
        return Err(Error::Usage("--work-micros: the work does not fit into the period".into()));
    }
    let every = Duration::from_millis(micros("log-millis", 100)?.into());
    let length = seconds(args, 10.0)?;
    // The kernel may otherwise wake a sleeper 50 us late.
    nix::sys::prctl::set_timerslack(1).map_err(Error::system("ask for exact sleeps"))?;

    println!("isochronous starts");
    let start = since_boot();
    let (cpu_start, busy_start) = (process_cpu(), busy().unwrap_or_default());
    let mut log: Vec<Line> = Vec::new();
    let (mut frame, mut due, mut state) = (Duration::ZERO, Duration::ZERO, 1);
    while frame < length {
        std::thread::sleep((start + frame).saturating_sub(since_boot()));
        let end = start + frame + work;
        while since_boot() < end {
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

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "period-micros", "work-micros", "log-millis", "cpu"], run)
}
