//! `vprof selftest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use display::parse::positive_time;
use host::choice::HostChoice;
use sandbox::SyscallPolicy;

use super::TEMPLATE;
use super::parse::{host_parser, policy_parser};

const EXAMPLES: &str = "\
Examples:
  vprof selftest                           with this machine's own kernel
  vprof selftest --kernel vmlinuz          with another kernel
  sudo vprof selftest --json               where only root reads it
";

const NOTES: &str = "\
Three short guests run, whose programs are this vprof itself. One measures how it divides its CPU time, one counts \
its context switches, and one works at a very low sampling rate. vprof compares its figures with those that the \
guests measured by their own clocks and counters. The table names the machine, so that it can be part of a bug \
report. Only a temporary directory is written. In the portable host, whose times are not times of this machine, \
checks of times are not judged.

Exit codes: 0 every check that was judged passed; 1 a check or a run failed; 2 the command line is wrong; 4 no usable \
hypervisor.";

/// `vprof selftest`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct SelftestArgs {
    /// Kernel of the guests, or a disk image with one [default: /boot/vmlinuz of the running kernel, then
    /// that of the portable host]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Host of the guests, as for `vprof run`
    #[arg(long, value_parser = host_parser(), default_value = "auto", value_name = "HOST")]
    pub host: HostChoice,

    /// Directory of the portable host [default: $VPROF_PORTABLE_HOST, then next to the program, then
    /// target/guest]
    #[arg(long, value_name = "DIR")]
    pub portable_host: Option<PathBuf>,

    /// Give up on the portable host when it has been silent for this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = positive_time)]
    pub host_timeout: Duration,

    /// Filter of the system calls of the guests' process: at an unexpected call `on` ends the run, and `log`
    /// has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on")]
    pub seccomp: SyscallPolicy,

    /// Keep the profiles of the guests in this directory, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,
}
