//! The output of a command in the guest, by ports ([`vmm::OutputPorts`]).
//!
//! ```text
//! guest ── port ──> ConsoleWriter ── connection ──> reader: standard output, standard error
//!                        ^── bytes that were read ──────┘
//! ```
//!
//! The writer is at most a window ahead of the reader. Beyond it the port takes nothing, and the guest waits:
//! nothing is lost, and the connection stays free for samples.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::watch;
use vmm::{OutputPorts, PortReader};

use crate::link::{BytesRead, ConsoleWriter};

/// Names of the ports, by [`crate::protocol::OutputStream`].
pub const PORT_NAMES: [&str; 2] = ["org.vprof.stdout", "org.vprof.stderr"];

/// Makes the ports of a command whose output goes to `output`. Called within a runtime, which passes on the
/// progress of the readers.
pub(crate) fn ports(output: [ConsoleWriter; 2], read: watch::Receiver<BytesRead>) -> io::Result<OutputPorts> {
    let room = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
    let (mut changes, signal) = (read.clone(), Arc::clone(&room));
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            // A full counter is as readable as any other.
            let _full = signal.write(1);
        }
    });
    Ok(OutputPorts { names: PORT_NAMES, reader: Box::new(CommandOutput { output, read, room }) })
}

/// Reader of a command's ports.
#[derive(Debug)]
struct CommandOutput {
    output: [ConsoleWriter; 2],
    read: watch::Receiver<BytesRead>,
    /// Readable after a reader has taken something.
    room: Arc<EventFd>,
}

impl PortReader for CommandOutput {
    fn room(&self, port: usize, at_end: bool) -> usize {
        let read = self.read.borrow()[port];
        self.output[port].room(read, at_end)
    }

    fn take(&mut self, port: usize, bytes: &[u8]) {
        // Never fails: the writer drops what does not fit, and this fits.
        let _written = self.output[port].write_all(bytes);
    }

    fn lose(&mut self, port: usize, bytes: u64) {
        self.output[port].lose(bytes);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    fn acknowledge(&mut self) {
        let _nothing = self.room.read();
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::link::{Watcher, link};

    #[tokio::test]
    async fn a_guest_is_never_further_ahead_than_the_window_and_its_end_has_room() {
        let (guest, watcher) = link();
        let Watcher { read, output, .. } = watcher;
        let mut ports = ports(guest.output, guest.read).unwrap().reader;
        let window = ports.room(0, false);
        assert!(window >= 1 << 20, "{window}");
        ports.take(0, &vec![b'x'; window]);
        assert_eq!((ports.room(0, false), ports.room(1, false)), (0, window));
        // 32 buffers of 64 KiB: what the device's queue holds.
        assert!(ports.room(0, true) >= 2 << 20);
        ports.take(0, &vec![b'y'; 2 << 20]);
        read.send_replace([1000, 0]);
        assert_eq!(ports.room(0, false), 0, "still ahead");
        read.send_replace([3 << 20, 0]);
        assert_eq!(ports.room(0, false), window);
        tokio::task::yield_now().await;
        let mut event = [PollFd::new(ports.descriptor(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut event, PollTimeout::from(10_000u16)).unwrap(), 1, "the device is woken");
        ports.lose(1, 5);
        drop(ports);
        let lost =
            output.map(|reader| reader.pump(|_| {}).unwrap().finish(std::time::Duration::from_secs(10)));
        assert_eq!(lost, [0, 5], "all that had room is passed on");
    }
}
