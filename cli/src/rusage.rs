//! `vprof rusage`: the guest's own books of CPU time next to the truth.

use profile::Profile;
use profile::rusage::Rusage;

use crate::args::RusageArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};
use crate::render::{Page, all_for_zero, rusage as render};

/// Runs the command.
pub fn command(args: &RusageArgs) -> Result<ExitCode, Error> {
    let mut rusage = Rusage::read(&Profile::open(&args.profile)?)?;
    if let Some(wanted) = &args.process {
        rusage.retain(wanted)?;
    }
    if rusage.processes.is_empty() && rusage.cpus.is_empty() {
        return Err(Error::NoBooks(args.profile.clone()));
    }
    if args.shown.json {
        write_json(&rusage)?;
        return Ok(ExitCode::Done);
    }
    let text = if args.shown.csv {
        render::as_csv(&rusage)
    } else {
        render::render(&rusage, all_for_zero(args.shown.rows), Page::stdout().for_summary())
    };
    write_text(&text)?;
    Ok(ExitCode::Done)
}
