//! Stages of a compiled frame at the instructions that make and remove it.

use symbols::VirtAddr;

use super::blob::CodeBlob;
use crate::ProcessMemory;

/// Bytes before and after an instruction that are compared.
const BEFORE: usize = 32;
const AFTER: usize = 24;
/// Bytes of code up to a complete frame that are searched, at most.
const MAX_PROLOGUE: u64 = 256;
/// `push rbp`.
const PUSH: u8 = 0x55;
/// `pop rbp`.
const POP: u8 = 0x5d;
/// `ret`.
const RET: u8 = 0xc3;

/// Parts of a compiled frame that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameStage {
    /// All of it.
    Complete,
    /// Only the return address.
    ReturnAddress,
    /// The return address, and the caller's RBP below.
    SavedPointer,
    /// All of it, but RBP is still the caller's and has not been saved.
    WithoutSavedPointer,
}

/// Code around an instruction: `BEFORE` bytes, then the instruction and what follows.
struct CodeWindow {
    bytes: [u8; BEFORE + AFTER],
}

impl CodeWindow {
    /// Returns true if `wanted` is `back` bytes before the instruction.
    fn has(&self, back: usize, wanted: &[u8]) -> bool {
        let start = BEFORE.checked_sub(back);
        start.and_then(|start| self.bytes.get(start..)).is_some_and(|bytes| bytes.starts_with(wanted))
    }
}

/// Instructions `sub rsp, size` (`48 81 ec` and `48 83 ec`) or `add rsp, size` (`c4`), in both lengths.
fn moves_rsp(opcode: u8, size: u64) -> [Option<Vec<u8>>; 2] {
    let long = i32::try_from(size).ok().map(|size| {
        let mut bytes = vec![0x48, 0x81, opcode];
        bytes.extend(size.to_le_bytes());
        bytes
    });
    let short = i8::try_from(size).ok().map(|size| vec![0x48, 0x83, opcode, size.cast_unsigned()]);
    [long, short]
}

/// Returns the stage of the frame of `blob` in front of the instruction at `at`.
///
/// ```text
/// prologue   push rbp; [mov rbp, rsp;] sub rsp, size - 16     or   sub rsp, size - 8; mov [rsp + ...], rbp
/// epilogue   add rsp, size - 16; pop rbp; [poll of a safepoint;] ret
/// ```
pub(super) fn frame_stage(memory: &impl ProcessMemory, blob: &CodeBlob, at: VirtAddr) -> FrameStage {
    let Some(window) = window(memory, blob, at) else { return FrameStage::Complete };
    let locals = blob.frame_size.saturating_sub(16);
    let subtract = moves_rsp(0xec, locals);
    let subtract_all = moves_rsp(0xec, locals + 8);
    let before =
        |wanted: &[Option<Vec<u8>>; 2]| wanted.iter().flatten().any(|bytes| window.has(bytes.len(), bytes));
    let here = |wanted: &[Option<Vec<u8>>; 2]| wanted.iter().flatten().any(|bytes| window.has(0, bytes));
    let moves_pointer = [[0x48, 0x8b, 0xec], [0x48, 0x89, 0xe5]];
    // Between the two instructions of a prologue.
    if window.has(1, &[PUSH]) && (here(&subtract) || moves_pointer.iter().any(|bytes| window.has(0, bytes)))
        || moves_pointer.iter().any(|bytes| window.has(3, bytes) && window.has(4, &[PUSH])) && here(&subtract)
    {
        return FrameStage::SavedPointer;
    }
    // mov [rsp + size - 16], rbp, with an offset of one or of four bytes.
    let saves = window.has(0, &[0x48, 0x89, 0x6c, 0x24]) || window.has(0, &[0x48, 0x89, 0xac, 0x24]);
    if before(&subtract_all) && saves {
        return FrameStage::WithoutSavedPointer;
    }
    // The frame of a stub begins with a push.
    let begins = at == blob.code.start && window.has(0, &[PUSH]);
    if begins || window.has(0, &[RET]) || starts_later(memory, blob, at) {
        return FrameStage::ReturnAddress;
    }
    epilogue(&window, locals)
}

/// Reads the code around `at`; what is outside of the blob is zero.
fn window(memory: &impl ProcessMemory, blob: &CodeBlob, at: VirtAddr) -> Option<CodeWindow> {
    let mut bytes = [0; BEFORE + AFTER];
    let start = at.0.saturating_sub(BEFORE as u64).max(blob.start.0);
    let end = at.0.saturating_add(AFTER as u64).min(blob.code.end.0);
    let first = usize::try_from(start.checked_sub(at.0.checked_sub(BEFORE as u64)?)?).ok()?;
    let len = usize::try_from(end.checked_sub(start)?).ok()?;
    memory.read(VirtAddr(start), bytes.get_mut(first..first.checked_add(len)?)?)?;
    Some(CodeWindow { bytes })
}

/// Returns true if `at` precedes the prologue, whose end is where the frame is complete.
fn starts_later(memory: &impl ProcessMemory, blob: &CodeBlob, at: VirtAddr) -> bool {
    let Some(done) = at.offset_from(blob.code.start) else { return false };
    if done >= blob.frame_complete || blob.frame_complete > MAX_PROLOGUE {
        return false;
    }
    let Some(code) = memory.read_bytes(blob.code.start, blob.frame_complete) else { return false };
    let locals = blob.frame_size.saturating_sub(16);
    let starts = |start: usize| {
        let rest = code.get(start..).unwrap_or_default();
        let after_push = rest.strip_prefix(&[PUSH]).map(|rest| {
            let moved =
                rest.strip_prefix(&[0x48, 0x8b, 0xec]).or_else(|| rest.strip_prefix(&[0x48, 0x89, 0xe5]));
            moved.unwrap_or(rest)
        });
        let subtracts = |bytes: &[u8], size| {
            moves_rsp(0xec, size).iter().flatten().any(|wanted| bytes.starts_with(wanted))
        };
        // A frame without locals is complete after the push.
        after_push.is_some_and(|rest| locals == 0 || subtracts(rest, locals)) || subtracts(rest, locals + 8)
    };
    // The last one: bytes of other instructions may look like it.
    (0..code.len()).rev().find(|&start| starts(start)).is_some_and(|start| done <= start as u64)
}

/// A poll of a safepoint between the end of a frame and the return: its bytes, of which `None` may be any,
/// and the starts of its instructions.
type Poll = (&'static [Option<u8>], &'static [usize]);

/// The polls that compilers use (src/hotspot/cpu/x86: `safepoint_poll` and `MachEpilogNode`, JDK 11 to 25).
const POLLS: [Poll; 6] = [
    (&[], &[0]),
    // cmp rsp, [r15 + disp32]; ja
    (
        &[
            Some(0x49),
            Some(0x3b),
            Some(0xa7),
            None,
            None,
            None,
            None,
            Some(0x0f),
            Some(0x87),
            None,
            None,
            None,
            None,
        ],
        &[0, 7, 13],
    ),
    // cmp rsp, [r15 + disp8]; ja
    (
        &[Some(0x49), Some(0x3b), Some(0x67), None, Some(0x0f), Some(0x87), None, None, None, None],
        &[0, 4, 10],
    ),
    // mov r10, [r15 + disp32]; test [r10], eax
    (
        &[Some(0x4d), Some(0x8b), Some(0x97), None, None, None, None, Some(0x41), Some(0x85), Some(0x02)],
        &[0, 7, 10],
    ),
    // mov r10, [r15 + disp8]; test [r10], eax
    (&[Some(0x4d), Some(0x8b), Some(0x57), None, Some(0x41), Some(0x85), Some(0x02)], &[0, 4, 7]),
    // test [rip + disp32], eax
    (&[Some(0x85), Some(0x05), None, None, None, None], &[0, 6]),
];

/// Returns the stage at an instruction that may remove the frame, or be after that.
fn epilogue(window: &CodeWindow, locals: u64) -> FrameStage {
    let add = moves_rsp(0xc4, locals);
    // Bytes of `add`, which ends `back` bytes before the instruction; a frame without locals has none.
    let removed =
        |back: usize| locals == 0 || add.iter().flatten().any(|bytes| window.has(back + bytes.len(), bytes));
    if locals > 0 && window.has(0, &[POP]) && removed(0) {
        return FrameStage::SavedPointer;
    }
    for (poll, starts) in POLLS {
        for &done in starts {
            let start = BEFORE - done;
            let code = window.bytes.get(start..).unwrap_or_default();
            let same = |(wanted, byte): (&Option<u8>, &u8)| wanted.is_none_or(|wanted| wanted == *byte);
            let is_poll = poll.iter().zip(code).all(same) && code.get(poll.len()) == Some(&RET);
            if is_poll && window.has(done + 1, &[POP]) && removed(done + 1) {
                return FrameStage::ReturnAddress;
            }
        }
    }
    FrameStage::Complete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BASE, FlatMemory};

    /// Returns the stage in front of each of `instructions`, which are the code of a method whose frame of 64
    /// bytes is complete after `complete` of them.
    fn stages(instructions: &[&[u8]], complete: usize) -> Vec<FrameStage> {
        let mut memory = FlatMemory { bytes: vec![0xcc; 0x100] };
        let code = instructions.concat();
        memory.bytes[0x40..0x40 + code.len()].copy_from_slice(&code);
        let start = VirtAddr(BASE + 0x40);
        let blob = CodeBlob {
            start: VirtAddr(BASE),
            code: start..VirtAddr(BASE + 0x100),
            name: VirtAddr(0),
            frame_size: 64,
            frame_complete: instructions[..complete].concat().len() as u64,
        };
        let mut at = start;
        let stage = |instruction: &&[u8]| {
            let stage = frame_stage(&memory, &blob, at);
            at = at.checked_add(instruction.len() as u64).expect("small");
            stage
        };
        instructions.iter().map(stage).collect()
    }

    #[test]
    fn a_frame_is_made_by_push_and_sub_and_removed_before_the_poll() {
        use FrameStage::{Complete, ReturnAddress, SavedPointer};
        let code: [&[u8]; 10] = [
            &[0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff], // mov [rsp - 0x14000], eax
            &[PUSH],
            &[0x48, 0x83, 0xec, 0x30], // sub rsp, 48
            &[0x90],
            &[0x48, 0x83, 0xc4, 0x30], // add rsp, 48
            &[POP],
            &[0x49, 0x3b, 0xa7, 0x28, 0x03, 0x00, 0x00], // cmp rsp, [r15 + 0x328]
            &[0x0f, 0x87, 0x01, 0x00, 0x00, 0x00],       // ja
            &[RET],
            &[0x90],
        ];
        let wanted = [
            ReturnAddress,
            ReturnAddress,
            SavedPointer,
            Complete,
            Complete,
            SavedPointer,
            ReturnAddress,
            ReturnAddress,
            ReturnAddress,
            Complete,
        ];
        assert_eq!(stages(&code, 3), wanted);
    }

    #[test]
    fn a_frame_may_be_made_by_sub_and_mov_and_have_long_operands() {
        use FrameStage::{Complete, ReturnAddress, SavedPointer, WithoutSavedPointer};
        let code: [&[u8]; 8] = [
            &[0x90],                                     // the check of the receiver's class
            &[0x48, 0x81, 0xec, 0x38, 0x00, 0x00, 0x00], // sub rsp, 56
            &[0x48, 0x89, 0x6c, 0x24, 0x30],             // mov [rsp + 48], rbp
            &[0x90],
            &[0x48, 0x81, 0xc4, 0x30, 0x00, 0x00, 0x00], // add rsp, 48
            &[POP],
            &[0x85, 0x05, 0x01, 0x02, 0x03, 0x04], // test [rip + ...], eax
            &[RET],
        ];
        let wanted = [
            ReturnAddress,
            ReturnAddress,
            WithoutSavedPointer,
            Complete,
            Complete,
            SavedPointer,
            ReturnAddress,
            ReturnAddress,
        ];
        assert_eq!(stages(&code, 3), wanted);
    }

    #[test]
    fn a_frame_pointer_is_set_between_push_and_sub() {
        use FrameStage::{Complete, ReturnAddress, SavedPointer};
        let code: [&[u8]; 5] =
            [&[PUSH], &[0x48, 0x8b, 0xec], &[0x48, 0x83, 0xec, 0x30], &[0x90], &[0x5d, 0x90]];
        // A pop that follows no `add` of the frame's size is something else.
        assert_eq!(stages(&code, 3), [ReturnAddress, SavedPointer, SavedPointer, Complete, Complete]);
    }
}
