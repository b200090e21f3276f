//! Paths, ports and names that the programs inside guest images share with each other, with the images'
//! recipes, and with the launcher that starts such an image.
//!
//! | between | shared |
//! |---|---|
//! | launcher and init | [`COMMAND_FILE`], written by [`encode_command`], read by [`decode_command`] |
//! | init and launcher | [`COMMAND_PORT`], for the command's duration, and [`EXIT_PORT`], for its exit status |
//! | launcher and init | [`OUTPUT_PORTS`], for the command's output |
//! | recipes and any init | [`LOAD_ORDER`], the kernel modules to load, one path a line |
//! | recipes and users | [`WORKLOADS`], programs whose use of the CPU is known by construction |

mod args;
mod clock;
mod cpu_times;
mod network;
mod process;
mod work;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

pub use args::{ProgramArgs, ProgramError, main_with};
pub use clock::{process_cpu, seconds, since_boot, thread_cpu};
pub use cpu_times::{busy, process_times};
pub use network::raise_loopback;
pub use process::{fork_child, pin, set_name, wait_for};
pub use work::{WorkTurns, burn, burn_here, burn_until_cpu, burn_until_deadline};

/// Path of init's command inside the initramfs. The file has the arguments, each ended by a NUL.
pub const COMMAND_FILE: &str = "/vprof/command";
/// Path of the list of kernel modules inside an initramfs: absolute paths, one per line, each after its
/// dependencies.
pub const LOAD_ORDER: &str = "/lib/modules/load-order";
/// I/O port for the exit status of the guest's command, one 32-bit write, which ends the machine.
///
/// It is the usual port of QEMU's `isa-debug-exit`, so images end under plain QEMU too.
pub const EXIT_PORT: u16 = 0xf4;
/// I/O port for the command's duration, ns, as two 32-bit writes, the upper half first. Plain QEMU ignores
/// it.
pub const COMMAND_PORT: u16 = 0xf8;
/// Names of the virtio ports for the command's standard output and error, where the machine has them.
pub const OUTPUT_PORTS: [&str; 2] = ["org.vprof.stdout", "org.vprof.stderr"];
/// Path of the program on the root disk that init runs without a command.
pub const DEMO_LOAD: &str = "/usr/bin/demo-load";
/// Path of the script that runs programs of many kinds and languages at once.
pub const MIXED_LOAD: &str = "/usr/bin/mixed-load";
/// File name of PID 1 among this crate's binaries.
pub const INIT: &str = "guest-init";
/// File names of the workloads among this crate's binaries; images hold them in `/usr/bin`.
pub const WORKLOADS: &[&str] = &[
    "blocked",
    "btree",
    "call",
    "children",
    "faults",
    "filter",
    "handler",
    "hog",
    "hostile",
    "inlined",
    "interfered",
    "isochronous",
    "jit",
    "latency",
    "loop",
    "recursion",
    "restart",
    "shares",
    "shortlived",
    "sleeper",
    "sleeps",
    "spin",
    "split",
    "syscalls",
    "threads",
    "victim",
];

/// Returns the bytes of [`COMMAND_FILE`] for a command and its arguments.
///
/// An argument of a Linux program cannot contain a NUL; a NUL in an argument here splits that argument.
pub fn encode_command<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for argument in argv {
        bytes.extend_from_slice(argument.as_ref().as_bytes());
        bytes.push(0);
    }
    bytes
}

/// Returns the command and its arguments in the bytes of a [`COMMAND_FILE`]; empty if there is no command.
pub fn decode_command(bytes: &[u8]) -> Vec<OsString> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_file() {
        for argv in [
            vec!["sh", "-c", "echo \"a b\"; exit 3"],
            vec!["true"],
            vec!["printf", "", "last is empty", ""],
            vec!["printf", "new\nline"],
        ] {
            let decoded = decode_command(&encode_command(&argv));
            assert_eq!(decoded, argv.iter().map(OsString::from).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_file_is_no_command() {
        assert!(decode_command(b"").is_empty());
        assert!(decode_command(b"\0").is_empty());
    }

    #[test]
    fn a_missing_last_nul_is_forgiven() {
        assert_eq!(decode_command(b"echo\0hello"), ["echo", "hello"]);
    }
}
