//! Names against what other programs say of the same files, and files that were damaged.

mod against_tools;
mod debug_files;
mod hostile;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::elf::ElfFile;

/// Returns the program that runs these tests: Rust, with symbols and DWARF.
fn own() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn open(path: impl AsRef<Path>) -> ElfFile {
    ElfFile::open(Box::new(std::fs::File::open(path).unwrap())).unwrap()
}

/// Returns the output of a program; `None` where it is not installed, and may be missing.
fn tool(program: &str, arguments: &[&str], input: Option<&str>) -> Option<String> {
    let mut command = testkit::tool(program)?;
    command.args(arguments);
    if let Some(input) = input {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), input).unwrap();
        command.stdin(std::fs::File::open(file.path()).unwrap());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a small C++ program with inlined functions, templates and DWARF; `None` without a compiler.
fn shop() -> Option<&'static [u8]> {
    // Compiled once, because that takes longer than the tests of the program.
    static SHOP: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    const SOURCE: &str = r#"
#include <cstdio>
#include <map>
#include <string>
namespace shop {
template <typename T> static inline __attribute__((always_inline)) T twice(T value) {
    asm volatile("" ::: "memory");
    return value + value;
}
static inline __attribute__((always_inline)) int thrice(int value) { return twice(value) * 3 / 2; }
struct Till { std::map<std::string, int> items; __attribute__((noinline)) int sum(int rate) const; };
int Till::sum(int rate) const {
    int total = 0;
    for (auto &item : items) total += thrice(item.second) * rate;
    return total;
}
}
int main(int count, char **words) {
    shop::Till till;
    for (int at = 0; at < count; at++) till.items[words[at]] = at;
    std::printf("%d\n", till.sum(count));
}
"#;
    let compile = || {
        let directory = tempfile::tempdir().unwrap();
        Some(std::fs::read(compiled(SOURCE, directory.path(), &["-O2"])?).unwrap())
    };
    SHOP.get_or_init(compile).as_deref()
}

/// Compiles C++ with debug information; returns the program in the directory.
fn compiled(source: &str, directory: &Path, options: &[&str]) -> Option<PathBuf> {
    let (file, out) = (directory.join("shop.cc"), directory.join("shop"));
    std::fs::write(&file, source).unwrap();
    tool("g++", &[&["-g", file.to_str()?, "-o", out.to_str()?], options].concat(), None)?;
    Some(out)
}
