//! The functions of a file by address.

use super::demangle::Names;
use super::mini::debug_data;
use super::plt::{StubTarget, stubs};
use super::resolvers::implementations;
use super::symbols::{RawSymbol, SymbolNames, SymbolTable};
use crate::elf::ElfFile;

/// Functions before an address that may enclose it: those between start inside and end before it.
const MAX_NESTED: usize = 16;

/// Bytes of a name that decide between several.
const MAX_RANKED: usize = 64;

/// Resolvers of a file that are read, and implementations that they choose from, at most (libc: 47 and 300).
const MAX_RESOLVERS: usize = 1024;
const MAX_IMPLEMENTATIONS: usize = 16_384;

/// Starts of functions by other means than symbols: by call frame information.
pub trait FunctionStarts {
    /// Returns the start of the function that covers `address`, `None` where that is not known.
    fn function_start(&self, address: u64) -> Option<u64>;
}

impl<F: Fn(u64) -> Option<u64>> FunctionStarts for F {
    fn function_start(&self, address: u64) -> Option<u64> {
        self(address)
    }
}

/// Kind of code that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FunctionKind {
    /// A function (STT_FUNC).
    Function,
    /// The resolver that chooses an implementation of the function (STT_GNU_IFUNC).
    Resolver,
    /// A stub of the PLT, named `function@plt`.
    Plt,
    /// A label without a type, as hand-written assembler has.
    Label,
}

/// A function that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Name, demangled.
    pub name: String,
    /// First address, as the file counts.
    pub start: u64,
    /// Size in bytes; `None` when no symbol has the size and the function was taken to reach to the next one.
    pub size: Option<u64>,
    /// Kind of code.
    pub kind: FunctionKind,
}

/// Returns the name of code that no symbol covers, by the start of its function: `libz.so.1[0x24a0]`.
pub fn unnamed(module: &str, start: Option<u64>) -> String {
    match start {
        Some(start) => format!("{module}[{start:#x}]"),
        None => format!("{module}[?]"),
    }
}

/// A function: 32 bytes, of which a large library has a hundred thousand.
#[derive(Debug, Clone, Copy)]
struct SymbolEntry {
    start: u64,
    /// First address after it.
    end: u64,
    name: FunctionName,
    kind: FunctionKind,
    is_sized: bool,
}

/// Names stay where they are and are demangled when they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FunctionName {
    /// Table, offset.
    Symbol(u8, u32),
    /// Which of the stubs of the PLT it is.
    Stub(u32),
}

/// Target of a stub of the PLT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StubCallee {
    /// The function with the name at this offset of `.dynsym`'s names.
    Named(u32),
    /// Function that the resolver at this address chose.
    Resolver(u64),
    /// The dynamic linker.
    Linker,
    Unknown,
}

/// The functions of one file, sorted. Of its symbol tables only the names are kept.
#[derive(Debug, Default)]
pub struct FunctionTable {
    entries: Vec<SymbolEntry>,
    /// Of each table.
    tables: Vec<SymbolNames>,
    stubs: Vec<StubCallee>,
    names: Names,
}

impl FunctionTable {
    /// Reads the symbols of `elf` and of its separate debug file: `.symtab` of both, `.dynsym`, and
    /// `.gnu_debugdata` where neither has a `.symtab`; implementations that resolvers choose from, with the
    /// name of the function; PLT entries. A table that cannot be read counts as
    /// missing.
    pub fn read(elf: &ElfFile, debug: Option<&ElfFile>) -> Self {
        let mut tables = Vec::new();
        for file in debug.into_iter().chain([elf]) {
            tables.extend(SymbolTable::read(file, ".symtab", ".strtab").ok());
        }
        if tables.is_empty() {
            let small = debug_data(elf).and_then(|small| SymbolTable::read(&small, ".symtab", ".strtab"));
            tables.extend(small.ok());
        }
        let dynamic = SymbolTable::read(elf, ".dynsym", ".dynstr").ok();
        tables.extend(dynamic.clone());
        let mut table = Self {
            entries: symbols(elf, &tables),
            tables: tables.iter().map(|table| table.names().clone()).collect(),
            stubs: Vec::new(),
            names: Names::default(),
        };
        table.add_implementations(elf);
        // The last of the tables, if it is there, is `.dynsym`.
        table.add_stubs(elf, dynamic.as_ref());
        table.close_gaps(elf);
        table.entries.shrink_to_fit();
        table
    }

    /// Functions that it knows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it knows none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the function that covers `address`, an address of the file. A symbol without a size does not
    /// cover code that is another function by `starts`.
    pub fn find(&self, address: u64, starts: &dyn FunctionStarts) -> Option<Function> {
        let entry = self.covering(address)?;
        if !entry.is_sized && starts.function_start(address).is_some_and(|start| start > entry.start) {
            return None;
        }
        Some(Function {
            name: self.name(entry.name),
            start: entry.start,
            size: entry.is_sized.then(|| entry.end - entry.start),
            kind: entry.kind,
        })
    }

    /// Returns all functions by start address.
    pub fn iter(&self) -> impl Iterator<Item = Function> {
        self.entries.iter().map(|entry| Function {
            name: self.name(entry.name),
            start: entry.start,
            size: entry.is_sized.then(|| entry.end - entry.start),
            kind: entry.kind,
        })
    }

    /// Returns the name for `address` in `module`: of the symbol that covers it, else [`unnamed`].
    pub fn name_at(&self, module: &str, address: u64, starts: &dyn FunctionStarts) -> String {
        match self.find(address, starts) {
            Some(function) => function.name,
            None => unnamed(module, starts.function_start(address)),
        }
    }

    fn name(&self, name: FunctionName) -> String {
        match name {
            FunctionName::Symbol(table, offset) => self
                .tables
                .get(usize::from(table))
                .map_or_else(String::new, |names| self.names.readable(names.get(offset))),
            FunctionName::Stub(number) => format!("{}@plt", self.callee(number)),
        }
    }

    /// Returns the name of what a stub jumps to.
    fn callee(&self, stub: u32) -> String {
        match self.stubs.get(crate::bytes::index(stub.into())).unwrap_or(&StubCallee::Unknown) {
            StubCallee::Named(offset) => {
                let names = self.tables.last();
                names.map_or_else(String::new, |names| self.names.readable(names.get(*offset)))
            }
            StubCallee::Resolver(address) => match self.covering(*address).map(|resolver| resolver.name) {
                Some(name @ FunctionName::Symbol(..)) => self.name(name),
                _ => format!("*{address:#x}"),
            },
            StubCallee::Linker => "_dl_runtime_resolve".into(),
            StubCallee::Unknown => "?".into(),
        }
    }

    fn covering(&self, address: u64) -> Option<&SymbolEntry> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        self.entries.get(..after)?.iter().rev().take(MAX_NESTED).find(|entry| address < entry.end)
    }

    /// Adds the implementations that resolvers choose from, where no symbol has a name.
    fn add_implementations(&mut self, elf: &ElfFile) {
        let resolvers = self.entries.iter().filter(|entry| entry.kind == FunctionKind::Resolver);
        let chosen = resolvers.take(MAX_RESOLVERS).flat_map(|resolver| {
            let found = implementations(elf, resolver.start, resolver.end - resolver.start);
            found.into_iter().map(|start| (start, resolver.name))
        });
        let is_new = |start: u64| {
            let starts = self.entries.binary_search_by_key(&start, |entry| entry.start);
            starts.is_err() && self.covering(start).is_none()
        };
        let chosen: Vec<SymbolEntry> = chosen
            .take(MAX_IMPLEMENTATIONS)
            .filter(|&(start, _)| is_new(start))
            .map(|(start, name)| SymbolEntry {
                start,
                end: start,
                name,
                kind: FunctionKind::Function,
                is_sized: false,
            })
            .collect();
        self.entries.extend(chosen);
    }

    /// Adds the stubs of the PLT, which jump to symbols of `dynamic`.
    fn add_stubs(&mut self, elf: &ElfFile, dynamic: Option<&SymbolTable>) {
        for (number, stub) in (0..).zip(stubs(elf)) {
            self.stubs.push(match stub.target {
                StubTarget::Symbol(symbol) => dynamic
                    .and_then(|table| table.name_of(symbol))
                    .map_or(StubCallee::Unknown, StubCallee::Named),
                StubTarget::Resolver(address) => StubCallee::Resolver(address),
                StubTarget::Linker => StubCallee::Linker,
            });
            self.entries.push(SymbolEntry {
                start: stub.start,
                end: stub.start.saturating_add(stub.size),
                name: FunctionName::Stub(number),
                kind: FunctionKind::Plt,
                is_sized: true,
            });
        }
        self.entries.sort_by_key(|entry| (entry.start, entry.kind));
        self.entries.dedup_by_key(|entry| entry.start);
    }

    /// Returns a symbol without a size reaches to the next one, and not out of its section or segment.
    fn close_gaps(&mut self, elf: &ElfFile) {
        let mut bounds: Vec<(u64, u64)> = elf
            .sections()
            .filter(|section| section.address != 0 && elf.is_executable(section.address))
            .map(|section| (section.address, section.address.saturating_add(section.size)))
            .collect();
        bounds.sort_unstable();
        if bounds.is_empty() {
            let executable = elf.segments().iter().filter(|segment| segment.executable);
            bounds.extend(executable.map(|s| (s.address, s.address + s.memory_size)));
        }
        let mut next = u64::MAX;
        for entry in self.entries.iter_mut().rev() {
            if !entry.is_sized {
                let after = bounds.partition_point(|(start, _)| *start <= entry.start);
                let bound = after.checked_sub(1).and_then(|at| bounds.get(at)).map_or(entry.start, |b| b.1);
                entry.end = next.min(bound).max(entry.start);
            }
            next = entry.start;
        }
    }
}

/// Returns one entry for each start address: of several names the one with a type, a size and the widest
/// binding, then with the fewest leading underscores, then the shortest, then the first by its letters.
fn symbols(elf: &ElfFile, tables: &[SymbolTable]) -> Vec<SymbolEntry> {
    let mut found = Vec::new();
    for (number, table) in (0u8..).zip(tables) {
        found.extend(table.functions().filter(|s| elf.is_executable(s.start)).map(|s| (number, s)));
    }
    let rank = |&(number, symbol): &(u8, RawSymbol)| {
        let name = tables.get(usize::from(number)).map_or(&[][..], |table| table.names().get(symbol.name));
        let name = name.get(..MAX_RANKED).unwrap_or(name);
        let underscores = name.iter().take_while(|&&b| b == b'_').count();
        (symbol.kind, symbol.size == 0, symbol.binding, underscores, name.len(), name)
    };
    found.sort_by(|a, b| a.1.start.cmp(&b.1.start).then_with(|| rank(a).cmp(&rank(b))));
    found.dedup_by_key(|(_, symbol)| symbol.start);
    let mut covered = 0;
    let mut entries = Vec::with_capacity(found.len());
    for (number, symbol) in found {
        // A label inside a function is a place in it.
        if symbol.kind == FunctionKind::Label && symbol.start < covered {
            continue;
        }
        let end = symbol.start.saturating_add(symbol.size);
        if symbol.kind != FunctionKind::Label {
            covered = covered.max(end);
        }
        let name = FunctionName::Symbol(number, symbol.name);
        let is_sized = symbol.size > 0;
        entries.push(SymbolEntry { start: symbol.start, end, name, kind: symbol.kind, is_sized });
    }
    entries
}
