//! `vprof report`, and the summary at the end of `vprof run`: the same numbers by the same way.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use sampler::{Filter, Profile, Report};

use crate::args::ReportArgs;
use crate::errors::{Error, ExitCode};
use crate::render::{Style, summary};

/// Rows per table at the end of a run.
const SUMMARY_ROWS: usize = 10;

/// Runs the command.
pub fn command(args: &ReportArgs) -> Result<ExitCode, Error> {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let span = args.time.unwrap_or_default();
    let filter = Filter {
        process: args.process.clone(),
        vcpu: args.vcpu,
        from_ns: span.from.map(ns),
        to_ns: span.to.map(ns),
    };
    let mut report = read(&args.profile, &filter)?;
    report.sort(args.sort);
    if args.json {
        write_json(&report)?;
    } else {
        let rows = if args.rows == 0 { usize::MAX } else { args.rows };
        let style = Style::for_stream(io::stdout().is_terminal());
        let text = summary::render(&report, rows, style);
        io::stdout().lock().write_all(text.as_bytes()).map_err(stdout_error)?;
    }
    Ok(ExitCode::Done)
}

/// Prints the summary of a whole profile.
pub fn print_summary(path: &Path, to_stderr: bool) -> Result<(), Error> {
    let report = read(path, &Filter::default())?;
    let written = if to_stderr {
        let style = Style::for_stream(io::stderr().is_terminal());
        io::stderr().lock().write_all(summary::render(&report, SUMMARY_ROWS, style).as_bytes())
    } else {
        let style = Style::for_stream(io::stdout().is_terminal());
        io::stdout().lock().write_all(summary::render(&report, SUMMARY_ROWS, style).as_bytes())
    };
    written.map_err(stdout_error)
}

/// Prints the whole profile's report as JSON.
pub fn print_json(path: &Path) -> Result<(), Error> {
    write_json(&read(path, &Filter::default())?)
}

fn read(path: &Path, filter: &Filter) -> Result<Report, Error> {
    Ok(Report::read(&Profile::open(path)?, filter)?)
}

fn write_json(report: &Report) -> Result<(), Error> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, report).map_err(|e| stdout_error(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_error)
}

/// A failure to write to standard output.
pub fn stdout_error(source: io::Error) -> Error {
    Error::System { action: "write to standard output", source }
}
