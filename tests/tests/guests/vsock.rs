//! Sockets between programs of the guest and of the host.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use vprof_tests::Run;

use crate::network::assert_has_exits_and_interrupts;

/// Connects to the host, then is connected to; each time sends 256 KiB, which are echoed meanwhile.
pub(crate) const TRAFFIC: &str = "\
import os, socket
def talk(way, connection):
    data = os.urandom(1 << 18)
    if os.fork() == 0:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        os._exit(0)
    back = bytearray()
    while part := connection.recv(1 << 16):
        back += part
    assert back == data, 'what came back is not what was sent'
    print(way, len(back), 'bytes came back', flush=True)
    connection.close()
listener = socket.socket(socket.AF_VSOCK)
listener.bind((socket.VMADDR_CID_ANY, 5000))
listener.listen()
refused = socket.socket(socket.AF_VSOCK)
print('refused:', refused.connect_ex((2, 1001)), flush=True)
there = socket.socket(socket.AF_VSOCK)
there.connect((2, 1000))
talk('there:', there)
connection, (cid, port) = listener.accept()
talk('from %d:' % cid, connection)
";

/// Sends back all that comes on a connection of the guest, and then on one to the guest.
fn echo(guest: UnixStream, path: &Path) -> io::Result<()> {
    io::copy(&mut &guest, &mut &guest)?;
    drop(guest);
    let mut program = UnixStream::connect(path)?;
    program.write_all(b"CONNECT 5000\n")?;
    let mut reader = BufReader::new(program.try_clone()?);
    let mut answer = String::new();
    reader.read_line(&mut answer)?;
    if !answer.starts_with("OK ") {
        return Err(io::Error::other(answer));
    }
    io::copy(&mut reader, &mut program).map(drop)
}

/// A program of the host with which the guest of [`TRAFFIC`] talks.
pub(crate) struct VsockHost {
    directory: tempfile::TempDir,
}

impl VsockHost {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("sock_1000")).unwrap();
        let host = Self { directory };
        let sockets = host.path();
        // What fails here, the guest misses; where the portable host failed it comes again.
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|guest| drop(echo(guest, &sockets)));
        });
        host
    }

    /// Returns the path at which vprof makes its socket.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    /// Asserts that a guest whose context id is 77 has talked with it.
    pub(crate) fn assert_talked(&self, run: &Run) {
        assert!(run.stdout.contains("refused: 104"), "ECONNRESET: {}", run.stdout);
        for way in ["there:", "from 2:"] {
            assert!(run.stdout.contains(&format!("{way} 262144 bytes came back")), "{}", run.stdout);
        }
        assert!(!self.path().exists(), "the socket is removed");
        assert_has_exits_and_interrupts(run, "vsock");
    }
}
