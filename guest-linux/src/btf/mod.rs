//! BTF, the kernel's own type information: the offset of each member of a structure.
//!
//! ```text
//! header (24 bytes) | types: { name, info, size or type, rest by kind } * | strings
//! ```
//!
//! Source: Documentation/bpf/btf.rst of Linux 6.12. The bytes are the guest's, so nothing in them
//! is followed without a bound: types are indexed once, names are compared in place, members are
//! searched with a budget. That also keeps memory at 4 bytes a type.

mod functions;
mod host;
pub(crate) mod layout;
mod members;
#[cfg(test)]
mod tests;

pub use functions::{ArgumentKind, FunctionArgument};
pub use host::{HostLayouts, HostTypes};

use symbols::bytes::{u16_at, u32_at};

/// Bytes of BTF that are read, at most; distribution kernels have 4 to 12 MiB.
pub(crate) const MAX_BYTES: u64 = 32 << 20;
/// First two bytes (`BTF_MAGIC`).
const MAGIC: u16 = 0xeb9f;
/// Bytes of `struct btf_type`.
const TYPE: usize = 12;

/// Kinds of types (include/uapi/linux/btf.h).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// One `struct btf_type`.
#[derive(Debug, Clone, Copy)]
struct BtfType {
    /// Offset of the name in the strings.
    name: u32,
    kind: u32,
    /// Number of members, parameters, values.
    vlen: usize,
    /// Members hold a bit-field's size in their offset.
    kind_flag: bool,
    /// Size in bytes, or the type that it refers to: by kind.
    size_or_type: u32,
    /// Offset in the types of what follows the header.
    body: usize,
}

impl BtfType {
    fn read(types: &[u8], at: usize) -> Option<Self> {
        let info = u32_at(types, at + 4)?;
        Some(Self {
            name: u32_at(types, at)?,
            kind: info >> 24 & 0x1f,
            vlen: (info & 0xffff) as usize,
            kind_flag: info >> 31 == 1,
            size_or_type: u32_at(types, at + 8)?,
            body: at + TYPE,
        })
    }

    /// Returns the number of bytes that follow the header; `None` for an unknown kind, after which nothing
    /// can be read.
    fn body_len(&self) -> Option<usize> {
        Some(match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * self.vlen,
            kind::ENUM | kind::FUNC_PROTO => 8 * self.vlen,
            kind::PTR
            | kind::FWD
            | kind::TYPEDEF
            | kind::VOLATILE
            | kind::CONST
            | kind::RESTRICT
            | kind::FUNC
            | kind::FLOAT
            | kind::TYPE_TAG => 0,
            _ => return None,
        })
    }
}

/// An index over BTF bytes.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; type 1 is the first.
    starts: Vec<u32>,
    /// Numbers of all named structures and unions.
    structures: Vec<u32>,
    /// Numbers of all variables.
    variables: Vec<u32>,
    /// Numbers of all enumerations, also of those without a name.
    enumerations: Vec<u32>,
}

impl<'a> Btf<'a> {
    /// Indexes `bytes`; `None` when they are not BTF. Types after one of an unknown kind are left out.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        if u16_at(bytes, 0)? != MAGIC || *bytes.get(2)? != 1 {
            return None;
        }
        let header = u32_at(bytes, 4)? as usize;
        let section = |offset_at: usize| {
            let start = header.checked_add(u32_at(bytes, offset_at)? as usize)?;
            let end = start.checked_add(u32_at(bytes, offset_at + 4)? as usize)?;
            bytes.get(start..end)
        };
        let mut btf = Self {
            types: section(8)?,
            strings: section(16)?,
            starts: Vec::new(),
            structures: Vec::new(),
            variables: Vec::new(),
            enumerations: Vec::new(),
        };
        btf.index();
        (!btf.structures.is_empty()).then_some(btf)
    }

    fn index(&mut self) {
        let mut at = 0;
        while let Some(found) = BtfType::read(self.types, at) {
            let (Ok(start), Some(len)) = (u32::try_from(at), found.body_len()) else {
                break;
            };
            self.starts.push(start);
            // Numbers fit: a type takes 12 bytes of at most MAX_BYTES.
            let number = u32::try_from(self.starts.len()).unwrap_or(u32::MAX);
            match found.kind {
                kind::STRUCT | kind::UNION if found.name != 0 => self.structures.push(number),
                kind::VAR => self.variables.push(number),
                kind::ENUM => self.enumerations.push(number),
                _ => {}
            }
            at = found.body + len;
        }
    }

    /// Returns the type number `number`; 0 is void and no type.
    fn get(&self, number: u32) -> Option<BtfType> {
        let slot = (number as usize).checked_sub(1)?;
        BtfType::read(self.types, *self.starts.get(slot)? as usize)
    }

    /// Returns true if the string at `offset` is `name`.
    fn is_named(&self, offset: u32, name: &str) -> bool {
        let Some(rest) = self.strings.get(offset as usize..) else {
            return false;
        };
        rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0)
    }
}
