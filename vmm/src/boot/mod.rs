//! Loading of a payload, up to a vCPU that is ready to run it.
//!
//! [`image`] determines the kind of a kernel file. [`linux`] puts it into memory by the boot protocol of
//! `Documentation/arch/x86/boot.rst`, and [`flat`] does the same for a few bytes of machine code. [`cpu`] has
//! what both need: page tables, segments and the first vCPU's registers.

pub(crate) mod cpu;
mod flat;
mod image;
mod linux;

use vm_memory::GuestMemoryMmap;

use crate::config::Payload;
use crate::error::{KernelError, StartError};

pub(crate) use cpu::EntryState;

/// Checks that a file is a kernel which [`Machine::start`](crate::Machine::start) can boot. Needs no
/// `/dev/kvm`.
///
/// # Errors
///
/// What the file is instead, or what is wrong with it.
pub fn check_kernel(file: &[u8]) -> Result<(), KernelError> {
    image::recognize(file).map(drop)
}

/// Returns the length of the longest command line that a kernel takes, bytes, from its file.
///
/// # Errors
///
/// What the file is instead of a kernel, or what is wrong with it.
pub fn longest_command_line(file: &[u8]) -> Result<usize, KernelError> {
    Ok(match image::recognize(file)? {
        image::KernelImage::BzImage(header) => linux::longest_command_line(&header),
        image::KernelImage::Elf { .. } => linux::ELF_COMMAND_LINE,
    })
}

/// Checks that a kernel that takes command lines of at most `most` bytes gets all of this one.
///
/// A longer line must not reach the kernel, whatever program loads it. QEMU, for example, passes on lines of
/// any length. Linux 6.1 copies the first 2,048 bytes (`copy_bootdata`, arch/x86/kernel/head64.c), and with
/// `CONFIG_FORTIFY_SOURCE` panics because it finds no NUL in them, before it has a console to say so.
///
/// # Errors
///
/// The line is too long, or a NUL would end it early.
pub fn check_command_line(line: &str, most: usize) -> Result<(), StartError> {
    if let Some(at) = line.bytes().position(|byte| byte == 0) {
        return Err(StartError::CommandLineNul { at });
    }
    if line.len() > most {
        return Err(StartError::CommandLineTooLong { length: line.len(), most });
    }
    Ok(())
}

/// Puts the payload and all that it needs into memory.
pub(crate) fn load(
    payload: &Payload,
    memory: &GuestMemoryMmap,
    vcpus: u8,
    second_serial: bool,
) -> Result<EntryState, StartError> {
    match payload {
        Payload::Linux { kernel, initrd, cmdline } => {
            linux::load(memory, kernel, initrd.as_deref(), cmdline, vcpus, second_serial)
        }
        Payload::Flat { code, cpl } => flat::load(memory, code, *cpl),
    }
}
