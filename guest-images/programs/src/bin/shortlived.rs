//! `shortlived`: many processes of one name, each of which lives for a few milliseconds.

use std::convert::Infallible;
use std::ffi::CString;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, burn_until_cpu, fork_child, main_with, pin, process_cpu};
use guest_programs::{set_name, wait_for};

const USAGE: &str = "shortlived [--count N] [--cpu-millis N] [--parallel N] [--name NAME] [--cpu N] [--exec]
starts N processes (200) that each use N ms of CPU time (5), N of them at a time (1); with --exec each of them
becomes the program spin before it takes the name";

/// Path in images of the program that `--exec` runs.
const SPIN: &str = "/usr/bin/spin";

fn exec_spin(name: &str, cpu_millis: u64) -> Result<Infallible, ProgramError> {
    let words = [SPIN, "--name", name, "--cpu-millis", &cpu_millis.to_string()].map(CString::new);
    let words: Vec<CString> = words
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|_| ProgramError::Usage("a name cannot hold a NUL".into()))?;
    nix::unistd::execv(&words[0], &words).map_err(ProgramError::system("run /usr/bin/spin"))
}

fn live(name: &str, cpu_millis: u64, exec: bool) -> Result<(), ProgramError> {
    if exec {
        exec_spin(name, cpu_millis)?;
    }
    set_name(name)?;
    burn_until_cpu(process_cpu() + Duration::from_millis(cpu_millis));
    Ok(())
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let name = args.text("name").unwrap_or("worker");
    let count = args.number::<usize>("count")?.unwrap_or(200);
    let cpu_millis = args.number("cpu-millis")?.unwrap_or(5);
    let parallel = args.number::<usize>("parallel")?.unwrap_or(1).max(1);
    let exec = args.flag("exec");
    if let Some(cpu) = args.number("cpu")? {
        pin(cpu)?;
    }
    let mut living = std::collections::VecDeque::new();
    for _ in 0..count {
        if living.len() == parallel
            && let Some(oldest) = living.pop_front()
        {
            wait_for(oldest)?;
        }
        living.push_back(fork_child(|| live(name, cpu_millis, exec))?);
    }
    for child in living {
        wait_for(child)?;
    }
    println!("{count} processes named {name} used {cpu_millis} ms each");
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["count", "cpu-millis", "parallel", "name", "cpu", "exec!"], run)
}
