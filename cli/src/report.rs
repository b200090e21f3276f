//! `vprof report`, and the summary at the end of `vprof run`: the same numbers by the same way.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use profile::boot::Boot;
use profile::report::{Direction, ExactReport, Request, SourceChoice, StateReport, TreeRequest};
use profile::{Filter, Profile, Report};

use crate::args::{FilterArgs, ReportArgs};
use crate::errors::{Error, ExitCode};
use crate::render::{Page, boot, by, exact, states, summary, tree};
use crate::symbolize;

/// Rows per table at the end of a run.
const SUMMARY_ROWS: usize = 10;

/// Rows of a tree of calls.
const TREE_ROWS: usize = 50;

/// Runs the command.
pub fn command(args: &ReportArgs) -> Result<ExitCode, Error> {
    if let Some(places) = symbolize::named_places(&args.debug)? {
        symbolize::add_names(&args.profile, &places, false)?;
    }
    if args.boot {
        return boot_report(args);
    }
    if args.exact {
        return exact_report(args);
    }
    if let Some(from) = args.states {
        return state_report(args, from.into());
    }
    let request = request(args);
    let profile = Profile::open(&args.profile)?;
    let mut report = Report::read_with(&profile, &filter(&args.filter), &request)?;
    report.sort(args.sort);
    if args.json {
        write_json(&report)?;
    } else {
        let page = Page::stdout();
        let default = if report.tree.is_some() { TREE_ROWS } else { SUMMARY_ROWS };
        let rows = all_for_zero(args.rows.unwrap_or(default));
        let text = match (&report.by, &report.tree) {
            (Some(breakdown), _) => by::render(&report, breakdown, rows, page),
            (_, Some(calls)) => tree::render(&report, calls, rows, page),
            _ => summary::render(&report, &args.profile, rows, page.for_summary()),
        };
        write_text(&text)?;
    }
    Ok(ExitCode::Done)
}

/// `report --boot`.
fn boot_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let boot = Boot::read(&Profile::open(&args.profile)?)?;
    if args.json {
        write_json(&boot)?;
    } else {
        let rows = all_for_zero(args.rows.unwrap_or(SUMMARY_ROWS));
        write_text(&boot::render(&boot, rows, Page::stdout().for_summary()))?;
    }
    Ok(ExitCode::Done)
}

/// `report --exact`.
fn exact_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = ExactReport::read(&profile, args.filter.process.as_deref())?;
    if args.json {
        write_json(&report)?;
    } else {
        let rows = all_for_zero(args.rows.unwrap_or(SUMMARY_ROWS));
        let text = exact::render(&report, rows, Page::stdout());
        write_text(&text)?;
    }
    Ok(ExitCode::Done)
}

/// `report --states`.
fn state_report(args: &ReportArgs, source: SourceChoice) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = StateReport::read(&profile, &filter(&args.filter), source)?;
    if args.json {
        write_json(&report)?;
    } else {
        let rows = all_for_zero(args.rows.unwrap_or(SUMMARY_ROWS));
        let text = states::render(&report, rows, Page::stdout());
        write_text(&text)?;
    }
    Ok(ExitCode::Done)
}

fn request(args: &ReportArgs) -> Request {
    let tree = |symbol: &String, direction| {
        Request::Tree(TreeRequest { symbol: symbol.clone(), direction, depth: args.depth })
    };
    match (&args.by, &args.callers, &args.callees) {
        (Some(by), _, _) => Request::By(*by),
        (_, Some(symbol), _) => tree(symbol, Direction::Callers),
        (_, _, Some(symbol)) => tree(symbol, Direction::Callees),
        _ => Request::Summary,
    }
}

/// What the options that choose a part of a profile mean.
pub fn filter(args: &FilterArgs) -> Filter {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let span = args.time.unwrap_or_default();
    Filter {
        process: args.process.clone(),
        tree: args.tree_of.clone(),
        instance: args.instance.clone(),
        cgroup: args.cgroup.clone(),
        thread: args.thread.clone(),
        symbol: args.symbol.clone(),
        modes: args.mode.iter().map(|&mode| mode.into()).collect(),
        vcpu: args.cpu,
        from_ns: span.from.map(ns),
        to_ns: span.to.map(ns),
    }
}

/// `-n 0` means all rows.
pub fn all_for_zero(rows: usize) -> usize {
    if rows == 0 { usize::MAX } else { rows }
}

/// Prints the summary of a whole profile.
pub fn print_summary(path: &Path, to_stderr: bool) -> Result<(), Error> {
    let report = read(path, &Filter::default())?;
    let written = if to_stderr {
        let page = Page::for_stream(io::stderr().is_terminal()).for_summary();
        io::stderr().lock().write_all(summary::render(&report, path, SUMMARY_ROWS, page).as_bytes())
    } else {
        let page = Page::stdout().for_summary();
        io::stdout().lock().write_all(summary::render(&report, path, SUMMARY_ROWS, page).as_bytes())
    };
    written.map_err(stdout_error)
}

/// Writes text to standard output, all of it at once.
pub fn write_text(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints the whole profile's report as JSON.
pub fn print_json(path: &Path) -> Result<(), Error> {
    write_json(&read(path, &Filter::default())?)
}

fn read(path: &Path, filter: &Filter) -> Result<Report, Error> {
    Ok(Report::read(&Profile::open(path)?, filter)?)
}

/// Prints something as JSON.
pub fn write_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value).map_err(|e| stdout_error(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_error)
}

/// A failure to write to standard output.
pub fn stdout_error(source: io::Error) -> Error {
    Error::System { action: "write to standard output", source }
}
