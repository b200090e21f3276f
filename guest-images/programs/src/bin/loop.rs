//! `loop`: the first program of section 3.1 and figure 6 of M. Moravan and M. Richey, *SLEEPY* (2005): a
//! `for` loop that adds its index to a running total a billion times.
//!
//! All its time is in a handful of instructions of one function, the loop between two jumps: the paper saw
//! six.

use std::hint::black_box;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot, thread_cpu};

const USAGE: &str = "loop [--iterations N] [--seconds N]
adds N numbers (1000000000) once, or again and again for N seconds; prints how many, and the CPU time";

/// Number of iterations in the paper.
const ITERATIONS: u64 = 1_000_000_000;

/// Returns the sum of the numbers below `iterations`. Index and total are in memory, as in a C program
/// without optimisation.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sum_of_indices(iterations: u64) -> u64 {
    let mut sum = 0u64;
    let mut index = 0u64;
    while index < iterations {
        sum = black_box(sum.wrapping_add(index));
        index = black_box(index + 1);
    }
    sum
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let iterations = args.number("iterations")?.unwrap_or(ITERATIONS);
    let mut rounds = 1u64;
    if args.text("seconds").is_some() {
        let deadline = since_boot() + seconds(args, 0.0)?;
        let part = iterations.min(1_000_000);
        rounds = 0;
        while since_boot() < deadline {
            black_box(sum_of_indices(part));
            rounds += 1;
        }
        println!("{rounds} times the sum of {part} indices, used {:.6} s", thread_cpu().as_secs_f64());
        return Ok(());
    }
    let sum = sum_of_indices(iterations);
    println!(
        "{rounds} times the sum of {iterations} indices, {sum}, used {:.6} s",
        thread_cpu().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["iterations", "seconds"], run)
}
