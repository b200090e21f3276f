//! Files of a window, by a process that reads recordings, which are as hostile as their guests, and
//! whose memory is free again once it has ended.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use display::clean::escaped;
use export::lake::{KnownStacks, LakeProfile, LakeTable, LakeTotals, LakeVm, LakeWindow, LakeWriter};
use export::otlp;
use flate2::Compression;
use flate2::write::GzEncoder;
use profile::Profile;
use tempfile::{Builder, NamedTempFile};

use super::spool::{RecordingTotals, STAGED_LAKE, SpooledWindow, WindowProgress, recording_name};
use crate::errors::Error;

/// Permissions of the lake's files: engines run as other users, of the group that the lake's directory gives.
const SHARED: u32 = 0o640;
/// Name of the progress of requests in the spool.
pub const STAGED_REQUESTS: &str = "requests";
/// Ending of the names of requests.
pub const REQUEST: &str = ".otlp.gz";

/// Place of the files of a window.
#[derive(Debug, Clone, Copy)]
pub enum LakePlace<'a> {
    /// A lake.
    Lake(&'a Path),
    /// The window's directory in the spool.
    Spool,
}

impl LakePlace<'_> {
    /// Returns the path of a table's file.
    pub fn path(self, spooled: &SpooledWindow, table: LakeTable) -> PathBuf {
        match self {
            Self::Lake(lake) => lake.join(spooled.window.path(table)),
            Self::Spool => spooled.directory.join(format!("{}.parquet", table.name())),
        }
    }
}

/// Writes the tables of a window. Each file gets its name once it is whole; older files of the same window
/// are replaced. A recording that cannot be read is left out, with a message.
///
/// # Errors
/// A file cannot be written, or the window cannot be read.
pub fn write_lake(spooled: &SpooledWindow, place: LakePlace<'_>) -> Result<WindowProgress, Error> {
    let root = match place {
        LakePlace::Lake(lake) => lake,
        LakePlace::Spool => &spooled.directory,
    };
    let failed = |error| Error::file("write a file in", root, error);
    let open = |table| temporary(&spooled.window, &place.path(spooled, table));
    let known = known_stacks(spooled)?;
    let mut writer = LakeWriter::new(spooled.window.clone(), known, open).map_err(failed)?;
    let mut progress = WindowProgress::default();
    for (vm, path) in spooled.profiles()? {
        let totals = match read(&vm, &path) {
            Some(profile) => totals(writer.add(&vm, &profile).map_err(failed)?),
            None => RecordingTotals::default(),
        };
        progress.recordings.insert(recording_name(&path), totals);
    }
    let (files, mut known) = writer.finish().map_err(failed)?;
    for (table, file) in files {
        let path = place.path(spooled, table);
        file.as_file().sync_all().map_err(|error| Error::file("write", &path, error))?;
        file.persist(&path).map_err(|error| Error::file("write", &path, error.error))?;
    }
    let list = spooled.new_stacks();
    let written = temporary(&spooled.window, &list).and_then(|file| {
        let mut out = BufWriter::new(file);
        known.write_new(&mut out)?;
        out.into_inner()?.persist(&list).map(drop).map_err(|error| error.error)
    });
    written.map_err(|error| Error::file("write", &list, error))?;
    Ok(progress)
}

/// Returns the stacks of the window's day that all lakes have.
fn known_stacks(spooled: &SpooledWindow) -> Result<KnownStacks, Error> {
    let mut known = KnownStacks::default();
    for list in spooled.known_stacks() {
        let read = File::open(&list).and_then(|file| known.read(BufReader::new(file)));
        read.map_err(|error| Error::file("read", &list, error))?;
    }
    Ok(known)
}

/// Reads a recording. One that cannot be read is left out, with a message.
fn read(vm: &LakeVm, path: &Path) -> Option<LakeProfile> {
    let profile = Profile::open(path).map_err(Error::from);
    let contents = profile.and_then(|profile| Ok(LakeProfile::read(&profile)?));
    let left_out = |error: &Error| {
        display::stderr_line!("vprof: the recording of {} is left out: {error}", escaped(&vm.name))
    };
    contents.inspect_err(left_out).ok()
}

fn totals(LakeTotals { samples, lost, .. }: LakeTotals) -> RecordingTotals {
    RecordingTotals { readable: true, samples, lost }
}

/// Makes the tables in the spool, unless they are there.
///
/// # Errors
/// See [`write_lake`].
pub fn stage_lake(spooled: &SpooledWindow) -> Result<(), Error> {
    let _lock = lock(spooled, STAGED_LAKE)?;
    if spooled.is_done(STAGED_LAKE)? {
        return Ok(());
    }
    spooled.write_progress(STAGED_LAKE, &write_lake(spooled, LakePlace::Spool)?)
}

/// Makes the requests of recordings that have none yet in the spool. What is there stays: a sink may have
/// sent it.
///
/// # Errors
/// See [`write_lake`].
pub fn stage_requests(spooled: &SpooledWindow) -> Result<(), Error> {
    let _lock = lock(spooled, STAGED_REQUESTS)?;
    let mut progress = spooled.progress(STAGED_REQUESTS).unwrap_or_default();
    for (vm, path) in spooled.profiles()? {
        let name = recording_name(&path);
        if progress.recordings.contains_key(&name) {
            continue;
        }
        let mut files = BTreeSet::new();
        let mut send = |bytes: &[u8]| {
            // Recordings and requests are in the order of their names.
            let file = format!("{name}.{:05}{REQUEST}", files.len());
            write_request(spooled, &spooled.directory.join(&file), bytes)?;
            files.insert(file);
            Ok(())
        };
        let totals = match read(&vm, &path) {
            Some(profile) => {
                let written = otlp::write_messages(&profile, (&spooled.window, &vm), &mut send);
                let failed = |error| Error::file("write a file in", &spooled.directory, error);
                totals(written.map_err(failed)?)
            }
            None => RecordingTotals::default(),
        };
        progress.recordings.insert(name, totals);
        progress.files.extend(files);
        spooled.write_progress(STAGED_REQUESTS, &progress)?;
    }
    if progress.recordings.is_empty() {
        spooled.write_progress(STAGED_REQUESTS, &progress)?;
    }
    Ok(())
}

fn write_request(spooled: &SpooledWindow, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut zipped = GzEncoder::new(temporary(&spooled.window, path)?, Compression::default());
    zipped.write_all(bytes)?;
    zipped.finish()?.persist(path).map(drop).map_err(|error| error.error)
}

/// Waits until no other process does the same: makes files for another sink, or sends to a sink for an agent
/// that has been killed. The lock ends with the file.
pub fn lock(spooled: &SpooledWindow, name: &str) -> Result<File, Error> {
    let path = spooled.directory.join(format!("{name}.lock"));
    let locked = File::create(&path).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| Error::file("lock", &path, error))
}

/// Makes a file under a temporary name in the directory of `path`. Readers of the lake skip names that begin
/// with a dot.
fn temporary(window: &LakeWindow, path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let prefix = format!(".{}.{}.", window.name(), path.file_name().unwrap_or_default().to_string_lossy());
    remove_unfinished(directory, &prefix)?;
    Builder::new().prefix(&prefix).permissions(Permissions::from_mode(SHARED)).tempfile_in(directory)
}

/// Removes what a killed process has left: files whose names begin so.
fn remove_unfinished(directory: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Makes the directory of the lake.
///
/// # Errors
/// It is not a directory and cannot be made.
pub fn make_lake(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|error| Error::file("make the directory", path, error))
}
