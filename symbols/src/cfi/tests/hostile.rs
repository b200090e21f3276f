//! Arbitrary bytes, and real tables with wrong bytes in them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::builder::{Builder, EH_FRAME, HEADER, cfa_offset, saved};
use super::{BIAS, Process, RSP, Words, registers, walk_with};
use crate::address::LinkAddr;
use crate::cfi::{CfiSection, CfiSections, CfiTable, ImageCode, UserWalkError};

fn section(bytes: &[u8], address: u64) -> Option<CfiSection> {
    Some(CfiSection { bytes: bytes.into(), address })
}

/// Asks everything of the tables of these sections that can be asked.
fn use_all(sections: CfiSections, rip: u64, words: &[u64]) {
    let Ok(table) = CfiTable::parse(sections) else { return };
    for address in [0, rip, 0x1010, u64::MAX] {
        let address = LinkAddr(address);
        if let Some((start, end)) = table.function_start(address) {
            assert!(start <= address && address < end);
        }
    }
    let stack = Words::new(words.iter().zip(0_u64..).map(|(&word, i)| (RSP + i * 8, word)));
    let process = Process { file: ImageCode::Cfi(&table), code: Vec::new() };
    for rip in [BIAS + rip % 0x1_0000, BIAS + 0x1010] {
        let (frames, _) = walk_with(&process, &registers(rip, RSP, RSP + 16), &stack);
        assert!((1..=32).contains(&frames.len()));
        assert!(frames.iter().skip(1).all(|frame| frame.at.address.0 != 0));
    }
}

/// Returns a table with every kind of rule.
fn valid() -> Builder {
    Builder::new()
        .function(
            0x1000,
            &[&[0x41][..], &cfa_offset(32), &saved(6, 2), &[0x0a, 0x42, 0x0c, 6, 16, 0x42, 0x0b]].concat(),
        )
        .function(0x2000, &[0x0f, 6, 0x77, 0, 0x34, 0x38, 0x1e, 0x22, 0x10, 6, 2, 0x40, 0x1c])
        .signal_frame(0x3000, &[0x0f, 3, 0x77, 8, 0x06, 0x10, 7, 2, 0x77, 8, 0x10, 16, 2, 0x77, 24])
}

/// Returns the addresses of code and of the stack, and anything else.
fn words() -> impl Strategy<Value = Vec<u64>> {
    vec(prop_oneof![(BIAS..BIAS + 0x4000), (RSP..RSP + 0x200), any::<u64>()], 0..64)
}

proptest! {
    #[test]
    fn any_bytes(
        eh in vec(any::<u8>(), 0..400),
        debug in vec(any::<u8>(), 0..400),
        header in vec(any::<u8>(), 0..200),
        rip in any::<u64>(),
        words in words(),
    ) {
        use_all(
            CfiSections {
                eh_frame_hdr: section(&header, HEADER),
                eh_frame: section(&eh, EH_FRAME),
                debug_frame: section(&debug, 0),
                text: Some(rip),
                got: None,
                go: None,
            },
            rip,
            &words,
        );
    }

    #[test]
    fn wrong_bytes(
        wrong in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        with_header in any::<bool>(),
        rip in any::<u64>(),
        words in words(),
    ) {
        let valid = valid();
        let mut eh = valid.eh_frame.clone();
        for (at, byte) in wrong {
            *at.get_mut(&mut eh) = byte;
        }
        let eh_frame_hdr = with_header.then(|| valid.header());
        use_all(CfiSections { eh_frame_hdr, eh_frame: section(&eh, EH_FRAME), ..CfiSections::default() }, rip, &words);
    }

    #[test]
    fn any_rules(rules in vec(any::<u8>(), 0..64), rip in any::<u64>(), words in words()) {
        use_all(Builder::new().function(0x1000, &rules).function(0x2000, &rules).sections(), rip, &words);
    }

    #[test]
    fn any_expression(expression in vec(any::<u8>(), 0..100), rip in any::<u64>(), words in words()) {
        let length = u8::try_from(expression.len()).unwrap();
        let rules = [&[0x0f, length][..], &expression, &[0x16, 6, length], &expression].concat();
        use_all(Builder::new().function(0x1000, &rules).sections(), rip, &words);
    }

    #[test]
    fn any_registers(gpr in any::<[u64; 16]>(), rip in 0_u64..0x4000, words in words()) {
        let table = valid().table();
        let mut from = registers(BIAS + rip, RSP, 0);
        from.gpr = gpr;
        let stack = Words::new(words.iter().zip(0_u64..).map(|(&word, i)| (gpr[7].wrapping_add(i * 8), word)));
        let (frames, _) = walk_with(&Process { file: ImageCode::Cfi(&table), code: Vec::new() }, &from, &stack);
        prop_assert!((1..=32).contains(&frames.len()));
    }
}

/// The size of a piece is given in bytes and counted in bits.
#[test]
fn a_piece_of_more_bits_than_can_be_counted_is_bad_cfi() {
    let piece = [&[0x93][..], &[0xff; 9], &[1]].concat();
    let plain = [&[0x77, 0][..], &piece].concat();
    // DW_OP_skip into the operand of a DW_OP_const2u.
    let hidden = [&[0x77, 0, 0x2f, 2, 0, 0x0a, 0x08][..], &piece].concat();
    for expression in [plain, hidden] {
        let rules = [&[0x0f, u8::try_from(expression.len()).unwrap()][..], &expression].concat();
        let table = Builder::new().function(0x1000, &rules).table();
        let process = Process { file: ImageCode::Cfi(&table), code: Vec::new() };
        let (frames, end) = walk_with(&process, &registers(BIAS + 0x1010, RSP, 0), &Words::default());
        assert_eq!((frames.len(), end), (1, UserWalkError::BadCfi.into()), "{expression:?}");
    }
}
