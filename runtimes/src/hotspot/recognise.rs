//! Recognition of HotSpot: a library that exports the tables of its structures.

use symbols::LinkAddr;
use symbols::elf::ElfFile;
use symbols::names::exported;

/// Symbols of the four tables and of the offsets in their entries (src/hotspot/share/runtime/vmStructs.hpp in
/// OpenJDK), each a variable of 8 bytes.
const SYMBOLS: [&str; 15] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryTypeStringOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
    "gHotSpotVMIntConstants",
    "gHotSpotVMIntConstantEntryNameOffset",
    "gHotSpotVMIntConstantEntryValueOffset",
];
/// The distance of entries of the table of constants.
const INT_STRIDE: &str = "gHotSpotVMIntConstantEntryArrayStride";

/// Returns true if a file of this name may be HotSpot. Only such files are opened.
pub fn may_be_hotspot(name: &str) -> bool {
    name == "libjvm.so"
}

/// Returns true if a file of this name may be mapped with names and methods that the process has not touched
/// itself: the library, and archives of classes (class data sharing).
pub fn may_hold_hotspot_data(name: &str) -> bool {
    may_be_hotspot(name) || name.ends_with(".jsa")
}

/// A library that is HotSpot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotspotBinary {
    pub(super) symbols: TableSymbols,
}

/// Addresses in the file of the variables that lead to the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableSymbols {
    /// Table of members: address, and the offsets of type, name, type of the member, mark of statics, offset
    /// and address, and the distance of entries.
    pub structs: [LinkAddr; 8],
    /// Table of types: address, and the offsets of name and size, and the distance of entries.
    pub types: [LinkAddr; 4],
    /// Table of constants: address, and the offsets of name and value, and the distance of entries.
    pub ints: [LinkAddr; 4],
}

impl HotspotBinary {
    /// Returns the binary in `elf`; `None` if it is not HotSpot.
    pub fn read(elf: &ElfFile) -> Option<Self> {
        let mut addresses = [LinkAddr(0); SYMBOLS.len()];
        for (address, found) in addresses.iter_mut().zip(exported(elf, &SYMBOLS).ok()?) {
            *address = found?.0;
        }
        let [stride] = exported(elf, &[INT_STRIDE]).ok()?;
        Some(Self::new(addresses, stride?.0))
    }

    /// Returns a binary with its variables, in the order of their use, at these addresses.
    pub(crate) fn new(variables: [LinkAddr; 15], int_stride: LinkAddr) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = variables;
        let symbols = TableSymbols {
            structs: [a, b, c, d, e, f, g, h],
            types: [i, j, k, l],
            ints: [m, n, o, int_stride],
        };
        Self { symbols }
    }
}
