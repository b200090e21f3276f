//! Stages of a frame at the instructions that make and remove it.

use symbols::VirtAddr;

use crate::ProcessMemory;

/// `push %rbp; mov %rsp, %rbp` in both encodings.
const ENTRIES: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];
/// `mov %rbp, %rsp; pop %rbp` (`MacroAssembler::LeaveFrame` in src/codegen/x64/macro-assembler-x64.cc).
const LEAVE: [u8; 4] = [0x48, 0x8b, 0xe5, 0x5d];
/// `ret` and `ret $imm16`.
const RETURNS: [u8; 2] = [0xc3, 0xc2];
/// Bytes after `LEAVE` in which a function returns: it removes arguments, whose number may vary.
const LEAVING: usize = 32;
/// Bytes of code before a function makes its frame, at most: checks of the function and the stack.
const PROLOGUE: usize = 96;

/// Parts of a frame that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameStage {
    /// All of it.
    Complete,
    /// Only the return address.
    ReturnAddress,
    /// The return address, and the caller's RBP below.
    SavedPointer,
    /// RBP is the caller's again; the return address may not be at the stack pointer.
    Leaving,
}

/// Returns the stage in front of the instruction at `at`, in code that begins at `start` if that is known.
pub(super) fn stage(memory: &impl ProcessMemory, at: VirtAddr, start: Option<VirtAddr>) -> FrameStage {
    let mut next = [0; 4];
    if memory.read(at, &mut next).is_none() {
        return FrameStage::Complete;
    }
    if ENTRIES.contains(&next) || RETURNS.contains(&next[0]) {
        return FrameStage::ReturnAddress;
    }
    let mut around = [0; 4];
    let before = |count: u64, into: &mut [u8]| {
        let from = at.checked_sub(count)?;
        memory.read(from, into)
    };
    if before(1, &mut around).is_some() && ENTRIES.contains(&around) {
        return FrameStage::SavedPointer;
    }
    if start.is_some_and(|start| is_before_entry(memory, at, start)) {
        return FrameStage::ReturnAddress;
    }
    let mut code = [0; LEAVING];
    let is_leaving = before(LEAVING as u64, &mut code).is_some()
        && code.windows(LEAVE.len()).rposition(|bytes| bytes == LEAVE).is_some();
    if is_leaving { FrameStage::Leaving } else { FrameStage::Complete }
}

/// Returns true if the code at `start` makes its frame after `at`.
fn is_before_entry(memory: &impl ProcessMemory, at: VirtAddr, start: VirtAddr) -> bool {
    let Some(done) = at.offset_from(start).and_then(|done| usize::try_from(done).ok()) else { return false };
    let mut code = [0; PROLOGUE];
    if done >= PROLOGUE || memory.read(start, &mut code).is_none() {
        return false;
    }
    code.windows(4)
        .position(|bytes| ENTRIES.iter().any(|entry| entry == bytes))
        .is_some_and(|entry| done <= entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BASE, FlatMemory};

    #[test]
    fn a_frame_is_made_and_removed_in_stages() {
        // test; push %rbp; mov %rsp, %rbp; push %rsi; nop ...; mov %rbp, %rsp; pop %rbp; pop %rcx; ret
        let mut bytes = vec![0x85, 0xc0, 0x55, 0x48, 0x89, 0xe5, 0x56];
        bytes.extend([0x90; 40]);
        bytes.extend([0x48, 0x8b, 0xe5, 0x5d, 0x59, 0xc3]);
        bytes.extend([0xcc; 128]);
        let memory = FlatMemory { bytes };
        let stages = |from: Option<u64>| {
            [0, 2, 3, 6, 7, 40, 47, 51, 52]
                .map(|offset| stage(&memory, VirtAddr(BASE + offset), from.map(|from| VirtAddr(BASE + from))))
        };
        use FrameStage::{Complete as C, Leaving as L, ReturnAddress as R, SavedPointer as S};
        assert_eq!(stages(Some(0)), [R, R, S, C, C, C, C, L, R]);
        assert_eq!(stages(None), [C, R, S, C, C, C, C, L, R], "the start is not known");
        assert_eq!(stage(&memory, VirtAddr(8), None), C, "no code");
    }
}
