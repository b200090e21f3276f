//! `vprof stat`: the time of vCPUs by state, of a whole run, or live of a run in progress.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use display::message::Shown;
use profile::Profile;
use profile::stat::Stat;

use crate::args::StatArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{stdout_error, write_json, write_text};
use crate::pager;
use ::render::{PageLayout, TextStyle, all_for_zero, stat as render};

/// A run that has written nothing for this long has ended without a final record.
const SILENT: Duration = Duration::from_secs(5);
/// Time between two readings of a silent run.
const AGAIN: Duration = Duration::from_millis(100);
/// Moves to the upper left corner and erases the screen below (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Runs the command.
pub fn command(args: &StatArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let read = || -> Result<Stat, Error> {
        let stat = Stat::read(&profile)?;
        let Some(vcpu) = args.cpu else { return Ok(stat) };
        let count = stat.vcpus.len();
        if stat.vcpus.iter().all(|row| row.number != u16::from(vcpu)) {
            return Err(profile::report::ReportError::NoSuchVcpu { vcpu: vcpu.into(), count }.into());
        }
        Ok(stat.of_vcpu(vcpu.into()))
    };
    if args.shown.csv {
        render::write_csv_heading(io::stdout().lock()).map_err(stdout_error)?;
    }
    let first = read()?;
    if !args.live && !args.once {
        if first.vcpus.is_empty() {
            return Err(Error::NoData(args.profile.clone()));
        }
        show(args, &first, false)?;
        return Ok(ExitCode::Done);
    }
    if first.complete {
        display::stderr_line!(
            "vprof: the run of {} has ended: these are its final figures",
            Shown(&args.profile)
        );
        show(args, &first, false)?;
        return Ok(ExitCode::Done);
    }
    let mut before = first;
    loop {
        let now = next(&before, args.display, &read)?;
        let Some(now) = now else {
            display::stderr_line!(
                "vprof: the run has ended: it has written nothing for {} s",
                SILENT.as_secs()
            );
            return Ok(ExitCode::Done);
        };
        show(args, &now.since(&before), args.live)?;
        if args.once || now.complete {
            return Ok(ExitCode::Done);
        }
        before = now;
    }
}

/// Returns the figures one interval after `before`; `None` if the run has stopped writing.
fn next(
    before: &Stat,
    interval: Duration,
    read: &impl Fn() -> Result<Stat, Error>,
) -> Result<Option<Stat>, Error> {
    thread::sleep(interval);
    let start = Instant::now();
    loop {
        let now = read()?;
        if now.complete || now.to_s > before.to_s {
            return Ok(Some(now));
        }
        if start.elapsed() > SILENT {
            return Ok(None);
        }
        thread::sleep(AGAIN);
    }
}

fn show(args: &StatArgs, stat: &Stat, again: bool) -> Result<(), Error> {
    match (args.shown.json, args.shown.csv) {
        (true, _) => write_json(stat),
        (_, true) => {
            render::write_csv(stat, io::stdout().lock(), args.shown.formulas()).map_err(stdout_error)
        }
        _ => {
            let page = PageLayout::stdout();
            let text = render::render(stat, all_for_zero(args.shown.rows), page);
            let redrawn = again && io::stdout().is_terminal() && page.style == TextStyle::Terminal;
            match again {
                true if redrawn => write_text(&format!("{CLEAR}{text}")),
                true => write_text(&(text + "\n")),
                false => pager::page(&text),
            }
        }
    }
}
