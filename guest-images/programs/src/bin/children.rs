//! `children`: a process that waits for children whose CPU time is known, and prints the result of
//! getrusage(RUSAGE_CHILDREN).
//!
//! One child has a child, for which it waits. Another child exits before its own child, which then counts
//! only in the sums of the process that inherits it.

use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, burn_until_cpu, fork_child, main_with, set_name, wait_for};
use nix::sys::resource::{UsageWho, getrusage};

const USAGE: &str = "children [--millis N]
waits for three children that use N ms of CPU time each (100), one of which waits for a fourth; a fifth, that another leaves behind, uses as
much; prints user and system time, page faults and context switches of the children that were waited for, then sleeps a second";

fn work(name: &str, time: Duration) -> Result<(), ProgramError> {
    set_name(name)?;
    burn_until_cpu(time);
    Ok(())
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let time = Duration::from_millis(args.number("millis")?.unwrap_or(100));
    let children = [
        fork_child(|| work("alone", time))?,
        fork_child(|| {
            wait_for(fork_child(|| work("grandchild", time))?)?;
            work("waits", time)
        })?,
        fork_child(|| {
            fork_child(|| work("orphan", time * 2))?;
            work("leaves", time)
        })?,
    ];
    children.into_iter().try_for_each(wait_for)?;
    let usage =
        getrusage(UsageWho::RUSAGE_CHILDREN).map_err(ProgramError::system("ask for the resource usage"))?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    println!(
        "children user {} us system {} us faults {} switches {}",
        micros(usage.user_time()),
        micros(usage.system_time()),
        usage.minor_page_faults() + usage.major_page_faults(),
        usage.voluntary_context_switches() + usage.involuntary_context_switches()
    );
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["millis"], run)
}
