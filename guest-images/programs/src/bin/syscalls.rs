//! `syscalls`: a process that spends most of its time in the kernel.

use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, pin, seconds, set_name, since_boot};

const USAGE: &str = "syscalls [--seconds N] [--call getppid|read] [--name NAME] [--cpu N]
makes one system call after the other for N seconds (10): getppid, which is nothing but entry and exit, or read of
64 KiB of /dev/zero, which is almost all kernel";

/// Calls between two readings of the clock.
const CALLS: u32 = 64;

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if let Some(name) = args.text("name") {
        set_name(name)?;
    }
    if let Some(cpu) = args.number("cpu")? {
        pin(cpu)?;
    }
    let deadline = since_boot() + seconds(args, 10.0)?;
    match args.text("call").unwrap_or("getppid") {
        "getppid" => {
            while since_boot() < deadline {
                for _ in 0..CALLS {
                    std::hint::black_box(nix::unistd::getppid());
                }
            }
        }
        "read" => {
            let mut zero = File::open("/dev/zero").map_err(ProgramError::system("open /dev/zero"))?;
            let mut buffer = vec![0; 64 << 10];
            while since_boot() < deadline {
                zero.read_exact(&mut buffer).map_err(ProgramError::system("read /dev/zero"))?;
            }
        }
        other => {
            return Err(ProgramError::Usage(format!("--call {other}: getppid and read are known")));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "call", "name", "cpu"], run)
}
