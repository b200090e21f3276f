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
