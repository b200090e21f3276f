//! `vprof symbolize`: names the user code of a profile by debug files, as `vprof run` and `vprof report` do
//! with the same options.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use debuginfod::{Debuginfod, DownloadProgress};
use display::clean::escaped;
use display::units;
use profile::Profile;
use profile::store::{EditError, Value};
use profile::symbolize::{FileProgress, NotFound, SymbolizeResult, symbolize};
use symbols::elf::{BuildId, ReadAt};
use symbols::names::{DebugFiles, DebugSource, DebugSourceError};

use crate::args::{DebugArgs, SymbolizeArgs};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{ignore_closed_pipe, write_json, write_text};
use render::{table, terminal_columns};

/// Returns to the line's start and erases it (ECMA-48: EL).
const ERASE: &str = "\r\x1b[K";

/// Runs the command.
pub fn command(args: &SymbolizeArgs) -> Result<ExitCode, Error> {
    let Some(places) = places(&args.debug)? else {
        return Err(UsageError::NoDebugPlaces.into());
    };
    let result = watched(&args.profile, &places, io::stderr().is_terminal())?;
    ignore_closed_pipe(if args.json { write_json(&result) } else { write_text(&render(&result)) })?;
    match result.unanswered {
        files if files > 0 && result.found.is_empty() => Err(Error::NoAnswer(files)),
        _ => Ok(ExitCode::Done),
    }
}

/// Returns the places of debug files for `vprof run` and `vprof report`. Returns `None` if no directory is
/// given: see [`add_names_of_servers`].
pub fn named_places(args: &DebugArgs) -> Result<Option<DebugFiles>, Error> {
    if args.debug_dir.is_empty() && args.symfs.is_empty() { Ok(None) } else { places(args) }
}

/// Names what has no name yet. A profile that can't be changed is left as it is, with a message.
pub fn add_names(profile: &Path, places: &DebugFiles, quiet: bool) -> Result<(), Error> {
    match watched(profile, places, !quiet && io::stderr().is_terminal()) {
        Ok(_) => Ok(()),
        Err(error @ EditError::Profile(_)) => Err(error.into()),
        Err(error) => {
            display::stderr_line!("vprof: no names were added: {error}");
            Ok(())
        }
    }
}

/// Limits of what vprof asks servers for on its own, where the user has set no others: seconds and bytes of a
/// file (debuginfod-client-config(7)).
const OWN_LIMITS: [(&str, &str); 2] = [("DEBUGINFOD_MAXTIME", "30"), ("DEBUGINFOD_MAXSIZE", "268435456")];
/// Time after which vprof asks for no further file on its own.
const OWN_TIME: Duration = Duration::from_secs(60);
/// Query for user code of a file without a symbol: it has no name, or only its function's start.
const NAMELESS: &str = "SELECT EXISTS (SELECT 1 FROM frame f JOIN file ON file.id = f.file WHERE file.build_id IS NOT NULL \
                        AND (f.symbol IS NULL OR substr(f.symbol, 1, length(f.module) + 3) = f.module || '[0x'))";

/// Names what has no name by the servers that the user has set (DEBUGINFOD_URLS), within limits. Returns true
/// if there are new names. Whatever fails leaves the profile as it is.
pub fn add_names_of_servers(profile: &Path, quiet: bool) -> bool {
    let own = |name: &str| OWN_LIMITS.iter().find(|(limit, _)| *limit == name).map(|(_, value)| value.into());
    let variable = |name: &str| std::env::var_os(name).or_else(|| own(name));
    let servers = match Debuginfod::from_environment(variable) {
        Ok(Some(servers)) => servers,
        Ok(None) => return false,
        Err(error) => {
            if !quiet {
                display::stderr_line!(
                    "vprof: no server was asked for names: {}",
                    escaped(&error.to_string())
                );
            }
            return false;
        }
    };
    if !has_nameless(profile) {
        return false;
    }
    let until = Instant::now() + OWN_TIME;
    let places =
        DebugFiles::new().with_source(Box::new(TimedSource { servers: with_progress(servers), until }));
    // A profile that cannot be changed is shown as it is.
    watched(profile, &places, !quiet && io::stderr().is_terminal())
        .is_ok_and(|result| result.frames.after > result.frames.before)
}

fn has_nameless(profile: &Path) -> bool {
    let answer = Profile::open(profile).ok().and_then(|profile| profile.query(NAMELESS).ok());
    answer.is_some_and(|answer| answer.rows == [[Value::Integer(1)]])
}

/// Servers that are asked until a point in time.
struct TimedSource {
    servers: Debuginfod,
    until: Instant,
}

impl DebugSource for TimedSource {
    fn name(&self) -> String {
        self.servers.name()
    }

    fn find(&self, build_id: &BuildId) -> Result<Option<Box<dyn ReadAt>>, DebugSourceError> {
        if Instant::now() >= self.until { Ok(None) } else { self.servers.find(build_id) }
    }
}

/// Shows downloads, if the user wants to see them.
fn with_progress(servers: Debuginfod) -> Debuginfod {
    if shows_downloads() { servers.with_progress(show_download) } else { servers }
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
        Some(servers) => files.with_source(Box::new(with_progress(servers))),
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
