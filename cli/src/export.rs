//! `vprof export`: a profile in a format that other programs read.

use std::io::{self, IsTerminal};
use std::path::Path;

use ::export::{ExportError, Format, PageError, PageRequest, Request, write_page};
use profile::Profile;

use crate::args::ExportArgs;
use crate::errors::{Error, ExitCode};
use crate::output::Output;
use crate::progress::Progress;

/// Runs the command.
pub fn command(args: &ExportArgs) -> Result<ExitCode, Error> {
    let format = format(args)?;
    if format == Format::Html {
        return page(args);
    }
    if args.base.is_some() {
        return Err(Error::Usage(format!("{format} shows one profile: --base goes with --format html")));
    }
    let profile = Profile::open(&args.profile)?;
    let title = title(&args.profile);
    let request = Request {
        filter: args.filter.to_filter(),
        root: args.root,
        count: args.count,
        title,
        ..Request::new(format)
    };
    let mut output = Output::open(&args.output, args.force)?;
    let mut progress = Progress::new("reading", args.quiet);
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

/// One page of HTML.
fn page(args: &ExportArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    let base = args.base.as_deref().map(Profile::open).transpose()?;
    let request = PageRequest {
        filter: args.filter.to_filter(),
        title: title(&args.profile),
        base: args.base.as_deref().map(title).zip(base.as_ref()),
    };
    let mut output = Output::open(&args.output, args.force)?;
    let mut progress = Progress::new("reading", args.quiet);
    let written =
        write_page(&profile, &request, output.writer(), &mut |done, all| progress.samples(done, all));
    drop(progress);
    match written {
        Ok(()) => output.finish().map(|()| ExitCode::Done),
        Err(PageError::Write(source)) => Err(output.error(source)),
        Err(PageError::Read(error)) => Err(error.into()),
        Err(PageError::Query(error)) => Err(error.into()),
        Err(error @ PageError::Choice(_)) => Err(Error::Usage(error.to_string())),
    }
}

/// What a profile is called in an export.
fn title(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The format that was asked for, or that the output's name tells.
fn format(args: &ExportArgs) -> Result<Format, Error> {
    let stdout = args.output == Path::new("-");
    let name = args.output.file_name().unwrap_or_default().to_string_lossy();
    let Some(format) = args.format.or_else(|| Format::of_file(&name)) else {
        let names: Vec<&str> = Format::all().map(Format::name).collect();
        let advice =
            format!("the output's name tells no format: choose one with --format ({})", names.join(", "));
        return Err(Error::Usage(advice));
    };
    if stdout && format.is_binary() && io::stdout().is_terminal() {
        return Err(Error::Usage(format!("{format} is no text: give a file with -o")));
    }
    Ok(format)
}
