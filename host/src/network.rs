//! The guest's network card: what it is plugged into on the host.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use display::message::Reason;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use vmm::Network;
use vmm::net::{Backend, Interface, Stream, Tap, TapError};

use crate::half::CableFd;
use crate::process::memory_file;

/// The program of `--net passt`.
const PASST: &str = "passt";
/// Time for which passt is watched for a failure to start, ms: it has checked its options and the host by
/// then.
const PASST_START: u16 = 200;
/// Bytes of passt's last words that are shown.
const LAST_WORDS: u64 = 2 << 10;

/// A network card as plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// Its backend.
    pub kind: NetworkKind,
    /// Its address.
    pub mac: [u8; 6],
}

/// Backend of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkKind {
    /// A tap of this name.
    Tap(String),
    /// passt.
    Passt,
    /// An interface that passes everything on: in the portable host.
    Interface(String),
}

/// Why the guest has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The tap can't be used.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// passt is not installed.
    #[error("{PASST} is not in PATH (Debian, Ubuntu: `sudo apt install passt`)")]
    NoPasst,
    /// passt can't be started.
    #[error("can't start {}: {}", .path.display(), Reason(.source))]
    Start {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// passt ended at once.
    #[error("passt ended as soon as it was started: {0}")]
    Passt(String),
    /// An interface can't be used.
    #[error("can't use the network interface {name}: {}", Reason(.source))]
    Interface {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl NetworkSpec {
    /// The card that was asked for. Without an address it gets one that nobody owns, by the run's seed.
    pub fn new(kind: NetworkKind, mac: Option<[u8; 6]>, seed: u64) -> Self {
        Self { kind, mac: mac.unwrap_or_else(|| mac_of(seed)) }
    }

    /// Returns the card with this end of its cable.
    pub fn card(&self, end: CardEnd) -> Network {
        let backend: Box<dyn Backend> = match end {
            CardEnd::Tap(tap) => Box::new(tap),
            CardEnd::Stream(stream) => Box::new(stream),
            CardEnd::Interface(interface) => Box::new(interface),
        };
        Network { mac: self.mac, backend }
    }

    /// The same card seen from inside of the portable host.
    pub fn inside(&self) -> Self {
        Self { kind: NetworkKind::Interface("eth0".to_owned()), mac: self.mac }
    }
}

/// A locally administered address (IEEE 802, 8.2.2): bit 1 of the first byte set, bit 0 clear.
fn mac_of(seed: u64) -> [u8; 6] {
    // The multiplier of MMIX's generator mixes seeds that are small numbers.
    let [.., a, b, c, d, e] = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1).to_le_bytes();
    [0x02, a, b, c, d, e]
}

/// Like `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// One end of a cable, for another process.
#[derive(Debug)]
pub enum Cable {
    /// A tap.
    Tap(OwnedFd),
    /// A stream socket on which each frame follows its length.
    Stream(OwnedFd),
    /// A packet socket that is bound to an interface.
    Interface(OwnedFd),
}

impl Cable {
    /// Returns the number of the descriptor with its kind.
    pub fn number(&self) -> CableFd {
        match self {
            Self::Tap(fd) => CableFd::Tap(fd.as_raw_fd()),
            Self::Stream(fd) => CableFd::Stream(fd.as_raw_fd()),
            Self::Interface(fd) => CableFd::Interface(fd.as_raw_fd()),
        }
    }
}

impl TryFrom<Cable> for CardEnd {
    type Error = io::Error;

    /// Takes the end for this process.
    fn try_from(cable: Cable) -> io::Result<Self> {
        Ok(match cable {
            Cable::Tap(fd) => Self::Tap(Tap::from(fd)),
            Cable::Stream(fd) => Self::Stream(Stream::new(fd.into())?),
            Cable::Interface(fd) => Self::Interface(Interface::from(fd)),
        })
    }
}

impl AsRawFd for Cable {
    fn as_raw_fd(&self) -> RawFd {
        let (Self::Tap(fd) | Self::Stream(fd) | Self::Interface(fd)) = self;
        fd.as_raw_fd()
    }
}

/// The end of a cable in the process that moves the card's frames.
#[derive(Debug)]
pub enum CardEnd {
    /// A tap.
    Tap(Tap),
    /// A stream socket.
    Stream(Stream),
    /// An interface of this host.
    Interface(Interface),
}

/// Backend of a card, open.
#[derive(Debug)]
pub struct Plugged {
    end: End,
    passt: Option<Passt>,
}

#[derive(Debug)]
enum End {
    Tap(Tap),
    Stream(UnixStream),
    Interface(Interface),
}

impl Plugged {
    /// Opens it; starts passt.
    ///
    /// # Errors
    /// It is not there, or it may not be used.
    pub fn open(spec: &NetworkSpec) -> Result<Self, NetworkError> {
        let (end, passt) = match &spec.kind {
            NetworkKind::Tap(name) => (End::Tap(Tap::open(name)?), None),
            NetworkKind::Interface(name) => {
                let fail = |source| NetworkError::Interface { name: name.clone(), source };
                (End::Interface(Interface::open(name).map_err(fail)?), None)
            }
            NetworkKind::Passt => {
                let path = find_passt().ok_or(NetworkError::NoPasst)?;
                let fail = |source| NetworkError::Start { path: path.clone(), source };
                let (ours, theirs) = UnixStream::pair().map_err(fail)?;
                let passt = Passt::start(&path, &theirs).map_err(fail)?;
                // Else nobody would hear of passt's end.
                drop(theirs);
                if has_hung_up(&ours).map_err(fail)? {
                    return Err(NetworkError::Passt(passt.last_words()));
                }
                (End::Stream(ours), Some(passt))
            }
        };
        Ok(Self { end, passt })
    }

    /// Returns the end of the cable for the process that moves the card's frames.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn cable(&self) -> io::Result<Cable> {
        Ok(match &self.end {
            End::Tap(tap) => Cable::Tap(tap.try_clone_fd()?),
            End::Stream(socket) => Cable::Stream(socket.try_clone()?.into()),
            End::Interface(interface) => Cable::Interface(interface.try_clone_fd()?),
        })
    }

    /// Returns the program of the backend.
    pub fn into_passt(self) -> Option<Passt> {
        self.passt
    }
}

fn find_passt() -> Option<PathBuf> {
    let usable =
        |path: &PathBuf| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok() && path.is_file();
    std::env::split_paths(&std::env::var_os("PATH")?).map(|directory| directory.join(PASST)).find(usable)
}

/// Waits a moment for the other end to be closed.
fn has_hung_up(socket: &UnixStream) -> io::Result<bool> {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let count = poll(&mut polled, PollTimeout::from(PASST_START))?;
    Ok(count > 0)
}

/// passt, which ends with this.
#[derive(Debug)]
pub struct Passt {
    child: Child,
    /// Its standard error.
    words: File,
}

impl Passt {
    fn start(path: &Path, socket: &UnixStream) -> io::Result<Self> {
        let words = File::from(memory_file(c"vprof-passt", &[])?);
        let socket = socket.as_raw_fd();
        let mut command = Command::new(path);
        command.args(["--foreground", "--quiet", "--fd", &socket.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words.try_clone()?);
        // The terminal's signals are not for it: it ends with the guest.
        command.process_group(0);
        // SAFETY: between fork and exec one system call is made, on a descriptor that the parent holds open;
        // nothing is allocated.
        unsafe {
            command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Ok(Self { child: command.spawn()?, words })
    }

    /// A sentence if it has ended by itself.
    pub fn failure(mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("passt ended before the guest did, with {status}: {}", self.last_words()))
    }

    /// The end of what it has said, in one line.
    fn last_words(&self) -> String {
        let mut text = Vec::new();
        let mut words = &self.words;
        let length = words.seek(io::SeekFrom::End(0)).unwrap_or(0);
        let start = io::SeekFrom::Start(length.saturating_sub(LAST_WORDS));
        // What can't be read is not shown.
        let _ = words.seek(start).and_then(|_| words.take(LAST_WORDS).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        // Where there is no syslog it says so before each line.
        let said = |line: &&str| !line.is_empty() && !line.ends_with("bytes to syslog");
        let lines: Vec<&str> = text.lines().map(str::trim).filter(said).collect();
        if lines.is_empty() {
            "it said nothing".to_owned()
        } else {
            display::clean::escaped(&lines.join("; ")).into_owned()
        }
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_nobodys_and_follow_the_seed() {
        for seed in [0, 1, 2, u64::MAX] {
            let [first, ..] = mac_of(seed);
            assert_eq!(first & 3, 2);
        }
        assert_eq!(mac_of(7), mac_of(7));
        assert_ne!(mac_of(7), mac_of(8));
        assert_eq!(mac_text([2, 0, 0xab, 0, 0, 1]), "02:00:ab:00:00:01");
    }

    #[test]
    fn a_passt_that_fails_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("passt");
        std::fs::write(
            &program,
            "#!/bin/sh\necho 'Failed to send 9 bytes to syslog' >&2\necho 'no interface' >&2\nexit 1\n",
        )
        .unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut passt = Passt::start(&program, &theirs).unwrap();
        drop(theirs);
        passt.child.wait().unwrap();
        assert!(has_hung_up(&ours).unwrap());
        assert_eq!(passt.last_words(), "no interface");
        assert!(passt.failure().unwrap().starts_with("passt ended before the guest did"));
    }
}
