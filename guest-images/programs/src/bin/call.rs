//! `call`: the second program of section 3.1 and figure 7 of M. Moravan and M. Richey, *SLEEPY* (2005): an
//! outer loop that adds the results of a procedure, which itself adds as many indices as the outer loop has
//! reached.
//!
//! With the paper's 100,000 outer iterations the inner loop runs five billion times: of the paper's 11,843
//! samples all but a handful were in the inner procedure, which is called `loop` here as there.

use std::hint::black_box;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot, thread_cpu};

const USAGE: &str = "call [--outer N] [--seconds N]
calls the procedure loop N times (100000) once, or again and again for N seconds; prints how often the outer and the
inner loop ran, and the CPU time";

/// Number of outer iterations in the paper.
const OUTER: u32 = 100_000;

/// Returns the sum of the numbers below `count`.
#[unsafe(export_name = "loop")]
#[inline(never)]
extern "C" fn inner_loop(count: u32) -> u32 {
    let mut sum = 0u32;
    let mut index = 0u32;
    while index < count {
        sum = black_box(sum.wrapping_add(index));
        index = black_box(index + 1);
    }
    sum
}

/// Returns the sum of the results for every number below `iterations`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer_loop(iterations: u32) -> u32 {
    let mut sum = 0u32;
    for index in 0..iterations {
        sum = black_box(sum.wrapping_add(inner_loop(index)));
    }
    sum
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let outer = args.number("outer")?.unwrap_or(OUTER);
    let limit = match args.text("seconds") {
        Some(_) => Some(since_boot() + seconds(args, 0.0)?),
        None => None,
    };
    let mut rounds = 0u64;
    loop {
        black_box(outer_loop(outer));
        rounds += 1;
        if limit.is_none_or(|limit| since_boot() >= limit) {
            break;
        }
    }
    let outer = u64::from(outer);
    println!(
        "outer {} inner {} iterations, used {:.6} s",
        rounds * outer,
        rounds * (outer * outer.saturating_sub(1) / 2),
        thread_cpu().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["outer", "seconds"], run)
}
