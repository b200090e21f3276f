//! Tables that are written by code.

use super::TableLayout;
use crate::bytes::index;

/// Start of the code of [`table`].
pub const TEXT: u64 = 0x40_1000;
/// Start of the second function.
pub const SECOND: u64 = TEXT + 0x40;
/// End.
pub const END: u64 = TEXT + 0x80;
/// The three layouts, by their magic numbers.
pub const MAGICS: [u32; 3] = [0xffff_fffa, 0xffff_fff0, 0xffff_fff1];

/// Returns a table of two functions that counts them from `text`. The first grows its frame to 24 bytes at 8;
/// lines 10 and, from 0x20 on, 7. The second ends stacks.///
/// # Panics
/// `magic` is none of [`MAGICS`].
pub fn table(magic: u32, text: u64) -> Vec<u8> {
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
    let offsets = TableLayout::from_magic(magic).expect("a layout").offsets();
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
