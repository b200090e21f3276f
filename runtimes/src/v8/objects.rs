//! Objects on V8's heap: tagged pointers, types, small integers, strings.

use symbols::VirtAddr;
use symbols::bytes::{u16_at, u32_at};

use super::layout::V8Layout;
use crate::ProcessMemory;

/// Low bits of a pointer to an object, strong or weak, and their mask (include/v8-internal.h:
/// `kHeapObjectTag`, `kWeakHeapObjectTag`).
const STRONG: u64 = 1;
const WEAK: u64 = 3;
const TAGS: u64 = 3;
/// Strings that refer to one another, at most.
const MAX_STRINGS: usize = 16;
/// Mark of an external string that does not keep the address of its characters (src/objects/
/// instance-type.h: `kUncachedExternalStringMask`).
const UNCACHED: u16 = 1 << 4;
/// Bytes from the resource of an external string to the address of its characters (src/objects/string.tq).
const RESOURCE_DATA: u64 = 8;

/// Address of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct HeapObject(pub VirtAddr);

impl HeapObject {
    /// Returns the object that a word refers to.
    pub(super) fn new(word: u64) -> Option<Self> {
        (word & TAGS == STRONG).then_some(Self(VirtAddr(word & !TAGS)))
    }

    /// Returns the object that a word refers to, also weakly.
    pub(super) fn new_weak(word: u64) -> Option<Self> {
        matches!(word & TAGS, STRONG | WEAK).then_some(Self(VirtAddr(word & !TAGS)))
    }

    /// Returns the word that refers to the object.
    pub(super) fn word(self) -> u64 {
        self.0.0 | STRONG
    }

    /// Returns the address of the member at `offset`.
    pub(super) fn member(self, offset: u16) -> Option<VirtAddr> {
        self.0.checked_add(offset.into())
    }
}

/// Returns the small integer in a word.
pub(super) fn small_integer(word: u64) -> Option<i32> {
    let [low, high] = [word & 0xffff_ffff, word >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    (low == 0).then_some(high.cast_signed())
}

/// Characters of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Characters {
    pub at: VirtAddr,
    pub count: u64,
    /// One byte each, Latin-1; else two, UTF-16.
    pub is_one_byte: bool,
}

/// Memory of a process as V8's objects.
pub(super) struct HeapReader<'a, M> {
    pub memory: &'a M,
    pub layout: &'a V8Layout,
}

impl<M: ProcessMemory> HeapReader<'_, M> {
    /// Reads a word of an object.
    pub(super) fn word(&self, object: HeapObject, offset: u16) -> Option<u64> {
        self.memory.read_u64(object.member(offset)?)
    }

    /// Reads a number of 4 bytes.
    pub(super) fn u32(&self, object: HeapObject, offset: u16) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(object.member(offset)?, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Returns the type of an object; `None` if there is none.
    pub(super) fn kind(&self, object: HeapObject) -> Option<u16> {
        self.kind_by(self.word(object, 0)?)
    }

    /// Returns the type of the objects whose first word is `map`; `None` if that is not a map. The first word
    /// of an object that was moved is its new address, without a tag.
    pub(super) fn kind_by(&self, map: u64) -> Option<u16> {
        let map = HeapObject::new(map)?;
        let (meta, kind) = self.map_words(map)?;
        let (_, meta_kind) = self.map_words(HeapObject::new(meta)?)?;
        (meta_kind == self.layout.types.map).then_some(kind)
    }

    /// Reads the first word of a map and its type.
    fn map_words(&self, map: HeapObject) -> Option<(u64, u16)> {
        let mut bytes = [0; 32];
        let at = usize::from(self.layout.members.map_type);
        let part = bytes.get_mut(..at.checked_add(2)?)?;
        self.memory.read(map.0, part)?;
        let first = symbols::bytes::u64_at(part, 0)?;
        Some((first, u16_at(part, at)?))
    }

    /// Returns the object of this type that a word of `object` refers to.
    pub(super) fn typed(&self, object: HeapObject, offset: u16, kind: u16) -> Option<HeapObject> {
        let found = HeapObject::new(self.word(object, offset)?)?;
        (self.kind(found)? == kind).then_some(found)
    }

    /// Returns address and length of the bytes of a table that a word of `object` refers to.
    pub(super) fn byte_table(&self, object: HeapObject, offset: u16) -> Option<(VirtAddr, u64)> {
        let table = HeapObject::new(self.word(object, offset)?)?;
        if !self.layout.types.bytes.contains(&self.kind(table)?) {
            return None;
        }
        let length = small_integer(self.word(table, self.layout.members.array_length)?)?;
        Some((table.member(self.layout.members.array_data)?, u64::try_from(length).ok()?))
    }

    /// Returns the element `index` of an array.
    pub(super) fn element(&self, array: HeapObject, index: u64) -> Option<u64> {
        let length = small_integer(self.word(array, self.layout.members.array_length)?)?;
        let at = array.member(self.layout.members.array_data)?.checked_add(index.checked_mul(8)?)?;
        self.memory.read_u64(at).filter(|_| u64::try_from(length).is_ok_and(|length| index < length))
    }

    /// Returns true if the object is a string.
    pub(super) fn is_string(&self, object: HeapObject) -> bool {
        self.kind(object).is_some_and(|kind| kind < self.layout.types.first_not_string)
    }

    /// Returns the characters of a string that are in one piece.
    pub(super) fn characters(&self, string: HeapObject) -> Option<Characters> {
        let (strings, mut string, mut from, mut count) = (&self.layout.strings, string, 0, None);
        let shapes = strings.shapes;
        for _ in 0..MAX_STRINGS {
            let kind = self.kind(string).filter(|&kind| kind < self.layout.types.first_not_string)?;
            let length = u64::from(self.u32(string, strings.length)?);
            let wanted = *count.get_or_insert(length);
            if from + wanted > length {
                return None;
            }
            let is_one_byte = kind & shapes.one_byte != 0;
            let width = if is_one_byte { 1 } else { 2 };
            let piece = |at: VirtAddr| {
                Some(Characters { at: at.checked_add(from * width)?, count: wanted, is_one_byte })
            };
            match kind & shapes.mask {
                shape if shape == shapes.sequential => return piece(string.member(strings.chars)?),
                shape if shape == shapes.external && kind & UNCACHED == 0 => {
                    let data = string.member(strings.resource)?.checked_add(RESOURCE_DATA)?;
                    return piece(VirtAddr(self.memory.read_u64(data)?));
                }
                shape if shape == shapes.thin => {}
                shape if shape == shapes.sliced => {
                    let offset = small_integer(self.word(string, strings.offset)?)?;
                    from += u64::try_from(offset).ok()?;
                }
                // Flat: the second part is empty.
                shape if shape == shapes.cons => {
                    let second = HeapObject::new(self.word(string, strings.second)?)?;
                    if self.u32(second, strings.length)? != 0 {
                        return None;
                    }
                }
                _ => return None,
            }
            string = HeapObject::new(self.word(string, strings.first)?)?;
        }
        None
    }

    /// Reads a string, the first `limit` characters at most.
    pub(super) fn text(&self, string: HeapObject, limit: usize) -> Option<String> {
        // The parts that are left to read, the next one last.
        let (mut parts, mut text) = (vec![string], String::new());
        for _ in 0..MAX_STRINGS * 4 {
            let Some(part) = parts.pop().filter(|_| text.len() < limit) else { break };
            if let Some(characters) = self.characters(part) {
                text.push_str(&self.read_characters(characters, limit - text.len())?);
                continue;
            }
            let (kind, strings) = (self.kind(part)?, &self.layout.strings);
            if kind >= self.layout.types.first_not_string || kind & strings.shapes.mask != strings.shapes.cons
            {
                return None;
            }
            parts.push(HeapObject::new(self.word(part, strings.second)?)?);
            parts.push(HeapObject::new(self.word(part, strings.first)?)?);
        }
        Some(text)
    }

    fn read_characters(&self, characters: Characters, limit: usize) -> Option<String> {
        let count = characters.count.min(limit as u64);
        if characters.is_one_byte {
            let bytes = self.memory.read_bytes(characters.at, count)?;
            return Some(bytes.into_iter().map(char::from).collect());
        }
        let bytes = self.memory.read_bytes(characters.at, count * 2)?;
        let units = bytes.as_chunks::<2>().0.iter().map(|&unit| u16::from_le_bytes(unit));
        Some(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
    }

    /// Reads the bytes of a table of `length` bytes, none if it is longer than `limit`.
    pub(super) fn table_bytes(&self, (at, length): (VirtAddr, u64), limit: u64) -> Option<Vec<u8>> {
        (length <= limit).then(|| self.memory.read_bytes(at, length))?
    }

    /// Reads a number of 4 bytes at an address.
    pub(super) fn u32_at(&self, at: VirtAddr) -> Option<u32> {
        u32_at(&self.memory.read_bytes(at, 4)?, 0)
    }
}
