//! Connection between a port of the guest and a Unix socket.
//!
//! ```text
//! host's program connects:  Greeting ── CONNECT P ──> Requested ── RESPONSE ──> Open
//! guest connects:           ── REQUEST ───────────────────────────────────────> Open
//! guest closes:             Open ── SHUTDOWN of both directions ──> Lingering, until all is written
//! ```

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::packet::{Header, MOST_DATA, NO_RECEIVE, NO_SEND, ROOM, STREAM, op};

/// Number of free bytes that is reported to the guest without a request.
const REPORT_THRESHOLD: u32 = ROOM / 4;
/// Length of the longest greeting, `CONNECT 4294967295`, without its end of line.
const LONGEST_GREETING: usize = 18;

/// The guest's port and the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PortPair {
    pub guest: u32,
    pub host: u32,
}

/// Connection between a port of the guest and a socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    /// Ports, once the guest's port is known.
    pub ports: Option<PortPair>,
    stage: ConnectionStage,
    /// The connection is among those that may have something for the guest.
    pub queued: bool,
    /// A read may return bytes.
    readable: bool,
    /// The program has closed its end as a whole.
    hung_up: bool,
    /// The program has closed its direction to the guest.
    write_closed: bool,
    /// The program has closed its direction from the guest.
    read_closed: bool,
    /// Part of `write_closed` and `read_closed` that was reported to the guest, as flags of a SHUTDOWN.
    reported_closed: u32,
    /// Directions that the guest has closed, as flags of a SHUTDOWN.
    guest_closed: u32,
    /// The program's socket was shut down: nothing more comes from the guest.
    finished: bool,
    /// Bytes sent to the guest (`tx_cnt`).
    sent: u32,
    /// Size of the guest's buffer, by its last packet.
    guest_room: u32,
    /// Bytes that the guest has taken, by its last packet.
    guest_taken: u32,
    /// The guest was asked for room since its last packet.
    room_asked: bool,
    /// Bytes of the guest that wait for the program.
    outgoing: VecDeque<u8>,
    /// Bytes that the program has taken (`fwd_cnt`), and how many the guest knows of.
    taken: u32,
    /// Part of `taken` that was reported to the guest.
    reported_taken: u32,
    /// The guest has requested an update of `taken`.
    update: bool,
}

/// Stage of a connection.
#[derive(Debug)]
enum ConnectionStage {
    /// The program has not yet sent the whole greeting; these bytes of it have come.
    Greeting(Vec<u8>),
    /// The guest has to accept; `reported` is true once the request was sent.
    Requested { reported: bool },
    /// Both are connected; `reported` is true once the guest knows.
    Open { reported: bool },
    /// The guest's end is closed, but not all that it sent is written.
    Lingering,
}

/// Next packet of a connection for the guest.
#[derive(Debug)]
pub(super) enum NextPacket {
    Nothing,
    /// A packet without context ids.
    Packet(Header),
    /// The program requests a connection to this port.
    Connect(u32),
    /// The connection has ended, which must be reported to the guest.
    Reset,
    /// The connection has ended, and nothing must be reported.
    Over,
}

/// Effect of a packet of the guest on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketEffect {
    /// The connection continues.
    Open,
    /// The connection has ended; an RST reports that to the guest.
    Refused,
    /// The connection has ended, and the guest knows.
    Gone,
    /// The guest has closed the connection, which an RST confirms; [`Connection::linger`] does the rest.
    Closed,
}

impl Connection {
    /// Makes the connection of a program that has connected. The socket does not block.
    pub(super) fn from_program(socket: UnixStream) -> Self {
        Self {
            socket,
            ports: None,
            stage: ConnectionStage::Greeting(Vec::new()),
            queued: false,
            readable: true,
            hung_up: false,
            write_closed: false,
            read_closed: false,
            reported_closed: 0,
            guest_closed: 0,
            finished: false,
            sent: 0,
            guest_room: 0,
            guest_taken: 0,
            room_asked: false,
            outgoing: VecDeque::new(),
            taken: 0,
            reported_taken: 0,
            update: false,
        }
    }

    /// Makes the connection that the guest has requested with this packet. The socket does not block.
    pub(super) fn from_guest(socket: UnixStream, ports: PortPair, request: &Header) -> Self {
        let mut connection = Self::from_program(socket);
        connection.ports = Some(ports);
        connection.stage = ConnectionStage::Open { reported: false };
        connection.learn(request);
        connection
    }

    /// Gives it its ports: the guest is asked next.
    pub(super) fn ask(&mut self, ports: PortPair) {
        self.ports = Some(ports);
        self.stage = ConnectionStage::Requested { reported: false };
    }

    /// Closes the guest's end: only data that the guest sent before is still written.
    pub(super) fn linger(&mut self) {
        self.ports = None;
        self.stage = ConnectionStage::Lingering;
    }

    /// Returns true after [`Self::linger`].
    pub(super) fn lingers(&self) -> bool {
        matches!(self.stage, ConnectionStage::Lingering)
    }

    /// Records a change of the socket.
    pub(super) fn wake(&mut self, hung_up: bool) {
        self.readable = true;
        self.hung_up |= hung_up;
        self.flush();
    }

    /// Returns the next packet for the guest; its data is put into `into`.
    pub(super) fn next(&mut self, into: &mut [u8]) -> NextPacket {
        match &mut self.stage {
            ConnectionStage::Greeting(_) => self.greeting(),
            ConnectionStage::Requested { .. } if self.hung_up => NextPacket::Reset,
            ConnectionStage::Requested { reported } if !*reported => {
                *reported = true;
                self.packet(op::REQUEST, 0, 0)
            }
            ConnectionStage::Requested { .. } => NextPacket::Nothing,
            ConnectionStage::Open { reported } if !*reported => {
                *reported = true;
                self.packet(op::RESPONSE, 0, 0)
            }
            ConnectionStage::Open { .. } => self.next_of_open(into),
            ConnectionStage::Lingering if self.outgoing.is_empty() => NextPacket::Over,
            ConnectionStage::Lingering => NextPacket::Nothing,
        }
    }

    fn next_of_open(&mut self, into: &mut [u8]) -> NextPacket {
        if self.update || self.taken.wrapping_sub(self.reported_taken) >= REPORT_THRESHOLD {
            self.update = false;
            return self.packet(op::CREDIT_UPDATE, 0, 0);
        }
        match self.read(into) {
            0 => {}
            count => return self.packet(op::RW, 0, count),
        }
        if self.readable && !self.write_closed && self.credit() == 0 && !self.room_asked {
            self.room_asked = true;
            return self.packet(op::CREDIT_REQUEST, 0, 0);
        }
        let closed = self.closed();
        if closed & !self.reported_closed != 0 {
            self.reported_closed = closed;
            return self.packet(op::SHUTDOWN, closed, 0);
        }
        NextPacket::Nothing
    }

    fn packet(&mut self, op: u16, flags: u32, len: u32) -> NextPacket {
        self.reported_taken = self.taken;
        let Some(ports) = self.ports else { return NextPacket::Over };
        NextPacket::Packet(Header {
            src_port: ports.host,
            dst_port: ports.guest,
            len,
            kind: STREAM,
            op,
            flags,
            buf_alloc: ROOM,
            fwd_cnt: self.taken,
            ..Header::default()
        })
    }

    /// Returns the directions that the program has closed, as flags of a SHUTDOWN.
    fn closed(&self) -> u32 {
        let read_closed = self.read_closed || self.write_closed && self.hung_up;
        (if self.write_closed { NO_SEND } else { 0 }) | (if read_closed { NO_RECEIVE } else { 0 })
    }

    /// Returns the number of bytes that the guest has room for (5.10.6.3): 0 if it claims to have taken more
    /// than it got.
    fn credit(&self) -> u32 {
        self.guest_room.saturating_sub(self.sent.wrapping_sub(self.guest_taken))
    }

    /// Reads what the guest has room for; 0 where that is nothing.
    fn read(&mut self, into: &mut [u8]) -> u32 {
        let room = into.len().min(usize::try_from(self.credit()).unwrap_or(usize::MAX));
        while self.readable && !self.write_closed && room > 0 {
            match self.socket.read(&mut into[..room]) {
                Ok(count @ 1..) => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    self.sent = self.sent.wrapping_add(count);
                    return count;
                }
                Ok(0) => self.write_closed = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(_) => (self.write_closed, self.read_closed) = (true, true),
            }
        }
        0
    }

    /// Reads the program's first line, byte by byte: what follows it is the guest's.
    fn greeting(&mut self) -> NextPacket {
        let ConnectionStage::Greeting(line) = &mut self.stage else { return NextPacket::Nothing };
        let mut byte = [0];
        loop {
            match self.socket.read(&mut byte) {
                Ok(1) if byte == *b"\n" => {
                    return port_of(line).map_or(NextPacket::Over, NextPacket::Connect);
                }
                Ok(1) if line.len() < LONGEST_GREETING => line.extend(byte),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return NextPacket::Nothing,
                _ => return NextPacket::Over,
            }
        }
    }

    /// Takes a packet of the guest.
    pub(super) fn take(&mut self, header: &Header, data: &[u8]) -> PacketEffect {
        self.learn(header);
        let open = matches!(self.stage, ConnectionStage::Open { .. });
        match header.op {
            op::RST => return PacketEffect::Gone,
            op::RESPONSE if matches!(self.stage, ConnectionStage::Requested { reported: true }) => {
                return self.accepted();
            }
            op::RW if open => return self.take_data(data),
            op::CREDIT_UPDATE if open => {}
            op::CREDIT_REQUEST if open => self.update = true,
            op::SHUTDOWN if open => return self.close(header.flags),
            _ => return PacketEffect::Refused,
        }
        PacketEffect::Open
    }

    fn learn(&mut self, header: &Header) {
        (self.guest_room, self.guest_taken) = (header.buf_alloc, header.fwd_cnt);
        self.room_asked = false;
    }

    fn accepted(&mut self) -> PacketEffect {
        let Some(ports) = self.ports else { return PacketEffect::Refused };
        let line = format!("OK {}\n", ports.host);
        self.stage = ConnectionStage::Open { reported: true };
        // A socket on which nothing was sent yet has room for it, unless its other end is closed.
        match self.socket.write(line.as_bytes()) {
            Ok(count) if count == line.len() => PacketEffect::Open,
            _ => PacketEffect::Refused,
        }
    }

    fn take_data(&mut self, data: &[u8]) -> PacketEffect {
        // By what the guest can know at best.
        let under_way = self.outgoing.len() + self.taken.wrapping_sub(self.reported_taken) as usize;
        if under_way + data.len() > MOST_DATA || self.guest_closed & NO_SEND != 0 {
            return PacketEffect::Refused;
        }
        self.outgoing.extend(data);
        self.flush();
        PacketEffect::Open
    }

    fn close(&mut self, flags: u32) -> PacketEffect {
        self.guest_closed |= flags & (NO_RECEIVE | NO_SEND);
        if self.guest_closed == NO_RECEIVE | NO_SEND {
            return PacketEffect::Closed;
        }
        if self.guest_closed & NO_RECEIVE != 0 && !self.write_closed {
            self.write_closed = true;
            // It fails where the program has closed its end, and so knows.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        self.flush();
        PacketEffect::Open
    }

    /// Writes what waits for the program, as far as it takes it.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let written = if self.read_closed {
                Ok(self.outgoing.len())
            } else {
                self.socket.write(self.outgoing.as_slices().0)
            };
            match written {
                Ok(count) => {
                    self.outgoing.drain(..count);
                    self.taken = self.taken.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.read_closed = true,
            }
        }
        // Once: it is an event of the socket's own.
        if self.guest_closed & NO_SEND != 0 && !self.finished {
            self.finished = true;
            // It fails where the program has closed its end, and so knows.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }
}

/// Parses the port in `CONNECT <port>`.
fn port_of(line: &[u8]) -> Option<u32> {
    std::str::from_utf8(line).ok()?.strip_prefix("CONNECT ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_read() {
        assert_eq!(port_of(b"CONNECT 52"), Some(52));
        assert_eq!(port_of(b"CONNECT 4294967295"), Some(u32::MAX));
        for wrong in [
            "",
            "CONNECT",
            "CONNECT ",
            "CONNECT 4294967296",
            "CONNECT -1",
            "CONNECT 1 ",
            "OPEN 1",
            "CONNECT 1\r",
        ] {
            assert_eq!(port_of(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
