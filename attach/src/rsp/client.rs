//! Connection to a stub: commands and their answers, and the state of the machine.
//!
//! QEMU's stub stops the machine at any byte that comes while the machine runs, and takes the `$` of a
//! command for an acknowledgement. It serves what follows in order. So with QEMU a stop and all questions
//! travel together; with other stubs each answer is awaited.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::packet::{PacketDecoder, PacketError, frame, hex, unhex};
use crate::error::GdbError;
use crate::guard::StopSlot;

/// Time limit of a connection, and of a new stub's first answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Time limit of an answer: the stub's process may be stopped by a signal for a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of an answer once everything is to end.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// Interval at which a wait checks whether everything is to end, ms.
const CHECK_MS: i32 = 50;
/// Thread of a record of a stop, which a stub does not show.
const HELD: i32 = 1;
/// Byte that stops a running machine ("Debugging with GDB", E.9 Interrupts).
const INTERRUPT: u8 = 3;
/// Maximum number of questions without an answer.
const PIPELINED: usize = 64;
/// Maximum size of memory in one answer, bytes.
const MEMORY_MOST: usize = 16 << 10;
/// Size of memory in one answer if the stub reports no packet size, bytes: half of GDB's own default.
const MEMORY_DEFAULT: usize = 512;
/// Stop that QEMU reports if it was requested, or if the machine was stopped already (`GDB_SIGNAL_INT`,
/// gdbstub.c, 7.2).
const STOPPED_BY_CLIENT: &[u8] = b"T02";

/// Reason why the connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionError {
    /// The stub has closed the connection, or reports that its machine has ended.
    Closed,
    /// The stub no longer answers.
    Silent,
    /// The peer sends something other than a packet or an answer.
    NoStub,
}

impl From<PacketError> for ConnectionError {
    fn from(_: PacketError) -> Self {
        Self::NoStub
    }
}

impl ConnectionError {
    /// Converts the reason to the error of a first connection to `address`.
    pub(crate) fn error(self, address: &str) -> GdbError {
        let address = address.to_owned();
        match self {
            Self::Closed => GdbError::Closed { address },
            Self::Silent => GdbError::Silent { address, seconds: CONNECT_LIMIT.as_secs() },
            Self::NoStub => GdbError::NoStub { address },
        }
    }
}

/// State of the machine, as far as the client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineState {
    Running,
    /// Stopped by this client.
    Stopped,
    /// Paused by something else, which has to resume it.
    Paused,
    /// The client has detached: any byte would stop the machine again.
    Detached,
}

/// Socket of a stub.
#[derive(Debug)]
enum StubStream {
    Tcp(TcpStream),
    /// One end of a pair, of which the stub has the other.
    Pair(UnixStream),
}

impl StubStream {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Pair(stream) => stream.write_all(bytes),
        }
    }

    fn handle(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(OwnedFd::from),
            Self::Pair(stream) => stream.try_clone().map(OwnedFd::from),
        }
    }
}

impl AsRawFd for StubStream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Pair(stream) => stream.as_raw_fd(),
        }
    }
}

/// Connection to a stub.
#[derive(Debug)]
pub(crate) struct StubClient {
    stream: StubStream,
    decoder: PacketDecoder,
    state: MachineState,
    /// The stub is QEMU's.
    qemu: bool,
    /// Answers have to be acknowledged.
    acknowledges: bool,
    /// The last answer has not been acknowledged yet.
    owes_acknowledgement: bool,
    limit: Duration,
    /// Everything is to end.
    hurry: Arc<AtomicBool>,
    /// Record of stops, for the guard.
    slot: StopSlot,
    /// Size of memory in one answer, bytes.
    chunk: usize,
    /// `m` reads physical memory, which must be undone.
    physical: bool,
}

/// Resolves HOST:PORT; without a host it is this machine.
///
/// # Errors
/// The address has no host or no port, or the host is unknown.
pub(crate) fn resolve(address: &str) -> Result<Vec<SocketAddr>, GdbError> {
    let whole = if address.starts_with(':') { format!("localhost{address}") } else { address.to_owned() };
    let wrong = || GdbError::Address { address: address.to_owned() };
    let found: Vec<_> = whole.to_socket_addrs().map_err(|_| wrong())?.collect();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

impl StubClient {
    /// Connects to the first of the addresses that accepts.
    pub(crate) fn connect(
        address: &str,
        to: &[SocketAddr],
        hurry: Arc<AtomicBool>,
        slot: StopSlot,
    ) -> Result<Self, GdbError> {
        let address = || address.to_owned();
        let mut refused = GdbError::Address { address: address() };
        for to in to {
            let failed = match TcpStream::connect_timeout(to, CONNECT_LIMIT).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                Ok(stream)
            }) {
                Ok(stream) => return Ok(Self::new(StubStream::Tcp(stream), CONNECT_LIMIT, hurry, slot)),
                Err(failed) => failed,
            };
            refused = match failed.kind() {
                io::ErrorKind::ConnectionRefused => GdbError::Refused { address: address() },
                _ => GdbError::Unreachable { address: address(), source: failed },
            };
        }
        Err(refused)
    }

    /// Takes one end of a pair of sockets, of which a stub that is being started has the other.
    ///
    /// # Errors
    /// The socket refuses a time limit.
    pub(crate) fn from_pair(stream: UnixStream, hurry: Arc<AtomicBool>, slot: StopSlot) -> io::Result<Self> {
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self::new(StubStream::Pair(stream), ANSWER_LIMIT, hurry, slot))
    }

    fn new(stream: StubStream, limit: Duration, hurry: Arc<AtomicBool>, slot: StopSlot) -> Self {
        // QEMU stops its machine for a new client.
        slot.begin(HELD);
        Self {
            stream,
            decoder: PacketDecoder::default(),
            state: MachineState::Stopped,
            qemu: false,
            acknowledges: true,
            owes_acknowledgement: false,
            limit,
            hurry,
            slot,
            chunk: MEMORY_DEFAULT,
            physical: false,
        }
    }

    /// Determines the stub's kind and features. Returns true if the machine ran until now, as far as the stub
    /// reports it.
    pub(crate) fn handshake(&mut self) -> Result<bool, ConnectionError> {
        self.send(&[], &[b"qSupported:xmlRegisters=i386".to_vec()])?;
        let mut ran = false;
        let supported = loop {
            let packet = match self.receive_packet() {
                // The stub may serve another debugger first, and this client after it has gone. The machine
                // must not be left stopped then.
                Err(ConnectionError::Silent) => {
                    let mut bytes = vec![b'+'];
                    frame(b"D;1", &mut bytes);
                    let _gone = self.stream.write_all(&bytes);
                    return Err(ConnectionError::Silent);
                }
                packet => packet?,
            };
            match packet.first() {
                Some(b'T' | b'S') => ran = true,
                _ => break packet,
            }
        };
        let size = supported.split(|byte| *byte == b';').find_map(|word| word.strip_prefix(b"PacketSize="));
        let most = size.and_then(hex).and_then(|bytes| usize::try_from(bytes).ok());
        if self.ask(b"QStartNoAckMode")? == b"OK" {
            self.acknowledges = false;
        }
        self.qemu = matches!(self.ask(b"qqemu.PhyMemMode")?.as_slice(), b"0" | b"1");
        // Two digits a byte. QEMU counts these alone, other stubs the whole packet.
        let frame_bytes = if self.qemu { 0 } else { 8 };
        self.chunk =
            most.map_or(MEMORY_DEFAULT, |most| (most.saturating_sub(frame_bytes) / 2).clamp(64, MEMORY_MOST));
        self.limit = ANSWER_LIMIT;
        Ok(ran || !self.qemu)
    }

    /// Returns the flag that ends waits for the stub.
    pub(crate) fn hurry(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.hurry)
    }

    /// Returns true if the stub is QEMU's.
    pub(crate) fn is_qemu(&self) -> bool {
        self.qemu
    }

    pub(crate) fn state(&self) -> MachineState {
        self.state
    }

    /// Switches `m` to physical memory; returns false if the stub cannot do that.
    pub(crate) fn read_physical_memory(&mut self) -> Result<bool, ConnectionError> {
        self.physical = self.qemu && self.ask(b"Qqemu.PhyMemMode:1")? == b"OK";
        Ok(self.physical)
    }

    /// Sends one command; returns its answer.
    pub(crate) fn ask(&mut self, command: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        self.send(&[], &[command.to_vec()])?;
        self.receive_packet()
    }

    /// Sends several commands; returns all answers, in order.
    pub(crate) fn ask_all(&mut self, commands: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ConnectionError> {
        if !self.qemu {
            return commands.iter().map(|command| self.ask(command)).collect();
        }
        let mut answers = Vec::with_capacity(commands.len());
        for some in commands.chunks(PIPELINED) {
            self.send(&[], some)?;
            for _ in some {
                answers.push(self.receive_packet()?);
            }
        }
        Ok(answers)
    }

    /// Stops the machine and sends commands. Returns `None` if something else has paused the machine, after
    /// detaching, and if this process is about to be stopped.
    pub(crate) fn stop_and_ask(
        &mut self,
        commands: &[Vec<u8>],
    ) -> Result<Option<Vec<Vec<u8>>>, ConnectionError> {
        self.read_unsolicited()?;
        if self.state == MachineState::Running && !self.slot.begin(HELD) {
            return Ok(None);
        }
        let answers = self.stop_and_ask_recorded(commands);
        // Nothing ends a stop after the connection is lost, and one that something else has made is not this
        // client's to end.
        if !matches!(&answers, Ok(Some(_))) {
            self.slot.end();
        }
        answers
    }

    fn stop_and_ask_recorded(
        &mut self,
        commands: &[Vec<u8>],
    ) -> Result<Option<Vec<Vec<u8>>>, ConnectionError> {
        match self.state {
            MachineState::Stopped => {}
            MachineState::Detached => return Ok(None),
            MachineState::Paused => {
                // QEMU stops at any byte that comes while the machine runs, and reports it.
                if !self.ask(b"?")?.starts_with(STOPPED_BY_CLIENT) || !self.qemu {
                    return Ok(None);
                }
                self.state = MachineState::Stopped;
                self.slot.begin(HELD);
            }
            MachineState::Running if self.qemu && commands.len() <= PIPELINED => {
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

    /// Resumes a machine that this client has stopped.
    pub(crate) fn resume(&mut self) -> Result<(), ConnectionError> {
        if self.state == MachineState::Stopped {
            let sent = self.send(&[], &[b"c".to_vec()]);
            self.slot.end();
            sent?;
            self.state = MachineState::Running;
        }
        Ok(())
    }

    /// Fills `into` from the physical address `at` while the machine is stopped; `None` where there is no
    /// memory.
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

    /// Returns bytes that end the connection and resume the machine, whether it is stopped or not.
    pub(crate) fn detach_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![INTERRUPT, b'+'];
        if self.physical {
            frame(b"Qqemu.PhyMemMode:0", &mut bytes);
        }
        frame(self.detach_command(), &mut bytes);
        bytes
    }

    /// Returns the command to detach. QEMU wants a process's number if any earlier debugger used processes,
    /// and accepts one otherwise.
    fn detach_command(&self) -> &'static [u8] {
        if self.qemu { b"D;1" } else { b"D" }
    }

    /// Detaches for good, which resumes the machine. A machine that something else has paused stays paused.
    pub(crate) fn detach(&mut self) -> Result<(), ConnectionError> {
        self.limit = LAST_LIMIT;
        let result = self.try_detach();
        self.slot.end();
        self.state = MachineState::Detached;
        result
    }

    fn try_detach(&mut self) -> Result<(), ConnectionError> {
        self.read_unsolicited()?;
        if self.state == MachineState::Running {
            while !self.slot.begin(HELD) {
                self.slot.wait(|| true);
            }
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

    /// Returns another handle of the connection.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.stream.handle()
    }

    /// Records that the machine was paused before this client connected.
    pub(crate) fn set_paused(&mut self) {
        self.slot.end();
        self.state = MachineState::Paused;
    }

    /// Processes packets that the stub has sent without being asked.
    fn read_unsolicited(&mut self) -> Result<(), ConnectionError> {
        if self.state != MachineState::Running {
            return Ok(());
        }
        loop {
            if let Some(packet) = self.decoder.next_packet()? {
                self.owes_acknowledgement = true;
                if is_stop(&packet)? {
                    self.state = MachineState::Paused;
                }
                continue;
            }
            if !self.read_available(libc::MSG_DONTWAIT)? {
                return Ok(());
            }
        }
    }

    /// Waits until the machine has stopped.
    fn receive_stop(&mut self) -> Result<(), ConnectionError> {
        while !is_stop(&self.receive_packet()?)? {}
        self.state = MachineState::Stopped;
        Ok(())
    }

    fn send(&mut self, before: &[u8], commands: &[Vec<u8>]) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.owes_acknowledgement) && self.acknowledges {
            bytes.push(b'+');
        }
        bytes.extend_from_slice(before);
        commands.iter().for_each(|command| frame(command, &mut bytes));
        self.stream.write_all(&bytes).map_err(|_| ConnectionError::Closed)
    }

    /// Waits for the next packet.
    fn receive_packet(&mut self) -> Result<Vec<u8>, ConnectionError> {
        let begin = Instant::now();
        loop {
            if let Some(packet) = self.decoder.next_packet()? {
                self.owes_acknowledgement = true;
                return Ok(packet);
            }
            let limit =
                if self.hurry.load(Ordering::Acquire) { LAST_LIMIT.min(self.limit) } else { self.limit };
            // The guard must not end this process because it waits for the stub.
            self.slot.beat();
            if begin.elapsed() >= limit {
                return Err(ConnectionError::Silent);
            }
            let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            if unsafe { libc::poll(&raw mut poll, 1, CHECK_MS) } > 0 {
                self.read_available(libc::MSG_DONTWAIT)?;
            }
        }
    }

    /// Reads available bytes; returns false if there are none.
    fn read_available(&mut self, flags: libc::c_int) -> Result<bool, ConnectionError> {
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

/// Returns true if an unsolicited packet reports that the machine has stopped; output of the guest does not.
fn is_stop(packet: &[u8]) -> Result<bool, ConnectionError> {
    match packet.first() {
        Some(b'T' | b'S') => Ok(true),
        Some(b'O') => Ok(false),
        Some(b'W' | b'X') => Err(ConnectionError::Closed),
        _ => Err(ConnectionError::NoStub),
    }
}
