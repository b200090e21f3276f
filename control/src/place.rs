//! Places of control sockets: one directory for each user, one socket for each run.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::{ControlError, Owner, Running};

const SUFFIX: &str = ".sock";

/// The directory of this user: `$XDG_RUNTIME_DIR/vprof`, else `/tmp/vprof-UID`.
pub fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(runtime) if runtime.is_dir() => runtime.join("vprof"),
        _ => PathBuf::from(format!("/tmp/vprof-{}", nix::unistd::geteuid())),
    }
}

/// Makes the directory, if it is not there, and checks that it is this user's alone: others could put sockets
/// there.
///
/// # Errors
/// It cannot be made, or others may use it.
pub fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = std::fs::symlink_metadata(path)?;
    if is_own(&found) { Ok(()) } else { Err(io::Error::other("it is not a directory of this user alone")) }
}

fn is_own(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0
}

/// The socket of the run with this process id.
pub fn socket(pid: u32) -> PathBuf {
    directory().join(format!("{pid}{SUFFIX}"))
}

/// A run that answers.
#[derive(Debug)]
pub struct Found {
    /// Its socket.
    pub socket: PathBuf,
    /// Connected to it.
    pub stream: UnixStream,
}

/// The runs of this user that answer, by process id. Sockets of runs that were killed are removed.
pub fn running() -> Vec<Found> {
    let directory = directory();
    let own = std::fs::symlink_metadata(&directory).is_ok_and(|found| is_own(&found));
    let entries = if own { std::fs::read_dir(&directory).ok() } else { None };
    let mut sockets: Vec<(u32, PathBuf)> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()?;
            Some((pid, path))
        })
        .collect();
    sockets.sort_unstable();
    // The directory is this user's alone.
    let connected = |(_, socket): (u32, PathBuf)| match crate::socket::connect(&socket) {
        Ok(stream) => Some(Found { socket, stream }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Nobody listens any more. One that was removed meanwhile is gone, too.
            drop(std::fs::remove_file(&socket));
            None
        }
        Err(_) => None,
    };
    sockets.into_iter().filter_map(connected).collect()
}

/// Connects to a run: by its process id or its socket, or to the only one that there is.
///
/// # Errors
/// There is no such run, or more than one where none was named.
pub fn connect(wanted: Option<&str>) -> Result<Found, ControlError> {
    let Some(wanted) = wanted else { return only(running()) };
    let path = match wanted.parse::<u32>() {
        Ok(pid) => socket(pid),
        Err(_) => PathBuf::from(wanted),
    };
    match connect_trusted(&path) {
        Err(ControlError::Connect { source: error, .. })
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            Err(ControlError::NotARun { wanted: wanted.to_owned(), running: listed(&running()) })
        }
        Err(error) => Err(error),
        Ok(stream) => Ok(Found { socket: path, stream }),
    }
}

/// Connects to a socket that root or this user has made, in a directory of theirs, and at which one of them
/// listens. Others could imitate a run.
fn connect_trusted(path: &Path) -> Result<UnixStream, ControlError> {
    let failed = |source| ControlError::Connect { path: path.to_owned(), source };
    // The socket itself where the path is a link.
    let real = path.canonicalize().map_err(failed)?;
    for place in [Some(real.as_path()), real.parent()].into_iter().flatten() {
        let owner = Owner(std::fs::metadata(place).map_err(failed)?.uid());
        if !owner.is_trusted() {
            return Err(ControlError::Stranger { path: place.to_owned(), owner });
        }
    }
    let stream = crate::socket::connect(&real).map_err(failed)?;
    let owner = crate::socket::peer(&stream).map_err(failed)?;
    if owner.is_trusted() { Ok(stream) } else { Err(ControlError::Stranger { path: real, owner }) }
}

fn only(mut runs: Vec<Found>) -> Result<Found, ControlError> {
    if runs.len() > 1 {
        return Err(ControlError::Which(listed(&runs)));
    }
    runs.pop().ok_or(ControlError::NoRun)
}

fn listed(runs: &[Found]) -> Running {
    let pid = |run: &Found| Some(run.socket.file_stem()?.to_str()?.to_owned());
    Running(runs.iter().filter_map(pid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_use_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("own");
        make_directory(&own).unwrap();
        make_directory(&own).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        let open = place.path().join("open");
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        for path in [open, link] {
            assert!(make_directory(&path).unwrap_err().to_string().contains("alone"), "{}", path.display());
        }
    }

    #[test]
    fn strangers_are_not_talked_to() {
        // SAFETY: has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return testkit::missing("root");
        }
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s.sock");
        let path = socket.to_str().unwrap();
        let refused = |whose: &Path| match connect(Some(path)).unwrap_err() {
            ControlError::Stranger { path, owner: Owner(65534) } => assert_eq!(path, whose),
            other => panic!("{other}"),
        };
        let own = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(connect(Some(path)).unwrap().socket, socket);
        std::os::unix::fs::chown(&socket, Some(65534), None).unwrap();
        refused(&socket);
        std::os::unix::fs::chown(&socket, Some(0), None).unwrap();
        std::os::unix::fs::chown(place.path(), Some(65534), None).unwrap();
        refused(place.path());
        drop(own);
        std::fs::remove_file(&socket).unwrap();
        // A stranger who listens at a socket that root seems to have made. The credentials of a peer are
        // those of the thread that listens (unix(7), SO_PEERCRED).
        let at = socket.clone();
        let listen = move || {
            // SAFETY: takes no pointers. The system call itself changes this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) }, 0);
            std::os::unix::net::UnixListener::bind(at).unwrap()
        };
        let _theirs = std::thread::spawn(listen).join().unwrap();
        std::os::unix::fs::chown(place.path(), Some(0), None).unwrap();
        std::os::unix::fs::chown(&socket, Some(0), None).unwrap();
        refused(&socket);
        let sentence = connect(Some(path)).unwrap_err().to_string();
        assert!(sentence.contains("belongs to") && sentence.contains("65534"), "{sentence}");
    }

    #[test]
    fn who_is_not_there_cannot_be_talked_to() {
        let error = connect(Some("/nowhere/at.sock")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at.sock is not a run"), "{error}");
    }
}
