//! DWARF: source lines and inlined functions, plain and compressed.

use symbols::elf::ElfFile;
use symbols::names::{FunctionTable, SourceLines, Symbolizer};

use crate::input::files::{self, TEXT};

/// Frames of one address, at most.
const FRAMES: usize = 256;

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![files::with_dwarf(2), files::with_dwarf(4), files::with_dwarf(5), files::with_compressed_dwarf()]
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Ok(elf) = ElfFile::open(Box::new(bytes.to_vec())) else { return };
    let Ok(lines) = SourceLines::open(&elf, None) else { return };
    for address in (TEXT.0..TEXT.0 + 0x200).step_by(0x11).chain([0, 1, u64::MAX - 1, u64::MAX]) {
        let frames = lines.frames_at(address);
        assert!(frames.len() <= FRAMES);
    }
    let _ = (lines.stopped(), lines.has_split_units());
    // As its own debug file, and as the file that debug files share.
    let both = Symbolizer::new(&elf, Some(&elf), Some(&elf));
    for address in [TEXT.0 + 0x108, TEXT.0 + 0x112, TEXT.0 + 0x181] {
        let _ = both.frames_at(address, &|_: u64| None);
    }
    let _ = FunctionTable::read(&elf, Some(&elf)).len();
}
