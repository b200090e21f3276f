//! Tables that are written by hand, in each of the three layouts, and damaged ones.

use proptest::prelude::*;

use super::*;

const TEXT: u64 = 0x40_1000;
/// Start of the second function, and its end.
const SECOND: u64 = TEXT + 0x40;
const END: u64 = TEXT + 0x80;
const MAGICS: [u32; 3] = [0xffff_fffa, 0xffff_fff0, 0xffff_fff1];

/// Two functions. The first grows its frame to 24 bytes at 8; lines 10 and, from 0x20 on, 7. The second ends stacks.
fn table(magic: u32, text: u64) -> Vec<u8> {
    let old = magic == MAGICS[0];
    let words = if old { 7 } else { 8 };
    let names = b"\0main.main\0runtime.goexit\0";
    let units = [0_u32, 0].map(u32::to_le_bytes).concat();
    let files = b"/src/main.go\0";
    // -1 + 1 = 0 for 8 bytes, then + 24; -1 + 1 = 0: the unit's first file; -1 + 11 = 10, then - 3.
    let values = [0, 2, 8, 48, 0x38, 0, 2, 0x40, 0, 22, 0x20, 5, 0x20, 0];
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend([0, 0, 1, 8]);
    let mut word = |value: usize| bytes.extend((value as u64).to_le_bytes());
    word(2);
    word(1);
    if !old {
        word(index(text));
    }
    let mut at = 8 + words * 8;
    for len in [names.len(), units.len(), files.len(), values.len()] {
        word(at);
        at += len;
    }
    word(at);
    bytes.extend([&names[..], &units, files, &values].concat());
    let entry = if old { 16 } else { 8 };
    let first = 2 * entry + entry / 2;
    for (number, start) in [TEXT, SECOND, END].into_iter().enumerate() {
        let (start, known) = (if old { start } else { start - TEXT }, first + number * 64);
        if old {
            bytes.extend([start, known as u64].map(u64::to_le_bytes).concat());
        } else {
            let small = |value: u64| u32::try_from(value).expect("a small table").to_le_bytes();
            bytes.extend([start, known as u64].map(small).concat());
        }
    }
    // The last entry is an address alone.
    bytes.truncate(bytes.len() - entry / 2);
    let offsets = Layout::of(magic).expect("a layout").offsets();
    for (name, frame, flags) in [(1_u32, 1_u32, 0), (11, 0, 1)] {
        let mut known = vec![0; 64];
        let fields = [(offsets.name, name), (offsets.frame, frame), (offsets.file, 6), (offsets.line, 9)];
        for (offset, value) in fields {
            known[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(at) = offsets.flags {
            known[at] = flags;
        }
        bytes.extend(known);
    }
    bytes
}

fn parse(bytes: Vec<u8>) -> Option<GoTable> {
    GoTable::parse(bytes.into(), || None)
}

#[test]
fn functions_lines_and_frames_are_told_in_each_layout() {
    for magic in MAGICS {
        let table = parse(table(magic, TEXT)).expect("a table");
        assert_eq!(table.len(), 2);
        let main = GoFunction { name: "main.main".to_owned(), start: TEXT, end: SECOND };
        assert_eq!(table.function(TEXT), Some(main.clone()));
        assert_eq!(table.function(SECOND - 1), Some(main));
        assert_eq!(table.function(SECOND).map(|f| (f.name, f.end)), Some(("runtime.goexit".to_owned(), END)));
        assert_eq!((table.function(TEXT - 1), table.function(END)), (None, None));
        let line = |address| table.line(address);
        let file = "/src/main.go".to_owned();
        assert_eq!(line(TEXT), Some((file.clone(), 10)));
        assert_eq!(line(TEXT + 0x3f), Some((file, 7)));
        let frames = [TEXT, TEXT + 8, SECOND].map(|address| table.frame(address));
        if magic == MAGICS[0] {
            assert_eq!(frames, [None; 3], "it does not say which functions end stacks");
        } else {
            assert_eq!(frames, [GoFrame::Size(0), GoFrame::Size(24), GoFrame::Outermost].map(Some));
        }
    }
}

#[test]
fn the_start_of_the_code_may_be_a_relocation() {
    let bytes: Arc<[u8]> = table(MAGICS[2], 0).into();
    assert!(GoTable::parse(Arc::clone(&bytes), || None).is_none());
    let table = GoTable::parse(bytes, || Some(0x1000)).expect("a table");
    assert_eq!(table.function(0x1000).map(|f| f.name), Some("main.main".to_owned()));
}

#[test]
fn other_tables_are_none() {
    for (at, value) in [(0, 0xfb), (4, 1), (6, 4), (7, 4), (15, 1)] {
        let mut bytes = table(MAGICS[1], TEXT);
        bytes[at] = value;
        assert!(parse(bytes).is_none(), "{value} at {at}");
    }
}

proptest! {
    #[test]
    fn damaged_tables_never_panic(
        magic in prop::sample::select(&MAGICS[..]),
        hits in prop::collection::vec((8usize..300, any::<u8>()), 0..30),
        cut in 0usize..400,
        address in prop_oneof![any::<u64>(), TEXT - 4..END + 4],
    ) {
        let mut bytes = table(magic, TEXT);
        for (at, value) in hits {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        if let Some(table) = parse(bytes) {
            let found = (table.function(address), table.line(address), table.frame(address));
            prop_assert!(found.0.is_none_or(|f| (f.start..f.end).contains(&address)));
        }
    }
}
