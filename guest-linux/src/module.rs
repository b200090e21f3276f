//! Loaded modules and their symbols.
//!
//! The list `modules` links every `struct module`; its `kallsyms` describes an ELF symbol table, cut
//! down to what is loaded, with a type letter for each entry (`struct mod_kallsyms`,
//! include/linux/module.h).

use display::clean::ascii;

use crate::kallsyms::MAX_NAME;
use crate::kallsyms::decode::{NameList, SymbolNames};
use crate::kallsyms::functions::{FunctionTable, KallsymsSymbol};
use crate::layout::{ModuleKallsymsLayout, ModuleLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::symbol::SymbolAt;
use crate::task::list;
use crate::view::View;
use symbols::VirtAddr;
use symbols::bytes::{u32_at, u64_at, until_nul};

/// Modules that are read, at most.
const MAX_MODULES: usize = 4096;
/// Symbols of one module, at most: the largest (graphics drivers) have 40,000.
const MAX_SYMBOLS: u64 = 1 << 18;
/// Symbols of all modules, at most.
const MAX_ALL_SYMBOLS: u64 = 1 << 20;
/// Bytes of names of one module, at most.
const MAX_STRINGS: u64 = 16 << 20;
/// Bytes of names of all modules, at most.
const MAX_ALL_STRINGS: u64 = 64 << 20;
/// Bytes of text of a module, at most: it must fit its region (`MODULES_LEN`).
const MAX_TEXT: u64 = 1 << 30;
/// `MODULE_STATE_UNFORMED` (include/linux/module.h): nothing of it can be believed yet.
const UNFORMED: u32 = 3;
/// Bytes of an `Elf64_Sym`.
const ELF_SYMBOL: usize = 24;

/// The modules that were loaded at one moment.
#[derive(Debug, Default)]
pub struct Modules {
    /// By start address.
    sorted: Vec<LoadedModule>,
}

/// Text of a module: its own, or what is freed once the module has started.
#[derive(Debug)]
struct LoadedModule {
    name: String,
    start: u64,
    size: u64,
    names: SymbolNames,
    functions: FunctionTable,
    orc: Option<ModuleOrc>,
}

/// Location of a module's ORC tables; nothing of it is checked yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleOrc {
    /// Virtual address of the array of addresses.
    pub(crate) addresses: u64,
    /// Virtual address of the array of entries.
    pub(crate) entries: u64,
    /// Elements of both.
    pub(crate) count: u32,
}

impl Modules {
    /// Returns the module symbol that covers `at`; a bare module with offset when no symbol does.
    pub fn symbol_at(&self, at: VirtAddr) -> Option<SymbolAt<'_>> {
        let after = self.sorted.partition_point(|m| m.start <= at.0);
        let module = self.sorted.get(after.checked_sub(1)?)?;
        let from_start = at.0 - module.start;
        if from_start >= module.size {
            return None;
        }
        let (name, offset) = match module.functions.find(at.0) {
            Some((name, offset)) => (module.names.get(name), offset),
            None => ("", from_start),
        };
        Some(SymbolAt { name, module: Some(&module.name), offset })
    }

    /// Returns the names with address range of the text, start and size in bytes: one for each module, two
    /// while it starts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, VirtAddr, u64)> {
        self.sorted.iter().map(|m| (m.name.as_str(), VirtAddr(m.start), m.size))
    }

    /// Returns the start and end of the text of each module that has ORC tables, and where those are;
    /// ascending.
    pub(crate) fn orc_tables(&self) -> impl Iterator<Item = ((u64, u64), ModuleOrc)> {
        // The end was checked with the head.
        self.sorted.iter().filter_map(|m| Some(((m.start, m.start + m.size), m.orc?)))
    }

    /// Reads all modules with the heads `heads`.
    pub(crate) fn read<M: PhysicalMemory>(
        view: &View<'_, M>,
        layout: &ModuleLayout,
        heads: Vec<ModuleHead>,
    ) -> Self {
        let mut budget = ReadBudget { symbols: MAX_ALL_SYMBOLS, strings: MAX_ALL_STRINGS };
        Self {
            sorted: heads
                .into_iter()
                .map(|head| LoadedModule::read(view, layout, head, &mut budget))
                .collect(),
        }
    }

    /// Returns true if these are the modules with the heads `heads`.
    pub(crate) fn have(&self, heads: &[ModuleHead]) -> bool {
        let same = |(module, head): (&LoadedModule, &ModuleHead)| {
            (module.start, module.size, &module.name) == (head.start, head.size, &head.name)
        };
        self.sorted.len() == heads.len() && self.sorted.iter().zip(heads).all(same)
    }
}

/// Text of a module without what takes long to read.
#[derive(Debug)]
pub(crate) struct ModuleHead {
    /// Address of its `struct module`.
    at: u64,
    name: String,
    start: u64,
    size: u64,
}

impl ModuleHead {
    /// Reads the heads of all modules on the list at `list_head`, by start address.
    pub(crate) fn all<M: PhysicalMemory>(
        view: &View<'_, M>,
        layout: &ModuleLayout,
        list_head: u64,
    ) -> Result<Vec<Self>, Missing> {
        let links = list(view, list_head, MAX_MODULES).ok_or(Missing::ModuleList)?;
        let mut heads = Vec::new();
        for link in links {
            let at = link.wrapping_sub(layout.list as u64);
            let text = Some((layout.text_base, layout.text_size));
            for place in [text, layout.init_text].into_iter().flatten() {
                heads.extend(Self::read(view, layout, at, place));
            }
        }
        heads.sort_by_key(|head| head.start);
        Ok(heads)
    }

    /// Reads the head of the text at `place` of the module at `at`: offsets of base and size.
    fn read<M: PhysicalMemory>(
        view: &View<'_, M>,
        layout: &ModuleLayout,
        at: u64,
        (base, size): (usize, usize),
    ) -> Option<Self> {
        if view.u32(at, layout.state)? == UNFORMED {
            return None;
        }
        let mut name = vec![0; layout.name_len];
        view.read(at.checked_add(layout.name as u64)?, &mut name)?;
        let start = view.u64(at, base)?;
        let size = u64::from(view.u32(at, size)?);
        start.checked_add(size)?;
        if start == 0 || size == 0 || size > MAX_TEXT {
            return None;
        }
        Some(Self { at, name: ascii(until_nul(&name)), start, size })
    }
}

/// Budget of the reads for all modules together.
struct ReadBudget {
    symbols: u64,
    strings: u64,
}

impl LoadedModule {
    /// Reads symbols and the place of unwind tables.
    fn read<M: PhysicalMemory>(
        view: &View<'_, M>,
        layout: &ModuleLayout,
        ModuleHead { at, name, start, size }: ModuleHead,
        budget: &mut ReadBudget,
    ) -> Self {
        let (names, functions) = layout
            .kallsyms
            // The end was checked with the head.
            .and_then(|layout| symbols(view, &layout, at, (start, start + size), budget))
            .unwrap_or_default();
        let orc = layout.orc.and_then(|layout| {
            Some(ModuleOrc {
                addresses: view.u64(at, layout.addresses)?,
                entries: view.u64(at, layout.entries)?,
                count: view.u32(at, layout.count)?,
            })
        });
        Self { name, start, size, names, functions, orc }
    }
}

/// Returns the functions of the module at `module`, whose text is `start..end`.
fn symbols<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &ModuleKallsymsLayout,
    module: u64,
    text: (u64, u64),
    budget: &mut ReadBudget,
) -> Option<(SymbolNames, FunctionTable)> {
    let kallsyms = view.u64(module, layout.pointer)?;
    let count = u64::from(view.u32(kallsyms, layout.num_symtab)?);
    if count > MAX_SYMBOLS {
        return None;
    }
    budget.symbols = budget.symbols.checked_sub(count)?;
    let count = usize::try_from(count).ok()?;
    let bytes = |pointer: usize, len: usize| {
        let mut bytes = vec![0; len];
        view.read(view.u64(kallsyms, pointer)?, &mut bytes)?;
        Some(bytes)
    };
    let symtab = bytes(layout.symtab, count * ELF_SYMBOL)?;
    let types = bytes(layout.typetab, count)?;
    let last_name =
        symtab.chunks_exact(ELF_SYMBOL).filter_map(|symbol| u32_at(symbol, 0)).max().map_or(0, u64::from);
    if last_name > MAX_STRINGS {
        return None;
    }
    budget.strings = budget.strings.checked_sub(last_name)?;
    let strings = strings(view, view.u64(kallsyms, layout.strtab)?, last_name)?;

    let mut names = NameList::default();
    let mut kept = Vec::new();
    for (symbol, &kind) in symtab.chunks_exact(ELF_SYMBOL).zip(&types) {
        // Elf64_Sym: st_name at 0, st_value at 8.
        let name = u32_at(symbol, 0)? as usize;
        let value = u64_at(symbol, 8)?;
        let name = until_nul(strings.get(name..).unwrap_or(&[]));
        if name.is_empty() || !(text.0..text.1).contains(&value) {
            continue;
        }
        names.push(&ascii(&name[..name.len().min(MAX_NAME)]));
        kept.push((value, kind));
    }
    let names = names.finish();
    let functions = FunctionTable::new(text, kept.len(), |i| {
        let (address, kind) = kept.get(i as usize).copied().unwrap_or_default();
        KallsymsSymbol { address, kind, name: names.get(i) }
    });
    Some((names, functions))
}

/// Returns the string table: up to the last name's start, and that name.
fn strings<M: PhysicalMemory>(view: &View<'_, M>, at: u64, last_name: u64) -> Option<Vec<u8>> {
    let last_name = usize::try_from(last_name).ok()?;
    let mut bytes = vec![0; last_name];
    view.read(at, &mut bytes)?;
    for _ in 0..MAX_NAME {
        let mut byte = [0];
        view.read(at.checked_add(bytes.len() as u64)?, &mut byte)?;
        bytes.extend(byte);
        if byte == [0] {
            break;
        }
    }
    Some(bytes)
}
