//! The places in the kernel's text, by their bytes.

use crate::address::{PhysAddr, VirtAddr};
use crate::image::Image;
use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;

/// The no-op at the start of a function of a kernel that can trace functions (`x86_nops[5]`,
/// arch/x86/include/asm/nops.h).
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// What may stand before it: ENDBR64 where indirect calls are checked (CONFIG_X86_KERNEL_IBT), or one of the no-ops of 4
/// bytes that take its place in a function nobody calls indirectly (`gen_endbr_poison`, arch/x86/include/asm/ibt.h).
const BEFORE: [[u8; 4]; 4] =
    [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];
/// Bytes of a page; a site lies within one.
const PAGE: u64 = 4096;
/// Functions of one name, at most: the compiler makes variants.
const MAX_VARIANTS: usize = 4;
/// Bytes of a patch of the kernel's text around which it is taken for one of a site.
const NEAR: u64 = 16;

/// What a call of a site means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// The CPU has switched from the task that is the first argument to the current one.
    Switch,
    /// The current task, or an interrupt, wakes the task that is the first argument if it is in one of the states that
    /// are the second.
    Wake,
    /// A new task, the first argument, is about to run for the first time.
    New,
    /// The handler of a hard interrupt begins.
    InterruptBegin,
    /// It has ended; soft interrupts may follow.
    InterruptEnd,
    /// Nothing will be left of the task that is the first argument.
    Release,
    /// The kernel reads its own memory at the second argument, as many bytes as the third says.
    Read,
    /// The kernel changes its text at one of the arguments.
    Patch,
    /// The handler of a hard interrupt has found that a device raised it; its vector is the second argument.
    Vector,
}

/// Events in the order of their numbers.
const EVENTS: [Event; 9] = [
    Event::Switch,
    Event::Wake,
    Event::New,
    Event::InterruptBegin,
    Event::InterruptEnd,
    Event::Release,
    Event::Read,
    Event::Patch,
    Event::Vector,
];

impl Event {
    /// How many there are.
    pub const COUNT: usize = EVENTS.len();

    /// The event of this number.
    pub fn from_number(number: u8) -> Option<Self> {
        EVENTS.get(usize::from(number)).copied()
    }

    /// Its number, 0 to 8.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The function that is called.
    pub fn function(self) -> &'static str {
        match self {
            Self::Switch => "finish_task_switch",
            Self::Wake => "try_to_wake_up",
            Self::New => "wake_up_new_task",
            Self::InterruptBegin => "irq_enter_rcu",
            Self::InterruptEnd => "irq_exit_rcu",
            Self::Release => "release_task",
            Self::Read => "copy_from_kernel_nofault",
            Self::Patch => "__text_poke",
            Self::Vector => "__common_interrupt",
        }
    }

    /// Without these there is nothing exact: switches and wakes are what states follow from, and a kernel must not find
    /// bytes in its text that it has not put there.
    fn is_needed(self) -> bool {
        !matches!(self, Self::InterruptBegin | Self::InterruptEnd | Self::Vector)
    }
}

/// One place to see an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TripSite {
    /// What a call means.
    pub event: Event,
    /// Address of the no-op.
    pub virt: VirtAddr,
    /// Physical address of the same byte; all of it lies in one page.
    pub phys: PhysAddr,
}

/// All places of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TripSites {
    /// The places.
    pub sites: Vec<TripSite>,
    /// Why some events cannot be seen; the others make sense without them.
    pub missing: Vec<Missing>,
}

impl Kernel {
    /// The places where events can be seen, by what stands in the kernel's text now.
    ///
    /// # Errors
    /// Why there are none: a function that is needed does not exist or does not start with the no-op.
    pub fn trip_sites(&self, memory: &impl PhysicalMemory) -> Result<TripSites, Missing> {
        let mut found: [Vec<u64>; EVENTS.len()] = Default::default();
        for (name, at) in self.symbols() {
            for (addresses, event) in found.iter_mut().zip(EVENTS) {
                if is_variant(name, event.function()) && addresses.len() < MAX_VARIANTS {
                    addresses.push(at.0);
                }
            }
        }
        let mut all = TripSites { sites: Vec::new(), missing: Vec::new() };
        for (addresses, event) in found.iter().zip(EVENTS) {
            match self.sites_of(memory, event, addresses) {
                Ok(sites) => all.sites.extend(sites),
                Err(reason) if event.is_needed() => return Err(reason),
                Err(reason) => all.missing.push(reason),
            }
        }
        // One without the other is of no use.
        let interrupts = [Event::InterruptBegin, Event::InterruptEnd];
        let has = |event| all.sites.iter().any(|site| site.event == event);
        if !interrupts.into_iter().all(has) {
            all.sites.retain(|site| !interrupts.contains(&site.event) && site.event != Event::Vector);
        }
        Ok(all)
    }

    fn sites_of(
        &self,
        memory: &impl PhysicalMemory,
        event: Event,
        addresses: &[u64],
    ) -> Result<Vec<TripSite>, Missing> {
        if addresses.is_empty() {
            return Err(Missing::NoSymbol(event.function().to_owned()));
        }
        let view = self.view(memory);
        let site = |&address: &u64| {
            let virt = no_op(memory, view.image, address)?;
            let phys = view.image.translate(virt)?;
            let within = virt & (PAGE - 1) <= PAGE - NOP.len() as u64;
            within.then_some(TripSite { event, virt: VirtAddr(virt), phys })
        };
        addresses
            .iter()
            .map(|address| site(address).ok_or_else(|| Missing::NoNoOp(event.function().to_owned())))
            .collect()
    }
}

impl TripSites {
    /// The event of the no-op in whose place an instruction pointer is, or right behind it, where the guest goes on.
    pub fn event_at(&self, rip: u64) -> Option<Event> {
        let within = |site: &&TripSite| rip.wrapping_sub(site.virt.0) <= NOP.len() as u64;
        self.sites.iter().find(within).map(|site| site.event)
    }

    /// Whether this call of [`Event::Read`] or [`Event::Patch`] concerns one of the sites. `arguments` are RDI, RSI, RDX and
    /// RCX (System V ABI, AMD64 supplement 1.0, 3.2.3).
    pub fn concerns(&self, event: Event, arguments: [u64; 4]) -> bool {
        let [_, source, size, _] = arguments;
        match event {
            Event::Read => {
                let end = source.saturating_add(size);
                self.sites.iter().any(|site| site.virt.0 < end && source < site.virt.0 + NOP.len() as u64)
            }
            // The compiler may have moved its arguments.
            Event::Patch => {
                let near = |at: u64| self.sites.iter().any(|site| at.abs_diff(site.virt.0) < NEAR);
                arguments.into_iter().any(near)
            }
            _ => false,
        }
    }
}

/// Whether `name` is the function `base` or a variant that the compiler has made of it. Parts that it has split off are
/// none: they are called from within.
fn is_variant(name: &str, base: &str) -> bool {
    let Some(rest) = name.strip_prefix(base) else { return false };
    rest.is_empty() || rest.starts_with('.') && !rest.contains(".cold") && !rest.contains(".part.")
}

/// Where the no-op of the function at `address` stands.
fn no_op(memory: &impl PhysicalMemory, image: &Image, address: u64) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_numbers() {
        for number in 0..9 {
            assert_eq!(Event::from_number(number).map(Event::number), Some(number));
        }
        assert_eq!(Event::from_number(9), None);
    }

    #[test]
    fn variants_count_and_split_off_parts_do_not() {
        for name in ["f", "f.isra.0", "f.constprop.0", "f.isra.0.constprop.1"] {
            assert!(is_variant(name, "f"), "{name}");
        }
        for name in ["", "ff", "f_x", "f.cold", "f.isra.0.cold", "f.part.0", "__pfx_f"] {
            assert!(!is_variant(name, "f"), "{name}");
        }
    }

    #[test]
    fn a_read_or_patch_concerns_the_sites_that_it_touches() {
        let site = TripSite { event: Event::Wake, virt: VirtAddr(0x1000), phys: PhysAddr(0) };
        let sites = TripSites { sites: vec![site], missing: Vec::new() };
        let read = |source, size| sites.concerns(Event::Read, [0, source, size, 0]);
        assert!(read(0x1000, 5) && read(0x1004, 1) && read(0xf00, 0x101) && read(0, u64::MAX));
        assert!(!read(0x1005, 100) && !read(0xff0, 16) && !read(0x1000, 0));
        assert!(
            sites.concerns(Event::Patch, [1, 0x1001, 2, 3]) && sites.concerns(Event::Patch, [0, 0, 0, 0xff8])
        );
        assert!(!sites.concerns(Event::Patch, [0x2000, 0, u64::MAX, 0x1010]));
        assert!(!sites.concerns(Event::Wake, [0x1000; 4]));
        assert_eq!([0x1000, 0x1005].map(|rip| sites.event_at(rip)), [Some(Event::Wake); 2]);
        assert_eq!([0xfff, 0x1006].map(|rip| sites.event_at(rip)), [None; 2]);
    }
}
