//! Which function covers an address.

use super::builder::{Builder, EH_FRAME, debug_frame};
use crate::address::LinkAddr;
use crate::cfi::{CfiError, CfiSection, CfiSections, CfiTable};

fn three() -> Builder {
    Builder::new().function(0x1000, &[]).function(0x1100, &[]).function(0x3000, &[])
}

fn check(table: &CfiTable) {
    assert_eq!(table.functions(), 3);
    assert_eq!(table.function_start(LinkAddr(0xfff)), None);
    assert_eq!(table.function_start(LinkAddr(0x1000)), Some((LinkAddr(0x1000), LinkAddr(0x1100))));
    assert_eq!(table.function_start(LinkAddr(0x10ff)), Some((LinkAddr(0x1000), LinkAddr(0x1100))));
    assert_eq!(table.function_start(LinkAddr(0x1100)), Some((LinkAddr(0x1100), LinkAddr(0x1200))));
    assert_eq!(table.function_start(LinkAddr(0x1200)), None);
    assert_eq!(table.function_start(LinkAddr(0x30ff)), Some((LinkAddr(0x3000), LinkAddr(0x3100))));
    assert_eq!(table.function_start(LinkAddr(u64::MAX)), None);
}

#[test]
fn a_function_is_found_by_any_of_its_addresses() {
    check(&three().table());
    let sections = CfiSections { eh_frame_hdr: Some(three().header()), ..three().sections() };
    check(&CfiTable::parse(sections).unwrap());
}

#[test]
fn a_header_that_is_not_sorted_or_not_whole_is_not_used() {
    let backwards = Builder::new().function(0x3000, &[]).function(0x1100, &[]).function(0x1000, &[]);
    let sections = CfiSections { eh_frame_hdr: Some(backwards.header()), ..backwards.sections() };
    check(&CfiTable::parse(sections).unwrap());

    let whole = three().header();
    for kept in 0..whole.bytes.len() {
        let header = CfiSection { bytes: whole.bytes[..kept].into(), ..whole };
        let sections = CfiSections { eh_frame_hdr: Some(header), ..three().sections() };
        check(&CfiTable::parse(sections).unwrap());
    }
}

#[test]
fn a_header_leads_to_entries_behind_which_there_is_anything() {
    let mut bytes = three().eh_frame;
    bytes.extend([0xff; 100]);
    let eh_frame = Some(CfiSection { bytes: bytes.into(), address: EH_FRAME });
    check(
        &CfiTable::parse(CfiSections {
            eh_frame_hdr: Some(three().header()),
            eh_frame,
            ..Default::default()
        })
        .unwrap(),
    );
}

#[test]
fn debug_frame_covers_what_eh_frame_does_not() {
    let debug_frame = Some(debug_frame(0x1080, 8));
    let table =
        CfiTable::parse(CfiSections { debug_frame: debug_frame.clone(), ..three().sections() }).unwrap();
    assert_eq!(table.functions(), 4);
    assert_eq!(table.function_start(LinkAddr(0x1090)), Some((LinkAddr(0x1000), LinkAddr(0x1100))));
    let alone = CfiTable::parse(CfiSections { debug_frame, ..CfiSections::default() }).unwrap();
    assert_eq!(alone.function_start(LinkAddr(0x1090)), Some((LinkAddr(0x1080), LinkAddr(0x1180))));
}

#[test]
fn no_function_is_no_table() {
    assert_eq!(CfiTable::parse(CfiSections::default()).unwrap_err(), CfiError::Empty);
    assert_eq!(CfiTable::parse(Builder::new().sections()).unwrap_err(), CfiError::Empty);
    let large = CfiSection { bytes: vec![0; (64 << 20) + 1].into(), address: 0 };
    let sections = CfiSections { eh_frame: Some(large), ..CfiSections::default() };
    assert_eq!(CfiTable::parse(sections).unwrap_err(), CfiError::TooLarge);
}
