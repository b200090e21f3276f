//! One connection between a port of the guest and a Unix socket.
//!
//! ```text
//! host's program connects:  Greeting ── CONNECT P ──> Asked ── RESPONSE ──> Open
//! guest connects:           ── REQUEST ──────────────────────────────────> Open
//! guest closes:             Open ── SHUTDOWN of both directions ──> Lingering, until all is written
//! ```

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::packet::{Header, MOST_DATA, NO_RECEIVE, NO_SEND, ROOM, STREAM, op};

/// So many bytes are free again when the guest is told without being asked.
const WORTH_TELLING: u32 = ROOM / 4;
/// The longest greeting, `CONNECT 4294967295`, without its end of line.
const LONGEST_GREETING: usize = 18;

/// The guest's port and the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub guest: u32,
    pub host: u32,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    /// Once it is known which the guest's is.
    pub ports: Option<Ports>,
    stage: Stage,
    /// It is among those that may have something for the guest.
    pub queued: bool,
    /// Reading may give something.
    readable: bool,
    /// The program has closed its end as a whole.
    hung_up: bool,
    /// The program sends no more.
    ended: bool,
    /// The program takes no more.
    deaf: bool,
    /// Of `ended` and `deaf`, as flags of a SHUTDOWN, what the guest knows.
    told_closed: u32,
    /// What the guest has closed, as flags of a SHUTDOWN.
    guest_closed: u32,
    /// The program knows that nothing more comes.
    finished: bool,
    /// Bytes sent to the guest (`tx_cnt`), and what its last packet said of its room.
    sent: u32,
    guest_room: u32,
    guest_taken: u32,
    /// The guest was asked for room since.
    room_asked: bool,
    /// Bytes of the guest that wait for the program.
    outgoing: VecDeque<u8>,
    /// Bytes that the program has taken (`fwd_cnt`), and how many the guest knows of.
    taken: u32,
    told_taken: u32,
    /// The guest wants to know.
    update: bool,
}

#[derive(Debug)]
enum Stage {
    /// The program has yet to say which port it wants; this it has said.
    Greeting(Vec<u8>),
    /// The guest is asked, or is to be.
    Asked { told: bool },
    /// Both are connected; the guest knows of it, or is to be told.
    Open { told: bool },
    /// The guest knows it no more, but not all that it sent is written.
    Lingering,
}

/// What a connection has for the guest.
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// A packet without context ids.
    Packet(Header),
    /// The program wants to be connected to this port.
    Wants(u32),
    /// It is over, and the guest has to know.
    Reset,
    /// It is over, and nobody has to know.
    Over,
}

/// What a packet of the guest made of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    GoesOn,
    /// It is over; the guest is told by an RST.
    Refused,
    /// It is over, and the guest knows.
    Gone,
    /// The guest has closed it, which an RST confirms; [`Connection::linger`] for the rest.
    Closed,
}

impl Connection {
    /// A program has connected. The socket does not block.
    pub(super) fn of_program(socket: UnixStream) -> Self {
        Self {
            socket,
            ports: None,
            stage: Stage::Greeting(Vec::new()),
            queued: false,
            readable: true,
            hung_up: false,
            ended: false,
            deaf: false,
            told_closed: 0,
            guest_closed: 0,
            finished: false,
            sent: 0,
            guest_room: 0,
            guest_taken: 0,
            room_asked: false,
            outgoing: VecDeque::new(),
            taken: 0,
            told_taken: 0,
            update: false,
        }
    }

    /// The guest has connected, by this packet. The socket does not block.
    pub(super) fn of_guest(socket: UnixStream, ports: Ports, request: &Header) -> Self {
        let mut connection = Self::of_program(socket);
        connection.ports = Some(ports);
        connection.stage = Stage::Open { told: false };
        connection.learn(request);
        connection
    }

    /// Gives it its ports: the guest is asked next.
    pub(super) fn ask(&mut self, ports: Ports) {
        self.ports = Some(ports);
        self.stage = Stage::Asked { told: false };
    }

    /// The guest knows it no more: only what it sent before is still written.
    pub(super) fn linger(&mut self) {
        self.ports = None;
        self.stage = Stage::Lingering;
    }

    /// See [`Self::linger`].
    pub(super) fn lingers(&self) -> bool {
        matches!(self.stage, Stage::Lingering)
    }

    /// Something happened to the socket.
    pub(super) fn wake(&mut self, hung_up: bool) {
        self.readable = true;
        self.hung_up |= hung_up;
        self.flush();
    }

    /// What is to be told to the guest next; data is put into `into`.
    pub(super) fn next(&mut self, into: &mut [u8]) -> Next {
        match &mut self.stage {
            Stage::Greeting(_) => self.greeting(),
            Stage::Asked { .. } if self.hung_up => Next::Reset,
            Stage::Asked { told } if !*told => {
                *told = true;
                self.packet(op::REQUEST, 0, 0)
            }
            Stage::Asked { .. } => Next::Nothing,
            Stage::Open { told } if !*told => {
                *told = true;
                self.packet(op::RESPONSE, 0, 0)
            }
            Stage::Open { .. } => self.next_of_open(into),
            Stage::Lingering if self.outgoing.is_empty() => Next::Over,
            Stage::Lingering => Next::Nothing,
        }
    }

    fn next_of_open(&mut self, into: &mut [u8]) -> Next {
        if self.update || self.taken.wrapping_sub(self.told_taken) >= WORTH_TELLING {
            self.update = false;
            return self.packet(op::CREDIT_UPDATE, 0, 0);
        }
        match self.read(into) {
            0 => {}
            count => return self.packet(op::RW, 0, count),
        }
        if self.readable && !self.ended && self.credit() == 0 && !self.room_asked {
            self.room_asked = true;
            return self.packet(op::CREDIT_REQUEST, 0, 0);
        }
        let closed = self.closed();
        if closed & !self.told_closed != 0 {
            self.told_closed = closed;
            return self.packet(op::SHUTDOWN, closed, 0);
        }
        Next::Nothing
    }

    fn packet(&mut self, op: u16, flags: u32, len: u32) -> Next {
        self.told_taken = self.taken;
        let Some(ports) = self.ports else { return Next::Over };
        Next::Packet(Header {
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

    /// What the program has closed, as flags of a SHUTDOWN.
    fn closed(&self) -> u32 {
        let deaf = self.deaf || self.ended && self.hung_up;
        (if self.ended { NO_SEND } else { 0 }) | (if deaf { NO_RECEIVE } else { 0 })
    }

    /// Bytes that the guest has room for (5.10.6.3). A guest that says it took more than it got has none.
    fn credit(&self) -> u32 {
        self.guest_room.saturating_sub(self.sent.wrapping_sub(self.guest_taken))
    }

    /// Reads what the guest has room for; 0 where that is nothing.
    fn read(&mut self, into: &mut [u8]) -> u32 {
        let room = into.len().min(usize::try_from(self.credit()).unwrap_or(usize::MAX));
        while self.readable && !self.ended && room > 0 {
            match self.socket.read(&mut into[..room]) {
                Ok(count @ 1..) => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    self.sent = self.sent.wrapping_add(count);
                    return count;
                }
                Ok(0) => self.ended = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(_) => (self.ended, self.deaf) = (true, true),
            }
        }
        0
    }

    /// Reads the program's first line, byte by byte: what follows it is the guest's.
    fn greeting(&mut self) -> Next {
        let Stage::Greeting(line) = &mut self.stage else { return Next::Nothing };
        let mut byte = [0];
        loop {
            match self.socket.read(&mut byte) {
                Ok(1) if byte == *b"\n" => return port_of(line).map_or(Next::Over, Next::Wants),
                Ok(1) if line.len() < LONGEST_GREETING => line.extend(byte),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Nothing,
                _ => return Next::Over,
            }
        }
    }

    /// Takes a packet of the guest.
    pub(super) fn take(&mut self, header: &Header, data: &[u8]) -> Verdict {
        self.learn(header);
        let open = matches!(self.stage, Stage::Open { .. });
        match header.op {
            op::RST => return Verdict::Gone,
            op::RESPONSE if matches!(self.stage, Stage::Asked { told: true }) => return self.accepted(),
            op::RW if open => return self.take_data(data),
            op::CREDIT_UPDATE if open => {}
            op::CREDIT_REQUEST if open => self.update = true,
            op::SHUTDOWN if open => return self.close(header.flags),
            _ => return Verdict::Refused,
        }
        Verdict::GoesOn
    }

    fn learn(&mut self, header: &Header) {
        (self.guest_room, self.guest_taken) = (header.buf_alloc, header.fwd_cnt);
        self.room_asked = false;
    }

    fn accepted(&mut self) -> Verdict {
        let Some(ports) = self.ports else { return Verdict::Refused };
        let line = format!("OK {}\n", ports.host);
        self.stage = Stage::Open { told: true };
        // A socket on which nothing was sent yet has room for it, unless its other end is closed.
        match self.socket.write(line.as_bytes()) {
            Ok(count) if count == line.len() => Verdict::GoesOn,
            _ => Verdict::Refused,
        }
    }

    fn take_data(&mut self, data: &[u8]) -> Verdict {
        // By what the guest can know at best.
        let under_way = self.outgoing.len() + self.taken.wrapping_sub(self.told_taken) as usize;
        if under_way + data.len() > MOST_DATA || self.guest_closed & NO_SEND != 0 {
            return Verdict::Refused;
        }
        self.outgoing.extend(data);
        self.flush();
        Verdict::GoesOn
    }

    fn close(&mut self, flags: u32) -> Verdict {
        self.guest_closed |= flags & (NO_RECEIVE | NO_SEND);
        if self.guest_closed == NO_RECEIVE | NO_SEND {
            return Verdict::Closed;
        }
        if self.guest_closed & NO_RECEIVE != 0 && !self.ended {
            self.ended = true;
            // It fails where the program has closed its end, and so knows.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        self.flush();
        Verdict::GoesOn
    }

    /// Writes what waits for the program, as far as it takes it.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let written = if self.deaf {
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
                Err(_) => self.deaf = true,
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

/// The port in `CONNECT <port>`.
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
