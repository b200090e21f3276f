//! `vprof symbolize`: names the user code of a profile by debug files, as `vprof run` and `vprof report` do
//! with the same options.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};

use debuginfod::{Debuginfod, DownloadProgress};
use profile::store::EditError;
use profile::symbolize::{FileProgress, NotFound, SymbolizeResult, symbolize};
use symbols::names::DebugFiles;
use text::clean::escaped;
use text::units;

use crate::args::{DebugArgs, SymbolizeArgs};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{write_json, write_text};
use crate::render::{table, terminal_columns};

/// Returns to the line's start and erases it (ECMA-48: EL).
const ERASE: &str = "\r\x1b[K";

/// Runs the command.
pub fn command(args: &SymbolizeArgs) -> Result<ExitCode, Error> {
    let Some(places) = places(&args.debug)? else {
        return Err(UsageError::NoDebugPlaces.into());
    };
    let result = watched(&args.profile, &places, io::stderr().is_terminal())?;
    if args.json {
        write_json(&result)?;
    } else {
        write_text(&render(&result))?;
    }
    match result.unanswered {
        files if files > 0 && result.found.is_empty() => Err(Error::NoAnswer(files)),
        _ => Ok(ExitCode::Done),
    }
}

/// Returns the places of debug files for `vprof run` and `vprof report`. Returns `None` if no directory is
/// given: servers are not queried unless the user asks for names.
pub fn named_places(args: &DebugArgs) -> Result<Option<DebugFiles>, Error> {
    if args.debug_dir.is_empty() && args.symfs.is_empty() { Ok(None) } else { places(args) }
}

/// Names what has no name yet. A profile that can't be changed is left as it is, with a message.
pub fn add_names(profile: &Path, places: &DebugFiles, quiet: bool) -> Result<(), Error> {
    match watched(profile, places, !quiet && io::stderr().is_terminal()) {
        Ok(_) => Ok(()),
        Err(error @ EditError::Profile(_)) => Err(error.into()),
        Err(error) => {
            eprintln!("vprof: no names were added: {error}");
            Ok(())
        }
    }
}

/// Names the user code of a profile, and shows the progress.
fn watched(profile: &Path, places: &DebugFiles, live: bool) -> Result<SymbolizeResult, EditError> {
    let result = symbolize(profile, places, |progress| {
        if live {
            show(progress);
        }
    });
    if live || shows_downloads() {
        // A failed write to standard error can't be reported anywhere.
        let _ = write!(io::stderr().lock(), "{ERASE}");
    }
    result
}

/// Returns the places of debug files: directories in the order of the command line, then servers.
fn places(args: &DebugArgs) -> Result<Option<DebugFiles>, Error> {
    let directories: Vec<&PathBuf> = args.debug_dir.iter().chain(&args.symfs).collect();
    for directory in &directories {
        fs::read_dir(directory).map_err(|error| Error::file("read the directory", directory, error))?;
    }
    let servers =
        Debuginfod::from_environment(|name| std::env::var_os(name)).map_err(UsageError::Debuginfod)?;
    if directories.is_empty() && servers.is_none() {
        return Ok(None);
    }
    let files = directories
        .into_iter()
        .fold(DebugFiles::new(), |files, directory| files.with_directory(directory.clone()));
    Ok(Some(match servers {
        Some(servers) if shows_downloads() => {
            files.with_source(Box::new(servers.with_progress(show_download)))
        }
        Some(servers) => files.with_source(Box::new(servers)),
        None => files,
    }))
}

fn show(progress: FileProgress<'_>) {
    let FileProgress { done, files, path } = progress;
    show_line(&format!("file {} of {files}: {}", done + 1, escaped(path)));
}

/// Returns true if the user wants to see the progress of downloads (debuginfod-client-config(7)).
fn shows_downloads() -> bool {
    std::env::var_os("DEBUGINFOD_PROGRESS").is_some()
}

fn show_download(progress: &DownloadProgress<'_>) {
    let bytes = units::bytes(progress.bytes);
    let total = progress.total.map(|total| format!(" of {}", units::bytes(total))).unwrap_or_default();
    show_line(&format!("{bytes}{total} of {}", progress.url));
}

/// Replaces the line that shows the progress.
fn show_line(line: &str) {
    let width = terminal_columns().unwrap_or(80).saturating_sub(1);
    // See `watched` for a failure.
    let _ = write!(io::stderr().lock(), "{ERASE}{}", table::cut(line, width));
}

/// Formats the result. Build-ids and paths have their own lines, of any length, so that they can be copied.
fn render(result: &SymbolizeResult) -> String {
    let files = result.found.len() + result.not_found.len();
    if files == 0 {
        return "Nothing to name: the profile has no user code of files.\n".to_owned();
    }
    let count = |n: usize| units::count(n as u64);
    let counted = |n: usize, thing: &str| units::counted(n as u64, thing);
    let frames = result.frames;
    let mut text = format!(
        "{} of {} named ({} before), {} of {} with a debug file.\n",
        count(frames.after),
        counted(frames.all, "frame"),
        count(frames.before),
        count(result.found.len()),
        counted(files, "file"),
    );
    // Writing to a String can't fail.
    for file in &result.found {
        let (path, by, frames) = (escaped(&file.path), escaped(&file.debug_file), file.frames);
        let (before, after, all) = (count(frames.before), count(frames.after), counted(frames.all, "frame"));
        let _ = writeln!(text, "  {path}: {after} of {all} named ({before} before), by {by}");
    }
    let unnamed = |file: &&NotFound| file.frames.all > file.frames.before;
    if result.not_found.iter().any(|file| unnamed(&file)) {
        text.push_str("\nUnnamed: no debug file found\n");
    }
    for file in result.not_found.iter().filter(unnamed) {
        let (path, reason) = (escaped(&file.path), escaped(&file.reason));
        let frames = counted(file.frames.all - file.frames.before, "frame");
        let _ = match &file.build_id {
            Some(id) => writeln!(text, "  {frames}: build-id {} ({path}): {reason}", escaped(id)),
            None => writeln!(text, "  {frames}: {path}: {reason}"),
        };
    }
    text
}
