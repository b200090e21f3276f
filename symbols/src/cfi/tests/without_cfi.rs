//! Code that no CFI covers.

use super::builder::{Builder, OUTERMOST, cfa_offset};
use super::{BIAS, JIT, Process, RSP, Words, addresses, registers, walk_with};
use crate::address::AddressKind;
use crate::cfi::{CfiTable, FrameDoubt, ImageCode, UserEnd, UserFrame, UserUnwinder};
use crate::registers::Registers;

const CALLER: u64 = BIAS + 0x2010;
const LEAF: u64 = BIAS + 0x5000;

fn table() -> CfiTable {
    Builder::new().function(0x2000, &cfa_offset(16)).function(0x3000, &OUTERMOST).table()
}

/// Code around [`CALLER`], which is after a call or not.
fn process(table: &CfiTable, call: bool) -> Process<'_> {
    let before = if call { [0x90, 0x90, 0xe8, 1, 2, 3, 4] } else { [0x90; 7] };
    Process { file: ImageCode::Cfi(table), code: vec![(CALLER - 7, before.to_vec())] }
}

fn walked(process: &Process<'_>, from: &Registers, stack: &Words) -> (Vec<u64>, Option<FrameDoubt>, UserEnd) {
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
    assert_eq!(with, (expected, Some(FrameDoubt::ReturnAddress), UserEnd::Complete));
    let without = walked(&process(&table, false), &from, &stack);
    assert_eq!(without, (vec![LEAF], None, crate::cfi::UserWalkError::NoCfi.into()));
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
    assert_eq!(found, (expected, Some(FrameDoubt::FramePointer), UserEnd::Complete));
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
    assert_eq!((frames[2].at.kind, frames[2].doubt), (AddressKind::Exact, None));
    // The same from each step of the trampoline, the system call included; not from the middle of an
    // instruction.
    for (steps, frames) in [(7, 2), (9, 2), (5, 1), (3, 1)] {
        let words = (0..15).map(|i| (context + 40 + i * 8, i)).chain(rest);
        let (walked, _) = walk_with(&process, &registers(LEAF + steps, context, 0), &Words::new(words));
        assert_eq!(walked.len(), frames, "{steps} bytes into it");
    }
}

/// Address of the code of [`made`].
const MADE: u64 = JIT + 0x100;

/// As [`process`], with this code made at run time, and nothing that can be run around it.
fn made<'a>(table: &'a CfiTable, code: &[u8]) -> Process<'a> {
    let mut process = process(table, true);
    let mut page = vec![0xcc; 0x1000];
    page[0x100..0x100 + code.len()].copy_from_slice(code);
    // After bytes that are not a call: add $16, %rsp; ret
    page[0x208..0x20d].copy_from_slice(&[0x48, 0x83, 0xc4, 16, 0xc3]);
    process.code.push((JIT, page));
    process
}

#[test]
fn a_trampoline_is_left_as_its_code_says() {
    let table = table();
    // call *%rcx; add $8, %rsp; ret
    let process = made(&table, &[0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3]);
    let stack = Words::new([(RSP + 8, MADE + 2), (RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)]);
    let (frames, end) = walk_with(&process, &registers(BIAS + 0x2000, RSP, 3), &stack);
    assert_eq!(addresses(&frames), [BIAS + 0x2000, MADE + 2, CALLER, BIAS + 0x3010]);
    assert_eq!((frames[2].doubt, end), (Some(FrameDoubt::Code), UserEnd::Complete));
    // A word is not a return address if no call is before it, or if it does not point to code.
    for word in [LEAF, 0x1234] {
        let mut process = made(&table, &[0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3]);
        process.code.push((LEAF - 7, vec![0x90; 7]));
        let stack = Words::new([(RSP + 8, MADE + 2), (RSP + 24, word)]);
        let (frames, _) = walk_with(&process, &registers(BIAS + 0x2000, RSP, 3), &stack);
        assert_eq!(addresses(&frames), [BIAS + 0x2000, MADE + 2], "{word:x}");
    }
}

#[test]
fn code_that_never_returns_is_left_as_its_entry_says() {
    let table = table();
    // mov %eax, -0x14000(%rsp); push %rbp; sub $0x20, %rsp
    let entry = [0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, 0x55, 0x48, 0x83, 0xec, 0x20];
    // nop; 0: call *%rcx; jmp 0b
    let endless = [0x90, 0xff, 0xd1, 0xeb, 0xfc];
    let words =
        [(RSP + 8, 0x77), (RSP + 0x20, RSP + 0x500), (RSP + 0x28, CALLER), (RSP + 0x38, BIAS + 0x3010)];
    let frames = |parts: &[&[u8]], place: u64, rsp: u64| {
        let code = parts.concat();
        let process = made(&table, &code);
        let (frames, _) = walk_with(&process, &registers(MADE + place, rsp, 3), &Words::new(words));
        addresses(&frames)
    };
    let complete = [MADE + 12, CALLER, BIAS + 0x3010];
    assert_eq!(frames(&[&entry, &endless], 12, RSP), complete);
    // Entered again, the way is known.
    assert_eq!(frames(&[&entry, &endless], 12, RSP), complete);
    // The frame of another part, or of code whose entry is not known.
    assert_eq!(frames(&[&entry, &[0xf4; 4], &endless], 16, RSP), [MADE + 16]);
    assert_eq!(frames(&[&[0x90; 12], &endless], 12, RSP), [MADE + 12]);
}

#[test]
fn the_way_out_is_found_behind_branches_and_pops() {
    let table = table();
    let words =
        [(RSP, 1), (RSP + 8, RSP + 0x500), (RSP + 16, 3), (RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)];
    let ways: [&[u8]; 5] = [
        // test %eax, %eax; je 1f; 0: jmp 0b; 1: pop %rbx; pop %rbp; pop %r13; ret
        &[0x85, 0xc0, 0x74, 2, 0xeb, 0xfe, 0x5b, 0x5d, 0x41, 0x5d, 0xc3],
        // push %rax; call; pop %rcx; lea 24(%rsp), %rsp; ret
        &[0x50, 0xe8, 1, 0, 0, 0, 0x59, 0x48, 0x8d, 0x64, 0x24, 24, 0xc3],
        // sub $8, %rsp; mov %eax, (%rsp); add $32, %rsp; ret
        &[0x48, 0x83, 0xec, 8, 0x89, 4, 0x24, 0x48, 0x83, 0xc4, 32, 0xc3],
        // lea 16(%rsp), %rbp; leave; ret
        &[0x48, 0x8d, 0x6c, 0x24, 16, 0xc9, 0xc3],
        // jmp 1f; int3; 1: mov $24, %eax; pop %rdx; pop %rdx; pop %rdx; ret
        &[0xeb, 1, 0xcc, 0xb8, 24, 0, 0, 0, 0x5a, 0x5a, 0x5a, 0xc3],
    ];
    for code in ways {
        let (frames, end) = walk_with(&made(&table, code), &registers(MADE, RSP, 3), &Words::new(words));
        let expected = [MADE, CALLER, BIAS + 0x3010];
        assert_eq!((addresses(&frames), end), (expected.to_vec(), UserEnd::Complete), "{code:x?}");
    }
}

#[test]
fn a_way_that_is_not_sure_leads_nowhere() {
    let table = table();
    let ways: [&[u8]; 8] = [
        // movq $0, 24(%rsp); add $24, %rsp; ret: the word there is not that of the sample any more.
        &[0x48, 0xc7, 0x44, 0x24, 24, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 24, 0xc3],
        // mov %eax, 28(%rsp); add $24, %rsp; ret: nor a part of it.
        &[0x89, 0x44, 0x24, 28, 0x48, 0x83, 0xc4, 24, 0xc3],
        // and $-16, %rsp; add $24, %rsp; ret
        &[0x48, 0x83, 0xe4, 0xf0, 0x48, 0x83, 0xc4, 24, 0xc3],
        // jmp *%rax
        &[0xff, 0xe0],
        // pop %rcx; jmp *%rcx: an interpreter's return, to code that has a separate frame.
        &[0x59, 0xff, 0xe1],
        // call 0f; 0: add $24, %rsp; ret: its return address stays on the stack.
        &[0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 24, 0xc3],
        // ud2
        &[0x0f, 0x0b],
        // 0: jmp 0b
        &[0xeb, 0xfe],
    ];
    for code in ways {
        let words = Words::new([(RSP, JIT + 0x208), (RSP + 24, CALLER), (RSP + 32, CALLER)]);
        let (frames, end) = walk_with(&made(&table, code), &registers(MADE, RSP, 3), &words);
        let expected = (vec![MADE], crate::cfi::UserWalkError::AnonymousCode.into());
        assert_eq!((addresses(&frames), end), expected, "{code:x?}");
    }
}

#[test]
fn code_that_jumps_back_into_its_interpreter_is_in_the_interpreters_frame() {
    let table = table();
    let (opline, frame, handler) = (BIAS + 0x9000, BIAS + 0x9100, (BIAS + 0x2004).to_le_bytes());
    let ways: [&[u8]; 3] = [
        // add $16, %rsp; jmp *(%r15)
        &[0x48, 0x83, 0xc4, 16, 0x41, 0xff, 0x27],
        // add $16, %rsp; mov (%r14), %r15; add $-8, %r15; jmp *(%r15)
        &[0x48, 0x83, 0xc4, 16, 0x4d, 0x8b, 0x3e, 0x49, 0x83, 0xc7, 0xf8, 0x41, 0xff, 0x27],
        // mov $0x555500002000, %rax; call *%rax: a function, which keeps R15; add $16, %rsp; jmp *(%r15)
        &[0x48, 0xb8, 0x00, 0x20, 0, 0, 0x55, 0x55, 0, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4, 16, 0x41, 0xff, 0x27],
    ];
    for code in ways {
        let mut process = made(&table, code);
        process.code.push((opline, handler.to_vec()));
        process.code.push((frame, (opline + 8).to_le_bytes().to_vec()));
        let stack = Words::new([(RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)]);
        let mut from = registers(MADE, RSP, 3);
        (from.gpr[14], from.gpr[15]) = (frame, opline);
        let (frames, end) = walk_with(&process, &from, &stack);
        assert_eq!(addresses(&frames), [MADE, BIAS + 0x2004, CALLER, BIAS + 0x3010], "{code:x?}");
        let first = (frames[1].at.kind, frames[1].doubt);
        assert_eq!((first, end), ((AddressKind::Exact, Some(FrameDoubt::Code)), UserEnd::Complete));
    }
}

#[test]
fn a_table_within_made_code_leads_on_in_its_frame() {
    let table = table();
    // jmp *1f(%rip); int3; 1: the address of 2; 2: add $24, %rsp; ret
    let mut code = vec![0xff, 0x25, 1, 0, 0, 0, 0xcc];
    code.extend((MADE + 15).to_le_bytes());
    code.extend([0x48, 0x83, 0xc4, 24, 0xc3]);
    let stack = Words::new([(RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)]);
    let (frames, end) = walk_with(&made(&table, &code), &registers(MADE, RSP, 3), &stack);
    assert_eq!((addresses(&frames), end), (vec![MADE, CALLER, BIAS + 0x3010], UserEnd::Complete));
}

#[test]
fn behind_a_jump_to_anywhere_stands_code_that_leaves_the_same_frame() {
    let table = table();
    // call; jmp *%rax; pop %rbx; pop %r12; pop %r13; mov $52, %eax; ret
    let code = [0xe8, 0, 1, 0, 0, 0xff, 0xe0, 0x5b, 0x41, 0x5c, 0x41, 0x5d, 0xb8, 52, 0, 0, 0, 0xc3];
    let far = RSP + 0x400;
    let words = [(RSP - 8, MADE + 5), (RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)];
    let walked = |rbp, words: &[(u64, u64)]| {
        let (frames, end) = walk_with(
            &made(&table, &code),
            &registers(BIAS + 0x2000, RSP - 16, rbp),
            &Words::new(words.iter().copied()),
        );
        (addresses(&frames), frames.get(2).and_then(|frame| frame.doubt), end)
    };
    let expected =
        (vec![BIAS + 0x2000, MADE + 5, CALLER, BIAS + 0x3010], Some(FrameDoubt::Code), UserEnd::Complete);
    // RBP may be anything there: zero, or a place whose next word is an old return address.
    assert_eq!(walked(0, &words), expected);
    let old = [&words[..], &[(far, 7), (far + 8, CALLER)]].concat();
    assert_eq!(walked(far, &old), expected);
    // A chain of frame pointers counts for more.
    let chain =
        [&words[..], &[(far, far + 0x40), (far + 8, CALLER), (far + 0x40, 0), (far + 0x48, 0)]].concat();
    assert_eq!(walked(far, &chain).1, Some(FrameDoubt::FramePointer));
}

#[test]
fn a_return_address_pushed_by_hand_needs_a_chain_of_frame_pointers() {
    let table = table();
    let process = made(&table, &[]);
    let [first, second] = [RSP + 0x40, RSP + 0x80];
    let walked = |saved: u64, next: u64, rip: u64| {
        let stack = Words::new([
            (first, saved),
            (first + 8, MADE + 0x20),
            (second, next),
            (second + 8, rip),
            (second + 24, BIAS + 0x3010),
        ]);
        addresses(&walk_with(&process, &registers(MADE, RSP, first), &stack).0)
    };
    let whole = [MADE, MADE + 0x20, CALLER, BIAS + 0x3010];
    assert_eq!(walked(second, second + 0x100, CALLER), whole);
    assert_eq!(walked(second, 0, CALLER), whole);
    for (saved, next, rip) in [
        (RSP + 8, 0, CALLER),
        (second, first, CALLER),
        (second, 0, LEAF),
        (second, 0, 5),
        (second + 4, 0, CALLER),
    ] {
        assert_eq!(walked(saved, next, rip), [MADE], "{saved:x} {next:x} {rip:x}");
    }
}

#[test]
fn a_frame_pointer_with_a_chain_counts_for_more_than_a_jump_into_a_file() {
    let table = table();
    // jmp *(%r15)
    let mut process = made(&table, &[0x41, 0xff, 0x27]);
    process.code.push((BIAS + 0x9000, (BIAS + 0x2004).to_le_bytes().to_vec()));
    let far = RSP + 0x40;
    let words =
        [(far, far + 0x40), (far + 8, CALLER), (far + 0x40, 0), (far + 0x48, 0), (far + 24, BIAS + 0x3010)];
    let mut from = registers(MADE, RSP, far);
    from.gpr[15] = BIAS + 0x9000;
    let (frames, end) = walk_with(&process, &from, &Words::new(words));
    assert_eq!(addresses(&frames), [MADE, CALLER, BIAS + 0x3010]);
    assert_eq!((frames[1].doubt, end), (Some(FrameDoubt::FramePointer), UserEnd::Complete));
}

#[test]
fn a_way_that_was_found_before_is_gone_again_as_long_as_the_code_is_the_same() {
    let table = table();
    let mut unwinder = UserUnwinder::new();
    let mut walked = |code: &[u8], words: &[(u64, u64)]| {
        let mut frames = Vec::new();
        let stack = Words::new(words.iter().copied());
        let from = registers(MADE, RSP, 3);
        unwinder.walk(&from, &stack, &made(&table, code), 32, |frame| frames.push(frame.at.address.0));
        frames
    };
    // test %eax, %eax; je 1f; pop %rbx; ret; 1: pop %rbx; pop %rbx; ret
    let branch = [0x85, 0xc0, 0x74, 2, 0x5b, 0xc3, 0x5b, 0x5b, 0xc3];
    let short = [(RSP + 8, CALLER), (RSP + 24, BIAS + 0x3010)];
    let long = [(RSP + 8, 7), (RSP + 16, CALLER), (RSP + 32, BIAS + 0x3010)];
    let expected = [MADE, CALLER, BIAS + 0x3010];
    for words in [&short[..], &long, &long, &short, &short] {
        // The way of the time before leads to no code: another one is looked for.
        assert_eq!(walked(&branch, words), expected);
    }
    // Other code in the same place: pop three times; ret
    let last = [(RSP + 24, CALLER), (RSP + 40, BIAS + 0x3010)];
    assert_eq!(walked(&[0x5b, 0x5b, 0x5b, 0xc3], &last), expected);
    // No code at all: that is remembered, too, and a way is found when there is code again.
    assert_eq!(walked(&[0x0f, 0x0b], &last), [MADE]);
    assert_eq!(walked(&[0x5b, 0x5b, 0x5b, 0xc3], &last), expected);
}

#[test]
fn code_of_a_file_that_its_tables_do_not_cover_is_followed_within_its_frame() {
    let table = table();
    let mut process = process(&table, true);
    // push %rbp; jmp 0x5100; there: pop %rbp; ret. Tables cover neither.
    process.code.push((LEAF, vec![0x55, 0xe9, 0xfa, 0, 0, 0]));
    process.code.push((LEAF + 0x100, [&[0x5d, 0xc3][..], &[0xcc; 80]].concat()));
    let stack = Words::new([(RSP, CALLER), (RSP + 16, BIAS + 0x3010)]);
    let (frames, end) = walk_with(&process, &registers(LEAF, RSP, 3), &stack);
    assert_eq!((addresses(&frames), end), (vec![LEAF, CALLER, BIAS + 0x3010], UserEnd::Complete));
    // push %rbp; jmp 0x2000, which is a function: no frame of it begins above what was pushed.
    let mut process = made(&table, &[0x55, 0x48, 0xb8, 0x00, 0x20, 0, 0, 0x55, 0x55, 0, 0, 0xff, 0xe0]);
    process.file = ImageCode::Cfi(&table);
    let (frames, _) = walk_with(&process, &registers(MADE, RSP, 3), &Words::new([(RSP + 8, 7)]));
    assert_eq!(addresses(&frames), [MADE]);
}
