//! Queries to BTF: the offset of a member, the size of a variable.

use super::{Btf, BtfType, kind};
use symbols::bytes::u32_at;

/// Typedefs and qualifiers in a row that are followed, at most.
const MAX_MODIFIERS: usize = 16;
/// Anonymous structures within each other that are looked into, at most.
const MAX_DEPTH: usize = 8;
/// Bytes of a name, at most.
const MAX_NAME: usize = 64;
/// Members read for one question, at most: hostile structures may hold each other.
const MAX_STEPS: usize = 100_000;

/// Offset and type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BtfMember {
    /// Bytes from the start of the structure.
    pub(crate) offset: usize,
    /// Number of its type.
    type_number: u32,
}

impl Btf<'_> {
    /// Returns the member at `path` (`"member"` or `"member.inner"`) in the structure `name`. Members of
    /// anonymous structures count as those of the outer one. Array brackets are not written: the first
    /// element is meant.
    pub(crate) fn member(&self, name: &str, path: &str) -> Option<BtfMember> {
        let mut steps = MAX_STEPS;
        self.structures
            .iter()
            .filter_map(|&number| self.get(number))
            .filter(|found| self.is_named(found.name, name))
            // One name may stand for several types: the first that has the member.
            .find_map(|found| self.resolve(&found, path, &mut steps))
    }

    /// Returns the member at a path with its structure, as in `"task_struct.thread.sp"`.
    pub(crate) fn member_by_path(&self, path: &str) -> Option<BtfMember> {
        let (structure, member) = path.split_once('.')?;
        self.member(structure, member)
    }

    fn resolve(&self, outer: &BtfType, path: &str, steps: &mut usize) -> Option<BtfMember> {
        let mut parts = path.split('.');
        let mut member = self.direct(outer, parts.next()?, MAX_DEPTH, steps)?;
        for part in parts {
            let mut inner = self.strip(member.type_number)?;
            if inner.kind == kind::ARRAY {
                inner = self.strip(u32_at(self.types, inner.body)?)?;
            }
            let next = self.direct(&inner, part, MAX_DEPTH, steps)?;
            member =
                BtfMember { offset: member.offset.checked_add(next.offset)?, type_number: next.type_number };
        }
        Some(member)
    }

    /// Returns the member `name` of a structure or union, or of an anonymous one within it.
    fn direct(&self, outer: &BtfType, name: &str, depth: usize, steps: &mut usize) -> Option<BtfMember> {
        if outer.kind != kind::STRUCT && outer.kind != kind::UNION {
            return None;
        }
        for i in 0..outer.vlen {
            *steps = steps.checked_sub(1)?;
            let at = outer.body + i * 12;
            let member_name = u32_at(self.types, at)?;
            let type_number = u32_at(self.types, at + 4)?;
            let bits = u32_at(self.types, at + 8)?;
            // With the flag, the upper byte is the size of a bit field.
            let bits = if outer.kind_flag { bits & 0x00ff_ffff } else { bits };
            let offset = (bits / 8) as usize;
            if member_name == 0 {
                let Some(depth) = depth.checked_sub(1) else {
                    continue;
                };
                let found = self.strip(type_number).and_then(|inner| self.direct(&inner, name, depth, steps));
                if let Some(inner) = found {
                    return Some(BtfMember {
                        offset: offset.checked_add(inner.offset)?,
                        type_number: inner.type_number,
                    });
                }
            } else if bits % 8 == 0 && self.is_named(member_name, name) {
                return Some(BtfMember { offset, type_number });
            }
        }
        None
    }

    /// Returns offset and size, in bits, of the member `member` of the structure `name`: for bit-fields and
    /// for plain numbers.
    pub(crate) fn bits(&self, name: &str, member: &str) -> Option<(u32, u32)> {
        let outer = self
            .structures
            .iter()
            .filter_map(|&number| self.get(number))
            .find(|found| self.is_named(found.name, name))?;
        (0..outer.vlen).map(|i| outer.body + i * 12).find_map(|at| {
            if !self.is_named(u32_at(self.types, at)?, member) {
                return None;
            }
            let number = self.strip(u32_at(self.types, at + 4)?)?;
            let place = u32_at(self.types, at + 8)?;
            if outer.kind_flag && place >> 24 != 0 {
                return Some((place & 0x00ff_ffff, place >> 24));
            }
            // Without the flag, the integer's own description holds a bit-field's place within it.
            let int = (number.kind == kind::INT).then(|| u32_at(self.types, number.body))??;
            Some(((place & 0x00ff_ffff).checked_add(int >> 16 & 0xff)?, int & 0xff))
        })
    }

    /// Returns the size in bytes of the structure or union `name`.
    pub(crate) fn size_of(&self, name: &str) -> Option<usize> {
        let mut named = self.structures.iter().filter_map(|&number| self.get(number));
        named.find(|found| self.is_named(found.name, name)).map(|found| found.size_or_type as usize)
    }

    /// Returns the type without its typedefs and qualifiers.
    pub(super) fn strip(&self, number: u32) -> Option<BtfType> {
        let mut found = self.get(number)?;
        for _ in 0..MAX_MODIFIERS {
            match found.kind {
                kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG => {
                    found = self.get(found.size_or_type)?;
                }
                _ => return Some(found),
            }
        }
        None
    }

    /// Returns the size in bytes of the variable `name`, if it is a number (a per-CPU variable: others are
    /// not in BTF).
    pub(crate) fn variable_size(&self, name: &str) -> Option<usize> {
        let variable = self
            .variables
            .iter()
            .filter_map(|&number| self.get(number))
            .find(|found| self.is_named(found.name, name))?;
        let target = self.strip(variable.size_or_type)?;
        (target.kind == kind::INT).then_some(target.size_or_type as usize)
    }

    /// Returns the value of `name` in the enumeration `of`; one without a name is `""`.
    pub(crate) fn enumerator(&self, of: &str, name: &str) -> Option<u32> {
        let named = self.enumerations.iter().filter_map(|&number| self.get(number));
        // struct btf_enum: name, value.
        let mut values = named
            .filter(|found| self.is_named(found.name, of))
            .flat_map(|found| (0..found.vlen).map(move |i| found.body + i * 8));
        let at =
            values.find(|&at| u32_at(self.types, at).is_some_and(|offset| self.is_named(offset, name)))?;
        u32_at(self.types, at + 4)
    }

    /// Returns the size in bytes of a member, if it is a number.
    pub(crate) fn number_size(&self, member: BtfMember) -> Option<usize> {
        let number = self.strip(member.type_number)?;
        (number.kind == kind::INT).then_some(number.size_or_type as usize)
    }

    /// Returns names and offsets of all numbers of 8 bytes in the structure that the member at a path is,
    /// also of those in structures within it.
    pub(crate) fn words(&self, path: &str) -> Vec<(String, usize)> {
        let Some(member) = self.member_by_path(path) else { return Vec::new() };
        let (mut found, mut steps) = (Vec::new(), MAX_STEPS);
        if let Some(outer) = self.strip(member.type_number) {
            self.add_words(&outer, member.offset, MAX_DEPTH, &mut steps, &mut found);
        }
        found
    }

    fn add_words(
        &self,
        outer: &BtfType,
        base: usize,
        depth: usize,
        steps: &mut usize,
        found: &mut Vec<(String, usize)>,
    ) {
        if outer.kind != kind::STRUCT || outer.kind_flag {
            return;
        }
        for at in (0..outer.vlen).map(|i| outer.body + i * 12) {
            let Some(left) = steps.checked_sub(1) else { return };
            *steps = left;
            let word = |offset| u32_at(self.types, at + offset);
            let (Some(name), Some(number), Some(bits)) = (word(0), word(4), word(8)) else { return };
            let Some(inner) = self.strip(number) else { continue };
            let offset = base.saturating_add((bits / 8) as usize);
            match inner.kind {
                kind::INT if inner.size_or_type == 8 => found.extend(self.name(name).map(|n| (n, offset))),
                kind::STRUCT if depth > 0 => self.add_words(&inner, offset, depth - 1, steps, found),
                _ => {}
            }
        }
    }

    /// Returns a name that is not longer than any in a kernel.
    pub(super) fn name(&self, offset: u32) -> Option<String> {
        let rest = self.strings.get(offset as usize..)?;
        let name = rest.get(..MAX_NAME.min(rest.len()))?.split(|byte| *byte == 0).next()?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let is_name = !name.is_empty() && name.len() < MAX_NAME && name.iter().all(is_plain);
        is_name.then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the number of elements of a member that is an array.
    pub(crate) fn elements(&self, member: BtfMember) -> Option<usize> {
        let array = self.strip(member.type_number)?;
        if array.kind != kind::ARRAY {
            return None;
        }
        // struct btf_array: element type, index type, number of elements.
        Some(u32_at(self.types, array.body + 8)? as usize)
    }
}
