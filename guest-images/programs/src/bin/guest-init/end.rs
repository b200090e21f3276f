//! Ends the guest in order: processes, console, disk, machine.

use std::arch::asm;
use std::thread::sleep;
use std::time::Duration;

use guest_programs::EXIT_PORT;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::tcdrain;
use nix::sys::wait::wait;
use nix::unistd::Pid;

/// Ends the guest. A status goes to the machine's exit port; without one, or without such a port, power goes off.
pub fn end(status: Option<u8>) -> ! {
    // Everyone but init itself; when nobody is left the kernel says ESRCH, which is fine.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(wait(), Err(errno) if errno != Errno::EINTR) {}
    // What was printed still sits in the serial port's queue; the machine would end before it is out.
    let _ = tcdrain(std::io::stdout());
    nix::unistd::sync();
    // Fails for an initramfs, which has nothing to lose.
    let _ = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>);
    if let Some(status) = status {
        report(status);
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
    // Init must never return: the kernel would panic.
    loop {
        sleep(Duration::from_secs(3600));
    }
}

/// Writes the status to the exit port. Returns where no machine listens there.
fn report(status: u8) {
    // SAFETY: ioperm only changes which ports this thread may use.
    if unsafe { libc::ioperm(EXIT_PORT.into(), 4, 1) } != 0 {
        return;
    }
    // SAFETY: the four ports from EXIT_PORT on were just permitted; a write there reaches the machine's exit device
    // or nothing at all, and touches no memory of this process.
    unsafe {
        asm!("out dx, eax", in("dx") EXIT_PORT, in("eax") u32::from(status), options(nomem, nostack, preserves_flags));
    }
}
