//! `victim`: the CPU-bound program of table 1 of S. McCanne and C. Torek, *A Randomized Sampling Clock for
//! CPU Utilization Estimation and Code Profiling* (USENIX Winter 1993): a fixed amount of work, whatever else
//! runs.

use std::hint::black_box;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, burn, main_with, pin, process_times, set_name, since_boot};

const USAGE: &str = "victim [--rounds N] [--name NAME] [--cpu N]
does N rounds (100000000) of work; prints the real time, and the CPU time by getrusage";

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if let Some(name) = args.text("name") {
        set_name(name)?;
    }
    if let Some(cpu) = args.number("cpu")? {
        pin(cpu)?;
    }
    let rounds = args.number("rounds")?.unwrap_or(100_000_000);
    let start = since_boot();
    black_box(burn(rounds, 1));
    let real = since_boot() - start;
    let (user, system) = process_times()?;
    println!(
        "victim real {:.6} s, user {:.6} s, system {:.6} s",
        real.as_secs_f64(),
        user.as_secs_f64(),
        system.as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["rounds", "name", "cpu"], run)
}
