//! `vprof rusage`: the guest's own accounting of CPU time next to measured CPU time.

use std::io;

use profile::Profile;
use profile::rusage::Rusage;

use crate::args::RusageArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{stdout_error, write_json};
use crate::pager::page;
use ::render::{PageLayout, all_for_zero, rusage as render};

/// Runs the command.
pub fn command(args: &RusageArgs) -> Result<ExitCode, Error> {
    let mut rusage = Rusage::read(&Profile::open(&args.profile)?)?;
    if let Some(wanted) = &args.process {
        rusage.retain(wanted)?;
    }
    if rusage.processes.is_empty() && rusage.cpus.is_empty() {
        return Err(Error::NoAccounting(args.profile.clone()));
    }
    if args.shown.json {
        write_json(&rusage)?;
        return Ok(ExitCode::Done);
    }
    if args.shown.csv {
        render::write_csv(&rusage, io::stdout().lock(), args.shown.formulas()).map_err(stdout_error)?;
        return Ok(ExitCode::Done);
    }
    page(&render::render(&rusage, all_for_zero(args.shown.rows), PageLayout::stdout()))?;
    Ok(ExitCode::Done)
}
