//! Packets over a stream, one after the other: for sockets on another machine than the device.
//!
//! A packet is its header and its data, as in the queues. A header of zeros, which no guest's packet has,
//! says that the guest no longer knows any connection. The guest's own credit bounds the data in flight.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::packet::{HEADER, Header, MOST_DATA};
use super::{Backend, Sockets};

/// End of the stream, which does not block.
#[derive(Debug)]
struct PacketStream<S> {
    stream: S,
    /// Received bytes that are not yet taken: `start..end` of the buffer.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes for which the stream has had no room.
    outgoing: Vec<u8>,
}

impl<S: Read + Write> PacketStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, incoming: vec![0; HEADER + MOST_DATA], start: 0, end: 0, outgoing: Vec::new() }
    }

    /// Returns the first packet's header, once the whole packet has come.
    fn whole(&self) -> io::Result<Option<Header>> {
        let waiting = self.incoming.get(self.start..self.end).unwrap_or_default();
        let Some((header, data)) = waiting.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::from_bytes(header);
        if header.data() > MOST_DATA {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok((data.len() >= header.data()).then_some(header))
    }

    /// Reads until there is a whole packet, or nothing more comes for now; false at the stream's end.
    fn fill(&mut self) -> io::Result<bool> {
        while self.whole()?.is_none() {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            // There is room: a whole packet would have been found.
            match self.stream.read(&mut self.incoming[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes the first packet. Data that has no room in `into` becomes another packet.
    fn take(&mut self, into: &mut [u8]) -> io::Result<Option<Header>> {
        let Some(header) = self.whole()? else { return Ok(None) };
        let data = self.start + HEADER;
        let (length, room) = (header.data(), into.len());
        let taken = length.min(room);
        into[..taken].copy_from_slice(&self.incoming[data..data + taken]);
        let part = |bytes: usize| Header { len: u32::try_from(bytes).unwrap_or(u32::MAX), ..header };
        if taken == length {
            self.start = data + length;
        } else {
            // Before the rest there is room for its header: that of the old one and of what was taken.
            self.start += taken;
            self.incoming[self.start..self.start + HEADER].copy_from_slice(&part(length - taken).to_bytes());
        }
        Ok(Some(part(taken)))
    }

    /// Sends a packet, of which the stream may have room for later only.
    fn put(&mut self, header: &Header, data: &[u8]) -> io::Result<()> {
        self.outgoing.extend(header.to_bytes());
        self.outgoing.extend(data);
        self.flush().map(drop)
    }

    /// Sends what the stream had no room for; false where it still has none for all of it.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                // A virtio-serial port may report in this way that its queue is full.
                Ok(0) => return Ok(false),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Passes a guest's packets on to [`serve`].
pub struct Relay {
    packets: PacketStream<File>,
    epoll: Epoll,
    /// The guest was reset, which was not passed on yet.
    reset: bool,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("packets", &self.packets).finish_non_exhaustive()
    }
}

impl Relay {
    /// Takes a stream over: a character device like a virtio-serial port, opened without blocking.
    ///
    /// # Errors
    /// It can't be waited for.
    pub fn new(stream: File) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let all = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        epoll.ctl(ControlOperation::Add, stream.as_raw_fd(), EpollEvent::new(all, 0))?;
        Ok(Self { packets: PacketStream::new(stream), epoll, reset: false })
    }

    /// Sends what waits, as far as the stream has room.
    fn flush(&mut self) -> io::Result<()> {
        if self.packets.flush()? && std::mem::take(&mut self.reset) {
            self.packets.put(&Header::default(), &[])?;
        }
        Ok(())
    }
}

impl Backend for Relay {
    fn send(&mut self, header: &Header, data: &[u8]) -> io::Result<bool> {
        if !self.can_send() {
            self.notice()?;
        }
        if !self.can_send() {
            return Ok(false);
        }
        self.packets.put(header, data).map(|()| true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<Header>> {
        match self.packets.take(into)? {
            None => self.notice().and_then(|()| self.packets.take(into)),
            packet => Ok(packet),
        }
    }

    fn notice(&mut self) -> io::Result<()> {
        // First, so that what happens from now on is not missed.
        match self.epoll.wait(0, &mut [EpollEvent::default()]) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.flush()?;
        // A port whose other end was not opened yet reads as one that has ended.
        self.packets.fill().map(drop)
    }

    fn can_send(&self) -> bool {
        self.packets.outgoing.is_empty() && !self.reset
    }

    fn can_receive(&self) -> bool {
        // An error is found out by receiving.
        self.packets.whole().map_or(true, |header| header.is_some())
    }

    fn reset(&mut self) {
        self.reset = true;
        // An error is found again by the next packet.
        let _ = self.flush();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the epoll's, which lives as long as this borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.epoll.as_raw_fd()) }
    }
}

/// Moves packets between a [`Relay`] at the other end of `stream` and `sockets`, until the stream ends.
///
/// # Errors
/// The stream fails, or carries something else.
pub fn serve(stream: UnixStream, sockets: Sockets) -> io::Result<()> {
    match move_packets(stream, sockets) {
        // An end that is closed before all was read shows so.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        ended => ended,
    }
}

fn move_packets(stream: UnixStream, mut sockets: Sockets) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut packets = PacketStream::new(stream);
    let mut data = vec![0; MOST_DATA];
    loop {
        // In turn, so that neither direction waits for the other's end.
        let mut moved = false;
        if packets.flush()?
            && let Some(header) = sockets.receive(&mut data)?
        {
            packets.put(&header, &data[..header.data()])?;
            moved = true;
        }
        if sockets.can_send() {
            let goes_on = packets.fill()?;
            if let Some(header) = packets.take(&mut data)? {
                if header == Header::default() {
                    sockets.reset();
                } else {
                    // There is room, as was asked before.
                    let _sent = sockets.send(&header, &data[..header.data()])?;
                }
                moved = true;
            } else if !goes_on {
                return Ok(());
            }
        }
        if !moved {
            wait(&packets, &sockets);
        }
    }
}

/// Sleeps until something can be moved.
fn wait(packets: &PacketStream<UnixStream>, sockets: &Sockets) {
    let all_sent = packets.outgoing.is_empty();
    let stream =
        (if sockets.can_send() { libc::POLLIN } else { 0 }) | (if all_sent { 0 } else { libc::POLLOUT });
    let watched = |fd: BorrowedFd<'_>, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // What the sockets have is of no use before there is room for it.
    let sockets = watched(sockets.descriptor(), if all_sent { libc::POLLIN } else { 0 });
    let mut fds = [watched(packets.stream.as_fd(), stream), sockets];
    // SAFETY: `fds` is valid for two entries, and its descriptors live in `packets` and `sockets`. A failed
    // poll (EINTR, ENOMEM) is a spurious wake-up, which the caller tolerates.
    unsafe {
        libc::poll(fds.as_mut_ptr(), 2, -1);
    }
}
