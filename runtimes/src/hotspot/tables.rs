//! The tables of structures, types and constants that HotSpot exports for debuggers.

use std::collections::HashMap;

use symbols::bytes::{u32_at, u64_at, until_nul};
use symbols::{LinkAddr, VirtAddr};

use super::Member;
use super::layout::HotspotError;
use super::recognise::TableSymbols;
use crate::ProcessMemory;

/// Entries of one table, at most (JDK 11: about 1,400).
const MAX_ENTRIES: u64 = 16_384;
/// Bytes of an entry, at most (JDK 11 to 25: 48).
const MAX_STRIDE: u64 = 256;
/// Bytes of a name, at most; longer ones are cut, and are not names that are searched for.
const MAX_NAME: usize = 80;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Member or static variable, as the table has it.
#[derive(Debug, Clone, Copy)]
struct FieldEntry {
    is_static: bool,
    /// Offset of a member, or address of a static variable.
    position: u64,
    width: Option<u8>,
}

/// All that the tables contain.
#[derive(Debug, Default)]
pub(super) struct VmTables {
    fields: HashMap<(String, String), FieldEntry>,
    sizes: HashMap<String, u64>,
    ints: HashMap<String, i32>,
}

impl VmTables {
    /// Reads the tables of a process that has mapped the library at `bias`.
    pub(super) fn read(
        memory: &impl ProcessMemory,
        symbols: &TableSymbols,
        bias: u64,
    ) -> Result<Self, HotspotError> {
        let mut tables = Self::default();
        let [start, type_at, name_at, text_at, static_at, offset_at, address_at, stride] =
            variables(memory, symbols.structs, bias)?;
        entries(memory, (start, stride, [type_at, name_at, text_at, address_at]), |entry| {
            let name = |at| u64_at(entry, at).and_then(|at| text(memory, VirtAddr(at)));
            let Some(owner) = name(type_at) else { return false };
            let is_static = u32_at(entry, static_at).is_some_and(|mark| mark != 0);
            let position = u64_at(entry, if is_static { address_at } else { offset_at });
            if let Some((name, position)) = name(name_at).zip(position) {
                let width = u64_at(entry, text_at).and_then(|at| text(memory, VirtAddr(at)));
                let width = width.and_then(|text| width_of(&text));
                tables.fields.insert((owner, name), FieldEntry { is_static, position, width });
            }
            true
        })?;
        let [start, name_at, size_at, stride] = variables(memory, symbols.types, bias)?;
        entries(memory, (start, stride, [name_at, size_at, 0, 0]), |entry| {
            let name = u64_at(entry, name_at).and_then(|at| text(memory, VirtAddr(at)));
            let Some((name, size)) = name.zip(u64_at(entry, size_at)) else { return false };
            tables.sizes.insert(name, size);
            true
        })?;
        let [start, name_at, value_at, stride] = variables(memory, symbols.ints, bias)?;
        entries(memory, (start, stride, [name_at, value_at, 0, 0]), |entry| {
            let name = u64_at(entry, name_at).and_then(|at| text(memory, VirtAddr(at)));
            let Some((name, value)) = name.zip(u32_at(entry, value_at)) else { return false };
            tables.ints.insert(name, value.cast_signed());
            true
        })?;
        Ok(tables)
    }

    /// Returns a member of a structure.
    pub(super) fn member(&self, owner: &str, name: &str) -> Result<Member, HotspotError> {
        self.find(owner, name).ok_or_else(|| missing(owner, name))
    }

    /// Returns a member of a structure that not all versions have.
    pub(super) fn find(&self, owner: &str, name: &str) -> Option<Member> {
        let entry = self.fields.get(&(owner.to_owned(), name.to_owned()))?;
        let offset = u16::try_from(entry.position).ok().filter(|_| !entry.is_static)?;
        Some(Member { offset, width: entry.width? })
    }

    /// Returns the offset of a member whose own type does not matter.
    pub(super) fn offset(&self, owner: &str, name: &str) -> Result<u16, HotspotError> {
        let entry = self.fields.get(&(owner.to_owned(), name.to_owned()));
        let offset = entry.filter(|entry| !entry.is_static).map(|entry| entry.position);
        offset.and_then(|offset| u16::try_from(offset).ok()).ok_or_else(|| missing(owner, name))
    }

    /// Returns the address of a static variable.
    pub(super) fn address(&self, owner: &str, name: &str) -> Result<VirtAddr, HotspotError> {
        let entry = self.fields.get(&(owner.to_owned(), name.to_owned()));
        let entry = entry.filter(|entry| entry.is_static && entry.position != 0);
        entry.map(|entry| VirtAddr(entry.position)).ok_or_else(|| missing(owner, name))
    }

    /// Returns the bytes of a structure.
    pub(super) fn size(&self, name: &str) -> Result<u16, HotspotError> {
        let size = self.sizes.get(name).filter(|&&size| size > 0);
        size.and_then(|&size| u16::try_from(size).ok()).ok_or_else(|| missing(name, "size"))
    }

    /// Returns a constant.
    pub(super) fn int(&self, name: &str) -> Result<i32, HotspotError> {
        self.ints.get(name).copied().ok_or_else(|| missing(name, "value"))
    }
}

fn missing(owner: &str, name: &str) -> HotspotError {
    HotspotError::Missing(format!("{owner}.{name}"))
}

/// Returns the bytes of a C++ type by its name in the table; `None` for a structure.
fn width_of(text: &str) -> Option<u8> {
    let text = text.strip_prefix("volatile ").unwrap_or(text);
    match text {
        "bool" | "u1" | "jbyte" | "signed char" | "CodeBlobKind" => Some(1),
        // `AccessFlags` has 4 bytes up to JDK 24; the flags that are used are in the first two.
        "AccessFlags" | "u2" | "short" | "jshort" | "jushort" | "unsigned short" | "int16_t" | "uint16_t" => {
            Some(2)
        }
        "int" | "u4" | "jint" | "juint" | "unsigned int" | "uint32_t" | "int32_t" => Some(4),
        "address" | "size_t" | "intptr_t" | "uintptr_t" | "uint64_t" | "u8" => Some(8),
        _ if text.ends_with('*') => Some(8),
        _ => None,
    }
}

/// Reads the variables of a table: an address, and offsets within its entries.
fn variables<const N: usize>(
    memory: &impl ProcessMemory,
    symbols: [LinkAddr; N],
    bias: u64,
) -> Result<[usize; N], HotspotError> {
    let mut values = [0; N];
    for (value, symbol) in values.iter_mut().zip(symbols) {
        let word = memory.read_u64(symbol.loaded(bias)).ok_or(HotspotError::NotPresent)?;
        *value = usize::try_from(word).map_err(|_| HotspotError::Invalid)?;
    }
    Ok(values)
}

/// Passes the entries of the table at `start` to `take`, until it returns false: the last one has no name.
fn entries(
    memory: &impl ProcessMemory,
    (start, stride, used): (usize, usize, [usize; 4]),
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<(), HotspotError> {
    let (mut at, stride) = (VirtAddr(start as u64), stride as u64);
    // The library's constructors have not run yet.
    if start == 0 || stride == 0 {
        return Err(HotspotError::NotReady);
    }
    if stride > MAX_STRIDE || used.iter().any(|&offset| (offset as u64).saturating_add(8) > stride) {
        return Err(HotspotError::Invalid);
    }
    for _ in 0..MAX_ENTRIES {
        let entry = memory.read_bytes(at, stride).ok_or(HotspotError::NotPresent)?;
        if !take(&entry) {
            return Ok(());
        }
        at = at.checked_add(stride).ok_or(HotspotError::Invalid)?;
    }
    Err(HotspotError::Invalid)
}

/// Reads a name, without what is beyond its first bytes; `None` for a null pointer.
pub(super) fn text(memory: &impl ProcessMemory, at: VirtAddr) -> Option<String> {
    if at.0 == 0 {
        return None;
    }
    let mut bytes = [0; MAX_NAME];
    // The page after the name may not be present.
    let in_page = usize::try_from(PAGE - at.0 % PAGE).ok()?.min(MAX_NAME);
    let (first, rest) = bytes.split_at_mut(in_page);
    memory.read(at, first)?;
    if !first.contains(&0) {
        memory.read(at.checked_add(in_page as u64)?, rest)?;
    }
    Some(String::from_utf8_lossy(until_nul(&bytes)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::hotspot::{Version, java};

    #[test]
    fn offsets_beyond_an_entry_are_refused() {
        let memory = java(Version::Jdk25);
        for offset in [1, 8, usize::MAX - 7, usize::MAX] {
            let found = entries(&memory, (0x1000, 8, [0, 0, 0, offset]), |_| false);
            assert!(matches!(found, Err(HotspotError::Invalid)), "{offset:#x}: {found:?}");
        }
    }
}
