//! A stub whose vCPUs and places of registers are known.

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::description::{DescriptionError, TargetDescription};
use super::x86::RegisterLayout;
use crate::error::GdbError;
use crate::rsp::client::{ConnectionError, StubClient};
use crate::rsp::packet::unhex;

/// Maximum size of a file of a description, bytes.
const FILE_MOST: usize = 1 << 20;
/// Size of a part of the file in one answer, bytes.
const FILE_PART: usize = 0x7f0;
/// Maximum number of answers with thread ids.
const LISTS: usize = 1_000;
/// GDB's name of an x86-64.
const X86_64: &str = "i386:x86-64";

/// A vCPU at a stop.
#[derive(Debug)]
pub(crate) struct StubVcpu {
    pub(crate) regs: kvm_regs,
    pub(crate) sregs: kvm_sregs,
    /// True if the vCPU is halted; `None` if the stub does not report that.
    pub(crate) halted: Option<bool>,
}

/// Commands that read all vCPUs.
#[derive(Debug)]
pub(crate) struct Stub {
    places: RegisterLayout,
    /// Commands of a stop: the same number for each vCPU.
    commands: Vec<Vec<u8>>,
    /// Number of commands for each vCPU.
    each: usize,
    /// The stub reports which vCPU is halted.
    reports_halted: bool,
}

/// Reason why a query failed.
enum FetchError {
    Lost(ConnectionError),
    DescriptionError,
}

impl From<ConnectionError> for FetchError {
    fn from(lost: ConnectionError) -> Self {
        Self::Lost(lost)
    }
}

impl From<DescriptionError> for FetchError {
    fn from(_: DescriptionError) -> Self {
        Self::DescriptionError
    }
}

impl Stub {
    /// Queries a stopped machine of at most `most` vCPUs.
    pub(crate) fn ask(client: &mut StubClient, address: &str, most: usize) -> Result<Self, GdbError> {
        let lost = |error: ConnectionError| error.error(address);
        let description =
            TargetDescription::read(|file| fetch(client, file)).map_err(|error| match error {
                FetchError::Lost(lost) => lost.error(address),
                FetchError::DescriptionError => GdbError::Description { address: address.to_owned() },
            })?;
        if let Some(other) = description.architecture().filter(|name| !name.starts_with(X86_64)) {
            return Err(GdbError::Architecture {
                address: address.to_owned(),
                architecture: other.to_owned(),
            });
        }
        // Each sample needs all of these registers.
        let places = RegisterLayout::new(&description)
            .map_err(|register| GdbError::Register { address: address.to_owned(), register })?;
        let threads = threads(client).map_err(lost)?;
        if threads.len() > most {
            return Err(GdbError::TooMany { address: address.to_owned(), vcpus: threads.len(), most });
        }
        let Some(first) = threads.first() else {
            return Err(GdbError::Lacking { address: address.to_owned(), what: "it has no vCPU" });
        };
        // The text is free-form: only the one of QEMU is known.
        let answer = client.ask(&[b"qThreadExtraInfo,", first.as_slice()].concat()).map_err(lost)?;
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
        // A description may promise registers that the answers lack: one trial shows it before the first
        // tick.
        let answers = client.ask_all(&stub.commands).map_err(lost)?;
        if stub.parse(&answers).is_none() {
            let short = answers.get(1).is_some_and(|answer| !stub.places.fit(answer.len()));
            let what = if short {
                "its answer to `g` has fewer registers than it describes"
            } else {
                "its answer to `g` lacks values of registers that vprof needs"
            };
            return Err(GdbError::Lacking { address: address.to_owned(), what });
        }
        Ok(stub)
    }

    /// Returns the number of vCPUs.
    pub(crate) fn vcpus(&self) -> usize {
        self.commands.len() / self.each.max(1)
    }

    /// Returns the commands of a stop.
    pub(crate) fn commands(&self) -> &[Vec<u8>] {
        &self.commands
    }

    /// Parses the answers to the commands; returns the vCPUs in order.
    pub(crate) fn parse(&self, answers: &[Vec<u8>]) -> Option<Vec<StubVcpu>> {
        let one = |answers: &[Vec<u8>]| {
            let (regs, sregs) = self.places.registers(answers.get(1)?)?;
            let halted =
                self.reports_halted.then(|| answers.get(2).and_then(|answer| parse_halted(answer))).flatten();
            Some(StubVcpu { regs, sregs, halted })
        };
        answers.chunks(self.each.max(1)).map(one).collect()
    }
}

/// Returns true if QEMU reports that a vCPU is halted: `CPU#0 [halted ]` (`handle_query_thread_extra`,
/// gdbstub.c, 7.2). `None` for another text.
fn parse_halted(answer: &[u8]) -> Option<bool> {
    let mut text = vec![0; answer.len() / 2];
    unhex(answer, &mut text)?;
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part == word);
    if has(b"[halted") { Some(true) } else { has(b"[running").then_some(false) }
}

/// Fetches a file of the target's description.
fn fetch(client: &mut StubClient, file: &str) -> Result<String, FetchError> {
    let mut text = Vec::new();
    while text.len() < FILE_MOST {
        let ask = format!("qXfer:features:read:{file}:{:x},{FILE_PART:x}", text.len());
        let answer = client.ask(ask.as_bytes())?;
        match answer.split_first() {
            Some((b'm', part)) if !part.is_empty() => text.extend_from_slice(part),
            Some((b'l', part)) => {
                text.extend_from_slice(part);
                return String::from_utf8(text).map_err(|_| FetchError::DescriptionError);
            }
            _ => break,
        }
    }
    Err(FetchError::DescriptionError)
}

/// Returns the ids of the threads, as the stub writes them. Each thread is a vCPU.
fn threads(client: &mut StubClient) -> Result<Vec<Vec<u8>>, ConnectionError> {
    let mut found = Vec::new();
    let mut answer = client.ask(b"qfThreadInfo")?;
    for _ in 0..LISTS {
        let Some((b'm', list)) = answer.split_first() else { break };
        found.extend(list.split(|byte| *byte == b',').filter(|id| !id.is_empty()).map(<[u8]>::to_vec));
        answer = client.ask(b"qsThreadInfo")?;
    }
    Ok(found)
}
