//! Tripwires: calls of chosen guest functions become exits, for any KVM, without breakpoints or single steps.
//!
//! A kernel built for function tracing starts each function with a no-op of 5 bytes. A tripwire writes one instruction
//! of the same length over it, so that no instruction pointer can ever stand inside of it, neither when it is set nor
//! when it is taken away. An instruction of 7 bytes that loads an address into RDI will do as well:
//!
//! ```text
//! 0f 1f 44 00 00            nopl 0(%rax,%rax)       as the kernel left it
//! 3e 3e 3e e6 PORT          ds ds ds out %al,$PORT  set; prefixes mean nothing to OUT (Intel SDM vol. 2, 2.1.1)
//!
//! 48 c7 c7 IMM32            mov $IMM32,%rdi         or 48 8d 3d REL32, lea REL32(%rip),%rdi
//! 3e 3e 3e 3e 3e e6 PORT    out %al,$PORT           set; the vCPU thread loads RDI
//! ```
//!
//! The guest's OUT leads to KVM_EXIT_IO, which the vCPU thread shows to its observer and then lets pass: no device is
//! there, and no other register changes. Memory is patched only while every vCPU stands still ([`crate::control`]), and all of
//! it is put back before the machine's memory is let go.

mod table;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::control::Control;
pub(crate) use table::{Table, is_trip_port};

/// Kinds of tripwires. Kinds may share a port: it is the instruction pointer that tells them apart.
pub const TRIP_KINDS: u8 = 32;
/// Sites, at most.
pub const MAX_SITES: usize = 32;
/// Ports that tripwires use.
pub const TRIP_PORTS: u8 = 8;
/// The first of [`TRIP_PORTS`] ports. OUT with an immediate reaches ports below 0x100; of these 0xe0 to 0xe7 belong to no
/// device of a PC that Linux drives (`standard_io_resources`, arch/x86/kernel/setup.c, Linux 6.12), and they are neither
/// of the ports that delay an access (0x80 and 0xed, arch/x86/kernel/io_delay.c) nor that of debug output (0xe9).
pub const TRIP_PORT: u16 = 0xe0;
/// The no-op that a tripwire takes the place of (`x86_nops[5]`, arch/x86/include/asm/nops.h).
pub const TRIP_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Opcodes of the instructions that load an address into RDI.
const LOADS: [[u8; 3]; 2] = [[0x48, 0xc7, 0xc7], [0x48, 0x8d, 0x3d]];
/// Bytes of such an instruction: no tripwire is longer.
const LONGEST: usize = 7;
/// A prefix that selects DS, and the opcode of OUT imm8, AL.
const DS: u8 = 0x3e;
const OUT: u8 = 0xe6;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// How long vCPUs get to stand still. They need microseconds, unless a device or the host holds one up.
const STILL_LIMIT: Duration = Duration::from_secs(1);

/// A place for a tripwire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Virtual address of the instruction, by which a trip is told.
    pub virt: u64,
    /// Guest physical address of the same byte. The instruction must not cross a page.
    pub phys: u64,
    /// What a trip there means to whoever sets it, below [`TRIP_KINDS`].
    pub kind: u8,
    /// What the instruction loads into RDI: it has 7 bytes. `None` for the no-op of 5.
    pub loads_rdi: Option<u64>,
}

impl Site {
    /// Bytes of the instruction.
    fn length(&self) -> usize {
        self.loads_rdi.map_or(TRIP_NOP.len(), |_| LONGEST)
    }

    /// Whether this is what it can take the place of.
    fn fits(&self, found: &Code) -> bool {
        match self.loads_rdi {
            None => found.bytes() == TRIP_NOP,
            Some(_) => LOADS.iter().any(|opcode| found.bytes().starts_with(opcode)),
        }
    }
}

/// The bytes of one instruction at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Code {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Code {
    /// The instruction that trips.
    fn trip(site: &Site) -> Self {
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

/// Why tripwires were taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawReason {
    /// [`Tripwires::withdraw`] was called.
    Asked,
    /// An observer said so at a trip.
    Observer,
    /// The machine has ended.
    Ended,
}

/// What was found when tripwires were taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawn {
    /// Why.
    pub reason: WithdrawReason,
    /// Sites whose bytes were no longer the tripwire's. They were left alone: whoever wrote them knows what they are.
    pub foreign: Vec<Site>,
}

/// Why tripwires could not be set or taken away; the guest is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TripwireError {
    /// None, too many, two of one address, or a kind that does not exist.
    #[error("{count} tripwires cannot be set at once: give 1 to {MAX_SITES}, at different addresses")]
    Sites {
        /// How many were given.
        count: usize,
    },
    /// There are some already.
    #[error("tripwires are set already")]
    Set,
    /// The machine has ended.
    #[error("the machine has ended")]
    Ended,
    /// What stands at a site is not what a tripwire can take the place of, or no memory.
    #[error("at {virt:#x} there is no {} but {}", if *load { "load of RDI" } else { "5-byte no-op" }, Hex(found))]
    Unfit {
        /// An instruction that loads RDI was asked for, not the no-op.
        load: bool,
        /// Virtual address of the site.
        virt: u64,
        /// What stands there; nothing where there is no memory.
        found: Vec<u8>,
    },
    /// Some vCPUs did not stand still in time.
    #[error("{missing} vCPUs did not stand still within {STILL_LIMIT:?}")]
    NotStill {
        /// How many.
        missing: usize,
    },
}

/// Bytes as a person reads them.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no memory");
        }
        self.0.iter().enumerate().try_for_each(|(i, b)| write!(f, "{}{b:02x}", if i == 0 { "" } else { " " }))
    }
}

/// Called once, while all vCPUs still stand still, right after tripwires were taken away.
pub type AtWithdrawal = Box<dyn FnOnce(&Withdrawn) + Send>;

/// A machine's tripwires; a cheap handle. They are taken away at the latest when the machine's threads are joined.
#[derive(Clone)]
pub struct Tripwires {
    control: Arc<Control>,
    memory: GuestMemoryMmap,
    table: Arc<Table>,
    set: Arc<Mutex<Set>>,
}

/// What is set.
#[derive(Default)]
struct Set {
    /// With what stood there before.
    sites: Vec<(Site, Code)>,
    at_withdrawal: Option<AtWithdrawal>,
    /// Nobody would take them away again.
    closed: bool,
}

impl fmt::Debug for Tripwires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tripwires").field("sites", &self.lock().sites).finish_non_exhaustive()
    }
}

/// The port of a kind.
fn port_of(kind: u8) -> u16 {
    TRIP_PORT + u16::from(kind % TRIP_PORTS)
}

impl Tripwires {
    pub(crate) fn new(control: Arc<Control>, memory: GuestMemoryMmap) -> Self {
        Self { control, memory, table: Arc::default(), set: Arc::default() }
    }

    /// What vCPU threads look trips up in.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets tripwires at `sites`: all, or none. `at_set` is called while all vCPUs still stand still, before the first
    /// trip; `at_withdrawal` when the tripwires are taken away again, by whomever. Neither may call into the machine.
    ///
    /// Must not be called on a vCPU's thread.
    ///
    /// # Errors
    ///
    /// See [`TripwireError`].
    pub fn set(
        &self,
        sites: &[Site],
        at_set: impl FnOnce(),
        at_withdrawal: AtWithdrawal,
    ) -> Result<(), TripwireError> {
        let count = sites.len();
        let twice = |(i, site): (usize, &Site)| sites.iter().take(i).any(|other| other.virt == site.virt);
        let crosses = |site: &Site| site.phys % PAGE > PAGE - site.length() as u64;
        let unusable = sites.iter().any(|site| site.kind >= TRIP_KINDS || crosses(site));
        if count == 0 || count > MAX_SITES || unusable || sites.iter().enumerate().any(twice) {
            return Err(TripwireError::Sites { count });
        }
        let _still = self.hold(false)?;
        let mut set = self.lock();
        if set.closed || self.control.stopping() {
            return Err(TripwireError::Ended);
        }
        if !set.sites.is_empty() {
            return Err(TripwireError::Set);
        }
        let before = sites.iter().map(|site| self.fitting(site)).collect::<Result<Vec<_>, _>>()?;
        for site in sites {
            self.write(site, &Code::trip(site));
        }
        self.table.fill(sites);
        set.sites = sites.iter().copied().zip(before).collect();
        set.at_withdrawal = Some(at_withdrawal);
        at_set();
        Ok(())
    }

    /// Takes all tripwires away. `Ok(None)` when none was set.
    ///
    /// Must not be called on a vCPU's thread, whose observer says [`Verdict::Withdraw`](crate::observer::Verdict)
    /// instead.
    ///
    /// # Errors
    ///
    /// [`TripwireError::NotStill`]: they are still set.
    pub fn withdraw(&self) -> Result<Option<Withdrawn>, TripwireError> {
        self.withdraw_as(false, WithdrawReason::Asked)
    }

    /// Takes them away on a vCPU's own thread, which has no I/O pending.
    pub(crate) fn withdraw_on_vcpu(&self) -> Result<Option<Withdrawn>, TripwireError> {
        self.withdraw_as(true, WithdrawReason::Observer)
    }

    /// The machine has ended, or should have: takes all tripwires away and accepts no more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        // Where a vCPU's thread hangs it may still run the guest, whose code must not change under it then.
        let _hung = self.withdraw_as(false, WithdrawReason::Ended);
    }

    fn withdraw_as(&self, vcpu: bool, reason: WithdrawReason) -> Result<Option<Withdrawn>, TripwireError> {
        let _still = self.hold(vcpu)?;
        let mut set = self.lock();
        let sites = std::mem::take(&mut set.sites);
        if sites.is_empty() {
            return Ok(None);
        }
        let (ours, foreign): (Vec<_>, Vec<_>) = sites.into_iter().partition(|(site, _)| self.is_ours(site));
        for (site, before) in &ours {
            self.write(site, before);
        }
        self.table.fill(&[]);
        let foreign = foreign.into_iter().map(|(site, _)| site).collect();
        let withdrawn = Withdrawn { reason, foreign };
        if let Some(tell) = set.at_withdrawal.take() {
            tell(&withdrawn);
        }
        Ok(Some(withdrawn))
    }

    /// Sites that are set but whose bytes are the tripwire's no longer: the guest has changed its code.
    pub fn foreign(&self) -> Vec<Site> {
        self.lock().sites.iter().map(|(site, _)| *site).filter(|site| !self.is_ours(site)).collect()
    }

    /// True as long as some are set.
    pub fn are_set(&self) -> bool {
        !self.lock().sites.is_empty()
    }

    fn hold(&self, vcpu: bool) -> Result<crate::control::Held<'_>, TripwireError> {
        self.control.hold(vcpu, STILL_LIMIT).map_err(|missing| TripwireError::NotStill { missing })
    }

    /// What stands at a site; `None` where there is no memory.
    fn code(&self, site: &Site) -> Option<Code> {
        let mut code = Code { bytes: [DS; LONGEST], length: site.length() };
        let bytes = code.bytes.get_mut(..code.length)?;
        self.memory.read_slice(bytes, GuestAddress(site.phys)).ok()?;
        Some(code)
    }

    /// What stands at a site that a tripwire can take the place of.
    fn fitting(&self, site: &Site) -> Result<Code, TripwireError> {
        let found = self.code(site);
        found.filter(|found| site.fits(found)).ok_or_else(|| TripwireError::Unfit {
            load: site.loads_rdi.is_some(),
            virt: site.virt,
            found: found.map_or_else(Vec::new, |found| found.bytes().to_vec()),
        })
    }

    fn is_ours(&self, site: &Site) -> bool {
        self.code(site) == Some(Code::trip(site))
    }

    fn write(&self, site: &Site, code: &Code) {
        // The site was read a moment ago, and memory does not go away.
        let _in_memory = self.memory.write_slice(code.bytes(), GuestAddress(site.phys));
    }
}

#[cfg(test)]
mod tests;
