//! Reasons why walks end.

use super::builder::{Builder, cfa_offset, debug_frame, saved};
use super::{BIAS, Process, RSP, Words, addresses, registers, walk, walk_with};
use crate::cfi::{CfiSections, CfiTable, ImageCode, UserEnd, UserWalkError};
use crate::go::{GoTable, made_up};

const CODE: u64 = BIAS + 0x1010;

/// Returns the end of a walk from a function whose CFA is RSP + 16 on these words.
fn end_on(words: &Words) -> (usize, UserEnd) {
    let (frames, end) =
        walk(Builder::new().function(0x1000, &cfa_offset(16)), &registers(CODE, RSP, 8), words);
    (frames.len(), end)
}

#[test]
fn a_missing_word_is_told_by_its_reason() {
    assert_eq!(end_on(&Words::default()), (1, UserWalkError::StackNotCopied.into()));
    let not_present = Words { not_present: Some(RSP + 8), ..Words::default() };
    assert_eq!(end_on(&not_present), (1, UserWalkError::StackNotPresent.into()));
}

#[test]
fn a_word_that_is_no_code_address_is_no_frame() {
    assert_eq!(end_on(&Words::new([(RSP + 8, 0x1234)])), (1, UserWalkError::NotMapped.into()));
    assert_eq!(end_on(&Words::new([(RSP + 8, BIAS + 0x5000)])), (2, UserWalkError::NoCfi.into()));
    assert_eq!(end_on(&Words::new([(RSP + 8, super::JIT + 8)])), (2, UserWalkError::AnonymousCode.into()));
    assert_eq!(end_on(&Words::new([(RSP + 8, 0)])), (1, UserEnd::Complete));
}

#[test]
fn an_endless_stack_ends_at_the_limit() {
    let words = Words::new((0..100).map(|i| (RSP + 8 + i * 16, CODE)));
    assert_eq!(end_on(&words), (32, UserWalkError::TooDeep.into()));
}

#[test]
fn a_caller_lies_above_its_callee() {
    // CFA = RBP, which points at the frame itself.
    let builder = Builder::new().function(0x1000, &[0x0c, 6, 0]);
    let words = Words::new([(RSP - 8, CODE)]);
    let (frames, end) = walk(builder, &registers(CODE, RSP, RSP), &words);
    assert_eq!((frames.len(), end), (1, UserWalkError::CfaBackwards.into()));
}

#[test]
fn signal_frames_that_lead_to_themselves_end() {
    // A signal frame whose caller is itself: RSP and RIP from memory.
    let rules = [&[0x0f, 2, 0x77, 0][..], &[0x10, 7, 2, 0x77, 8], &[0x10, 16, 2, 0x77, 16]].concat();
    let words = Words::new([(RSP + 8, RSP), (RSP + 16, CODE)]);
    let (frames, end) = walk(Builder::new().signal_frame(0x1000, &rules), &registers(CODE, RSP, 0), &words);
    assert_eq!((frames.len(), end), (9, UserWalkError::SignalStacks.into()));
}

#[test]
fn rules_that_make_no_sense_are_bad_cfi() {
    let rules: [&[u8]; 6] = [
        &[0x0f, 3, 0x2f, 0xfd, 0xff], // an expression that jumps to itself
        &[0x0f, 1, 0x22],             // plus, on an empty stack
        &[0x0f, 2, 0x90, 40],         // a register that is not kept
        &[0x0c, 77, 8],               // CFA from a vector register
        &[0x08, 16],                  // the return address in no place at all
        &[0x0b],                      // restores a state that was never kept
    ];
    for rules in rules {
        let (frames, end) =
            walk(Builder::new().function(0x1000, rules), &registers(CODE, RSP, 0), &Words::default());
        assert_eq!((addresses(&frames), end), (vec![CODE], UserWalkError::BadCfi.into()), "{rules:x?}");
    }
}

#[test]
fn much_cfi_on_a_stack_costs_no_more_than_a_walk_may() {
    // Functions of almost 16 KiB of rules each, every return address another one.
    let rules = [0x0e, 16].repeat(7_000);
    let builder = (1..32_u64).fold(Builder::new(), |b, i| b.function(i * 0x100, &rules));
    let words = Words::new((1..32).map(|i| (RSP + i * 16 - 8, BIAS + i * 0x100 + 16)));
    let (frames, end) = walk(builder, &registers(BIAS + 0x110, RSP, 0), &words);
    assert_eq!((frames.len(), end), (19, UserWalkError::TooCostly.into()));
}

#[test]
fn a_file_that_was_not_read_is_the_reason() {
    for (file, why) in [(ImageCode::NotRead, UserWalkError::NoFile), (ImageCode::NoCfi, UserWalkError::NoCfi)]
    {
        let process = Process { file, code: Vec::new() };
        let (frames, end) = walk_with(&process, &registers(CODE, RSP, 0), &Words::default());
        assert_eq!((frames.len(), end), (1, why.into()));
    }
}

#[test]
fn a_saved_register_that_was_not_copied_matters_only_where_it_is_needed() {
    let by_rbp = [&[0x0c, 6, 16][..], &saved(6, 2)].concat();
    let rules = [cfa_offset(32), saved(6, 4)].concat();
    let builder = Builder::new().function(0x1000, &rules).function(0x2000, &by_rbp).function(0x3000, &[]);
    let from = registers(CODE, RSP, RSP);
    let through_rsp = Words::new([(RSP + 24, BIAS + 0x3010), (RSP + 32, 0)]);
    assert_eq!(walk(builder.clone(), &from, &through_rsp).1, UserEnd::Complete);
    let through_rbp = Words::new([(RSP + 24, BIAS + 0x2010), (RSP + 32, 0)]);
    assert_eq!(walk(builder, &from, &through_rbp).1, UserWalkError::RegisterUnknown.into());
}

#[test]
fn reasons_are_short_phrases_and_survive_a_file() {
    let reasons = [
        UserWalkError::StackNotPresent,
        UserWalkError::NoCfi,
        UserWalkError::NotMapped,
        UserWalkError::TooDeep,
    ]
    .map(UserEnd::Broken);
    for end in reasons.into_iter().chain([UserEnd::Complete]) {
        let text = end.to_string();
        assert!(!text.is_empty() && text.len() < 40, "{text}");
        assert_eq!(serde_json::from_str::<UserEnd>(&serde_json::to_string(&end).unwrap()).unwrap(), end);
    }
}

#[test]
fn a_go_function_that_changes_stacks_ends_a_walk_whatever_debug_frame_says() {
    const TEXT: u64 = 0x1000;
    const SECOND: u64 = TEXT + made_up::SECOND - made_up::TEXT;
    // The Go 1.16 layout has no flags.
    for magic in &made_up::MAGICS[1..] {
        let go = GoTable::parse(made_up::table(*magic, TEXT).into(), || None);
        let sections = CfiSections { debug_frame: Some(debug_frame(TEXT, 16)), go, ..Default::default() };
        let table = CfiTable::parse(sections).unwrap();
        let process = Process { file: ImageCode::Cfi(&table), code: Vec::new() };
        // From the first function, by `.debug_frame`, into the second one, and no further.
        let words = Words::new([(RSP + 8, BIAS + SECOND + 8), (RSP + 24, 0x1234)]);
        let (frames, end) = walk_with(&process, &registers(BIAS + TEXT + 4, RSP, 0), &words);
        assert_eq!(addresses(&frames), [BIAS + TEXT + 4, BIAS + SECOND + 8]);
        assert_eq!(end, UserEnd::Complete);
    }
}
