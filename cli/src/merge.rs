//! `vprof merge`.

use std::collections::BTreeSet;

use display::message::Shown;
use display::units;
use profile::merge::{Merged, merge};

use crate::args::MergeArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_json;
use crate::progress::ProgressLine;
use crate::run::output::check_path;

/// Runs the command.
pub fn command(args: &MergeArgs) -> Result<ExitCode, Error> {
    check_path(&args.output, args.force)?;
    let mut progress = ProgressLine::new("merging", args.quiet);
    let merged =
        merge(&args.profiles, &args.output, args.force, &mut |done, all| progress.samples(done, all));
    drop(progress);
    let merged = merged?;
    if args.json {
        write_json(&merged)?;
    } else if !args.quiet {
        display::stderr_line!("vprof: {} has {}", Shown(&args.output), contents(&merged));
    }
    Ok(ExitCode::Done)
}

fn contents(merged: &Merged) -> String {
    let hosts: BTreeSet<&str> = merged.vms.iter().filter_map(|vm| vm.host.as_deref()).collect();
    let on = match hosts.len() {
        0 => String::new(),
        count => format!(" on {}", units::counted(count as u64, "host")),
    };
    let samples = units::counted(merged.samples, "sample");
    format!("{} of {}{on}", samples, units::counted(merged.vms.len() as u64, "virtual machine"))
}
