//! Go's own table of its functions, which is in every Go program, stripped or not: names, source lines, frame
//! sizes.
//!
//! ```text
//! .gopclntab   header | names | units | files | values by address | functions by address, then facts of each
//!
//! function:    name, where the values of its frame size, file and line start, its unit
//! values:      pairs of differences: of the value (zigzag), of the address
//! file:        number in the unit -> offset of a path
//! ```
//!
//! Three layouts, distinguished by the magic number: of Go 1.16 and 1.17, of 1.18 and 1.19, and since 1.20.
//! Facts from Go's own runtime/symtab.go, runtime/runtime2.go (`_func`) and debug/gosym/pclntab.go of 1.16,
//! 1.19 and 1.22.
//!
//! The table is the guest's: offsets are checked where they are used, and no look-up takes more than
//! `MAX_STEPS` steps.

#[cfg(any(test, feature = "fixture"))]
pub mod made_up;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use display::clean::ascii;

use crate::bytes::{index, u32_at, u64_at, until_nul};
use crate::elf::ElfFile;

/// Sections that hold it; the second in programs that are loaded anywhere.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Pairs of values that one look-up reads, at most; the longest function of Debian's fzf has some thousands.
const MAX_STEPS: usize = 1 << 16;
/// Bytes of a name or path, at most: a longer one is cut there.
const MAX_TEXT: usize = 4096;
/// Functions of one program, at most.
const MAX_FUNCTIONS: u64 = 4 << 20;
/// Bytes of an `Elf64_Rela`: place, kind, addend.
const RELOCATION: usize = 24;
/// Offset of the address that functions are counted from, in the header of all but the oldest layout.
const TEXT_START: usize = 24;

/// `funcFlag_TOPFRAME`: nothing calls it. `funcFlag_SPWRITE`: it changes stacks, and Go's own unwinder ends
/// there.
const ENDS: u8 = 1 | 2;

/// Version of the table's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableLayout {
    Go1_16,
    Go1_18,
    Go1_20,
}

/// Offsets in what is known of a function.
#[derive(Debug, Clone, Copy)]
struct FieldOffsets {
    name: usize,
    frame: usize,
    file: usize,
    line: usize,
    unit: usize,
    /// `None` where there are no flags.
    flags: Option<usize>,
}

impl TableLayout {
    fn from_magic(magic: u32) -> Option<Self> {
        match magic {
            0xffff_fffa => Some(Self::Go1_16),
            0xffff_fff0 => Some(Self::Go1_18),
            0xffff_fff1 => Some(Self::Go1_20),
            _ => None,
        }
    }

    fn offsets(self) -> FieldOffsets {
        match self {
            // After an address of 8 bytes instead of an offset of 4.
            Self::Go1_16 => FieldOffsets { name: 8, frame: 20, file: 24, line: 28, unit: 36, flags: None },
            Self::Go1_18 => {
                FieldOffsets { name: 4, frame: 16, file: 20, line: 24, unit: 32, flags: Some(37) }
            }
            Self::Go1_20 => {
                FieldOffsets { name: 4, frame: 16, file: 20, line: 24, unit: 32, flags: Some(41) }
            }
        }
    }
}

/// A function of a Go program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoFunction {
    /// Name, package included, like `main.main`.
    pub name: String,
    /// First address, as the file counts.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
}

/// Rule by which the caller of a function is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoFrame {
    /// Bytes from the stack pointer to the return address.
    Size(u32),
    /// Outermost function of its stack.
    Outermost,
}

/// The table of one program.
#[derive(Debug, Clone)]
pub struct GoTable {
    bytes: Arc<[u8]>,
    layout: TableLayout,
    /// Address that functions are counted from.
    text: u64,
    count: usize,
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    functions: usize,
}

impl GoTable {
    /// Returns the table of `elf`; `None` for a program of another language, and for a table that is not
    /// understood.
    pub fn read(elf: &ElfFile) -> Option<Self> {
        let section = SECTIONS.iter().find_map(|name| elf.section(name).ok())?;
        let relocated = || {
            let place = section.address.checked_add(TEXT_START as u64)?;
            let relocations = elf.section(".rela.dyn").ok()?.bytes;
            let found = relocations.chunks_exact(RELOCATION).find(|entry| u64_at(entry, 0) == Some(place))?;
            u64_at(found, 16)
        };
        Self::parse(section.bytes, relocated)
    }

    /// From the bytes of the section. `relocated` is asked for the start of the code where a relocation is to
    /// fill it in.
    pub(crate) fn parse(bytes: Arc<[u8]>, relocated: impl FnOnce() -> Option<u64>) -> Option<Self> {
        let layout = TableLayout::from_magic(u32_at(&bytes, 0)?)?;
        // Padding, then the smallest instruction and the size of an address: x86-64's.
        if bytes.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let word = |number: usize| u64_at(&bytes, 8 + number * 8);
        let count = word(0).filter(|count| *count <= MAX_FUNCTIONS)?;
        let (text, first) = match layout {
            TableLayout::Go1_16 => (0, 2),
            _ => (word(2).filter(|text| *text != 0).or_else(relocated)?, 3),
        };
        let place = |number: usize| word(first + number).map(index).filter(|at| *at <= bytes.len());
        let (names, units, files) = (place(0)?, place(1)?, place(2)?);
        let (values, functions) = (place(3)?, place(4)?);
        Some(Self { layout, text, count: index(count), names, units, files, values, functions, bytes })
    }

    /// Returns the number of functions that it says to have.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes of memory that it keeps.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the function that covers `address`, an address of the file.
    pub fn function(&self, address: u64) -> Option<GoFunction> {
        let (start, end, known) = self.covering(address)?;
        let name = self.text_at(self.names, u32_at(&self.bytes, known + self.layout.offsets().name)?)?;
        Some(GoFunction { name, start, end })
    }

    /// Returns the first address of the function that covers `address`, and the first one after it.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, u64)> {
        self.covering(address).map(|(start, end, _)| (start, end))
    }

    /// Source file and line, from 1, of `address`.
    pub fn line(&self, address: u64) -> Option<(String, u32)> {
        let (start, _, known) = self.covering(address)?;
        let offsets = self.layout.offsets();
        let value = |offset: usize| {
            let value = self.value(u32_at(&self.bytes, known + offset)?, start, address)?;
            u32::try_from(value).ok()
        };
        let unit = u32_at(&self.bytes, known + offsets.unit)?;
        let file = index(unit.checked_add(value(offsets.file)?)?.into()).checked_mul(4)?;
        let path = u32_at(&self.bytes, self.units.checked_add(file)?)?;
        let line = value(offsets.line).filter(|line| *line > 0)?;
        Some((self.text_at(self.files, path)?, line))
    }

    /// Returns the rule for the function that covers `address`; `None` where the table has no such rule.
    pub(crate) fn frame(&self, address: u64) -> Option<GoFrame> {
        let (start, _, known) = self.covering(address)?;
        let offsets = self.layout.offsets();
        let flags = *self.bytes.get(known.checked_add(offsets.flags?)?)?;
        if flags & ENDS != 0 {
            return Some(GoFrame::Outermost);
        }
        let size = self.value(u32_at(&self.bytes, known + offsets.frame)?, start, address)?;
        u32::try_from(size).ok().filter(|size| size.is_multiple_of(8)).map(GoFrame::Size)
    }

    /// Returns the start and end of the function that covers `address`, and the offset of what is known of
    /// it.
    fn covering(&self, address: u64) -> Option<(u64, u64, usize)> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle)?.0 <= address { low = middle + 1 } else { high = middle }
        }
        let (start, offset) = self.entry(low.checked_sub(1)?)?;
        // The last function is followed by its end.
        let (end, _) = self.entry(low)?;
        let known = self.functions.checked_add(offset)?;
        // What is known of it is read at offsets below 64.
        ((start..end).contains(&address) && known <= self.bytes.len()).then_some((start, end, known))
    }

    /// Returns the first address of the function with this number, and where what is known of it is.
    fn entry(&self, number: usize) -> Option<(u64, usize)> {
        if self.layout == TableLayout::Go1_16 {
            let at = self.functions.checked_add(number.checked_mul(16)?)?;
            return Some((u64_at(&self.bytes, at)?, index(u64_at(&self.bytes, at.checked_add(8)?)?)));
        }
        let at = self.functions.checked_add(number.checked_mul(8)?)?;
        let start = self.text.checked_add(u32_at(&self.bytes, at)?.into())?;
        Some((start, index(u32_at(&self.bytes, at.checked_add(4)?)?.into())))
    }

    /// Returns the value at `address` of the values at `offset`, which begin at `start`.
    fn value(&self, offset: u32, start: u64, address: u64) -> Option<i32> {
        if offset == 0 {
            return None;
        }
        let mut rest = self.bytes.get(self.values.checked_add(index(offset.into()))?..)?;
        let (mut value, mut at) = (-1_i32, start);
        for step in 0..MAX_STEPS {
            let difference = varint(&mut rest)?;
            if difference == 0 && step > 0 {
                return None;
            }
            let sign = if difference & 1 == 1 { !0 } else { 0 };
            value = value.wrapping_add(((difference >> 1) ^ sign).cast_signed());
            at = at.checked_add(varint(&mut rest)?.into())?;
            if address < at {
                return Some(value);
            }
        }
        None
    }

    fn text_at(&self, table: usize, offset: u32) -> Option<String> {
        let rest = self.bytes.get(table.checked_add(index(offset.into()))?..)?;
        let text = until_nul(rest.get(..MAX_TEXT).unwrap_or(rest));
        (!text.is_empty()).then(|| ascii(text))
    }
}

/// Returns a number of 7 bits a byte, the lowest first.
fn varint(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
