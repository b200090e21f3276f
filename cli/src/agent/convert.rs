//! Writing of a window's files: a process that reads recordings, which are as hostile as their guests, and
//! whose memory is free again once it has ended.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use export::lake::{LakeProfile, LakeTable, LakeWindow, LakeWriter};
use profile::Profile;
use serde::{Deserialize, Serialize};
use tempfile::{Builder, NamedTempFile};
use text::clean::escaped;
use text::message::Shown;

use super::spool::{SpooledWindow, spooled};
use crate::args::AgentWindowArgs;
use crate::errors::{Error, ExitCode};
use crate::output::write_json_line;

/// Permissions of the lake's files: engines run as other users, of the group that the lake's directory gives.
const SHARED: u32 = 0o640;
/// Longest result of a process, bytes.
const LONGEST: u64 = 4 << 10;

/// Result of writing a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowTotals {
    /// Profiles that were written.
    pub profiles: u64,
    /// Profiles that could not be read.
    pub unreadable: u64,
    /// Samples in table `samples`.
    pub samples: u64,
    /// Samples that were lost while recording.
    pub lost: u64,
}

/// Runs the command `agent-window`: writes the files, and prints the totals.
pub fn command(args: &AgentWindowArgs) -> Result<ExitCode, Error> {
    let Some(window) = spooled(&args.window) else {
        let reason = io::Error::new(io::ErrorKind::InvalidData, "it is not a window of a spool");
        return Err(Error::file("read", &args.window, reason));
    };
    write_json_line(&write(&window, &args.to)?)?;
    Ok(ExitCode::Done)
}

/// Writes the files of a window into the lake. Each gets its name once it is whole; older files of the same
/// window are replaced. A recording that cannot be read is left out, with a message.
fn write(spooled: &SpooledWindow, lake: &Path) -> Result<WindowTotals, Error> {
    let window = &spooled.window;
    let open = |table| temporary(window, table, lake);
    let mut writer = LakeWriter::new(window.clone(), open).map_err(|error| failed(lake, error))?;
    let mut totals = WindowTotals::default();
    for (vm, path) in spooled.profiles()? {
        match read(&path) {
            Ok(profile) => {
                let added = writer.add(&vm, &profile).map_err(|error| failed(lake, error))?;
                totals.profiles += 1;
                totals.samples += added.samples;
                totals.lost += added.lost;
            }
            Err(error) => {
                totals.unreadable += 1;
                eprintln!("vprof: the recording of {} is left out: {error}", escaped(&vm.name));
            }
        }
    }
    for (table, file) in writer.finish().map_err(|error| failed(lake, error))? {
        let path = lake.join(window.path(table));
        file.as_file().sync_all().map_err(|error| Error::file("write", &path, error))?;
        file.persist(&path).map_err(|error| Error::file("write", &path, error.error))?;
    }
    Ok(totals)
}

fn failed(lake: &Path, error: io::Error) -> Error {
    Error::file("write a file in", lake, error)
}

fn read(path: &Path) -> Result<LakeProfile, Error> {
    Ok(LakeProfile::read(&Profile::open(path)?)?)
}

/// Makes the file of a table under a temporary name in its directory. Readers of the lake skip names that
/// begin with a dot.
fn temporary(window: &LakeWindow, table: LakeTable, lake: &Path) -> io::Result<NamedTempFile> {
    let path = lake.join(window.path(table));
    let directory = path.parent().unwrap_or(lake);
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    remove_unfinished(directory, window)?;
    let prefix = unfinished(window);
    Builder::new().prefix(&prefix).permissions(Permissions::from_mode(SHARED)).tempfile_in(directory)
}

/// Returns the beginning of the names of a window's unfinished files.
fn unfinished(window: &LakeWindow) -> String {
    format!(".{}.", window.name())
}

/// Removes what a killed process has left of the window.
fn remove_unfinished(directory: &Path, window: &LakeWindow) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&unfinished(window)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A process that writes a window.
#[derive(Debug)]
pub struct WindowProcess {
    child: Child,
    /// The window.
    pub window: SpooledWindow,
}

impl WindowProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(window: SpooledWindow, lake: &Path) -> Result<Self, Error> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("agent-window").arg(&window.directory).arg("--to").arg(lake).env("VPROF_CONFIG", "");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|source| Error::System { action: "start vprof agent-window", source })?;
        Ok(Self { child, window })
    }

    /// Returns the totals once it has ended; `None` within the result if it has failed, with its own message.
    ///
    /// # Errors
    /// The process cannot be waited for.
    pub fn ended(&mut self) -> io::Result<Option<Option<WindowTotals>>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let mut text = Vec::new();
        if let Some(stdout) = self.child.stdout.take() {
            stdout.take(LONGEST).read_to_end(&mut text)?;
        }
        let totals = serde_json::from_slice(&text).ok();
        Ok(Some(totals.filter(|_| status.success())))
    }
}

/// Returns a sentence on a window that is written.
pub fn sentence(window: &LakeWindow, totals: WindowTotals, lake: &Path) -> String {
    let samples = text::units::counted(totals.samples, "sample");
    let recordings = text::units::counted(totals.profiles, "recording");
    let left_out = match totals.unreadable {
        0 => String::new(),
        count => format!(", {} could not be read", text::units::count(count)),
    };
    format!("{} has {samples} of {recordings} in {}{left_out}", window.name(), Shown(lake))
}

/// Makes the directory of the lake.
///
/// # Errors
/// It is not a directory and cannot be made.
pub fn make_lake(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|error| Error::file("make the directory", path, error))
}
