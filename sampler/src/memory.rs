//! Memory of a guest of this process, of another process, or of a GDB stub.

use std::sync::Arc;

use attach::gdb::StubMemory;
use attach::{AttachedMemory, ForeignMemory};
use guest_linux::{Kernel, PhysAddr, PhysicalMemory};
use vmm::GuestMemoryMmap;

/// Guest physical memory. Cheap to clone.
#[derive(Debug, Clone)]
pub enum GuestMemory {
    /// Memory of a machine of this process.
    Own(GuestMemoryMmap),
    /// Memory of another process's machine.
    Foreign(ForeignMemory),
    /// Memory that a GDB stub reads.
    Stub(StubMemory),
}

impl GuestMemory {
    /// Returns the guest's kernel if it is already found.
    pub(crate) fn kernel(&self) -> Option<&Arc<Kernel>> {
        match self {
            Self::Own(_) | Self::Stub(_) => None,
            Self::Foreign(memory) => memory.kernel(),
        }
    }
}

impl PhysicalMemory for GuestMemory {
    #[inline]
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        match self {
            Self::Own(memory) => PhysicalMemory::read(memory, at, into),
            Self::Foreign(memory) => memory.read(at, into),
            Self::Stub(memory) => memory.read(at, into),
        }
    }
}

impl From<GuestMemoryMmap> for GuestMemory {
    fn from(memory: GuestMemoryMmap) -> Self {
        Self::Own(memory)
    }
}

impl From<ForeignMemory> for GuestMemory {
    fn from(memory: ForeignMemory) -> Self {
        Self::Foreign(memory)
    }
}

impl From<AttachedMemory> for GuestMemory {
    fn from(source: AttachedMemory) -> Self {
        match source {
            AttachedMemory::Process(memory) => Self::Foreign(memory),
            AttachedMemory::Stub(memory) => Self::Stub(memory),
        }
    }
}
