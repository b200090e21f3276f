//! `vprof export`: a profile in a format that other programs read.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;

use ::export::{ExportError, Format, Formulas, PageError, PageRequest, Request, Root, write_page};
use display::message::Shown;
use display::units;
use profile::{Filter, Profile};

use crate::args::ExportArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::OutputTarget;
use crate::progress::ProgressLine;
use render::summary;

/// Runs the command.
pub fn command(args: &ExportArgs) -> Result<ExitCode, Error> {
    let format = format(args)?;
    if args.host && !format.shows_host() {
        return Err(UsageError::NoHostStacks(format).into());
    }
    if args.trip.is_some() && !format.shows_calls() {
        return Err(UsageError::NoCalls(format).into());
    }
    if format == Format::Html {
        return page(args);
    }
    if args.base.is_some() {
        return Err(UsageError::BaseWithoutHtml(format).into());
    }
    let profile = Profile::open(&args.profile)?;
    let filter = args.filter.to_filter();
    let title = match summary::part(&filter) {
        // The user of a picture has to know of what it is.
        Some(part) if format == Format::Flamegraph => format!("{}. {part}", title(&args.profile)),
        _ => title(&args.profile),
    };
    let request = Request {
        filter,
        host: args.host,
        trip: args.trip.clone(),
        root: args.root.unwrap_or(if args.host { Root::Vcpu } else { Root::Process }),
        count: args.count,
        title,
        formulas: Formulas::raw_if(args.raw),
        ..Request::new(format)
    };
    let mut output = OutputTarget::open(&args.output, args.force)?;
    let mut progress = ProgressLine::new("reading", args.quiet);
    let written =
        ::export::write(&profile, &request, output.writer(), &mut |done, all| progress.samples(done, all));
    drop(progress);
    match written {
        Ok(()) => finish(output, args, format),
        Err(ExportError::Write(source)) => Err(output.error(source)),
        Err(ExportError::Read(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// Exports one page of HTML.
fn page(args: &ExportArgs) -> Result<ExitCode, Error> {
    let source =
        PageSource { profile: &args.profile, base: args.base.as_deref(), filter: args.filter.to_filter() };
    let mut output = OutputTarget::open(&args.output, args.force)?;
    write_page_to(&source, &mut output, args.quiet)?;
    finish(output, args, Format::Html)
}

/// Content of a page.
#[derive(Debug)]
pub struct PageSource<'a> {
    /// The profile.
    pub profile: &'a Path,
    /// The profile to compare it with.
    pub base: Option<&'a Path>,
    /// Part of the profile.
    pub filter: Filter,
}

/// Writes a page, with its progress unless `quiet`.
pub fn write_page_to(source: &PageSource, output: &mut OutputTarget, quiet: bool) -> Result<(), Error> {
    let profile = Profile::open(source.profile)?;
    let base = source.base.map(Profile::open).transpose()?;
    let request = PageRequest {
        filter: source.filter.clone(),
        title: title(source.profile),
        base: source.base.map(title).zip(base.as_ref()),
    };
    let mut progress = ProgressLine::new("reading", quiet);
    let written =
        write_page(&profile, &request, output.writer(), &mut |done, all| progress.samples(done, all));
    drop(progress);
    match written {
        Ok(()) => Ok(()),
        Err(PageError::Write(source)) => Err(output.error(source)),
        Err(PageError::Read(error)) => Err(error.into()),
        Err(PageError::Query(error)) => Err(error.into()),
        Err(error @ PageError::Choice(_)) => Err(UsageError::Page(error).into()),
    }
}

/// Finishes the file, and shows on a terminal what it is.
fn finish(output: OutputTarget, args: &ExportArgs, format: Format) -> Result<ExitCode, Error> {
    output.finish()?;
    let file = fs::metadata(&args.output).ok().filter(|file| file.is_file());
    if let Some(file) = file.filter(|_| !args.quiet && io::stderr().is_terminal()) {
        let size = units::bytes(file.len());
        display::stderr_line!("vprof: {} has {size}, in format {format}", Shown(&args.output));
    }
    Ok(ExitCode::Done)
}

/// Returns the title of a profile in an export.
fn title(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the requested format, or the one of the output's name.
fn format(args: &ExportArgs) -> Result<Format, Error> {
    let stdout = args.output == Path::new("-");
    let name = args.output.file_name().unwrap_or_default().to_string_lossy();
    let Some(format) = args.format.or_else(|| Format::of_file(&name)) else {
        let names: Vec<&str> = Format::all().filter(|format| format.is_built()).map(Format::name).collect();
        return Err(UsageError::UnknownFormat(names.join(", ")).into());
    };
    if !format.is_built() {
        return Err(UsageError::NotBuilt(format!("the format {format}")).into());
    }
    // A page is a text that nobody reads.
    if stdout && (format.is_binary() || format == Format::Html) && io::stdout().is_terminal() {
        return Err(UsageError::BinaryToTerminal(format).into());
    }
    Ok(format)
}
