//! A stub that was asked what it can do: its vCPUs and where their registers are.

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::client::{Client, Lost};
use super::description::{Description, Unusable};
use super::error::GdbError;
use super::packet::unhex;
use super::x86::Places;

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
pub(crate) struct Vcpu {
    pub(crate) registers: (kvm_regs, kvm_sregs),
    /// Whether it is halted, where the stub tells.
    pub(crate) halted: Option<bool>,
}

/// How to ask for all vCPUs.
#[derive(Debug)]
pub(crate) struct Stub {
    places: Places,
    /// What is asked at each stop: so many commands for each vCPU.
    commands: Vec<Vec<u8>>,
    each: usize,
    /// It tells which vCPU is halted.
    tells_halted: bool,
}

/// Why asking failed.
enum Failed {
    Lost(Lost),
    Unusable,
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<Unusable> for Failed {
    fn from(_: Unusable) -> Self {
        Self::Unusable
    }
}

impl Stub {
    /// Asks a stopped machine, of at most `most` vCPUs.
    pub(crate) fn ask(client: &mut Client, address: &str, most: usize) -> Result<Self, GdbError> {
        let whole = |lost: Lost| lost.error(address);
        let description = Description::read(|file| fetch(client, file)).map_err(|failed| match failed {
            Failed::Lost(lost) => lost.error(address),
            Failed::Unusable => GdbError::Description { address: address.to_owned() },
        })?;
        if let Some(other) = description.architecture().filter(|name| !name.starts_with(X86_64)) {
            return Err(GdbError::Architecture {
                address: address.to_owned(),
                architecture: other.to_owned(),
            });
        }
        let places = Places::of(&description)
            .map_err(|register| GdbError::Register { address: address.to_owned(), register })?;
        let threads = threads(client).map_err(whole)?;
        if threads.len() > most {
            return Err(GdbError::TooMany { address: address.to_owned(), vcpus: threads.len(), most });
        }
        let Some(first) = threads.first() else {
            return Err(GdbError::Lacking { address: address.to_owned(), what: "it has no vCPU" });
        };
        let told = client.ask(&[b"qThreadExtraInfo,", first.as_slice()].concat()).map_err(whole)?;
        let tells_halted = client.is_qemu() && halted(&told).is_some();
        let mut stub = Self { places, commands: Vec::new(), each: 0, tells_halted };
        for thread in &threads {
            stub.commands.push([b"Hg", thread.as_slice()].concat());
            stub.commands.push(b"g".to_vec());
            if tells_halted {
                stub.commands.push([b"qThreadExtraInfo,", thread.as_slice()].concat());
            }
        }
        stub.each = stub.commands.len() / threads.len();
        let answers = client.ask_all(&stub.commands).map_err(whole)?;
        if stub.read(&answers).is_none() {
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
    pub(crate) fn read(&self, answers: &[Vec<u8>]) -> Option<Vec<Vcpu>> {
        let one = |answers: &[Vec<u8>]| {
            let registers = self.places.registers(answers.get(1)?)?;
            let halted = self.tells_halted.then(|| answers.get(2).and_then(|told| halted(told))).flatten();
            Some(Vcpu { registers, halted })
        };
        answers.chunks(self.each.max(1)).map(one).collect()
    }
}

/// Whether QEMU says in its words that a vCPU is halted: `CPU#0 [halted ]` (`handle_query_thread_extra`, gdbstub.c, 7.2).
fn halted(told: &[u8]) -> Option<bool> {
    let mut text = vec![0; told.len() / 2];
    unhex(told, &mut text)?;
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
                return String::from_utf8(text).map_err(|_| Failed::Unusable);
            }
            _ => break,
        }
    }
    Err(Failed::Unusable)
}

/// Ids of the threads, of which each vCPU is one, as the stub writes them.
fn threads(client: &mut Client) -> Result<Vec<Vec<u8>>, Lost> {
    let mut found = Vec::new();
    let mut answer = client.ask(b"qfThreadInfo")?;
    for _ in 0..LISTS {
        let Some((b'm', list)) = answer.split_first() else { break };
        found.extend(list.split(|byte| *byte == b',').filter(|id| !id.is_empty()).map(<[u8]>::to_vec));
        answer = client.ask(b"qsThreadInfo")?;
    }
    Ok(found)
}
