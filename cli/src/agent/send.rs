//! Sending of a window's files to a sink on the network, by a process that has the credentials. It reads no
//! recording: another process, without credentials, makes the files of them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use display::clean::escaped;
use export::lake::LakeTable;
use upload::{BucketAddress, ObjectSink, OtlpAddress, OtlpSink, SinkAddress, SinkError};

use super::convert::{self, LakePlace, STAGED_REQUESTS};
use super::recorder::ends_with_parent;
use super::sink::{SentTotals, progress_name};
use super::spool::{STAGED_LAKE, SpooledWindow, WindowProgress, recording_name};
use crate::errors::Error;

/// Has the files made, and sends those that the sink does not have. `totals` are those until an error.
/// Returns false if the files could not be made, with the message of the process that should have.
///
/// # Errors
/// The sink has not taken a file; a file of the spool cannot be used.
pub fn send(spooled: &SpooledWindow, to: &SinkAddress, totals: &mut SentTotals) -> Result<bool, Error> {
    if !stage(spooled, to)? {
        return Ok(false);
    }
    enter_wall(spooled, to)?;
    let name = progress_name(to);
    let _lock = convert::lock(spooled, &name)?;
    let progress = match to {
        SinkAddress::Directory(lake) => write_all(spooled, LakePlace::Lake(lake), totals)?,
        SinkAddress::Bucket(address) => put_all(spooled, address, totals)?,
        SinkAddress::Otlp(address) => export_all(spooled, address, (&name, totals))?,
    };
    spooled.write_progress(&name, &progress)?;
    totals.add(&progress);
    Ok(true)
}

/// Random numbers of the kernel, which every worker reads: for keys of hash tables, and of TLS.
const RANDOM: [&str; 2] = ["/dev/urandom", "/dev/random"];
/// Directories and files that clients of the network read: names of hosts, authorities, libraries of the
/// resolver, credentials of containers.
const READABLE: [&str; 7] =
    ["/etc", "/usr", "/lib", "/lib64", "/run", "/var/lib/ca-certificates", "/proc/self"];
/// Environment variables that name further ones.
const READABLE_VARIABLES: [&str; 4] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// Gives up all that sending does not need. The window's directory stays, and the sink's.
fn enter_wall(spooled: &SpooledWindow, to: &SinkAddress) -> Result<(), Error> {
    let own = spooled.directory.as_path();
    match to {
        SinkAddress::Directory(lake) => enter_reader(spooled, &[own, lake])?,
        SinkAddress::Bucket(_) | SinkAddress::Otlp(_) => {
            let named = READABLE_VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
            let readable: Vec<PathBuf> =
                READABLE.iter().chain(&RANDOM).map(PathBuf::from).chain(named).collect();
            let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
            sandbox::enter_worker(&readable, &[own], true)?;
        }
    }
    Ok(())
}

/// Gives up all that making files of recordings does not need. These directories stay.
fn enter_reader(spooled: &SpooledWindow, directories: &[&Path]) -> Result<(), Error> {
    let lists = spooled.stacks_directory();
    let readable: Vec<&Path> = RANDOM.iter().map(Path::new).chain([lists.as_path()]).collect();
    sandbox::enter_worker(&readable, directories, false)?;
    Ok(())
}

/// Returns the command of a process that sends a window, or makes what is sent. It ends with the calling
/// thread and has no input.
pub fn worker(spooled: &SpooledWindow, to: &SinkAddress) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("agent-window").arg(&spooled.directory).arg("--to");
    match to {
        SinkAddress::Directory(path) => command.arg(path),
        other => command.arg(other.to_string()),
    };
    // SQLite's temporary files are where the process may write.
    command.env("VPROF_CONFIG", "").env("SQLITE_TMPDIR", &spooled.directory).stdin(Stdio::null());
    ends_with_parent(&mut command);
    command
}

/// Makes the files that a sink on the network is sent, in another process. Returns false if that has failed.
fn stage(spooled: &SpooledWindow, to: &SinkAddress) -> Result<bool, Error> {
    if matches!(to, SinkAddress::Directory(_)) {
        return Ok(true);
    }
    let mut command = worker(spooled, to);
    super::without_secrets(&mut command);
    let status = command.arg("--stage").stdout(Stdio::null()).status();
    Ok(status.map_err(|source| Error::System { action: "start vprof agent-window", source })?.success())
}

/// Makes the files that a sink on the network is sent.
///
/// # Errors
/// A file cannot be written, or the window cannot be read.
pub fn make_files(spooled: &SpooledWindow, to: &SinkAddress) -> Result<(), Error> {
    enter_reader(spooled, &[&spooled.directory])?;
    match to {
        SinkAddress::Directory(_) => Ok(()),
        SinkAddress::Bucket(_) => convert::stage_lake(spooled),
        SinkAddress::Otlp(_) => convert::stage_requests(spooled),
    }
}

/// Writes all tables into a lake.
fn write_all(
    spooled: &SpooledWindow,
    place: LakePlace<'_>,
    totals: &mut SentTotals,
) -> Result<WindowProgress, Error> {
    let progress = convert::write_lake(spooled, place)?;
    for path in LakeTable::ALL.map(|table| place.path(spooled, table)) {
        totals.sent(length(&path)?);
    }
    Ok(progress)
}

/// Puts all tables into a bucket: those of a window that is sent again replace the older ones.
fn put_all(
    spooled: &SpooledWindow,
    address: &BucketAddress,
    totals: &mut SentTotals,
) -> Result<WindowProgress, Error> {
    let path = |table| LakePlace::Spool.path(spooled, table);
    let mut longest = 0;
    for table in LakeTable::ALL {
        longest = longest.max(length(&path(table))?);
    }
    let sink = ObjectSink::new(address, longest)?;
    for table in LakeTable::ALL {
        let bytes = read(&path(table))?;
        let length = bytes.len() as u64;
        sink.put(&spooled.window.path(table), bytes)?;
        totals.sent(length);
    }
    Ok(spooled.progress(STAGED_LAKE).unwrap_or_default())
}

/// Sends the requests that a receiver does not have: each is sent until it is taken or refused, and is noted
/// then.
fn export_all(
    spooled: &SpooledWindow,
    address: &OtlpAddress,
    (name, totals): (&str, &mut SentTotals),
) -> Result<WindowProgress, Error> {
    let staged = spooled.progress(STAGED_REQUESTS).unwrap_or_default();
    let mut progress = spooled.progress(name).unwrap_or_default();
    let machines = spooled.profiles()?.into_iter().map(|(vm, path)| (recording_name(&path), vm.name));
    let machines: HashMap<String, String> = machines.collect();
    let sink = OtlpSink::new(address)?;
    for file in
        staged.files.iter().filter(|file| !progress.files.contains(*file)).cloned().collect::<Vec<_>>()
    {
        let bytes = read(&spooled.directory.join(&file))?;
        let recording = file.split('.').next().unwrap_or_default();
        let vm = machines.get(recording).map_or(recording, String::as_str);
        match sink.export(&format!("the profile of {}", escaped(vm)), &bytes) {
            Ok(accepted) => {
                totals.sent(bytes.len() as u64);
                if accepted.rejected > 0 || !accepted.words.is_empty() {
                    totals.refused(accepted.rejected.min(1), &format!("{address} says: {}", accepted.words));
                }
            }
            Err(error @ SinkError::Refused { .. }) => totals.refused(1, &format!("{error}; it is left out")),
            Err(error) => {
                if let SinkError::Failed { after, .. } = &error {
                    totals.retry_after_s = after.map(|after| after.as_secs());
                }
                return Err(error.into());
            }
        }
        // A receiver adds up what it is sent twice: what it has is known also after an end of this process.
        progress.files.insert(file);
        spooled.write_progress(name, &progress)?;
    }
    progress.recordings = staged.recordings;
    Ok(progress)
}

fn length(path: &Path) -> Result<u64, Error> {
    let metadata = fs::metadata(path).map_err(|error| Error::file("read", path, error))?;
    Ok(metadata.len())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::file("read", path, error))
}
