//! `spin`: a process that only works in user space.

use std::process::ExitCode;

use guest_programs::{
    ProgramArgs, ProgramError, burn_until_deadline, main_with, pin, seconds, set_name, since_boot,
};
use guest_programs::{burn_until_cpu, process_cpu};

const USAGE: &str = "spin [--seconds N] [--cpu-millis N] [--name NAME] [--cpu N]
works in user space for N seconds of time (10), or until it has used N ms of CPU time";

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if let Some(name) = args.text("name") {
        set_name(name)?;
    }
    if let Some(cpu) = args.number("cpu")? {
        pin(cpu)?;
    }
    match args.number("cpu-millis")? {
        Some(millis) => burn_until_cpu(process_cpu() + std::time::Duration::from_millis(millis)),
        None => burn_until_deadline(since_boot() + seconds(args, 10.0)?),
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "cpu-millis", "name", "cpu"], run)
}
