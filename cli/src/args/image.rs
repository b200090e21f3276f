//! `vprof image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use disk_images::contents::ImageFormat;
use sandbox::SyscallPolicy;

use super::TEMPLATE;
use super::parse::{format_parser, policy_parser};

const EXAMPLES: &str = "\
Examples:
  vprof image inspect debian.qcow2
  vprof image inspect disk.img --json | jq -r .run.cmdline
";

const NOTES: &str = "\
Nothing is started and nothing is written. docs/images.md lists what vprof searches for, and in which order.

Exit codes: 0 done, also if there is no kernel; 1 the image can't be read; 2 the command line is wrong.";

/// Action on an image.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List partitions, file systems and kernels, and show what `vprof run` would do
    Inspect(InspectArgs),
}

/// `vprof image inspect`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct InspectArgs {
    /// Disk image, raw or qcow2
    pub image: PathBuf,

    /// Format of the image, instead of that of its first bytes, which a guest can write
    #[arg(long, value_name = "FORMAT", value_parser = format_parser())]
    pub format: Option<ImageFormat>,

    /// Filter of the system calls of the process that reads the image: at an unexpected call `on` ends the
    /// command, and `log` has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on")]
    pub seccomp: SyscallPolicy,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,
}
