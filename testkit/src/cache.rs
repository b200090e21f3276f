//! Directories that hold what a machine fetches or builds once, for every clone of the tree.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// File that says that the directory next to it in the path is whole.
const READY: &str = ".ready";

/// Returns `vprof` in the user's directory for caches, for example `/root/.cache/vprof`. Set `XDG_CACHE_HOME`
/// to move it (XDG Base Directory Specification).
///
/// # Panics
/// The user has no home directory.
#[must_use]
pub fn cache_directory() -> PathBuf {
    let set = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| Some(env::home_dir()?.join(".cache"))).expect("a home directory").join("vprof")
}

/// Returns the directory `name` in [`cache_directory`], and calls `fill` first if nobody has filled it. The
/// name has all that the contents depend on, for example `python/3.11.2/pyarrow==26.0.1`, because a directory
/// is never filled again. `None` if `fill` returns `None`.
///
/// Processes and threads wait for each other. A build that was killed leaves a directory without its mark,
/// and the next caller starts from an empty one. The directory is filled in its final place instead of being
/// renamed, because pip writes that place into the scripts that it installs.
///
/// # Panics
/// The directory cannot be written.
pub fn cached(name: &str, fill: impl FnOnce(&Path) -> Option<()>) -> Option<PathBuf> {
    cached_in(&cache_directory(), name, fill)
}

fn cached_in(cache: &Path, name: &str, fill: impl FnOnce(&Path) -> Option<()>) -> Option<PathBuf> {
    let directory = cache.join(name);
    let ready = directory.join(READY);
    if ready.exists() {
        return Some(directory);
    }
    fs::create_dir_all(directory.parent().expect("a name")).expect("a directory for the cache");
    let lock = File::create(directory.with_added_extension("lock")).expect("a file in the cache");
    // Released when the file is closed, also when this process is killed.
    lock.lock().expect("a lock");
    if !ready.exists() {
        if directory.exists() {
            fs::remove_dir_all(&directory).expect("removal of an unfinished directory");
        }
        fs::create_dir(&directory).expect("a directory in the cache");
        fill(&directory)?;
        File::create(&ready).expect("room");
    }
    Some(directory)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_directory_is_filled_once() {
        let cache = tempfile::tempdir().unwrap();
        let calls = AtomicU32::new(0);
        let fill = |directory: &Path| {
            calls.fetch_add(1, Ordering::Relaxed);
            fs::write(directory.join("contents"), "whole").ok()
        };
        let directories = std::thread::scope(|scope| {
            let callers = [(); 4].map(|()| scope.spawn(|| cached_in(cache.path(), "kind/a==1", fill)));
            callers.map(|caller| caller.join().unwrap().unwrap())
        });
        assert_eq!(calls.into_inner(), 1);
        assert!(directories.iter().all(|directory| *directory == cache.path().join("kind/a==1")));
        assert_eq!(fs::read_to_string(directories[0].join("contents")).unwrap(), "whole");
    }

    #[test]
    fn an_unfinished_directory_is_filled_from_the_start() {
        let cache = tempfile::tempdir().unwrap();
        let half = |directory: &Path| fs::write(directory.join("half"), "").err().map(drop);
        assert_eq!(cached_in(cache.path(), "a", half), None);
        assert!(cache.path().join("a/half").exists());
        let directory = cached_in(cache.path(), "a", |_| Some(())).unwrap();
        assert!(!directory.join("half").exists());
    }
}
