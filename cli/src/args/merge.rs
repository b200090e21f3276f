//! `vprof merge`.

use std::path::PathBuf;

use clap::Args;

use super::TEMPLATE;

const EXAMPLES: &str = "\
Examples:
  vprof merge web.vprof db.vprof -o all.vprof
  vprof merge alpha/*.vprof beta/*.vprof -o fleet.vprof
  vprof report fleet.vprof --by vm,process
  vprof report fleet.vprof --vm 'web*' --by function
";

const NOTES: &str = "\
Shares of a merged profile are of the time of all virtual machines together, --vm and --vm-host choose a \
part of them. A virtual machine has the name with which it was attached to, otherwise that of its profile's \
file. What is of one virtual machine stays in its profile: the boot, exits, CPU accounting, exact mode, \
states of tasks, memory, the console. docs/fleet.md has the details.";

/// `vprof merge`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct MergeArgs {
    /// The profiles, at least two
    #[arg(value_name = "PROFILE", num_args = 2.., required = true)]
    pub profiles: Vec<PathBuf>,

    /// The merged profile
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: PathBuf,

    /// Replace an existing profile
    #[arg(long)]
    pub force: bool,

    /// Print the result as JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,

    /// Print no progress and no result, only errors
    #[arg(long, short = 'q', conflicts_with = "json")]
    pub quiet: bool,
}
