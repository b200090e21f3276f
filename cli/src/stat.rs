//! `vprof stat`: where the time of vCPUs went, of a whole run, or live of one that goes on.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use profile::Profile;
use profile::stat::Stat;

use crate::args::StatArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};
use crate::render::{Page, Style, all_for_zero, stat as render};

/// A run that has written nothing for this long has ended without a word.
const SILENT: Duration = Duration::from_secs(5);
/// How often a silent run is looked at again.
const AGAIN: Duration = Duration::from_millis(100);
/// To the upper left corner, and erase what is below (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Runs the command.
pub fn command(args: &StatArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let look = || -> Result<Stat, Error> {
        let stat = Stat::read(&profile)?;
        let Some(vcpu) = args.cpu else { return Ok(stat) };
        let count = stat.vcpus.len();
        if usize::from(vcpu) >= count {
            return Err(profile::report::ReportError::NoSuchVcpu { vcpu, count }.into());
        }
        Ok(stat.of_vcpu(vcpu))
    };
    if args.shown.csv {
        write_text(&render::csv_heading())?;
    }
    let first = look()?;
    if !args.live && !args.once {
        show(args, &first, false)?;
        return Ok(ExitCode::Done);
    }
    if first.complete {
        return Err(Error::Usage(format!(
            "{} is of a run that has ended: leave --live and -1 out to see its figures",
            args.profile.display()
        )));
    }
    let mut before = first;
    loop {
        let now = next(&before, args.display, &look)?;
        let Some(now) = now else {
            eprintln!("vprof: the run has written nothing for {} s: it has ended", SILENT.as_secs());
            return Ok(ExitCode::Done);
        };
        show(args, &now.since(&before), args.live)?;
        if args.once || now.complete {
            return Ok(ExitCode::Done);
        }
        before = now;
    }
}

/// The figures one interval after `before`; `None` when the run has fallen silent.
fn next(
    before: &Stat,
    interval: Duration,
    look: &impl Fn() -> Result<Stat, Error>,
) -> Result<Option<Stat>, Error> {
    thread::sleep(interval);
    let start = Instant::now();
    loop {
        let now = look()?;
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
        (_, true) => write_text(&render::as_csv(stat)),
        _ => {
            let page = Page::stdout().for_summary();
            let text = render::render(stat, all_for_zero(args.shown.rows), page);
            let redrawn = again && io::stdout().is_terminal() && page.style == Style::Terminal;
            write_text(&if redrawn { format!("{CLEAR}{text}") } else { text + if again { "\n" } else { "" } })
        }
    }
}
