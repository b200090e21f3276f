//! A stub that was asked what it can do: its vCPUs and where their registers are.

use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::rsp::client::{Client, ConnectionError};
use super::description::{TargetDescription, DescriptionError};
use crate::error::GdbError;
use crate::rsp::packet::unhex;
use super::x86::RegisterLayout;

/// Bytes of the longest file of a description.
const FILE_MOST: usize = 1 << 20;
/// Bytes of it in one answer.
const FILE_PART: usize = 0x7f0;
/// Answers with thread ids, at most.
const LISTS: usize = 1_000;
/// What GDB calls an x86-64.
const X86_64: &str = "i386:x86-64";

/// A vCPU at a stop.
#[derive(Debug)]
pub(crate) struct StubVcpu {
    pub(crate) regs: kvm_regs,
    pub(crate) sregs: kvm_sregs,
    /// Whether it is halted, where the stub tells.
    pub(crate) halted: Option<bool>,
}

/// How to ask for all vCPUs.
#[derive(Debug)]
pub(crate) struct Stub {
    places: RegisterLayout,
    /// What is asked at each stop: so many commands for each vCPU.
    commands: Vec<Vec<u8>>,
    each: usize,
    /// It tells which vCPU is halted.
    reports_halted: bool,
}

/// Why asking failed.
enum Failed {
    ConnectionError(ConnectionError),
    DescriptionError,
}

impl From<ConnectionError> for Failed {
    fn from(lost: ConnectionError) -> Self {
        Self::ConnectionError(lost)
    }
}

impl From<DescriptionError> for Failed {
    fn from(_: DescriptionError) -> Self {
        Self::DescriptionError
    }
}

impl Stub {
    /// Asks a stopped machine, of at most `most` vCPUs.
    pub(crate) fn ask(client: &mut Client, address: &str, most: usize) -> Result<Self, GdbError> {
        let whole = |lost: ConnectionError| lost.error(address);
        let description = TargetDescription::read(|file| fetch(client, file)).map_err(|failed| match failed {
            Failed::ConnectionError(lost) => lost.error(address),
            Failed::DescriptionError => GdbError::Description { address: address.to_owned() },
        })?;
        if let Some(other) = description.architecture().filter(|name| !name.starts_with(X86_64)) {
            return Err(GdbError::Architecture {
                address: address.to_owned(),
                architecture: other.to_owned(),
            });
        }
        let places = RegisterLayout::new(&description)
            .map_err(|register| GdbError::Register { address: address.to_owned(), register })?;
        let threads = threads(client).map_err(whole)?;
        if threads.len() > most {
            return Err(GdbError::TooMany { address: address.to_owned(), vcpus: threads.len(), most });
        }
        let Some(first) = threads.first() else {
            return Err(GdbError::Lacking { address: address.to_owned(), what: "it has no vCPU" });
        };
        let answer = client.ask(&[b"qThreadExtraInfo,", first.as_slice()].concat()).map_err(whole)?;
        let reports_halted = client.is_qemu() && parse_halted(&answer).is_some();
        let mut stub = Self { places, commands: Vec::new(), each: 0, reports_halted };
        for thread in &threads {
            stub.commands.push([b"Hg", thread.as_slice()].concat());
            stub.commands.push(b"g".to_vec());
            if reports_halted {
                stub.commands.push([b"qThreadExtraInfo,", thread.as_slice()].concat());
            }
        }
        stub.each = stub.commands.len() / threads.len();
        let answers = client.ask_all(&stub.commands).map_err(whole)?;
        if stub.parse(&answers).is_none() {
            let short = answers.get(1).is_some_and(|answer| !stub.places.fit(answer.len()));
            let what = if short {
                "its answer to `g` has fewer registers than it describes"
            } else {
                "its answer to `g` has no values of registers that a sample needs"
            };
            return Err(GdbError::Lacking { address: address.to_owned(), what });
        }
        Ok(stub)
    }

    /// How many vCPUs there are.
    pub(crate) fn vcpus(&self) -> usize {
        self.commands.len() / self.each.max(1)
    }

    /// What is asked at a stop.
    pub(crate) fn commands(&self) -> &[Vec<u8>] {
        &self.commands
    }

    /// What the answers say of the vCPUs, in their order.
    pub(crate) fn parse(&self, answers: &[Vec<u8>]) -> Option<Vec<StubVcpu>> {
        let one = |answers: &[Vec<u8>]| {
            let (regs, sregs) = self.places.registers(answers.get(1)?)?;
            let halted = self.reports_halted.then(|| answers.get(2).and_then(|answer| parse_halted(answer))).flatten();
            Some(StubVcpu { regs, sregs, halted })
        };
        answers.chunks(self.each.max(1)).map(one).collect()
    }
}

/// Whether QEMU says in its words that a vCPU is halted: `CPU#0 [halted ]` (`handle_query_thread_extra`,
/// gdbstub.c, 7.2).
fn parse_halted(answer: &[u8]) -> Option<bool> {
    let mut text = vec![0; answer.len() / 2];
    unhex(answer, &mut text)?;
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part == word);
    if has(b"[halted") { Some(true) } else { has(b"[running").then_some(false) }
}

/// A file of the target's description.
fn fetch(client: &mut Client, file: &str) -> Result<String, Failed> {
    let mut text = Vec::new();
    while text.len() < FILE_MOST {
        let ask = format!("qXfer:features:read:{file}:{:x},{FILE_PART:x}", text.len());
        let answer = client.ask(ask.as_bytes())?;
        match answer.split_first() {
            Some((b'm', part)) if !part.is_empty() => text.extend_from_slice(part),
            Some((b'l', part)) => {
                text.extend_from_slice(part);
                return String::from_utf8(text).map_err(|_| Failed::DescriptionError);
            }
            _ => break,
        }
    }
    Err(Failed::DescriptionError)
}

/// Ids of the threads, of which each vCPU is one, as the stub writes them.
fn threads(client: &mut Client) -> Result<Vec<Vec<u8>>, ConnectionError> {
    let mut found = Vec::new();
    let mut answer = client.ask(b"qfThreadInfo")?;
    for _ in 0..LISTS {
        let Some((b'm', list)) = answer.split_first() else { break };
        found.extend(list.split(|byte| *byte == b',').filter(|id| !id.is_empty()).map(<[u8]>::to_vec));
        answer = client.ask(b"qsThreadInfo")?;
    }
    Ok(found)
}
