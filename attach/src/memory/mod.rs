//! The guest's physical memory, read out of the VMM's memory.
//!
//! It is not mapped here. `process_vm_readv` copies mapped memory and fails elsewhere. So a VMM that unmaps,
//! truncates or ends causes an error here and never a fault.

mod cache;
mod layout;
mod maps;
mod proof;

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use guest_linux::{Kernel, PhysAddr, PhysicalMemory};

use crate::rsp::memory::{StoppedStub, StubMemory};

use cache::StopReader;

pub use cache::StopMemory;
pub use layout::{HostAddr, MemoryLayout, MemoryPiece};
pub(crate) use maps::read as mappings;
pub(crate) use proof::{FirstSearch, LastTables, LayoutProver, ProofAttempt};

/// Memory of a guest in another process. It cannot be read before its layout is proven. Cheap to clone.
#[derive(Clone)]
pub struct ForeignMemory {
    pid: i32,
    layouts: LayoutSource,
    proof: Arc<OnceLock<LayoutProof>>,
}

/// Source of the layouts that are possible.
#[derive(Debug, Clone)]
enum LayoutSource {
    /// The process's mappings: its open `/proc/PID/maps`.
    Mappings(Arc<File>),
    /// The host's kernel shows the layout.
    Kernel(Arc<RwLock<Arc<MemoryLayout>>>),
}

/// A layout, and the kernel that has proven it.
struct LayoutProof {
    layout: Arc<MemoryLayout>,
    kernel: Arc<Kernel>,
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMemory").field("pid", &self.pid).field("layout", &self.layout()).finish()
    }
}

impl ForeignMemory {
    pub(crate) fn new(pid: i32) -> io::Result<Self> {
        let maps = File::open(format!("/proc/{pid}/maps"))?;
        Ok(Self { pid, layouts: LayoutSource::Mappings(Arc::new(maps)), proof: Arc::default() })
    }

    /// Makes memory with a layout that the host's kernel shows. The guest's kernel has to be in it.
    pub(crate) fn with_layout(pid: i32, layout: MemoryLayout) -> Self {
        Self {
            pid,
            layouts: LayoutSource::Kernel(Arc::new(RwLock::new(Arc::new(layout)))),
            proof: Arc::default(),
        }
    }

    /// Returns the layout that the host's kernel shows.
    pub(crate) fn given(&self) -> Option<Arc<MemoryLayout>> {
        let LayoutSource::Kernel(given) = &self.layouts else { return None };
        Some(Arc::clone(&given.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Replaces the layout that the host's kernel shows; returns true if it is another one.
    pub(crate) fn change(&self, layout: MemoryLayout) -> bool {
        let LayoutSource::Kernel(given) = &self.layouts else { return false };
        let mut given = given.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = **given != layout;
        if is_other {
            *given = Arc::new(layout);
        }
        is_other
    }

    /// Returns the layout in the VMM, once it is proven.
    pub fn layout(&self) -> Option<Arc<MemoryLayout>> {
        let proof = self.proof.get()?;
        Some(self.given().unwrap_or_else(|| Arc::clone(&proof.layout)))
    }

    /// Returns the kernel that has proven the layout.
    pub fn kernel(&self) -> Option<&Arc<Kernel>> {
        self.proof.get().map(|proof| &proof.kernel)
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proof.get().is_some()
    }

    pub(crate) fn prove(&self, layout: MemoryLayout, kernel: Kernel) {
        // The first proof counts; a second one would be the same.
        drop(self.proof.set(LayoutProof { layout: Arc::new(layout), kernel: Arc::new(kernel) }));
    }
}

impl PhysicalMemory for ForeignMemory {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let layout = self.layout()?;
        read(self.pid, &layout, at, into)
    }
}

/// The guest's memory, by the means that are available to read it. Cheap to clone.
#[derive(Debug, Clone)]
pub enum AttachedMemory {
    /// Memory of the VMM's process on this machine.
    Process(ForeignMemory),
    /// Memory through a GDB stub.
    Stub(StubMemory),
}

/// Parts of the guest's memory that were copied at a sample.
pub(crate) trait CopiedMemory: fmt::Debug + Send {
    /// Fills `into` from guest physical `at`; `None` unless all of it was copied.
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()>;
}

/// The guest's memory during a stop.
#[derive(Debug)]
pub struct StopSource(StopMeans);

#[derive(Debug)]
enum StopMeans {
    Process(ForeignMemory),
    Stub(StoppedStub),
    /// Copy by the last sample, if the last field is true; else the first field.
    Sampled(ForeignMemory, Box<dyn CopiedMemory>, Cell<bool>),
}

impl StopSource {
    pub(crate) fn process(memory: ForeignMemory) -> Self {
        Self(StopMeans::Process(memory))
    }

    pub(crate) fn stub(stub: StoppedStub) -> Self {
        Self(StopMeans::Stub(stub))
    }

    /// Makes the memory of a vCPU that is not stopped: what a sample has copied, or that of the VMM's process
    /// while the vCPU does not run.
    pub(crate) fn sampled(memory: ForeignMemory, copied: Box<dyn CopiedMemory>) -> Self {
        Self(StopMeans::Sampled(memory, copied, Cell::new(false)))
    }

    /// Sets whether the memory is what the last sample has copied: the vCPU may run. Otherwise it is the
    /// VMM's memory. Other sources have no such choice.
    pub(crate) fn set_copied(&self, copied: bool) {
        if let StopMeans::Sampled(_, _, is_copied) = &self.0 {
            is_copied.set(copied);
        }
    }

    /// Returns true if the memory's layout had to be proven, and is.
    pub(crate) fn is_proven(&self) -> bool {
        match &self.0 {
            StopMeans::Process(memory) | StopMeans::Sampled(memory, ..) => memory.is_proven(),
            StopMeans::Stub(_) => false,
        }
    }
}

impl StopReader for StopSource {
    fn read_copied(&self, at: PhysAddr, into: &mut [u8]) -> Option<Option<()>> {
        match &self.0 {
            StopMeans::Sampled(_, memory, copied) if copied.get() => Some(memory.read(at, into)),
            _ => None,
        }
    }
}

impl PhysicalMemory for StopSource {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        match &self.0 {
            StopMeans::Process(memory) | StopMeans::Sampled(memory, ..) => memory.read(at, into),
            StopMeans::Stub(stub) => stub.read(at, into),
        }
    }
}

/// Memory under the assumption that a layout is right.
#[derive(Debug)]
pub(crate) struct AssumedMemory<'a> {
    pub(crate) pid: i32,
    pub(crate) layout: &'a MemoryLayout,
}

impl PhysicalMemory for AssumedMemory<'_> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        read(self.pid, self.layout, at, into)
    }
}

/// Fills `into` from guest physical `at`.
fn read(pid: i32, layout: &MemoryLayout, at: PhysAddr, into: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < into.len() {
        let (host, left) = layout.translate(at.checked_add(u64::try_from(done).ok()?)?)?;
        let rest = into.get_mut(done..)?;
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        copy(pid, host, rest.get_mut(..count)?)?;
        done += count;
    }
    Some(())
}

/// Fills `into` from the process's address `from`; `None` unless all of it is mapped.
fn copy(pid: i32, from: HostAddr, into: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let from = std::ptr::without_provenance_mut(usize::try_from(from.0).ok()?);
    let remote = libc::iovec { iov_base: from, iov_len: into.len() };
    // SAFETY: `local` is `into`, which is writable and borrowed for the call; the kernel checks `remote`,
    // which is in the other process.
    let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(count).ok()? == into.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses this process as the VMM.
    #[test]
    fn memory_is_read_across_pieces_and_ends_where_they_do() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let (low, high) = ([1_u8; 4096], [2_u8; 4096]);
        let layout = MemoryLayout::new(vec![
            MemoryPiece::new(4096, high.as_ptr() as u64, 4096),
            MemoryPiece::new(0, low.as_ptr() as u64, 4096),
        ])
        .unwrap();
        let mut two = [0; 2];
        assert_eq!(ForeignMemory::new(pid).unwrap().read(PhysAddr(0), &mut two), None, "not proven yet");
        let memory = AssumedMemory { pid, layout: &layout };
        assert_eq!((memory.read(PhysAddr(4095), &mut two), two), (Some(()), [1, 2]));
        assert_eq!(memory.read(PhysAddr(8191), &mut two), None);
        assert_eq!(memory.read(PhysAddr(u64::MAX), &mut two), None);
    }

    #[test]
    fn a_layout_that_has_changed_is_the_one_that_is_read() {
        let layout = |bytes| MemoryLayout::new(vec![MemoryPiece::new(0, 1 << 40, bytes)]).unwrap();
        let memory = ForeignMemory::with_layout(1, layout(4096));
        assert!(!memory.change(layout(4096)) && memory.change(layout(8192)));
        assert_eq!(*memory.clone().given().unwrap(), layout(8192));
        assert_eq!(memory.layout(), None, "not proven yet");
        let own = ForeignMemory::new(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.change(layout(4096)), "its layout is proven by the guest alone");
    }

    #[test]
    fn what_is_not_mapped_is_not_there() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(copy(pid, HostAddr(0x1000), &mut [0; 8]), None);
        assert_eq!(copy(i32::MAX, HostAddr(0x1000), &mut [0; 8]), None);
        assert_eq!(copy(pid, HostAddr(u64::MAX), &mut [0; 8]), None);
    }
}
