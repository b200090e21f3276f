//! Code that no CFI covers.

use super::builder::{Builder, OUTERMOST, cfa_offset};
use super::{BIAS, JIT, Process, RSP, Words, addresses, registers, walk_with};
use crate::cfi::{CfiTable, Doubt, ImageCode, Place, UserEnd, UserFrame};
use crate::registers::Registers;

const CALLER: u64 = BIAS + 0x2010;
const LEAF: u64 = BIAS + 0x5000;

fn table() -> CfiTable {
    Builder::new().function(0x2000, &cfa_offset(16)).function(0x3000, &OUTERMOST).table()
}

/// Code around [`CALLER`], which is behind a call or not.
fn process(table: &CfiTable, call: bool) -> Process<'_> {
    let before = if call { [0x90, 0x90, 0xe8, 1, 2, 3, 4] } else { [0x90; 7] };
    Process { file: ImageCode::Cfi(table), code: vec![(CALLER - 7, before.to_vec())] }
}

fn walked(process: &Process<'_>, from: &Registers, stack: &Words) -> (Vec<u64>, Option<Doubt>, UserEnd) {
    let (frames, end) = walk_with(process, from, stack);
    (addresses(&frames), frames.get(1).and_then(|frame: &UserFrame| frame.doubt), end)
}

#[test]
fn a_leaf_returns_to_behind_a_call() {
    let table = table();
    let stack = Words::new([(RSP, CALLER), (RSP + 16, BIAS + 0x3010)]);
    let from = registers(LEAF, RSP, 3);
    let expected = vec![LEAF, CALLER, BIAS + 0x3010];
    let with = walked(&process(&table, true), &from, &stack);
    assert_eq!(with, (expected, Some(Doubt::ReturnAddress), UserEnd::Complete));
    let without = walked(&process(&table, false), &from, &stack);
    assert_eq!(without, (vec![LEAF], None, crate::cfi::Broken::NoCfi.into()));
}

#[test]
fn frame_pointers_lead_through_code_made_at_run_time() {
    let table = table();
    let rbp = RSP + 0x40;
    let stack = Words::new([
        (rbp, rbp + 0x40),
        (rbp + 8, JIT + 0x20),
        (rbp + 0x40, 0x99),
        (rbp + 0x48, CALLER),
        (rbp + 0x58, BIAS + 0x3010),
    ]);
    let expected = vec![JIT + 0x10, JIT + 0x20, CALLER, BIAS + 0x3010];
    let found = walked(&process(&table, true), &registers(JIT + 0x10, RSP, rbp), &stack);
    assert_eq!(found, (expected, Some(Doubt::FramePointer), UserEnd::Complete));
}

#[test]
fn a_frame_pointer_below_the_stack_or_to_no_code_is_none() {
    let table = table();
    for (rbp, ra) in [(RSP - 16, CALLER), (RSP + 4, CALLER), (RSP + 8, 0x1234), (RSP + 8, JIT - 0x1000)] {
        let stack = Words::new([(rbp, 5), (rbp + 8, ra)]);
        let (frames, _) = walk_with(&process(&table, true), &registers(JIT + 0x10, RSP, rbp), &stack);
        assert_eq!(addresses(&frames), [JIT + 0x10], "{rbp:x} {ra:x}");
    }
}

#[test]
fn a_frame_pointer_of_zero_marks_the_outermost_frame() {
    let table = table();
    let stack = Words::new([(RSP + 8, LEAF)]);
    let found = walked(&process(&table, true), &registers(BIAS + 0x2000, RSP, 0), &stack);
    assert_eq!(found, (vec![BIAS + 0x2000, LEAF], None, UserEnd::Complete));
}

#[test]
fn a_signal_trampoline_without_cfi_gives_the_interrupted_registers() {
    let table = table();
    let mut process = process(&table, true);
    process.code.push((LEAF, vec![0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5]));
    // RSP and RIP are the 16th and 17th word of the saved registers, which start 40 bytes into the context.
    let context = RSP + 16;
    let saved = (0..15).map(|i| (context + 40 + i * 8, i));
    let rest = [(context + 160, RSP + 0x800), (context + 168, BIAS + 0x3000), (RSP + 8, LEAF)];
    let (frames, end) =
        walk_with(&process, &registers(BIAS + 0x2000, RSP, 0), &Words::new(saved.chain(rest)));
    assert_eq!((addresses(&frames), end), (vec![BIAS + 0x2000, LEAF, BIAS + 0x3000], UserEnd::Complete));
    assert_eq!((frames[2].place, frames[2].doubt), (Place::Exact, None));
    // The same from each step of the trampoline, the system call included; not from the middle of an instruction.
    for (steps, frames) in [(7, 2), (9, 2), (5, 1), (3, 1)] {
        let words = (0..15).map(|i| (context + 40 + i * 8, i)).chain(rest);
        let (walked, _) = walk_with(&process, &registers(LEAF + steps, context, 0), &Words::new(words));
        assert_eq!(walked.len(), frames, "{steps} bytes into it");
    }
}
