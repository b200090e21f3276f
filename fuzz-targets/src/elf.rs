//! ELF files: headers, notes, links, unwind sections, symbols, PLT, `.gnu_debugdata`.

use symbols::LinkAddr;
use symbols::cfi::{CfiSection, CfiSections, CfiTable};
use symbols::elf::ElfFile;
use symbols::go::GoTable;
use symbols::names::{DebugFiles, DebugQuery, FunctionTable};

use crate::input::files;

/// Functions whose names are asked for.
const NAMED: usize = 200;

fn unwind_table(elf: &ElfFile) -> Option<CfiTable> {
    let section =
        |section: symbols::elf::ElfSection| CfiSection { bytes: section.bytes, address: section.address };
    let sections = CfiSections {
        eh_frame_hdr: elf.eh_frame_hdr().ok().map(section),
        eh_frame: elf.eh_frame().ok().map(section),
        debug_frame: elf.section(".debug_frame").ok().map(section),
        text: elf.section_range(".text").map(|(start, _)| start),
        got: elf.section_range(".got").map(|(start, _)| start),
        go: GoTable::read(elf),
    };
    CfiTable::parse(sections).ok()
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![files::library(), files::with_small_file(), files::with_compressed_dwarf(), files::vmlinux()]
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Ok(elf) = ElfFile::open(Box::new(bytes.to_vec())) else { return };
    let _ = (elf.build_id(), elf.debug_link(), elf.alt_link(), elf.entry(), elf.is_relocatable());
    assert!(elf.segments().windows(2).all(|pair| pair[0].address <= pair[1].address), "by address");
    for offset in [0, 64, 0x1000, elf.entry(), u64::MAX] {
        let _ = (elf.address_of(offset), elf.offset_of(offset), elf.is_executable(offset));
        let _ = elf.bytes_at(offset, 32);
    }
    let names: Vec<String> = elf.sections().take(32).map(|section| section.name.to_owned()).collect();
    for name in &names {
        let _ = (elf.section(name), elf.section_range(name));
    }
    let table = unwind_table(&elf);
    let starts = |address| Some(table.as_ref()?.function_start(LinkAddr(address))?.0.0);
    let functions = FunctionTable::read(&elf, None);
    for function in functions.iter().take(NAMED) {
        assert!(function.name.len() < 5000, "a name is bounded");
        let _ = functions.name_at("module", function.start, &starts);
    }
    for address in [0, 0x1000, 0x1015, 0x1044, 0x1108, 0x1210, u64::MAX] {
        let _ = functions.name_at("module", address, &starts);
    }
    if let Some(go) = GoTable::read(&elf) {
        for address in [0, 0x1100, 0x1108, u64::MAX] {
            let _ = (go.function(address), go.line(address));
        }
    }
    // A file that names itself as its debug file.
    let query = DebugQuery::new(&elf, "/usr/lib/file");
    let _ = DebugFiles::new().find(&query);
}
