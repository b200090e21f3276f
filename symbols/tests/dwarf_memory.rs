//! DWARF that would expand to gigabytes takes no more memory than it may.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use symbols::counted::{CountingAllocator, allocated};
use symbols::elf::{ElfError, ElfFile};
use symbols::names::{DebugInfoLimit, SourceLines};
use testkit::elf::{ElfImage, ElfSection, section_type};

thread_local! {
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// The counting allocator, and the most that it has counted.
struct Peak;

// SAFETY: every call goes to `CountingAllocator` unchanged; the cell has no destructor and is set up at
// compile time.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let pointer = unsafe { CountingAllocator.alloc(layout) };
        PEAK.set(PEAK.get().max(allocated()));
        pointer
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { CountingAllocator.alloc_zeroed(layout) };
        PEAK.set(PEAK.get().max(allocated()));
        pointer
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there at once.
        PEAK.set(PEAK.get().max(allocated() + i64::try_from(size).unwrap_or(i64::MAX / 2)));
        // SAFETY: as above.
        unsafe { CountingAllocator.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { CountingAllocator.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static PEAK_OF_ALL: Peak = Peak;

/// Memory that is built from the DWARF of one file, at most, bytes, when a table that has reached the bound
/// is just growing (docs/symbols.md).
const BOUND: i64 = 3 * (256 << 20);

/// Returns an ELF file with these sections and nothing else.
fn elf_of(sections: &[(&str, &[u8])]) -> ElfFile {
    let section = |&(name, bytes)| ElfSection::new(name, section_type::BITS, bytes);
    let sections: Vec<_> = sections.iter().map(section).collect();
    let image = ElfImage { sections: &sections, ..ElfImage::default() };
    ElfFile::open(Box::new(image.to_bytes())).unwrap()
}

/// Abbreviation 1: a unit with a range, and with its lines at an offset; 2: a function in it; 3: an inlined
/// one.
const ABBREVIATIONS: [u8; 26] = [
    1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0, //
    2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, //
    3, 0x1d, 0, 0, 0, 0,
];

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes].concat()
}

/// Returns a unit of DWARF 4 with `inside` in its only function.
fn unit(inside: &[u8]) -> Vec<u8> {
    let range = [0x1000_u64.to_le_bytes(), 0x1000_0000_u64.to_le_bytes()].concat();
    sized(&[&[4, 0, 0, 0, 0, 0, 8, 1][..], &range, &[0; 4], &[2], &range, inside, &[0, 0]].concat())
}

/// Returns a line program of version 4 with these files and opcodes. Opcodes from 13 on are special: line
/// base -5, range 14.
fn lines(files: &[u8], opcodes: &[u8]) -> Vec<u8> {
    let lengths = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    let header = sized(&[&[1, 1, 1, 0xfb, 14, 13][..], &lengths, &[0], files, &[0]].concat());
    let start = [&[0, 9, 2][..], &0x1000_u64.to_le_bytes()].concat();
    sized(&[&[4, 0][..], &header, &start, opcodes, &[0, 1, 1]].concat())
}

/// Opens the file and asks for some addresses; the most memory that this took beyond what there was before.
fn peak_of(elf: &ElfFile) -> (i64, Option<DebugInfoLimit>) {
    let before = allocated();
    PEAK.set(before);
    let lines = match SourceLines::open(elf, None) {
        Ok(lines) => lines,
        Err(ElfError::TooLarge { .. }) => return (PEAK.get() - before, Some(DebugInfoLimit::Memory)),
        Err(error) => panic!("{error}"),
    };
    for address in (0x1000..0x9000).step_by(0x801) {
        lines.frames_at(address);
    }
    (PEAK.get() - before, lines.stopped())
}

/// Asserts that the file was not read to its end, for one of the reasons, and that its memory stayed below
/// the bound next to its sections.
fn assert_bounded(what: &str, reasons: &[DebugInfoLimit], sections: &[(&str, &[u8])]) {
    let bytes: usize = sections.iter().map(|(_, bytes)| bytes.len()).sum();
    let (peak, stopped) = peak_of(&elf_of(sections));
    assert!(stopped.is_some_and(|why| reasons.contains(&why)), "{what}: {stopped:?}, {peak}");
    let bound = BOUND + i64::try_from(2 * bytes).unwrap();
    assert!(peak < bound, "{what}: {peak} of {bound}");
}

#[test]
fn sound_tables_are_not_stopped() {
    let line = lines(b"a.c\0\0\0\0", &[0xf0; 1000]);
    let elf = elf_of(&[
        (".debug_info", &unit(&[3; 20])),
        (".debug_abbrev", &ABBREVIATIONS),
        (".debug_line", &line),
    ]);
    let (peak, stopped) = peak_of(&elf);
    assert_eq!(stopped, None);
    assert!(peak > 10_000 && peak < 10 << 20, "{peak}");
}

/// Each byte of 40 million is a row of 24 bytes or more.
#[test]
fn rows_of_lines_are_bounded() {
    let line = lines(b"a.c\0\0\0\0", &vec![0xf0; 40_000_000]);
    assert_bounded(
        "rows",
        &[DebugInfoLimit::Memory],
        &[(".debug_info", &unit(&[])), (".debug_abbrev", &ABBREVIATIONS), (".debug_line", &line)],
    );
}

/// Each of many files is in one directory with a name of a megabyte.
#[test]
fn paths_of_files_are_bounded() {
    let mut files = b"x\0\x01\0\0".repeat(20_000);
    files.push(0);
    let header = {
        let lengths = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        let directory = [&vec![b'd'; 1 << 20][..], &[0, 0]].concat();
        sized(&[&[1, 1, 1, 0xfb, 14, 13][..], &lengths, &directory, &files].concat())
    };
    let start = [&[0, 9, 2][..], &0x1000_u64.to_le_bytes(), &[0xf0; 100], &[0, 1, 1]].concat();
    let line = sized(&[&[4, 0][..], &header, &start].concat());
    assert_bounded(
        "paths",
        &[DebugInfoLimit::Memory, DebugInfoLimit::Work],
        &[(".debug_info", &unit(&[])), (".debug_abbrev", &ABBREVIATIONS), (".debug_line", &line)],
    );
}

/// Each of 400 units has the same 100,000 abbreviations, parsed for each again.
#[test]
fn abbreviations_are_bounded() {
    let mut abbreviations = ABBREVIATIONS[..ABBREVIATIONS.len() - 1].to_vec();
    for number in 4..100_000_u32 {
        let mut rest = number;
        while rest >= 0x80 {
            abbreviations.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        abbreviations.extend([rest.to_le_bytes()[0], 0x34, 0, 0x03, 0x08, 0, 0]);
    }
    abbreviations.push(0);
    let info = unit(&[]).repeat(400);
    let line = lines(b"a.c\0\0\0\0", &[0xf0]);
    // Room for many passes over the abbreviations.
    let strings = vec![0; 16 << 20];
    assert_bounded(
        "abbreviations",
        &[DebugInfoLimit::Memory],
        &[
            (".debug_info", &info),
            (".debug_abbrev", &abbreviations),
            (".debug_line", &line),
            (".debug_str", &strings),
        ],
    );
}

/// Each byte of 20 million is an inlined function.
#[test]
fn inlined_functions_are_bounded() {
    let line = lines(b"a.c\0\0\0\0", &[0xf0]);
    assert_bounded(
        "inlined",
        &[DebugInfoLimit::Memory],
        &[
            (".debug_info", &unit(&vec![3; 20_000_000])),
            (".debug_abbrev", &ABBREVIATIONS),
            (".debug_line", &line),
        ],
    );
}
