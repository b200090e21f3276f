//! Code that the kernel generates while it runs, by its own lists: BPF programs and their trampolines,
//! trampolines of the function tracer, slots of kprobes.
//!
//! ```text
//! bpf_kallsyms               -> bpf_ksym, ...         name, start, end
//! pack_list                  -> bpf_prog_pack, ...    memory that programs share; classic programs (seccomp,
//!                                                     socket filters) are on no other list
//! ftrace_ops_trampoline_list -> ftrace_ops, ...       copies of ftrace_caller or ftrace_regs_caller
//! kprobe_insn_slots, kprobe_optinsn_slots -> kprobe_insn_page, ...
//! ```
//!
//! Functions and modules have the names that /proc/kallsyms shows (kernel/bpf/core.c, kernel/trace/ftrace.c,
//! kernel/kprobes.c, kernel/kallsyms.c, Linux 5.10 to 6.12).

mod jit;

use crate::kallsyms::table::SymbolTable;
use crate::layout::GeneratedLayout;
use crate::memory::PhysicalMemory;
use crate::symbol::SymbolAt;
use crate::task::list;
use crate::view::View;
use display::clean::ascii;
use jit::Frameless;
use symbols::VirtAddr;
use symbols::bytes::{index, until_nul};

/// Entries of each list that are read, at most.
const MAX_ENTRIES: usize = 4096;
/// Bytes of one entry's code, at most: a BPF program of a million instructions.
const MAX_CODE: u64 = 16 << 20;
/// Bytes of BPF code that are read for its frames, at most; code beyond that is taken to have a frame
/// everywhere.
const MAX_READ: u64 = 4 << 20;
/// Bytes of a pack (`BPF_PROG_PACK_SIZE`, kernel/bpf/core.c, Linux 6.1: as many for each NUMA node).
const PACK: u64 = 2 << 20;
/// Bytes of a page of kprobe slots.
const PAGE: u64 = 4096;
/// Bytes after the copy in a trampoline: a return and a pointer (`create_trampoline`,
/// arch/x86/kernel/ftrace.c).
const AFTER_COPY: std::ops::RangeInclusive<u64> = 9..=16;
/// Bytes of the call in an optimized probe's slot.
const CALL: u64 = 5;

/// Modules as /proc/kallsyms has them.
const BPF: &str = "bpf";
const FTRACE: &str = "__builtin__ftrace";
const KPROBES: &str = "__builtin__kprobes";

/// Code that the kernel had generated at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GeneratedCode {
    /// By start address.
    regions: Vec<CodeRegion>,
    /// Start addresses of packs; ascending.
    packs: Vec<u64>,
}

/// Function of generated code.
#[derive(Debug, PartialEq, Eq)]
struct CodeRegion {
    start: u64,
    end: u64,
    name: String,
    module: &'static str,
    form: CodeForm,
}

/// Form of a function's code, by which its callers are found.
#[derive(Debug, PartialEq, Eq)]
enum CodeForm {
    /// JIT-compiled: a frame pointer, but for these places.
    FramePointer(Frameless),
    /// No frame: comparisons and jumps.
    Frameless,
    /// Copy of the image's code from this address on, of so many bytes, and a return.
    Copy { original: u64, len: u64 },
    /// Slots of optimized probes, of so many bytes; in each a call at this offset.
    Probes { slot: u64, call: u64 },
    /// Instructions out of other functions.
    Unknown,
}

/// Rule by which a caller of generated code is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerRule {
    /// RBP is a frame pointer.
    FramePointer,
    /// The return address is so many bytes above RSP.
    Return(u8),
    /// The rule of this address in the image.
    As(u64),
    /// A `pt_regs` at RSP.
    Registers,
    /// Not known.
    Unknown,
}

impl GeneratedCode {
    /// Reads the lists, as far as they can be read; at most 4,096 functions of each kind.
    pub(crate) fn read<M: PhysicalMemory>(
        view: View<'_, M>,
        symbols: &SymbolTable,
        layout: GeneratedLayout,
    ) -> Self {
        let reader = ListReader { symbols, view, layout };
        let mut regions = Vec::new();
        regions.extend(reader.bpf().into_iter().flatten());
        regions.extend(reader.ftrace().into_iter().flatten());
        regions.extend(reader.probes("kprobe_insn_slots", "kprobe_insn_page").into_iter().flatten());
        regions.extend(reader.probes("kprobe_optinsn_slots", "kprobe_optinsn_page").into_iter().flatten());
        regions.sort_by_key(|region| region.start);
        let mut packs = reader.packs().unwrap_or_default();
        packs.sort_unstable();
        Self { regions, packs }
    }

    /// Returns the function that covers `at`; a bare module with the offset from its memory's start for code
    /// without a name.
    pub fn symbol_at(&self, at: VirtAddr) -> Option<SymbolAt<'_>> {
        if let Some(region) = self.region_at(at.0) {
            let CodeRegion { name, module, start, .. } = region;
            return Some(SymbolAt { name, module: Some(module), offset: at.0 - start });
        }
        let pack = self.pack_at(at.0)?;
        Some(SymbolAt { name: "", module: Some(BPF), offset: at.0 - pack })
    }

    /// Returns the name, module, start and size in bytes of each function.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, VirtAddr, u64)> {
        self.regions.iter().map(|r| (r.name.as_str(), r.module, VirtAddr(r.start), r.end - r.start))
    }

    /// Returns true for an address in such code.
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.region_at(at).is_some() || self.pack_at(at).is_some()
    }

    /// Returns the rule for an instruction pointer (`exact`), or for the last byte of a call; `None` outside
    /// of such code, and where it has no name.
    pub(crate) fn rule_at(&self, at: u64, exact: bool) -> Option<CallerRule> {
        let region = self.region_at(at)?;
        let offset = at - region.start;
        Some(match &region.form {
            CodeForm::FramePointer(frameless) => u32::try_from(offset)
                .ok()
                .and_then(|offset| frameless.return_address(offset, exact))
                .map_or(CallerRule::FramePointer, CallerRule::Return),
            CodeForm::Frameless => CallerRule::Return(0),
            CodeForm::Copy { original, len } if offset < *len => {
                CallerRule::As(original.wrapping_add(offset))
            }
            CodeForm::Copy { .. } => CallerRule::Return(0),
            CodeForm::Probes { slot, call } if !exact && offset % slot == call + CALL - 1 => {
                CallerRule::Registers
            }
            CodeForm::Probes { .. } | CodeForm::Unknown => CallerRule::Unknown,
        })
    }

    fn region_at(&self, at: u64) -> Option<&CodeRegion> {
        let after = self.regions.partition_point(|region| region.start <= at);
        self.regions.get(after.checked_sub(1)?).filter(|region| at < region.end)
    }

    fn pack_at(&self, at: u64) -> Option<u64> {
        let after = self.packs.partition_point(|start| *start <= at);
        self.packs.get(after.checked_sub(1)?).copied().filter(|start| at - start < PACK)
    }
}

/// Reads the lists.
struct ListReader<'a, M> {
    symbols: &'a SymbolTable,
    view: View<'a, M>,
    layout: GeneratedLayout,
}

impl<M: PhysicalMemory> ListReader<'_, M> {
    /// Returns the addresses of the structures on the list at `head` that are linked at offset `link`.
    fn list(&self, head: u64, link: usize) -> Option<impl Iterator<Item = u64>> {
        Some(list(&self.view, head, MAX_ENTRIES)?.map(move |at| at.wrapping_sub(link as u64)))
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.address_of(name)
    }

    fn bpf(&self) -> Option<Vec<CodeRegion>> {
        let layout = self.layout.bpf?;
        let mut left = MAX_READ;
        let ksyms = self.list(self.symbol("bpf_kallsyms")?, layout.link)?;
        let region = |at: u64| {
            let start = self.view.u64(at, layout.start)?;
            let end = self.view.u64(at, layout.end)?;
            let len = end.checked_sub(start).filter(|len| (1..=MAX_CODE).contains(len))?;
            let mut name = vec![0; layout.name_len];
            self.view.read(at.checked_add(layout.name as u64)?, &mut name)?;
            let name = ascii(until_nul(&name));
            let form = if name.starts_with("bpf_dispatcher_") {
                CodeForm::Frameless
            } else {
                let read = left.checked_sub(len);
                left = read.unwrap_or(left);
                CodeForm::FramePointer(read.and_then(|_| self.frameless(start, len)).unwrap_or_default())
            };
            Some(CodeRegion { start, end, name, module: BPF, form })
        };
        Some(ksyms.filter_map(region).collect())
    }

    fn frameless(&self, start: u64, len: u64) -> Option<Frameless> {
        let mut code = vec![0; index(len)];
        self.view.read(start, &mut code)?;
        Some(Frameless::new(&code))
    }

    fn packs(&self) -> Option<Vec<u64>> {
        let layout = self.layout.packs?;
        let packs = self.list(self.symbol("pack_list")?, layout.link)?;
        Some(packs.filter_map(|at| self.view.u64(at, layout.start)).collect())
    }

    fn ftrace(&self) -> Option<Vec<CodeRegion>> {
        let layout = self.layout.ftrace?;
        let symbol = |name| self.symbol(name);
        // The length shows which of them was copied.
        let originals =
            [("ftrace_caller", "ftrace_caller_end"), ("ftrace_regs_caller", "ftrace_regs_caller_end")]
                .map(|(start, end)| Some((symbol(start)?, symbol(end)?.checked_sub(symbol(start)?)?)));
        let ops = self.list(symbol("ftrace_ops_trampoline_list")?, layout.link)?;
        let region = |at: u64| {
            let start = self.view.u64(at, layout.start)?;
            let size = self.view.u64(at, layout.size).filter(|size| (1..=MAX_CODE).contains(size))?;
            let copied = originals
                .iter()
                .flatten()
                .find(|(_, len)| size.checked_sub(*len).is_some_and(|behind| AFTER_COPY.contains(&behind)));
            let form = copied.map_or(CodeForm::Unknown, |&(original, len)| CodeForm::Copy { original, len });
            let end = start.checked_add(size)?;
            Some(CodeRegion { start, end, name: "ftrace_trampoline".to_owned(), module: FTRACE, form })
        };
        Some(ops.filter_map(region).collect())
    }

    /// Pages of kprobes' slots: those of the cache `cache`, which /proc/kallsyms calls `name`.
    fn probes(&self, cache: &str, name: &str) -> Option<Vec<CodeRegion>> {
        let layout = self.layout.probes?;
        let cache = self.symbol(cache)?;
        let form = || {
            // Bytes from the start of a slot (`TMPL_CALL_IDX`, arch/x86/kernel/kprobes/opt.c); other slots
            // have none.
            let call = self.symbol("optprobe_template_call")?;
            let call = call.checked_sub(self.symbol("optprobe_template_entry")?)?;
            let slot = self.view.u64(cache, layout.slot).filter(|slot| (call..PAGE).contains(slot))?;
            Some(CodeForm::Probes { slot, call })
        };
        let pages = self.list(cache.checked_add(layout.pages as u64)?, layout.link)?;
        let region = |at: u64| {
            let start = self.view.u64(at, layout.start)?;
            let form = form().filter(|_| name.contains("opt")).unwrap_or(CodeForm::Unknown);
            let end = start.checked_add(PAGE)?;
            Some(CodeRegion { start, end, name: name.to_owned(), module: KPROBES, form })
        };
        Some(pages.filter_map(region).collect())
    }
}
