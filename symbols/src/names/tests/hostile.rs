//! Damaged files never panic, and take bounded time and stack.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use testkit::elf::{ElfImage, ElfSection, section_type};

use super::*;
use crate::names::{FunctionTable, SourceLines};

/// Name, offset, size.
type Place = (String, usize, usize);

/// A program with DWARF, and where each of its sections is in it: `None` without a compiler.
static PROGRAM: LazyLock<Option<(Vec<u8>, Vec<Place>)>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop");
    std::fs::write(&path, shop()?).unwrap();
    let text = tool("readelf", &["-SW", path.to_str()?], None)?;
    let mut sections = Vec::new();
    for line in text.lines().filter_map(|line| line.split_once("] ")) {
        let words: Vec<&str> = line.1.split_whitespace().collect();
        let [name, kind, _, offset, size, ..] = words[..] else { continue };
        let hex = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        if kind != "NOBITS" && hex(size) > 0 {
            sections.push((name.to_owned(), hex(offset), hex(size)));
        }
    }
    Some((shop()?.to_vec(), sections))
});

fn name_everything(bytes: Vec<u8>) {
    let Ok(elf) = ElfFile::open(Box::new(bytes)) else { return };
    let table = FunctionTable::read(&elf, None);
    let lines = SourceLines::open(&elf, None);
    let (start, end) = elf.section_range(".text").unwrap_or((0x1000, 0x2000));
    for address in (start..end.min(4096).saturating_add(start)).step_by(29).take(200) {
        table.name_at("m", address, &|_| None);
        if let Ok(lines) = &lines {
            lines.frames_at(address);
        }
    }
    for address in [0, 1, u64::MAX] {
        table.name_at("m", address, &|_| None);
        if let Ok(lines) = &lines {
            lines.frames_at(address);
        }
    }
    for function in table.iter().take(500) {
        assert!(function.name.len() < 5000);
    }
}

proptest! {
    #[test]
    fn damaged_programs_are_named_without_a_panic(
        section in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..30),
    ) {
        const NAMES: [&str; 15] = [
            ".debug_info", ".debug_info", ".debug_abbrev", ".debug_abbrev", ".debug_line", ".debug_line",
            ".debug_rnglists", ".debug_aranges", ".debug_str", ".debug_line_str", ".symtab", ".dynsym",
            ".rela.plt", ".plt", ".plt.got",
        ];
        let Some((program, sections)) = &*PROGRAM else { return Ok(()) };
        let name = NAMES[section.index(NAMES.len())];
        let Some((_, offset, size)) = sections.iter().find(|(n, ..)| n == name) else { return Ok(()) };
        let mut bytes = program.clone();
        for (at, value) in damage {
            bytes[*offset + at.index(*size)] = value;
        }
        let start = Instant::now();
        name_everything(bytes);
        prop_assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_damaged_debugdata_section_is_a_reason(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut xz = vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4, 0xe6, 0xd6, 0xb4, 0x46];
        xz.extend(tail);
        name_everything(elf_of(&[(".gnu_debugdata", &xz)]));
    }
}

/// Returns an ELF file with these sections and nothing else.
fn elf_of(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let section = |&(name, bytes)| ElfSection::new(name, section_type::BITS, bytes);
    let sections: Vec<_> = sections.iter().map(section).collect();
    ElfImage { sections: &sections, ..ElfImage::default() }.to_bytes()
}

/// Abbreviations 1: unit, 2: function, 3: inlined function; each with children, all but 3 with a range.
const ABBREVIATIONS: [u8; 23] = [
    1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, //
    2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, //
    3, 0x1d, 1, 0, 0,
];

fn unit(inside: &[u8]) -> Vec<u8> {
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    for number in [1, 2] {
        unit.push(number);
        unit.extend(0x1000u64.to_le_bytes());
        unit.extend(0x1000u64.to_le_bytes());
    }
    unit.extend(inside);
    let mut sized = u32::try_from(unit.len()).unwrap().to_le_bytes().to_vec();
    sized.extend(unit);
    sized
}

/// The parser of inlined functions recurses: without a bound this ends in a stack overflow.
#[test]
fn endless_inlining_does_not_exhaust_the_stack() {
    let mut abbreviations = ABBREVIATIONS.to_vec();
    abbreviations.push(0);
    for depth in [10, 4 << 20] {
        let elf = elf_of(&[(".debug_info", &unit(&vec![3; depth])), (".debug_abbrev", &abbreviations)]);
        let elf = ElfFile::open(Box::new(elf)).unwrap();
        let lines = SourceLines::open(&elf, None).unwrap();
        let start = Instant::now();
        lines.frames_at(0x1800);
        lines.frames_at(0x1801);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

/// Each unit claims the address, and each has its functions parsed before the next is asked.
#[test]
fn many_units_for_one_address_end() {
    let mut abbreviations = ABBREVIATIONS.to_vec();
    abbreviations.push(0);
    let info = unit(&[]).repeat(200_000);
    let elf = elf_of(&[(".debug_info", &info), (".debug_abbrev", &abbreviations)]);
    let elf = ElfFile::open(Box::new(elf)).unwrap();
    let start = Instant::now();
    if let Ok(lines) = SourceLines::open(&elf, None) {
        for address in 0x1000..0x1040 {
            lines.frames_at(address);
        }
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
