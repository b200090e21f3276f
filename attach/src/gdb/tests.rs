//! Tests with a stub that behaves as QEMU's, on a socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use guest_linux::{PhysAddr, PhysicalMemory};
use testkit::eventually;
use vmm::{Activity, AttachedThread, MissReason, Observer, Tick, monotonic_ns};

use super::description::tests::TARGET;
use super::x86::tests::{answer, core};
use super::{ConnectedStub, GdbTarget};
use crate::attachment::Attachment;
use crate::error::AttachError;
use crate::lock::tests::alone;
use crate::memory::{AttachedMemory, StopMemory};
use crate::rsp::packet::{PacketDecoder, frame};
use crate::shared::AttachmentEnd;

/// Time limit of what must happen.
const SOON: Duration = Duration::from_secs(20);

/// Behaviour of the stub.
#[derive(Debug, Clone)]
struct StubBehavior {
    /// `target.xml`.
    target: String,
    /// The machine is paused before a client connects.
    paused: bool,
    /// Number of the stop at which the stub closes the connection.
    closes_at: usize,
}

impl Default for StubBehavior {
    fn default() -> Self {
        Self { target: TARGET.to_owned(), paused: false, closes_at: usize::MAX }
    }
}

/// Requests that the stub received, and the state of the machine.
#[derive(Debug, Default)]
struct StubRecord {
    running: bool,
    stops: usize,
    listed: bool,
    detached: bool,
    virtual_again: bool,
}

/// A stub. One test at a time holds the lock of this process.
struct Stub {
    _alone: MutexGuard<'static, ()>,
    seen: Arc<Mutex<StubRecord>>,
    address: String,
    thread: JoinHandle<()>,
}

/// Returns byte `at` of the machine's memory.
fn byte(at: u64) -> u8 {
    u8::try_from(at % 251).unwrap()
}

fn reply(manner: &StubBehavior, seen: &mut StubRecord, command: &str) -> Option<String> {
    let file = |text: &str, from: &str| {
        let offset = usize::from_str_radix(from.split(',').next().unwrap(), 16).unwrap();
        format!("l{}", &text[offset..])
    };
    Some(match command {
        _ if command.starts_with("qSupported") => "PacketSize=1000;qXfer:features:read+".to_owned(),
        "qqemu.PhyMemMode" => "0".to_owned(),
        "Qqemu.PhyMemMode:1" => "OK".to_owned(),
        "Qqemu.PhyMemMode:0" => {
            seen.virtual_again = true;
            "OK".to_owned()
        }
        "qfThreadInfo" => "m01".to_owned(),
        "qsThreadInfo" => ["m02", "l"][usize::from(std::mem::replace(&mut seen.listed, true))].to_owned(),
        // CPU#0 [running], CPU#1 [halted ]
        "qThreadExtraInfo,01" => "4350552330205b72756e6e696e675d".to_owned(),
        "qThreadExtraInfo,02" => "4350552331205b68616c746564205d".to_owned(),
        "Hg01" | "Hg02" => "OK".to_owned(),
        "g" => answer(0xffff_ffff_8100_0000, 0x10, 0x5000),
        "c" => {
            seen.running = true;
            return None;
        }
        "D;1" => {
            (seen.detached, seen.running) = (true, true);
            "OK".to_owned()
        }
        _ => match (command.strip_prefix("qXfer:features:read:"), command.strip_prefix('m')) {
            (Some(name), _) => match name.split_once(':').unwrap() {
                ("target.xml", from) => file(&manner.target, from),
                (_, from) => file(&core(), from),
            },
            (_, Some(range)) => {
                let (at, length) = range.split_once(',').unwrap();
                let number = |text| u64::from_str_radix(text, 16).unwrap();
                let bytes = number(at)..number(at) + number(length);
                if bytes.end > 1 << 20 {
                    "E14".to_owned()
                } else {
                    bytes.map(|at| format!("{:02x}", byte(at))).collect()
                }
            }
            _ => String::new(),
        },
    })
}

fn serve(mut stream: TcpStream, manner: &StubBehavior, seen: &Mutex<StubRecord>) {
    let mut decoder = PacketDecoder::default();
    let say = |stream: &mut TcpStream, text: &str| {
        let mut bytes = Vec::new();
        frame(text.as_bytes(), &mut bytes);
        stream.write_all(&bytes)
    };
    if !manner.paused {
        say(&mut stream, "T02thread:01;").unwrap();
    }
    let mut bytes = [0; 4096];
    loop {
        let Ok(count @ 1..) = stream.read(&mut bytes) else { return };
        // One by one: the byte that stops the machine may come together with the command that resumed it.
        for byte in &bytes[..count] {
            let mut seen = seen.lock().unwrap();
            if seen.running {
                seen.running = false;
                seen.stops += 1;
                if seen.stops >= manner.closes_at {
                    return;
                }
                say(&mut stream, "T02thread:01;").unwrap();
                continue;
            }
            decoder.feed(&[*byte]);
            while let Some(command) = decoder.next_packet().unwrap() {
                let said = reply(manner, &mut seen, std::str::from_utf8(&command).unwrap());
                if said.is_some_and(|said| say(&mut stream, &said).is_err()) {
                    return;
                }
            }
        }
    }
}

impl Stub {
    fn start(manner: StubBehavior) -> Self {
        let alone = alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(StubRecord::default()));
        let shared = Arc::clone(&seen);
        let thread = thread::spawn(move || serve(listener.accept().unwrap().0, &manner, &shared));
        Self { _alone: alone, seen, address, thread }
    }

    fn connect(&self) -> Result<GdbTarget, AttachError> {
        connect(&self.address)
    }

    fn end(self) -> StubRecord {
        self.thread.join().unwrap();
        Arc::into_inner(self.seen).unwrap().into_inner().unwrap()
    }
}

fn connect(address: &str) -> Result<GdbTarget, AttachError> {
    ConnectedStub::connect(address, None)?.describe(4)
}

#[derive(Debug, Default)]
struct Counts {
    leads: bool,
    ticks: usize,
    halted: usize,
    read: usize,
    suspended_ns: u64,
}

impl Observer<StopMemory> for Counts {
    fn attached(&mut self, thread: Option<AttachedThread>) {
        assert!(thread.is_none());
    }

    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        assert_eq!((tick.regs.rip, tick.sregs.cr3), (0xffff_ffff_8100_0000, 0x5000));
        let mut some = [0; 8];
        let expected = std::array::from_fn(|index| byte(0x1_0ffc + index as u64));
        self.read +=
            usize::from(tick.memory.read(PhysAddr(0x1_0ffc), &mut some).is_some() && some == expected);
        self.halted += usize::from(tick.activity() == Some(Activity::Halted));
        self.ticks += 1;
        // Only the first observer's clock counts.
        Some(Duration::from_millis(if self.leads { 1 } else { 10_000 }))
    }

    fn missed(&mut self, why: MissReason, _: u64, _: u64) -> Option<Duration> {
        panic!("{why:?}");
    }

    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        self.suspended_ns += to_ns - from_ns;
    }
}

fn observer(vcpu: usize) -> Counts {
    Counts { leads: vcpu == 0, ..Counts::default() }
}

#[test]
fn every_stop_is_a_sample_of_each_vcpu_and_the_machine_runs_in_the_end() {
    let stub = Stub::start(StubBehavior::default());
    let mut target = stub.connect().unwrap();
    assert_eq!(target.vcpus(), 2);
    assert!(target.process().is_none(), "this process is not QEMU");
    // The machine runs again after the queries.
    eventually("running machine", SOON, || stub.seen.lock().unwrap().running.then_some(()));
    target.prove(Duration::from_millis(500));
    assert!(target.rate_limit().is_some_and(|limit| limit.hz() > 1.0));
    let begin_ns = monotonic_ns();
    let attached = Attachment::start_by_gdb(target, observer).unwrap();
    let AttachedMemory::Stub(memory) = attached.memory().clone() else { panic!("no QEMU listens") };
    let mut many = vec![0; 100_000];
    // Between the samples, in separate stops.
    memory.read(PhysAddr(7), &mut many).unwrap();
    assert!(many.iter().zip(7..).all(|(found, at)| *found == byte(at)));
    assert_eq!(memory.read(PhysAddr(1 << 20), &mut [0; 8]), None);
    eventually("rate limit", SOON, || attached.rate_limit());
    let ended = attached.wait().unwrap();
    let passed_ns = monotonic_ns() - begin_ns;
    assert_eq!(ended.end, AttachmentEnd::Detached);
    let [first, second] = &ended.observers[..] else { panic!() };
    assert!(first.ticks >= 16 && first.ticks == second.ticks);
    assert_eq!((first.halted, second.halted), (0, second.ticks));
    assert_eq!((first.read, second.read), (first.ticks, second.ticks));
    assert!(first.suspended_ns > 0 && first.suspended_ns < passed_ns);
    // The memory is the last user of the connection: a read would stop the machine again.
    assert_eq!(memory.read(PhysAddr(0x8_0000), &mut [0; 8]), None);
    drop(memory);
    let seen = stub.end();
    assert!(seen.running && seen.detached && seen.virtual_again, "{seen:?}");
}

#[test]
fn a_stub_that_closes_the_connection_is_an_end() {
    let stub = Stub::start(StubBehavior { closes_at: 5, ..StubBehavior::default() });
    let attached = Attachment::start_by_gdb(stub.connect().unwrap(), observer).unwrap();
    eventually("end", SOON, || attached.has_ended().then_some(()));
    let ended = attached.wait().unwrap();
    assert_eq!((ended.end, ended.observers[0].ticks), (AttachmentEnd::StubClosed, 4));
}

fn refusal(manner: StubBehavior) -> (String, StubRecord) {
    let stub = Stub::start(manner);
    let error = stub.connect().unwrap_err();
    (error.to_string(), stub.end())
}

#[test]
fn a_machine_that_cannot_be_profiled_keeps_its_state() {
    let (text, seen) = refusal(StubBehavior { paused: true, ..StubBehavior::default() });
    assert!(text.contains("is paused"), "{text}");
    assert!(!seen.running && !seen.detached, "a paused machine stays paused");
    let arm = TARGET.replace("i386:x86-64", "aarch64");
    let (text, seen) = refusal(StubBehavior { target: arm, ..StubBehavior::default() });
    assert!(text.contains("architecture aarch64; vprof supports x86-64"), "{text}");
    assert!(seen.running, "{seen:?}");
    let bare = "<target><reg name='rax' bitsize='64'/></target>".to_owned();
    let (text, seen) = refusal(StubBehavior { target: bare, ..StubBehavior::default() });
    assert!(text.contains("lacks the register rbx") && seen.running, "{text}");
    let (text, seen) = refusal(StubBehavior { target: "<".to_owned(), ..StubBehavior::default() });
    assert!(text.contains("cannot read the description of registers") && seen.running, "{text}");
}

/// Returns the message about a peer that is not a stub; its first bytes are `says`.
fn other(says: &'static [u8]) -> String {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(says).unwrap();
        let mut some = [0; 256];
        let _some = stream.read(&mut some);
    });
    let error = connect(&address).unwrap_err();
    peer.join().unwrap();
    error.to_string()
}

#[test]
fn a_peer_that_is_not_a_stub_is_an_error() {
    assert!(other(b"SSH-2.0-OpenSSH_9.2\r\n").contains("is not a GDB stub: its answer"));
    assert!(other(b"").contains("closed the connection"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = connect(&free).unwrap_err().to_string();
    assert!(nobody.starts_with(&format!("nothing listens at {free}")), "{nobody}");
    for text in ["", "localhost", "localhost:port", "nowhere.invalid:1"] {
        let error = connect(text).unwrap_err().to_string();
        assert!(error.contains("invalid address of a GDB stub"), "{error}");
    }
}

#[test]
fn one_debugger_at_a_time() {
    let stub = Stub::start(StubBehavior::default());
    let target = stub.connect().unwrap();
    let again = stub.connect().unwrap_err().to_string();
    assert!(again.contains("is being profiled by another vprof"), "{again}");
    drop(target);
    assert!(stub.end().running);
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _debugger = TcpStream::connect(address).unwrap();
    let _served = listener.accept().unwrap();
    let error = connect(&address.to_string()).unwrap_err().to_string();
    assert!(error.contains("already serves another debugger"), "{error}");
}

#[test]
fn a_debugger_that_is_about_to_leave_is_waited_for() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let debugger = TcpStream::connect(&address).unwrap();
    let served = listener.accept().unwrap();
    let peer = thread::spawn(move || {
        // The debugger stays for a while after the client has come, which is what the client waits for.
        thread::sleep(Duration::from_millis(300));
        drop((debugger, served));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let mut some = [0; 256];
        let _some = stream.read(&mut some);
    });
    let error = connect(&address).unwrap_err().to_string();
    peer.join().unwrap();
    assert!(error.contains("is not a GDB stub"), "{error}");
}

#[test]
fn nothing_is_asked_before_the_wall_is_raised() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = ConnectedStub::connect(&listener.local_addr().unwrap().to_string(), None).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let error = stream.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(connected.reach(), sandbox::Reach::Stub { process: None }, "this process is not QEMU");
}
