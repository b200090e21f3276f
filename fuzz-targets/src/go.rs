//! Go's own table: functions, source lines, frame sizes.

use symbols::elf::ElfFile;
use symbols::fixture::made_up_go;
use symbols::go::GoTable;

use crate::input::files;

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    made_up_go::MAGICS.map(|magic| made_up_go::table(magic, made_up_go::TEXT)).into()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let elf = files::with_go_table(bytes);
    let Ok(elf) = ElfFile::open(Box::new(elf)) else { return };
    let Some(go) = GoTable::read(&elf) else { return };
    let (start, end) = (made_up_go::TEXT, made_up_go::END + 0x10);
    for address in (start..end).step_by(7).chain([0, u64::MAX]) {
        if let Some(function) = go.function(address) {
            assert!(function.start <= address && address < function.end, "{function:?}");
            assert!(function.name.len() <= 4 * 4096, "a name is bounded");
        }
        if let Some((file, _)) = go.line(address) {
            assert!(file.len() <= 4 * 4096, "a path is bounded");
        }
    }
}
