//! Probes: calls of chosen guest functions become exits, on any KVM, without breakpoints or single steps.
//!
//! A kernel built for function tracing starts each function with a no-op of 5 bytes. A probe is one
//! instruction of the same length that is written over it. So no instruction pointer can ever be inside of
//! it, neither when it is set nor when it is removed. An instruction of 7 bytes that loads an address into
//! RDI is suitable as well:
//!
//! ```text
//! 0f 1f 44 00 00            nopl 0(%rax,%rax)       as the kernel left it
//! 3e 3e 3e e6 PORT          ds ds ds out %al,$PORT  set; OUT ignores prefixes (Intel SDM vol. 2, 2.1.1)
//!
//! 48 c7 c7 IMM32            mov $IMM32,%rdi         or 48 8d 3d REL32, lea REL32(%rip),%rdi
//! 3e 3e 3e 3e 3e e6 PORT    out %al,$PORT           set; the vCPU thread loads RDI
//! ```
//!
//! The guest's OUT leads to KVM_EXIT_IO. The vCPU thread passes it to its observer and does nothing else: no
//! device has the port, and no other register changes. Memory is patched only while every vCPU is paused
//! ([`crate::control`]). The original bytes are restored before the machine's memory is released.

mod table;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::control::{Control, PauseLimit};
use crate::x86::PAGE;
pub(crate) use table::{ProbeTable, is_probe_port};

/// Number of kinds of probes. Kinds may share a port: the instruction pointer distinguishes them.
pub const PROBE_KINDS: u8 = 32;
/// Maximum number of probes of a machine.
pub const MAX_PROBES: usize = 32;
/// Number of ports that probes use.
pub const PROBE_PORTS: u8 = 8;
/// First of [`PROBE_PORTS`] ports. OUT with an immediate reaches ports below 0x100. Of these, 0xe0 to 0xe7
/// belong to no device of a PC that Linux drives (`standard_io_resources`, arch/x86/kernel/setup.c, Linux
/// 6.12). They are neither of the ports that delay an access (0x80 and 0xed, arch/x86/kernel/io_delay.c) nor
/// that of debug output (0xe9).
pub const PROBE_PORT: u16 = 0xe0;
/// No-op that a probe replaces (`x86_nops[5]`, arch/x86/include/asm/nops.h).
pub const PROBE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Opcodes of the two instructions that load an address into RDI.
const LOADS: [[u8; 3]; 2] = [[0x48, 0xc7, 0xc7], [0x48, 0x8d, 0x3d]];
/// Length of such an instruction, bytes: no probe is longer.
const LONGEST: usize = 7;
/// Prefix that selects DS.
const DS: u8 = 0x3e;
/// Opcode of OUT imm8, AL.
const OUT: u8 = 0xe6;

/// Limit for pausing all vCPUs from another thread. They need microseconds, unless a device or the host
/// delays one.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Place and kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePoint {
    /// Virtual address of the instruction, by which a hit is recognized.
    pub virt: u64,
    /// Guest physical address of the same byte. The instruction must not cross a page.
    pub phys: GuestAddress,
    /// Meaning of a hit to the caller that sets the probe, below [`PROBE_KINDS`].
    pub kind: u8,
    /// Value that the instruction, of 7 bytes, loads into RDI. `None` for the no-op of 5 bytes.
    pub loads_rdi: Option<u64>,
}

impl ProbePoint {
    /// Returns the length of the instruction, bytes.
    fn length(&self) -> usize {
        self.loads_rdi.map_or(PROBE_NOP.len(), |_| LONGEST)
    }

    /// Returns true if a probe can replace the instruction that was found here.
    fn can_replace(&self, found: &Instruction) -> bool {
        match self.loads_rdi {
            None => found.bytes() == PROBE_NOP,
            Some(_) => LOADS.iter().any(|opcode| found.bytes().starts_with(opcode)),
        }
    }
}

/// Bytes of one instruction at a probe point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Instruction {
    /// Makes the probe's instruction.
    fn probe(site: &ProbePoint) -> Self {
        let length = site.length();
        let mut bytes = [DS; LONGEST];
        let [port, _] = port_of(site.kind).to_le_bytes();
        for (byte, value) in bytes.iter_mut().take(length).rev().zip([port, OUT]) {
            *byte = value;
        }
        Self { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Reason why probes were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawReason {
    /// [`ProbeSet::withdraw`] was called.
    Requested,
    /// An observer requested it at a hit.
    Observer,
    /// The machine has ended.
    Ended,
}

/// What came of a request to remove probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// Reason of the removal.
    pub reason: WithdrawReason,
    /// Points whose bytes were no longer the probe's. They were not restored: the guest has put other code
    /// there.
    pub foreign: Vec<ProbePoint>,
}

/// Reason why probes could not be set or removed; the guest is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No points, too many, two with one address, or a kind that does not exist.
    #[error("cannot set {count} probes at once: give 1 to {MAX_PROBES}, at different addresses")]
    Points {
        /// Number of points that were given.
        count: usize,
    },
    /// The machine has probes already.
    #[error("probes are already set")]
    AlreadySet,
    /// The machine has ended.
    #[error("the machine has ended")]
    Ended,
    /// A probe cannot replace the bytes at a point, or the point has no memory.
    #[error("expected {} at {virt:#x}, found {}", if *load { "a load of RDI" } else { "a 5-byte no-op" }, HexBytes(found))]
    Unfit {
        /// An instruction that loads RDI was expected, not the no-op.
        load: bool,
        /// Virtual address of the point.
        virt: u64,
        /// Bytes at the point; empty where there is no memory.
        found: Vec<u8>,
    },
    /// Some vCPUs did not pause in time.
    #[error("{missing} vCPUs did not pause within {PAUSE_LIMIT:?}")]
    NotPaused {
        /// Number of these vCPUs.
        missing: usize,
    },
}

/// Displays bytes in hexadecimal.
struct HexBytes<'a>(&'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no memory");
        }
        self.0.iter().enumerate().try_for_each(|(i, b)| write!(f, "{}{b:02x}", if i == 0 { "" } else { " " }))
    }
}

/// Function that is called once, directly after probes were removed, while all vCPUs are still paused.
pub type WithdrawalHandler = Box<dyn FnOnce(&Withdrawal) + Send>;

/// Probes of a machine; a cheap handle. They are removed at the latest when the machine's threads are joined.
#[derive(Clone)]
pub struct ProbeSet {
    control: Arc<Control>,
    memory: GuestMemoryMmap,
    table: Arc<ProbeTable>,
    planted: Arc<Mutex<PlantedProbes>>,
}

/// Probes that are in the guest's memory.
#[derive(Default)]
struct PlantedProbes {
    /// Each with the instruction that it replaced.
    sites: Vec<(ProbePoint, Instruction)>,
    at_withdrawal: Option<WithdrawalHandler>,
    /// No more are accepted: nothing would remove them.
    closed: bool,
}

impl fmt::Debug for ProbeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeSet").field("sites", &self.lock().sites).finish_non_exhaustive()
    }
}

/// Returns the port of a kind.
fn port_of(kind: u8) -> u16 {
    PROBE_PORT + u16::from(kind % PROBE_PORTS)
}

impl ProbeSet {
    pub(crate) fn new(control: Arc<Control>, memory: GuestMemoryMmap) -> Self {
        Self { control, memory, table: Arc::default(), planted: Arc::default() }
    }

    /// Returns the table in which vCPU threads look hits up.
    pub(crate) fn table(&self) -> Arc<ProbeTable> {
        Arc::clone(&self.table)
    }

    fn lock(&self) -> MutexGuard<'_, PlantedProbes> {
        self.planted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets probes at `sites`: all, or none. `at_set` is called while all vCPUs are still paused, before the
    /// first hit; `at_withdrawal` when the probes are removed, for any reason. Neither may call into the
    /// machine.
    ///
    /// Must not be called on a vCPU's thread.
    ///
    /// # Errors
    ///
    /// See [`ProbeError`].
    pub fn set(
        &self,
        sites: &[ProbePoint],
        at_set: impl FnOnce(),
        at_withdrawal: WithdrawalHandler,
    ) -> Result<(), ProbeError> {
        let count = sites.len();
        let twice =
            |(i, site): (usize, &ProbePoint)| sites.iter().take(i).any(|other| other.virt == site.virt);
        let crosses = |site: &ProbePoint| site.phys.0 % PAGE > PAGE - site.length() as u64;
        let unusable = sites.iter().any(|site| site.kind >= PROBE_KINDS || crosses(site));
        if count == 0 || count > MAX_PROBES || unusable || sites.iter().enumerate().any(twice) {
            return Err(ProbeError::Points { count });
        }
        let _paused = self
            .control
            .pause(false, PauseLimit::Time(PAUSE_LIMIT))
            .map_err(|missing| ProbeError::NotPaused { missing })?;
        let mut planted = self.lock();
        if planted.closed || self.control.stopping() {
            return Err(ProbeError::Ended);
        }
        if !planted.sites.is_empty() {
            return Err(ProbeError::AlreadySet);
        }
        // All points are checked before the first is written.
        let before = sites.iter().map(|site| self.replaceable(site)).collect::<Result<Vec<_>, _>>()?;
        for site in sites {
            self.write(site, &Instruction::probe(site));
        }
        self.table.fill(sites);
        planted.sites = sites.iter().copied().zip(before).collect();
        planted.at_withdrawal = Some(at_withdrawal);
        at_set();
        Ok(())
    }

    /// Removes all probes. Returns `Ok(None)` if none was set.
    ///
    /// Must not be called on a vCPU's thread: an observer returns
    /// [`ProbeVerdict::Withdraw`](crate::observer::ProbeVerdict) instead.
    ///
    /// # Errors
    ///
    /// [`ProbeError::NotPaused`]: the probes are still set.
    pub fn withdraw(&self) -> Result<Option<Withdrawal>, ProbeError> {
        self.withdraw_for(WithdrawReason::Requested)
    }

    /// Removes all probes on a vCPU's own thread, which has no I/O pending. Waits for the other vCPUs,
    /// however long they take: the guest would otherwise read its code with the probes in it.
    ///
    /// # Errors
    ///
    /// [`ProbeError::NotPaused`]: the machine is to be stopped, and the calling thread must not enter the
    /// guest again.
    pub(crate) fn withdraw_on_vcpu(&self) -> Result<Option<Withdrawal>, ProbeError> {
        self.withdraw_for(WithdrawReason::Observer)
    }

    /// Removes all probes and rejects new ones: the machine has ended, or should have.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        // A vCPU thread that hangs may still run the guest, whose code must not change then.
        let _hung = self.withdraw_for(WithdrawReason::Ended);
    }

    fn withdraw_for(&self, reason: WithdrawReason) -> Result<Option<Withdrawal>, ProbeError> {
        let vcpu = reason == WithdrawReason::Observer;
        let limit = if vcpu { PauseLimit::Stop } else { PauseLimit::Time(PAUSE_LIMIT) };
        let _paused = self.control.pause(vcpu, limit).map_err(|missing| ProbeError::NotPaused { missing })?;
        let mut planted = self.lock();
        let sites = std::mem::take(&mut planted.sites);
        if sites.is_empty() {
            return Ok(None);
        }
        let (ours, foreign): (Vec<_>, Vec<_>) = sites.into_iter().partition(|(site, _)| self.is_ours(site));
        for (site, before) in &ours {
            self.write(site, before);
        }
        self.table.fill(&[]);
        let foreign = foreign.into_iter().map(|(site, _)| site).collect();
        let withdrawn = Withdrawal { reason, foreign };
        if let Some(handler) = planted.at_withdrawal.take() {
            handler(&withdrawn);
        }
        Ok(Some(withdrawn))
    }

    /// Returns the points that are set but whose bytes are no longer the probe's: the guest has changed its
    /// code.
    pub fn foreign(&self) -> Vec<ProbePoint> {
        self.lock().sites.iter().map(|(site, _)| *site).filter(|site| !self.is_ours(site)).collect()
    }

    /// Returns true as long as probes are set.
    pub fn are_set(&self) -> bool {
        !self.lock().sites.is_empty()
    }

    /// Reads the instruction at a point; `None` where there is no memory.
    fn instruction(&self, site: &ProbePoint) -> Option<Instruction> {
        let mut instruction = Instruction { bytes: [DS; LONGEST], length: site.length() };
        let bytes = instruction.bytes.get_mut(..instruction.length)?;
        self.memory.read_slice(bytes, site.phys).ok()?;
        Some(instruction)
    }

    /// Reads the instruction at a point, which a probe must be able to replace.
    fn replaceable(&self, site: &ProbePoint) -> Result<Instruction, ProbeError> {
        let found = self.instruction(site);
        found.filter(|found| site.can_replace(found)).ok_or_else(|| ProbeError::Unfit {
            load: site.loads_rdi.is_some(),
            virt: site.virt,
            found: found.map_or_else(Vec::new, |found| found.bytes().to_vec()),
        })
    }

    fn is_ours(&self, site: &ProbePoint) -> bool {
        self.instruction(site) == Some(Instruction::probe(site))
    }

    fn write(&self, site: &ProbePoint, instruction: &Instruction) {
        // The point was read before, and guest memory is never unmapped while the machine exists.
        let _in_memory = self.memory.write_slice(instruction.bytes(), site.phys);
    }
}

#[cfg(test)]
mod tests;
