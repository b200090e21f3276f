//! `restart`: a program that starts the kernel of the disk again without a reset of the machine (kexec).

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with};
use nix::errno::Errno;

const USAGE: &str = "restart
loads /boot/vmlinuz and /boot/initrd.img with the command line of now, and starts them";

fn open(path: &str) -> Result<File, ProgramError> {
    File::open(path).map_err(ProgramError::system("open the kernel or its initrd"))
}

fn run(_: &ProgramArgs) -> Result<(), ProgramError> {
    let (kernel, initrd) = (open("/boot/vmlinuz")?, open("/boot/initrd.img")?);
    let line = fs::read("/proc/cmdline").map_err(ProgramError::system("read the command line"))?;
    let line = CString::new(line.trim_ascii()).map_err(ProgramError::system("take the command line"))?;
    // SAFETY: both descriptors are open, and `line` has the given length and ends with a NUL.
    let loaded = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd.as_raw_fd(),
            line.as_bytes_with_nul().len(),
            line.as_ptr(),
            0_u64,
        )
    };
    Errno::result(loaded).map_err(ProgramError::system("load a kernel"))?;
    // SAFETY: the call takes no pointer, and does not return if it succeeds.
    let started = unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_KEXEC) };
    Errno::result(started).map(drop).map_err(ProgramError::system("start the kernel"))
}

fn main() -> ExitCode {
    main_with(USAGE, &[], run)
}
