//! System calls, signals and processes: lmbench's `lat_syscall`, `lat_sig` and `lat_proc`.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use guest_programs::{ProgramError, fork_child, wait_for};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::unistd::execv;

use crate::NOTHING;
use crate::measure::{least, least_call, print};

/// Existing file whose path has as many components as lmbench's `/usr/include/...`.
const FILE: &str = "/usr/bin/sh";

extern "C" fn on_signal(_: libc::c_int) {}

fn handle() -> Result<(), ProgramError> {
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.map(drop).map_err(ProgramError::system("handle a signal"))
}

/// Starts a program in a child and waits for the child.
fn start(program: &CString, arguments: &[&CString]) -> Result<(), ProgramError> {
    let child =
        fork_child(|| execv(program, arguments).map(drop).map_err(ProgramError::system("start a program")))?;
    wait_for(child)
}

pub fn measure(length: Duration) -> Result<(), ProgramError> {
    let call = least_call(length, || {
        std::hint::black_box(nix::unistd::getppid());
        Ok(())
    })?;
    print("null_call", call);

    let mut zero = File::open("/dev/zero").map_err(ProgramError::system("open /dev/zero"))?;
    let null = OpenOptions::new().write(true).open("/dev/null");
    let mut null = null.map_err(ProgramError::system("open /dev/null"))?;
    let mut byte = [0];
    let both = least_call(length, || {
        zero.read_exact(&mut byte).map_err(ProgramError::system("read a byte"))?;
        null.write_all(&byte).map_err(ProgramError::system("write a byte"))
    })?;
    print("null_io", both / 2.0);

    let stat =
        |path: &str| fs::symlink_metadata(path).map(drop).map_err(ProgramError::system("ask for a file"));
    print("stat", least_call(length, || stat(FILE))?);
    let file = File::open(FILE).map_err(ProgramError::system("open a file"))?;
    print(
        "fstat",
        least_call(length, || file.metadata().map(drop).map_err(ProgramError::system("ask for a file")))?,
    );
    print(
        "open_close",
        least_call(length, || File::open(FILE).map(drop).map_err(ProgramError::system("open a file")))?,
    );

    print("signal_install", least_call(length, handle)?);
    print(
        "signal_handle",
        least_call(length, || raise(Signal::SIGUSR1).map_err(ProgramError::system("send a signal")))?,
    );

    print("fork", least(length, || wait_for(fork_child(|| Ok(()))?))?);
    let own = std::env::current_exe().map_err(ProgramError::system("find this program"))?;
    let text = |bytes: Vec<u8>| {
        CString::new(bytes).map_err(|_| ProgramError::Usage("a path cannot hold a NUL".into()))
    };
    let own = text(own.into_os_string().into_vec())?;
    let option = text(format!("--{NOTHING}").into_bytes())?;
    print("execve", least(length, || start(&own, &[&own, &option]))?);
    let shell = text(b"/bin/sh".to_vec())?;
    let command = text([own.as_bytes(), b" ", option.as_bytes(), b"; true"].concat())?;
    print("sh", least(length, || start(&shell, &[&shell, &text(b"-c".to_vec())?, &command]))?);
    Ok(())
}
