//! The connection to a stub: one command, one answer, and whether the machine runs.
//!
//! QEMU's stub stops the machine at whatever byte comes while it runs, serves what follows in the order in
//! which it came, and takes the `$` of a command for an acknowledgement: there a stop and all questions
//! travel together. With others each answer is waited for.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::GdbError;
use super::packet::{PacketDecoder, PacketError, frame, hex, unhex};

/// How long a connection may take, and a new stub its first answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long a stub may take for an answer: its process may be stopped by a signal for a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The same once everything is to end.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// How often a wait looks whether everything is to end, ms.
const LOOK_MS: i32 = 50;
/// What makes a running machine stop ("Debugging with GDB", E.9 Interrupts).
const INTERRUPT: u8 = 3;
/// Questions that are under way at once, at most.
const AT_ONCE: usize = 64;
/// Bytes of memory in one answer, at most; of a stub that says nothing about it the half of GDB's own
/// default.
const MEMORY_MOST: usize = 16 << 10;
const MEMORY_DEFAULT: usize = 512;
/// The stop that QEMU tells where it was asked for (`GDB_SIGNAL_INT`, gdbstub.c, 7.2), and where it stood
/// already.
const STOPPED_ASKED: &[u8] = b"T02";

/// Why there is no connection any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionError {
    /// The stub has closed it, or says that its machine has ended.
    Closed,
    /// It says nothing any more.
    Silent,
    /// What it says is no packet, or no answer.
    NoStub,
}

impl From<PacketError> for ConnectionError {
    fn from(_: PacketError) -> Self {
        Self::NoStub
    }
}

impl ConnectionError {
    pub(crate) fn error(self, address: &str) -> GdbError {
        let address = address.to_owned();
        match self {
            Self::Closed => GdbError::Closed { address },
            Self::Silent => GdbError::Silent { address, seconds: CONNECT_LIMIT.as_secs() },
            Self::NoStub => GdbError::NoStub { address },
        }
    }
}

/// What the machine does, as far as is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineState {
    Running,
    /// By this client.
    Stopped,
    /// By somebody else, who is to let it run on.
    Paused,
    /// It was let go: any byte would stop it again.
    Detached,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    decoder: PacketDecoder,
    state: MachineState,
    /// It is QEMU's.
    qemu: bool,
    /// Answers are to be acknowledged, and the last one was not yet.
    acknowledges: bool,
    owes: bool,
    limit: Duration,
    /// Everything is to end.
    hurry: Arc<AtomicBool>,
    /// Bytes of memory in one answer.
    chunk: usize,
    /// `m` reads physical memory, which is to be undone.
    physical: bool,
}

/// The addresses behind HOST:PORT; without a host this one.
pub(crate) fn resolve(address: &str) -> Result<Vec<SocketAddr>, GdbError> {
    let whole = if address.starts_with(':') { format!("localhost{address}") } else { address.to_owned() };
    let wrong = || GdbError::Address { address: address.to_owned() };
    let found: Vec<_> = whole.to_socket_addrs().map_err(|_| wrong())?.collect();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

impl Client {
    /// Connects to the first of the addresses that answers.
    pub(crate) fn connect(
        address: &str,
        to: &[SocketAddr],
        hurry: Arc<AtomicBool>,
    ) -> Result<Self, GdbError> {
        let address = || address.to_owned();
        let mut refused = GdbError::Address { address: address() };
        for to in to {
            let failed = match TcpStream::connect_timeout(to, CONNECT_LIMIT).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                Ok(stream)
            }) {
                Ok(stream) => return Ok(Self::from_stream(stream, hurry)),
                Err(failed) => failed,
            };
            refused = match failed.kind() {
                io::ErrorKind::ConnectionRefused => GdbError::Refused { address: address() },
                _ => GdbError::Unreachable { address: address(), source: failed },
            };
        }
        Err(refused)
    }

    fn from_stream(stream: TcpStream, hurry: Arc<AtomicBool>) -> Self {
        Self {
            stream,
            decoder: PacketDecoder::default(),
            state: MachineState::Stopped,
            qemu: false,
            acknowledges: true,
            owes: false,
            limit: CONNECT_LIMIT,
            hurry,
            chunk: MEMORY_DEFAULT,
            physical: false,
        }
    }

    /// Learns whom it talks to. True if the machine ran until now, as far as the stub tells.
    pub(crate) fn handshake(&mut self) -> Result<bool, ConnectionError> {
        self.send(&[], &[b"qSupported:xmlRegisters=i386".to_vec()])?;
        let mut ran = false;
        let supported = loop {
            let said = match self.receive_packet() {
                // Where others are served first, this one's turn comes when it is gone: nothing may be left
                // stopped then.
                Err(ConnectionError::Silent) => {
                    let mut bytes = vec![b'+'];
                    frame(b"D;1", &mut bytes);
                    let _gone = self.stream.write_all(&bytes);
                    return Err(ConnectionError::Silent);
                }
                said => said?,
            };
            match said.first() {
                Some(b'T' | b'S') => ran = true,
                _ => break said,
            }
        };
        let size = supported.split(|byte| *byte == b';').find_map(|word| word.strip_prefix(b"PacketSize="));
        let most = size.and_then(hex).and_then(|bytes| usize::try_from(bytes).ok());
        if self.ask(b"QStartNoAckMode")? == b"OK" {
            self.acknowledges = false;
        }
        self.qemu = matches!(self.ask(b"qqemu.PhyMemMode")?.as_slice(), b"0" | b"1");
        // Two digits a byte; QEMU counts these alone, others all of a packet.
        let frame_bytes = if self.qemu { 0 } else { 8 };
        self.chunk =
            most.map_or(MEMORY_DEFAULT, |most| (most.saturating_sub(frame_bytes) / 2).clamp(64, MEMORY_MOST));
        self.limit = ANSWER_LIMIT;
        Ok(ran || !self.qemu)
    }

    /// It is QEMU's stub.
    pub(crate) fn is_qemu(&self) -> bool {
        self.qemu
    }

    pub(crate) fn state(&self) -> MachineState {
        self.state
    }

    /// From now on `m` reads physical memory; false where it can't.
    pub(crate) fn read_physical_memory(&mut self) -> Result<bool, ConnectionError> {
        self.physical = self.qemu && self.ask(b"Qqemu.PhyMemMode:1")? == b"OK";
        Ok(self.physical)
    }

    /// One command, one answer.
    pub(crate) fn ask(&mut self, command: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        self.send(&[], &[command.to_vec()])?;
        self.receive_packet()
    }

    /// Several commands, all answers in their order.
    pub(crate) fn ask_all(&mut self, commands: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ConnectionError> {
        if !self.qemu {
            return commands.iter().map(|command| self.ask(command)).collect();
        }
        let mut answers = Vec::with_capacity(commands.len());
        for some in commands.chunks(AT_ONCE) {
            self.send(&[], some)?;
            for _ in some {
                answers.push(self.receive_packet()?);
            }
        }
        Ok(answers)
    }

    /// Stops the machine and asks; `None` where somebody else has paused it, and once it was let go.
    pub(crate) fn stop_and_ask(&mut self, commands: &[Vec<u8>]) -> Result<Option<Vec<Vec<u8>>>, ConnectionError> {
        self.read_unsolicited()?;
        match self.state {
            MachineState::Stopped => {}
            MachineState::Detached => return Ok(None),
            MachineState::Paused => {
                // Whatever comes while it runs stops it, and it says so.
                if !self.ask(b"?")?.starts_with(STOPPED_ASKED) || !self.qemu {
                    return Ok(None);
                }
                self.state = MachineState::Stopped;
            }
            MachineState::Running if self.qemu && commands.len() <= AT_ONCE => {
                self.send(&[INTERRUPT], commands)?;
                self.receive_stop()?;
                return commands.iter().map(|_| self.receive_packet()).collect::<Result<_, _>>().map(Some);
            }
            MachineState::Running => {
                self.send(&[INTERRUPT], &[])?;
                self.receive_stop()?;
            }
        }
        self.ask_all(commands).map(Some)
    }

    /// Lets a machine that was stopped here run on.
    pub(crate) fn resume(&mut self) -> Result<(), ConnectionError> {
        if self.state == MachineState::Stopped {
            self.send(&[], &[b"c".to_vec()])?;
            self.state = MachineState::Running;
        }
        Ok(())
    }

    /// Fills `into` from the physical address `at` while the machine stands; `None` where there is no memory.
    pub(crate) fn read_memory(&mut self, at: u64, into: &mut [u8]) -> Result<Option<()>, ConnectionError> {
        let mut commands = Vec::new();
        let mut next = at;
        for part in into.chunks(self.chunk) {
            commands.push(format!("m{next:x},{:x}", part.len()).into_bytes());
            let Some(after) = next.checked_add(u64::try_from(part.len()).unwrap_or(u64::MAX)) else {
                return Ok(None);
            };
            next = after;
        }
        let answers = self.ask_all(&commands)?;
        let parts = into.chunks_mut(self.chunk).zip(answers);
        Ok(parts.map(|(part, answer)| unhex(&answer, part)).collect())
    }

    /// Bytes that end everything here: the machine runs on, whether it is stopped or not.
    pub(crate) fn detach_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![INTERRUPT, b'+'];
        if self.physical {
            frame(b"Qqemu.PhyMemMode:0", &mut bytes);
        }
        frame(self.detach_command(), &mut bytes);
        bytes
    }

    /// QEMU wants a process' number if any debugger before has spoken of processes, and takes one otherwise.
    fn detach_command(&self) -> &'static [u8] {
        if self.qemu { b"D;1" } else { b"D" }
    }

    /// Lets the machine go, for good. One that somebody else has paused stays so.
    pub(crate) fn detach(&mut self) -> Result<(), ConnectionError> {
        self.limit = LAST_LIMIT;
        let left = self.do_detach();
        self.state = MachineState::Detached;
        left
    }

    fn do_detach(&mut self) -> Result<(), ConnectionError> {
        self.read_unsolicited()?;
        if self.state == MachineState::Running {
            self.send(&[INTERRUPT], &[])?;
            self.receive_stop()?;
        }
        if std::mem::take(&mut self.physical) {
            self.ask(b"Qqemu.PhyMemMode:0")?;
        }
        if self.state == MachineState::Stopped {
            self.ask(self.detach_command())?;
        }
        Ok(())
    }

    /// Another handle of the connection.
    pub(crate) fn handle(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// It was paused before this client came.
    pub(crate) fn set_paused(&mut self) {
        self.state = MachineState::Paused;
    }

    /// Takes in what the stub has said unasked.
    fn read_unsolicited(&mut self) -> Result<(), ConnectionError> {
        if self.state != MachineState::Running {
            return Ok(());
        }
        loop {
            if let Some(said) = self.decoder.next_packet()? {
                self.owes = true;
                if stopped(&said)? {
                    self.state = MachineState::Paused;
                }
                continue;
            }
            if !self.receive(libc::MSG_DONTWAIT)? {
                return Ok(());
            }
        }
    }

    /// Waits for the machine to stop.
    fn receive_stop(&mut self) -> Result<(), ConnectionError> {
        while !stopped(&self.receive_packet()?)? {}
        self.state = MachineState::Stopped;
        Ok(())
    }

    fn send(&mut self, before: &[u8], commands: &[Vec<u8>]) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.owes) && self.acknowledges {
            bytes.push(b'+');
        }
        bytes.extend_from_slice(before);
        commands.iter().for_each(|command| frame(command, &mut bytes));
        self.stream.write_all(&bytes).map_err(|_| ConnectionError::Closed)
    }

    /// The next packet.
    fn receive_packet(&mut self) -> Result<Vec<u8>, ConnectionError> {
        let begin = Instant::now();
        loop {
            if let Some(said) = self.decoder.next_packet()? {
                self.owes = true;
                return Ok(said);
            }
            let limit =
                if self.hurry.load(Ordering::Acquire) { LAST_LIMIT.min(self.limit) } else { self.limit };
            if begin.elapsed() >= limit {
                return Err(ConnectionError::Silent);
            }
            let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            if unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) } > 0 {
                self.receive(libc::MSG_DONTWAIT)?;
            }
        }
    }

    /// Takes in what has come; false where nothing has.
    fn receive(&mut self, flags: libc::c_int) -> Result<bool, ConnectionError> {
        let mut bytes = [0_u8; 16 << 10];
        // SAFETY: `bytes` is writable for its length, and lives through the call.
        let count =
            unsafe { libc::recv(self.stream.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
        match usize::try_from(count) {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(count) => {
                self.decoder.feed(bytes.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(ConnectionError::Closed),
            },
        }
    }
}

/// Whether a packet that comes unasked says that the machine has stopped; output of the guest does not.
fn stopped(said: &[u8]) -> Result<bool, ConnectionError> {
    match said.first() {
        Some(b'T' | b'S') => Ok(true),
        Some(b'O') => Ok(false),
        Some(b'W' | b'X') => Err(ConnectionError::Closed),
        _ => Err(ConnectionError::NoStub),
    }
}
