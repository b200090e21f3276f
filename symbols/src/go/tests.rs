//! Tables that are written by hand, in each of the three layouts, and damaged ones.

use proptest::prelude::*;

use super::made_up::{END, MAGICS, SECOND, TEXT, table};
use super::*;

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
