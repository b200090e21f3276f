//! `sleeper`: a process that uses no CPU.

use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, set_name};

const USAGE: &str = "sleeper [--seconds N] [--name NAME]
sleeps for N seconds (10), in one system call";

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if let Some(name) = args.text("name") {
        set_name(name)?;
    }
    std::thread::sleep(seconds(args, 10.0)?);
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "name"], run)
}
