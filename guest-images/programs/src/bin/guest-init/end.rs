//! End of the guest, in this order: processes, console, disk, machine.

use std::arch::asm;
use std::thread::sleep;
use std::time::Duration;

use guest_programs::{COMMAND_PORT, EXIT_PORT};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::tcdrain;
use nix::sys::wait::wait;
use nix::unistd::Pid;

/// Ends the guest. The command's status goes to the machine's exit port, and its duration to the port for
/// that. Without a command, or without such ports, the machine powers off.
pub fn end(command: Option<(u8, Duration)>) -> ! {
    // The signal goes to all processes but init. ESRCH means that there are none, which is fine.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(wait(), Err(errno) if errno != Errno::EINTR) {}
    // Output is still in the serial port's queue, and the machine could end before it is sent.
    let _ = tcdrain(std::io::stdout());
    nix::unistd::sync();
    // The call fails for an initramfs, which has no data to lose.
    let _ = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>);
    if let Some((status, took)) = command {
        report(status, took);
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
    // Init must never return: the kernel would panic.
    loop {
        sleep(Duration::from_secs(3600));
    }
}

/// Writes time and status to their ports. Returns only if the machine has no such ports.
fn report(status: u8, took: Duration) {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let [upper, lower] =
        [ns >> 32, ns & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(u32::MAX));
    for (port, value) in [(COMMAND_PORT, upper), (COMMAND_PORT, lower), (EXIT_PORT, status.into())] {
        write(port, value);
    }
}

fn write(port: u16, value: u32) {
    // SAFETY: ioperm only changes which ports this thread may use.
    if unsafe { libc::ioperm(port.into(), 4, 1) } != 0 {
        return;
    }
    // SAFETY: the four ports from `port` on were just permitted. A write there reaches a device of the
    // machine or nothing, and does not touch this process' memory.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags));
    }
}
