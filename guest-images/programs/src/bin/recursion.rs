//! `recursion`: one function that calls itself to a known depth and works at the bottom.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, burn_here, main_with, seconds, since_boot, thread_cpu};

const USAGE: &str = "recursion [--depth N] [--seconds N]
descend is N (60) times on the stack, for N seconds (10); prints the depth and the CPU time";

/// Largest depth that fits into a main thread's 8 MiB of stack.
const MAX_DEPTH: u32 = 50_000;
/// Rounds of work between two readings of the clock.
const ROUNDS: u32 = 20_000;

/// Calls itself until `depth` frames are on the stack, works there, and returns the number of calls below it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn descend(depth: u32, deadline_ns: u64) -> u32 {
    if depth > 1 {
        // The addition after the call keeps it from becoming a jump.
        return black_box(descend(black_box(depth - 1), deadline_ns)) + 1;
    }
    let deadline = Duration::from_nanos(deadline_ns);
    let mut state = 1;
    while since_boot() < deadline {
        state = burn_here(ROUNDS, state);
    }
    black_box(state);
    0
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let depth = args.number("depth")?.unwrap_or(60);
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(ProgramError::Usage(format!("--depth {depth}: 1 to {MAX_DEPTH}")));
    }
    let deadline = since_boot() + seconds(args, 10.0)?;
    let deadline = u64::try_from(deadline.as_nanos())
        .map_err(|_| ProgramError::Usage(String::from("--seconds: no clock runs so long")))?;
    let calls = descend(depth, deadline);
    println!("descend was {} times on the stack, used {:.6} s", calls + 1, thread_cpu().as_secs_f64());
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["depth", "seconds"], run)
}
