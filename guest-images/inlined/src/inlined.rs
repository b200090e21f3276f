//! `inlined`: a function that is part of another one's code, distinguishable only by line tables (DWARF).
//!
//! ```text
//! main -> outer [ mixed_in [ mixed_in_twice ] ]      in brackets: inlined
//! ```

use std::hint::black_box;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot, thread_cpu};

const USAGE: &str = "inlined [--seconds N]
works for N seconds (10) in mixed_in_twice, inlined in mixed_in, inlined in outer; prints the CPU time";

/// Rounds between two readings of the clock.
const ROUNDS: u32 = 20_000;

#[inline(always)]
fn mixed_in_twice(state: u64) -> u64 {
    let mut state = state;
    state ^= state << 13;
    state ^= state >> 7;
    black_box(state ^ state << 17)
}

#[inline(always)]
fn mixed_in(mut state: u64) -> u64 {
    for _ in 0..ROUNDS {
        state = mixed_in_twice(state);
    }
    state
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer(state: u64) -> u64 {
    mixed_in(state | 1)
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let deadline = since_boot() + seconds(args, 10.0)?;
    let mut state = 1;
    while since_boot() < deadline {
        state = outer(state);
    }
    black_box(state);
    println!("outer used {:.6} s", thread_cpu().as_secs_f64());
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds"], run)
}
