//! The spool: recordings that not all sinks have yet.
//!
//! ```text
//! SPOOL/lock                       held by the agent
//! SPOOL/state.json                 end of the last window, dropped windows, lakes
//! SPOOL/tables/                    tables of guests' kernels, which recorders share
//! SPOOL/stacks/1764000000000000000 stacks that all lakes have, in files of the window with this start
//! SPOOL/HOST-20261123T09-0/        a window
//!     window.json                  [`LakeWindow`]
//!     3f9a21c4d0e1b277-0.json      [`LakeVm`] of the profile
//!     3f9a21c4d0e1b277-0.vprof     the profile, and its log while it is being written
//!     samples.parquet              tables for object stores, and vcpus.parquet, ...
//!     new-stacks                   stacks that the tables have, and known ones do not
//!     3f9a21c4d0e1b277-0.0.otlp.gz requests for receivers of OpenTelemetry profiles
//!     done-NAME.json, NAME.lock    [`WindowProgress`] of a sink, or of files for sinks
//! ```
//!
//! A window's directory is there until its time is over and each sink has all of it, so that an agent that
//! starts again within a window writes the files of the whole window.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use export::lake::{DAY_NS, KnownStacks, LakeVm, LakeWindow};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::errors::{Error, FleetError};
use crate::output::OutputTarget;

/// Name of the progress of the tables that are made for object stores.
pub const STAGED_LAKE: &str = "tables";
const WINDOW: &str = "window.json";
const STATE: &str = "state.json";
const TABLES: &str = "tables";
const STACKS: &str = "stacks";
const NEW_STACKS: &str = "new-stacks";
/// Longest of these files, bytes.
const LONGEST: u64 = 1 << 20;

/// State that outlives an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolState {
    /// End of the last window, ns since 1970.
    pub last_end_ns: u64,
    /// Windows that were dropped since the last one that began.
    pub dropped_windows: u64,
    /// Names of the lakes that have all known stacks.
    #[serde(default)]
    pub lakes: BTreeSet<String>,
}

/// The spool of an agent.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    pub state: SpoolState,
    /// Locked until the agent ends.
    _locks: Vec<File>,
}

/// A window in the spool.
#[derive(Debug, Clone, PartialEq)]
pub struct SpooledWindow {
    /// Its directory.
    pub directory: PathBuf,
    /// The window.
    pub window: LakeWindow,
}

/// Sums of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingTotals {
    /// False if it cannot be read: it is left out.
    pub readable: bool,
    /// Samples of table `samples`.
    pub samples: u64,
    /// Samples that were lost while recording.
    pub lost: u64,
}

/// Part of a window that a sink has, or that files for sinks are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowProgress {
    /// Its recordings, by name.
    pub recordings: BTreeMap<String, RecordingTotals>,
    /// Files that are sent, or made, where a recording becomes several.
    pub files: BTreeSet<String>,
}

impl Spool {
    /// Opens the spool, and makes it if it is not there. `host_lock` is the file that is locked by the one
    /// agent of the host.
    ///
    /// # Errors
    /// Another agent runs; a directory cannot be used.
    pub fn open(directory: &Path, host_lock: &Path) -> Result<Self, Error> {
        make_private(directory)?;
        make_private(&directory.join(TABLES))?;
        make_private(&directory.join(STACKS))?;
        let locks = vec![lock(host_lock)?, lock(&directory.join("lock"))?];
        let state = read_json(&directory.join(STATE));
        let state = match state {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => SpoolState::default(),
            Err(error) => return Err(Error::file("read", &directory.join(STATE), error)),
        };
        Ok(Self { directory: directory.to_owned(), state, _locks: locks })
    }

    /// Returns the directory of the tables that recorders share.
    pub fn tables(&self) -> PathBuf {
        self.directory.join(TABLES)
    }

    /// Writes the state.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), Error> {
        write_json(&self.directory, STATE, &self.state)
    }

    /// Notes the lakes that windows go to. A further one has no stack yet: all are written again.
    ///
    /// # Errors
    /// A file cannot be removed, or the state cannot be written.
    pub fn set_lakes(&mut self, lakes: BTreeSet<String>) -> Result<(), Error> {
        if !lakes.is_subset(&self.state.lakes) {
            self.lists().iter().try_for_each(|(_, list)| remove_file(list))?;
            let made =
                self.windows().into_iter().map(|window| window.directory.join(progress_file(STAGED_LAKE)));
            made.filter(|progress| progress.exists()).try_for_each(|progress| remove_file(&progress))?;
        }
        if lakes != self.state.lakes {
            self.state.lakes = lakes;
            self.save()?;
        }
        Ok(())
    }

    /// Removes a window that all sinks have. Its stacks are known then, those of days before no longer. Its
    /// list was made by a process that has read recordings.
    ///
    /// # Errors
    /// A file cannot be moved or removed.
    pub fn complete(&self, window: &SpooledWindow) -> Result<(), Error> {
        let start_ns = window.window.start_unix_ns;
        let new = window.new_stacks();
        let is_list = |data: fs::Metadata| data.is_file() && data.len() <= KnownStacks::LONGEST_LIST;
        if fs::symlink_metadata(&new).is_ok_and(is_list) {
            let known = self.directory.join(STACKS).join(start_ns.to_string());
            fs::rename(&new, &known).map_err(|error| Error::file("move", &new, error))?;
        }
        let older = self.lists().into_iter().filter(|(list_ns, _)| list_ns / DAY_NS < start_ns / DAY_NS);
        older.map(|(_, list)| list).try_for_each(|list| remove_file(&list))?;
        window.remove()
    }

    /// Returns the lists of known stacks, by the start of their windows.
    fn lists(&self) -> Vec<(u64, PathBuf)> {
        lists(&self.directory.join(STACKS))
    }

    /// Makes the directory of a window, or returns the one that an agent before has made.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(&mut self, mut window: LakeWindow) -> Result<SpooledWindow, Error> {
        let directory = self.directory.join(window.name());
        if let Some(known) = spooled(&directory) {
            return Ok(known);
        }
        make_private(&directory)?;
        window.dropped_windows = std::mem::take(&mut self.state.dropped_windows);
        write_json(&directory, WINDOW, &window)?;
        self.save()?;
        Ok(SpooledWindow { directory, window })
    }

    /// Returns all windows, the oldest first. Directories of another form are left out.
    pub fn windows(&self) -> Vec<SpooledWindow> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut windows: Vec<SpooledWindow> = entries.filter_map(|entry| spooled(&entry.path())).collect();
        windows.sort_by_key(|window| window.window.start_unix_ns);
        windows
    }

    /// Returns the size of all files, bytes.
    pub fn bytes(&self) -> u64 {
        self.windows().iter().map(SpooledWindow::bytes).sum()
    }

    /// Drops the oldest windows until the rest is at most `limit` bytes; returns them. Those that are being
    /// recorded or sent stay.
    ///
    /// # Errors
    /// A file cannot be removed, or the state cannot be written.
    pub fn drop_beyond(
        &mut self,
        limit: u64,
        stays: impl Fn(&Path) -> bool,
    ) -> Result<Vec<SpooledWindow>, Error> {
        let windows = self.windows();
        let mut bytes: u64 = windows.iter().map(SpooledWindow::bytes).sum();
        let mut dropped = Vec::new();
        for window in windows {
            if bytes <= limit {
                break;
            }
            if stays(&window.directory) {
                continue;
            }
            bytes = bytes.saturating_sub(window.bytes());
            window.remove()?;
            self.state.dropped_windows += 1;
            dropped.push(window);
        }
        if !dropped.is_empty() {
            self.save()?;
        }
        Ok(dropped)
    }
}

impl SpooledWindow {
    /// Returns the path of a new profile of a machine. A machine that was attached to before in the window
    /// has profiles with smaller numbers.
    pub fn new_profile(&self, vm: &LakeVm) -> PathBuf {
        let path = |number: u32| self.directory.join(format!("{}-{number}.vprof", vm.id));
        let free = |path: &PathBuf| !path.exists() && !path.with_extension("json").exists();
        (0..u32::MAX).map(path).find(free).unwrap_or_else(|| path(u32::MAX))
    }

    /// Writes the facts of a profile.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_vm(&self, profile: &Path, vm: &LakeVm) -> Result<(), Error> {
        let name = profile.with_extension("json");
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        write_json(&self.directory, &name, vm)
    }

    /// Returns the profiles with their machines, in the order of machines and times.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn profiles(&self) -> Result<Vec<(LakeVm, PathBuf)>, Error> {
        let failed = |error| Error::file("read", &self.directory, error);
        let mut profiles = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let profile = path.with_extension("vprof");
            let is_vm = path.extension().is_some_and(|extension| extension == "json");
            if is_vm && path.file_name().is_some_and(|name| name != WINDOW) && profile.exists() {
                let vm: LakeVm = read_json(&path).map_err(|error| Error::file("read", &path, error))?;
                profiles.push((vm, profile));
            }
        }
        let order = |(vm, path): &(LakeVm, PathBuf)| (vm.id.clone(), path.as_os_str().len(), path.clone());
        profiles.sort_by_key(order);
        Ok(profiles)
    }

    /// Returns the names of the recordings.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn recordings(&self) -> Result<BTreeSet<String>, Error> {
        Ok(self.profiles()?.iter().map(|(_, path)| recording_name(path)).collect())
    }

    /// Returns the progress of this name; `None` before there is any.
    pub fn progress(&self, name: &str) -> Option<WindowProgress> {
        read_json(&self.directory.join(progress_file(name))).ok()
    }

    /// Writes the progress of this name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_progress(&self, name: &str, progress: &WindowProgress) -> Result<(), Error> {
        write_json(&self.directory, &progress_file(name), progress)
    }

    /// Returns true if the progress of this name is of all recordings.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn is_done(&self, name: &str) -> Result<bool, Error> {
        let Some(progress) = self.progress(name) else { return Ok(false) };
        Ok(self.recordings()?.iter().eq(progress.recordings.keys()))
    }

    /// Returns the path of the list of stacks that the window's tables have, and known ones do not.
    pub fn new_stacks(&self) -> PathBuf {
        self.directory.join(NEW_STACKS)
    }

    /// Returns the directory of lists of known stacks.
    pub fn stacks_directory(&self) -> PathBuf {
        self.directory.with_file_name(STACKS)
    }

    /// Returns the lists of stacks that all lakes have in earlier windows of the day, the oldest first.
    pub fn known_stacks(&self) -> Vec<PathBuf> {
        let start_ns = self.window.start_unix_ns;
        let is_before = |list_ns: u64| list_ns < start_ns && list_ns / DAY_NS == start_ns / DAY_NS;
        lists(&self.stacks_directory())
            .into_iter()
            .filter(|(list_ns, _)| is_before(*list_ns))
            .map(|(_, list)| list)
            .collect()
    }

    fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// Removes the window: each sink has all of it, or it is dropped.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(&self) -> Result<(), Error> {
        fs::remove_dir_all(&self.directory).map_err(|error| Error::file("remove", &self.directory, error))
    }
}

/// Returns the files of a directory whose names are starts of windows, ns since 1970, in their order.
fn lists(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let start_ns = |name: &std::ffi::OsStr| name.to_str()?.parse().ok();
    let mut lists: Vec<(u64, PathBuf)> =
        entries.filter_map(|entry| Some((start_ns(&entry.file_name())?, entry.path()))).collect();
    lists.sort_unstable();
    lists
}

fn remove_file(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(|error| Error::file("remove", path, error))
}

/// Returns the name of a recording: that of its file without the ending.
pub fn recording_name(profile: &Path) -> String {
    profile.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn progress_file(name: &str) -> String {
    format!("done-{name}.json")
}

/// Reads the window of a directory of the spool.
pub fn spooled(directory: &Path) -> Option<SpooledWindow> {
    let window = read_json(&directory.join(WINDOW)).ok()?;
    Some(SpooledWindow { directory: directory.to_owned(), window })
}

fn make_private(directory: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| Error::file("make the directory", directory, error))
}

fn lock(path: &Path) -> Result<File, Error> {
    let failed = |error| Error::file("lock", path, error);
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(FleetError::SecondAgent(path.to_owned()).into()),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    if fs::metadata(path)?.len() > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Writes a file that has its name once it is whole.
fn write_json(directory: &Path, name: &str, value: &impl Serialize) -> Result<(), Error> {
    let mut target = OutputTarget::open(&directory.join(name), true)?;
    serde_json::to_writer(target.writer(), value).map_err(|error| target.error(error.into()))?;
    target.finish()
}

#[cfg(test)]
mod tests {
    use export::lake::HOUR_NS;

    use super::*;

    fn open(directory: &Path) -> Result<Spool, Error> {
        Spool::open(&directory.join("spool"), &directory.join("agent.lock"))
    }

    fn window(hour: u64) -> LakeWindow {
        let (start_unix_ns, length_ns) = (hour * HOUR_NS, HOUR_NS);
        LakeWindow { host: "alpha".to_owned(), start_unix_ns, length_ns, inclusion: 1.0, dropped_windows: 0 }
    }

    fn vm(id: &str) -> LakeVm {
        LakeVm { id: id.to_owned(), ..LakeVm::default() }
    }

    #[test]
    fn a_second_agent_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(directory.path()).unwrap();
        assert!(matches!(open(directory.path()), Err(Error::Fleet(FleetError::SecondAgent(_)))));
        let elsewhere = Spool::open(&directory.path().join("other"), &directory.path().join("agent.lock"));
        assert!(
            matches!(elsewhere, Err(Error::Fleet(FleetError::SecondAgent(_)))),
            "one on a host, whatever its spool"
        );
        drop(first);
        // A child of another test may hold a copy of a descriptor from its fork to its exec.
        testkit::eventually("the lock", std::time::Duration::from_secs(20), || open(directory.path()).ok());
    }

    #[test]
    fn a_window_of_an_agent_before_is_continued() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path()).unwrap();
        let first = spool.begin(window(10)).unwrap();
        let profile = first.new_profile(&vm("b"));
        fs::write(&profile, "profile").unwrap();
        first.write_vm(&profile, &vm("b")).unwrap();
        spool.state.dropped_windows = 7;
        let again = spool.begin(window(10)).unwrap();
        assert_eq!((&again, spool.state.dropped_windows), (&first, 7));
        let second = again.new_profile(&vm("b"));
        assert_ne!(second, profile);
        fs::write(&second, "profile").unwrap();
        // One whose recorder has not begun.
        again.write_vm(&again.new_profile(&vm("a")), &vm("a")).unwrap();
        again.write_vm(&second, &vm("b")).unwrap();
        let profiles: Vec<_> = again.profiles().unwrap().into_iter().map(|(_, path)| path).collect();
        assert_eq!(profiles, [profile, second]);
        assert_eq!(spool.windows(), [first]);
    }

    #[test]
    fn the_oldest_windows_beyond_the_limit_are_dropped_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path()).unwrap();
        for hour in [12, 10, 11, 13] {
            let window = spool.begin(window(hour)).unwrap();
            fs::write(window.new_profile(&vm("a")), vec![0; 10_000]).unwrap();
        }
        assert!(spool.bytes() >= 40_000);
        assert_eq!(spool.drop_beyond(100_000, |_| false).unwrap(), Vec::new());
        let stays = |path: &Path| path.ends_with(window(10).name());
        let dropped = spool.drop_beyond(25_000, stays).unwrap();
        let names: Vec<String> = dropped.iter().map(|dropped| dropped.window.name()).collect();
        assert_eq!(names, [window(11).name(), window(12).name()]);
        drop(spool);
        let mut spool = testkit::eventually("the lock", std::time::Duration::from_secs(20), || {
            open(directory.path()).ok()
        });
        assert_eq!(spool.state.dropped_windows, 2);
        assert_eq!(spool.begin(window(14)).unwrap().window.dropped_windows, 2);
        assert_eq!(spool.begin(window(15)).unwrap().window.dropped_windows, 0, "counted once");
    }

    #[test]
    fn stacks_are_known_in_later_windows_of_the_day_to_lakes_that_have_the_window() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path()).unwrap();
        let lakes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        spool.set_lakes(lakes(&["a", "b"])).unwrap();
        let [first, second, third] = [49, 50, 72].map(|hour| spool.begin(window(hour)).unwrap());
        second.write_progress(STAGED_LAKE, &WindowProgress::default()).unwrap();
        fs::write(first.new_stacks(), "12345678").unwrap();
        assert_eq!(second.known_stacks(), Vec::<PathBuf>::new(), "a lake may not have the window");
        spool.complete(&first).unwrap();
        assert!(!first.directory.exists());
        let known = second.known_stacks();
        assert_eq!(known.len(), 1);
        assert_eq!(fs::read(&known[0]).unwrap(), b"12345678");
        assert_eq!((first.known_stacks(), third.known_stacks()), (vec![], vec![]), "itself, and another day");
        // What leaves out a lake leaves no stack out.
        spool.set_lakes(lakes(&["b"])).unwrap();
        assert!(second.known_stacks() == known && second.is_done(STAGED_LAKE).unwrap());
        spool.set_lakes(lakes(&["a", "b"])).unwrap();
        assert!(second.known_stacks().is_empty() && !second.is_done(STAGED_LAKE).unwrap());
        fs::write(second.new_stacks(), "").unwrap();
        spool.complete(&second).unwrap();
        assert_eq!(spool.lists().len(), 1);
        let hostile = spool.begin(window(51)).unwrap();
        File::create(hostile.new_stacks()).unwrap().set_len(KnownStacks::LONGEST_LIST + 1).unwrap();
        spool.complete(&hostile).unwrap();
        assert!(!hostile.directory.exists() && spool.lists().len() == 1, "too long to be kept");
        spool.complete(&third).unwrap();
        assert_eq!(spool.lists(), [], "the day is over");
    }

    #[test]
    fn progress_is_of_recordings_by_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path()).unwrap();
        let spooled = spool.begin(window(10)).unwrap();
        assert!(!spooled.is_done("sink").unwrap(), "there is none");
        spooled.write_progress("sink", &WindowProgress::default()).unwrap();
        assert!(spooled.is_done("sink").unwrap(), "a window without recordings");
        let profile = spooled.new_profile(&vm("a"));
        fs::write(&profile, "profile").unwrap();
        spooled.write_vm(&profile, &vm("a")).unwrap();
        assert!(!spooled.is_done("sink").unwrap());
        let totals = RecordingTotals { readable: true, samples: 3, lost: 1 };
        let recordings = BTreeMap::from([(recording_name(&profile), totals)]);
        let progress = WindowProgress { recordings, files: BTreeSet::from(["a".to_owned()]) };
        spooled.write_progress("sink", &progress).unwrap();
        assert!(spooled.is_done("sink").unwrap() && !spooled.is_done("other").unwrap());
        assert_eq!(spooled.progress("sink"), Some(progress));
        fs::write(spooled.directory.join(progress_file("sink")), "{").unwrap();
        assert!(!spooled.is_done("sink").unwrap(), "what is damaged is sent again");
        assert_eq!(spooled.profiles().unwrap().len(), 1, "progress is not a recording");
    }

    #[test]
    fn foreign_files_in_a_spool_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = open(directory.path()).unwrap();
        let other = directory.path().join("spool/other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(WINDOW), "{}").unwrap();
        fs::write(directory.path().join("spool/file"), vec![0; 1 << 16]).unwrap();
        assert!(spool.windows().is_empty());
        assert!(spool.drop_beyond(0, |_| false).unwrap().is_empty());
        assert!(other.exists());
    }
}
