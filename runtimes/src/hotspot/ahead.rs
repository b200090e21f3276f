//! Places of compiled code that execution reaches from an instruction.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use symbols::VirtAddr;

use super::blob::AddressRange;
use crate::ProcessMemory;

/// Instructions that are followed, at most.
const MAX_INSTRUCTIONS: usize = 512;
/// Bytes of an instruction, at most (Intel SDM volume 2, 2.3.11).
const MAX_LENGTH: u64 = 15;
/// `call` with a relative target, and its length.
const CALL: u8 = 0xe8;
const CALL_LENGTH: u64 = 5;

/// Returns the first places, for which `is_place` is true, on all ways of execution from `from` on; `None` if
/// a way leaves `code`, returns, or cannot be followed.
pub(super) fn places_ahead(
    memory: &impl ProcessMemory,
    code: &AddressRange,
    from: VirtAddr,
    is_place: impl Fn(VirtAddr) -> bool,
) -> Option<Vec<VirtAddr>> {
    let (mut found, mut seen, mut ways) = (Vec::new(), HashSet::new(), vec![from]);
    while let Some(at) = ways.pop() {
        if !seen.insert(at) {
            continue;
        }
        if at != from && is_place(at) {
            found.push(at);
            continue;
        }
        if seen.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let instruction = instruction(memory, code, at)?;
        let [next, target] = [instruction.next_ip(), instruction.near_branch_target()].map(VirtAddr);
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => ways.push(next),
            FlowControl::ConditionalBranch => ways.extend([next, target]),
            FlowControl::UnconditionalBranch => ways.push(target),
            // What follows a call that does not return.
            FlowControl::Exception | FlowControl::Interrupt => {}
            FlowControl::Return | FlowControl::IndirectBranch | FlowControl::XbeginXabortXend => return None,
        }
    }
    Some(found)
}

/// Returns true if a call of a fixed target returns to `at`.
pub(super) fn follows_call(memory: &impl ProcessMemory, code: &AddressRange, at: VirtAddr) -> bool {
    let mut byte = [0];
    let call = at.0.checked_sub(CALL_LENGTH).map(VirtAddr).filter(|call| code.contains(call));
    call.and_then(|call| memory.read(call, &mut byte)).is_some() && byte == [CALL]
}

/// Decodes the instruction at `at`; `None` if it is not in `code`, or invalid.
fn instruction(memory: &impl ProcessMemory, code: &AddressRange, at: VirtAddr) -> Option<Instruction> {
    let len = code.end.offset_from(at).filter(|_| code.contains(&at))?.min(MAX_LENGTH);
    let bytes = memory.read_bytes(at, len)?;
    let mut decoder = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE);
    Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BASE, FlatMemory};

    /// Returns the places ahead of the start of `code`, of these offsets in it.
    fn ahead(code: &[u8], places: &[u64]) -> Option<Vec<u64>> {
        let mut memory = FlatMemory { bytes: vec![0xcc; 0x100] };
        memory.bytes[..code.len()].copy_from_slice(code);
        let range = VirtAddr(BASE)..VirtAddr(BASE + 0x100);
        let is_place = |at: VirtAddr| places.contains(&(at.0 - BASE));
        let mut found: Vec<u64> =
            places_ahead(&memory, &range, VirtAddr(BASE), is_place)?.iter().map(|at| at.0 - BASE).collect();
        found.sort_unstable();
        Some(found)
    }

    #[test]
    fn ways_end_at_the_first_place() {
        // 0 inc eax; 2 cmp eax, ecx; 4 jl 0; 6 jmp 12; 8 nops; 12 nop; 13 call; 18 nop
        let mut code = vec![0xff, 0xc0, 0x39, 0xc8, 0x7c, 0xfa, 0xeb, 0x04, 0x90, 0x90, 0x90, 0x90, 0x90];
        code.extend([0xe8, 0, 0, 0, 0, 0x90]);
        assert_eq!(ahead(&code, &[0, 8, 18]), Some(vec![18]), "a loop, a jump over a place, a call");
        assert_eq!(ahead(&code, &[6, 12, 18]), Some(vec![6]));
        // 0 test; 2 je 8; 4 nop; 5 ud2
        let code = [0x85, 0xc0, 0x74, 0x04, 0x90, 0x0f, 0x0b, 0x90, 0x90];
        assert_eq!(ahead(&code, &[8]), Some(vec![8]), "one way traps");
        assert_eq!(ahead(&code, &[4, 8]), Some(vec![4, 8]), "both ways");
    }

    #[test]
    fn ways_out_of_the_code_are_not_known() {
        for (code, what) in [
            (&[0xc3][..], "a return"),
            (&[0xff, 0xe0], "an indirect jump"),
            (&[0xe9, 0, 1, 0, 0], "a jump to other code"),
            (&[0x06], "an instruction that does not exist"),
        ] {
            assert_eq!(ahead(code, &[0x80]), None, "{what}");
        }
        let long = [0x90; 0x100];
        assert_eq!(ahead(&long, &[]), None, "the end of the code");
    }
}
