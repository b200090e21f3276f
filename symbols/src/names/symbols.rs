//! Symbol tables: which of their entries are functions.

use std::sync::Arc;

use goblin::elf::section_header::{SHN_ABS, SHN_UNDEF};
use goblin::elf::sym::{STB_LOCAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT};

use super::functions::FunctionKind;
use crate::LinkAddr;
use crate::bytes::{index, u16_at, u32_at, u64_at, until_nul};
use crate::elf::{ElfError, ElfFile};

/// Bytes of an `Elf64_Sym`: name (u32), info (u8), other (u8), section (u16), value (u64), size (u64).
const ENTRY: usize = 24;
/// Symbols of one table that are read, at most; browsers have one or two million.
const MAX_SYMBOLS: usize = 4 << 20;
/// Bytes of one name, at most: a longer one is cut there.
const MAX_NAME: usize = 16 << 10;

/// A symbol table with its names, as long as it is read.
#[derive(Debug, Clone)]
pub(super) struct SymbolTable {
    entries: Arc<[u8]>,
    names: SymbolNames,
}

/// The names of a symbol table, which outlive it.
#[derive(Debug, Clone)]
pub(super) struct SymbolNames(Arc<[u8]>);

/// One function of a symbol table.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawSymbol {
    pub start: u64,
    /// In bytes, 0 when the table does not have it.
    pub size: u64,
    /// Offset of its name.
    pub name: u32,
    pub kind: FunctionKind,
    /// 0 global, 1 weak, 2 local.
    pub binding: u8,
}

impl SymbolTable {
    /// `.symtab` with `.strtab`, or `.dynsym` with `.dynstr`.
    pub fn read(elf: &ElfFile, table: &str, names: &str) -> Result<Self, ElfError> {
        let entries = elf.section(table)?.bytes;
        if entries.len() / ENTRY > MAX_SYMBOLS {
            return Err(ElfError::TooMany {
                what: format!("symbols in {table}"),
                count: (entries.len() / ENTRY) as u64,
            });
        }
        Ok(Self { entries, names: SymbolNames(elf.section(names)?.bytes) })
    }

    /// Returns the functions, and the untyped labels that hand-written assembler leaves, in file order.
    pub fn functions(&self) -> impl Iterator<Item = RawSymbol> {
        self.entries.chunks_exact(ENTRY).filter_map(|entry| {
            let section = u32::from(u16_at(entry, 6)?);
            if section == SHN_UNDEF || section == SHN_ABS {
                return None;
            }
            let info = *entry.get(4)?;
            let kind = match info & 0xf {
                STT_FUNC => FunctionKind::Function,
                STT_GNU_IFUNC => FunctionKind::Resolver,
                STT_NOTYPE => FunctionKind::Label,
                _ => return None,
            };
            let binding = match info >> 4 {
                STB_WEAK => 1,
                STB_LOCAL => 2,
                _ => 0,
            };
            let name = u32_at(entry, 0)?;
            let symbol =
                RawSymbol { start: u64_at(entry, 8)?, size: u64_at(entry, 16)?, name, kind, binding };
            self.names.0.get(index(name.into())).is_some_and(|first| *first != 0).then_some(symbol)
        })
    }

    /// Passes the names of all functions and variables that are defined to `each`, with their places.
    fn places(&self, mut each: impl FnMut(&[u8], SymbolPlace)) {
        for entry in self.entries.chunks_exact(ENTRY) {
            let is_one = entry.get(4).is_some_and(|info| matches!(info & 0xf, STT_OBJECT | STT_FUNC));
            let section = u16_at(entry, 6).map_or(SHN_UNDEF, u32::from);
            if !is_one || section == SHN_UNDEF {
                continue;
            }
            let name = u32_at(entry, 0).map(|name| self.names.get(name)).unwrap_or_default();
            if let Some(place) = u64_at(entry, 8).map(LinkAddr).zip(u64_at(entry, 16)) {
                each(name, place);
            }
        }
    }

    /// Returns the offset of the name of the symbol with this number, as relocations count them; `None`
    /// without a name.
    pub fn name_of(&self, number: u32) -> Option<u32> {
        let entry = self.entries.chunks_exact(ENTRY).nth(index(number.into()))?;
        u32_at(entry, 0).filter(|&name| !self.names.get(name).is_empty())
    }

    /// Returns the names.
    pub fn names(&self) -> &SymbolNames {
        &self.names
    }
}

/// Address and size in bytes of a function or variable.
type SymbolPlace = (LinkAddr, u64);

/// Returns address and size of the functions and variables `names` that other files can use (`.dynsym`), each
/// `None` if it is not defined there.
pub fn exported<const N: usize>(
    elf: &ElfFile,
    names: &[&str; N],
) -> Result<[Option<SymbolPlace>; N], ElfError> {
    let table = SymbolTable::read(elf, ".dynsym", ".dynstr")?;
    let mut found = [None; N];
    table.places(|name, place| note(&mut found, names, name, place));
    Ok(found)
}

/// Returns address and size of the functions and variables `names`, also of those that other files cannot use
/// (`.symtab`), each `None` if it is not defined, or if the table was stripped.
pub fn defined<const N: usize>(
    elf: &ElfFile,
    names: &[&str; N],
) -> Result<[Option<SymbolPlace>; N], ElfError> {
    let mut found = exported(elf, names)?;
    if found.contains(&None)
        && let Ok(table) = SymbolTable::read(elf, ".symtab", ".strtab")
    {
        table.places(|name, place| note(&mut found, names, name, place));
    }
    Ok(found)
}

/// Returns the names, without `prefix`, and the addresses of the functions and variables that other files can
/// use and whose names begin with it; at most `limit`.
pub fn exported_with_prefix(
    elf: &ElfFile,
    prefix: &str,
    limit: usize,
) -> Result<Vec<(String, LinkAddr)>, ElfError> {
    let table = SymbolTable::read(elf, ".dynsym", ".dynstr")?;
    let mut found = Vec::new();
    table.places(|name, (at, _)| {
        let rest = name.strip_prefix(prefix.as_bytes()).filter(|_| found.len() < limit);
        found.extend(rest.map(|rest| (String::from_utf8_lossy(rest).into_owned(), at)));
    });
    Ok(found)
}

/// Notes the place of a symbol whose name is among `names`, unless it has one.
fn note(found: &mut [Option<SymbolPlace>], names: &[&str], name: &[u8], place: SymbolPlace) {
    for (known, wanted) in found.iter_mut().zip(names) {
        if known.is_none() && wanted.as_bytes() == name {
            *known = Some(place);
        }
    }
}

impl SymbolNames {
    /// Returns the name at `offset`, empty where there is none.
    pub fn get(&self, offset: u32) -> &[u8] {
        let rest = self.0.get(index(offset.into())..).unwrap_or_default();
        until_nul(rest.get(..MAX_NAME).unwrap_or(rest))
    }
}
