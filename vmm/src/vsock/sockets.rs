//! The guest's connections to Unix sockets of this host.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Backend;
use super::connection::{Connection, NextPacket, PacketEffect, PortPair};
use super::packet::{HOST_CID, Header, STREAM, op};

/// Most connections at once: more are refused to the guest, and wait on the host.
const MOST_CONNECTIONS: usize = 256;
/// RSTs that wait for the guest; with more, its packets wait.
const MOST_REFUSALS: usize = 256;
/// Events that are taken at once.
const EVENTS: usize = 64;
/// The number by which the listener's events are known; connections count from 0.
const LISTENER: u64 = u64::MAX;
/// The first of the host's ports that connections of its programs get: as far as possible from those that
/// guests ask for.
const FIRST_PORT: u32 = 1 << 30;
/// `AF_UNIX`, as wide as the structure has it.
const FAMILY: libc::sa_family_t = 1;

/// All connections of one guest.
pub struct Sockets {
    cid: u64,
    /// Sockets that the guest connects to are named after it.
    path: PathBuf,
    listener: UnixListener,
    /// A program may be waiting there.
    acceptable: bool,
    epoll: Epoll,
    connections: HashMap<u64, Connection>,
    ids: HashMap<PortPair, u64>,
    next_id: u64,
    next_port: u32,
    /// Connections that may have something for the guest, in turn.
    ready: VecDeque<u64>,
    refusals: VecDeque<Header>,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").field("cid", &self.cid).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Sockets {
    /// Makes the sockets of the guest with this context id. `listener` is bound to `path`. The guest's own
    /// connections go to sockets with `_` and the port appended to that path.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(listener: UnixListener, path: &Path, cid: u32) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        let sockets = Self {
            cid: cid.into(),
            path: path.to_owned(),
            listener,
            acceptable: true,
            epoll,
            connections: HashMap::new(),
            ids: HashMap::new(),
            next_id: 0,
            next_port: FIRST_PORT,
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
        };
        sockets.watch(sockets.listener.as_raw_fd(), LISTENER)?;
        Ok(sockets)
    }

    /// Watches a descriptor for changes, each of which is reported once.
    fn watch(&self, fd: RawFd, id: u64) -> io::Result<()> {
        let all = EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        self.epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(all, id))
    }

    /// Adds a connection whose first words are due.
    fn add(&mut self, socket: UnixStream, make: impl FnOnce(UnixStream) -> Connection) -> io::Result<()> {
        let id = self.next_id;
        self.watch(socket.as_raw_fd(), id)?;
        self.next_id += 1;
        let connection = make(socket);
        if let Some(ports) = connection.ports {
            self.ids.insert(ports, id);
        }
        self.connections.insert(id, connection);
        self.schedule(id);
        Ok(())
    }

    fn remove(&mut self, id: u64) {
        if let Some(ports) = self.connections.remove(&id).and_then(|connection| connection.ports) {
            self.ids.remove(&ports);
        }
    }

    /// Records that the connection may have something for the guest.
    fn schedule(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.queued) {
            connection.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Takes programs that have connected in.
    fn accept(&mut self) {
        while self.can_accept() {
            match self.listener.accept() {
                // A connection that can't be watched is closed, which its program sees.
                Ok((socket, _)) => drop(
                    socket.set_nonblocking(true).and_then(|()| self.add(socket, Connection::from_program)),
                ),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Without a descriptor for it the program waits until the next one comes.
                Err(_) => self.acceptable = false,
            }
        }
    }

    fn can_accept(&self) -> bool {
        self.acceptable && self.connections.len() < MOST_CONNECTIONS
    }

    /// Serves the guest's request for a connection.
    fn connect(&mut self, ports: PortPair, request: &Header) {
        let mut name = OsString::from(&self.path);
        name.push(format!("_{}", ports.host));
        let full = self.connections.len() >= MOST_CONNECTIONS;
        let socket = if full { Err(ErrorKind::QuotaExceeded.into()) } else { connect(Path::new(&name)) };
        let made = socket
            .and_then(|socket| self.add(socket, |socket| Connection::from_guest(socket, ports, request)));
        if made.is_err() {
            // Nobody listens there, or too many have connected.
            self.refusals.extend(request.refusal());
        }
    }

    /// Returns a port of the host that is not connected to this port of the guest.
    fn free_ports(&mut self, guest: u32) -> PortPair {
        loop {
            let ports = PortPair { guest, host: self.next_port };
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.ids.contains_key(&ports) {
                return ports;
            }
        }
    }

    /// Returns the next packet of the connections that may have one.
    fn next(&mut self, into: &mut [u8]) -> Option<Header> {
        while let Some(id) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            // A connection that still has something is scheduled again at the end, so that none starves the
            // others.
            connection.queued = false;
            match connection.next(into) {
                NextPacket::Nothing => {}
                NextPacket::Packet(header) => {
                    self.schedule(id);
                    return Some(Header { src_cid: HOST_CID, dst_cid: self.cid, ..header });
                }
                NextPacket::Connect(port) => {
                    let ports = self.free_ports(port);
                    self.ids.insert(ports, id);
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.ask(ports);
                    }
                    self.schedule(id);
                }
                NextPacket::Reset => {
                    let ports = connection.ports;
                    self.remove(id);
                    if let Some(PortPair { guest, host }) = ports {
                        return Some(Header {
                            src_cid: HOST_CID,
                            dst_cid: self.cid,
                            src_port: host,
                            dst_port: guest,
                            kind: STREAM,
                            op: op::RST,
                            ..Header::default()
                        });
                    }
                }
                NextPacket::Over => self.remove(id),
            }
        }
        None
    }
}

impl Backend for Sockets {
    fn send(&mut self, header: &Header, data: &[u8]) -> io::Result<bool> {
        if !self.can_send() {
            return self.notice().map(|()| false);
        }
        // A packet with another guest's address gets no answer: the answer could not reach its sender.
        if header.src_cid != self.cid {
            return Ok(true);
        }
        if header.dst_cid != HOST_CID || header.kind != STREAM {
            self.refusals.extend(header.refusal());
            return Ok(true);
        }
        let ports = PortPair { guest: header.src_port, host: header.dst_port };
        let Some(id) = self.ids.get(&ports).copied() else {
            if header.op == op::REQUEST {
                self.connect(ports, header);
            } else {
                self.refusals.extend(header.refusal());
            }
            return Ok(true);
        };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(true) };
        match connection.take(header, data) {
            PacketEffect::Open => self.schedule(id),
            PacketEffect::Gone => self.remove(id),
            PacketEffect::Refused => {
                self.remove(id);
                self.refusals.extend(header.refusal());
            }
            PacketEffect::Closed => {
                connection.linger();
                self.ids.remove(&ports);
                self.refusals.extend(header.refusal());
                self.schedule(id);
            }
        }
        Ok(true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<Header>> {
        if let Some(packet) = self.refusals.pop_front().or_else(|| self.next(into)) {
            return Ok(Some(packet));
        }
        self.notice()?;
        self.accept();
        Ok(self.next(into))
    }

    fn notice(&mut self) -> io::Result<()> {
        loop {
            let mut events = [EpollEvent::default(); EVENTS];
            let count = match self.epoll.wait(0, &mut events) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                count => count?,
            };
            for event in events.iter().take(count) {
                let hung_up = event.event_set().intersects(EventSet::HANG_UP | EventSet::ERROR);
                match (event.data(), self.connections.get_mut(&event.data())) {
                    (LISTENER, _) => self.acceptable = true,
                    (id, Some(connection)) => {
                        connection.wake(hung_up);
                        self.schedule(id);
                    }
                    (_, None) => {}
                }
            }
            if count < EVENTS {
                return Ok(());
            }
        }
    }

    fn can_send(&self) -> bool {
        self.refusals.len() < MOST_REFUSALS
    }

    fn can_receive(&self) -> bool {
        !self.refusals.is_empty() || !self.ready.is_empty() || self.can_accept()
    }

    fn reset(&mut self) {
        self.refusals.clear();
        self.ids.clear();
        self.connections.retain(|_, connection| connection.lingers());
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the epoll's, which lives as long as this borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.epoll.as_raw_fd()) }
    }
}

/// Connects to a Unix socket, without waiting for a program that takes nobody in.
fn connect(path: &Path) -> io::Result<UnixStream> {
    // SAFETY: all-zero bytes are a valid address, which is plain data.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = FAMILY;
    let name = path.as_os_str().as_bytes();
    // One stays 0, for the end.
    if name.len() >= address.sun_path.len() {
        return Err(ErrorKind::InvalidFilename.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes three numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the pointer is valid for reads of that many bytes.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(socket.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
