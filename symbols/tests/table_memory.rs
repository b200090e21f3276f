//! The names of a program's functions take little more memory than their text.

use symbols::counted::{CountingAllocator, allocated};
use symbols::elf::ElfFile;
use symbols::names::FunctionTable;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes for each function besides its name; an `Elf64_Sym` alone has 24.
const EACH: i64 = 32;
/// Bytes for all else.
const REST: i64 = 16 << 10;

#[test]
fn a_table_of_functions_keeps_names_and_places_alone() {
    // Some thousand functions: those of this test with the standard library.
    let program = std::env::current_exe().expect("a path");
    let before = allocated();
    let elf = ElfFile::open(Box::new(std::fs::File::open(program).expect("a file"))).expect("a program");
    let size = |name: &str| elf.sections().find(|s| s.name == name).map_or(0, |s| s.size.cast_signed());
    let names = size(".strtab") + size(".dynstr");
    let table = FunctionTable::read(&elf, None);
    drop(elf);
    let taken = allocated() - before;
    let functions = i64::try_from(table.len()).expect("few");
    assert!(functions > 1_000 && names > 100_000, "{functions} functions, {names} bytes of names");
    let most = names + EACH * functions + REST;
    assert!(
        taken <= most,
        "{taken} bytes for {functions} functions with {names} bytes of names: at most {most}"
    );
}
