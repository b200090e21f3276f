//! Names, CPUs and children.

use std::ffi::CString;
use std::process;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::ProgramError;

/// Sets the name (`comm`) of the calling thread, which profiles show.
///
/// # Errors
/// The name is longer than the kernel's limit of 15 bytes (`TASK_COMM_LEN`), or has a NUL.
pub fn set_name(name: &str) -> Result<(), ProgramError> {
    if name.is_empty() || name.len() > 15 {
        return Err(ProgramError::Usage(format!("the name \"{name}\" does not have 1 to 15 bytes")));
    }
    let name = CString::new(name).map_err(|_| ProgramError::Usage("a name cannot hold a NUL".into()))?;
    prctl::set_name(&name).map_err(ProgramError::system("set the process name"))
}

/// Binds the calling process to one CPU.
///
/// # Errors
/// There is no such CPU.
pub fn pin(cpu: usize) -> Result<(), ProgramError> {
    let mut set = CpuSet::new();
    set.set(cpu).map_err(|_| ProgramError::Usage(format!("there is no CPU {cpu}")))?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(ProgramError::system("stay on the CPU asked for"))
}

/// Runs `body` in a child process, which ends with exit code 0, or 1 after an error that it prints.
///
/// # Errors
/// The kernel cannot create a process.
pub fn fork_child(body: impl FnOnce() -> Result<(), ProgramError>) -> Result<Pid, ProgramError> {
    // SAFETY: workloads have a single thread, so the child's copy of every lock is free and it may run any
    // code.
    match unsafe { fork() }.map_err(ProgramError::system("fork"))? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let code = match body() {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("{error}");
                    1
                }
            };
            process::exit(code)
        }
    }
}

/// Waits for a child.
///
/// # Errors
/// The child failed, or was killed.
pub fn wait_for(child: Pid) -> Result<(), ProgramError> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                return Err(ProgramError::System {
                    what: "bring a child to its end",
                    source: std::io::Error::other("it failed or was killed"),
                });
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(ProgramError::system("wait for a child")(errno)),
        }
    }
}
