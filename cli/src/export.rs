//! `vprof export`: a profile in a format that other programs read.

use std::io::{self, IsTerminal};
use std::path::Path;

use ::export::{ExportError, Format, Formulas, PageError, PageRequest, Request, write_page};
use profile::Profile;

use crate::args::ExportArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::OutputTarget;
use crate::progress::ProgressLine;

/// Runs the command.
pub fn command(args: &ExportArgs) -> Result<ExitCode, Error> {
    let format = format(args)?;
    if format == Format::Html {
        return page(args);
    }
    if args.base.is_some() {
        return Err(UsageError::BaseWithoutHtml(format).into());
    }
    let profile = Profile::open(&args.profile)?;
    let title = title(&args.profile);
    let request = Request {
        filter: args.filter.to_filter(),
        root: args.root,
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
        Ok(()) => output.finish().map(|()| ExitCode::Done),
        Err(ExportError::Write(source)) => Err(output.error(source)),
        Err(ExportError::Read(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// Exports one page of HTML.
fn page(args: &ExportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let base = args.base.as_deref().map(Profile::open).transpose()?;
    let request = PageRequest {
        filter: args.filter.to_filter(),
        title: title(&args.profile),
        base: args.base.as_deref().map(title).zip(base.as_ref()),
    };
    let mut output = OutputTarget::open(&args.output, args.force)?;
    let mut progress = ProgressLine::new("reading", args.quiet);
    let written =
        write_page(&profile, &request, output.writer(), &mut |done, all| progress.samples(done, all));
    drop(progress);
    match written {
        Ok(()) => output.finish().map(|()| ExitCode::Done),
        Err(PageError::Write(source)) => Err(output.error(source)),
        Err(PageError::Read(error)) => Err(error.into()),
        Err(PageError::Query(error)) => Err(error.into()),
        Err(error @ PageError::Choice(_)) => Err(UsageError::Page(error).into()),
    }
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
        let names: Vec<&str> = Format::all().map(Format::name).collect();
        return Err(UsageError::UnknownFormat(names.join(", ")).into());
    };
    if stdout && format.is_binary() && io::stdout().is_terminal() {
        return Err(UsageError::BinaryToTerminal(format).into());
    }
    Ok(format)
}
