//! Every kind of rule.

use super::builder::{Builder, OUTERMOST, cfa_offset, saved};
use super::{BIAS, Process, RSP, Words, addresses, registers, walk};
use crate::address::{AddressKind, VirtAddr};
use crate::cfi::{FrameDoubt, ImageCode, UserEnd, UserUnwinder, UserWalkError};

/// `inner` at 0x1000 with its rules, called by `main` at 0x2000 whose CFA is RBP + 16, called by the
/// outermost function.
fn called_by_rbp(rules: &[u8]) -> Builder {
    let by_rbp = [&[0x0c, 6, 16][..], &saved(6, 2)].concat();
    Builder::new().function(0x1000, rules).function(0x2000, &by_rbp).function(0x3000, &OUTERMOST)
}

const CHAIN: [u64; 3] = [BIAS + 0x1010, BIAS + 0x2010, BIAS + 0x3010];

/// Returns the stack of [`called_by_rbp`]: `inner`'s CFA is RSP + 32, and main's frame pointer is there.
fn stack() -> Words {
    Words::new([(RSP + 16, RSP + 32), (RSP + 24, CHAIN[1]), (RSP + 32, 0x77), (RSP + 40, CHAIN[2])])
}

#[test]
fn registers_saved_by_a_callee_are_its_callers() {
    let rules = [cfa_offset(32), saved(6, 2)].concat();
    let (frames, end) = walk(called_by_rbp(&rules), &registers(CHAIN[0], RSP, 0x1234), &stack());
    assert_eq!((addresses(&frames), end), (CHAIN.to_vec(), UserEnd::Complete));
    let places: Vec<AddressKind> = frames.iter().map(|frame| frame.at.kind).collect();
    assert_eq!(places, [AddressKind::Exact, AddressKind::Return, AddressKind::Return]);
    assert!(frames.iter().all(|frame| frame.doubt.is_none()));
}

#[test]
fn expressions_registers_and_values_give_the_same_frames() {
    let rules: [(&str, Vec<u8>); 5] = [
        // DW_CFA_def_cfa_expression: breg7 32; DW_CFA_expression of RBP: lit16, minus.
        ("expressions", [&[0x0f, 2, 0x77, 32][..], &[0x10, 6, 2, 0x40, 0x1c]].concat()),
        // DW_CFA_def_cfa_expression: breg7 0, lit4, lit8, mul, plus, as a linker's PLT computes; RBP as
        // above.
        ("arithmetic", [&[0x0f, 6, 0x77, 0, 0x34, 0x38, 0x1e, 0x22][..], &[0x10, 6, 2, 0x40, 0x1c]].concat()),
        // DW_CFA_val_expression of RBP: nop, which leaves the CFA itself.
        ("value of expression", [&cfa_offset(32)[..], &[0x16, 6, 1, 0x96]].concat()),
        // DW_CFA_val_offset of RBP: 0.
        ("value", [&cfa_offset(32)[..], &[0x14, 6, 0]].concat()),
        // DW_CFA_register: RBP is in R15.
        ("register", [&cfa_offset(32)[..], &[0x09, 6, 15]].concat()),
    ];
    for (name, rules) in rules {
        let mut start = registers(CHAIN[0], RSP, 0x1234);
        start.gpr[15] = RSP + 32;
        let (frames, end) = walk(called_by_rbp(&rules), &start, &stack());
        assert_eq!((addresses(&frames), end), (CHAIN.to_vec(), UserEnd::Complete), "{name}");
    }
}

#[test]
fn an_undefined_register_is_not_used_for_a_frame() {
    let rules = [&cfa_offset(32)[..], &[0x07, 6]].concat();
    let (frames, end) = walk(called_by_rbp(&rules), &registers(CHAIN[0], RSP, RSP + 32), &stack());
    assert_eq!((addresses(&frames), end), (CHAIN[..2].to_vec(), UserWalkError::RegisterUnknown.into()));
}

#[test]
fn rules_change_within_a_function() {
    // A push at 0x1001, 16 bytes more from 0x1010 on.
    let rules = [&[0x41][..], &cfa_offset(16), &saved(6, 2), &[0x4f], &cfa_offset(32)].concat();
    let builder = called_by_rbp(&rules);
    let main = CHAIN[1];
    for (rip, cfa) in [(0x1000, 8), (0x1001, 16), (0x100f, 16), (0x1010, 32)] {
        let stack = Words::new([(RSP + cfa - 8, main), (RSP + cfa - 16, 0)]);
        let (frames, _) = walk(builder.clone(), &registers(BIAS + rip, RSP, 0), &stack);
        assert_eq!(addresses(&frames), [BIAS + rip, main], "{rip:#x}");
    }
}

#[test]
fn a_return_address_behind_its_function_belongs_to_it() {
    // A call that does not return ends its function: the return address is the next one's first byte.
    let builder =
        Builder::new().function(0x1000, &[]).function(0x2000, &cfa_offset(64)).function(0x2100, &[]);
    let stack = Words::new([(RSP, BIAS + 0x2100), (RSP + 64, 0)]);
    let (frames, end) = walk(builder, &registers(BIAS + 0x1000, RSP, 0), &stack);
    assert_eq!((addresses(&frames), end), (vec![BIAS + 0x1000, BIAS + 0x2100], UserEnd::Complete));
    assert_eq!(frames[1].at.lookup(), VirtAddr(BIAS + 0x20ff));
}

#[test]
fn a_signal_frame_gives_all_registers_and_an_exact_address() {
    // CFA, RSP, RBP and RIP out of memory: breg7 n, and for the CFA a dereference of it.
    let rules = [
        &[0x0f, 3, 0x77, 8, 0x06][..],
        &[0x10, 7, 2, 0x77, 8],
        &[0x10, 6, 2, 0x77, 16],
        &[0x10, 16, 2, 0x77, 24],
    ]
    .concat();
    let builder = called_by_rbp(&[]).signal_frame(0x4000, &rules);
    // A handler on an alternative stack above the interrupted one.
    let rsp = RSP + 0x8000;
    let handler = [(rsp, BIAS + 0x4001), (rsp + 16, RSP), (rsp + 24, RSP + 32), (rsp + 32, BIAS + 0x2000)];
    let stack = Words::new(stack().words.into_iter().chain(handler));
    let (frames, end) = walk(builder, &registers(BIAS + 0x1000, rsp, 0), &stack);
    // The interrupted function is at its first byte: one byte less would be outside of any function.
    let expected = [BIAS + 0x1000, BIAS + 0x4001, BIAS + 0x2000, BIAS + 0x3010];
    assert_eq!((addresses(&frames), end), (expected.to_vec(), UserEnd::Complete));
    assert_eq!(frames[2].at.kind, AddressKind::Exact);
    assert_eq!(frames[2].doubt, None::<FrameDoubt>);
}

#[test]
fn rows_are_kept_for_the_next_walk() {
    let first = called_by_rbp(&[cfa_offset(32), saved(6, 2)].concat()).table();
    // It does not have these functions.
    let next = Builder::new().function(0x5000, &[]).table();
    let mut unwinder = UserUnwinder::new();
    for table in [&first, &next] {
        let process = Process { file: ImageCode::Cfi(table), code: Vec::new() };
        let mut frames = Vec::new();
        let start = registers(CHAIN[0], RSP, 0);
        let end = unwinder.walk(&start, &stack(), &process, 32, |frame| frames.push(frame));
        assert_eq!((addresses(&frames), end), (CHAIN.to_vec(), UserEnd::Complete));
    }
}
