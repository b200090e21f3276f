//! The guest's driver and the host's programs of these tests.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use tempfile::TempDir;
use vm_memory::{Bytes, GuestAddress};

use super::super::*;
use crate::config;
use crate::virtio::vsock::Vsock;
use crate::vsock::{HEADER, Header, Relay, Sockets, serve};

pub(super) const RECEIVE: u16 = 0;
pub(super) const TRANSMIT: u16 = 1;
pub(super) const EVENT: u16 = 2;
/// Operations (virtio 1.2, 5.10.6).
pub(super) const REQUEST: u16 = 1;
pub(super) const RESPONSE: u16 = 2;
pub(super) const RST: u16 = 3;
pub(super) const SHUTDOWN: u16 = 4;
pub(super) const RW: u16 = 5;
pub(super) const CREDIT_UPDATE: u16 = 6;
pub(super) const CREDIT_REQUEST: u16 = 7;
pub(super) const CID: u32 = 42;
/// Bytes of a receive buffer, as Linux has them.
pub(super) const BUFFER: u32 = 4096;
/// Buffer of the device per connection, bytes.
pub(super) const ROOM: u32 = 64 << 10;
/// Address of the guest's packets.
pub(super) const OUTGOING: u64 = BUFFERS + 0x8_0000;

/// The programs' side.
pub(super) struct Host {
    pub(super) directory: TempDir,
    pub(super) served: Option<JoinHandle<std::io::Result<()>>>,
}

impl Host {
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    /// Listens for the guest's connections to a port.
    pub(super) fn listen(&self, port: u32) -> UnixListener {
        UnixListener::bind(self.directory.path().join(format!("sock_{port}"))).unwrap()
    }

    pub(super) fn connect(&self, greeting: &[u8]) -> UnixStream {
        let mut program = UnixStream::connect(self.path()).unwrap();
        program.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        program.write_all(greeting).unwrap();
        program
    }
}

/// Starts a device whose guest has not posted its buffers yet.
pub(super) fn device(relayed: bool) -> (Rig, Host) {
    let directory = tempfile::tempdir().unwrap();
    let mut host = Host { directory, served: None };
    let sockets = Sockets::new(UnixListener::bind(host.path()).unwrap(), &host.path(), CID).unwrap();
    let backend: Box<dyn crate::vsock::Backend> = if relayed {
        let (ours, other) = UnixStream::pair().unwrap();
        host.served = Some(std::thread::spawn(move || serve(other, sockets)));
        ours.set_nonblocking(true).unwrap();
        Box::new(Relay::new(File::from(OwnedFd::from(ours))).unwrap())
    } else {
        Box::new(sockets)
    };
    let mut rig = Rig::new(Box::new(Vsock::new(config::Vsock { cid: CID, backend })));
    rig.start();
    rig.on(EVENT).descriptor(0, BUFFERS, 8, WRITE, 0);
    rig.submit(0);
    (rig, host)
}

/// Runs the test in both configurations.
pub(super) fn each(test: impl Fn(&mut Guest, &Host)) {
    for relayed in [false, true] {
        let (rig, host) = device(relayed);
        let mut guest = Guest { rig, seen: 0 };
        guest.post();
        test(&mut guest, &host);
        drop(guest);
        if let Some(served) = host.served {
            served.join().unwrap().unwrap();
        }
    }
}

/// A driver, of one connection at a time.
pub(super) struct Guest {
    pub(super) rig: Rig,
    pub(super) seen: u16,
}

/// Makes a packet from a port of the guest to one of the host, whose sender has room for a MiB.
pub(super) fn packet(op: u16, guest: u32, host: u32) -> Header {
    Header {
        src_cid: CID.into(),
        dst_cid: 2,
        src_port: guest,
        dst_port: host,
        kind: 1,
        op,
        buf_alloc: 1 << 20,
        ..Header::default()
    }
}

impl Guest {
    pub(super) fn post(&mut self) {
        self.rig.on(RECEIVE);
        for head in 0..SIZE {
            self.rig.descriptor(head, BUFFERS + u64::from(head) * 0x1000, BUFFER, WRITE, 0);
            self.rig.submit(head);
        }
    }

    /// Hands a packet over without waiting for it to be taken.
    pub(super) fn hand_over(&mut self, header: Header, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap();
        let rig = self.rig.on(TRANSMIT);
        let header = Header { len: length, ..header }.to_bytes();
        rig.memory.write_slice(&header, GuestAddress(OUTGOING)).unwrap();
        rig.memory.write_slice(data, GuestAddress(OUTGOING + 0x100)).unwrap();
        rig.descriptor(0, OUTGOING, 44, NEXT, 1);
        rig.descriptor(1, OUTGOING + 0x100, length, 0, 0);
        rig.submit(0);
    }

    pub(super) fn send(&mut self, header: Header, data: &[u8]) {
        self.hand_over(header, data);
        assert_eq!(self.rig.answer(), 0, "nothing is written into it");
    }

    pub(super) fn try_receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let rig = self.rig.on(RECEIVE);
        if rig.used() == self.seen {
            return None;
        }
        let slot = rig.ring_address(USED) + 4 + u64::from(self.seen % SIZE) * 8;
        self.seen = self.seen.wrapping_add(1);
        let [head, length]: [u32; 2] = rig.memory.read_obj(GuestAddress(slot)).unwrap();
        let mut bytes = vec![0; length as usize];
        rig.memory.read_slice(&mut bytes, GuestAddress(BUFFERS + u64::from(head) * 0x1000)).unwrap();
        rig.submit(u16::try_from(head).unwrap());
        let data = bytes.split_off(HEADER);
        let header = Header::from_bytes(&bytes.try_into().unwrap());
        assert_eq!((header.src_cid == 2 || header.op == RST, header.dst_cid), (true, CID.into()));
        assert_eq!(header.data(), data.len());
        Some((header, data))
    }

    pub(super) fn receive(&mut self) -> (Header, Vec<u8>) {
        let mut packet = None;
        until(|| {
            packet = self.try_receive();
            packet.is_some()
        });
        packet.unwrap()
    }

    pub(super) fn expect(&mut self, op: u16, guest: u32, host: u32) -> Header {
        let (header, _) = self.receive();
        assert_eq!((header.op, header.dst_port, header.src_port), (op, guest, host), "{header:?}");
        header
    }

    /// Receives an RST, after news of room that came late.
    pub(super) fn expect_end(&mut self) {
        while self.receive().0.op != RST {}
    }

    /// Connects to a listener of the host.
    pub(super) fn connect(&mut self, listener: &UnixListener, guest: u32, host: u32) -> UnixStream {
        self.send(packet(REQUEST, guest, host), b"");
        let header = self.expect(RESPONSE, guest, host);
        assert_eq!((header.buf_alloc, header.fwd_cnt, header.kind), (ROOM, 0, 1));
        let (program, _) = listener.accept().unwrap();
        program.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        program
    }

    /// Receives data until there is so much of it.
    pub(super) fn collect(&mut self, length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < length {
            let (header, data) = self.receive();
            assert_eq!(header.op, RW, "{header:?}");
            all.extend(data);
        }
        all
    }

    /// Sends as much as the device gives credit for to a program that reads none of it.
    pub(super) fn fill(&mut self, guest: u32, host: u32) -> Vec<u8> {
        let (mut all, mut taken) = (Vec::new(), 0);
        loop {
            let free = ROOM as usize - (all.len() - taken);
            if free >= 4096 {
                let part = bytes(4096, all.len());
                self.send(packet(RW, guest, host), &part);
                all.extend(part);
                continue;
            }
            let start = Instant::now();
            let update = loop {
                match self.try_receive() {
                    None if start.elapsed() < Duration::from_millis(100) => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    update => break update,
                }
            };
            let Some((header, _)) = update else { return all };
            assert_eq!(header.op, CREDIT_UPDATE);
            taken = header.fwd_cnt as usize;
        }
    }
}

pub(super) fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + seed / 4096).to_le_bytes()[0]).collect()
}

/// Reads until the sender ends.
pub(super) fn rest(program: &mut UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    match program.read_to_end(&mut all) {
        Ok(_) => {}
        // The sender left something unread.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    all
}

pub(super) fn read(program: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    program.read_exact(&mut all).unwrap();
    all
}
