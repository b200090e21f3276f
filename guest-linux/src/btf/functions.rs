//! Functions in BTF: names and types of their arguments, as far as registers hold these.

use super::{Btf, BtfType, kind};
use symbols::bytes::u32_at;

/// Arguments of a call that are in registers, at most: RDI, RSI, RDX, RCX, R8, R9 (System V ABI, AMD64
/// supplement 1.0, 3.2.3).
const REGISTERS: usize = 6;
/// Values of an enumeration that have names, at most.
const MAX_VALUES: usize = 256;
/// Pointers, qualifiers and typedefs within each other that are followed, at most.
const MAX_DEPTH: usize = 8;
/// Bits of the encoding of an integer (`BTF_INT_SIGNED`, `BTF_INT_BOOL`, include/uapi/linux/btf.h), in bits
/// 24 to 27 of its description.
const SIGNED: u32 = 1;
const BOOL: u32 = 4;

/// An argument of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionArgument {
    /// Its name; empty for one without.
    pub name: String,
    /// Its type as C writes it, like `const char *`.
    pub type_name: String,
    /// Meaning of the register.
    pub kind: ArgumentKind,
}

/// Meaning of the register of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A signed number of so many bytes, 1 to 8.
    Signed(u8),
    /// An unsigned number of so many bytes, 1 to 8.
    Unsigned(u8),
    /// A truth value.
    Bool,
    /// An address.
    Pointer,
    /// The address of a text that ends with a NUL.
    Text,
    /// A value of an enumeration: its bytes, and values with names.
    Enum(u8, Vec<(i64, String)>),
}

impl ArgumentKind {
    /// Returns the value of a register: its low bytes with their sign, or all bits of an address.
    pub fn value(&self, register: u64) -> i64 {
        let low = |bytes: u8| 64 - 8 * u32::from(bytes.clamp(1, 8));
        match self {
            Self::Signed(bytes) | Self::Enum(bytes, _) => {
                (register << low(*bytes)).cast_signed() >> low(*bytes)
            }
            Self::Unsigned(bytes) => (register << low(*bytes) >> low(*bytes)).cast_signed(),
            Self::Bool => i64::from(register & 0xff != 0),
            Self::Pointer | Self::Text => register.cast_signed(),
        }
    }
}

impl Btf<'_> {
    /// Returns the number of the type of a function.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        let is_it = |&at: &u32| {
            BtfType::read(self.types, at as usize)
                .is_some_and(|found| found.kind == kind::FUNC && self.is_named(found.name, name))
        };
        u32::try_from(self.starts.iter().position(is_it)? + 1).ok()
    }

    /// Returns the arguments of functions that registers hold, from the first on; `None` for a function that
    /// BTF does not have. They end before an argument that a register does not hold: which registers have the
    /// others depends on that one.
    pub(crate) fn arguments(&self, names: &[&str]) -> Vec<Option<Vec<FunctionArgument>>> {
        let mut found = vec![None; names.len()];
        let all = self.starts.iter().filter_map(|&at| BtfType::read(self.types, at as usize));
        for function in all.filter(|found| found.kind == kind::FUNC) {
            for (place, name) in found.iter_mut().zip(names) {
                if place.is_none() && self.is_named(function.name, name) {
                    *place = self.arguments_of(&function);
                }
            }
        }
        found
    }

    fn arguments_of(&self, function: &BtfType) -> Option<Vec<FunctionArgument>> {
        let prototype = self.get(function.size_or_type).filter(|found| found.kind == kind::FUNC_PROTO)?;
        // struct btf_param: name, type; both 0 for `...`.
        let argument = |at: usize| {
            let (name, number) = (u32_at(self.types, at)?, u32_at(self.types, at + 4)?);
            Some(FunctionArgument {
                name: self.name(name).unwrap_or_default(),
                kind: self.argument_kind(number)?,
                type_name: self.type_name(number, MAX_DEPTH),
            })
        };
        let places = (0..prototype.vlen.min(REGISTERS)).map(|i| prototype.body + i * 8);
        Some(places.map_while(argument).collect())
    }

    /// Returns the meaning of a register that holds this type; `None` for a type that is not in one register.
    fn argument_kind(&self, number: u32) -> Option<ArgumentKind> {
        let found = self.strip(number)?;
        let bytes = u8::try_from(found.size_or_type).ok().filter(|bytes| (1..=8).contains(bytes));
        match found.kind {
            kind::INT => {
                let encoding = u32_at(self.types, found.body)? >> 24 & 0xf;
                Some(match bytes? {
                    _ if encoding & BOOL != 0 => ArgumentKind::Bool,
                    bytes if encoding & SIGNED != 0 => ArgumentKind::Signed(bytes),
                    bytes => ArgumentKind::Unsigned(bytes),
                })
            }
            kind::ENUM | kind::ENUM64 => Some(ArgumentKind::Enum(bytes?, self.values(&found))),
            kind::PTR if self.is_char(found.size_or_type) => Some(ArgumentKind::Text),
            kind::PTR => Some(ArgumentKind::Pointer),
            _ => None,
        }
    }

    /// True for `char`, which texts are made of; `u8` and `signed char` are numbers.
    fn is_char(&self, number: u32) -> bool {
        let found = self.strip(number);
        found.is_some_and(|found| found.kind == kind::INT && self.is_named(found.name, "char"))
    }

    /// Returns the first values of an enumeration with their names.
    fn values(&self, enumeration: &BtfType) -> Vec<(i64, String)> {
        let is_long = enumeration.kind == kind::ENUM64;
        let value = |at: usize| {
            // struct btf_enum: name, value; struct btf_enum64: name, low half, high half.
            let low = u32_at(self.types, at + 4)?;
            let value = if is_long {
                (u64::from(u32_at(self.types, at + 8)?) << 32 | u64::from(low)).cast_signed()
            } else {
                i64::from(low.cast_signed())
            };
            Some((value, self.name(u32_at(self.types, at)?)?))
        };
        let step = if is_long { 12 } else { 8 };
        let places = (0..enumeration.vlen.min(MAX_VALUES)).map(|i| enumeration.body + i * step);
        places.filter_map(value).collect()
    }

    /// Returns a type as C writes it; `...` for what is deeper than `depth`.
    fn type_name(&self, number: u32, depth: usize) -> String {
        if number == 0 {
            return "void".to_owned();
        }
        let (Some(found), Some(depth)) = (self.get(number), depth.checked_sub(1)) else {
            return "...".to_owned();
        };
        let inner = || self.type_name(found.size_or_type, depth);
        let named = |keyword: &str| format!("{keyword}{}", self.name(found.name).unwrap_or_default());
        match found.kind {
            kind::PTR => {
                let inner = inner();
                format!("{inner}{}", if inner.ends_with('*') { "*" } else { " *" })
            }
            kind::CONST => match inner() {
                pointer if pointer.ends_with('*') => format!("{pointer} const"),
                other => format!("const {other}"),
            },
            kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG => inner(),
            kind::STRUCT => named("struct "),
            kind::UNION => named("union "),
            kind::ENUM | kind::ENUM64 => named("enum "),
            kind::FWD => named(if found.kind_flag { "union " } else { "struct " }),
            // Names of numbers have blanks, like `long unsigned int`.
            kind::INT => self.number_name(found.name),
            kind::TYPEDEF => named(""),
            kind::FUNC_PROTO => "function".to_owned(),
            _ => "...".to_owned(),
        }
    }

    fn number_name(&self, offset: u32) -> String {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        display::clean::ascii(name.get(..name.len().min(32)).unwrap_or_default())
    }
}
