//! `vprof run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use control::message::Then;
use disk_images::contents::ImageFormat;
use display::parse::positive_time;
use host::choice::HostChoice;
use profile::conditions::RunTrigger;
use sandbox::SyscallPolicy;

use super::parse::{
    NetworkChoice, format_parser, host_parser, parse_memory, parse_network, policy_parser, trip_parser,
};
use super::{RecordingArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof run debian.qcow2 --snapshot        boots a distribution's disk image and
                                           leaves the image unchanged
  vprof run guest.img --snapshot -d 20s    20 seconds
  vprof run guest.img --cpus 4 --memory 2G -F 5000 -o busy.vprof
  vprof run guest.img --snapshot -- sha256sum /big     a command (with systemd)
  vprof run guest.img --start-when process:bench --stop-when process-end:bench
  vprof run guest.img --top                live on this terminal, `?` for help
  vprof run guest.img --trip vfs_fsync_range -- make    each call of a function
  vprof run vmlinuz --initrd initrd.img --disk root.img --append root=/dev/vda
";

const NOTES: &str = "\
vprof takes the kernel, initrd and command line that the disk image's own boot loader would take; \
`vprof image inspect` shows them. The image needs no changes for vprof. \
A command under systemd runs as root once the default target is up. It has no input; vprof prints its output and \
errors unchanged. Then the guest shuts down, unless the disks are --snapshot or --read-only.

A run on a terminal shows its progress, and Ctrl-C ends it. With `--console -`, and with a command that has no output \
apart from the console, the terminal is the guest's console: all keys go to the guest, and Ctrl-] ends the run.

The run ends when the guest powers off or resets, when its command ends, after \
--duration, when --until-precision is reached, or on SIGINT or SIGTERM. The profile is complete in each case; after kill -9 \
it has all but the last second.

A CONDITION is console:REGEX (a line of the console, finished or not, without its colours), process:NAME, \
process-end:NAME (no process of this name is left), unit:NAME (a systemd unit has a process), started (systemd says \
\"Startup finished\"), mark:TEXT (of `vprof ctl mark`), or time:5s (since the run's start, or since sampling began). \
vprof notices it within 20 ms, processes and units within 50 ms where the guest has at most some thousand tasks. \
Shares and estimated times leave out the time that is not sampled.

Exit codes: with `-- CMD` the code of the guest's command; else 0 done, 1 failed, \
2 the command line is wrong, 3 --until-precision was not reached or --start-when was never met (a command that \
failed keeps its code), 4 no usable hypervisor.";

/// `vprof run`.
#[derive(Debug, Clone, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct RunArgs {
    /// Disk image (raw or qcow2) with a kernel (docs/images.md), or a kernel (bzImage, vmlinux or unified
    /// image)
    pub image: PathBuf,

    /// Command to run in the guest once it is up; the run ends with it. For disk images whose init is
    /// systemd, and for those of `cargo xtask image demo`
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// Kernel to boot instead of the image's own
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub kernel: Option<PathBuf>,

    /// Initrd to boot with, instead of the image's own
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub initrd: Option<PathBuf>,

    /// More words for the kernel command line; they follow those of the image's boot loader and
    /// `console=ttyS0 quiet panic=-1`, so they take precedence
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, help_heading = "Guest")]
    pub append: Option<String>,

    /// Number of virtual CPUs, 1 to 64
    #[arg(long, short = 'c', default_value_t = 1, value_name = "N", help_heading = "Guest",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(vmm::config::MAX_VCPUS)))]
    pub cpus: u8,

    /// Guest memory, like 512M or 2G, up to 256G
    #[arg(long, short = 'm', default_value = "1G", value_name = "SIZE", value_parser = parse_memory, help_heading = "Guest")]
    pub memory: u64,

    /// Back guest memory with huge pages of 2 MiB that the host has reserved (/proc/sys/vm/nr_hugepages).
    /// Without this option the host uses huge pages where it has free ones
    #[arg(long, help_heading = "Guest")]
    pub huge_pages: bool,

    /// Let the guest run virtual machines itself (VMX, SVM), as far as this host's KVM supports that
    #[arg(long, help_heading = "Guest")]
    pub nested: bool,

    /// Give the guest performance counters, as far as this host's KVM emulates them. They slow down each
    /// entry into the guest, and the host has fewer meanwhile
    #[arg(long, help_heading = "Guest")]
    pub pmu: bool,

    /// Another disk image, raw or qcow2, seen by the guest after IMAGE; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub disk: Vec<PathBuf>,

    /// Format of IMAGE and of every --disk, or a list with one for each in their order, like `qcow2,raw`.
    /// Without it the first bytes of a file decide, which the guest of a raw disk can write
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', value_parser = format_parser(), help_heading = "Guest")]
    pub format: Vec<ImageFormat>,

    /// Discard the guest's writes to all disks when the run ends
    #[arg(long, help_heading = "Guest")]
    pub snapshot: bool,

    /// Make all disks read-only in the guest
    #[arg(long, conflicts_with = "snapshot", help_heading = "Guest")]
    pub read_only: bool,

    /// Give the guest a network card (eth0): `tap[=NAME]` is an interface of this host, vprof0 by default,
    /// created for the run if it does not exist; `passt` reaches what this host reaches and needs no root.
    /// `,mac=02:00:00:00:00:01` sets the card's address
    #[arg(long, value_name = "NETWORK", value_parser = parse_network, help_heading = "Guest")]
    pub net: Option<NetworkChoice>,

    /// Destination of the guest's console: `-` (standard output, with keys from the terminal), `none`, or a
    /// FILE. Default: `-` with a command, else `none`: the terminal shows the progress, and Ctrl-C ends the
    /// run. With a command under systemd the default is `none`: the command's output is not on the console,
    /// and is always shown. The profile always has the console's output
    #[arg(long, value_name = "WHERE", help_heading = "Guest")]
    pub console: Option<PathBuf>,

    /// Device of the guest's console: `serial` has every message from the first on; `virtio` (hvc0) costs one
    /// exit per buffer, not per byte, and shows nothing before the guest has loaded its driver
    #[arg(long, value_enum, default_value_t, value_name = "DEVICE", help_heading = "Guest")]
    pub console_device: ConsoleDevice,

    /// Host of the guest: `kvm` is this machine's own KVM, `portable` a software-emulated host with KVM in it
    /// (slow, works everywhere), `tcg` QEMU's software emulation without KVM (no exits, no exact mode),
    /// `auto` the first of `kvm` and `portable` that works (docs/hosts.md)
    #[arg(long, value_parser = host_parser(), default_value = "auto", value_name = "HOST", help_heading = "Host")]
    pub host: HostChoice,

    /// Directory of the portable host [default: $VPROF_PORTABLE_HOST, then next to the program, then
    /// target/guest]
    #[arg(long, value_name = "DIR", help_heading = "Host")]
    pub portable_host: Option<PathBuf>,

    /// Give up on the portable host when it has been silent for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_time, help_heading = "Host")]
    pub host_timeout: Duration,

    /// Filter of the system calls of the guest's process: at an unexpected call `on` ends the run, and `log`
    /// has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on", help_heading = "Host")]
    pub seccomp: SyscallPolicy,

    /// Begin the run again, with a new profile, when the portable host's emulation has failed, at most N
    /// times [without =N: 1]. If it fails before anything is measured, the run begins again in any case, at
    /// most twice (docs/hosts.md)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Host")]
    pub retry: Option<u32>,

    /// Also record every switch, wake-up and interrupt exactly: what each task did and waited for, and what
    /// woke it. Costs an exit per event
    #[arg(long, help_heading = "Sampling")]
    pub exact: bool,

    /// Record each call of this function of the guest's kernel: time, process, arguments, callers;
    /// repeatable, up to 16 functions. The run fails if the kernel has no such function, or if it cannot be
    /// traced. Costs an exit per call; `vprof report --trips` shows the calls (docs/trip.md)
    #[arg(long, value_name = "FUNCTION", value_parser = trip_parser, help_heading = "Sampling")]
    pub trip: Vec<String>,

    /// Run this many times, each a separate run: with --snapshot from the same image. Profiles are
    /// NAME.1.vprof, NAME.2.vprof ..., and vprof shows the spread between the runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "top",
        help_heading = "Sampling")]
    pub repeat: Option<u32>,

    /// Options of sampling and output.
    #[command(flatten)]
    pub recording: RecordingArgs,
}

impl RunArgs {
    /// Returns the conditions that the run waits for from its start on.
    pub fn triggers(&self) -> Vec<RunTrigger> {
        // A command's exit code is wanted.
        self.recording.triggers(if self.command.is_empty() { Then::End } else { Then::Continue })
    }
}

/// `--console-device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ConsoleDevice {
    /// The first serial port, ttyS0
    #[default]
    Serial,
    /// The virtio-console, hvc0
    Virtio,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn run(words: &[&str]) -> RunArgs {
        let words = [&["vprof", "run", "x.img"][..], words].concat();
        let crate::args::CliCommand::Run(args) = crate::args::Cli::try_parse_from(words).unwrap().command
        else {
            panic!("a run")
        };
        *args
    }

    #[test]
    fn functions_are_named_one_by_one() {
        assert_eq!(run(&["--trip", "vfs_read", "--trip", "foo.isra.0"]).trip, ["vfs_read", "foo.isra.0"]);
        for wrong in ["", "ext4_*", "a b", "a;b", "f\u{e9}"] {
            let words = ["vprof", "run", "x.img", "--trip", wrong];
            assert!(crate::args::Cli::try_parse_from(words).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_guest_is_no_host_and_has_no_counters_unless_asked_for() {
        assert!(!run(&[]).nested && !run(&[]).pmu);
        assert!(run(&["--nested"]).nested && run(&["--pmu"]).pmu);
    }
}
