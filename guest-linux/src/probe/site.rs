//! The places in the kernel's text, by their bytes.

use super::watch::WatchedFunction;
use crate::image::KernelImage;
use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use symbols::{PhysAddr, VirtAddr};

/// The no-op at the start of a function of a kernel that can trace functions (`x86_nops[5]`,
/// arch/x86/include/asm/nops.h).
pub(super) const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Instructions that may precede it: ENDBR64 where indirect calls are checked (CONFIG_X86_KERNEL_IBT), or one
/// of the no-ops of 4 bytes that replace ENDBR64 in a function nobody calls indirectly (`gen_endbr_poison`,
/// arch/x86/include/asm/ibt.h).
const BEFORE: [[u8; 4]; 4] =
    [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];
/// Bytes of a page; a site is within one.
pub(super) const PAGE: u64 = 4096;
/// The instructions that load an address into RDI, the first argument of a call: `mov $imm32, %rdi` and
/// `lea rel32(%rip), %rdi` (Intel SDM vol. 2, MOV and LEA), each with 4 more bytes.
const LOADS: [[u8; 3]; 2] = [[0x48, 0xc7, 0xc7], [0x48, 0x8d, 0x3d]];
/// Bytes of such an instruction, and of the opcode of the CALL after it.
const LOAD: usize = 7;
const CALL: u8 = 0xe8;
/// Bytes of a function that are searched for the instruction: a landing pad, the frame pointer and other
/// arguments come first.
const SEARCHED: usize = 32;
/// Functions of one name, at most: the compiler makes variants.
const MAX_VARIANTS: usize = 4;
/// Bytes of a patch of the kernel's text around which it is taken for one of a site.
const NEAR: u64 = 16;

/// Functions that are watched on request, at most.
pub const MAX_WATCHED: usize = 16;

/// Event that a call of a site means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ProbeEvent {
    /// The CPU has switched from the task that is the first argument to the current one.
    Switch,
    /// The current task, or an interrupt, wakes the task that is the first argument if it is in one of the
    /// states that are the second.
    Wake,
    /// A new task, the first argument, is about to run for the first time.
    New,
    /// The handler of a hard interrupt begins.
    InterruptBegin,
    /// The handler has ended; soft interrupts may follow.
    InterruptEnd,
    /// The task that is the first argument is about to be freed.
    Release,
    /// The kernel is about to change what its function tracer traces, under the lock that guards its text.
    /// Before it writes the beginning of a function it verifies it.
    Trace,
    /// The kernel changes its text at one of the arguments.
    Patch,
    /// The handler of a hard interrupt has found that a device raised it; its vector is the second argument.
    Vector,
    /// A program reads the kernel's memory through `/proc/kcore`.
    Core,
}

/// Events in the order of their numbers.
const EVENTS: [ProbeEvent; 10] = [
    ProbeEvent::Switch,
    ProbeEvent::Wake,
    ProbeEvent::New,
    ProbeEvent::InterruptBegin,
    ProbeEvent::InterruptEnd,
    ProbeEvent::Release,
    ProbeEvent::Trace,
    ProbeEvent::Patch,
    ProbeEvent::Vector,
    ProbeEvent::Core,
];

impl ProbeEvent {
    /// Number of events.
    pub const COUNT: usize = EVENTS.len();

    /// Returns the event of this number.
    pub fn from_number(number: u8) -> Option<Self> {
        EVENTS.get(usize::from(number)).copied()
    }

    /// Returns the event's number, 0 to 9.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the function that is called.
    pub fn function(self) -> &'static str {
        match self {
            Self::Switch => "finish_task_switch",
            Self::Wake => "try_to_wake_up",
            Self::New => "wake_up_new_task",
            Self::InterruptBegin => "irq_enter_rcu",
            Self::InterruptEnd => "irq_exit_rcu",
            Self::Release => "release_task",
            Self::Trace => "ftrace_arch_code_modify_prepare",
            Self::Patch => "__text_poke",
            Self::Vector => "__common_interrupt",
            Self::Core => "read_kcore_iter",
        }
    }

    /// Returns true if a call of the function `name` is this event.
    fn is_call_of(self, name: &str) -> bool {
        // Of 6.3 and before.
        is_variant(name, self.function()) || self == Self::Core && is_variant(name, "read_kcore")
    }

    /// Returns true if the guest is about to read or to change its own code: a kernel must not find bytes in
    /// its text that it has not put there.
    pub fn is_guard(self) -> bool {
        matches!(self, Self::Trace | Self::Patch | Self::Core)
    }

    /// Without these there is nothing exact: switches and wakes are what states follow from. Without guards
    /// there are no probes at all.
    fn is_needed(self) -> bool {
        !matches!(self, Self::InterruptBegin | Self::InterruptEnd | Self::Vector)
    }

    /// Returns true if a kernel without this function has no such event: there is no `/proc/kcore` without
    /// CONFIG_PROC_KCORE.
    fn may_never_come(self) -> bool {
        self == Self::Core
    }
}

/// One place to see calls of a function: for an event, on request, or for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSite {
    /// Event that a call means.
    pub event: Option<ProbeEvent>,
    /// Number of the function among those that are watched on request.
    pub watched: Option<u8>,
    /// Address of the instruction: the no-op, or the one that loads an argument.
    pub virt: VirtAddr,
    /// Physical address of the same byte; all of it is in one page.
    pub phys: PhysAddr,
    /// Value that the instruction at the site loads into RDI; `None` for a no-op.
    pub loads: Option<u64>,
}

impl ProbeSite {
    /// Number of kinds of sites.
    pub const KINDS: usize = ProbeEvent::COUNT + MAX_WATCHED;

    /// Returns the number of the site's kind, below [`Self::KINDS`]: that of its event, or, after all of
    /// these, that of the function that is watched.
    pub fn kind(&self) -> u8 {
        match (self.watched, self.event) {
            (Some(number), _) => number.saturating_add(ProbeEvent::Core.number() + 1),
            (None, event) => event.map_or(u8::MAX, ProbeEvent::number),
        }
    }

    /// Returns the bytes of the instruction: 5 or 7.
    pub fn bytes(&self) -> usize {
        self.loads.map_or(NOP.len(), |_| LOAD)
    }
}

/// The places in the code of a kernel where probes can be, for example the no-op at the start of a traceable
/// function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSites {
    /// One for each event and for each watched function.
    pub sites: Vec<ProbeSite>,
    /// Reasons why some events cannot be seen; the others are useful without them.
    pub missing: Vec<Missing>,
    /// Addresses of the function tracer's counts of tracers, for the functions that are called.
    pub(super) traced: Vec<PhysAddr>,
}

impl Kernel {
    /// Returns the places where events and calls of the `watched` functions can be seen, by the kernel's
    /// present text. Without `exact` the only events are guards ([`ProbeEvent::is_guard`]).
    ///
    /// # Errors
    /// The reason why there are no sites: a function that is needed does not exist or does not start with the
    /// no-op.
    pub fn probe_sites(
        &self,
        memory: &impl PhysicalMemory,
        exact: bool,
        watched: &[WatchedFunction],
    ) -> Result<ProbeSites, Missing> {
        let mut found: [Vec<u64>; EVENTS.len()] = Default::default();
        for (name, at) in self.symbols() {
            for (addresses, event) in found.iter_mut().zip(EVENTS) {
                if event.is_call_of(name) && addresses.len() < MAX_VARIANTS {
                    addresses.push(at.0);
                }
            }
        }
        let mut all = ProbeSites { sites: Vec::new(), missing: Vec::new(), traced: Vec::new() };
        for (addresses, event) in found.iter().zip(EVENTS) {
            if addresses.is_empty() && event.may_never_come() || !exact && !event.is_guard() {
                continue;
            }
            match self.sites_of(memory, event, addresses) {
                Ok(sites) => all.sites.extend(sites),
                Err(reason) if event.is_needed() => return Err(reason),
                Err(reason) => all.missing.push(reason),
            }
        }
        // The beginning of an interrupt is useless without its end, and the reverse.
        let interrupts = [ProbeEvent::InterruptBegin, ProbeEvent::InterruptEnd];
        let has = |event| all.sites.iter().any(|site| site.event == Some(event));
        if !interrupts.into_iter().all(has) {
            let is_of_interrupts = |event| interrupts.contains(&event) || event == ProbeEvent::Vector;
            all.sites.retain(|site| !site.event.is_some_and(is_of_interrupts));
        }
        for (function, number) in watched.iter().zip(0..) {
            match all.sites.iter_mut().find(|site| site.virt == function.virt) {
                Some(site) => site.watched = Some(number),
                None => all.sites.push(function.site(number)),
            }
        }
        let functions: Vec<u64> =
            all.sites.iter().filter(|site| site.loads.is_none()).map(|site| site.virt.0).collect();
        all.traced = self.trace_counts(memory, &functions)?;
        Ok(all)
    }

    fn sites_of(
        &self,
        memory: &impl PhysicalMemory,
        event: ProbeEvent,
        addresses: &[u64],
    ) -> Result<Vec<ProbeSite>, Missing> {
        if addresses.is_empty() {
            return Err(Missing::NoSymbol(event.function().to_owned()));
        }
        let image = self.view(memory).image;
        // Kernel's tracer is built without no-ops.
        let loads = if event == ProbeEvent::Trace { Some(self.symbol("text_mutex")?) } else { None };
        let site = |&address: &u64| {
            let virt = match loads {
                Some(argument) => load(memory, image, address, argument)?,
                None => no_op(memory, image, address)?,
            };
            let (event, watched) = (Some(event), None);
            let site =
                ProbeSite { event, watched, virt: VirtAddr(virt), phys: image.translate(virt)?, loads };
            (virt & (PAGE - 1) <= PAGE - site.bytes() as u64).then_some(site)
        };
        let missing = || match loads {
            Some(_) => Missing::UnknownCode(event.function().to_owned()),
            None => Missing::NoNoOp(event.function().to_owned()),
        };
        addresses.iter().map(|address| site(address).ok_or_else(missing)).collect()
    }
}

impl ProbeSites {
    /// Returns the site in whose place an instruction pointer is, or right after it, where the guest
    /// continues.
    pub fn site_at(&self, rip: VirtAddr) -> Option<&ProbeSite> {
        let within = |site: &&ProbeSite| rip.0.wrapping_sub(site.virt.0) <= site.bytes() as u64;
        self.sites.iter().find(within)
    }

    /// Returns the first site of a kind ([`ProbeSite::kind`]).
    pub fn of_kind(&self, kind: u8) -> Option<&ProbeSite> {
        self.sites.iter().find(|site| site.kind() == kind)
    }

    /// Returns true if this call of [`ProbeEvent::Trace`], [`ProbeEvent::Patch`] or [`ProbeEvent::Core`]
    /// leads to one of the sites' bytes. `arguments` are RDI, RSI, RDX and RCX (System V ABI, AMD64
    /// supplement 1.0, 3.2.3).
    pub fn concerns(&self, event: ProbeEvent, arguments: [u64; 4], memory: &impl PhysicalMemory) -> bool {
        match event {
            ProbeEvent::Trace => self.are_traced(memory),
            // The compiler may have moved its arguments.
            ProbeEvent::Patch => {
                let near = |at: u64| self.sites.iter().any(|site| at.abs_diff(site.virt.0) < NEAR);
                arguments.into_iter().any(near)
            }
            ProbeEvent::Core => true,
            _ => false,
        }
    }
}

/// Returns true if `name` is the function `base` or a variant that the compiler has made of it. Parts that
/// the compiler has split off do not count: they are called from within.
fn is_variant(name: &str, base: &str) -> bool {
    let Some(rest) = name.strip_prefix(base) else { return false };
    rest.is_empty() || rest.starts_with('.') && !rest.contains(".cold") && !rest.contains(".part.")
}

/// Returns the address of the no-op of the function at `address`.
pub(super) fn no_op(memory: &impl PhysicalMemory, image: &KernelImage, address: u64) -> Option<u64> {
    let mut start = [0; 9];
    image.read(memory, address, &mut start)?;
    let (before, after) = start.split_at(4);
    if start.starts_with(&NOP) {
        Some(address)
    } else if BEFORE.iter().any(|bytes| bytes == before) && after == NOP {
        address.checked_add(4)
    } else {
        None
    }
}

/// Returns the place where the function at `address` loads `argument` into RDI, right before it calls
/// another.
fn load(memory: &impl PhysicalMemory, image: &KernelImage, address: u64, argument: u64) -> Option<u64> {
    let mut start = [0; SEARCHED];
    image.read(memory, address, &mut start)?;
    (address..).zip(start.windows(LOAD + 1)).find_map(|(at, window)| {
        let (opcode, rest) = window.split_first_chunk::<3>()?;
        let (value, call) = rest.split_first_chunk::<4>()?;
        let value = i64::from(i32::from_le_bytes(*value)).cast_unsigned();
        let [immediate, relative] = LOADS;
        let is_it = call == [CALL]
            && (*opcode == immediate && value == argument
                || *opcode == relative && at.wrapping_add(LOAD as u64).wrapping_add(value) == argument);
        is_it.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FlatMemory;

    #[test]
    fn events_have_numbers() {
        for (event, number) in EVENTS.into_iter().zip(0..) {
            assert_eq!((ProbeEvent::from_number(number), event.number()), (Some(event), number));
        }
        assert_eq!(ProbeEvent::from_number(10), None);
    }

    #[test]
    fn variants_count_and_split_off_parts_do_not() {
        for name in ["f", "f.isra.0", "f.constprop.0", "f.isra.0.constprop.1"] {
            assert!(is_variant(name, "f"), "{name}");
        }
        for name in ["", "ff", "f_x", "f.cold", "f.isra.0.cold", "f.part.0", "__pfx_f"] {
            assert!(!is_variant(name, "f"), "{name}");
        }
        assert!(ProbeEvent::Core.is_call_of("read_kcore") && ProbeEvent::Core.is_call_of("read_kcore_iter"));
    }

    #[test]
    fn a_call_concerns_the_sites_that_it_leads_to() {
        let site = ProbeSite {
            event: Some(ProbeEvent::Wake),
            watched: None,
            virt: VirtAddr(0x1000),
            phys: PhysAddr(0),
            loads: None,
        };
        let load = ProbeSite {
            event: Some(ProbeEvent::Trace),
            watched: Some(3),
            virt: VirtAddr(0x2000),
            loads: Some(1),
            ..site
        };
        let sites = ProbeSites { sites: vec![site, load], missing: Vec::new(), traced: vec![PhysAddr(8)] };
        let with_count = |count: u64| {
            let memory = [[0; 8], count.to_le_bytes()].concat();
            sites.concerns(ProbeEvent::Trace, [0; 4], &FlatMemory(memory))
        };
        // Flags are above the count.
        assert!(with_count(1) && with_count(1 << 31 | 0xffff) && !with_count(0) && !with_count(1 << 31));
        let nothing = FlatMemory([0_u8; 0]);
        assert!(sites.concerns(ProbeEvent::Trace, [0; 4], &nothing), "a count that cannot be read");
        let concerns = |event, arguments| sites.concerns(event, arguments, &nothing);
        assert!(
            concerns(ProbeEvent::Patch, [1, 0x1001, 2, 3]) && concerns(ProbeEvent::Patch, [0, 0, 0, 0xff8])
        );
        assert!(!concerns(ProbeEvent::Patch, [0x3000, 0, u64::MAX, 0x1010]));
        assert!(concerns(ProbeEvent::Core, [0; 4]) && !concerns(ProbeEvent::Wake, [0x1000; 4]));
        assert_eq!([0x1000, 0x1005].map(|rip| sites.site_at(VirtAddr(rip))), [Some(&site); 2]);
        assert_eq!([0x2000, 0x2007].map(|rip| sites.site_at(VirtAddr(rip))), [Some(&load); 2]);
        assert_eq!([0xfff, 0x1006, 0x2008].map(|rip| sites.site_at(VirtAddr(rip))), [None; 3]);
        // What is watched has its own kind, also where a call means an event.
        assert_eq!([site.kind(), load.kind()], [1, 13]);
        assert_eq!([1, 13, 6, 255].map(|kind| sites.of_kind(kind)), [Some(&site), Some(&load), None, None]);
    }
}
