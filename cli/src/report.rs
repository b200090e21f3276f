//! `vprof report`, and the summary at the end of `vprof run`, which shows the same numbers.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use display::csv::Formulas;
use display::message::write_stderr;
use profile::boot::Boot;
use profile::report::{
    Breakdown, By, Direction, ExactReport, HostReport, MemoryReport, Request, SourceChoice, StateReport,
    Timehist, TreeRequest, TripReport,
};
use profile::{Filter, Profile, Report, Sort};
use serde::Serialize;
use tui::browse::BrowseView;
use tui::frame;
use tui::screen::check_terminal;

use crate::args::ReportArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{stdout_error, write_json, write_text};
use crate::pager::{page, page_long};
use crate::symbolize;
use render::timehist::WriteError;
use render::{
    PageLayout, all_for_zero, boot, by, exact, host, memory, states, summary, timehist, tree, trips,
};

/// Rows per table at the end of a run.
const SUMMARY_ROWS: usize = 10;

/// Functions of the host.
const HOST_ROWS: usize = 20;

/// Rows of a tree of calls.
const TREE_ROWS: usize = 50;

/// Runs the command.
pub fn command(args: &ReportArgs) -> Result<ExitCode, Error> {
    match symbolize::named_places(&args.debug)? {
        Some(places) => symbolize::add_names(&args.profile, &places, false)?,
        None => drop(symbolize::add_names_of_servers(&args.profile, false)),
    }
    // A default of the configuration gives way to what is asked for.
    let views = [args.boot, args.exact, args.trips, args.states.is_some(), args.host, args.memory_use];
    let other = views.contains(&true);
    let asked = args.json || args.csv || other || !args.by.is_empty();
    if args.interactive && !asked && args.callers.is_none() && args.callees.is_none() {
        return browse(args);
    }
    if args.boot {
        return boot_report(args);
    }
    if args.exact {
        return exact_report(args);
    }
    if args.trips {
        return trip_report(args);
    }
    if let Some(from) = args.states {
        return state_report(args, from.into());
    }
    if args.host {
        return host_report(args);
    }
    if args.memory_use {
        return memory_report(args);
    }
    let request = request(args);
    let profile = Profile::open(&args.profile)?;
    let mut report = Report::read_with(&profile, &args.to_filter(), &request)?;
    if report.is_empty() {
        return Err(Error::NoData(args.profile.clone()));
    }
    if args.sort == Sort::Total && !report.by.as_ref().is_some_and(Breakdown::is_code) {
        display::stderr_line!(
            "vprof: only tables of code have totals (--by function, ...); --sort total is ignored"
        );
    }
    report.sort(args.sort);
    if args.json {
        write_json(&report)?;
    } else if let Some(breakdown) = report.by.as_ref().filter(|_| args.csv) {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = by::write_csv(breakdown, &mut out, Formulas::raw_if(args.raw));
        written.and_then(|()| out.flush()).map_err(stdout_error)?;
    } else {
        let layout = PageLayout::stdout();
        let default = if report.tree.is_some() { TREE_ROWS } else { SUMMARY_ROWS };
        let rows = all_for_zero(args.rows.unwrap_or(default));
        let text = match (&report.by, &report.tree) {
            (Some(breakdown), _) => by::render(&report, breakdown, rows, layout),
            (_, Some(calls)) => tree::render(&report, calls, rows, layout),
            _ => summary::render(&report, &args.profile, rows, layout),
        };
        page(&text)?;
    }
    Ok(ExitCode::Done)
}

/// Shows the part of the profile that the options choose, until the user quits.
fn browse(args: &ReportArgs) -> Result<ExitCode, Error> {
    check_terminal().map_err(|_| UsageError::NoScreen)?;
    let mut view = BrowseView::open(&args.profile, args.to_filter())?;
    let runtime =
        control::runtime().map_err(|source| Error::System { action: "start the runtime", source })?;
    runtime.block_on(frame::show(&mut view, attach::stop_process))?;
    Ok(ExitCode::Done)
}

/// Prints a report as JSON, or as the page that `render` makes of it with the rows of `-n`.
fn print<T: Serialize>(
    args: &ReportArgs,
    report: &T,
    default_rows: usize,
    render: impl FnOnce(&T, usize, PageLayout) -> String,
) -> Result<ExitCode, Error> {
    if args.json {
        write_json(report)?;
    } else {
        let rows = all_for_zero(args.rows.unwrap_or(default_rows));
        page(&render(report, rows, PageLayout::stdout()))?;
    }
    Ok(ExitCode::Done)
}

/// `report --boot`.
fn boot_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let boot = Boot::read(&Profile::open(&args.profile)?)?;
    print(args, &boot, SUMMARY_ROWS, boot::render)
}

/// `report --exact`.
fn exact_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    if args.timehist {
        return timehist_report(args);
    }
    let filter = &args.filter;
    let parts = [
        ("--tree-of", filter.tree_of.is_some()),
        ("--instance", filter.instance.is_some()),
        ("--cgroup", filter.cgroup.is_some()),
        ("--thread", filter.thread.is_some()),
        ("--cpu", filter.cpu.is_some()),
        ("--time", filter.time.is_some()),
    ];
    if let Some((option, _)) = parts.into_iter().find(|(_, is_given)| *is_given) {
        return Err(UsageError::PartOfSums(option).into());
    }
    let profile = Profile::open(&args.profile)?;
    let report = ExactReport::read(&profile, &args.filter.process)?;
    print(args, &report, SUMMARY_ROWS, exact::render)
}

/// `report --exact --timehist`.
fn timehist_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let history = Timehist::new(&profile, &args.to_filter())?;
    if args.json {
        write_json(&history)?;
        return Ok(ExitCode::Done);
    }
    let rows = all_for_zero(args.rows.unwrap_or(0));
    let mut failed = None;
    page_long(|out| match timehist::write(&history, rows, PageLayout::stdout(), out) {
        Ok(()) => Ok(()),
        Err(WriteError::Output(error)) => Err(error),
        Err(WriteError::Read(error)) => {
            failed = Some(error);
            Ok(())
        }
    })?;
    failed.map_or(Ok(ExitCode::Done), |error| Err(error.into()))
}

/// `report --trips`.
fn trip_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = TripReport::read(&profile, &args.to_filter())?;
    print(args, &report, SUMMARY_ROWS, trips::render)
}

/// `report --states`.
fn state_report(args: &ReportArgs, source: SourceChoice) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = StateReport::read(&profile, &args.to_filter(), source)?;
    print(args, &report, SUMMARY_ROWS, states::render)
}

/// `report --host`.
fn host_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = HostReport::read(&profile, &args.to_filter())?;
    print(args, &report, HOST_ROWS, host::render)
}

/// `report --memory-use`.
fn memory_report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let report = MemoryReport::read(&profile, &args.to_filter())?;
    print(args, &report, SUMMARY_ROWS, memory::render)
}

fn request(args: &ReportArgs) -> Request {
    let tree = |symbol: &String, direction| {
        let (symbol, module) = (symbol.clone(), args.module.clone());
        Request::Tree(TreeRequest { symbol, module, direction, depth: args.depth })
    };
    let mut keys: Vec<By> = Vec::new();
    for by in &args.by {
        if !keys.contains(by) {
            keys.push(*by);
        }
    }
    match (keys.as_slice(), &args.callers, &args.callees) {
        ([_, ..], _, _) => Request::By(keys),
        (_, Some(symbol), _) => tree(symbol, Direction::Callers),
        (_, _, Some(symbol)) => tree(symbol, Direction::Callees),
        _ => Request::Summary,
    }
}

/// Prints the summary of a whole profile.
pub fn print_summary(path: &Path, to_stderr: bool) -> Result<(), Error> {
    let report = read(path, &Filter::default())?;
    let render = |page| summary::render(&report, path, SUMMARY_ROWS, page);
    if to_stderr {
        write_stderr(&render(PageLayout::for_stream(io::stderr().is_terminal())));
        return Ok(());
    }
    write_text(&render(PageLayout::stdout()))
}

/// Prints the whole profile's report as JSON.
pub fn print_json(path: &Path) -> Result<(), Error> {
    write_json(&read(path, &Filter::default())?)
}

fn read(path: &Path, filter: &Filter) -> Result<Report, Error> {
    let report = Report::read(&Profile::open(path)?, filter)?;
    if report.is_empty() { Err(Error::NoData(path.to_owned())) } else { Ok(report) }
}
