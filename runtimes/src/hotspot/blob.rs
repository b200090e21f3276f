//! Code blobs: their headers, and the tables of compiled methods.

use std::ops::Range;

use symbols::VirtAddr;

use super::Member;
use super::heap::BlobMemory;
use super::layout::{CodeStart, HotspotLayout, MetadataPosition, ScopesPosition};
use crate::ProcessMemory;

/// Bytes of a word, the unit of frame sizes.
const WORD: u64 = 8;
/// Words of a frame, at most.
const MAX_FRAME: u64 = 1 << 20;
/// Bytes of the data of a method outside of the code cache, at most.
const MAX_DATA: u64 = 256 << 20;

/// Addresses from a start to an end.
pub(super) type AddressRange = Range<VirtAddr>;

/// Header of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodeBlob {
    pub start: VirtAddr,
    /// From the first instruction to the end of the blob.
    pub code: AddressRange,
    /// Address of its name.
    pub name: VirtAddr,
    /// Bytes of a frame, with the return address; 0 if frames differ.
    pub frame_size: u64,
    /// Bytes of code up to where the frame is complete; 0 if it never is.
    pub frame_complete: u64,
}

/// A compiled method.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Nmethod {
    pub method: VirtAddr,
    pub compile_id: u64,
    /// Bytes from the stack pointer to the slot that has the return address of a deoptimized frame.
    pub orig_pc: u64,
    pub deopt: [Option<VirtAddr>; 2],
    /// Descriptors of addresses, by address.
    pub pcs: AddressRange,
    pub scopes: AddressRange,
    pub metadata: AddressRange,
}

impl CodeBlob {
    /// Reads the header of the blob in `block`; `None` if it contradicts itself.
    pub(super) fn read(
        memory: &impl ProcessMemory,
        layout: &HotspotLayout,
        block: BlobMemory,
    ) -> Option<Self> {
        let (start, blob) = (block.start, &layout.blob);
        let size = blob.size.read(memory, start).filter(|&size| size <= block.size)?;
        let end = start.checked_add(size)?;
        let code = match blob.code {
            CodeStart::Address(member) => member.pointer(memory, start)?,
            CodeStart::Offset(member) => start.checked_add(member.read(memory, start)?)?,
        };
        let frame = blob.frame_size.read_signed(memory, start)?;
        let complete = blob.frame_complete.read_signed(memory, start)?;
        Some(Self {
            start,
            code: Some(code..end).filter(|code| start <= code.start && code.start < end)?,
            name: blob.name.pointer(memory, start)?,
            frame_size: u64::try_from(frame).ok().filter(|&words| words <= MAX_FRAME)? * WORD,
            frame_complete: u64::try_from(complete).unwrap_or(0),
        })
    }
}

impl Nmethod {
    /// Reads the header of the compiled method in `blob`; `None` if it contradicts itself.
    pub(super) fn read(memory: &impl ProcessMemory, layout: &HotspotLayout, blob: &CodeBlob) -> Option<Self> {
        let (start, end, nmethod) = (blob.start, blob.code.end, &layout.nmethod);
        let value = |member: Member| member.read(memory, start);
        let inside = |offset: u64| start.checked_add(offset).filter(|&at| at <= end);
        let (pcs, scopes) = match nmethod.scopes {
            ScopesPosition::Blob { pcs, pcs_end, scopes } => {
                let pcs = inside(value(pcs)?)?..inside(value(pcs_end)?)?;
                let scopes = VirtAddr(value(scopes)?);
                // The descriptors follow the scopes.
                let scopes = scopes..pcs.start;
                (pcs, Some(scopes).filter(|scopes| start <= scopes.start)?)
            }
            ScopesPosition::Immutable { data, size, pcs, scopes } => {
                let (data, size) = (VirtAddr(value(data)?), value(size)?);
                let at = |offset: u64| data.checked_add(offset).filter(|_| offset <= size);
                let (pcs, scopes) = (at(value(pcs)?)?, at(value(scopes)?)?);
                let all = at(size).filter(|_| size <= MAX_DATA)?;
                // The scopes follow the descriptors.
                (pcs..scopes, scopes..all)
            }
        };
        let metadata = match nmethod.metadata {
            MetadataPosition::Header(offset) => inside(value(offset)?)?..scopes.start,
            MetadataPosition::Data(offset) => {
                let data = inside(value(layout.blob.data_offset)?)?;
                data.checked_add(value(offset)?)?..end
            }
            MetadataPosition::Mutable { data, size, relocation } => {
                let (data, size) = (VirtAddr(value(data)?), value(size)?);
                let first = data.checked_add(value(relocation)?)?;
                first..data.checked_add(size).filter(|_| size <= MAX_DATA)?
            }
        };
        // An address, or an offset from the blob: as wide as it says.
        let handler = |member: Member| match member.width {
            8 => value(member).map(VirtAddr),
            _ => member.read_signed(memory, start).and_then(|offset| inside(u64::try_from(offset).ok()?)),
        };
        Some(Self {
            method: VirtAddr(value(nmethod.method)?),
            compile_id: value(nmethod.compile_id)?,
            orig_pc: value(nmethod.orig_pc)?,
            deopt: nmethod.deopt.map(|member| member.and_then(handler)),
            pcs,
            scopes,
            metadata,
        })
    }
}
