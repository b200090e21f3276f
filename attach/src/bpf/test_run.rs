//! Running a loaded program once, with its result: `BPF_PROG_TEST_RUN`. The loader's own way needs the parsed
//! object, with all its instructions, as long as programs run.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `BPF_PROG_TEST_RUN` (`enum bpf_cmd`, include/uapi/linux/bpf.h, Linux 5.10).
const TEST_RUN: libc::c_int = 10;
/// `BPF_F_TEST_RUN_ON_CPU`: run on the CPU of the attributes instead of here.
const ON_CPU: u32 = 1;
/// Arguments of a program, words.
const ARGUMENTS: u32 = 2;

/// Member `test` of `union bpf_attr` (include/uapi/linux/bpf.h, Linux 5.10), up to `cpu`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    program: u32,
    result: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_bytes: u32,
    context_out_bytes: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
}

/// Runs a program of type `BPF_PROG_TYPE_RAW_TRACEPOINT` with these arguments, on the given CPU or here, and
/// returns its result. The kernel returns 0 for a program that it has not run.
pub(super) fn run(
    program: &impl AsFd,
    arguments: [u64; ARGUMENTS as usize],
    cpu: Option<u32>,
) -> io::Result<u32> {
    let mut attributes = Attributes {
        program: program.as_fd().as_raw_fd().cast_unsigned(),
        context: arguments.as_ptr().addr() as u64,
        context_bytes: ARGUMENTS * 8,
        flags: if cpu.is_some() { ON_CPU } else { 0 },
        cpu: cpu.unwrap_or(0),
        ..Attributes::default()
    };
    // SAFETY: the attributes have the layout that the kernel gives them, and the number of bytes that it
    // gets. It reads `arguments`, of which it knows address and size, and writes the attributes alone, before
    // the call returns.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut attributes, size_of::<Attributes>()) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes.result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets by hand of the members that are used.
    #[test]
    fn attributes_are_where_the_kernel_has_them() {
        use std::mem::offset_of;
        let offsets = [
            offset_of!(Attributes, program),
            offset_of!(Attributes, result),
            offset_of!(Attributes, context_bytes),
            offset_of!(Attributes, context),
            offset_of!(Attributes, flags),
            offset_of!(Attributes, cpu),
        ];
        assert_eq!(offsets, [0, 4, 40, 48, 64, 68]);
        assert_eq!(size_of::<Attributes>(), 72);
    }

    #[test]
    fn what_is_no_program_is_an_error_of_the_kernel() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = run(&file, [0, 0], None).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)), "{error}");
    }
}
