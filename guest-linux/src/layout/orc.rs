//! Layout of the entries of ORC tables.

use crate::btf::Btf;
use crate::btf::layout::layout;
use crate::missing::Missing;

/// A field of an ORC entry: first bit and number of bits.
pub(crate) type BitRange = (u32, u32);

layout! {
    /// `struct orc_entry` (arch/x86/include/asm/orc_types.h).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    OrcLayout {
        /// Bytes of an entry, at most 8.
        size: usize => size,
        sp_offset: BitRange => |btf| field(btf, "sp_offset"),
        bp_offset: BitRange => |btf| field(btf, "bp_offset"),
        sp_reg: BitRange => |btf| field(btf, "sp_reg"),
        bp_reg: BitRange => |btf| field(btf, "bp_reg"),
        kind: BitRange => |btf| field(btf, "type"),
        /// Since 6.3.
        signal: Option<BitRange> => |btf| Ok(field(btf, "signal").ok()),
        /// Until 6.3.
        end: Option<BitRange> => |btf| Ok(field(btf, "end").ok()),
    }
}

fn size(btf: &Btf<'_>) -> Result<usize, Missing> {
    let size = btf.size_of("orc_entry").filter(|size| (1..=8).contains(size));
    size.ok_or_else(|| Missing::NoField("orc_entry.size".to_owned()))
}

/// Returns the bits of a field that is within the entry and has 16 bits at most.
fn field(btf: &Btf<'_>, member: &str) -> Result<BitRange, Missing> {
    let entry_bits = size(btf)? * 8;
    let is_inside =
        |&(first, bits): &BitRange| (1..=16).contains(&bits) && first as usize + bits as usize <= entry_bits;
    let bits = btf.bits("orc_entry", member).filter(is_inside);
    bits.ok_or_else(|| Missing::NoField(format!("orc_entry.{member}")))
}
