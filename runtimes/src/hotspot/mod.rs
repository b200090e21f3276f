//! HotSpot, the Java virtual machine of OpenJDK: JDK 11 to 25 on x86-64.
//!
//! All frames of a Java thread are on its native stack. Code that HotSpot has generated has no unwind
//! tables, but each piece of it, a code blob, has a header with the size of its frames and, if it is a
//! compiled method, the methods and bytecodes of each call in it:
//!
//! ```text
//! address ──▶ CodeCache: heap, segment map ──▶ CodeBlob ──▶ caller's registers
//!                                                 └─ nmethod: PcDesc ──▶ scopes ──▶ Method, bytecode
//! interpreter's frame ──▶ Method, bytecode
//! Method ──▶ ConstMethod ──▶ ConstantPool ──▶ class, name, file; line table
//! ```
//!
//! [`crate::GeneratedUnwinding`] gives these rules to the unwinder of native frames, so both kinds of frames
//! are one stack. All offsets are read from the tables that the runtime exports for debuggers
//! (`gHotSpotVMStructs` and others: src/hotspot/share/runtime/vmStructs.cpp in OpenJDK).

mod ahead;
mod blob;
mod code_bytes;
mod compressed;
mod frames;
mod heap;
mod layout;
mod names;
mod recognise;
mod scopes;
mod tables;
#[cfg(test)]
mod tests;

pub use frames::JavaProcess;
pub use layout::HotspotError;
pub use names::JavaMethod;
pub use recognise::{HotspotBinary, may_be_hotspot, may_hold_hotspot_data};

use symbols::VirtAddr;

use crate::ProcessMemory;

/// Member of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// Bytes from the start of the structure.
    pub offset: u16,
    /// Bytes of the member: 1, 2, 4 or 8.
    pub width: u8,
}

impl Member {
    /// Reads the member of the structure at `base`, unsigned.
    pub(crate) fn read(self, memory: &impl ProcessMemory, base: VirtAddr) -> Option<u64> {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..self.width.into())?;
        memory.read(base.checked_add(self.offset.into())?, part)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads the member, a signed number.
    pub(crate) fn read_signed(self, memory: &impl ProcessMemory, base: VirtAddr) -> Option<i64> {
        let unused = 64 - u32::from(self.width) * 8;
        Some((self.read(memory, base)? << unused).cast_signed() >> unused)
    }

    /// Reads the member, a pointer.
    pub(crate) fn pointer(self, memory: &impl ProcessMemory, base: VirtAddr) -> Option<VirtAddr> {
        self.read(memory, base).map(VirtAddr)
    }
}
