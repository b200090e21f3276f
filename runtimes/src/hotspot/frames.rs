//! Frames of Java in code that HotSpot has generated, and their callers.

use std::collections::HashMap;
use std::sync::Arc;

use symbols::cfi::{CodeMapping, GeneratedCaller, ImageCode, KnownRegisters};
use symbols::{CodeAddr, VirtAddr};
use symbols::{Registers, StackMemory};

use super::blob::{AddressRange, CodeBlob, Nmethod};
use super::code_bytes::{FrameStage, frame_stage};
use super::heap::{CodeHeap, read_heaps};
use super::layout::{HotspotError, HotspotLayout, NmethodMark};
use super::names::{JavaMethod, MethodWords, read_method};
use super::recognise::HotspotBinary;
use super::scopes::{MethodPoint, read_scopes};
use super::tables::text;
use crate::ProcessMemory;
use crate::frames::ManagedFrame;
use crate::generated::{GeneratedFrames, GeneratedRules, NativeFrame, unknown};

/// Methods and places in compiled code that are remembered, at most.
const REMEMBERED: usize = 65_536;
/// DWARF numbers of RBX and R13 (System V ABI, AMD64 supplement 1.0, figure 3.36).
const RBX: usize = 3;
const R13: usize = 13;
/// Registers that the call stub saves, and their offsets from RBP (src/hotspot/cpu/x86/
/// stubGenerator_x86_64.cpp, JDK 11 to 25: `generate_call_stub`, Linux).
const CALL_STUB: [(usize, i64); 5] = [(RBX, -56), (12, -64), (R13, -72), (14, -80), (15, -88)];

/// Place in compiled code.
type CompiledPlace = (VirtAddr, Nmethod, u64);

/// The Java virtual machine of one process.
#[derive(Debug)]
pub struct JavaProcess {
    layout: Box<HotspotLayout>,
    heaps: Vec<CodeHeap>,
    /// Names of blobs, by address: true for compiled methods.
    blob_names: HashMap<VirtAddr, bool>,
    places: HashMap<CompiledPlace, Arc<[MethodPoint]>>,
    methods: HashMap<(VirtAddr, u32), Option<Arc<JavaMethod>>>,
}

impl JavaProcess {
    /// Returns the virtual machine of a process that has mapped `binary` at `bias`.
    pub fn new(binary: &HotspotBinary, memory: &impl ProcessMemory, bias: u64) -> Result<Self, HotspotError> {
        let layout = HotspotLayout::read(memory, &binary.symbols, bias)?;
        let heaps = read_heaps(memory, &layout.heap).ok_or(HotspotError::NotReady)?;
        Ok(Self {
            layout: Box::new(layout),
            heaps,
            blob_names: HashMap::new(),
            places: HashMap::new(),
            methods: HashMap::new(),
        })
    }

    /// Returns the code of the interpreter. Read each time: it is made with room that later has other code.
    fn interpreter(&self, memory: &impl ProcessMemory) -> Option<AddressRange> {
        let layout = &self.layout.interpreter;
        let queue = VirtAddr(memory.read_u64(layout.code)?);
        let start = layout.buffer.pointer(memory, queue)?;
        Some(start..start.checked_add(layout.limit.read(memory, queue)?)?)
    }

    /// Returns true if code at `at` is HotSpot's.
    pub fn contains(&self, at: VirtAddr) -> bool {
        self.heaps.iter().any(|heap| heap.contains(at))
    }

    /// Returns the caller of the innermost frame in a stub with a fixed frame: it has a frame pointer, or the
    /// frame of compiled code.
    fn caller_of_leaf(
        &self,
        memory: &impl ProcessMemory,
        frame: &NativeFrame<'_>,
        blob: &CodeBlob,
    ) -> GeneratedCaller {
        let stage = frame_stage(memory, blob, frame.at.address);
        if stage != FrameStage::Complete {
            return caller_in(frame, stage, blob.frame_size);
        }
        let returns = |slot: u64| frame.word(slot).is_some_and(|at| self.contains(VirtAddr(at)));
        let (Some(rsp), Some(rbp)) = (frame.rsp(), frame.register(Registers::RBP)) else {
            return GeneratedCaller::Unknown;
        };
        let has_pointer = rbp.checked_sub(rsp).is_some_and(|below| below < blob.frame_size);
        if has_pointer && returns(rbp.saturating_add(8)) {
            return frame.caller_above(rbp - rsp + 16);
        }
        let top = rsp.saturating_add(blob.frame_size);
        if returns(top.saturating_sub(8)) {
            frame.caller_above(blob.frame_size)
        } else {
            GeneratedCaller::Unknown
        }
    }

    /// Returns the method of a frame; `None` if its memory has another one by now, or cannot be read.
    pub fn method(&mut self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<Arc<JavaMethod>> {
        if self.methods.len() >= REMEMBERED {
            self.methods.clear();
        }
        let known = self.methods.entry((frame.code, frame.identity));
        known.or_insert_with(|| read_method(memory, &self.layout, frame).map(Arc::new)).clone()
    }

    fn is_nmethod(&mut self, memory: &impl ProcessMemory, blob: &CodeBlob) -> bool {
        match self.layout.blob.mark {
            NmethodMark::Kind(kind, value) => kind.read(memory, blob.start) == Some(value),
            NmethodMark::Name => {
                if self.blob_names.len() >= REMEMBERED {
                    self.blob_names.clear();
                }
                let known = self.blob_names.get(&blob.name).copied();
                known.unwrap_or_else(|| {
                    let Some(name) = text(memory, blob.name) else { return false };
                    // `nmethod`, and `native nmethod` for the wrapper of a native method.
                    let is_nmethod = name.ends_with("nmethod");
                    self.blob_names.insert(blob.name, is_nmethod);
                    is_nmethod
                })
            }
        }
    }

    fn compiled(
        &mut self,
        memory: &impl ProcessMemory,
        frame: &NativeFrame<'_>,
        blob: &CodeBlob,
    ) -> GeneratedFrames {
        let Some(nmethod) = Nmethod::read(memory, &self.layout, blob) else {
            let caller = frame.caller_above(blob.frame_size);
            return GeneratedFrames { frames: vec![unknown(blob.start)], caller };
        };
        let mut at = frame.at.address;
        if frame.at.is_return() && nmethod.deopt.contains(&Some(at)) {
            // The frame is deoptimized when the callee returns; the address that it was at is in the frame.
            let slot = frame.rsp().and_then(|rsp| frame.word(rsp.checked_add(nmethod.orig_pc)?));
            at = slot.map(VirtAddr).filter(|at| blob.code.contains(at)).unwrap_or(at);
        }
        let stage = if frame.at.is_return() {
            FrameStage::Complete
        } else {
            frame_stage(memory, blob, frame.at.address)
        };
        let caller = caller_in(frame, stage, blob.frame_size);
        let offset = at.offset_from(blob.code.start).unwrap_or(0);
        let frames = match self.points(memory, blob, &nmethod, offset) {
            Some(points) => points.iter().map(|&point| self.frame(memory, point)).collect(),
            None => vec![unknown(blob.start)],
        };
        GeneratedFrames { frames, caller }
    }

    /// Returns the methods at `offset` of the code of `nmethod`.
    fn points(
        &mut self,
        memory: &impl ProcessMemory,
        blob: &CodeBlob,
        nmethod: &Nmethod,
        offset: u64,
    ) -> Option<Arc<[MethodPoint]>> {
        let key = (blob.code.start, nmethod.clone(), offset);
        if let Some(points) = self.places.get(&key) {
            return Some(Arc::clone(points));
        }
        let points: Arc<[MethodPoint]> =
            read_scopes(memory, &self.layout, nmethod, &blob.code, offset)?.into();
        if self.places.len() >= REMEMBERED {
            self.places.clear();
        }
        self.places.insert(key, Arc::clone(&points));
        Some(points)
    }

    fn frame(&self, memory: &impl ProcessMemory, point: MethodPoint) -> ManagedFrame {
        let words = MethodWords::read(memory, &self.layout.method, point.method);
        words.map_or_else(|| unknown(point.method), |words| words.frame(point))
    }

    fn interpreted(&self, memory: &impl ProcessMemory, frame: &NativeFrame<'_>) -> GeneratedFrames {
        if let Some(entered) = self.entered(memory, frame) {
            return entered;
        }
        let layout = &self.layout.interpreter;
        let Some(rbp) = frame.register(Registers::RBP) else {
            return GeneratedFrames {
                frames: vec![unknown(frame.at.address)],
                caller: GeneratedCaller::Unknown,
            };
        };
        // Below RSP are words of earlier frames: a frame that is being made has not pushed all its slots.
        // Until then R13 is the caller's stack pointer, and RBX the method.
        let bottom = frame.rsp().filter(|_| !frame.at.is_return()).unwrap_or(0);
        let slot = |offset: i64| frame.word(rbp.wrapping_add_signed(offset));
        let pushed = |offset: i64, register: usize| {
            let is_pushed = rbp.wrapping_add_signed(offset) >= bottom;
            if is_pushed { slot(offset) } else { frame.register(register) }
        };
        let caller = match (slot(0), slot(8), pushed(layout.sender_sp, R13)) {
            // The stack pointer before arguments were moved, which the size of a compiled frame counts from.
            (Some(saved), Some(pc), Some(sender)) if sender > rbp => frame.caller(pc, sender, Some(saved)),
            (Some(_), Some(_), Some(_)) => GeneratedCaller::Unknown,
            _ => GeneratedCaller::Missing(rbp),
        };
        let method = pushed(layout.method, RBX).map(VirtAddr);
        let words =
            method.and_then(|method| Some((method, MethodWords::read(memory, &self.layout.method, method)?)));
        let Some((method, words)) = words else {
            return GeneratedFrames { frames: vec![unknown(frame.at.address)], caller };
        };
        // The innermost frame has its bytecode in R13, and saves it when it calls.
        let live = frame.register(R13).filter(|_| !frame.at.is_return()).map(VirtAddr);
        let live = live.and_then(|at| words.bytecode(&self.layout.method, at));
        let saved = || words.bytecode(&self.layout.method, pushed(layout.bytecode, R13).map(VirtAddr)?);
        let point = MethodPoint { method, bytecode: live.or_else(saved) };
        GeneratedFrames { frames: vec![words.frame(point)], caller }
    }

    /// Returns the frame of a method that the interpreter is about to enter: RBX is the method, RSP points to
    /// the return address, and R13 is the caller's stack pointer.
    fn entered(&self, memory: &impl ProcessMemory, frame: &NativeFrame<'_>) -> Option<GeneratedFrames> {
        if frame.at.is_return() {
            return None;
        }
        let (rsp, method) = (frame.rsp()?, VirtAddr(frame.register(RBX)?));
        let returns = frame.word(rsp).filter(|&at| self.contains(VirtAddr(at)))?;
        let sender = frame.register(R13).filter(|&sender| sender > rsp && sender - rsp < 1 << 16)?;
        let words = MethodWords::read(memory, &self.layout.method, method)?;
        let point = MethodPoint { method, bytecode: Some(0) };
        let caller = frame.caller(returns, sender, frame.register(Registers::RBP));
        Some(GeneratedFrames { frames: vec![words.frame(point)], caller })
    }
}

impl GeneratedRules for JavaProcess {
    fn frames(
        &mut self,
        memory: &impl ProcessMemory,
        image: &CodeMapping<'_>,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> Option<GeneratedFrames> {
        if !matches!(image.code, ImageCode::Anonymous) {
            return None;
        }
        let code = at.lookup();
        let heap = *self.heaps.iter().find(|heap| heap.contains(code))?;
        let frame = NativeFrame { at, registers, stack };
        if at.is_return() && at.address == self.layout.interpreter.call_stub_return {
            return Some(GeneratedFrames { frames: Vec::new(), caller: frame.caller_of_entry(&CALL_STUB) });
        }
        if self.interpreter(memory).is_some_and(|range| range.contains(&code)) {
            return Some(self.interpreted(memory, &frame));
        }
        let block = heap.find(memory, &self.layout.heap, code);
        let blob = block.and_then(|block| CodeBlob::read(memory, &self.layout, block));
        // What had this code is no longer there: no frame follows from other code.
        let Some(blob) = blob.filter(|blob| blob.code.contains(&code)) else {
            return Some(GeneratedFrames { frames: vec![unknown(code)], caller: GeneratedCaller::Unknown });
        };
        if self.is_nmethod(memory, &blob) {
            return Some(self.compiled(memory, &frame, &blob));
        }
        // Stubs without a fixed frame are left to the unwinder, which follows their instructions.
        let caller = match blob.frame_size {
            0 => GeneratedCaller::Unknown,
            size if at.is_return() => frame.caller_above(size),
            _ => self.caller_of_leaf(memory, &frame, &blob),
        };
        Some(GeneratedFrames { frames: Vec::new(), caller })
    }
}

/// Returns the caller of `frame`, which has `size` bytes when it is complete.
fn caller_in(frame: &NativeFrame<'_>, stage: FrameStage, size: u64) -> GeneratedCaller {
    match stage {
        FrameStage::Complete => frame.caller_above(size),
        FrameStage::ReturnAddress => frame.caller_at(0),
        FrameStage::SavedPointer => frame.caller_above(16),
        FrameStage::WithoutSavedPointer => frame.caller_at(size.saturating_sub(8)),
    }
}
