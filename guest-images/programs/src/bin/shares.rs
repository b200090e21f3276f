//! `shares`: three functions that take known shares of their process' CPU time, two calls below `main`.
//!
//! ```text
//! main -> left  -> half    50 %
//!      -> right -> third   30 %
//!               -> fifth   20 %
//! ```
//!
//! Each function does its work itself, so its share is its own time, plus 1 to 2 % for the system call that
//! reads its clock. The share of a caller is the sum of its callees. Shares hold after every round.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, WorkTurns, main_with, pin, seconds, set_name, since_boot};

const USAGE: &str = "shares [--seconds N] [--slice-millis N] [--name NAME] [--cpu N]
half, third and fifth take 50, 30 and 20 % of the CPU time for N seconds (10), in turns of 5, 3 and 2 times N ms (2);
prints what each of them used";

/// Turns of the three functions.
struct FunctionTurns {
    half: WorkTurns,
    third: WorkTurns,
    fifth: WorkTurns,
}

// Names without a hash, as profiles show them. No other object has them, which is what makes that safe.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn half(turns: &mut WorkTurns) {
    turns.take();
    black_box("half");
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn third(turns: &mut WorkTurns) {
    turns.take();
    black_box("third");
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fifth(turns: &mut WorkTurns) {
    turns.take();
    black_box("fifth");
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn left(work: &mut WorkTurns) {
    half(work);
    // Work after the call: a call at the end would become a jump, and this function would be on no stack.
    black_box("left");
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn right(first: &mut WorkTurns, second: &mut WorkTurns) {
    third(first);
    fifth(second);
    black_box("right");
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if let Some(name) = args.text("name") {
        set_name(name)?;
    }
    if let Some(cpu) = args.number("cpu")? {
        pin(cpu)?;
    }
    let unit = Duration::from_millis(args.number::<u16>("slice-millis")?.unwrap_or(2).max(1).into());
    let deadline = since_boot() + seconds(args, 10.0)?;
    let mut work = FunctionTurns {
        half: WorkTurns::new(unit * 5),
        third: WorkTurns::new(unit * 3),
        fifth: WorkTurns::new(unit * 2),
    };
    while since_boot() < deadline {
        left(&mut work.half);
        right(&mut work.third, &mut work.fifth);
    }
    for (name, turns) in [("half", work.half), ("third", work.third), ("fifth", work.fifth)] {
        println!("{name} used {:.6} s", turns.used.as_secs_f64());
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "slice-millis", "name", "cpu"], run)
}
