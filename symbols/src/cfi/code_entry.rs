//! Finds the frame of code made at run time by its entry: a loop without an end has no way to a return.
//!
//! HotSpot's compiled methods begin like this (`C2_MacroAssembler::verified_entry`,
//! src/hotspot/cpu/x86/c2_MacroAssembler_x86.cpp, and `C1_MacroAssembler::build_frame`, JDK 21):
//!
//! ```text
//! mov %eax, -N(%rsp)         touches the pages below the stack
//! push %rbp; sub $FRAME, %rsp
//! ```
//!
//! From there on RSP stays where it is until the method returns. What ends with `hlt` is another part of the
//! code, whose frame is not known.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::UserWalkError;
use super::images::CodeMappings;
use super::work_budget::WorkBudget;
use crate::address::VirtAddr;

/// Distance of the farthest entry, bytes: HotSpot compiles no method of more than 8,000 bytes of bytecode
/// (HugeMethodLimit), and inlines within bounds.
const FARTHEST: u64 = 64 << 10;
/// Bytes of code that are read at once.
const CHUNK: usize = 4 << 10;
/// Units of a walk's work for one chunk.
const UNITS: usize = 256;
/// Bytes of the longest entry.
const ENTRY: usize = 15;
/// `hlt`, as often as between parts of code at least.
const PADDING: [u8; 4] = [0xf4; 4];
/// Largest frame, bytes.
const LARGEST: u32 = 1 << 20;

/// Mark in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeMark {
    /// Entry of a method with a frame of this many bytes.
    Entry(u32),
    /// End of a part of the code.
    End,
}

/// Returns the instructions that leave the frame of the code at `at`, as its entry has made it; `None` if no
/// entry is found.
///
/// # Errors
/// The walk's work is spent.
pub(super) fn exit_by_entry(
    at: VirtAddr,
    images: &impl CodeMappings,
    work: &mut WorkBudget,
) -> Result<Option<Vec<Instruction>>, UserWalkError> {
    let lowest = at.0.saturating_sub(FARTHEST);
    let mut code = [0; CHUNK + ENTRY];
    let mut end = at.0;
    while end > lowest {
        work.take(UNITS)?;
        // To the beginning of a page: code may begin in the middle of what can be read.
        let start = end.saturating_sub(1) & !(CHUNK as u64 - 1);
        let beyond = (at.0 - end).min(ENTRY as u64);
        let bytes = code.get_mut(..crate::bytes::index(end + beyond - start)).unwrap_or_default();
        if images.code(VirtAddr(start), bytes).is_none() {
            return Ok(None);
        }
        match last_mark(bytes) {
            Some(CodeMark::Entry(frame)) => return Ok(Some(exit_of(frame, at))),
            Some(CodeMark::End) => return Ok(None),
            None => end = start,
        }
    }
    Ok(None)
}

/// Returns the last mark in the code.
fn last_mark(code: &[u8]) -> Option<CodeMark> {
    (0..code.len()).rev().find_map(|place| {
        let rest = code.get(place..)?;
        if rest.starts_with(&PADDING) { Some(CodeMark::End) } else { entry(rest).map(CodeMark::Entry) }
    })
}

/// Returns the bytes of the frame that an entry at the beginning of `code` makes.
fn entry(code: &[u8]) -> Option<u32> {
    // mov %eax, disp32(%rsp); push %rbp
    let (probe, rest) = code.strip_prefix(&[0x89, 0x84, 0x24])?.split_first_chunk()?;
    let below = i32::from_le_bytes(*probe);
    let frame = match rest.strip_prefix(&[0x55, 0x48])? {
        // sub $imm32, %rsp
        [0x81, 0xec, bytes @ ..] => u32::from_le_bytes(*bytes.first_chunk()?),
        // sub $imm8, %rsp
        [0x83, 0xec, byte, ..] if *byte < 0x80 => u32::from(*byte),
        _ => return None,
    };
    let is_probe = below < 0 && below % 4096 == 0;
    (is_probe && frame <= LARGEST && frame.is_multiple_of(8)).then_some(frame)
}

/// Returns the instructions that leave a frame.
fn exit_of(frame: u32, at: VirtAddr) -> Vec<Instruction> {
    // add $frame, %rsp; pop %rbp; ret
    let [a, b, c, d] = frame.to_le_bytes();
    let code = [0x48, 0x81, 0xc4, a, b, c, d, 0x5d, 0xc3];
    Decoder::with_ip(64, &code, at.0, DecoderOptions::NONE).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: [u8; 12] = [0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, 0x55, 0x48, 0x83, 0xec, 0x30];
    const LONG: [u8; 15] = [0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, 0x55, 0x48, 0x81, 0xec, 0x80, 1, 0, 0];

    #[test]
    fn entries_are_recognized_by_their_bytes() {
        assert_eq!((entry(&SHORT), entry(&LONG)), (Some(0x30), Some(0x180)));
        for len in 0..SHORT.len() {
            assert_eq!(entry(&SHORT[..len]), None, "{len}");
        }
        for len in 0..LONG.len() {
            assert_eq!(entry(&LONG[..len]), None, "{len}");
        }
        // Above the stack, not whole pages, a negative or a large frame, one that is not of words.
        for (place, byte) in [(6, 0), (3, 8), (11, 0xf0), (11, 0x31)] {
            let mut other = SHORT;
            other[place] = byte;
            assert_eq!(entry(&other), None, "{place}");
        }
        let mut large = LONG;
        large[13] = 0x11;
        assert_eq!(entry(&large), None);
    }

    #[test]
    fn the_last_mark_counts() {
        let code = |parts: &[&[u8]]| parts.concat();
        assert_eq!(last_mark(&code(&[&SHORT, &[0x90; 9], &LONG, &[0x90; 9]])), Some(CodeMark::Entry(0x180)));
        assert_eq!(last_mark(&code(&[&SHORT, &[0x90; 9], &PADDING, &[0x90; 9]])), Some(CodeMark::End));
        assert_eq!(last_mark(&[0x90; 64]), None);
    }
}
