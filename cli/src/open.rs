//! `vprof open`: the page of a profile in the browser.

use std::env;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use display::message::Shown;
use tempfile::Builder;

use crate::args::OpenArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::export::{PageSource, write_page_to};
use crate::output::{OutputTarget, write_text};

/// Program that shows a file in the user's browser (xdg-utils).
const OPENER: &str = "xdg-open";
/// Variables with the name of a display, of X11 and of Wayland.
const DISPLAYS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];
/// Time after which an opener that still runs is the browser itself.
const OPENED: Duration = Duration::from_secs(3);

/// Runs the command.
pub fn command(args: &OpenArgs) -> Result<ExitCode, Error> {
    let source =
        PageSource { profile: &args.profile, base: args.base.as_deref(), filter: profile::Filter::default() };
    let write = |path: &Path, force| {
        let mut output = OutputTarget::open(path, force)?;
        write_page_to(&source, &mut output, args.quiet)?;
        output.finish()
    };
    let page = match &args.output {
        Some(path) if path == Path::new("-") => return Err(UsageError::OpenStdout.into()),
        Some(path) => {
            write(path, args.force)?;
            path.clone()
        }
        None => temporary(|path| write(path, true))?,
    };
    // A browser cannot open a pipe or a device.
    if !page.is_file() {
        return Ok(ExitCode::Done);
    }
    let page = path::absolute(&page).map_err(|error| Error::file("find", &page, error))?;
    let text = if !DISPLAYS.iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty())) {
        format!("This session has no display. The page is {}\n", Shown(&page))
    } else {
        match show(&page) {
            Ok(true) => format!("The browser shows {}\n", Shown(&page)),
            Ok(false) => format!("{OPENER} found no browser. The page is {}\n", Shown(&page)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format!("{OPENER} (package xdg-utils) is not installed. The page is {}\n", Shown(&page))
            }
            Err(source) => return Err(Error::System { action: "start xdg-open", source }),
        }
    };
    write_text(&text)?;
    Ok(ExitCode::Done)
}

/// Writes a new file in the directory of temporary files, which stays: a browser reads it later.
fn temporary(write: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    let directory = env::temp_dir();
    let failed = |source| Error::Temporary { path: directory.clone(), source };
    let file = Builder::new().prefix("vprof-").suffix(".html").tempfile_in(&directory).map_err(failed)?;
    // Removed again if the page cannot be written.
    write(file.path())?;
    let (_, path) = file.keep().map_err(|error| failed(error.error))?;
    Ok(path)
}

/// Shows a page in the browser. Returns false if there is none.
fn show(page: &Path) -> io::Result<bool> {
    let mut opener = Command::new(OPENER)
        .arg(page)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C at the terminal must not end the browser.
        .process_group(0)
        .spawn()?;
    let start = Instant::now();
    while start.elapsed() < OPENED {
        if let Some(status) = opener.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}
