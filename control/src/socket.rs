//! Unix sockets that this program makes and connects to.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Connections that wait for being accepted, as std has it.
const BACKLOG: libc::c_int = 128;
/// Family of addresses, as `sockaddr_un` has it.
#[expect(clippy::cast_possible_truncation, reason = "it is 1")]
const FAMILY: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;
/// Time limit of a connection: a server that accepts nothing has a full queue.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A user who owns something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(pub u32);

impl Owner {
    /// Returns true for root and the user of this process.
    pub fn is_trusted(self) -> bool {
        self.0 == 0 || self.0 == nix::unistd::geteuid().as_raw()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        match name(&users, self.0) {
            Some(name) => write!(f, "user {} ({})", display::clean::escaped(name), self.0),
            None => write!(f, "user {}", self.0),
        }
    }
}

/// Returns the name of a user, by passwd(5).
fn name(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, found) = (fields.next()?, fields.nth(1)?);
        (found.parse() == Ok(uid)).then_some(name)
    })
}

/// Listens at a socket that only its owner may use. One that is there and at which nobody listens any more is
/// replaced; a file that is not a socket never is.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_dead(path) => {
            std::fs::remove_file(path)?;
            bind(path)
        }
        bound => bound,
    }?;
    // SAFETY: takes no pointers, and the descriptor is open.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(UnixListener::from(socket))
}

/// Binds a socket that has mode 0600 from its first moment on. Nobody reaches it before it listens.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    // The mode of the socket's file follows from that of the socket's own inode (unix(7), Linux); the umask
    // only takes bits away. SAFETY: takes no pointers, and the descriptor is open.
    check(unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) })?;
    let (address, length) = address(path)?;
    // SAFETY: `address` is a valid address of this length, and the descriptor is open.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// Connects to a socket.
///
/// # Errors
/// Nobody listens, or accepts within [`CONNECT_LIMIT`].
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::from(stream_socket()?);
    // Applies to connect(2) of Unix sockets, too.
    stream.set_write_timeout(Some(CONNECT_LIMIT))?;
    let (address, length) = address(path)?;
    // SAFETY: `address` is a valid address of this length, and the descriptor is open.
    match check(unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) }) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "nobody accepts the connection"))
        }
        Err(error) => Err(error),
        Ok(()) => {
            stream.set_write_timeout(None)?;
            Ok(stream)
        }
    }
}

/// Returns the user who listens at the other end.
pub fn peer(stream: &UnixStream) -> io::Result<Owner> {
    let credentials = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Owner(credentials.uid()))
}

fn stream_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(socket)?;
    // SAFETY: the descriptor is new and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeroes is a valid value: numbers only.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = FAMILY;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no path of a socket: 107 bytes at most, none 0",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    let length = size_of::<libc::sockaddr_un>();
    Ok((address, length.try_into().map_err(io::Error::other)?))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket at which nobody listens. Other files refuse connections as well.
fn is_dead(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_sockets_without_a_listener_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        drop(listen(&path).unwrap());
        let file = directory.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert_eq!(listen(&file).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn a_socket_has_its_mode_before_anybody_can_reach_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        // The moment between bind and listen.
        let socket = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        drop(socket);
        let long = directory.path().join("x".repeat(108));
        assert_eq!(bind(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_server_that_accepts_nothing_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = bind(&path).unwrap();
        // SAFETY: takes no pointers, and the descriptor is open.
        check(unsafe { libc::listen(socket.as_raw_fd(), 0) }).unwrap();
        let _first = connect(&path).unwrap();
        let begun = std::time::Instant::now();
        let error = connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(begun.elapsed() < CONNECT_LIMIT * 3);
    }

    #[test]
    fn peers_and_owners_have_names() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(peer(&ours).unwrap().is_trusted());
        let users = "root:x:0:0:root:/root:/bin/sh\nal\x1bice:x:1000:1000::/:/bin/sh\nbroken\n";
        assert_eq!(
            (name(users, 0), name(users, 1000), name(users, 7)),
            (Some("root"), Some("al\x1bice"), None)
        );
        assert!(Owner(0).is_trusted() && !Owner(u32::MAX).is_trusted());
        assert!(Owner(4_000_000_000).to_string().ends_with("user 4000000000"));
    }
}
